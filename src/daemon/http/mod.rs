//! The HTTP API: one file for each group of calls.
//!
//! | part | what it does |
//! |---|---|
//! | [`server`] | listens, and stops gracefully |
//! | [`jobs`] | schedule, look at, change and cancel one job |
//! | [`pull`] | hands out jobs, and takes back their leases |
//! | [`health`] | whether it lives, and whether it can serve |
//! | [`wire`] | how jobs, times and payloads look in JSON |
//! | [`body`] | reads what was sent, and says what is wrong with it |
//! | [`problem`] | says what went wrong |

mod body;
mod health;
mod jobs;
mod problem;
mod pull;
mod server;
mod wire;

use std::sync::Arc;

use axum::Router;
use axum::response::Json;
use axum::routing::get;
use keyfall::Client;
use keyfall::target::Pull;
use tokio_util::sync::CancellationToken;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(crate) use server::serve;

use problem::Problem;

/// What all calls share.
pub(crate) struct Api {
    pub(crate) client: Client,
    /// Who pulls.
    pub(crate) pull: Pull,
    /// Raised when the daemon is to stop: then nobody is kept waiting.
    pub(crate) stopping: CancellationToken,
}

type Shared = axum::extract::State<Arc<Api>>;

#[derive(OpenApi)]
#[openapi(info(title = "Keyfall", description = "Reminders that are Redis keys"))]
struct Document;

/// All routes, and the document that describes them.
fn router(api: Arc<Api>) -> Router {
    let (router, document) = OpenApiRouter::with_openapi(Document::openapi())
        .routes(routes!(jobs::put, jobs::show, jobs::cancel))
        .routes(routes!(jobs::postpone))
        .routes(routes!(jobs::fire))
        .routes(routes!(jobs::put_payload))
        .routes(routes!(pull::pull))
        .routes(routes!(pull::finish))
        .routes(routes!(pull::extend))
        .routes(routes!(pull::fail))
        .routes(routes!(health::livez))
        .routes(routes!(health::readyz))
        .with_state(api)
        .split_for_parts();
    router
        .route(
            "/v1/openapi.json",
            get(async move || Json(document.clone())),
        )
        .fallback(async || Problem::unknown_route())
        .method_not_allowed_fallback(async || Problem::wrong_method())
}
