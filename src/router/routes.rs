//! A finished router: what a worker asks.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::PendingRoute;
use crate::durable::Durable;
use crate::error::Result;
use crate::handler::{
    Breakers, Endpoint, FindTerms, MissingKey, Pull, Rate, RouteTask, RouteTerms, SegmentNames,
    names,
};
use crate::key::{JobKey, Kind};
use crate::retry::RetryPolicy;
use crate::routing::{Pattern, RouteTable};

/// A finished router, as the worker uses it.
pub(crate) struct Routes {
    /// Knows nothing of the fallback.
    pub(crate) table: RouteTable,
    /// In the order of the table; then the fallback, if there is one.
    pub(crate) routes: Vec<RouteEntry>,
    /// The place of the fallback in `routes`.
    pub(crate) fallback: Option<usize>,
}

/// One route of a finished router.
pub(crate) struct RouteEntry {
    pub(crate) pattern: Pattern,
    pub(crate) handler: Endpoint,
    pub(crate) retry: Option<RetryPolicy>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) concurrency: Option<usize>,
    pub(crate) names: SegmentNames,
    pub(crate) priority: i32,
    pub(crate) lease: Option<Duration>,
    pub(crate) rate: Option<Rate>,
    pub(crate) late_after: Option<Duration>,
    /// How far the ends of its runs are to get.
    pub(crate) durable: Option<Durable>,
    /// Its jobs go to whoever pulls them, and not to the handler.
    pub(crate) pull: Option<Pull>,
    /// Its runs end with their jobs in other hands.
    pub(crate) hands_over: bool,
    pub(crate) route_task: Option<RouteTask>,
    /// Those of the target that its handler is.
    pub(crate) breakers: Option<Arc<dyn Breakers>>,
    /// Plain keys become jobs of it.
    pub(crate) adopts: Option<MissingKey>,
    /// How many bytes the payload of one may have that was a plain key.
    pub(crate) payload_limit: Option<usize>,
}

impl Routes {
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

    /// The routes of the table, in its order: all but the fallback.
    pub(crate) fn of_table(&self) -> &[RouteEntry] {
        &self.routes[..self.fallback.unwrap_or(self.routes.len())]
    }

    /// The kinds that routes name in full, each once.
    pub(crate) fn literal_kinds(&self) -> BTreeSet<Kind> {
        let patterns = self.of_table().iter().map(|route| &route.pattern);
        patterns.filter_map(Pattern::literal_kind).collect()
    }

    /// Whether there are kinds that they match and do not name in full.
    pub(crate) fn match_more_than_literal_kinds(&self) -> bool {
        let is_open = |route: &RouteEntry| route.pattern.literal_kind().is_none();
        self.fallback.is_some() || self.of_table().iter().any(is_open)
    }

    /// What the keys look like that routes adopt, as globs of Redis, each once.
    pub(crate) fn adopted_keys(&self) -> BTreeSet<String> {
        let adopting = self
            .of_table()
            .iter()
            .filter(|route| route.adopts.is_some());
        adopting.map(|route| route.pattern.to_glob()).collect()
    }

    /// To whom jobs go that are pulled, each once.
    pub(crate) fn pulls(&self) -> Vec<&Pull> {
        let mut pulls: Vec<&Pull> = Vec::new();
        for pull in self.routes.iter().filter_map(|route| route.pull.as_ref()) {
            if !pulls.iter().any(|known| known.is(pull)) {
                pulls.push(pull);
            }
        }
        pulls
    }

    /// The hosts that targets of its routes leave alone because they are down, in order.
    pub(crate) fn open_breakers(&self) -> BTreeSet<String> {
        self.breakers().flat_map(|it| it.open()).collect()
    }

    /// Has this host called again. Returns whether it was left alone.
    pub(crate) fn close_breaker(&self, host: &str) -> bool {
        // Each of them, not only the first.
        self.breakers().filter(|it| it.close(host)).count() > 0
    }

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
            rate: entry.route.options.rate,
            late_after: entry.route.options.late_after,
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
