//! The errors of the API, as `application/problem+json`, RFC 9457.

use std::borrow::Cow;
use std::num::NonZeroU64;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
#[cfg(feature = "database")]
use keyfall::JobKey;
use keyfall::{Error, ErrorKind};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use super::codes::Code;
use super::wire::Span;
#[cfg(feature = "database")]
use super::wire::Time;

/// The body of every answer that is an error.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// The path of the page about this code, at the daemon that answered.
    #[serde(rename = "type", default)]
    page: Box<str>,
    /// The status of the answer.
    #[serde(serialize_with = "as_number", deserialize_with = "from_number")]
    #[schema(value_type = u16)]
    status: StatusCode,
    /// A short name of the error.
    pub title: Cow<'static, str>,
    /// The fault, with the rule and the remedy.
    pub detail: String,
    /// The error's code, for programs. Stays the same for ever.
    pub code: Cow<'static, str>,
    /// The faulty part of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub field: Option<Box<str>>,
    /// Whether the same request can succeed later.
    pub retryable: bool,
    /// The number of seconds to wait before that.
    #[serde(skip)]
    retry_after: Option<NonZeroU64>,
}

fn as_number<S: serde::Serializer>(status: &StatusCode, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u16(status.as_u16())
}

fn from_number<'de, D: Deserializer<'de>>(from: D) -> Result<StatusCode, D::Error> {
    StatusCode::from_u16(u16::deserialize(from)?).map_err(serde::de::Error::custom)
}

impl Problem {
    pub(super) fn new(
        status: StatusCode,
        code: Code,
        title: &'static str,
        detail: impl Into<String>,
    ) -> Self {
        Problem {
            page: code.to_string().into(),
            status,
            title: title.into(),
            detail: detail.into(),
            code: code.name().into(),
            field: None,
            retryable: false,
            retry_after: None,
        }
    }

    /// A part of the request is invalid.
    pub(super) fn invalid(field: impl Into<String>, detail: impl Into<String>) -> Self {
        let title = "The request is not valid";
        Problem::new(StatusCode::BAD_REQUEST, Code::InvalidRequest, title, detail).field(field)
    }

    pub(super) fn job_absent(key: &str) -> Self {
        let detail =
            format!("there is no job {key}: it was never scheduled, has ended or was cancelled");
        Problem::new(
            StatusCode::NOT_FOUND,
            Code::JobAbsent,
            "There is no such job",
            detail,
        )
    }

    /// As [`job_absent`](Self::job_absent), for a request for the story of the job.
    pub(super) fn untold(why: &str) -> Self {
        Problem::new(
            StatusCode::NOT_FOUND,
            Code::JobAbsent,
            "There is no such job",
            why,
        )
    }

    pub(super) fn job_running(key: &str) -> Self {
        let detail = format!("{key} is running, and nothing is scheduled to follow it");
        Problem::new(
            StatusCode::CONFLICT,
            Code::JobRunning,
            "The job is running",
            detail,
        )
    }

    pub(super) fn job_not_recurring(key: &str) -> Self {
        let detail = format!("{key} has no rule: schedule it with `recurring` to make it recur");
        let title = "The job does not recur";
        Problem::new(StatusCode::CONFLICT, Code::JobNotRecurring, title, detail)
    }

    pub(super) fn kind_unlimited(kind: &str) -> Self {
        let detail = format!("the limit of {kind} was removed by another call: set it again");
        let title = "The kind has no limit";
        Problem::new(StatusCode::CONFLICT, Code::KindUnlimited, title, detail)
    }

    /// The daemon has no archive.
    pub(super) fn no_archive() -> Self {
        let detail = "this daemon has no database with ended jobs: ask one that has, or give it one \
                      by `database.url`";
        let title = "There is no archive";
        Problem::new(StatusCode::NOT_FOUND, Code::NoArchive, title, detail)
    }

    /// The database of the archive does not answer, or refuses.
    #[cfg(feature = "database")]
    pub(super) fn archive_away(detail: &str) -> Self {
        let title = "The archive does not answer";
        let status = StatusCode::SERVICE_UNAVAILABLE;
        let mut problem = Problem::new(status, Code::ArchiveUnavailable, title, detail);
        problem.retryable = true;
        problem
    }

    pub(super) fn job_present(key: &str, consequence: &str) -> Self {
        let detail = format!("there is a job {key}, pending or running: {consequence}");
        let title = "The job is there";
        Problem::new(StatusCode::CONFLICT, Code::JobPresent, title, detail)
    }

    pub(super) fn letter_absent(key: &str, letter: u64) -> Self {
        let detail = format!(
            "there is no dead letter {letter} of {key}: it was requeued or deleted, or the limits \
             removed it; the list of the letters of {key} shows the others"
        );
        let title = "There is no such dead letter";
        Problem::new(StatusCode::NOT_FOUND, Code::LetterAbsent, title, detail)
    }

    /// The archive has no such end of a job.
    #[cfg(feature = "database")]
    pub(super) fn run_absent(key: &str, ended: Option<Time>) -> Self {
        let which = match ended {
            Some(ended) => format!("no run of {key} that ended at {ended}"),
            None => format!("no run of {key}"),
        };
        let detail = format!(
            "the archive has {which}: its kind left no records then, the record waits in Redis, or its \
             time is over; `GET /v1/archive?prefix={key}` lists the runs that it has"
        );
        let title = "The archive has no such run";
        Problem::new(StatusCode::NOT_FOUND, Code::RunAbsent, title, detail)
    }

    /// The archive has the end of a job without its payload.
    #[cfg(feature = "database")]
    pub(super) fn payload_unarchived(key: &JobKey, ended: Time, bytes: u32) -> Self {
        let kind = key.kind();
        let detail = format!(
            "the archive has the run of {key} that ended at {ended} without its payload of {bytes} bytes: \
             schedule it by `PUT /v1/jobs/{key}` with the payload from elsewhere; for jobs that end \
             from now on, `keyfall archive set {kind}: --payload {bytes}` keeps it"
        );
        let title = "The payload is not in the archive";
        Problem::new(StatusCode::CONFLICT, Code::PayloadUnarchived, title, detail)
    }

    /// The dead letter of an ended job is still in Redis.
    #[cfg(feature = "database")]
    pub(super) fn letter_present(key: &str, letter: u64) -> Self {
        let detail = format!(
            "the dead letter {letter} of {key} is still there: requeue it by `POST /v1/dead/{key}/requeue`, \
             or delete it first, so that it cannot be requeued as well"
        );
        let title = "The dead letter is there";
        Problem::new(StatusCode::CONFLICT, Code::LetterPresent, title, detail)
    }

    pub(super) fn kind_absent(kind: &str) -> Self {
        let detail = format!("no job of the kind {kind} was ever scheduled");
        let title = "There is no such kind";
        Problem::new(StatusCode::NOT_FOUND, Code::KindAbsent, title, detail)
    }

    pub(super) fn kind_in_use(kind: &str, why: &str) -> Self {
        let detail = format!("{kind} is not dropped, because the kind is not empty: {why}");
        let title = "The kind is in use";
        Problem::new(StatusCode::CONFLICT, Code::KindInUse, title, detail)
    }

    pub(super) fn unauthorized(detail: &str) -> Self {
        let title = "The caller is not known";
        Problem::new(StatusCode::UNAUTHORIZED, Code::Unauthorized, title, detail)
    }

    pub(super) fn forbidden(detail: String) -> Self {
        let title = "The token does not allow this";
        Problem::new(StatusCode::FORBIDDEN, Code::Forbidden, title, detail)
    }

    /// The token has lost the right for a request in progress.
    pub(super) fn broken_off(mut self) -> Self {
        self.detail += "; the request was broken off, and its changes up to then stay";
        self
    }

    /// A page in a browser asks a daemon that knows no tokens.
    pub(super) fn web_page(why: &str) -> Self {
        let detail = format!(
            "{why}: a web page in a browser may have sent it, and this daemon knows no tokens; ask \
             from a program, by localhost or an address, or give the daemon tokens"
        );
        let title = "Web pages may not ask without a token";
        Problem::new(StatusCode::FORBIDDEN, Code::WebPage, title, detail)
    }

    /// More requests than are allowed; `wait` is the time until the next one.
    pub(super) fn rate_limited(wait: Duration) -> Self {
        let detail = "there were more requests and jobs than `http.requests_per_second` allows: \
                      send them slower, or to `/v1/batch`, which reads them at the allowed rate";
        let title = "Too many requests";
        let status = StatusCode::TOO_MANY_REQUESTS;
        let mut problem = Problem::new(status, Code::RateLimited, title, detail);
        problem.retry_later(wait.as_secs() + 1);
        problem
    }

    /// A body, or a line of one, with more bytes than are taken.
    pub(super) fn too_large(what: &str, limit: usize) -> Self {
        let detail = format!(
            "{what} has more than {limit} bytes: store the payload elsewhere and schedule a \
             reference to it, or raise `http.body_limit`"
        );
        let title = "The body is too large";
        let status = StatusCode::PAYLOAD_TOO_LARGE;
        Problem::new(status, Code::PayloadTooLarge, title, detail)
    }

    /// A payload with more bytes than the route of its job takes.
    pub(super) fn payload_too_large(bytes: usize, rule: &str) -> Self {
        let detail = format!(
            "the payload has {bytes} bytes, {rule}: store it elsewhere and schedule a reference \
             to it, or raise the `payload_limit` of the route"
        );
        let title = "The payload is too large";
        let status = StatusCode::PAYLOAD_TOO_LARGE;
        Problem::new(status, Code::PayloadTooLarge, title, detail).field("payload")
    }

    /// A body that did not come in time.
    pub(super) fn too_slow(patience: Duration) -> Self {
        let detail = format!(
            "nothing of the body came for a while, or it took more than {patience:?}, which is \
             `http.body_timeout`"
        );
        let title = "The body did not come in time";
        let status = StatusCode::REQUEST_TIMEOUT;
        let mut problem = Problem::new(status, Code::BodyTimeout, title, detail);
        problem.retryable = true;
        problem
    }

    pub(super) fn stopping() -> Self {
        let detail = "this daemon is about to stop; another daemon, or the next one here, can \
                      serve";
        let title = "The daemon stops";
        let mut problem = Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            Code::Stopping,
            title,
            detail,
        );
        problem.retry_later(1);
        problem
    }

    pub(super) fn deaf() -> Self {
        let detail = "the worker of this daemon does not hear what Redis announces, because it is \
                      starting, or connects anew; another daemon can serve";
        let title = "Redis is away";
        let mut problem = Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            Code::Unavailable,
            title,
            detail,
        );
        problem.retry_later(1);
        problem
    }

    /// Plain keys that routes adopt may be lost, and why.
    pub(super) fn unannounced(why: String) -> Self {
        let title = "Redis does not announce changes of keys";
        let status = StatusCode::SERVICE_UNAVAILABLE;
        Problem::new(status, Code::Unannounced, title, why)
    }

    /// The same as a success, if a setting accepts it.
    pub(super) fn accepted(mut self) -> Response {
        self.status = StatusCode::OK;
        self.into_response()
    }

    /// The daemon, or one caller, has the most tails already.
    pub(super) fn too_many_tails(detail: String) -> Self {
        let title = "Too many tails";
        let status = StatusCode::TOO_MANY_REQUESTS;
        let mut problem = Problem::new(status, Code::TooManyTails, title, detail);
        problem.retry_later(30);
        problem
    }

    /// A parameter behind the `?` that the call does not have.
    pub(super) fn unknown_parameter(name: &str, known: &str) -> Self {
        let detail = format!("there is no parameter `{name}`: this call has {known}");
        Problem::invalid(name, detail)
    }

    pub(super) fn unknown_route() -> Self {
        let detail = "no call has this path; `/v1/openapi.json` lists all of them";
        Problem::new(
            StatusCode::NOT_FOUND,
            Code::UnknownRoute,
            "There is no such call",
            detail,
        )
    }

    pub(super) fn wrong_method() -> Self {
        let detail = "the path has no call of this method; the header `allow` lists its methods";
        let title = "There is no such call";
        Problem::new(
            StatusCode::METHOD_NOT_ALLOWED,
            Code::UnknownMethod,
            title,
            detail,
        )
    }

    /// Names the faulty part of the request.
    pub(super) fn field(mut self, field: impl Into<String>) -> Self {
        self.field = Some(field.into().into_boxed_str());
        self
    }

    /// The error of a call on many jobs: an invalid key means the prefix there.
    pub(super) fn of_prefix(error: Error) -> Self {
        let is_prefix = error.kind() == ErrorKind::InvalidKey;
        let problem = Problem::from(error);
        if is_prefix {
            problem.field("prefix")
        } else {
            problem
        }
    }

    /// The error of a call with a due time: the time is `after`, if that was given, or `at`.
    pub(super) fn of_time(error: Error, after: Option<Span>) -> Self {
        let is_time = error.kind() == ErrorKind::InvalidTime;
        let problem = Problem::from(error);
        match after {
            Some(_) if is_time => problem.field("after"),
            None if is_time => problem.field("at"),
            _ => problem,
        }
    }

    /// The status of the answer.
    pub fn status(&self) -> StatusCode {
        self.status
    }

    fn retry_later(&mut self, seconds: u64) {
        self.retryable = true;
        self.retry_after = NonZeroU64::new(seconds);
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        use StatusCode as S;
        let (status, code, title, field) = match error.kind() {
            ErrorKind::InvalidKey => (
                S::BAD_REQUEST,
                Code::InvalidKey,
                "The key is not valid",
                Some("key"),
            ),
            ErrorKind::InvalidTime => (
                S::BAD_REQUEST,
                Code::InvalidTime,
                "The time is out of range",
                None,
            ),
            ErrorKind::InvalidPolicy => (
                S::BAD_REQUEST,
                Code::InvalidPolicy,
                "The retry policy is not valid",
                Some("retry"),
            ),
            ErrorKind::InvalidRule => (
                S::BAD_REQUEST,
                Code::InvalidRule,
                "The rule of a recurring job is not valid",
                Some("recurring"),
            ),
            ErrorKind::InvalidPayload => (
                S::BAD_REQUEST,
                Code::InvalidPayload,
                "The payload is not valid",
                Some("payload"),
            ),
            ErrorKind::InvalidHeaders => (
                S::BAD_REQUEST,
                Code::InvalidHeaders,
                "The headers are not valid",
                Some("headers"),
            ),
            ErrorKind::InvalidRoute | ErrorKind::InvalidSetting => (
                S::BAD_REQUEST,
                Code::InvalidRequest,
                "The request is not valid",
                None,
            ),
            ErrorKind::Unavailable => (
                S::SERVICE_UNAVAILABLE,
                Code::Unavailable,
                "Redis cannot be reached",
                None,
            ),
            ErrorKind::OutcomeUnknown => (
                S::SERVICE_UNAVAILABLE,
                Code::OutcomeUnknown,
                "Redis did not answer in time",
                None,
            ),
            ErrorKind::TooManyKinds => (
                S::TOO_MANY_REQUESTS,
                Code::TooManyKinds,
                "Too many new kinds",
                Some("key"),
            ),
            ErrorKind::Full => (
                S::SERVICE_UNAVAILABLE,
                Code::RedisFull,
                "Redis is full",
                None,
            ),
            ErrorKind::ReadOnly => (
                S::SERVICE_UNAVAILABLE,
                Code::RedisReadOnly,
                "Redis takes no writes",
                None,
            ),
            ErrorKind::Denied => (
                S::SERVICE_UNAVAILABLE,
                Code::RedisDenied,
                "Redis denies access",
                None,
            ),
            ErrorKind::Incompatible => (
                S::INTERNAL_SERVER_ERROR,
                Code::Incompatible,
                "This Redis cannot run Keyfall",
                None,
            ),
            _ => (
                S::INTERNAL_SERVER_ERROR,
                Code::Damaged,
                "The stored data is damaged",
                None,
            ),
        };
        let mut problem = Problem::new(status, code, title, error.to_string());
        problem.field = field.map(Into::into);
        if error.kind() == ErrorKind::TooManyKinds {
            problem.detail += ": is the key spelt correctly? `http.new_kinds` and \
                               `http.new_kinds_per_token` limit the new kinds of an hour";
            problem.retry_later(60);
            return problem;
        }
        // If Redis denies the daemon access, an immediate repeat fails again, but a later one can
        // succeed.
        if error.is_retryable() || status == S::SERVICE_UNAVAILABLE {
            problem.retry_later(1);
        }
        problem
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = serde_json::to_vec(&self).expect("texts and numbers are JSON");
        let mut answer = (self.status, Body::from(body)).into_response();
        let headers = answer.headers_mut();
        let kind = HeaderValue::from_static("application/problem+json");
        headers.insert(header::CONTENT_TYPE, kind);
        if let Some(seconds) = self.retry_after {
            headers.insert(header::RETRY_AFTER, seconds.get().into());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer");
            headers.insert(header::WWW_AUTHENTICATE, scheme);
        }
        answer
    }
}
