//! Whether the daemon lives, and whether it can serve.

use axum::extract::State;
use axum::http::StatusCode;

use super::Shared;
use super::problem::Problem;

/// The process answers.
#[utoipa::path(get, path = "/livez", tag = "health", responses((status = 204)))]
pub(super) async fn livez() -> StatusCode {
    StatusCode::NO_CONTENT
}

/// Redis answers, the worker hears what it announces, and the daemon is not about to stop.
#[utoipa::path(get, path = "/readyz", tag = "health",
    responses((status = 204), (status = 503, body = Problem)))]
pub(super) async fn readyz(State(api): Shared) -> Result<StatusCode, Problem> {
    if api.stopping.is_cancelled() {
        return Err(Problem::stopping());
    }
    api.client.kinds().await?;
    if !api.readiness.is_ready() {
        return Err(Problem::deaf());
    }
    Ok(StatusCode::NO_CONTENT)
}
