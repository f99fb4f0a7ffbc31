//! The slots of one set of routes. The claimer reserves a slot for each job before it claims the
//! job. On a route whose jobs are pulled, each job that a client asks for is a slot.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::sleep_until;

use super::limiter::RouteLimiter;
use super::limits::Limits;
use crate::handler::{Pull, PullPermit};
use crate::key::Kind;
use crate::lease::Lease;
use crate::router::Routes;

/// Claims of up to this many slots are not halved: a smaller claim costs Redis more for each job.
const FEW: usize = 64;

/// The slots of one set of routes. The claimer reserves slots first, so that no claimed job has to
/// wait for one.
pub(crate) struct Slots {
    /// Shared with the engines before and after this one.
    limits: Arc<Limits>,
    /// The limiter of each route.
    gates: Vec<Arc<RouteLimiter>>,
    /// For each route whose jobs are pulled: the source of its places.
    pulls: Vec<Option<Pull>>,
    /// Number of slots that are taken, or whose job is still to be settled.
    taken: AtomicUsize,
    /// Notified when `taken` drops to 0.
    all_free: Notify,
}

/// The right to run one job of a route; dropping it gives it back.
pub(crate) struct Slot {
    slots: Arc<Slots>,
    route: usize,
    holds: Holds,
    /// Whether a job has taken the slot.
    begun: bool,
}

/// The place that a slot occupies.
enum Holds {
    /// A place among the running jobs.
    Run,
    /// None any more: it was given back before the job was settled.
    Nothing,
    /// The place of a client that pulls; `None` once a job was delivered to it.
    Place(Option<PullPermit>),
}

impl Slots {
    /// The slots of these routes. The counts of `limits` carry over from the routes before.
    pub(crate) fn new(limits: &Arc<Limits>, routes: &Routes) -> Arc<Self> {
        Arc::new(Slots {
            limits: limits.clone(),
            gates: limits.gates(routes),
            pulls: routes
                .routes
                .iter()
                .map(|route| route.pull.clone())
                .collect(),
            taken: AtomicUsize::new(0),
            all_free: Notify::new(),
        })
    }

    /// How many jobs of this route and kind can start now.
    pub(crate) fn free(&self, route: usize, kind: &Kind) -> usize {
        let wanted = self.pulls[route].as_ref().map(|pull| pull.places(kind));
        self.room(route, wanted)
    }

    /// Whether a job of this route, of any kind, can start now.
    pub(crate) fn has_room(&self, route: usize) -> bool {
        let wanted = self.pulls[route]
            .as_ref()
            .map(|pull| usize::from(pull.has_places()));
        self.room(route, wanted) > 0
    }

    /// How many jobs of this route can start now, as far as the slots decide; 0 if its clients do.
    pub(crate) fn vacant(&self, route: usize) -> usize {
        match self.pulls[route] {
            Some(_) => 0,
            None => self.room(route, None),
        }
    }

    /// How many of `wanted` jobs can start on a route; without `wanted`, as many as the worker has
    /// room for.
    fn room(&self, route: usize, wanted: Option<usize>) -> usize {
        let room = wanted.unwrap_or_else(|| self.limits.lock().free());
        self.gates[route].lock().room(room)
    }

    /// How many slots of this route one claim may take. Half of a large number, so that Redis
    /// carries out one claim while the jobs of another run.
    pub(crate) fn at_once(&self, route: usize) -> usize {
        if self.pulls[route].is_some() {
            return usize::MAX;
        }
        let limit = self.gates[route].lock().limit();
        (self.limits.total().min(limit) / 2).max(FEW)
    }

    /// Takes up to `count` slots of this route, for jobs of this kind. May return fewer, or none.
    pub(crate) fn reserve(self: &Arc<Self>, route: usize, kind: &Kind, count: usize) -> Vec<Slot> {
        let slot = |holds| {
            self.taken.fetch_add(1, Ordering::AcqRel);
            Slot {
                slots: self.clone(),
                route,
                holds,
                begun: false,
            }
        };
        let Some(pull) = &self.pulls[route] else {
            let mut all = self.limits.lock();
            let mut gate = self.gates[route].lock();
            let taken = gate.room(count.min(all.free()));
            all.running += taken;
            gate.take(taken);
            drop((all, gate));
            let slots = std::iter::repeat_with(|| slot(Holds::Run));
            return slots.take(taken).collect();
        };
        let mut gate = self.gates[route].lock();
        let places = pull.reserve(kind, gate.room(count));
        gate.take(places.len());
        drop(gate);
        let slots = places
            .into_iter()
            .map(|place| slot(Holds::Place(Some(place))));
        slots.collect()
    }

    /// Takes in that a handed-out lease was extended to this length from now.
    pub(crate) fn extended(&self, lease: &Lease, length: Duration) {
        for gate in &self.gates {
            gate.lock().extend(lease, length);
        }
    }

    /// Takes in that a handed-out lease has ended.
    pub(crate) fn ended(&self, lease: &Lease) {
        for gate in &self.gates {
            gate.lock().release(lease);
        }
        self.limits.tell_freed();
    }

    /// Returns when a route that its rate or the leases of others had stopped can start jobs again.
    /// Pending for ever if there is none.
    pub(crate) async fn replenished(&self) {
        let now = Instant::now();
        let gates = self.gates.iter();
        match gates.filter_map(|gate| gate.lock().next(now)).min() {
            Some(at) => sleep_until(at.into()).await,
            None => std::future::pending().await,
        }
    }

    /// Returns when no slot is taken, and no job is to be settled. For one waiter at a time.
    pub(crate) async fn all_free(&self) {
        while self.taken.load(Ordering::Acquire) > 0 {
            self.all_free.notified().await;
        }
    }

    /// Returns when a slot has become free since the last call.
    pub(crate) async fn freed(&self) {
        self.limits.freed().await;
    }

    /// Call it when these routes reserve nothing more: it wakes the engine of the routes that
    /// follow, for slots that became free meanwhile.
    pub(crate) fn retire(&self) {
        self.limits.tell_freed();
    }
}

impl Slot {
    /// The index of its route.
    pub(crate) fn route(&self) -> usize {
        self.route
    }

    /// Marks the slot as taken by a job, so that its rate token is spent.
    pub(crate) fn begin(&mut self) {
        self.begun = true;
    }

    /// Counts the job as leased to a client or target, for this length from now.
    pub(crate) fn hand_out(&self, lease: Lease, length: Duration) {
        self.gate().lock().hold(lease, Instant::now() + length);
    }

    /// Takes in that the receiver accepted the job: its lease runs for this length from now, unless
    /// it has ended already.
    pub(crate) fn hand_on(&self, lease: &Lease, length: Duration) {
        self.gate().lock().run_out(lease, Instant::now() + length);
    }

    /// Takes in that the receiver did not accept the job.
    pub(crate) fn take_back(&self, lease: &Lease) {
        self.slots.ended(lease);
    }

    /// The place of the client that pulls the job. `None` on other routes, and after the first
    /// call.
    pub(crate) fn take_place(&mut self) -> Option<PullPermit> {
        match &mut self.holds {
            Holds::Place(place) => place.take(),
            _ => None,
        }
    }

    /// Frees the slot although its job is still to be settled, so that the next job need not wait
    /// for that. Does nothing if too many jobs are to be settled already: then Redis must be away,
    /// and memory stays bounded.
    pub(crate) fn handler_ended(&mut self) {
        if !matches!(self.holds, Holds::Run) {
            return;
        }
        let mut all = self.slots.limits.lock();
        if all.may_leave_unsettled() {
            all.running -= 1;
            all.unsettled += 1;
            self.gate().lock().give_back();
            self.holds = Holds::Nothing;
            drop(all);
            self.slots.limits.tell_freed();
        }
    }

    /// The limiter of its route.
    fn gate(&self) -> &RouteLimiter {
        &self.slots.gates[self.route]
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        // The place first: the claimer looks for it as soon as it hears of a free slot.
        drop(self.take_place());
        let mut all = self.slots.limits.lock();
        let mut gate = self.gate().lock();
        if !self.begun {
            gate.give_back_token();
        }
        match self.holds {
            Holds::Run => {
                all.running -= 1;
                gate.give_back();
            }
            Holds::Nothing => all.unsettled -= 1,
            Holds::Place(_) => gate.give_back(),
        }
        drop((all, gate));
        self.slots.limits.tell_freed();
        if self.slots.taken.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.slots.all_free.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::running::limits::UNSETTLED;
    use crate::{Handler, Router};

    fn routes(limits: &[Option<usize>]) -> Routes {
        let mut router: Router = Router::new();
        for (place, limit) in limits.iter().enumerate() {
            let pattern = format!("app1:trans:kind{place}:*");
            router = match limit {
                Some(limit) => router.route(&pattern, (async || {}).concurrency(*limit)),
                None => router.route(&pattern, async || {}),
            };
        }
        router.finish().unwrap()
    }

    fn slots(all: usize, limits: &[Option<usize>]) -> Arc<Slots> {
        Slots::new(&Limits::new(all), &routes(limits))
    }

    fn kind() -> Kind {
        Kind::parse("app1:trans:kind").unwrap()
    }

    fn is_all_free(slots: &Slots) -> bool {
        slots.taken.load(Ordering::Relaxed) == 0
    }

    #[test]
    fn a_route_takes_its_limit_and_leaves_the_rest_to_others() {
        let slots = slots(10, &[Some(3), None]);
        let first = slots.reserve(0, &kind(), 5);
        assert_eq!((first.len(), slots.free(0, &kind())), (3, 0));
        let second = slots.reserve(1, &kind(), 100);
        assert_eq!(second.len(), 7);
        drop(first);
        assert_eq!((slots.free(0, &kind()), slots.free(1, &kind())), (3, 3));
        drop(second);
        assert!(is_all_free(&slots));
    }

    #[test]
    fn new_routes_count_the_runs_of_the_old_ones() {
        let limits = Limits::new(10);
        let before = Slots::new(&limits, &routes(&[Some(3), Some(4), None]));
        let mut running = before.reserve(0, &kind(), 2);
        running.extend(before.reserve(1, &kind(), 4));
        let after = Slots::new(&limits, &routes(&[Some(3), Some(5)]));
        assert_eq!((after.free(0, &kind()), after.free(1, &kind())), (1, 1));
        let further = after.reserve(0, &kind(), 9);
        assert_eq!(further.len(), 1);
        drop(running);
        assert!(is_all_free(&before) && !is_all_free(&after));
        assert_eq!((after.free(0, &kind()), after.free(1, &kind())), (2, 5));
    }

    #[test]
    fn the_number_of_unsettled_jobs_without_a_slot_is_bounded() {
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
        assert!(!is_all_free(&slots));
        jobs.clear();
        assert!(is_all_free(&slots));
    }

    #[test]
    fn only_a_job_that_starts_uses_up_the_rate() {
        let router: Router = Router::new();
        let handler = (async || {}).rate(4, Duration::from_secs(3600));
        let routes = router.route("app1:trans:kind:*", handler).finish().unwrap();
        let slots = Slots::new(&Limits::new(10), &routes);
        let mut claimed = slots.reserve(0, &kind(), 10);
        assert_eq!((claimed.len(), slots.free(0, &kind())), (4, 0));
        // The claim found three jobs.
        claimed.iter_mut().take(3).for_each(Slot::begin);
        drop(claimed);
        assert_eq!(slots.free(0, &kind()), 1);
    }

    #[tokio::test]
    async fn the_claimer_hears_of_a_lease_that_has_ended() {
        let slots = slots(10, &[Some(1)]);
        let freed = async || {
            let patience = Duration::from_millis(10);
            tokio::time::timeout(patience, slots.freed()).await.is_ok()
        };
        let lease: Lease = "app1:trans:kind0:1@ab-1".parse().unwrap();
        for slot in slots.reserve(0, &kind(), 1) {
            slot.hand_out(lease.clone(), Duration::from_secs(3600));
        }
        assert!(freed().await, "the slot was dropped");
        assert!(!freed().await);
        slots.ended(&lease);
        assert!(freed().await);
    }
}
