//! A job in the form that consumers of lists and streams read: one JSON document, or the fields of
//! a stream entry.
//!
//! `docs/targets.md` describes the format.

use std::collections::BTreeMap;
use std::time::SystemTime;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::handler::Job;

/// A job as consumers read it. A job that is pulled over HTTP has the same names.
#[derive(Serialize)]
pub(super) struct Document<'a> {
    key: &'a str,
    /// The payload, if it is valid JSON; copied character for character.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a RawValue>,
    /// The payload in standard base64, if it is no valid JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    /// 1 for the first attempt.
    attempt: u32,
    max_attempts: u32,
    /// RFC 3339, in milliseconds; so is `first_scheduled_at`.
    due: String,
    first_scheduled_at: String,
    /// Milliseconds from the due time to the start.
    lag_ms: u64,
    /// The fencing value: later claims of this job have higher ones.
    fence: u64,
    headers: BTreeMap<&'a str, &'a str>,
    idempotency_key: String,
    /// The text by which a consumer acknowledges the job; `None` if consumers do not acknowledge.
    #[serde(skip_serializing_if = "Option::is_none")]
    lease: Option<String>,
}

impl<'a> Document<'a> {
    /// The document of a job; with its lease, if the consumer acknowledges jobs.
    pub(super) fn of(job: &'a Job, with_lease: bool) -> Self {
        let payload: Option<&RawValue> = serde_json::from_slice(job.payload()).ok();
        let encoded = || BASE64_STANDARD.encode(job.payload());
        Document {
            key: job.key().as_str(),
            payload_base64: payload.is_none().then(encoded),
            payload,
            attempt: job.attempt(),
            max_attempts: job.max_attempts(),
            due: rfc3339(job.due()),
            first_scheduled_at: rfc3339(job.first_scheduled_at()),
            lag_ms: u64::try_from(job.lag().as_millis()).unwrap_or(u64::MAX),
            fence: job.fence(),
            headers: job.headers().iter().collect(),
            idempotency_key: job.idempotency_key(),
            lease: with_lease.then(|| job.lease().to_string()),
        }
    }

    /// The document as compact JSON.
    pub(super) fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("texts and numbers can be written")
    }

    /// The document as fields of a stream entry. Texts and numbers are written as they are, headers
    /// and the payload as JSON.
    pub(super) fn into_fields(self) -> Vec<(&'static str, Vec<u8>)> {
        let headers = serde_json::to_vec(&self.headers).expect("texts can be written");
        let payload = match (self.payload, self.payload_base64) {
            (_, Some(text)) => ("payload_base64", text.into_bytes()),
            (json, None) => ("payload", json.map_or("null", RawValue::get).into()),
        };
        let mut fields = vec![
            ("key", self.key.into()),
            payload,
            ("attempt", self.attempt.to_string().into_bytes()),
            ("max_attempts", self.max_attempts.to_string().into_bytes()),
            ("due", self.due.into_bytes()),
            ("first_scheduled_at", self.first_scheduled_at.into_bytes()),
            ("lag_ms", self.lag_ms.to_string().into_bytes()),
            ("fence", self.fence.to_string().into_bytes()),
            ("headers", headers),
            ("idempotency_key", self.idempotency_key.into_bytes()),
        ];
        fields.extend(self.lease.map(|lease| ("lease", lease.into_bytes())));
        fields
    }
}

/// A time in RFC 3339, with three decimals, in UTC. A time after the last year of the calendar
/// becomes its last instant.
pub(super) fn rfc3339(time: SystemTime) -> String {
    format!("{:.3}", Timestamp::try_from(time).unwrap_or(Timestamp::MAX))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(job: &Job, with_lease: bool) -> Value {
        serde_json::from_slice(&Document::of(job, with_lease).to_json()).unwrap()
    }

    #[test]
    fn json_is_embedded_verbatim_and_bytes_as_base64() {
        let sample = |payload: &'static [u8]| Job::sample("a:b:c:1").raw_payload(payload).build();
        let text = Document::of(&sample(br#"{"a": 1.50}"#), false).to_json();
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains(r#""payload":{"a": 1.50}"#), "{text}");
        let read = read(&sample(b"\xff"), true);
        assert_eq!(
            (&read["payload"], &read["payload_base64"]),
            (&Value::Null, &json!("/w=="))
        );
        assert!(read["lease"].as_str().unwrap().starts_with("a:b:c:1@"));
    }

    #[test]
    fn the_fields_of_an_entry_agree_with_the_document() {
        let job = Job::sample("a:b:c:1").raw_payload(&b"[1]"[..]).build();
        let document = read(&job, true);
        let fields = Document::of(&job, true).into_fields();
        assert_eq!(fields.len(), document.as_object().unwrap().len());
        for (name, value) in fields {
            let text = String::from_utf8(value).unwrap();
            let told = &document[name];
            assert_eq!(told.as_str().map_or(told.to_string(), Into::into), text);
        }
    }
}
