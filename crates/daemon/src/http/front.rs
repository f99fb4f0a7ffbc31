//! The steps before each handler: a request gets an id, its caller is identified and counted, and
//! it is logged.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::{ConnectInfo, MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use tracing::info;

use super::Api;
use super::auth::Caller;
use super::problem::Problem;
use super::rate::Who;
use crate::traces::Place;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The longest request id that is accepted from a client.
const LONGEST_ID: usize = 128;

/// Calls without a token: the health of the daemon, its API, and what its errors mean.
pub(super) const OPEN: [&str; 4] = ["/livez", "/readyz", "/v1/openapi.json", "/v1/errors/{code}"];

/// The code of an answer beside its status, for the log.
#[derive(Clone, Copy)]
pub(crate) struct Code(pub(crate) u8);

pub(super) async fn pass(
    State(api): State<Arc<Api>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    let is_logged = api.settings.access_log;
    let answer = move |mut request: Request| async move {
        let (token, admitted) = admit(&api, peer, &mut request);
        let answer = match admitted {
            Ok(()) => next.run(request).await,
            Err(problem) => problem.into_response(),
        };
        (token, answer)
    };
    told(is_logged, peer, request, answer).await
}

/// Has a request answered, under the id that it came with or a new one, and logs it. With the
/// answer comes the name of the token, if there was one.
pub(crate) async fn told<F>(
    is_logged: bool,
    peer: SocketAddr,
    request: Request,
    answer: impl FnOnce(Request) -> F,
) -> Response
where
    F: Future<Output = (Option<String>, Response)>,
{
    let began = Instant::now();
    let id = request_id(&request);
    let method = request.method().clone();
    let path = path(&request);
    let is_probe = OPEN.contains(&&*path) || path == "/metrics";
    let place = Place::of(&request, id.to_str().unwrap_or_default(), &path, is_probe);
    let seen = path.as_str();
    let answered = async {
        let (token, answer) = answer(request).await;
        if is_logged {
            info!(
                target: "keyfall::access",
                %method,
                path = seen,
                status = answer.status().as_u16(),
                code = answer.extensions().get::<Code>().map(|code| code.0),
                ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
                token,
                %peer,
                "answered"
            );
        }
        answer
    };
    let mut answer = place.clone().hold(answered).await;
    place.answered(answer.status());
    answer.headers_mut().insert(REQUEST_ID, id);
    answer
}

/// Admits or refuses a request; returns the name of its token.
fn admit(
    api: &Arc<Api>,
    peer: SocketAddr,
    request: &mut Request,
) -> (Option<String>, Result<(), Problem>) {
    if OPEN.contains(&&*path(request)) {
        return (None, Ok(()));
    }
    let caller = Caller::identify(api, request.headers(), peer);
    let token = caller.as_ref().ok().and_then(Caller::token);
    let token = token.map(ToOwned::to_owned);
    if let Some(rate) = &api.rate {
        let known = caller.as_ref().ok().map(Caller::who);
        if let Err(problem) = rate.check(known.unwrap_or(&Who::peer(peer.ip()))) {
            return (token, Err(problem));
        }
    }
    let admitted = caller.map(|caller| {
        request.extensions_mut().insert(caller);
    });
    (token, admitted)
}

/// The path as the router knows it; empty if it does not.
fn path(request: &Request) -> String {
    let path = request.extensions().get::<MatchedPath>();
    path.map_or_else(String::new, |path| path.as_str().to_owned())
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
