//! The classic interface: the HTTP protocol of delay queues after Youzan's model, for clients that
//! speak it already. `docs/classic.md` describes it.
//!
//! | part | task |
//! |---|---|
//! | [`calls`] | push, pop, finish, delete, get |
//! | [`answer`] | the answers to calls |
//! | [`queue`] | the effects of calls on jobs |
//! | [`names`] | topics and ids as job keys |
//! | [`handed`] | the leases of popped jobs |
//! | [`terms`], [`networks`] | the settings of the interface, and its clients |
//! | [`turns`] | lets pushes of the same id take turns |

mod answer;
mod calls;
mod handed;
mod names;
mod networks;
mod queue;
mod terms;
mod turns;

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use keyfall::Client;
use keyfall::target::Pull;
use tokio_util::sync::CancellationToken;

use super::http::{Settings, listen, pages, told};
use answer::Answer;
use queue::Queue;

pub use names::Names;
pub use networks::Networks;
pub use queue::TTR;
pub use terms::{Existing, Terms, pattern};

/// The state that all calls share.
pub struct Classic {
    queue: Queue,
    pull: Pull,
    ttr: Duration,
    allow: Networks,
    settings: Settings,
    /// Cancelled when the daemon has to stop: then no pop waits any longer.
    stopping: CancellationToken,
}

impl Classic {
    /// `pull` is the pull of its route.
    pub fn new(
        client: Client,
        pull: Pull,
        terms: Terms,
        settings: Settings,
        stopping: CancellationToken,
    ) -> Self {
        Classic {
            queue: Queue::new(client, &terms.prefix, terms.existing),
            pull,
            ttr: terms.ttr,
            allow: terms.allow,
            settings,
            stopping,
        }
    }

    /// Serves until the daemon stops; waiting clients then get an answer. `bound` gets the address.
    pub async fn serve(
        self,
        listener: TcpListener,
        bound: impl FnOnce(SocketAddr),
    ) -> anyhow::Result<()> {
        let (settings, stopping) = (self.settings.clone(), self.stopping.clone());
        let router = router(Arc::new(self));
        listen(listener, &settings, &stopping, router, bound).await
    }
}

fn router(classic: Arc<Classic>) -> Router {
    Router::new()
        .route("/push", post(calls::push))
        .route("/pop", post(calls::pop))
        .route("/finish", post(calls::finish))
        .route("/delete", post(calls::delete))
        .route("/get", post(calls::get))
        .fallback(async || Answer::no_such_call())
        .method_not_allowed_fallback(async || Answer::no_such_call())
        .with_state(classic.clone())
        .layer(from_fn_with_state(classic, pass))
}

/// Admits or refuses a request: clients have no tokens, so their address decides.
async fn pass(
    State(classic): State<Arc<Classic>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    let is_allowed = classic.allow.have(peer.ip());
    let answer = move |request: Request| async move {
        let answer = if !is_allowed {
            Answer::not_allowed(peer.ip()).into_response()
        } else if pages::asks(request.headers()) {
            Answer::asked_by_page().into_response()
        } else {
            next.run(request).await
        };
        (None, answer)
    };
    told(classic.settings.access_log, peer, request, answer).await
}
