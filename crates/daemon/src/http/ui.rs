//! The place of a web page beside the API. The page is a package of its own, and a client of the
//! API in the same process.

use std::time::Duration;

use axum::Router;

use super::Settings;

/// The path of the web page.
const PATH: &str = "/ui";

/// Makes the web page from the calls of the API.
pub type Ui = Box<dyn FnOnce(Router, UiTerms) -> Router + Send>;

/// The settings of the API that the web page follows.
#[derive(Debug, Clone)]
pub struct UiTerms {
    /// Whether the API asks for a token. If not, only this machine reaches the daemon.
    pub has_tokens: bool,
    /// Whether the daemon has a database with ended jobs.
    pub has_archive: bool,
    /// Whether the daemon speaks HTTPS.
    pub is_tls: bool,
    /// The largest body of a request, in bytes.
    pub body_limit: usize,
    /// The time in which a client must send the body of a request.
    pub body_timeout: Duration,
    /// The address of a trace in another program, with `{trace_id}` in the place of its id.
    pub trace_url: Option<String>,
}

impl UiTerms {
    pub(super) fn of(settings: &Settings, has_tokens: bool, has_archive: bool) -> Self {
        UiTerms {
            has_tokens,
            has_archive,
            is_tls: settings.tls.is_some(),
            body_limit: settings.body_limit,
            body_timeout: settings.body_timeout,
            trace_url: settings.trace_url.clone(),
        }
    }
}

/// The calls of the API, with the web page beside them.
pub(super) fn beside(calls: Router, ui: Ui, terms: UiTerms) -> Router {
    let page = ui(calls.clone(), terms);
    calls.nest_service(PATH, page)
}
