//! The story of a job, and the length of histories.

use std::time::SystemTime;

use axum::Json;
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use keyfall::{Happening, Kind, Story, Wait};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::actions::Deed;
use super::archive::{EndedOut, last_ends};
use super::auth::{Caller, Scope};
use super::body::{Body, Key, Params};
use super::bulk::{Which, logged};
use super::problem::Problem;
use super::said::SaidOut;
use super::wire::{Span, State, Time};

/// The zone of the times in sentences.
#[derive(Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct StoryIn {
    /// A zone of the IANA database, such as Europe/Berlin. Defaults to UTC.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
}

/// The events of the jobs of one name, and the reasons why the present job waits.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct StoryOut {
    #[schema(example = "app1:trans:notice:42")]
    pub key: String,
    /// None if there is no such job, nor a dead letter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
    /// The events, the oldest first.
    pub happenings: Vec<HappeningOut>,
    /// The reasons why it waits: each of them alone would keep it from starting.
    pub waits: Vec<WaitOut>,
    /// The number of entries that the history of the kind keeps; 0 if it is off.
    pub history_entries: u64,
    /// How far back the history reaches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub history_since: Option<Time>,
    /// How the plain key of an adopted job that waits differs from it, in plain words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_differs: Option<String>,
    /// The same, for programs that say it in another language.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key_differs_said: Option<SaidOut>,
    /// The part of the story that is not known, in plain words, if some may be missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap: Option<String>,
    /// The ends of jobs of this name in the archive, the last first; 20 at the most. Empty without
    /// an archive.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub archived: Vec<EndedOut>,
    /// The same, for programs that say it in another language.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap_said: Option<SaidOut>,
}

/// An event of a job, or of a kind.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct HappeningOut {
    #[schema(example = "app1:trans:notice")]
    pub kind: String,
    /// None for an event of the kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The event in one word, such as `scheduled`, `claimed` or `failed`.
    pub what: String,
    pub at: Time,
    /// The process that made the change, as `host:process`. Empty if only the record of the job
    /// tells of it.
    pub by: String,
    /// The due time that the event gave the job; of a claim, the due time that had come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<Time>,
    /// Of a claim: `event`, `pacer`, `reconciler` or `backlog`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// Of a claim: the time since the job was due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lag: Option<Span>,
    /// Of an attempt that failed: its number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Of a run that ended: the time since its claim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took: Option<Span>,
    /// The number of the dead letter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub letter: Option<u64>,
    /// The error of the attempt, or the reason of the burial.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The same in plain words.
    pub text: String,
    /// The same, for programs that say it in another language.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub said: Option<SaidOut>,
}

/// A reason why a job waits.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct WaitOut {
    /// The reason in one word: `due`, `paused`, `unrouted`, `saturated`, `claim`, `run`, `takeover`
    /// or `requeue`.
    #[serde(rename = "for")]
    pub what: String,
    /// The due time of the job, or the end of the lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
    /// The start of the pause, or the time at which a lease lapsed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// The holder of the lease, or the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// The same in plain words.
    pub text: String,
    /// The same, for programs that say it in another language.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub said: Option<SaidOut>,
}

/// The kinds, and the length of their histories.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HistoryIn {
    /// The prefix of the kinds. End it with a colon to mean one kind, module or app.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "app1:trans:notice:")]
    pub prefix: Option<String>,
    /// All kinds, instead of a prefix.
    #[serde(default)]
    pub everything: bool,
    /// The number of entries that each history keeps, a million at the most. With 0 no further
    /// entries are written, and the old ones are deleted.
    #[schema(maximum = 1_000_000)]
    pub entries: u64,
}

/// The number of entries that the history of each kind keeps.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct HistoryOut {
    pub kinds: Vec<KeptOut>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct KeptOut {
    #[schema(example = "app1:trans:notice")]
    pub kind: String,
    pub entries: u64,
}

/// The events of a job, and the reasons why it waits.
#[utoipa::path(get, path = "/v1/jobs/{key}/story", operation_id = "tell_story", tag = "jobs", params(StoryIn),
    responses(
        (status = 200, body = StoryOut),
        (status = 404, description = "There is no such job, and the history knows of none", body = Problem)))]
pub(super) async fn story(
    caller: Caller,
    Key(key): Key,
    Params(StoryIn { zone }): Params<StoryIn>,
) -> Result<Json<StoryOut>, Problem> {
    let zone = match zone {
        Some(name) => self::zone(&name)?,
        None => TimeZone::UTC,
    };
    let client = &caller.may_with(Scope::Read, &key)?.client;
    let story = client.story(&key).await?;
    let mut out = StoryOut::new(&story, &zone);
    out.archived = last_ends(caller.may_with(Scope::Read, &key)?, &key).await;
    if story.job.is_none() && story.happenings.is_empty() && out.archived.is_empty() {
        let gap = out.gap.unwrap_or_default();
        return Err(Problem::untold(&gap));
    }
    Ok(Json(out))
}

/// The length of the history of each kind. With a token, of the kinds that it can see.
#[utoipa::path(get, path = "/v1/history", operation_id = "list_histories", tag = "kinds", responses((status = 200, body = HistoryOut)))]
pub(super) async fn list(caller: Caller) -> Result<Json<HistoryOut>, Problem> {
    let client = &caller.sees_its_own()?.client;
    let mut kinds = Vec::new();
    for kind in client.kinds().await? {
        if caller.can(Scope::Read, &format!("{kind}:")) {
            let entries = client.history_kept(kind.as_str()).await?;
            kinds.push(KeptOut::new(&kind, entries));
        }
    }
    Ok(Json(HistoryOut { kinds }))
}

/// Sets the length of the histories of these kinds.
#[utoipa::path(post, path = "/v1/history", operation_id = "keep_history", tag = "kinds", request_body = HistoryIn,
    responses((status = 200, body = HistoryOut)))]
pub(super) async fn keep(
    caller: Caller,
    Body(call): Body<HistoryIn>,
) -> Result<Json<HistoryOut>, Problem> {
    let which = Which::of(call.prefix, call.everything)?;
    let selection = which.select(&caller, Scope::Operate)?;
    let keeping = selection.keep_history(call.entries);
    let of_error = |error: keyfall::Error| match error.kind() {
        keyfall::ErrorKind::InvalidSetting => Problem::from(error).field("entries"),
        _ => Problem::of_prefix(error),
    };
    let deed = Deed::new("history", which.prefix());
    let deed = Some(deed.note(format!("{} entries", call.entries)));
    let changed = |kinds: &Vec<Kind>| Some(kinds.len() as u64);
    let prefixes = which.prefixes();
    let kinds = logged(&caller, prefixes, deed, keeping, of_error, changed).await?;
    let kept = kinds.iter().map(|kind| KeptOut::new(kind, call.entries));
    Ok(Json(HistoryOut {
        kinds: kept.collect(),
    }))
}

/// A zone by its name in the IANA database.
pub(super) fn zone(name: &str) -> Result<TimeZone, Problem> {
    TimeZone::get(name).map_err(|_| {
        let rule = "no such zone is known: write one as Europe/Berlin or UTC";
        Problem::invalid("zone", rule)
    })
}

impl KeptOut {
    fn new(kind: &Kind, entries: u64) -> Self {
        KeptOut {
            kind: kind.to_string(),
            entries,
        }
    }
}

impl StoryOut {
    pub fn new(story: &Story, zone: &TimeZone) -> Self {
        let now = SystemTime::now();
        let show = |time| moment(time, now, zone);
        let waits = story.waits.iter();
        let key_differs = story.key_differs.map(|how| how.sentence(show));
        let gap = story.gap(show);
        let happenings = story.happenings.iter();
        StoryOut {
            key: story.key.to_string(),
            state: story.job.as_ref().map(|job| job.state().into()),
            happenings: happenings.map(|it| HappeningOut::new(it, zone)).collect(),
            waits: waits.map(|wait| WaitOut::new(wait, show)).collect(),
            history_entries: story.kept,
            history_since: story.reaches.map(Time),
            archived: Vec::new(),
            key_differs_said: key_differs.as_ref().and_then(SaidOut::of),
            key_differs: key_differs.map(|it| it.to_string()),
            gap_said: gap.as_ref().and_then(SaidOut::of),
            gap: gap.map(|it| it.to_string()),
        }
    }
}

impl HappeningOut {
    pub fn new(it: &Happening, zone: &TimeZone) -> Self {
        let sentence = it.sentence(|time| moment(time, it.at, zone));
        HappeningOut {
            kind: it.kind.to_string(),
            key: it.key().map(|key| key.to_string()),
            what: it.what.to_string(),
            at: Time(it.at),
            by: it.by.clone(),
            due: it.due.map(Time),
            source: it.source.map(|source| source.as_str().to_owned()),
            lag: it.lag().map(Span),
            attempt: it.attempt,
            took: it.took.map(Span),
            letter: it.letter,
            note: it.note.clone(),
            said: SaidOut::of(&sentence),
            text: sentence.to_string(),
        }
    }
}

impl WaitOut {
    fn new(wait: &Wait, show: impl Fn(SystemTime) -> String) -> Self {
        let (what, until, since, by) = match wait {
            Wait::Due { at, .. } => ("due", Some(*at), None, None),
            Wait::RulePaused { since } => ("rule_paused", None, Some(*since), None),
            Wait::PutOff { .. } => ("put_off", None, None, None),
            Wait::Paused { since, .. } => ("paused", None, Some(*since), None),
            Wait::Limited {
                since, by, next, ..
            } => ("limited", *next, Some(*since), Some(by.clone())),
            Wait::Unrouted => ("unrouted", None, None, None),
            Wait::Saturated { .. } => ("saturated", None, None, None),
            Wait::Claim => ("claim", None, None, None),
            Wait::Run { by, until, .. } => ("run", *until, None, by.clone()),
            Wait::Takeover { from, lapsed } => ("takeover", None, *lapsed, from.clone()),
            Wait::Requeue { .. } => ("requeue", None, None, None),
            _ => ("unknown", None, None, None),
        };
        let sentence = wait.sentence(show);
        WaitOut {
            what: what.to_owned(),
            until: until.map(Time),
            since: since.map(Time),
            by,
            said: SaidOut::of(&sentence),
            text: sentence.to_string(),
        }
    }
}

/// A time in the usual form of a zone, without the day if `beside` is on the same day.
pub(super) fn moment(time: SystemTime, beside: SystemTime, zone: &TimeZone) -> String {
    // A time beyond the years of the calendar is shown as the last instant of the calendar.
    let zoned = |time| {
        let time = Timestamp::try_from(time).unwrap_or(Timestamp::MAX);
        Zoned::new(time, zone.clone()).datetime()
    };
    let (time, beside) = (zoned(time), zoned(beside));
    if time.date() == beside.date() {
        format!("{:.3}", time.time())
    } else {
        format!("{} {:.3}", time.date(), time.time())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_of_the_same_day_is_shown_without_the_day() {
        let zone = TimeZone::get("Asia/Tokyo").unwrap();
        let at = |text: &str| text.parse::<Timestamp>().unwrap().into();
        let shown = |time, beside| moment(at(time), at(beside), &zone);
        assert_eq!(
            shown("2026-12-24T16:00:00.002Z", "2026-12-25T01:00:00Z"),
            "01:00:00.002"
        );
        assert_eq!(
            shown("2026-12-24T14:59:59Z", "2026-12-25T01:00:00Z"),
            "2026-12-24 23:59:59.000"
        );
    }
}
