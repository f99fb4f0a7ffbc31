//! A job as programs read it: in lists, in exports, and in what is imported.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use clap::ValueEnum;
use jiff::Timestamp;
use jiff::fmt::friendly::{Spacing, SpanPrinter};
use keyfall::{Headers, JobState, JobView, RetryPolicy};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::when::stamp;

/// A job on one line of JSON.
#[derive(Serialize, Deserialize)]
pub(crate) struct JobLine {
    pub(crate) key: String,
    pub(crate) state: State,
    /// Of a dead letter, when it died.
    pub(crate) due: Timestamp,
    /// How many were begun.
    #[serde(default)]
    attempts: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    first_scheduled_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    last_error: Option<String>,
    #[serde(default)]
    steps: Vec<StepLine>,
    #[serde(default)]
    pub(crate) headers: Headers,
    /// JSON, as it was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    payload: Option<Box<RawValue>>,
    /// Any other bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) retry: Option<RetryPolicy>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) max_attempts: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) timeout: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    letter: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    successor_due: Option<Timestamp>,
    #[serde(default)]
    cancelled: bool,
}

#[derive(Serialize, Deserialize)]
struct StepLine {
    what: String,
    at: Timestamp,
}

/// What a job waits for, in a word.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    /// Its due time; those that wait to be retried included
    Pending,
    /// Its due time, for another attempt
    Retrying,
    /// A worker runs it
    Running,
    /// Its worker has not been heard of since its lease ended
    Lapsed,
    /// It is a dead letter
    Dead,
}

impl JobLine {
    pub(crate) fn of(job: &JobView) -> Self {
        let (payload, payload_base64) = written(job.payload());
        let step = |step: &keyfall::Step| StepLine {
            what: step.what.clone(),
            at: stamp(step.at),
        };
        let brief = SpanPrinter::new().spacing(Spacing::None);
        JobLine {
            key: job.key().to_string(),
            state: job.state().into(),
            due: stamp(job.due()),
            attempts: job.attempts(),
            first_scheduled_at: Some(stamp(job.first_scheduled_at())),
            last_error: job.last_error().map(Into::into),
            steps: job.steps().iter().map(step).collect(),
            headers: job.headers().clone(),
            payload,
            payload_base64,
            retry: job.retry().cloned(),
            max_attempts: job.max_attempts(),
            timeout: job
                .timeout()
                .map(|limit| brief.unsigned_duration_to_string(&limit)),
            letter: job.letter(),
            successor_due: job.successor_due().map(stamp),
            cancelled: job.is_cancelled(),
        }
    }

    /// Byte for byte what was stored. Nothing is `null`.
    pub(crate) fn payload(&self) -> Result<Vec<u8>, String> {
        match (&self.payload, &self.payload_base64) {
            (Some(_), Some(_)) => Err("it has two payloads: leave one of them out".to_owned()),
            (None, Some(text)) => BASE64_STANDARD
                .decode(text)
                .map_err(|error| format!("`payload_base64` is no Base64: {error}")),
            (json, None) => Ok(json.as_ref().map_or("null", |json| json.get()).into()),
        }
    }
}

/// JSON stands as it is, so that people can read it; what would not come back to the byte, or
/// not on one line, stands in Base64.
fn written(payload: &[u8]) -> (Option<Box<RawValue>>, Option<String>) {
    let json: Option<Box<RawValue>> = serde_json::from_slice(payload).ok();
    match json.filter(|json| json.get().as_bytes() == payload && !payload.contains(&b'\n')) {
        Some(json) => (Some(json), None),
        None => (None, Some(BASE64_STANDARD.encode(payload))),
    }
}

impl State {
    pub(crate) fn word(self) -> &'static str {
        match self {
            State::Pending => "pending",
            State::Retrying => "retrying",
            State::Running => "running",
            State::Lapsed => "lapsed",
            State::Dead => "dead",
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

impl From<State> for JobState {
    fn from(state: State) -> Self {
        match state {
            State::Pending => JobState::Pending,
            State::Retrying => JobState::Retrying,
            State::Running => JobState::Running,
            State::Lapsed => JobState::Lapsed,
            State::Dead => JobState::Dead,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_come_back_to_the_byte_on_one_line() {
        for (payload, is_json) in [
            (&b"{\"a\": 1.50, \"a\": 2}"[..], true),
            (b"null", true),
            (b"", false),
            (b"{\"a\":\n1}", false),
            (b" 1", false),
            (b"\xff\0text", false),
        ] {
            let (json, base64) = written(payload);
            assert_eq!(json.is_some(), is_json, "{payload:?}");
            let line = JobLine {
                payload: json,
                payload_base64: base64,
                ..serde_json::from_str(
                    r#"{"key":"a:b:c:d","state":"pending","due":"2026-01-01T00:00:00Z"}"#,
                )
                .unwrap()
            };
            let text = serde_json::to_string(&line).unwrap();
            assert!(!text.contains('\n'), "{text}");
            let read: JobLine = serde_json::from_str(&text).unwrap();
            assert_eq!(read.payload().unwrap(), payload, "{text}");
        }
    }
}
