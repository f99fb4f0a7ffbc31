//! The HTTP API: one file for each group of calls.
//!
//! | part | what it does |
//! |---|---|
//! | [`server`] | listens, and stops gracefully |
//! | [`connections`] | how many may be open, and how long they may keep us waiting |
//! | [`front`] | what every request passes: its id, who makes it, how often, the log |
//! | [`auth`] | who may do what with which jobs |
//! | [`rate`] | how many requests a second |
//! | [`jobs`] | schedule, look at, change and cancel one job |
//! | [`list`] | look at many |
//! | [`bulk`] | change and cancel many, by what their keys begin with |
//! | [`batch`] | many calls in one request; [`lines`] reads them as they come |
//! | [`dead`] | dead letters |
//! | [`kinds`] | kinds, their counts, and pausing them |
//! | [`instances`] | who runs what |
//! | [`pull`] | hands out jobs, and takes back their leases |
//! | [`health`] | whether it lives, and whether it can serve |
//! | [`openapi`] | the document that describes all of it |
//! | [`wire`] | how jobs, times and payloads look in JSON |
//! | [`body`] | reads what was sent, and says what is wrong with it |
//! | [`problem`] | says what went wrong |
//! | [`settings`] | what it is run with |

mod auth;
mod batch;
mod body;
mod bulk;
mod connections;
mod dead;
mod front;
mod health;
mod instances;
mod jobs;
mod kinds;
mod lines;
mod list;
mod openapi;
mod problem;
mod pull;
mod rate;
mod server;
mod settings;
#[cfg(test)]
mod tests;
mod wire;

use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::middleware::from_fn_with_state;
use keyfall::Client;
use keyfall::target::Pull;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(crate) use auth::{Grant, Scope, Tokens};
pub(crate) use server::serve;
pub(crate) use settings::Settings;

use problem::Problem;
use rate::Rate;

/// What all calls share.
pub(crate) struct Api {
    client: Client,
    /// Who pulls.
    pull: Pull,
    /// Raised when the daemon is to stop: then nobody is kept waiting.
    stopping: CancellationToken,
    settings: Settings,
    /// Without them, whoever reaches the daemon may do everything.
    tokens: Option<Box<dyn Tokens>>,
    rate: Option<Rate>,
    document: OnceLock<Value>,
}

type Shared = axum::extract::State<Arc<Api>>;

impl Api {
    /// What `pull` has is pulled, until `stopping` is raised.
    pub(crate) fn new(
        client: Client,
        pull: Pull,
        stopping: CancellationToken,
        settings: Settings,
        tokens: Option<Box<dyn Tokens>>,
    ) -> Self {
        Api {
            client,
            pull,
            stopping,
            rate: settings.requests_per_second.map(Rate::new),
            settings,
            tokens,
            document: OnceLock::new(),
        }
    }
}

/// All routes, and the document that describes them.
fn router(api: Arc<Api>) -> Router {
    let (router, document) = OpenApiRouter::with_openapi(openapi::Document::openapi())
        .routes(routes!(jobs::put, jobs::show, jobs::cancel))
        .routes(routes!(jobs::postpone))
        .routes(routes!(jobs::fire))
        .routes(routes!(jobs::put_payload))
        .routes(routes!(list::list))
        .routes(routes!(bulk::cancel))
        .routes(routes!(bulk::postpone))
        .routes(routes!(bulk::fire))
        .routes(routes!(batch::batch))
        .routes(routes!(dead::show, dead::delete))
        .routes(routes!(dead::requeue))
        .routes(routes!(dead::requeue_many))
        .routes(routes!(dead::delete_many))
        .routes(routes!(kinds::list))
        .routes(routes!(kinds::show))
        .routes(routes!(kinds::paused))
        .routes(routes!(kinds::pause))
        .routes(routes!(kinds::resume))
        .routes(routes!(instances::routes))
        .routes(routes!(instances::list))
        .routes(routes!(pull::pull))
        .routes(routes!(pull::finish))
        .routes(routes!(pull::extend))
        .routes(routes!(pull::fail))
        .routes(routes!(openapi::show))
        .routes(routes!(health::livez))
        .routes(routes!(health::readyz))
        .with_state(api.clone())
        .split_for_parts();
    // Only this call knows it; a second router would say the same.
    api.document.get_or_init(|| openapi::completed(&document));
    router
        .fallback(async || Problem::unknown_route())
        .method_not_allowed_fallback(async || Problem::wrong_method())
        .layer(from_fn_with_state(api, front::pass))
}
