//! The answers of the classic interface: status 200, and a code for the outcome.

use std::net::IpAddr;

use axum::Json;
use axum::response::{IntoResponse, Response};
use keyfall::Error;
use serde::Serialize;

use crate::http;
use crate::shapes::Problem;

/// The outcome of a call. Clients know the numbers, which stay the same for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Code {
    /// The call succeeded.
    Done = 0,
    /// A field is missing or wrong; the same call cannot succeed.
    Invalid = 1,
    /// A push of an existing id was refused, as the configuration asks.
    Exists = 2,
    /// A finish of a job that no consumer has.
    Waits = 3,
    /// The body is too large.
    TooLarge = 4,
    /// The body did not come in time.
    TooSlow = 5,
    /// Redis does not answer, is full, or refuses us, or no more topics may begin for now: the same
    /// call can succeed later.
    Unavailable = 6,
    /// The address is in no allowed network.
    Forbidden = 7,
    /// There is no such call.
    Unknown = 8,
    /// The stored data is damaged, or of a newer version.
    Damaged = 9,
}

/// The body of every answer.
#[derive(Debug, Serialize)]
pub(super) struct Answer<T = ()> {
    #[serde(serialize_with = "as_number")]
    code: Code,
    message: String,
    data: Option<T>,
}

// Serde prescribes the signature.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn as_number<S: serde::Serializer>(code: &Code, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u8(*code as u8)
}

impl<T> Answer<T> {
    /// The answer to a call that succeeded, with its result.
    pub(super) fn with(data: Option<T>, message: impl Into<String>) -> Self {
        Answer {
            code: Code::Done,
            message: message.into(),
            data,
        }
    }
}

impl Answer {
    pub(super) fn new(code: Code, message: impl Into<String>) -> Self {
        Answer {
            code,
            message: message.into(),
            data: None,
        }
    }

    pub(super) fn done(message: impl Into<String>) -> Self {
        Answer::new(Code::Done, message)
    }

    /// Names a field, and its fault.
    pub(super) fn invalid(field: &str, fault: &str) -> Self {
        Answer::new(Code::Invalid, format!("{field}: {fault}"))
    }

    pub(super) fn not_allowed(peer: IpAddr) -> Self {
        let message = format!("{peer} is in no network of `classic.allow`");
        Answer::new(Code::Forbidden, message)
    }

    pub(super) fn asked_by_page() -> Self {
        let message = "the request has an `origin`: a web page in a browser may have sent it, and \
                       only programs may ask here";
        Answer::new(Code::Forbidden, message)
    }

    pub(super) fn no_such_call() -> Self {
        let calls = "the calls are POST to /push, /pop, /finish, /delete and /get";
        Answer::new(Code::Unknown, calls)
    }
}

impl From<Problem> for Answer {
    fn from(problem: Problem) -> Self {
        let code = match &*problem.code {
            "payload_too_large" => Code::TooLarge,
            "body_timeout" => Code::TooSlow,
            "damaged" | "incompatible" => Code::Damaged,
            code if code.starts_with("invalid_") => Code::Invalid,
            _ => Code::Unavailable,
        };
        Answer::new(
            code,
            match &problem.field {
                Some(field) if code == Code::Invalid => format!("{field}: {}", problem.detail),
                _ if problem.code == "too_many_kinds" => format!("topic: {}", problem.detail),
                _ => problem.detail,
            },
        )
    }
}

impl From<Error> for Answer {
    fn from(error: Error) -> Self {
        Problem::from(error).into()
    }
}

impl<T: Serialize> IntoResponse for Answer<T> {
    fn into_response(self) -> Response {
        let code = http::Code(self.code as u8);
        let mut answer = Json(self).into_response();
        answer.extensions_mut().insert(code);
        answer
    }
}
