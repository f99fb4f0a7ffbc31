//! The guard before each page: a request comes from a page of this site, has a whole body of a
//! bounded size, and its answer has headers that keep browsers from loading or running anything
//! else.

use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use keyfall_daemon::is_local;
use tokio::time::timeout;

use crate::entry::Entry;
use crate::fault::Fault;
use crate::words::Words;
use crate::{Shared, Web};

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Everything comes from this site, and nothing is inline.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
                      connect-src 'self'; form-action 'self'; base-uri 'none'; \
                      frame-ancestors 'none'";

pub(crate) async fn guard(State(web): Shared, request: Request, next: Next) -> Response {
    let words = Words::of(request.headers());
    let mut answer = match checked(&web, request).await {
        Ok(request) => next.run(request).await,
        Err(fault) => {
            // A page needs a visitor, who was not let in.
            let text = format!("{}\n", fault.said(words));
            (fault.status, text).into_response()
        }
    };
    let headers = answer.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "same-origin"),
        (header::X_FRAME_OPTIONS, "DENY"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    // Only assets say for themselves how long they may be kept.
    let kept = headers.entry(header::CACHE_CONTROL);
    kept.or_insert(HeaderValue::from_static("no-store"));
    answer
}

/// The request with its whole body, if a page of this site sent it.
async fn checked(web: &Web, request: Request) -> Result<Request, Fault> {
    let headers = request.headers();
    if !matches!(web.entry, Entry::Token) {
        check_host(headers)?;
    }
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return Ok(request);
    }
    check_origin(headers)?;
    let (parts, body) = request.into_parts();
    let body = timeout(web.body_timeout, to_bytes(body, web.body_limit)).await;
    let body = body.map_err(|_| Fault::body_too_slow())?;
    let body = body.map_err(|_| Fault::body_too_large(web.body_limit))?;
    Ok(Request::from_parts(parts, Body::from(body)))
}

/// Refuses a name that a page of another site has pointed at this machine, and takes for its own.
fn check_host(headers: &HeaderMap) -> Result<(), Fault> {
    let host = headers.get(header::HOST);
    if host.is_some_and(|host| host.to_str().is_ok_and(is_local)) {
        return Ok(());
    }
    Err(Fault::other_site("fault.other_host"))
}

/// Refuses forms of other sites. Browsers that know `sec-fetch-site` send it with every form over
/// HTTPS and to this machine; the others send `origin`. A program sends neither.
fn check_origin(headers: &HeaderMap) -> Result<(), Fault> {
    if let Some(site) = headers.get(SEC_FETCH_SITE) {
        // `none` is the person, not a page.
        if site == "same-origin" || site == "none" {
            return Ok(());
        }
        return Err(Fault::other_site("fault.other_origin"));
    }
    let Some(origin) = headers.get(header::ORIGIN) else {
        return Ok(());
    };
    let origin = origin.to_str().ok();
    let origin = origin.and_then(|origin| origin.split_once("://"));
    let host = headers.get(header::HOST).and_then(|it| it.to_str().ok());
    match (origin, host) {
        (Some((_, origin)), Some(host)) if origin.eq_ignore_ascii_case(host) => Ok(()),
        _ => Err(Fault::other_site("fault.origin_is_not_host")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(of: &[(&str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&str, &str)| {
            (
                HeaderName::try_from(*name).unwrap(),
                HeaderValue::from_str(value).unwrap(),
            )
        };
        of.iter().map(pair).collect()
    }

    #[test]
    fn forms_come_from_this_site() {
        for (of, is_ours) in [
            (&[][..], true),
            (&[("sec-fetch-site", "same-origin")], true),
            (&[("sec-fetch-site", "none")], true),
            (&[("sec-fetch-site", "same-site")], false),
            (&[("sec-fetch-site", "cross-site")], false),
            (&[("origin", "http://h:1"), ("host", "h:1")], true),
            (&[("origin", "https://H"), ("host", "h")], true),
            (&[("origin", "http://h:2"), ("host", "h:1")], false),
            (&[("origin", "http://h"), ("host", "h:1")], false),
            (&[("origin", "null"), ("host", "h:1")], false),
            (&[("origin", "http://h:1")], false),
            // A proxy may write another host; the browser has the last word.
            (
                &[
                    ("origin", "https://outside"),
                    ("host", "inside:1"),
                    ("sec-fetch-site", "same-origin"),
                ],
                true,
            ),
        ] {
            assert_eq!(check_origin(&headers(of)).is_ok(), is_ours, "{of:?}");
        }
    }

    #[test]
    fn a_host_that_others_can_point_here_is_refused() {
        assert!(check_host(&headers(&[("host", "127.0.0.1:9276")])).is_ok());
        assert!(check_host(&headers(&[("host", "localhost:9276")])).is_ok());
        assert!(check_host(&headers(&[("host", "evil.example:9276")])).is_err());
        assert!(check_host(&headers(&[])).is_err());
    }
}
