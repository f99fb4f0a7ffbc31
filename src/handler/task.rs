//! Background tasks of routes, for jobs that are acknowledged outside of their handlers.
//!
//! A list or stream target, for example, reads the receipts of its consumers in such a task and
//! settles their leases.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::client::Client;
use crate::key::JobKey;
use crate::retry::RetryPolicy;

/// A task of a route, which each worker with that route runs beside its handlers. Several workers
/// run it at the same time. The future never ends by itself; the worker drops it.
#[derive(Clone)]
pub(crate) struct RouteTask(Arc<dyn Fn(RouteTaskContext) -> BoxFuture<'static, ()> + Send + Sync>);

/// The client, the leases and the routes that a route task works with.
pub(crate) struct RouteTaskContext {
    /// Settles and extends leases.
    pub(crate) client: Client,
    /// The lease length of the task's own route.
    pub(crate) lease: Duration,
    /// The lease length of a route that sets none.
    pub(crate) usual_lease: Duration,
    /// All routes of the worker: jobs of several routes can be in one list or stream.
    pub(crate) routes: Arc<dyn FindTerms>,
}

/// Looks up the routes of a worker for a route task.
pub(crate) trait FindTerms: Send + Sync {
    /// The terms of the route that takes this job, or else of the fallback. `None` if there is
    /// neither.
    fn terms(&self, key: &JobKey) -> Option<RouteTerms<'_>>;
}

/// The terms that a route sets for its jobs.
pub(crate) struct RouteTerms<'a> {
    /// The lease length, if the route sets one.
    pub(crate) lease: Option<Duration>,
    /// The policy of jobs that have none of their own, if the route sets one.
    pub(crate) retry: Option<&'a RetryPolicy>,
}

impl RouteTaskContext {
    /// The lease length of this job; for a job that no route takes, the length of the task's own
    /// route.
    pub(crate) fn lease(&self, key: &JobKey) -> Duration {
        match self.routes.terms(key) {
            Some(terms) => terms.lease.unwrap_or(self.usual_lease),
            None => self.lease,
        }
    }

    /// The policy of this job if it has none of its own: its route's, or the default.
    pub(crate) fn retry(&self, key: &JobKey) -> RetryPolicy {
        let terms = self.routes.terms(key);
        let policy = terms.and_then(|terms| terms.retry);
        policy.cloned().unwrap_or_default()
    }
}

impl RouteTask {
    /// A task that runs the future which `attend` makes.
    pub(crate) fn new(
        attend: impl Fn(RouteTaskContext) -> BoxFuture<'static, ()> + Send + Sync + 'static,
    ) -> Self {
        RouteTask(Arc::new(attend))
    }

    /// Starts the task for one worker: returns its future, which the worker polls.
    pub(crate) fn start(&self, context: RouteTaskContext) -> BoxFuture<'static, ()> {
        (self.0)(context)
    }
}

impl fmt::Debug for RouteTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RouteTask")
    }
}
