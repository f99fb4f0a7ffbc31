//! The error of a request, which becomes a page.

use std::fmt::Display;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use keyfall_daemon::shapes::Problem;

use crate::words::Words;

/// An error: what went wrong, the rule and the remedy. The [front](crate::cx) writes its page, in
/// the language of the reader.
#[derive(Debug, Clone)]
pub(crate) struct Fault {
    pub(crate) status: StatusCode,
    /// The code of the API, or one of the codes of this page: it chooses the title.
    pub(crate) code: String,
    /// The title of the API, for a code without a title in the language of the reader.
    pub(crate) title: String,
    detail: String,
    /// What says it in the language of the reader, in place of `detail`.
    said: Option<Box<Said>>,
    /// The faulty field.
    pub(crate) field: Option<String>,
    pub(crate) retryable: bool,
}

/// A word of the languages, and its values.
#[derive(Debug, Clone)]
struct Said {
    word: &'static str,
    values: Vec<String>,
}

impl Fault {
    fn own(status: StatusCode, code: &str, detail: &str) -> Self {
        Fault {
            status,
            code: code.to_owned(),
            title: String::new(),
            detail: detail.to_owned(),
            said: None,
            field: None,
            retryable: false,
        }
    }

    /// An error of this page that the words know.
    fn known(status: StatusCode, code: &str, word: &'static str, values: &[&dyn Display]) -> Self {
        let mut fault = Fault::own(status, code, "");
        let values = values.iter().map(ToString::to_string).collect();
        fault.said = Some(Box::new(Said { word, values }));
        fault
    }

    /// A field of a form is invalid, for the reason that these words say.
    pub(crate) fn invalid(field: &str, word: &'static str, values: &[&dyn Display]) -> Self {
        let status = StatusCode::BAD_REQUEST;
        let mut fault = Fault::known(status, "invalid_request", word, values);
        fault.field = Some(field.to_owned());
        fault
    }

    /// The rule and the remedy in this language.
    pub(crate) fn said(&self, words: &Words) -> String {
        match self.said.as_deref() {
            Some(Said { word, values }) => {
                let values = values.iter().map(|value| value as &dyn Display);
                words.fill(word, &values.collect::<Vec<_>>())
            }
            None => self.help(words).unwrap_or(&self.detail).to_owned(),
        }
    }

    /// Whether the archive cannot answer: it is away, or the search takes too long.
    pub(crate) fn is_of_archive(&self) -> bool {
        self.code == "archive_unavailable" || self.field.as_deref() == Some("query")
    }

    /// The words of the API, if the rule and the remedy stand there in another language.
    pub(crate) fn original(&self, words: &Words) -> Option<&str> {
        let is_said = self.said.is_none() && self.help(words).is_some();
        is_said.then_some(&*self.detail)
    }

    /// The rule and the remedy of an error of the API, in a language other than its own.
    fn help<'a>(&self, words: &'a Words) -> Option<&'a str> {
        words.find(&format!("said-help.{}", self.code))
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
        Fault::known(StatusCode::FORBIDDEN, "read_only", "fault.read_only", &[])
    }

    /// A request that another site may have caused.
    pub(crate) fn other_site(word: &'static str) -> Self {
        Fault::known(StatusCode::FORBIDDEN, "other_site", word, &[])
    }

    pub(crate) fn unknown_page() -> Self {
        Fault::known(
            StatusCode::NOT_FOUND,
            "unknown_page",
            "fault.unknown_page",
            &[],
        )
    }

    pub(crate) fn wrong_method() -> Self {
        let status = StatusCode::METHOD_NOT_ALLOWED;
        Fault::known(status, "unknown_page", "fault.wrong_method", &[])
    }

    pub(crate) fn body_too_large(limit: usize) -> Self {
        let status = StatusCode::PAYLOAD_TOO_LARGE;
        Fault::known(
            status,
            "payload_too_large",
            "fault.body_too_large",
            &[&limit],
        )
    }

    pub(crate) fn body_too_slow() -> Self {
        let status = StatusCode::REQUEST_TIMEOUT;
        Fault::known(status, "body_timeout", "fault.body_too_slow", &[])
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
            said: None,
            field: problem.field.map(Into::into),
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
