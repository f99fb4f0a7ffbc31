//! How many jobs a worker may run at the same time: over all, and on each route. These counts
//! outlive the routes: those that replace them begin with what still runs.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use tokio::sync::Notify;

use super::limiter::RouteLimiter;
use crate::router::{RouteEntry, Routes};

/// How many jobs may wait to be settled without a slot, or as many as there are slots. Enough for
/// several calls to be filled while others travel.
pub(super) const UNSETTLED: usize = 1024;

/// The limits of a worker, whatever its routes are.
pub(crate) struct Limits {
    total: usize,
    all: Mutex<LimitCounts>,
    gates: Mutex<HashMap<Name, Weak<RouteLimiter>>>,
    /// Told whenever a slot became free, or a job was settled.
    freed: Notify,
}

/// What tells a route from others: its pattern, its priority, and whether it is the fallback.
type Name = (String, i32, bool);

/// The jobs of all routes that hold a slot, or a place among those that are to be settled.
pub(super) struct LimitCounts {
    total: usize,
    pub(super) running: usize,
    /// Jobs whose handler has ended and whose settlement has not, and that hold no slot.
    pub(super) unsettled: usize,
}

impl Limits {
    /// For so many jobs over all routes.
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

    /// The gate of each route: that of the route before it, if it was the same, with the limits
    /// of this one.
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

    pub(super) fn total(&self) -> usize {
        self.total
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, LimitCounts> {
        self.all.lock().expect("no panic while held")
    }

    pub(super) fn tell_freed(&self) {
        self.freed.notify_one();
    }

    pub(super) async fn freed(&self) {
        self.freed.notified().await;
    }
}

impl LimitCounts {
    /// How many more may run.
    pub(super) fn free(&self) -> usize {
        self.total - self.running
    }

    pub(super) fn may_leave_unsettled(&self) -> bool {
        self.unsettled < self.total.max(UNSETTLED)
    }
}
