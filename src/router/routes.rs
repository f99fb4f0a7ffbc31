//! The finished form of a router, which workers and rehearsals use.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::PendingRoute;
use crate::durable::Durable;
use crate::error::{Error, ErrorKind, Result};
use crate::handler::{
    Breakers, Endpoint, FindTerms, MissingKey, Pull, Rate, RouteTask, RouteTerms, SegmentNames,
    names,
};
use crate::key::{JobKey, Kind};
use crate::lateness::MaxLateness;
use crate::limit::{Limit, LimitScope};
use crate::recurrence::QuietHours;
use crate::retry::RetryPolicy;
use crate::routing::{Pattern, RouteTable};

/// The routes of a router in a list, with a table that finds the route of a key.
pub(crate) struct Routes {
    /// Finds the index of a key's route; does not know the fallback.
    pub(crate) table: RouteTable,
    /// In the order of registration, which is the index in the table; then the fallback, if there
    /// is one.
    pub(crate) routes: Vec<RouteEntry>,
    /// The index of the fallback in `routes`.
    pub(crate) fallback: Option<usize>,
}

/// One route of a finished router: pattern, endpoint and options, which `RouteOptions` of the
/// handlers describes. `None` leaves an option to the worker.
pub(crate) struct RouteEntry {
    pub(crate) pattern: Pattern,
    pub(crate) handler: Endpoint,
    pub(crate) retry: Option<RetryPolicy>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) concurrency: Option<usize>,
    /// The named segments of the pattern.
    pub(crate) names: SegmentNames,
    pub(crate) priority: i32,
    pub(crate) lease: Option<Duration>,
    /// The limit of the kinds of the route, over all workers.
    pub(crate) limit: Option<Limit>,
    pub(crate) rate: Option<Rate>,
    pub(crate) late_after: Option<Duration>,
    /// The limit of lateness, and what becomes of a job beyond it.
    pub(crate) max_lateness: Option<MaxLateness>,
    /// Hours at which no run begins.
    pub(crate) quiet: Option<QuietHours>,
    /// The durability that the settlement of a run must reach before its slot is free.
    pub(crate) durable: Option<Durable>,
    /// The queue of consumers that pull its jobs; then the handler is not called.
    pub(crate) pull: Option<Pull>,
    /// Whether its runs end with [`Outcome::HandedOver`](crate::Outcome::HandedOver).
    pub(crate) hands_over: bool,
    pub(crate) route_task: Option<RouteTask>,
    /// The circuit breakers of the handler, if it is a target that has some.
    pub(crate) breakers: Option<Arc<dyn Breakers>>,
    /// The meaning of a missing key; `None` if plain keys do not become jobs of this route.
    pub(crate) adopts: Option<MissingKey>,
    /// The largest value of an adopted plain key, in bytes.
    pub(crate) payload_limit: Option<usize>,
}

impl Routes {
    /// Compiles the patterns and makes the endpoints.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRoute`](crate::ErrorKind::InvalidRoute) if the routes do not make a
    /// table.
    pub(super) fn new(
        routes: Vec<PendingRoute<()>>,
        fallback: Option<PendingRoute<()>>,
    ) -> Result<Self> {
        Ok(Routes {
            table: RouteTable::new(routes.iter().map(PendingRoute::ranked).collect())?,
            fallback: fallback.is_some().then_some(routes.len()),
            routes: routes
                .into_iter()
                .chain(fallback)
                .map(RouteEntry::new)
                .collect(),
        })
    }

    /// All routes but the fallback, by their index in the table.
    pub(crate) fn of_table(&self) -> &[RouteEntry] {
        &self.routes[..self.fallback.unwrap_or(self.routes.len())]
    }

    /// The kinds that routes name in full, each once.
    pub(crate) fn literal_kinds(&self) -> BTreeSet<Kind> {
        let patterns = self.of_table().iter().map(|route| &route.pattern);
        patterns.filter_map(Pattern::literal_kind).collect()
    }

    /// Whether there may be kinds that the routes match without naming them in full.
    pub(crate) fn match_more_than_literal_kinds(&self) -> bool {
        let is_open = |route: &RouteEntry| route.pattern.literal_kind().is_none();
        self.fallback.is_some() || self.of_table().iter().any(is_open)
    }

    /// The limits of routes, each with the kind or the prefix of kinds that it is for.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRoute`](crate::ErrorKind::InvalidRoute) if two of them differ for the same
    /// kinds.
    pub(crate) fn limits(&self) -> Result<BTreeMap<LimitScope, Limit>> {
        let mut limits: BTreeMap<LimitScope, (&RouteEntry, &Limit)> = BTreeMap::new();
        for route in self.of_table() {
            let scope = route.pattern.whole_kinds();
            let Some((limit, scope)) = route.limit.as_ref().zip(scope) else {
                continue;
            };
            let other = limits.insert(LimitScope::parse(&scope)?, (route, limit));
            if let Some((other, _)) = other.filter(|(_, other)| *other != limit) {
                return Err(Error::new(
                    ErrorKind::InvalidRoute,
                    format!(
                        "the routes `{}` and `{}` have different limits for the same kinds: give one \
                         of them the limit, or both the same",
                        other.pattern, route.pattern
                    ),
                ));
            }
        }
        let limits = limits.into_iter();
        Ok(limits
            .map(|(scope, (_, limit))| (scope, limit.clone()))
            .collect())
    }

    /// Redis globs of the keys that routes adopt, each once. A glob may match more keys than its
    /// route.
    pub(crate) fn adopted_keys(&self) -> BTreeSet<String> {
        let adopting = self
            .of_table()
            .iter()
            .filter(|route| route.adopts.is_some());
        adopting.map(|route| route.pattern.to_glob()).collect()
    }

    /// The targets from which consumers pull jobs, each once.
    pub(crate) fn pulls(&self) -> Vec<&Pull> {
        let mut pulls: Vec<&Pull> = Vec::new();
        for pull in self.routes.iter().filter_map(|route| route.pull.as_ref()) {
            if !pulls.iter().any(|known| known.is(pull)) {
                pulls.push(pull);
            }
        }
        pulls
    }

    /// The hosts that targets of these routes do not call because they are down, in order.
    pub(crate) fn open_breakers(&self) -> BTreeSet<String> {
        self.breakers().flat_map(|it| it.open()).collect()
    }

    /// Closes the breakers of this host in all targets. Returns whether any was open.
    pub(crate) fn close_breaker(&self, host: &str) -> bool {
        // Counts, because `any` would stop at the first breaker that closes.
        self.breakers().filter(|it| it.close(host)).count() > 0
    }

    /// The breakers of all routes whose handlers have any.
    fn breakers(&self) -> impl Iterator<Item = &Arc<dyn Breakers>> {
        self.routes.iter().filter_map(|it| it.breakers.as_ref())
    }

    /// The route that a key belongs to, or else the fallback.
    pub(crate) fn find_or_fallback(&self, key: &JobKey) -> Option<&RouteEntry> {
        let index = self.table.find(key).or(self.fallback)?;
        Some(&self.routes[index])
    }
}

impl FindTerms for Routes {
    fn terms(&self, key: &JobKey) -> Option<RouteTerms<'_>> {
        let route = self.find_or_fallback(key)?;
        Some(RouteTerms {
            lease: route.lease,
            retry: route.retry.as_ref(),
        })
    }
}

impl RouteEntry {
    /// Whether jobs leave the worker, which keeps their leases until a consumer has them.
    pub(crate) fn hands_on(&self) -> bool {
        self.pull.is_some() || self.hands_over
    }

    fn new(entry: PendingRoute<()>) -> Self {
        RouteEntry {
            names: names(&entry.pattern),
            handler: entry.endpoint().clone(),
            pattern: entry.pattern,
            retry: entry.route.options.retry,
            timeout: entry.route.options.timeout,
            concurrency: entry.route.options.concurrency,
            priority: entry.route.options.priority,
            lease: entry.route.options.lease,
            limit: entry.route.options.limit,
            rate: entry.route.options.rate,
            late_after: entry.route.options.late_after,
            max_lateness: entry.route.options.max_lateness,
            quiet: entry.route.options.quiet,
            durable: entry.route.options.durable,
            pull: entry.route.options.pull,
            hands_over: entry.route.options.hands_over,
            route_task: entry.route.options.route_task,
            breakers: entry.route.options.breakers,
            adopts: entry.route.options.adopts,
            payload_limit: entry.route.options.payload_limit,
        }
    }
}
