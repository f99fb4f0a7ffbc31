//! How many jobs may run at the same time: over all, and on each route.

use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

/// How many jobs may wait to be settled without a slot, or as many as there are slots. Enough for
/// several calls to be filled while others travel.
const UNSETTLED: usize = 1024;

/// So many slots are not halved: a smaller claim costs Redis more for each job.
const FEW: usize = 64;

/// Counts free slots. Whoever claims reserves first, so that nothing is claimed that has to
/// wait for a slot.
pub(crate) struct Slots {
    free: Mutex<Free>,
    /// Told whenever a slot became free, or a job was settled.
    freed: Notify,
}

struct Free {
    all: usize,
    routes: Vec<usize>,
    limits: Vec<usize>,
    total: usize,
    /// Jobs whose handler has ended and whose settlement has not, and that hold no slot.
    unsettled: usize,
}

/// The right to run one job of a route; given back when it is dropped.
pub(crate) struct Slot {
    slots: Arc<Slots>,
    route: usize,
    /// It was given back before its job was settled.
    early: bool,
}

impl Slots {
    /// `routes` are the limits of the routes; `None` has none of its own.
    pub(crate) fn new(all: usize, routes: impl Iterator<Item = Option<usize>>) -> Arc<Self> {
        let limits: Vec<usize> = routes.map(|limit| limit.unwrap_or(all)).collect();
        Arc::new(Slots {
            free: Mutex::new(Free {
                all,
                routes: limits.clone(),
                limits,
                total: all,
                unsettled: 0,
            }),
            freed: Notify::new(),
        })
    }

    /// How many jobs of this route could start now.
    pub(crate) fn free(&self, route: usize) -> usize {
        let free = self.lock();
        free.all.min(free.routes[route])
    }

    /// How many slots of this route one claim takes at the most: where there are many, half of
    /// them, so that Redis carries out one claim while what another brought is run.
    pub(crate) fn at_once(&self, route: usize) -> usize {
        let free = self.lock();
        (free.total.min(free.limits[route]) / 2).max(FEW)
    }

    /// Takes up to `count` slots of this route.
    pub(crate) fn reserve(self: &Arc<Self>, route: usize, count: usize) -> Vec<Slot> {
        let mut free = self.lock();
        let taken = count.min(free.all).min(free.routes[route]);
        free.all -= taken;
        free.routes[route] -= taken;
        drop(free);
        let slot = || Slot {
            slots: self.clone(),
            route,
            early: false,
        };
        std::iter::repeat_with(slot).take(taken).collect()
    }

    /// Whether no slot is taken, and nothing is to be settled.
    pub(crate) fn all_free(&self) -> bool {
        let free = self.lock();
        free.all == free.total && free.unsettled == 0
    }

    /// Returns when a slot has become free since the last call.
    pub(crate) async fn freed(&self) {
        self.freed.notified().await;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Free> {
        self.free.lock().expect("no panic while held")
    }
}

impl Slot {
    pub(crate) fn route(&self) -> usize {
        self.route
    }

    /// Gives the slot back while its job is still to be settled, so that the next one need
    /// not wait for that; unless too many jobs are to be settled already. Then Redis must be
    /// away, and memory is bounded.
    pub(crate) fn handler_ended(&mut self) {
        let mut free = self.slots.lock();
        if !self.early && free.unsettled < free.total.max(UNSETTLED) {
            free.unsettled += 1;
            free.give_back(self.route);
            self.early = true;
            drop(free);
            self.slots.freed.notify_one();
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut free = self.slots.lock();
        if self.early {
            free.unsettled -= 1;
        } else {
            free.give_back(self.route);
        }
        drop(free);
        self.slots.freed.notify_one();
    }
}

impl Free {
    fn give_back(&mut self, route: usize) {
        self.all += 1;
        self.routes[route] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_takes_no_more_than_its_limit_and_leaves_the_rest_to_others() {
        let slots = Slots::new(10, [Some(3), None].into_iter());
        let first = slots.reserve(0, 5);
        assert_eq!((first.len(), slots.free(0)), (3, 0));
        let second = slots.reserve(1, 100);
        assert_eq!(second.len(), 7);
        drop(first);
        assert_eq!((slots.free(0), slots.free(1)), (3, 3));
        drop(second);
        assert!(slots.all_free());
    }

    #[test]
    fn not_all_jobs_may_wait_to_be_settled_without_a_slot() {
        let slots = Slots::new(2, [None].into_iter());
        let mut jobs = Vec::new();
        while jobs.len() < UNSETTLED {
            jobs.extend(slots.reserve(0, 2));
            jobs.iter_mut().for_each(Slot::handler_ended);
        }
        jobs.extend(slots.reserve(0, 2));
        assert_eq!(jobs.len(), UNSETTLED + 2);
        jobs[UNSETTLED].handler_ended();
        assert_eq!(slots.free(0), 0);
        jobs.remove(0);
        jobs[UNSETTLED - 1].handler_ended();
        assert_eq!(slots.free(0), 1);
        assert!(!slots.all_free());
        jobs.clear();
        assert!(slots.all_free());
    }
}
