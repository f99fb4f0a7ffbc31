//! The job limits of a worker: over all routes, and for each route. The counts outlive a set of
//! routes: its successor starts with the jobs that still run.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use tokio::sync::Notify;

use super::limiter::RouteLimiter;
use crate::router::{RouteEntry, Routes};

/// How many jobs may wait to be settled without a slot; or as many as there are slots, if that is
/// more. Enough to fill several calls while others travel.
pub(super) const UNSETTLED: usize = 1024;

/// The job limits of a worker, shared by all its engines.
pub(crate) struct Limits {
    /// How many jobs may run at the same time, over all routes.
    total: usize,
    /// Counts over all routes. Locked before any limiter.
    all: Mutex<LimitCounts>,
    /// Limiters by route; a limiter lives as long as an engine uses it.
    gates: Mutex<HashMap<Name, Weak<RouteLimiter>>>,
    /// Notified whenever a slot becomes free or a job is settled.
    freed: Notify,
}

/// The identity of a route: its pattern, its priority, and whether it is the fallback.
type Name = (String, i32, bool);

/// The jobs of all routes that hold a slot or wait to be settled.
pub(super) struct LimitCounts {
    total: usize,
    /// Jobs that hold a slot.
    pub(super) running: usize,
    /// Jobs without a slot whose handler has ended, and whose settlement has not.
    pub(super) unsettled: usize,
}

impl Limits {
    /// Limits for `total` jobs over all routes.
    pub(crate) fn new(total: usize) -> Arc<Self> {
        Arc::new(Limits {
            total,
            all: Mutex::new(LimitCounts {
                total,
                running: 0,
                unsettled: 0,
            }),
            gates: Mutex::default(),
            freed: Notify::new(),
        })
    }

    /// The limiter of each route. A route that existed before keeps its limiter and counts, with
    /// the limits of the new route.
    pub(super) fn gates(&self, routes: &Routes) -> Vec<Arc<RouteLimiter>> {
        let mut known = self.gates.lock().expect("no panic while held");
        known.retain(|_, gate| gate.strong_count() > 0);
        let mut gate = |(place, route): (usize, &RouteEntry)| {
            let is_fallback = routes.fallback == Some(place);
            let name = (route.pattern.to_string(), route.priority, is_fallback);
            let before = known.get(&name).and_then(Weak::upgrade);
            let gate = match before.filter(|before| before.suit(self.total, route)) {
                Some(before) => before,
                None => Arc::new(RouteLimiter::new(self.total, route)),
            };
            known.insert(name, Arc::downgrade(&gate));
            gate
        };
        routes.routes.iter().enumerate().map(&mut gate).collect()
    }

    /// How many jobs may run at the same time.
    pub(super) fn total(&self) -> usize {
        self.total
    }

    /// Locks the counts. Lock these before the counts of a route.
    pub(super) fn lock(&self) -> MutexGuard<'_, LimitCounts> {
        self.all.lock().expect("no panic while held")
    }

    /// Reports that a slot became free.
    pub(super) fn tell_freed(&self) {
        self.freed.notify_one();
    }

    /// Returns when a slot became free since the last call.
    pub(super) async fn freed(&self) {
        self.freed.notified().await;
    }
}

impl LimitCounts {
    /// How many more jobs may run.
    pub(super) fn free(&self) -> usize {
        self.total - self.running
    }

    /// Whether one more job may wait to be settled without a slot.
    pub(super) fn may_leave_unsettled(&self) -> bool {
        self.unsettled < self.total.max(UNSETTLED)
    }
}
