//! The leases that others hold: clients that pulled a job, and receivers that a target passed it
//! to. They are kept only for routes that limit the number of such leases.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::lease::Lease;

/// The leases of one route that others hold, and their limit.
#[derive(Debug)]
pub(super) struct ExternalLeases {
    /// How many leases and reservations there may be.
    limit: usize,
    /// Number of slots that are reserved for claims, or whose job is not settled or handed over
    /// yet.
    reserved: usize,
    /// End of each lease. After it, the job may have another owner or none.
    until: HashMap<Lease, Instant>,
}

impl ExternalLeases {
    /// No leases, with this limit.
    pub(super) fn new(limit: usize) -> Self {
        ExternalLeases {
            limit,
            reserved: 0,
            until: HashMap::new(),
        }
    }

    /// Changes the limit. Leases beyond a lower one stay.
    pub(super) fn limit_to(&mut self, limit: usize) {
        self.limit = limit;
    }

    /// How many more jobs may be handed out. Drops lapsed leases first if there is no room.
    pub(super) fn room(&mut self, now: Instant) -> usize {
        if self.is_full() {
            self.until.retain(|_, until| *until > now);
        }
        self.limit.saturating_sub(self.until.len() + self.reserved)
    }

    /// Whether leases and reservations reach the limit, lapsed leases included.
    fn is_full(&self) -> bool {
        self.until.len() + self.reserved >= self.limit
    }

    /// Reserves room for `count` jobs.
    pub(super) fn reserve(&mut self, count: usize) {
        self.reserved += count;
    }

    /// Ends one reservation: its job was handed out, or was not.
    pub(super) fn give_back(&mut self) {
        self.reserved -= 1;
    }

    /// Counts a lease, until this time.
    pub(super) fn hold(&mut self, lease: Lease, until: Instant) {
        self.until.insert(lease, until);
    }

    /// Extends a known lease to this length from now. Never shortens it.
    pub(super) fn extend(&mut self, lease: &Lease, length: Duration) {
        if let Some(until) = self.until.get_mut(lease) {
            *until = (*until).max(Instant::now() + length);
        }
    }

    /// Sets the end of a known lease.
    pub(super) fn run_out(&mut self, lease: &Lease, until: Instant) {
        if let Some(known) = self.until.get_mut(lease) {
            *known = until;
        }
    }

    /// Drops a lease that has ended.
    pub(super) fn release(&mut self, lease: &Lease) {
        self.until.remove(lease);
    }

    /// The end of the first lease to lapse, if there is no room.
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
