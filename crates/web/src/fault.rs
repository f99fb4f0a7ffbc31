//! The error of a request, which becomes a page.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use keyfall_daemon::shapes::Problem;

/// An error: what went wrong, the rule and the remedy. The [front](crate::cx) writes its page, in
/// the language of the reader.
#[derive(Debug, Clone)]
pub(crate) struct Fault {
    pub(crate) status: StatusCode,
    /// The code of the API, or one of the codes of this page: it chooses the title.
    pub(crate) code: String,
    /// The title of the API, for a code without a title in the language of the reader.
    pub(crate) title: String,
    pub(crate) detail: String,
    /// The word that says it in the language of the reader, in place of `detail`.
    pub(crate) word: Option<&'static str>,
    /// The faulty field.
    pub(crate) field: Option<String>,
    pub(crate) retryable: bool,
}

impl Fault {
    fn own(status: StatusCode, code: &str, detail: &str) -> Self {
        Fault {
            status,
            code: code.to_owned(),
            title: String::new(),
            detail: detail.to_owned(),
            word: None,
            field: None,
            retryable: false,
        }
    }

    /// An error of this page that the words know.
    fn known(status: StatusCode, code: &str, word: &'static str) -> Self {
        let mut fault = Fault::own(status, code, "");
        fault.word = Some(word);
        fault
    }

    /// A field of a form is invalid.
    pub(crate) fn invalid(field: &str, detail: &str) -> Self {
        let mut fault = Fault::own(StatusCode::BAD_REQUEST, "invalid_request", detail);
        fault.field = Some(field.to_owned());
        fault
    }

    /// The API did not answer as this version of the page expects.
    pub(crate) fn unexpected(detail: &str) -> Self {
        let status = StatusCode::INTERNAL_SERVER_ERROR;
        Fault::own(status, "unexpected", detail)
    }

    /// Redis does not answer a tail.
    pub(crate) fn redis_is_away(detail: &str) -> Self {
        let mut fault = Fault::own(StatusCode::SERVICE_UNAVAILABLE, "unavailable", detail);
        fault.retryable = true;
        fault
    }

    /// Redis refuses a change of its settings.
    pub(crate) fn redis_refuses(detail: &str) -> Self {
        Fault::own(StatusCode::CONFLICT, "redis_denied", detail)
    }

    /// A change through a page that only reads.
    pub(crate) fn read_only() -> Self {
        Fault::known(StatusCode::FORBIDDEN, "read_only", "fault.read_only")
    }

    /// A request that another site may have caused.
    pub(crate) fn other_site(why: &str) -> Self {
        let detail = format!(
            "{why}: a page of another site may have sent it; open this page by its own address, and \
             repeat what you did there"
        );
        Fault::own(StatusCode::FORBIDDEN, "other_site", &detail)
    }

    pub(crate) fn unknown_page() -> Self {
        Fault::known(StatusCode::NOT_FOUND, "unknown_page", "fault.unknown_page")
    }

    pub(crate) fn wrong_method() -> Self {
        let status = StatusCode::METHOD_NOT_ALLOWED;
        Fault::known(status, "unknown_page", "fault.wrong_method")
    }

    pub(crate) fn body_too_large(limit: usize) -> Self {
        let detail = format!("the form has more than {limit} bytes, which is `http.body_limit`");
        Fault::own(StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large", &detail)
    }

    pub(crate) fn body_too_slow() -> Self {
        let detail = "the form did not arrive within `http.body_timeout`; send it again";
        Fault::own(StatusCode::REQUEST_TIMEOUT, "body_timeout", detail)
    }

    /// Whether Redis does not answer: the page recovers by itself.
    pub(crate) fn is_away(&self) -> bool {
        self.retryable && self.status == StatusCode::SERVICE_UNAVAILABLE
    }
}

impl From<Problem> for Fault {
    fn from(problem: Problem) -> Self {
        Fault {
            status: problem.status(),
            code: problem.code.into_owned(),
            title: problem.title.into_owned(),
            detail: problem.detail,
            word: None,
            field: problem.field,
            retryable: problem.retryable,
        }
    }
}

impl IntoResponse for Fault {
    fn into_response(self) -> Response {
        let mut answer = self.status.into_response();
        answer.extensions_mut().insert(self);
        answer
    }
}
