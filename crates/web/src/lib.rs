//! The web page of [Keyfall](https://docs.rs/keyfall).
//!
//! The page is a client of the HTTP API in the same process: it reads and changes jobs by the calls
//! that programs make, with the token of the person in front of it. So the API alone decides who
//! may do what, and every error of a call is shown with its remedy.
//!
//! | part | task |
//! |---|---|
//! | [`api`] | makes the calls |
//! | [`door`] | the guard before each page: host, origin, body, and headers of answers |
//! | [`entry`] | who may enter: tokens, cookies, login and logout |
//! | [`cx`] | the request of a person: rights, language, zone |
//! | [`fault`] | the error of a call, as a page |
//! | [`page`] | what every template can use: words, times, numbers |
//! | [`links`] | links to the pages |
//! | [`lines`] | reads an answer line by line |
//! | [`words`] | the words of the page, in each language; [`rule_words`] says rules of recurring jobs |
//! | [`times`] | times and durations, in words |
//! | [`assets`] | scripts, style and icon |
//! | [`kinds`] | all kinds with their counts, the most important first |
//! | [`gathered`] | answers for which each kind is asked, gathered in the background while somebody looks |
//! | [`rows`] | the rows of live pages, rendered once for all of them |
//! | [`chart`] | bars as SVG |
//! | [`search`] | reads the search field |
//! | [`payload`] | sets payloads out: JSON, text, bytes |
//! | [`actions`] | the actions on one job |
//! | [`troubles`] | what is wrong, in one line each |
//! | [`visible`] | shows characters that a reader cannot see |
//! | [`read`] | reads addresses and forms |
//! | [`reach`] | the jobs that a change of many reaches |
//! | [`commands`] | the commands that do the same in a shell |
//! | [`views`] | the pages, one module each |
#![allow(
    rustdoc::private_intra_doc_links,
    reason = "the tables of modules are for readers of the source"
)]
#![deny(missing_docs)]

mod actions;
mod api;
mod assets;
mod chart;
mod commands;
mod cx;
mod door;
mod entry;
mod fault;
mod gathered;
mod kinds;
mod lines;
mod links;
mod page;
mod payload;
mod reach;
mod read;
mod recurs;
mod rows;
mod rule_words;
mod search;
mod serial;
mod times;
mod troubles;
mod views;
mod visible;
mod words;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::middleware::from_fn_with_state;
use keyfall_daemon::UiTerms;

use api::Api;
use entry::Entry;
use gathered::Gathered;
use rows::Rows;

/// The largest body of a form, if no daemon sets one.
const BODY_LIMIT: usize = 4 * 1024 * 1024;

/// The time in which a form must arrive, if no daemon sets one.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

/// A web page over the calls of the HTTP API.
pub struct Web {
    api: Api,
    entry: Entry,
    gathered: Gathered,
    rows: Rows,
    /// Whether the daemon has an archive of ended jobs.
    has_archive: bool,
    /// Whether browsers reach the page by HTTPS without a proxy.
    is_tls: bool,
    body_limit: usize,
    body_timeout: Duration,
    /// The address of a trace in another program, with `{trace_id}` in the place of its id.
    trace_url: Option<String>,
}

type Shared = axum::extract::State<Arc<Web>>;

impl Web {
    /// The page of a daemon. A person enters with a token of the API; without tokens, each person on
    /// this machine can enter.
    pub fn of_daemon(calls: Router, terms: UiTerms) -> Self {
        Web {
            api: Api::new(calls),
            entry: if terms.has_tokens {
                Entry::Token
            } else {
                Entry::Open
            },
            gathered: Gathered::default(),
            rows: Rows::default(),
            has_archive: terms.has_archive,
            is_tls: terms.is_tls,
            body_limit: terms.body_limit,
            body_timeout: terms.body_timeout,
            trace_url: terms.trace_url,
        }
    }

    /// The page of `keyfall ui`: a person enters with this secret, and can only read until
    /// [`allow_changes`](Self::allow_changes). `calls` need no token.
    pub fn with_secret(calls: Router, secret: String) -> Self {
        Web {
            api: Api::new(calls).read_only(),
            entry: Entry::Secret(secret),
            gathered: Gathered::default(),
            rows: Rows::default(),
            has_archive: false,
            is_tls: false,
            body_limit: BODY_LIMIT,
            body_timeout: BODY_TIMEOUT,
            trace_url: None,
        }
    }

    /// Lets a person who has the secret change jobs.
    #[must_use]
    pub fn allow_changes(mut self) -> Self {
        self.api = self.api.allow_changes();
        self
    }

    /// The routes, to be served below a path such as `/ui`. All links are relative, so a proxy can
    /// put a path before it.
    pub fn into_router(self) -> Router {
        let web = Arc::new(self);
        let inside = views::inside().layer(from_fn_with_state(web.clone(), cx::admit));
        let outside = views::outside().layer(from_fn_with_state(web.clone(), cx::greet));
        inside
            .merge(outside)
            .layer(from_fn_with_state(web.clone(), door::guard))
            .with_state(web)
    }
}
