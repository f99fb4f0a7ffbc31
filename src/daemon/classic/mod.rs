//! The classic interface: the HTTP protocol of delay queues after Youzan's model, for clients that
//! speak it already. `docs/classic.md` describes it.
//!
//! | part | what it does |
//! |---|---|
//! | [`calls`] | push, pop, finish, delete, get |
//! | [`answer`] | how they are answered |
//! | [`queue`] | what they mean to jobs |
//! | [`names`] | topics and ids as job keys |
//! | [`handed`] | the leases of what was popped here |
//! | [`turns`] | one after the other, for pushes of the same id |

mod answer;
mod calls;
mod handed;
mod names;
mod queue;
mod turns;

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use keyfall::target::Pull;
use keyfall::{Client, Handler, RetryPolicy, Route};
use tokio_util::sync::CancellationToken;

use super::config::{Existing, Networks};
use super::http::{Settings, listen, told};
use answer::Answer;
use queue::Queue;

/// What the configuration says of it.
#[derive(Debug, Clone)]
pub(crate) struct Terms {
    /// `app:module`, below which the topics are.
    pub(crate) prefix: String,
    /// How long a consumer has a job whose push does not say.
    pub(crate) ttr: Duration,
    pub(crate) existing: Existing,
    /// How often a job is delivered at the most.
    pub(crate) deliveries: Option<NonZeroU32>,
    /// Who may use it, beside this machine.
    pub(crate) allow: Networks,
}

impl Terms {
    /// Which jobs can be popped.
    pub(crate) fn pattern(&self) -> String {
        pattern(&self.prefix)
    }

    /// Their route. What is popped is pulled from `pull`.
    pub(crate) fn route(&self, pull: &Pull) -> Route {
        pull.clone().lease(self.ttr).retry(self.retry())
    }

    /// A delivery that was not finished is followed by another one at once.
    pub(crate) fn retry(&self) -> RetryPolicy {
        let deliveries = self.deliveries.map_or(u32::MAX, NonZeroU32::get);
        let at_once = RetryPolicy::fixed(Duration::ZERO).expect("zero is no long delay");
        at_once.attempts(deliveries)
    }
}

/// The pattern of the topics below a prefix.
pub(crate) fn pattern(prefix: &str) -> String {
    format!("{prefix}:*:*")
}

/// What all calls share.
pub(crate) struct Classic {
    queue: Queue,
    pull: Pull,
    ttr: Duration,
    allow: Networks,
    settings: Settings,
    /// Raised when the daemon is to stop: then nobody is kept waiting.
    stopping: CancellationToken,
}

impl Classic {
    /// `pull` is that of its route.
    pub(crate) fn new(
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

    /// Serves until told to stop; whoever waits then is let go. `bound` is told where it listens.
    pub(crate) async fn serve(self, bound: impl FnOnce(SocketAddr)) -> anyhow::Result<()> {
        let (settings, stopping) = (self.settings.clone(), self.stopping.clone());
        let router = router(Arc::new(self));
        listen("classic", &settings, &stopping, router, bound).await
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

/// What every request passes: its clients know no tokens, so it is their address that counts.
async fn pass(
    State(classic): State<Arc<Classic>>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    let is_allowed = classic.allow.have(peer.ip());
    let answer = move |request| async move {
        let answer = if is_allowed {
            next.run(request).await
        } else {
            Answer::not_allowed(peer.ip()).into_response()
        };
        (None, answer)
    };
    told(classic.settings.access_log, peer, request, answer).await
}
