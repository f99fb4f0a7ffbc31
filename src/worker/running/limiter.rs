//! How many jobs of one route may run at the same time, and may start in a time.

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::external::ExternalLeases;
use super::rate::Bucket;
use crate::lease::Lease;
use crate::router::RouteEntry;

/// What every job of a route passes.
pub(super) struct RouteLimiter(Mutex<Count>);

/// How many have passed, and how many may.
pub(super) struct Count {
    limit: usize,
    running: usize,
    /// How many may start in a time, if there is a limit.
    rate: Option<Bucket>,
    /// What is in the hands of others, if that is limited.
    external: Option<ExternalLeases>,
}

impl RouteLimiter {
    /// A route without a limit has that of the worker, which is `all`.
    pub(super) fn new(all: usize, route: &RouteEntry) -> Self {
        RouteLimiter(Mutex::new(Count {
            limit: limit_of_runs(all, route),
            running: 0,
            rate: route.rate.map(|rate| Bucket::new(rate, Instant::now())),
            external: limit_of_hands(route).map(ExternalLeases::new),
        }))
    }

    /// Takes over the limits of this route, unless it counts something else.
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

    pub(super) fn lock(&self) -> MutexGuard<'_, Count> {
        self.0.lock().expect("no panic while held")
    }
}

/// What is pulled runs elsewhere.
fn limit_of_runs(all: usize, route: &RouteEntry) -> usize {
    match route.pull {
        None => route.concurrency.unwrap_or(all),
        Some(_) => usize::MAX,
    }
}

fn limit_of_hands(route: &RouteEntry) -> Option<usize> {
    let leaves = route.pull.is_some() || route.hands_over;
    route.concurrency.filter(|_| leaves)
}

impl Count {
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// How many of so many could start now.
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

    pub(super) fn take(&mut self, count: usize) {
        self.running += count;
        if let Some(rate) = &mut self.rate {
            rate.take(count);
        }
        if let Some(external) = &mut self.external {
            external.reserve(count);
        }
    }

    /// One that was taken is free again.
    pub(super) fn give_back(&mut self) {
        self.running -= 1;
        if let Some(external) = &mut self.external {
            external.give_back();
        }
    }

    /// One that was taken has started nothing.
    pub(super) fn give_back_token(&mut self) {
        if let Some(rate) = &mut self.rate {
            rate.give_back();
        }
    }

    /// A job was handed out.
    pub(super) fn hold(&mut self, lease: Lease, until: Instant) {
        if let Some(external) = &mut self.external {
            external.hold(lease, until);
        }
    }

    /// The lease of one that was handed out here runs for so long from now.
    pub(super) fn extend(&mut self, lease: &Lease, length: Duration) {
        if let Some(external) = &mut self.external {
            external.extend(lease, length);
        }
    }

    /// The lease of one that was handed out here runs until then.
    pub(super) fn run_out(&mut self, lease: &Lease, until: Instant) {
        if let Some(external) = &mut self.external {
            external.run_out(lease, until);
        }
    }

    /// The lease of one that was handed out here has ended.
    pub(super) fn release(&mut self, lease: &Lease) {
        if let Some(external) = &mut self.external {
            external.release(lease);
        }
    }

    /// When there will be room again, if its rate or what is in other hands leaves none.
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
