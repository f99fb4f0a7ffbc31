//! Series: jobs relative to a date, which are made, moved, shown and cancelled as a whole.

use std::fmt;

use axum::Json;
use keyfall::{
    Error, ErrorKind, JobKey, Member, MemberFate, MemberState, Past, QuietHours, RetryPolicy,
    Series, SeriesChange, SeriesView,
};
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::actions::Deed;
use super::auth::{Caller, Scope};
use super::body::{Body, Key};
use super::problem::Problem;
use super::said::SaidOut;
use super::wire::{HeaderMap, Span, Time, given};

/// A series that is made or changed. What is left out stays as it is; a new series needs `anchor`,
/// `zone` and `at`.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SeriesIn {
    /// The date that it is relative to: `2026-12-24 18:00`, on the wall of the zone, `2026-12-24`
    /// for its midnight, or `2026-12-24T17:00:00Z`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "2026-12-24 18:00")]
    pub anchor: Option<String>,
    /// The time zone, such as `Europe/Berlin`; only together with `anchor`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "Europe/Berlin")]
    pub zone: Option<String>,
    /// Its members, 64 at the most: offsets such as `-3d 09:00`, or tables with `at`, and `name` or
    /// `payload` of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<serde_json::Value>>, example = json!(["-3d 09:00", "-1h"]))]
    pub at: Option<Vec<MemberIn>>,
    /// The payload of all members that have none of their own: any JSON.
    #[serde(
        default,
        deserialize_with = "given",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<serde_json::Value>)]
    pub payload: Option<Box<RawValue>>,
    /// What becomes of members whose time has passed: `skip`, by default, or `run`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "skip")]
    pub past: Option<Past>,
    /// Hours and days on which no member is due: `22:00-08:00`, or a table with `hours`, `days` or
    /// `holidays`; `null` ends them.
    #[serde(
        default,
        deserialize_with = "present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<serde_json::Value>, example = "22:00-08:00")]
    pub quiet: Option<Option<QuietHours>>,
    /// How long the plan is kept after the last member. Defaults to `30d`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<Span>,
    /// Whether members that have ended run again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub again: bool,
    /// Texts that travel with each member.
    #[serde(default, skip_serializing_if = "HeaderMap::is_empty")]
    #[schema(inline)]
    pub headers: HeaderMap,
    /// The retry policy of the members, such as `15s 3m 10m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub retry: Option<RetryPolicy>,
    /// The limit of attempts of each member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub attempts: Option<u32>,
    /// The timeout of each member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Span>,
}

/// A member of a series: its offset alone, or a table.
#[derive(Debug, Serialize)]
pub struct MemberIn {
    /// The offset, such as `-3d 09:00`.
    pub at: String,
    /// The end of its id. Defaults to the amount of the offset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its own payload: any JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MemberTable {
    at: String,
    #[serde(default)]
    name: Option<String>,
    #[serde(default, deserialize_with = "given")]
    payload: Option<Box<RawValue>>,
}

/// A preview: a series, and its key.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SeriesPreviewIn {
    #[schema(example = "app1:booking:remind:42")]
    pub key: String,
    #[schema(inline)]
    pub series: SeriesIn,
}

/// What became of a series.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct SeriesChangeOut {
    #[schema(example = "app1:booking:remind:42")]
    pub key: String,
    /// The members in their order, then those that the series has no more.
    pub members: Vec<MemberChangeOut>,
    /// The plan is kept until then; missing if the series is cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_until: Option<Time>,
}

/// What became of one member.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct MemberChangeOut {
    #[schema(example = "app1:booking:remind:42~-3d")]
    pub key: String,
    /// Its offset.
    #[schema(example = "-3d 09:00")]
    pub at: String,
    pub what: FateOut,
    /// Its due time, if it is to come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<Time>,
    /// Why it was left out, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The same, for programs that say it in another language.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why_said: Option<SaidOut>,
}

/// What became of a member, in a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum FateOut {
    /// It is stored.
    Created,
    /// It was pending, and is due at another time.
    Moved,
    /// It stays as it is.
    Unchanged,
    /// It was pending, and the series has it no more.
    Cancelled,
    /// It will not run.
    LeftOut,
    /// It is running, and the run goes on.
    Running,
    /// It waits for a further attempt, and stays as it is.
    Retrying,
    /// It ended before.
    Ended,
}

/// A series as a whole.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct SeriesOut {
    #[schema(example = "app1:booking:remind:42")]
    pub key: String,
    /// The date that it is relative to.
    pub anchor: Time,
    /// Its time zone.
    #[schema(example = "Europe/Berlin")]
    pub zone: String,
    #[schema(value_type = String)]
    pub past: Past,
    /// Its quiet hours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub quiet: Option<QuietHours>,
    /// The plan is kept until then.
    pub kept_until: Time,
    pub members: Vec<MemberOut>,
}

/// A member of a series.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct MemberOut {
    #[schema(example = "app1:booking:remind:42~-3d")]
    pub key: String,
    /// Its offset.
    #[schema(example = "-3d 09:00")]
    pub at: String,
    pub state: StandOut,
    /// Its due time; of a member that was left out, the time that its offset names.
    pub due: Time,
    /// Why it was left out, or why it is not due at the time of its offset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The same, for programs that say it in another language.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why_said: Option<SaidOut>,
    /// The number of its dead letter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub letter: Option<u64>,
}

/// Where a member stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum StandOut {
    /// It is to come.
    Planned,
    /// It waits for a further attempt.
    Retrying,
    Running,
    /// It is a dead letter.
    Dead,
    /// It ran, or was cancelled by itself.
    Ended,
    LeftOut,
}

/// Makes a series, moves its date, or changes its members, in one step. A member that has begun is
/// told by its answer.
#[utoipa::path(put, path = "/v1/series/{key}", operation_id = "put_series", tag = "series", request_body = SeriesIn,
    responses((status = 200, body = SeriesChangeOut)))]
pub(super) async fn put(
    caller: Caller,
    Key(key): Key,
    Body(series): Body<SeriesIn>,
) -> Result<Json<SeriesChangeOut>, Problem> {
    let api = caller.may_with(Scope::Schedule, &key)?;
    let client = caller.scheduling();
    for payload in series.payloads() {
        api.routes.check_payload(&key, payload.len())?;
    }
    let changed = series.call(client.series(&key))?.await.map_err(problem)?;
    caller.did_one(Deed::new("series", key.as_str())).await;
    Ok(Json(SeriesChangeOut::of(&key, changed)))
}

/// What a call would make of a series. Nothing is stored.
#[utoipa::path(post, path = "/v1/series/preview", operation_id = "preview_series", tag = "series", request_body = SeriesPreviewIn,
    responses((status = 200, body = SeriesChangeOut)))]
pub(super) async fn preview(
    caller: Caller,
    Body(SeriesPreviewIn { key, series }): Body<SeriesPreviewIn>,
) -> Result<Json<SeriesChangeOut>, Problem> {
    let key = JobKey::parse(&key).map_err(|error| Problem::from(error).field("key"))?;
    let client = &caller.may_with(Scope::Schedule, &key)?.client;
    let call = series.call(client.series(&key))?;
    let changed = call.preview().await.map_err(problem)?;
    Ok(Json(SeriesChangeOut::of(&key, changed)))
}

/// A series as a whole: what ran, what is to come, and what was left out and why.
#[utoipa::path(get, path = "/v1/series/{key}", operation_id = "get_series", tag = "series",
    responses((status = 200, body = SeriesOut),
        (status = 404, description = "There is no such series", body = Problem)))]
pub(super) async fn show(caller: Caller, Key(key): Key) -> Result<Json<SeriesOut>, Problem> {
    let client = &caller.may_with(Scope::Read, &key)?.client;
    let view = client.series(&key).view().await.map_err(problem)?;
    let view = view.ok_or_else(|| Problem::job_absent(key.as_str()))?;
    Ok(Json(SeriesOut::of(view)))
}

/// Cancels a series: its members that are pending, and its plan. A run goes on.
#[utoipa::path(delete, path = "/v1/series/{key}", operation_id = "cancel_series", tag = "series",
    responses((status = 200, body = SeriesChangeOut),
        (status = 404, description = "There is no such series", body = Problem)))]
pub(super) async fn cancel(
    caller: Caller,
    Key(key): Key,
) -> Result<Json<SeriesChangeOut>, Problem> {
    let client = &caller.may_with(Scope::Schedule, &key)?.client;
    let cancelled = client.series(&key).cancel().await.map_err(problem)?;
    let cancelled = cancelled.ok_or_else(|| Problem::job_absent(key.as_str()))?;
    caller
        .did_one(Deed::new("cancel-series", key.as_str()))
        .await;
    Ok(Json(SeriesChangeOut::of(&key, cancelled)))
}

/// The problem of a call, with the field that most such errors are about.
fn problem(error: Error) -> Problem {
    let names = |field: &str| error.to_string().starts_with(&format!("`{field}`"));
    match error.kind() {
        ErrorKind::InvalidTime => Problem::from(error).field("anchor"),
        ErrorKind::InvalidRule if names("anchor") => Problem::from(error).field("anchor"),
        ErrorKind::InvalidRule if names("at") => Problem::from(error).field("at"),
        _ => Problem::from(error),
    }
}

impl StandOut {
    /// The same in JSON.
    pub fn word(self) -> &'static str {
        match self {
            StandOut::Planned => "planned",
            StandOut::Retrying => "retrying",
            StandOut::Running => "running",
            StandOut::Dead => "dead",
            StandOut::Ended => "ended",
            StandOut::LeftOut => "left_out",
        }
    }
}

impl FateOut {
    /// The word of the field `what`.
    pub fn word(self) -> &'static str {
        match self {
            FateOut::Created => "created",
            FateOut::Moved => "moved",
            FateOut::Unchanged => "unchanged",
            FateOut::Cancelled => "cancelled",
            FateOut::LeftOut => "left_out",
            FateOut::Running => "running",
            FateOut::Retrying => "retrying",
            FateOut::Ended => "ended",
        }
    }
}

impl SeriesIn {
    fn payloads(&self) -> impl Iterator<Item = &str> {
        let own = self.at.iter().flatten();
        let own = own.filter_map(|member| member.payload.as_deref());
        own.chain(self.payload.as_deref()).map(RawValue::get)
    }

    fn call<'a>(self, mut call: Series<'a>) -> Result<Series<'a>, Problem> {
        call = match (self.anchor, self.zone) {
            (Some(anchor), Some(zone)) => call.anchor(anchor, &zone),
            (Some(anchor), None) => call.move_to(anchor),
            (None, Some(_)) => {
                let detail = "`zone` is the zone of the anchor: write `anchor` too";
                return Err(Problem::invalid("zone", detail));
            }
            (None, None) => call,
        };
        if let Some(members) = self.at {
            call = call.at(members.into_iter().map(MemberIn::member));
        }
        if let Some(payload) = self.payload {
            call = call.payload(&payload);
        }
        if let Some(past) = self.past {
            call = call.past(past);
        }
        if let Some(quiet) = self.quiet {
            call = call.quiet(quiet);
        }
        if let Some(Span(keep)) = self.keep {
            call = call.keep(keep);
        }
        if self.again {
            call = call.again();
        }
        for (name, value) in self.headers {
            call = call.header(name, value);
        }
        if let Some(policy) = self.retry {
            call = call.retry(policy);
        }
        if let Some(limit) = self.attempts {
            call = call.attempts(limit);
        }
        if let Some(Span(limit)) = self.timeout {
            call = call.timeout(limit);
        }
        Ok(call)
    }
}

impl MemberIn {
    fn member(self) -> Member {
        let mut member = Member::new(&self.at);
        if let Some(name) = self.name {
            member = member.named(name);
        }
        match self.payload {
            Some(payload) => member.payload(&payload),
            None => member,
        }
    }
}

impl From<String> for MemberIn {
    fn from(at: String) -> Self {
        MemberIn {
            at,
            name: None,
            payload: None,
        }
    }
}

impl<'de> Deserialize<'de> for MemberIn {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Form;

        impl<'de> Visitor<'de> for Form {
            type Value = MemberIn;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an offset such as \"-3d 09:00\", or a table with `at`")
            }

            fn visit_str<E: de::Error>(self, at: &str) -> Result<MemberIn, E> {
                Ok(at.to_owned().into())
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<MemberIn, A::Error> {
                let table = MemberTable::deserialize(MapAccessDeserializer::new(map))?;
                let MemberTable { at, name, payload } = table;
                Ok(MemberIn { at, name, payload })
            }
        }

        deserializer.deserialize_any(Form)
    }
}

impl SeriesChangeOut {
    fn of(key: &JobKey, change: SeriesChange) -> Self {
        let members = change.members.into_iter().map(|member| {
            let (what, due, why) = match member.fate {
                MemberFate::Created(due) => (FateOut::Created, Some(due), None),
                MemberFate::Moved(due) => (FateOut::Moved, Some(due), None),
                MemberFate::Unchanged(due) => (FateOut::Unchanged, Some(due), None),
                MemberFate::Cancelled => (FateOut::Cancelled, None, None),
                MemberFate::LeftOut(why) => (FateOut::LeftOut, None, Some(why)),
                MemberFate::Running => (FateOut::Running, None, None),
                MemberFate::Retrying => (FateOut::Retrying, None, None),
                _ => (FateOut::Ended, None, None),
            };
            MemberChangeOut {
                key: member.key.to_string(),
                at: member.offset,
                what,
                due: due.map(Time),
                why_said: said(why.as_deref()),
                why,
            }
        });
        SeriesChangeOut {
            key: key.to_string(),
            members: members.collect(),
            kept_until: change.kept_until.map(Time),
        }
    }
}

/// The reason of a member, for programs that say it in another language.
fn said(why: Option<&str>) -> Option<SaidOut> {
    SaidOut::of(&QuietHours::said(why?))
}

impl SeriesOut {
    fn of(view: SeriesView) -> Self {
        let members = view.members.into_iter().map(|member| {
            let (state, letter, left_out) = match member.state {
                MemberState::Planned => (StandOut::Planned, None, None),
                MemberState::Retrying => (StandOut::Retrying, None, None),
                MemberState::Running => (StandOut::Running, None, None),
                MemberState::Dead(number) => (StandOut::Dead, Some(number), None),
                MemberState::LeftOut(why) => (StandOut::LeftOut, None, Some(why)),
                _ => (StandOut::Ended, None, None),
            };
            let why = left_out.or(member.moved);
            MemberOut {
                key: member.key.to_string(),
                at: member.offset,
                state,
                due: Time(member.due),
                why_said: said(why.as_deref()),
                why,
                letter,
            }
        });
        SeriesOut {
            anchor: Time(view.anchor),
            zone: view.zone,
            past: view.past,
            quiet: view.quiet,
            kept_until: Time(view.kept_until),
            members: members.collect(),
            key: view.key.to_string(),
        }
    }
}

/// A field that may be `null`.
fn present<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    T::deserialize(deserializer).map(Some)
}
