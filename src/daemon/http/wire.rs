//! How jobs, times and payloads look in JSON.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use jiff::Timestamp;
use keyfall::{Headers, JobState, JobView};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::problem::Problem;
use crate::duration;

/// A duration as people write it, such as `15m`, `2h 30m` or `PT15M`.
#[derive(Debug, Clone, Copy, ToSchema)]
#[schema(value_type = String, example = "15m")]
pub(super) struct Span(pub(super) Duration);

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(from)?;
        let span = duration::parse(&text).map_err(|wrong| {
            let (rule, remedy) = wrong.told();
            D::Error::custom(format_args!("{text:?} {rule}; {remedy}"))
        })?;
        Ok(Span(span))
    }
}

/// A point in time, RFC 3339, such as `2026-12-24T18:00:00Z`.
#[derive(Debug, Clone, Copy, ToSchema)]
#[schema(value_type = String, format = DateTime, example = "2026-12-24T18:00:00Z")]
pub(super) struct Time(pub(super) SystemTime);

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = Cow::<str>::deserialize(from)?;
        let time: Timestamp = text.parse().map_err(|error| {
            D::Error::custom(format_args!(
                "{text:?} is no time: {error}; write it as RFC 3339 does, `2026-12-24T18:00:00Z`"
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
        // What lies beyond the years that a calendar has is shown as its last instant.
        let time = Timestamp::try_from(self.0).unwrap_or(Timestamp::MAX);
        write!(f, "{time:.3}")
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

/// JSON that is there, be it `null`.
pub(super) fn given<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::deserialize(from).map(Some)
}

/// A payload as it is to be stored. Nothing is `null`.
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
            Problem::invalid("payload_base64", format!("this is no Base64: {error}"))
        }),
        (json, None) => Ok(json.as_ref().map_or("null", |json| json.get()).into()),
    }
}

/// A payload: JSON as it was written, or else bytes in Base64.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct PayloadOut {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<Box<RawValue>>,
    /// Bytes that are no JSON, in Base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
}

impl PayloadOut {
    pub(super) fn of(bytes: &[u8]) -> Self {
        let json: Option<Box<RawValue>> = serde_json::from_slice(bytes).ok();
        PayloadOut {
            payload_base64: json.is_none().then(|| BASE64_STANDARD.encode(bytes)),
            payload: json,
        }
    }
}

pub(super) type HeaderMap = BTreeMap<String, String>;

pub(super) fn headers(headers: &Headers) -> HeaderMap {
    let own = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    headers.iter().map(own).collect()
}

/// A job as it was at one instant.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct JobOut {
    #[schema(example = "app1:trans:notice:42")]
    key: String,
    /// `pending`, `retrying`, `running`, `lapsed` or `dead`.
    state: &'static str,
    /// When it is due, or was when it was claimed; of a dead letter, when it died.
    due: Time,
    /// How many attempts were begun.
    attempts: u32,
    first_scheduled_at: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<String>,
    /// What happened to it, the last eight things at the most.
    steps: Vec<StepOut>,
    #[schema(inline)]
    headers: HeaderMap,
    #[serde(flatten)]
    payload: PayloadOut,
    /// The number of the dead letter.
    #[serde(skip_serializing_if = "Option::is_none")]
    letter: Option<u64>,
    /// When what was scheduled while it runs is due.
    #[serde(skip_serializing_if = "Option::is_none")]
    successor_due: Option<Time>,
    /// Somebody cancelled it while it runs.
    cancelled: bool,
}

/// Something that happened to a job.
#[derive(Debug, Serialize, ToSchema)]
struct StepOut {
    what: String,
    at: Time,
}

impl From<&JobView> for JobOut {
    fn from(view: &JobView) -> Self {
        let steps = view.steps().iter().map(|step| StepOut {
            what: step.what.clone(),
            at: Time(step.at),
        });
        JobOut {
            key: view.key().to_string(),
            state: state(view.state()),
            due: Time(view.due()),
            attempts: view.attempts(),
            first_scheduled_at: Time(view.first_scheduled_at()),
            last_error: view.last_error().map(Into::into),
            steps: steps.collect(),
            headers: headers(view.headers()),
            payload: PayloadOut::of(view.payload()),
            letter: view.letter(),
            successor_due: view.successor_due().map(Time),
            cancelled: view.is_cancelled(),
        }
    }
}

/// What a job waits for.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum StateIn {
    #[default]
    Pending,
    Retrying,
    Running,
    Lapsed,
    Dead,
}

impl From<StateIn> for JobState {
    fn from(state: StateIn) -> Self {
        match state {
            StateIn::Pending => JobState::Pending,
            StateIn::Retrying => JobState::Retrying,
            StateIn::Running => JobState::Running,
            StateIn::Lapsed => JobState::Lapsed,
            StateIn::Dead => JobState::Dead,
        }
    }
}

/// A state, as it is written.
pub(super) fn state(state: JobState) -> &'static str {
    match state {
        JobState::Pending => "pending",
        JobState::Retrying => "retrying",
        JobState::Running => "running",
        JobState::Lapsed => "lapsed",
        _ => "dead",
    }
}
