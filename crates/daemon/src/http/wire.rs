//! The JSON form of jobs, times and payloads: in the API, on the command line, and in exports.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use jiff::Timestamp;
use jiff::fmt::friendly::{Spacing, SpanPrinter};
use keyfall::{
    Headers, JobState, JobView, MaxLateness, Occurrence, QuietHours, RetryPolicy, Unseen,
};
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::problem::Problem;
use super::said::SaidOut;
use crate::duration;

/// A duration as people write it, such as `15m`, `2h 30m` or `PT15M`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ToSchema)]
#[schema(value_type = String, example = "15m")]
pub struct Span(pub Duration);

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(SpanVisitor)
    }
}

struct SpanVisitor;

impl Visitor<'_> for SpanVisitor {
    type Value = Span;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration, such as \"15m\"")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Span, E> {
        let span = duration::parse(text);
        span.map(Span).map_err(|wrong| {
            let (rule, remedy) = wrong.told();
            E::custom(format_args!("{text:?} {rule}; {remedy}"))
        })
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Span, E> {
        Err(E::custom(format_args!(
            "{number} has no unit; write a text with one, such as \"{number}s\" for {number} seconds"
        )))
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let brief = SpanPrinter::new().spacing(Spacing::None);
        f.write_str(&brief.unsigned_duration_to_string(&self.0))
    }
}

/// A point in time, RFC 3339, such as `2026-12-24T18:00:00Z`.
#[derive(Debug, Clone, Copy, ToSchema)]
#[schema(value_type = String, format = DateTime, example = "2026-12-24T18:00:00Z")]
pub struct Time(pub SystemTime);

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(from)?;
        let time: Timestamp = text.parse().map_err(|error| {
            D::Error::custom(format_args!(
                "{text:?} is not a time: {error}; write it as RFC 3339 does, `2026-12-24T18:00:00Z`"
            ))
        })?;
        Ok(Time(time.into()))
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A time beyond the years of the calendar is shown as the last instant of the calendar.
        let time = Timestamp::try_from(self.0).unwrap_or(Timestamp::MAX);
        // The microsecond of its schedule distinguishes a job from others of its name.
        match time.subsec_microsecond() % 1000 {
            0 => write!(f, "{time:.3}"),
            _ => write!(f, "{time:.6}"),
        }
    }
}

/// A point in time, or a duration from now.
#[derive(Debug, Clone, Copy)]
pub enum Moment {
    At(Time),
    FromNow(Span),
}

impl FromStr for Moment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(time) = text.parse::<Timestamp>() {
            return Ok(Moment::At(Time(time.into())));
        }
        let span = duration::parse(text).map_err(|_| {
            format!(
                "{text:?} is neither a time nor a duration from now: write `2026-12-24T18:00:00Z` \
                 or `15m`"
            )
        })?;
        Ok(Moment::FromNow(Span(span)))
    }
}

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(from)?;
        text.parse().map_err(D::Error::custom)
    }
}

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self {
            Moment::At(time) => time.serialize(to),
            Moment::FromNow(span) => span.serialize(to),
        }
    }
}

/// A job is due after a while or at a time, not both.
pub(super) fn check_when(after: Option<Span>, at: Option<Time>) -> Result<(), Problem> {
    if after.is_some() && at.is_some() {
        return Err(Problem::invalid(
            "at",
            "a job is due `after` a while or `at` a time: leave out one of them",
        ));
    }
    Ok(())
}

/// A value that is present, even `null`.
pub(super) fn given<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::deserialize(from).map(Some)
}

/// The deepest nesting, and the longest row of digits, that clients read: serde_json reads 127 levels,
/// some of them around the payload, and Python 4,300 digits.
const MOST_LEVELS: usize = 100;
const MOST_DIGITS: usize = 4300;

/// The form of payloads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Payloads {
    /// As JSON wherever they are JSON of at most 100 levels, and 4,300 digits in a row; white space
    /// around it is lost.
    #[default]
    Json,
    /// Exact to the byte: as JSON only if that, on one line, equals the stored bytes.
    Exact,
}

/// A payload: JSON as it was written, or else bytes in Base64.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct PayloadOut {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<Box<RawValue>>,
    /// Bytes that are not JSON, or JSON that not every parser reads, in Base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
}

impl PayloadOut {
    pub(super) fn of(bytes: &[u8]) -> Self {
        let (payload, payload_base64) = Payloads::Json.show(bytes);
        PayloadOut {
            payload,
            payload_base64,
        }
    }
}

/// JSON or bytes.
pub(super) type Shown = (Option<Box<RawValue>>, Option<String>);

impl Payloads {
    /// The payload as the two fields `payload` and `payload_base64`.
    pub fn show(self, bytes: &[u8]) -> Shown {
        let json: Option<Box<RawValue>> = serde_json::from_slice(bytes).ok();
        // Otherwise one payload would make the whole answer unreadable, with the jobs beside it.
        let json = json.filter(|json| is_plain(json.get()));
        let is_exact = |text: &str| text.as_bytes() == bytes && !text.contains('\n');
        match json {
            Some(json) if self == Payloads::Json || is_exact(json.get()) => (Some(json), None),
            _ => (None, Some(BASE64_STANDARD.encode(bytes))),
        }
    }
}

/// Whether this JSON has at most 100 levels, and 4,300 digits in a row.
fn is_plain(json: &str) -> bool {
    let (mut levels, mut digits, mut in_text, mut is_escaped) = (0_usize, 0_usize, false, false);
    json.bytes().all(|byte| {
        if in_text {
            in_text = is_escaped || byte != b'"';
            is_escaped = !is_escaped && byte == b'\\';
            return true;
        }
        match byte {
            b'"' => in_text = true,
            b'[' | b'{' => levels += 1,
            b']' | b'}' => levels -= 1,
            _ => {}
        }
        digits = match byte.is_ascii_digit() {
            true => digits + 1,
            false => 0,
        };
        levels <= MOST_LEVELS && digits <= MOST_DIGITS
    })
}

/// A payload in its stored form. A missing one is stored as `null`.
pub(super) fn payload(
    json: Option<Box<RawValue>>,
    base64: Option<String>,
) -> Result<Vec<u8>, Problem> {
    match (json, base64) {
        (Some(_), Some(_)) => Err(Problem::invalid(
            "payload_base64",
            "there are two payloads: leave out `payload` or `payload_base64`",
        )),
        (None, Some(text)) => BASE64_STANDARD.decode(&text).map_err(|error| {
            Problem::invalid("payload_base64", format!("this is not Base64: {error}"))
        }),
        (json, None) => Ok(json.as_ref().map_or("null", |json| json.get()).into()),
    }
}

pub(super) type HeaderMap = BTreeMap<String, String>;

pub(super) fn headers(headers: &Headers) -> HeaderMap {
    let own = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    headers.iter().map(own).collect()
}

/// A job as it was at one instant.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Job {
    #[schema(example = "app1:trans:notice:42")]
    pub key: String,
    pub state: State,
    /// The due time, also after the claim; of a dead letter, the time of death.
    pub due: Time,
    /// The number of attempts that have begun.
    #[serde(default)]
    pub attempts: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_scheduled_at: Option<Time>,
    /// The error of the last attempt, or the reason of the burial.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// Its events, the last eight at the most.
    #[serde(default)]
    pub steps: Vec<Step>,
    #[serde(default)]
    #[schema(inline)]
    pub headers: HeaderMap,
    /// Any JSON.
    #[serde(
        default,
        deserialize_with = "given",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<serde_json::Value>)]
    pub payload: Option<Box<RawValue>>,
    /// Any other bytes, in Base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_base64: Option<String>,
    /// Its own retry policy, instead of the policy of its route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub retry: Option<RetryPolicy>,
    /// Its own limit of attempts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// Its own timeout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Span>,
    /// How late it may start, and what becomes of it if it could start only later: a duration, and
    /// `run`, `skip`, `bury` or `spread` with the time over which late jobs are spread. Instead of
    /// the limit of its route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "1h skip")]
    pub max_lateness: Option<MaxLateness>,
    /// Its occurrence, if it recurs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub occurrence: Option<OccurrenceOut>,
    /// The plan, if it is the plan of a series.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub series: Option<serde_json::Value>,
    /// The time that was asked for, and why it is due at another one, such as quiet hours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shift: Option<ShiftOut>,
    /// The number of the dead letter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub letter: Option<u64>,
    /// The due time of its successor, which was scheduled while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub successor_due: Option<Time>,
    /// Its successor, which was scheduled while it runs. Lists do not show it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(no_recursion)]
    pub successor: Option<Box<Job>>,
    /// Only in an export: the state of the job at that time, if it was `running` or `lapsed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub was: Option<State>,
    /// It was cancelled while it runs.
    #[serde(default)]
    pub cancelled: bool,
    /// It was made from a plain key.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub adopted: bool,
}

/// An occurrence of a recurring job.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct OccurrenceOut {
    /// Its number, from 1.
    pub number: u64,
    /// The time that the rule names.
    pub scheduled_for: Time,
    /// How many times of the rule were left out so far.
    #[serde(default)]
    pub skipped: u64,
    /// Since when the rule is paused, if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_since: Option<Time>,
    /// The name of the declaration that it comes from, if it comes from one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub declared_by: Option<String>,
    /// The rule.
    #[schema(value_type = serde_json::Value)]
    pub rule: serde_json::Value,
}

impl OccurrenceOut {
    fn of(it: Occurrence) -> Self {
        OccurrenceOut {
            number: it.number,
            scheduled_for: Time(it.scheduled_for),
            skipped: it.skipped,
            paused_since: it.paused_since.map(Time),
            declared_by: it.declared_by,
            rule: it.rule,
        }
    }

    /// The occurrence of a job that is restored.
    pub(super) fn restored(self) -> Result<Occurrence, Problem> {
        let restored = Occurrence::new(self.rule, self.number, self.scheduled_for.0);
        let restored = restored.map_err(|error| Problem::from(error).field("occurrence"))?;
        let mut restored = restored.skipped(self.skipped);
        restored.declared_by = self.declared_by;
        Ok(match self.paused_since {
            Some(Time(since)) => restored.paused_since(since),
            None => restored,
        })
    }
}

/// Why a job is due at another time than was asked for.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ShiftOut {
    /// The time that was asked for.
    pub from: Time,
    #[schema(example = "quiet hours 22:00-08:00")]
    pub why: String,
    /// The same, for programs that say it in another language.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why_said: Option<SaidOut>,
}

/// An event of a job.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Step {
    pub what: String,
    pub at: Time,
}

impl Job {
    /// A job without a story.
    pub fn new(key: &str, due: Time, payload: &[u8]) -> Self {
        let (payload, payload_base64) = Payloads::Exact.show(payload);
        Job {
            key: key.to_owned(),
            state: State::Pending,
            due,
            attempts: 0,
            first_scheduled_at: None,
            last_error: None,
            steps: Vec::new(),
            headers: HeaderMap::new(),
            payload,
            payload_base64,
            retry: None,
            max_attempts: None,
            timeout: None,
            max_lateness: None,
            occurrence: None,
            series: None,
            shift: None,
            letter: None,
            successor_due: None,
            successor: None,
            was: None,
            cancelled: false,
            adopted: false,
        }
    }

    /// Its payload, byte for byte, if it was shown [exactly](Payloads::Exact).
    pub fn bytes(&self) -> Result<Vec<u8>, Problem> {
        payload(self.payload.clone(), self.payload_base64.clone())
    }

    pub fn of(view: &JobView, payloads: Payloads) -> Self {
        let steps = view.steps().iter().map(|step| Step {
            what: step.what.clone(),
            at: Time(step.at),
        });
        let (payload, payload_base64) = payloads.show(view.payload());
        Job {
            key: view.key().to_string(),
            state: view.state().into(),
            due: Time(view.due()),
            attempts: view.attempts(),
            first_scheduled_at: Some(Time(view.first_scheduled_at())),
            last_error: view.last_error().map(Into::into),
            steps: steps.collect(),
            headers: headers(view.headers()),
            payload,
            payload_base64,
            retry: view.retry().cloned(),
            max_attempts: view.max_attempts(),
            timeout: view.timeout().map(Span),
            max_lateness: view.max_lateness(),
            occurrence: view.occurrence().map(OccurrenceOut::of),
            series: view.series_plan(),
            shift: view.shift().map(|(from, why)| ShiftOut {
                from: Time(from),
                why_said: SaidOut::of(&QuietHours::said(why)),
                why: why.to_owned(),
            }),
            letter: view.letter(),
            successor_due: view.successor_due().map(Time),
            successor: view
                .successor()
                .map(|next| Box::new(Job::of(&next, payloads))),
            was: None,
            cancelled: view.is_cancelled(),
            adopted: view.is_adopted(),
        }
    }
}

/// The state of a job, in a word.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema, clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Its due time; includes jobs that wait for a retry
    #[default]
    Pending,
    /// Its due time, for another attempt
    Retrying,
    /// The limit of its kind, although it is due; in lists alone
    Held,
    /// A worker runs it
    Running,
    /// Its lease ended, and its worker has not been heard of since
    Lapsed,
    /// It is a dead letter
    Dead,
}

impl State {
    pub fn word(self) -> &'static str {
        match self {
            State::Pending => "pending",
            State::Retrying => "retrying",
            State::Held => "held",
            State::Running => "running",
            State::Lapsed => "lapsed",
            State::Dead => "dead",
        }
    }
}

impl From<State> for JobState {
    fn from(state: State) -> Self {
        match state {
            State::Pending | State::Held => JobState::Pending,
            State::Retrying => JobState::Retrying,
            State::Running => JobState::Running,
            State::Lapsed => JobState::Lapsed,
            State::Dead => JobState::Dead,
        }
    }
}

impl From<JobState> for State {
    fn from(state: JobState) -> Self {
        match state {
            JobState::Pending => State::Pending,
            JobState::Retrying => State::Retrying,
            JobState::Running => State::Running,
            JobState::Lapsed => State::Lapsed,
            _ => State::Dead,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_come_back_to_the_byte_on_one_line() {
        for (bytes, is_json) in [
            (&b"{\"a\": 1.50, \"a\": 2}"[..], true),
            (b"null", true),
            (b"", false),
            (b"{\"a\":\n1}", false),
            (b" 1", false),
            (b"\xff\0text", false),
        ] {
            let (json, base64) = Payloads::Exact.show(bytes);
            assert_eq!(json.is_some(), is_json, "{bytes:?}");
            let line = json.as_ref().map_or("", |json| json.get());
            assert!(!line.contains('\n'), "{line}");
            assert_eq!(payload(json, base64).unwrap(), bytes);
        }
    }

    #[test]
    fn consumers_get_payloads_in_json_as_json() {
        let (json, base64) = Payloads::Json.show(b" {\"a\":\n1}\n");
        assert_eq!(json.unwrap().get(), "{\"a\":\n1}");
        assert_eq!(base64, None);
        assert_eq!(Payloads::Json.show(b"\xff").1.unwrap(), "/w==");
    }

    #[test]
    fn json_that_some_parsers_refuse_comes_as_bytes() {
        let nested = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
        let digits = |count: usize| "1".repeat(count);
        let brackets_in_a_text = format!(r#"{{"a\"": "\\{}"}}"#, "[".repeat(MOST_LEVELS + 1));
        for (json, is_json) in [
            (nested(MOST_LEVELS), true),
            (nested(MOST_LEVELS + 1), false),
            (format!("[{}0]", "[1],".repeat(MOST_LEVELS)), true),
            (digits(MOST_DIGITS), true),
            (digits(MOST_DIGITS + 1), false),
            (format!("[{0},{0}]", digits(MOST_DIGITS)), true),
            (format!("{:?}", digits(MOST_DIGITS + 1)), true),
            (brackets_in_a_text, true),
        ] {
            for way in [Payloads::Json, Payloads::Exact] {
                assert_eq!(way.show(json.as_bytes()).0.is_some(), is_json, "{json}");
            }
        }
    }

    #[test]
    fn durations_come_back_as_they_were() {
        for text in ["90s500ms", "15m", "1h"] {
            let span: Span = serde_json::from_str(&format!("\"{text}\"")).unwrap();
            let written = serde_json::to_string(&span).unwrap();
            let read: Span = serde_json::from_str(&written).unwrap();
            assert_eq!(read.0, span.0, "{text} as {written}");
        }
    }
}

/// A server that was away, and the parts that could not be seen.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct UnseenOut {
    /// Its address.
    pub server: String,
    /// Why it was not seen.
    pub error: String,
    /// Its shards of the requested kinds: `app1:trans:notice/0`.
    pub shards: Vec<String>,
}

impl UnseenOut {
    pub fn all(unseen: &[Unseen]) -> Vec<Self> {
        let out = |one: &Unseen| UnseenOut {
            server: one.server.clone(),
            error: one.error.clone(),
            shards: one
                .shards
                .iter()
                .map(|(kind, shard)| format!("{kind}/{shard}"))
                .collect(),
        };
        unseen.iter().map(out).collect()
    }

    /// Merges the unseen parts of other answers, server by server.
    pub fn merge(all: &mut Vec<Self>, more: Vec<Self>) {
        for one in more {
            match all.iter_mut().find(|known| known.server == one.server) {
                Some(known) => known.shards.extend(one.shards),
                None => all.push(one),
            }
        }
    }
}
