//! How many jobs may run at the same time: over all, and on each route. Where jobs go to those
//! who pull them, a place in their hands counts as a slot.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::sleep_until;

use super::hands::Hands;
use super::rate::Bucket;
use crate::handler::{Place, Pull};
use crate::key::Kind;
use crate::lease::Lease;
use crate::router::RouteEntry;

/// How many jobs may wait to be settled without a slot, or as many as there are slots. Enough for
/// several calls to be filled while others travel.
const UNSETTLED: usize = 1024;

/// So many slots are not halved: a smaller claim costs Redis more for each job.
const FEW: usize = 64;

/// Counts free slots. Whoever claims reserves first, so that nothing is claimed that has to
/// wait for a slot.
pub(crate) struct Slots {
    free: Mutex<Free>,
    /// By route: who hands out its places, if it has any.
    pulls: Vec<Option<Pull>>,
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
    /// Jobs that were claimed for those who pull, and are not in their hands yet.
    places: usize,
    /// By route: how many may start in a time, if there is a limit.
    rates: Vec<Option<Bucket>>,
    /// By route: what those hold who pulled, if there is a limit.
    hands: Vec<Option<Hands>>,
}

/// The right to run one job of a route; given back when it is dropped.
pub(crate) struct Slot {
    slots: Arc<Slots>,
    route: usize,
    holds: Holds,
    /// A job has it.
    begun: bool,
}

enum Holds {
    /// A place among those that run.
    Run,
    /// Nothing any more: it was given back before its job was settled.
    Nothing,
    /// The hand of one who pulls, until it was filled.
    Place(Option<Place>),
}

impl Slots {
    /// `routes` are those of the worker; one without a limit has none of its own.
    pub(crate) fn new(all: usize, routes: &[RouteEntry]) -> Arc<Self> {
        let limits = routes.iter().map(|route| route.concurrency.unwrap_or(all));
        let limits: Vec<usize> = limits.collect();
        let now = Instant::now();
        let rates = routes
            .iter()
            .map(|route| Some(Bucket::new(route.rate?, now)));
        let hands = routes.iter().map(|route| {
            route.pull.as_ref()?;
            Some(Hands::new(route.concurrency?))
        });
        Arc::new(Slots {
            free: Mutex::new(Free {
                all,
                routes: limits.clone(),
                limits,
                total: all,
                unsettled: 0,
                places: 0,
                rates: rates.collect(),
                hands: hands.collect(),
            }),
            pulls: routes.iter().map(|route| route.pull.clone()).collect(),
            freed: Notify::new(),
        })
    }

    /// How many jobs of this route and kind could start now.
    pub(crate) fn free(&self, route: usize, kind: &Kind) -> usize {
        let wanted = self.pulls[route].as_ref().map(|pull| pull.places(kind));
        self.lock().room(route, wanted)
    }

    /// Whether a job of this route could start now.
    pub(crate) fn has_room(&self, route: usize) -> bool {
        let wanted = self.pulls[route]
            .as_ref()
            .map(|pull| usize::from(pull.has_places()));
        self.lock().room(route, wanted) > 0
    }

    /// How many slots of this route one claim takes at the most: where there are many, half of
    /// them, so that Redis carries out one claim while what another brought is run.
    pub(crate) fn at_once(&self, route: usize) -> usize {
        if self.pulls[route].is_some() {
            return usize::MAX;
        }
        let free = self.lock();
        (free.total.min(free.limits[route]) / 2).max(FEW)
    }

    /// Takes up to `count` slots of this route, for jobs of this kind.
    pub(crate) fn reserve(self: &Arc<Self>, route: usize, kind: &Kind, count: usize) -> Vec<Slot> {
        let slot = |holds| Slot {
            slots: self.clone(),
            route,
            holds,
            begun: false,
        };
        let mut free = self.lock();
        let Some(pull) = &self.pulls[route] else {
            let taken = count.min(free.room(route, None));
            free.all -= taken;
            free.routes[route] -= taken;
            free.take_tokens(route, taken);
            drop(free);
            return std::iter::repeat_with(|| slot(Holds::Run))
                .take(taken)
                .collect();
        };
        let places = pull.reserve(kind, free.room(route, Some(count)));
        free.places += places.len();
        if let Some(hands) = &mut free.hands[route] {
            hands.reserve(places.len());
        }
        free.take_tokens(route, places.len());
        drop(free);
        let slots = places
            .into_iter()
            .map(|place| slot(Holds::Place(Some(place))));
        slots.collect()
    }

    /// A lease that was handed out runs for so long from now.
    pub(crate) fn extended(&self, lease: &Lease, length: Duration) {
        let mut free = self.lock();
        free.hands
            .iter_mut()
            .flatten()
            .for_each(|hands| hands.extend(lease, length));
    }

    /// A lease that was handed out has ended.
    pub(crate) fn ended(&self, lease: &Lease) {
        let mut free = self.lock();
        free.hands
            .iter_mut()
            .flatten()
            .for_each(|hands| hands.release(lease));
        drop(free);
        self.freed.notify_one();
    }

    /// Returns when a route that could start nothing more, because of its rate or because of
    /// leases that were not ended, can again.
    pub(crate) async fn replenished(&self) {
        let next = {
            let (mut free, now) = (self.lock(), Instant::now());
            let free = &mut *free;
            let rates = free.rates.iter_mut().flatten().filter_map(|rate| {
                rate.tokens(now);
                rate.next()
            });
            let hands = free.hands.iter_mut().flatten().filter_map(|hands| {
                hands.room(now);
                hands.next()
            });
            rates.chain(hands).min()
        };
        match next {
            Some(at) => sleep_until(at.into()).await,
            None => std::future::pending().await,
        }
    }

    /// Whether no slot is taken, and nothing is to be settled.
    pub(crate) fn all_free(&self) -> bool {
        let free = self.lock();
        free.all == free.total && free.unsettled == 0 && free.places == 0
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

    /// A job has it.
    pub(crate) fn begin(&mut self) {
        self.begun = true;
    }

    /// Those who pulled are given the job, and its lease runs for so long from now.
    pub(crate) fn hand_out(&self, lease: Lease, length: Duration) {
        if let Some(hands) = &mut self.slots.lock().hands[self.route] {
            hands.hold(lease, Instant::now() + length);
        }
    }

    /// They did not take it.
    pub(crate) fn take_back(&self, lease: &Lease) {
        self.slots.ended(lease);
    }

    /// The hand that the job goes to, if it goes to one who pulls.
    pub(crate) fn take_place(&mut self) -> Option<Place> {
        match &mut self.holds {
            Holds::Place(place) => place.take(),
            _ => None,
        }
    }

    /// Gives the slot back while its job is still to be settled, so that the next one need
    /// not wait for that; unless too many jobs are to be settled already. Then Redis must be
    /// away, and memory is bounded.
    pub(crate) fn handler_ended(&mut self) {
        let mut free = self.slots.lock();
        if matches!(self.holds, Holds::Run) && free.unsettled < free.total.max(UNSETTLED) {
            free.unsettled += 1;
            free.give_back(self.route);
            self.holds = Holds::Nothing;
            drop(free);
            self.slots.freed.notify_one();
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // The place first: whoever is told of a free slot looks for it at once.
        drop(self.take_place());
        let mut free = self.slots.lock();
        if !self.begun
            && let Some(rate) = &mut free.rates[self.route]
        {
            rate.give_back();
        }
        match self.holds {
            Holds::Run => free.give_back(self.route),
            Holds::Nothing => free.unsettled -= 1,
            Holds::Place(_) => {
                free.places -= 1;
                if let Some(hands) = &mut free.hands[self.route] {
                    hands.give_back();
                }
            }
        }
        drop(free);
        self.slots.freed.notify_one();
    }
}

impl Free {
    /// How many jobs of a route could start now; where they are pulled, of those that are wanted.
    fn room(&mut self, route: usize, wanted: Option<usize>) -> usize {
        let now = Instant::now();
        let room = wanted.unwrap_or(self.all.min(self.routes[route]));
        let rate = self.rates[route].as_mut().map(|rate| rate.tokens(now));
        let hands = self.hands[route].as_mut().map(|hands| hands.room(now));
        [rate, hands].into_iter().flatten().fold(room, usize::min)
    }

    fn take_tokens(&mut self, route: usize, count: usize) {
        if let Some(rate) = &mut self.rates[route] {
            rate.take(count);
        }
    }

    fn give_back(&mut self, route: usize) {
        self.all += 1;
        self.routes[route] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Handler, Router};

    fn slots(all: usize, limits: &[Option<usize>]) -> Arc<Slots> {
        let mut router: Router = Router::new();
        for (place, limit) in limits.iter().enumerate() {
            let pattern = format!("app1:trans:kind{place}:*");
            router = match limit {
                Some(limit) => router.route(&pattern, (async || {}).concurrency(*limit)),
                None => router.route(&pattern, async || {}),
            };
        }
        Slots::new(all, &router.finish().unwrap().routes)
    }

    fn kind() -> Kind {
        Kind::parse("app1:trans:kind").unwrap()
    }

    #[test]
    fn a_route_takes_no_more_than_its_limit_and_leaves_the_rest_to_others() {
        let slots = slots(10, &[Some(3), None]);
        let first = slots.reserve(0, &kind(), 5);
        assert_eq!((first.len(), slots.free(0, &kind())), (3, 0));
        let second = slots.reserve(1, &kind(), 100);
        assert_eq!(second.len(), 7);
        drop(first);
        assert_eq!((slots.free(0, &kind()), slots.free(1, &kind())), (3, 3));
        drop(second);
        assert!(slots.all_free());
    }

    #[test]
    fn not_all_jobs_may_wait_to_be_settled_without_a_slot() {
        let slots = slots(2, &[None]);
        let mut jobs = Vec::new();
        while jobs.len() < UNSETTLED {
            jobs.extend(slots.reserve(0, &kind(), 2));
            jobs.iter_mut().for_each(Slot::handler_ended);
        }
        jobs.extend(slots.reserve(0, &kind(), 2));
        assert_eq!(jobs.len(), UNSETTLED + 2);
        jobs[UNSETTLED].handler_ended();
        assert_eq!(slots.free(0, &kind()), 0);
        jobs.remove(0);
        jobs[UNSETTLED - 1].handler_ended();
        assert_eq!(slots.free(0, &kind()), 1);
        assert!(!slots.all_free());
        jobs.clear();
        assert!(slots.all_free());
    }
}
