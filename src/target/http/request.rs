//! The request for a job: body and headers, the same for all hops of an attempt.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde::de::IgnoredAny;

use super::URL;
use super::signature::{Secret, message_id, signatures};
use crate::handler::Job;
use crate::target::document::rfc3339;
use crate::traces;

/// Headers that belong to one connection, or that the HTTP client sets. Neither jobs nor routes may
/// set them.
const OF_CONNECTIONS: [&str; 12] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Headers of a job that a redirect to another host does not carry along.
pub(super) const PRIVATE: [&str; 2] = ["authorization", "cookie"];

/// The request of one attempt.
pub(super) struct HttpRequest {
    /// All headers except the headers that a route adds.
    pub(super) headers: HeaderMap,
    /// The payload of the job, shared with it.
    pub(super) body: Bytes,
}

impl HttpRequest {
    /// The request for a job. Headers are set in this order, and later ones replace earlier ones:
    /// the headers of the job, a content type if it has none, the trace of this run if there is
    /// one, the description of the job, and, with secrets, the signatures of the present time.
    pub(super) fn of(job: &Job, secrets: &[Secret]) -> Self {
        let body = job.payload().clone();
        let mut headers = passed_on(job);
        if !headers.contains_key(CONTENT_TYPE) {
            let is_json = serde_json::from_slice::<IgnoredAny>(&body).is_ok();
            let kind = if is_json {
                "application/json"
            } else {
                "application/octet-stream"
            };
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        }
        // The server continues the trace of this run, not the trace of the producer.
        if let Some((parent, state)) = traces::current() {
            let state = HeaderValue::try_from(state).ok();
            headers.remove(traces::STATE);
            headers.extend(
                state
                    .filter(|it| !it.is_empty())
                    .map(|it| (HeaderName::from_static(traces::STATE), it)),
            );
            headers.insert(
                traces::PARENT,
                HeaderValue::try_from(parent).expect("it is ASCII"),
            );
        }
        let mut set = |name: &'static str, value: String| {
            let value = HeaderValue::try_from(value).expect("it is ASCII");
            headers.insert(name, value);
        };
        set("keyfall-key", escaped(job.key().as_str()));
        set("keyfall-attempt", job.attempt().to_string());
        set("keyfall-max-attempts", job.max_attempts().to_string());
        set("keyfall-due", rfc3339(job.due()));
        set("keyfall-first-scheduled", rfc3339(job.first_scheduled_at()));
        set("keyfall-lag-ms", job.lag().as_millis().to_string());
        set("keyfall-fence", job.fence().to_string());
        set("keyfall-idempotency-key", escaped(&job.idempotency_key()));
        if !secrets.is_empty() {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            let (id, now) = (message_id(job), now.unwrap_or_default().as_secs());
            set("webhook-signature", signatures(secrets, &id, now, &body));
            set("webhook-timestamp", now.to_string());
            set("webhook-id", id);
        }
        HttpRequest { headers, body }
    }
}

/// The headers of the job that are passed on: all but its URL, reserved names, and headers that
/// HTTP cannot carry.
fn passed_on(job: &Job) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in job.headers().iter() {
        // Values that no HTTP header can hold stay with the job.
        let (Ok(name), Ok(value)) = (
            HeaderName::try_from(name),
            HeaderValue::from_bytes(value.as_bytes()),
        ) else {
            continue;
        };
        if name != URL && !is_reserved(&name) {
            headers.insert(name, value);
        }
    }
    headers
}

/// Whether only this library or the HTTP client may set this header.
pub(super) fn is_reserved(name: &HeaderName) -> bool {
    let ours = ["keyfall-", "webhook-"];
    let is_ours = ours.iter().any(|ours| name.as_str().starts_with(ours));
    is_ours || OF_CONNECTIONS.contains(&name.as_str())
}

/// The text with `%XX` for `%` and for each byte that is not visible ASCII.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'!'..=b'~' if byte != b'%' => escaped.push(char::from(byte)),
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_receiver_gets_the_same_data_as_a_handler() {
        let scheduled = UNIX_EPOCH + Duration::from_millis(1_790_000_000_042);
        let job = Job::sample("app1:trans:notice:ä/5%")
            .raw_payload("[1]")
            .attempt(2)
            .max_attempts(9)
            .first_scheduled_at(scheduled)
            .due(scheduled + Duration::from_secs(60))
            .lag(Duration::from_micros(3900))
            .fence(1_790_000_060_042_000)
            .header("traceparent", "00-1-2-01")
            .header("Tenant", "ä")
            .header("url", "https://example.org/")
            .header("Host", "evil")
            .header("Transfer-Encoding", "chunked")
            .header("keyfall-attempt", "1")
            .header("Webhook-Id", "x")
            .header("no name", "x")
            .header("split", "a\r\nb: c");
        let HttpRequest { headers, body } = HttpRequest::of(&job.build(), &[]);
        assert_eq!(body, "[1]");
        let mut told: Vec<String> = headers
            .iter()
            .map(|(name, value)| format!("{name}: {}", String::from_utf8_lossy(value.as_bytes())))
            .collect();
        told.sort();
        assert_eq!(
            told,
            [
                "content-type: application/json",
                "keyfall-attempt: 2",
                "keyfall-due: 2026-09-21T14:14:20.042Z",
                "keyfall-fence: 1790000060042000",
                "keyfall-first-scheduled: 2026-09-21T14:13:20.042Z",
                "keyfall-idempotency-key: app1:trans:notice:%C3%A4/5%25@1790000000042000",
                "keyfall-key: app1:trans:notice:%C3%A4/5%25",
                "keyfall-lag-ms: 3",
                "keyfall-max-attempts: 9",
                "tenant: ä",
                "traceparent: 00-1-2-01",
            ]
        );
    }

    #[test]
    fn the_content_type_names_the_kind_of_the_payload() {
        let kind = |job: crate::SampleJob| {
            let headers = HttpRequest::of(&job.build(), &[]).headers;
            headers[CONTENT_TYPE].to_str().unwrap().to_owned()
        };
        let job = || Job::sample("app1:trans:notice:1");
        assert_eq!(kind(job().payload(&"x")), "application/json");
        assert_eq!(kind(job().raw_payload("<x>")), "application/octet-stream");
        let said = job().header("Content-Type", "text/xml").raw_payload("<x>");
        assert_eq!(kind(said), "text/xml");
    }
}
