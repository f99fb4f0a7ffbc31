//! The probes: whether the daemon lives, and whether it can serve.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use keyfall::ErrorKind;
use tokio::time::timeout;

use super::Shared;
use super::problem::Problem;

/// The longest that a probe waits for Redis.
const PROBE: Duration = Duration::from_millis(800);

/// The process answers.
#[utoipa::path(get, path = "/livez", tag = "health", responses((status = 204)))]
pub(super) async fn livez() -> StatusCode {
    StatusCode::NO_CONTENT
}

/// Redis answers, the worker hears its events, and the daemon is not about to stop. Of several
/// servers, one suffices. 200 instead of 204 if plain keys that routes adopt may be lost, because
/// Redis does not announce changes of keys, and `worker.allow_unannounced` accepts that: the answer
/// names the loss.
#[utoipa::path(get, path = "/readyz", tag = "health",
    responses((status = 204), (status = 200, body = Problem), (status = 503, body = Problem)))]
pub(super) async fn readyz(State(api): Shared) -> Result<Response, Problem> {
    if api.stopping.is_cancelled() {
        return Err(Problem::stopping());
    }
    let unannounced = api.readiness.unannounced().map(Problem::unannounced);
    if !api.readiness.is_ready() {
        return Err(unannounced.unwrap_or_else(Problem::deaf));
    }
    // A probe does not wait for as long as a call may take.
    match timeout(PROBE, api.client.ping()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) if error.kind() != ErrorKind::OutcomeUnknown => return Err(error.into()),
        Ok(Err(_)) | Err(_) => return Err(Problem::deaf()),
    }
    Ok(match unannounced {
        Some(problem) => problem.accepted(),
        None => StatusCode::NO_CONTENT.into_response(),
    })
}
