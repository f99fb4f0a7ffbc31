//! A background task of a route, for jobs that are acknowledged outside of its handler.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::client::Client;
use crate::key::JobKey;
use crate::retry::RetryPolicy;

/// A task that each worker with a route runs beside its handlers, for as long as it has the route.
/// Several workers do so at the same time. It goes on until it is dropped.
#[derive(Clone)]
pub(crate) struct RouteTask(Arc<dyn Fn(RouteTaskContext) -> BoxFuture<'static, ()> + Send + Sync>);

/// What an route task works with.
pub(crate) struct RouteTaskContext {
    /// Settles and extends leases.
    pub(crate) client: Client,
    /// How long a lease of its own route is.
    pub(crate) lease: Duration,
    /// How long a lease is of which a route says nothing.
    pub(crate) usual_lease: Duration,
    /// All routes of the worker: the jobs of several can be in one place.
    pub(crate) routes: Arc<dyn FindTerms>,
}

/// The routes of a worker, as an route task knows them.
pub(crate) trait FindTerms: Send + Sync {
    /// The terms of the route that takes this job, or else of the fallback. `None` if there is
    /// neither.
    fn terms(&self, key: &JobKey) -> Option<RouteTerms<'_>>;
}

/// The terms that a route sets for its jobs.
pub(crate) struct RouteTerms<'a> {
    /// How long a lease is.
    pub(crate) lease: Option<Duration>,
    /// When a job is tried again that has no policy of its own.
    pub(crate) retry: Option<&'a RetryPolicy>,
}

impl RouteTaskContext {
    /// How long a lease of this job is.
    pub(crate) fn lease(&self, key: &JobKey) -> Duration {
        match self.routes.terms(key) {
            Some(terms) => terms.lease.unwrap_or(self.usual_lease),
            None => self.lease,
        }
    }

    /// When this job is tried again that has no policy of its own.
    pub(crate) fn retry(&self, key: &JobKey) -> RetryPolicy {
        let terms = self.routes.terms(key);
        let policy = terms.and_then(|terms| terms.retry);
        policy.cloned().unwrap_or_default()
    }
}

impl RouteTask {
    pub(crate) fn new(
        attend: impl Fn(RouteTaskContext) -> BoxFuture<'static, ()> + Send + Sync + 'static,
    ) -> Self {
        RouteTask(Arc::new(attend))
    }

    pub(crate) fn attend(&self, attendance: RouteTaskContext) -> BoxFuture<'static, ()> {
        (self.0)(attendance)
    }
}

impl fmt::Debug for RouteTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Attendant")
    }
}
