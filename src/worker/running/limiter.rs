//! The limiter of one route: how many of its jobs may run at the same time, how many may start in a
//! time, and how many may be leased to others.

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::external::ExternalLeases;
use super::rate::Bucket;
use crate::lease::Lease;
use crate::router::RouteEntry;

/// The limits of one route, and the current counts. Shared between the engines that serve the same
/// route.
pub(super) struct RouteLimiter(Mutex<Count>);

/// The counts of one route, and their limits.
pub(super) struct Count {
    /// How many jobs may run at the same time.
    limit: usize,
    /// Number of slots that are taken and not given back.
    running: usize,
    /// The limit of starts in a time, if there is one.
    rate: Option<Bucket>,
    /// The leases that others hold, if their number is limited.
    external: Option<ExternalLeases>,
}

impl RouteLimiter {
    /// The limiter of this route. `all` is the limit of the worker, for a route without its own.
    pub(super) fn new(all: usize, route: &RouteEntry) -> Self {
        RouteLimiter(Mutex::new(Count {
            limit: limit_of_runs(all, route),
            running: 0,
            rate: route.rate.map(|rate| Bucket::new(rate, Instant::now())),
            external: limit_of_hands(route).map(ExternalLeases::new),
        }))
    }

    /// Takes over the limits of this route, and keeps the counts. Returns `false`, and changes
    /// nothing, if only one of the two routes limits the leases of others.
    pub(super) fn suit(&self, all: usize, route: &RouteEntry) -> bool {
        let mut count = self.lock();
        match (&mut count.external, limit_of_hands(route)) {
            (None, None) => {}
            (Some(external), Some(limit)) => external.limit_to(limit),
            _ => return false,
        }
        count.limit = limit_of_runs(all, route);
        if count.rate.as_ref().map(Bucket::rate) != route.rate {
            count.rate = route.rate.map(|rate| Bucket::new(rate, Instant::now()));
        }
        true
    }

    /// Locks the counts. Lock the counts of the worker first if both are needed.
    pub(super) fn lock(&self) -> MutexGuard<'_, Count> {
        self.0.lock().expect("no panic while held")
    }
}

/// The limit of running jobs. Pulled jobs run elsewhere, so their routes have none.
fn limit_of_runs(all: usize, route: &RouteEntry) -> usize {
    match route.pull {
        None => route.concurrency.unwrap_or(all),
        Some(_) => usize::MAX,
    }
}

/// The limit of leases that others hold, on a route that hands its jobs to others.
fn limit_of_hands(route: &RouteEntry) -> Option<usize> {
    route.concurrency.filter(|_| route.hands_on())
}

impl Count {
    /// How many jobs of the route may run at the same time.
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// How many of `wanted` jobs can start now, by all limits of the route.
    pub(super) fn room(&mut self, wanted: usize) -> usize {
        let now = Instant::now();
        let room = wanted.min(self.limit.saturating_sub(self.running));
        let rate = self.rate.as_mut().map(|rate| rate.tokens(now));
        let external = self.external.as_mut().map(|external| external.room(now));
        [rate, external]
            .into_iter()
            .flatten()
            .fold(room, usize::min)
    }

    /// Counts `count` more jobs. Call it with at most [`room`](Self::room).
    pub(super) fn take(&mut self, count: usize) {
        self.running += count;
        if let Some(rate) = &mut self.rate {
            rate.take(count);
        }
        if let Some(external) = &mut self.external {
            external.reserve(count);
        }
    }

    /// Counts one job less: it ended, or never started.
    pub(super) fn give_back(&mut self) {
        self.running -= 1;
        if let Some(external) = &mut self.external {
            external.give_back();
        }
    }

    /// Returns a token of the rate, for a taken slot that started no job.
    pub(super) fn give_back_token(&mut self) {
        if let Some(rate) = &mut self.rate {
            rate.give_back();
        }
    }

    /// Counts a lease that was handed out, until this time.
    pub(super) fn hold(&mut self, lease: Lease, until: Instant) {
        if let Some(external) = &mut self.external {
            external.hold(lease, until);
        }
    }

    /// Extends the lease of a job that was handed out here to this length from now. Unknown leases
    /// are ignored.
    pub(super) fn extend(&mut self, lease: &Lease, length: Duration) {
        if let Some(external) = &mut self.external {
            external.extend(lease, length);
        }
    }

    /// Sets the end of the lease of a job that was handed out here. Unknown leases are ignored.
    pub(super) fn run_out(&mut self, lease: &Lease, until: Instant) {
        if let Some(external) = &mut self.external {
            external.run_out(lease, until);
        }
    }

    /// Stops counting a lease that has ended.
    pub(super) fn release(&mut self, lease: &Lease) {
        if let Some(external) = &mut self.external {
            external.release(lease);
        }
    }

    /// When there is room again, if the rate or the leases of others leave none now.
    pub(super) fn next(&mut self, now: Instant) -> Option<Instant> {
        let rate = self.rate.as_mut().and_then(|rate| {
            rate.tokens(now);
            rate.next()
        });
        let external = self.external.as_mut().and_then(|external| {
            external.room(now);
            external.next()
        });
        rate.into_iter().chain(external).min()
    }
}
