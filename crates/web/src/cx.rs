//! The request of a person: rights, language, zone. It is read before each page, and errors become
//! pages by it.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use askama::Template;
use axum::extract::{ConnectInfo, FromRequestParts, OriginalUri, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{Html, IntoResponse, Response};
use keyfall_daemon::shapes::RightsOut;

use crate::api::{Call, Caller};
use crate::assets::Assets;
use crate::entry::{Shown, cookie};
use crate::fault::Fault;
use crate::links::link;
use crate::page::Page;
use crate::views;
use crate::words::Words;
use crate::{Shared, Web};

/// The request of a person who was let in, or stands at the door.
#[derive(Clone)]
pub(crate) struct Cx {
    pub(crate) caller: Caller,
    pub(crate) page: Page,
    pub(crate) peer: Option<SocketAddr>,
    /// Whether a script asks for a part of the page.
    pub(crate) is_part: bool,
}

/// Lets a person in who has a token, and turns faults into pages.
pub(crate) async fn admit(State(web): Shared, mut request: Request, next: Next) -> Response {
    let Shown::Enters(token) = web.entry.look(request.headers()) else {
        return to_login(&request);
    };
    let cx = Cx::of(&web, &request, token.as_deref());
    let cx = match cx.caller.ask::<RightsOut>(Call::get(&["rights"])).await {
        Ok(rights) => cx.with(rights),
        Err(fault) if fault.status == StatusCode::UNAUTHORIZED => return to_login(&request),
        Err(fault) => return shown(&cx, fault, true),
    };
    let is_read = request.method() == Method::GET;
    request.extensions_mut().insert(cx.clone());
    finished(&cx, next.run(request).await, is_read)
}

/// Shows the pages in front of the door.
pub(crate) async fn greet(State(web): Shared, mut request: Request, next: Next) -> Response {
    let cx = Cx::of(&web, &request, None);
    request.extensions_mut().insert(cx.clone());
    finished(&cx, next.run(request).await, false)
}

fn finished(cx: &Cx, mut answer: Response, is_read: bool) -> Response {
    match answer.extensions_mut().remove::<Fault>() {
        // The token ended between two calls.
        Some(fault) if fault.status == StatusCode::UNAUTHORIZED && cx.page.rights.is_some() => {
            redirect("login")
        }
        Some(fault) => shown(cx, fault, is_read),
        None => answer,
    }
}

/// The page of a fault, or the line above a page that stays.
fn shown(cx: &Cx, fault: Fault, is_read: bool) -> Response {
    let status = fault.status;
    if cx.is_part {
        let line = html(views::problem::Line::new(&cx.page, fault).render());
        let place = [("hx-retarget", "#fault"), ("hx-reswap", "innerHTML")];
        return (status, place, line).into_response();
    }
    let view = views::problem::Problem::new(cx.page.clone(), fault, is_read);
    (status, html(view.render())).into_response()
}

/// The login page, which leads back to the page that was asked for.
fn to_login(request: &Request) -> Response {
    let uri = request.uri();
    let mut login = String::from("login");
    let wanted = uri.path_and_query().map_or("", |it| it.as_str());
    let wanted = wanted.trim_start_matches('/');
    if request.method() == Method::GET && !wanted.is_empty() {
        login = link("login", &[("next", wanted)]);
    }
    // A script loads the whole page: a part of the login page has no place in another page.
    if request.headers().contains_key("hx-request") {
        let mut answer = StatusCode::NO_CONTENT.into_response();
        if let Ok(login) = HeaderValue::try_from("login") {
            answer.headers_mut().insert("hx-redirect", login);
        }
        return answer;
    }
    redirect(&login)
}

/// Leads to another page, by a link relative to this one.
pub(crate) fn redirect(to: &str) -> Response {
    match HeaderValue::try_from(to) {
        Ok(to) => (StatusCode::SEE_OTHER, [(header::LOCATION, to)]).into_response(),
        Err(error) => Fault::unexpected(&error.to_string()).into_response(),
    }
}

/// A page or a part that a template has written.
fn html(rendered: Result<String, askama::Error>) -> Response {
    match rendered {
        Ok(text) => Html(text).into_response(),
        Err(error) => Fault::unexpected(&error.to_string()).into_response(),
    }
}

impl Cx {
    fn of(web: &Arc<Web>, request: &Request, token: Option<&str>) -> Self {
        let headers = request.headers();
        let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
        let outer = request.extensions().get::<OriginalUri>();
        Cx {
            caller: web.api.caller(token, peer.map(|peer| peer.0)),
            peer: peer.map(|peer| peer.0),
            is_part: headers.contains_key("hx-request"),
            page: Page {
                words: Words::of(headers),
                zone: cookie(headers, "keyfall_zone").map_or_else(Page::utc, Page::zone),
                now: SystemTime::now(),
                here: "",
                rights: None,
                is_read_only: web.api.is_read_only,
                has_archive: web.has_archive,
                can_leave: !matches!(web.entry, crate::entry::Entry::Open),
                path: outer.map_or_else(|| request.uri().clone(), |outer| outer.0.clone()),
                assets: Assets::get(),
            },
        }
    }

    fn with(mut self, rights: RightsOut) -> Self {
        self.page.rights = Some(Arc::new(rights));
        self
    }

    /// Names the page whose link in the navigation is marked.
    pub(crate) fn at(mut self, here: &'static str) -> Self {
        self.page.here = here;
        self
    }

    /// The page that a template writes.
    pub(crate) fn show(&self, view: &impl Template) -> Response {
        html(view.render())
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Cx {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let cx = parts.extensions.get::<Cx>().cloned();
        Ok(cx.expect("each page is behind `admit` or `greet`"))
    }
}
