//! Order numbers: they say which of several jobs came last, where no single ledger has them all.
//!
//! Each set of jobs, `app:module`, has 16 counters, and the id of a job selects the counter. All
//! jobs with the same id use the same counter, whatever their kinds. A node or server that is away
//! holds up only a part of the ids. The number of counters is fixed, so nothing has to be cleaned
//! up. The numbers depend on no clock. A fail-over can set a counter back; a caller that meets a
//! higher number makes the counter skip it.

use std::time::Instant;

use crate::error::Result;
use crate::shards::shard_of;
use crate::store::{Server, Store, from_value};

/// The number of counters of each set of jobs. A change would move ids to other counters, which
/// know nothing of the numbers that were given out.
const PLACES: u16 = 16;

impl Store {
    /// The next order number of this id in a set of jobs, `app:module`.
    ///
    /// It is higher than all numbers that were given out before. `last` is the number that this
    /// caller was given last, or 0. `met` is a number that the caller has met in a ledger: if it is
    /// higher than `last`, the result is higher than `met`, too.
    ///
    /// # Errors
    ///
    /// If the server that has the counter does not answer before `until`. A repeat is harmless: it
    /// only skips a number.
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
        // The counter is at `last` or beyond, so this step takes it beyond `met`.
        next.arg(met.saturating_sub(last) + 1);
        from_value(server.command(&next, until).await?)
    }

    /// The counters of a set of jobs in the order of their places, each with its server and its
    /// key. Several servers have them in turn.
    pub(in crate::store) fn orders(&self, set: &str) -> impl Iterator<Item = (&Server, String)> {
        (0..PLACES).map(|place| {
            let server = &self.servers[usize::from(place) % self.servers.len()];
            (&**server, self.names.order(set, place))
        })
    }
}
