//! How many jobs may run at the same time: over all, and on each route.

use std::sync::Mutex;

use tokio::sync::Notify;

/// Counts free slots. Whoever claims reserves first, so that nothing is claimed that has to
/// wait for a slot.
pub(crate) struct Slots {
    free: Mutex<Free>,
    /// Told whenever a slot became free.
    freed: Notify,
}

struct Free {
    all: usize,
    routes: Vec<usize>,
    total: usize,
    /// Jobs whose handler has ended and whose settlement has not, and that hold no slot.
    unsettled: usize,
    /// How often slots were given back. A change tells that waiting was worth it.
    releases: u64,
}

impl Slots {
    /// `routes` are the limits of the routes; `None` has none of its own.
    pub(crate) fn new(all: usize, routes: impl Iterator<Item = Option<usize>>) -> Self {
        Slots {
            free: Mutex::new(Free {
                all,
                routes: routes.map(|limit| limit.unwrap_or(all)).collect(),
                total: all,
                unsettled: 0,
                releases: 0,
            }),
            freed: Notify::new(),
        }
    }

    /// How many jobs of this route could start now.
    pub(crate) fn free(&self, route: usize) -> usize {
        let free = self.lock();
        free.all.min(free.routes[route])
    }

    /// Takes up to `count` slots of this route; returns how many.
    pub(crate) fn reserve(&self, route: usize, count: usize) -> usize {
        let mut free = self.lock();
        let taken = count.min(free.all).min(free.routes[route]);
        free.all -= taken;
        free.routes[route] -= taken;
        taken
    }

    /// Gives a slot back while its job is still to be settled, so that the next one need not
    /// wait for that. Returns `false`, and does nothing, if as many jobs as there are slots
    /// are to be settled already: Redis must be away, and memory is bounded.
    pub(crate) fn release_unsettled(&self, route: usize) -> bool {
        let mut free = self.lock();
        if free.unsettled == free.total {
            return false;
        }
        free.unsettled += 1;
        drop(free);
        self.release(route, 1);
        true
    }

    /// A job that gave its slot back before is settled.
    pub(crate) fn settled(&self) {
        self.lock().unsettled -= 1;
        self.freed.notify_one();
    }

    /// Gives slots of this route back.
    pub(crate) fn release(&self, route: usize, count: usize) {
        if count == 0 {
            return;
        }
        let mut free = self.lock();
        free.all += count;
        free.routes[route] += count;
        free.releases += 1;
        drop(free);
        self.freed.notify_one();
    }

    /// Whether no slot is taken, and nothing is to be settled.
    pub(crate) fn all_free(&self) -> bool {
        let free = self.lock();
        free.all == free.total && free.unsettled == 0
    }

    pub(crate) fn releases(&self) -> u64 {
        self.lock().releases
    }

    /// Returns when a slot has become free since the last call.
    pub(crate) async fn freed(&self) {
        self.freed.notified().await;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Free> {
        self.free.lock().expect("no panic while held")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_takes_no_more_than_its_limit_and_leaves_the_rest_to_others() {
        let slots = Slots::new(10, [Some(3), None].into_iter());
        assert_eq!(slots.reserve(0, 5), 3);
        assert_eq!(slots.free(0), 0);
        assert_eq!(slots.reserve(1, 100), 7);
        slots.release(0, 3);
        assert_eq!((slots.free(0), slots.free(1)), (3, 3));
        slots.release(1, 7);
        assert!(slots.all_free());
    }

    #[test]
    fn as_many_jobs_as_there_are_slots_may_wait_to_be_settled_without_one() {
        let slots = Slots::new(2, [None].into_iter());
        for _ in 0..2 {
            assert_eq!(slots.reserve(0, 1), 1);
            assert!(slots.release_unsettled(0));
        }
        assert_eq!(slots.reserve(0, 1), 1);
        assert!(!slots.release_unsettled(0));
        slots.release(0, 1);
        assert!(!slots.all_free());
        slots.settled();
        slots.settled();
        assert!(slots.all_free());
    }
}
