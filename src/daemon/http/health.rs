//! Whether the daemon lives, and whether it can serve.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;

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

/// Redis answers, the worker hears what it announces, and the daemon is not about to stop. Of several
/// servers, one suffices.
#[utoipa::path(get, path = "/readyz", tag = "health",
    responses((status = 204), (status = 503, body = Problem)))]
pub(super) async fn readyz(State(api): Shared) -> Result<StatusCode, Problem> {
    if api.stopping.is_cancelled() {
        return Err(Problem::stopping());
    }
    if !api.readiness.is_ready() {
        return Err(Problem::deaf());
    }
    // Whoever probes does not wait for as long as a call may take.
    match timeout(PROBE, api.client.ping()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) if error.kind() != ErrorKind::OutcomeUnknown => return Err(error.into()),
        Ok(Err(_)) | Err(_) => return Err(Problem::deaf()),
    }
    Ok(StatusCode::NO_CONTENT)
}
