//! Numbers that say which of several jobs came last, where no ledger has them all.
//!
//! Each set of jobs has a few counters, and the id says which of them is meant: one place for all
//! jobs that mean the same, whatever their kinds, and a node or server that is away keeps only a
//! part of the ids waiting. They are as many for ever, so nothing has to be forgotten. No clock is
//! asked. What a fail-over makes a counter forget, whoever meets a higher number makes it skip.

use std::time::Instant;

use super::{Store, from_value};
use crate::error::Result;
use crate::shards::shard_of;

/// How many counters each set of jobs has.
const PLACES: u16 = 16;

impl Store {
    /// The next order number of this id in a set of jobs, `app:module`. It is higher than those
    /// that were given out before; and than `met`, if that is not `last`, which was given out to
    /// the same caller.
    pub(crate) async fn next_order(
        &self,
        set: &str,
        id: &str,
        last: u64,
        met: u64,
        until: Instant,
    ) -> Result<u64> {
        let place = shard_of(id, PLACES);
        let parts = self.parts();
        let server = parts[usize::from(place) % parts.len()];
        let mut next = redis::cmd("HINCRBY");
        next.arg(self.names.order(set, place)).arg("last");
        // The counter is at `last` or beyond.
        next.arg(met.saturating_sub(last) + 1);
        from_value(server.command(&next, until).await?)
    }
}
