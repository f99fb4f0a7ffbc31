//! The settings of the routes for each job. They can be replaced while the daemon serves.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, PoisonError, RwLock};

use keyfall::target::Pull;
use keyfall::{JobKey, Kind, RetryPolicy, Router};

use super::problem::Problem;
use crate::config::{Alerts, PAYLOAD_LIMIT};

/// The settings of a route that calls have to know; `None` for the default.
#[derive(Debug, Clone, Default)]
pub(crate) struct RouteTerms {
    pub retry: Option<RetryPolicy>,
    /// The largest payload that is taken for it, in bytes.
    pub payload_limit: Option<usize>,
    /// The number of replicas that must have the settlement of a lease.
    pub durable: Option<u32>,
    /// The alerts of its jobs.
    pub alerts: Alerts,
}

/// The routes, and the settings of their patterns.
#[derive(Debug, Default)]
pub(crate) struct RouteSet {
    pub router: Router,
    pub terms: HashMap<String, RouteTerms>,
    /// The alerts of jobs whose pattern sets none.
    pub alerts: Alerts,
    /// The kinds of alerts, which have none themselves.
    pub destinations: BTreeSet<Kind>,
    /// Whether a worker in this process has these routes.
    pub is_served: bool,
}

/// The present routes. Clones share them.
#[derive(Clone)]
pub(crate) struct Routes(Arc<RwLock<Arc<RouteSet>>>);

impl Routes {
    pub(crate) fn new(routes: RouteSet) -> Self {
        Routes(Arc::new(RwLock::new(Arc::new(routes))))
    }

    pub(crate) fn replace(&self, routes: RouteSet) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(routes);
    }

    /// The retry policy of a job without a policy of its own.
    pub(super) fn retry(&self, key: &JobKey) -> RetryPolicy {
        let set = self.now();
        let (_, terms) = set.of(key);
        terms.and_then(|it| it.retry.clone()).unwrap_or_default()
    }

    /// The number of replicas that must have the settlement of a lease of this job.
    pub(super) fn durable(&self, key: &JobKey) -> Option<u32> {
        self.now().of(key).1?.durable
    }

    /// The alerts of this job. A job that is itself an alert has none: otherwise alerts could cause
    /// alerts for ever.
    pub(crate) fn alerts(&self, key: &JobKey) -> Alerts {
        let set = self.now();
        let mut known = set.destinations.iter();
        if known.any(|kind| kind.as_str() == key.kind()) {
            return Alerts::default();
        }
        let (_, terms) = set.of(key);
        terms.map_or_else(|| set.alerts.clone(), |terms| terms.alerts.clone())
    }

    /// Whether the worker of this process runs this job, or hands it out.
    pub(super) fn serve(&self, key: &JobKey) -> bool {
        let set = self.now();
        set.is_served && set.of(key).0.is_some()
    }

    /// Refuses a payload that is too large for the route of this job.
    pub(super) fn check_payload(&self, key: &JobKey, bytes: usize) -> Result<(), Problem> {
        let set = self.now();
        let (pattern, terms) = set.of(key);
        let limit = terms.and_then(|it| it.payload_limit);
        if bytes <= limit.unwrap_or(PAYLOAD_LIMIT) {
            return Ok(());
        }
        let rule = match (pattern, limit) {
            (Some(pattern), Some(limit)) => {
                format!("more than the {limit} that its route `{pattern}` takes")
            }
            (Some(pattern), None) => {
                format!("more than the {PAYLOAD_LIMIT} of a route without a limit, `{pattern}`")
            }
            (None, _) => format!("more than the {PAYLOAD_LIMIT} of a job without a route here"),
        };
        Err(Problem::payload_too_large(bytes, &rule))
    }

    fn now(&self) -> Arc<RouteSet> {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl RouteSet {
    /// Payloads are as large as the client takes them.
    pub(super) fn without_limits() -> Self {
        let pattern = "*:*:*:*";
        let terms = RouteTerms {
            retry: None,
            payload_limit: Some(usize::MAX),
            durable: None,
            alerts: Alerts::default(),
        };
        RouteSet {
            router: Router::new().route(pattern, Pull::new()),
            terms: HashMap::from([(pattern.to_owned(), terms)]),
            ..RouteSet::default()
        }
    }

    /// The route of a job, and its settings.
    fn of(&self, key: &JobKey) -> (Option<&str>, Option<&RouteTerms>) {
        let pattern = self.router.route_of(key);
        (pattern, pattern.and_then(|it| self.terms.get(it)))
    }
}
