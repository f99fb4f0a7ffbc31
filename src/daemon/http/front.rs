//! What every request passes before its handler: it gets an id, its caller is identified and
//! counted, and it is logged.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{ConnectInfo, MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tracing::{Instrument, info, info_span};

use super::Api;
use super::auth::Caller;
use super::problem::Problem;
use super::rate::Who;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The longest id that is taken over.
const LONGEST_ID: usize = 128;

/// What needs no token: whether the daemon is well, and what it offers.
pub(super) const OPEN: [&str; 3] = ["/livez", "/readyz", "/v1/openapi.json"];

pub(super) async fn pass(
    State(api): State<Arc<Api>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    mut request: Request,
    next: Next,
) -> Response {
    let began = Instant::now();
    let id = request_id(&request);
    let method = request.method().clone();
    let path = request.extensions().get::<MatchedPath>().cloned();
    let path = path.as_ref().map_or("", MatchedPath::as_str);
    let span = info_span!("request", id = id.to_str().unwrap_or_default());
    let answered = async {
        let (token, admitted) = admit(&api, peer, path, &mut request);
        let answer = match admitted {
            Ok(()) => next.run(request).await,
            Err(problem) => problem.into_response(),
        };
        if api.settings.access_log {
            info!(
                target: "keyfall::access",
                %method,
                path,
                status = answer.status().as_u16(),
                ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
                token,
                %peer,
                "answered"
            );
        }
        answer
    };
    let mut answer = answered.instrument(span).await;
    answer.headers_mut().insert(REQUEST_ID, id);
    answer
}

/// Whether the request goes on, and the name of its token.
fn admit(
    api: &Arc<Api>,
    peer: SocketAddr,
    path: &str,
    request: &mut Request,
) -> (Option<String>, Result<(), Problem>) {
    if OPEN.contains(&path) {
        return (None, Ok(()));
    }
    let caller = Caller::identify(api, request.headers());
    let token = caller.as_ref().ok().and_then(Caller::token);
    let token = token.map(ToOwned::to_owned);
    if let Some(rate) = &api.rate {
        let who = token.clone().map(Who::Token);
        if let Err(problem) = rate.check(&who.unwrap_or_else(|| Who::peer(peer.ip()))) {
            return (token, Err(problem));
        }
    }
    let admitted = caller.map(|caller| {
        request.extensions_mut().insert(caller);
    });
    (token, admitted)
}

/// The id that the request came with, or a new one.
fn request_id(request: &Request) -> HeaderValue {
    let is_plain = |id: &&HeaderValue| {
        let plain = |byte: &u8| byte.is_ascii_graphic();
        (1..=LONGEST_ID).contains(&id.len()) && id.as_bytes().iter().all(plain)
    };
    let given = request.headers().get(&REQUEST_ID).filter(is_plain);
    given.cloned().unwrap_or_else(|| {
        let id = format!("{:032x}", rand::random::<u128>());
        HeaderValue::from_str(&id).expect("hexadecimal digits")
    })
}
