//! What went wrong, as `application/problem+json`, RFC 9457.

use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use keyfall::{Error, ErrorKind};
use serde::Serialize;
use utoipa::ToSchema;

/// The body of every answer that is an error.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Problem {
    /// The status of the answer.
    #[serde(serialize_with = "as_number")]
    #[schema(value_type = u16)]
    status: StatusCode,
    /// What it is, in a few words.
    title: &'static str,
    /// What is wrong, with the rule and the remedy.
    detail: String,
    /// What it is, for programs. Stays the same for ever.
    code: &'static str,
    /// What of the request is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<String>,
    /// Whether the same request can succeed later.
    retryable: bool,
}

fn as_number<S: serde::Serializer>(status: &StatusCode, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u16(status.as_u16())
}

impl Problem {
    pub(super) fn new(
        status: StatusCode,
        code: &'static str,
        title: &'static str,
        detail: impl Into<String>,
    ) -> Self {
        Problem {
            status,
            title,
            detail: detail.into(),
            code,
            field: None,
            retryable: false,
        }
    }

    /// Something in the request is not as it has to be.
    pub(super) fn invalid(field: impl Into<String>, detail: impl Into<String>) -> Self {
        let title = "The request is not valid";
        Problem::new(StatusCode::BAD_REQUEST, "invalid_request", title, detail).field(field)
    }

    pub(super) fn job_absent(key: &str) -> Self {
        let detail =
            format!("there is no job {key}: it was never scheduled, has ended or was cancelled");
        Problem::new(
            StatusCode::NOT_FOUND,
            "job_absent",
            "There is no such job",
            detail,
        )
    }

    pub(super) fn job_running(key: &str) -> Self {
        let detail = format!("{key} is running, and nothing is scheduled to follow it");
        Problem::new(
            StatusCode::CONFLICT,
            "job_running",
            "The job is running",
            detail,
        )
    }

    pub(super) fn stopping() -> Self {
        let detail = "this daemon is about to stop; another one, or the next, can serve";
        let title = "The daemon stops";
        let mut problem = Problem::new(StatusCode::SERVICE_UNAVAILABLE, "stopping", title, detail);
        problem.retryable = true;
        problem
    }

    pub(super) fn unknown_route() -> Self {
        let detail = "no call has this path; `/v1/openapi.json` lists all of them";
        Problem::new(
            StatusCode::NOT_FOUND,
            "unknown_route",
            "There is no such call",
            detail,
        )
    }

    pub(super) fn wrong_method() -> Self {
        let detail = "the path has no call of this method; the header `allow` lists those it has";
        let title = "There is no such call";
        Problem::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "unknown_method",
            title,
            detail,
        )
    }

    /// What of the request is wrong.
    pub(super) fn field(mut self, field: impl Into<String>) -> Self {
        self.field = Some(field.into());
        self
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        use StatusCode as S;
        let (status, code, title, field) = match error.kind() {
            ErrorKind::InvalidKey => (
                S::BAD_REQUEST,
                "invalid_key",
                "The key is not valid",
                Some("key"),
            ),
            ErrorKind::InvalidTime => (
                S::BAD_REQUEST,
                "invalid_time",
                "The time is out of range",
                None,
            ),
            ErrorKind::InvalidPolicy => (
                S::BAD_REQUEST,
                "invalid_policy",
                "The retry policy is not valid",
                Some("retry"),
            ),
            ErrorKind::InvalidPayload => (
                S::BAD_REQUEST,
                "invalid_payload",
                "The payload is not valid",
                Some("payload"),
            ),
            ErrorKind::InvalidHeaders => (
                S::BAD_REQUEST,
                "invalid_headers",
                "The headers are not valid",
                Some("headers"),
            ),
            ErrorKind::InvalidRoute | ErrorKind::InvalidSetting => (
                S::BAD_REQUEST,
                "invalid_request",
                "The request is not valid",
                None,
            ),
            ErrorKind::Unavailable => (
                S::SERVICE_UNAVAILABLE,
                "unavailable",
                "Redis cannot be reached",
                None,
            ),
            ErrorKind::OutcomeUnknown => (
                S::SERVICE_UNAVAILABLE,
                "outcome_unknown",
                "Redis did not answer in time",
                None,
            ),
            ErrorKind::Full => (S::SERVICE_UNAVAILABLE, "redis_full", "Redis is full", None),
            ErrorKind::ReadOnly => (
                S::SERVICE_UNAVAILABLE,
                "redis_read_only",
                "Redis takes no writes",
                None,
            ),
            ErrorKind::Denied => (
                S::SERVICE_UNAVAILABLE,
                "redis_denied",
                "Redis refuses us",
                None,
            ),
            ErrorKind::Incompatible => (
                S::INTERNAL_SERVER_ERROR,
                "incompatible",
                "This Redis cannot carry Keyfall",
                None,
            ),
            _ => (
                S::INTERNAL_SERVER_ERROR,
                "damaged",
                "What is stored is damaged",
                None,
            ),
        };
        let mut problem = Problem::new(status, code, title, error.to_string());
        problem.field = field.map(Into::into);
        problem.retryable = error.is_retryable();
        problem
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = serde_json::to_vec(&self).expect("texts and numbers are JSON");
        let kind = (header::CONTENT_TYPE, "application/problem+json");
        (self.status, [kind], Body::from(body)).into_response()
    }
}
