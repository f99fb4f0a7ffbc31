//! The leases that are in the hands of others: who pulled, or was given the job by a target. As
//! far as a limit needs to know.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::lease::Lease;

/// Those of one route that has a limit.
#[derive(Debug)]
pub(super) struct ExternalLeases {
    limit: usize,
    /// How many more were claimed, or are being claimed.
    reserved: usize,
    /// Until when each lease runs; then somebody else may have it, or nobody.
    until: HashMap<Lease, Instant>,
}

impl ExternalLeases {
    pub(super) fn new(limit: usize) -> Self {
        ExternalLeases {
            limit,
            reserved: 0,
            until: HashMap::new(),
        }
    }

    pub(super) fn limit_to(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// How many more jobs may be handed out.
    pub(super) fn room(&mut self, now: Instant) -> usize {
        if self.is_full() {
            self.until.retain(|_, until| *until > now);
        }
        self.limit.saturating_sub(self.until.len() + self.reserved)
    }

    fn is_full(&self) -> bool {
        self.until.len() + self.reserved >= self.limit
    }

    /// So many jobs are to be claimed.
    pub(super) fn reserve(&mut self, count: usize) {
        self.reserved += count;
    }

    /// One of them was handed out, or was not.
    pub(super) fn give_back(&mut self) {
        self.reserved -= 1;
    }

    /// A job was handed out, or its lease extended.
    pub(super) fn hold(&mut self, lease: Lease, until: Instant) {
        self.until.insert(lease, until);
    }

    /// Extends one that was handed out here.
    pub(super) fn extend(&mut self, lease: &Lease, length: Duration) {
        if let Some(until) = self.until.get_mut(lease) {
            *until = (*until).max(Instant::now() + length);
        }
    }

    /// One that was handed out here, and has not ended, runs until then.
    pub(super) fn run_out(&mut self, lease: &Lease, until: Instant) {
        if let Some(known) = self.until.get_mut(lease) {
            *known = until;
        }
    }

    /// A lease has ended.
    pub(super) fn release(&mut self, lease: &Lease) {
        self.until.remove(lease);
    }

    /// When there will be room again, if there is none.
    pub(super) fn next(&self) -> Option<Instant> {
        self.is_full().then(|| self.until.values().min().copied())?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_counts_until_it_is_released_or_lapses() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let lease = |id| format!("a:b:c:{id}@ab-1").parse::<Lease>().unwrap();
        let mut external = ExternalLeases::new(2);
        external.hold(lease(1), now + second);
        external.hold(lease(2), now + 3 * second);
        assert_eq!(
            (external.room(now), external.next()),
            (0, Some(now + second))
        );
        assert_eq!((external.room(now + second), external.next()), (1, None));
        external.hold(lease(3), now + 9 * second);
        external.release(&lease(2));
        assert_eq!(external.room(now), 1);
        external.reserve(1);
        assert_eq!(external.room(now), 0);
        external.give_back();
        assert_eq!(external.room(now), 1);
    }
}
