//! Numbers that say which of several jobs came last, where no ledger has them all.
//!
//! Each set of jobs has a few counters, and the id says which of them is meant: one place for all
//! jobs that mean the same, whatever their kinds, and a node or server that is away keeps only a
//! part of the ids waiting. They are as many for ever, so nothing has to be forgotten. No clock is
//! asked. What a fail-over makes a counter forget, whoever meets a higher number makes it skip.

use std::time::Instant;

use crate::error::Result;
use crate::shards::shard_of;
use crate::store::{Server, Store, from_value};

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
        let place = usize::from(shard_of(id, PLACES));
        let (server, key) = self.orders(set).nth(place).expect("a place is one of them");
        let mut next = redis::cmd("HINCRBY");
        next.arg(key).arg("last");
        // The counter is at `last` or beyond.
        next.arg(met.saturating_sub(last) + 1);
        from_value(server.command(&next, until).await?)
    }

    /// The counters of a set of jobs, each with the server that has it.
    pub(in crate::store) fn orders(&self, set: &str) -> impl Iterator<Item = (&Server, String)> {
        (0..PLACES).map(|place| {
            let server = &self.servers[usize::from(place) % self.servers.len()];
            (&**server, self.names.order(set, place))
        })
    }
}
