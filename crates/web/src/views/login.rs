//! Login and logout.

use crate::read::{Form, Query};
use askama::Template;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use keyfall_daemon::shapes::RightsOut;
use serde::Deserialize;

use crate::Shared;
use crate::api::Call;
use crate::cx::{Cx, redirect};
use crate::entry::{self, Entry};
use crate::fault::Fault;
use crate::page::Page;

#[derive(Template)]
#[template(path = "login.html")]
struct Login {
    page: Page,
    next: String,
    /// Whether a token was shown, and is not valid.
    is_refused: bool,
    /// Whether the page belongs to `keyfall ui`, which prints a link to enter.
    is_by_link: bool,
}

#[derive(Deserialize)]
pub(crate) struct Asked {
    #[serde(default)]
    next: String,
}

pub(crate) async fn ask(State(web): Shared, cx: Cx, Query(asked): Query<Asked>) -> Response {
    if matches!(web.entry, Entry::Open) {
        return redirect("./");
    }
    cx.show(&Login {
        page: cx.page.clone(),
        next: asked.next,
        is_refused: false,
        is_by_link: matches!(web.entry, Entry::Secret(_)),
    })
}

#[derive(Deserialize)]
pub(crate) struct Shown {
    token: String,
    #[serde(default)]
    next: String,
}

/// Keeps a token that the API knows.
pub(crate) async fn enter(
    State(web): Shared,
    cx: Cx,
    headers: HeaderMap,
    Form(shown): Form<Shown>,
) -> Result<Response, Fault> {
    let token = shown.token.trim();
    let caller = web.api.caller(Some(token), cx.peer);
    let is_known = match &web.entry {
        Entry::Open => return Ok(redirect("./")),
        Entry::Secret(_) => web.entry.is_secret(token),
        Entry::Token => match caller.ask::<RightsOut>(Call::get(&["rights"])).await {
            Ok(_) => true,
            Err(fault) if fault.status == StatusCode::UNAUTHORIZED => false,
            Err(fault) => return Err(fault),
        },
    };
    match entry::keep(&web, &headers, token).filter(|_| is_known) {
        Some(cookie) => Ok(setting(cookie, inner(&shown.next))),
        None => Ok(cx.show(&Login {
            page: cx.page.clone(),
            next: shown.next,
            is_refused: true,
            is_by_link: matches!(web.entry, Entry::Secret(_)),
        })),
    }
}

#[derive(Deserialize)]
pub(crate) struct Opened {
    #[serde(default)]
    secret: String,
}

/// The link that `keyfall ui` prints.
pub(crate) async fn open(
    State(web): Shared,
    headers: HeaderMap,
    Query(opened): Query<Opened>,
) -> Response {
    let cookie = entry::keep(&web, &headers, &opened.secret);
    match cookie.filter(|_| web.entry.is_secret(&opened.secret)) {
        Some(cookie) => setting(cookie, "./"),
        None => redirect("login"),
    }
}

pub(crate) async fn leave(State(web): Shared, headers: HeaderMap) -> Response {
    setting(entry::forget(&web, &headers), "login")
}

fn setting(cookie: HeaderValue, to: &str) -> Response {
    let mut answer = redirect(to);
    answer.headers_mut().insert(header::SET_COOKIE, cookie);
    answer
}

/// The page to go to: one of this site, or else the first one.
fn inner(next: &str) -> &str {
    let page = next.split('?').next().unwrap_or("");
    let is_ours = !page.is_empty() && page.bytes().all(|byte| byte.is_ascii_lowercase());
    if is_ours { next } else { "./" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_leads_to_a_page_of_this_site() {
        assert_eq!(inner("jobs?q=a%3A"), "jobs?q=a%3A");
        for other in [
            "//evil.example",
            "https://evil.example",
            "javascript:x",
            "",
            "?",
            "../x",
        ] {
            assert_eq!(inner(other), "./", "{other}");
        }
    }
}
