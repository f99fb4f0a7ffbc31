//! [`Counts`]: the number of jobs in each state, for any prefix.

use std::sync::Arc;

use super::scan::JobScan;
use crate::client::{Client, Selection, Unseen};
use crate::error::Result;
use crate::store::{Ledger, Sought};

/// The number of jobs in each state; from [`Client::count`] and [`Selection::count`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Jobs that wait for their due time, or for a worker; retries included.
    pub pending: u64,
    /// Pending jobs whose due time has passed.
    pub overdue: u64,
    /// Jobs that a worker runs.
    pub running: u64,
    /// Jobs whose lease has ended before their worker settled or renewed it. Another worker is
    /// about to take over.
    pub lapsed: u64,
    /// Dead letters.
    pub dead: u64,
    /// The shards that were not counted, because one of several servers was away.
    pub unseen: Vec<Unseen>,
}

impl Client {
    /// Counts the jobs whose keys begin with this text, in each state: short for
    /// [`prefix(text)`](Client::prefix)`.`[`count()`](Selection::count).
    ///
    /// # Errors
    /// If the prefix is not valid, Redis does not answer in time, or the due times of a shard are
    /// lost.
    pub async fn count(&self, prefix: &str) -> Result<Counts> {
        self.prefix(prefix).count().await
    }
}

impl Selection<'_> {
    /// Counts the jobs in each state. Kinds are counted one after the other, while work goes on, so
    /// the sum is not of one instant.
    ///
    /// A whole kind costs one call for each shard, and a scan of its leases. If the prefix extends
    /// into the id, every id of the kind is read, a thousand in each call.
    ///
    /// # Errors
    /// If the prefix is not valid, Redis does not answer in time, or the due times of a shard are
    /// lost.
    pub async fn count(self) -> Result<Counts> {
        let (client, prefix) = (self.client, self.prefix?);
        let mut counts = Counts::default();
        let (kinds, mut view) = client.kinds_in_view(&prefix, client.deadline()).await?;
        for kind in kinds {
            for shard_client in client.kind_shards_to_look(kind.as_str())?.all() {
                let ledger = &shard_client.ledger;
                let of_ledger = Counts::of_ledger(client, ledger, prefix.of_id());
                if let Some(more) = view.see(ledger, of_ledger).await? {
                    counts.add(&more);
                }
            }
        }
        counts.unseen = view.unseen();
        Ok(counts)
    }
}

impl Counts {
    fn add(&mut self, more: &Counts) {
        self.pending += more.pending;
        self.overdue += more.overdue;
        self.running += more.running;
        self.lapsed += more.lapsed;
        self.dead += more.dead;
    }

    /// Counts one ledger. `of_id` is the part of the prefix that extends into the id.
    async fn of_ledger(client: &Client, ledger: &Arc<Ledger>, of_id: &str) -> Result<Self> {
        let mut counts = Counts::default();
        if of_id.is_empty() {
            let tally = ledger.tally_due(client.deadline()).await?;
            counts.pending = tally.pending;
            counts.overdue = tally.overdue;
            counts.dead = tally.dead;
        } else {
            let (pending, overdue) = count(client, ledger, "pending", of_id).await?;
            counts.pending = pending;
            counts.overdue = overdue;
            counts.dead = count(client, ledger, "dead", of_id).await?.0;
        }
        let (leased, lapsed) = count(client, ledger, "leased", of_id).await?;
        counts.running = leased - lapsed;
        counts.lapsed = lapsed;
        Ok(counts)
    }
}

/// The number of jobs in a state, and how many of them are past their time.
async fn count(
    client: &Client,
    ledger: &Arc<Ledger>,
    state: &'static str,
    of_id: &str,
) -> Result<(u64, u64)> {
    let mut walk = JobScan::through(client, ledger, Sought::all_of(state, of_id)).await?;
    let (mut all, mut past) = (0, 0);
    while let Some(slice) = walk.next().await? {
        let now = slice.now.floor_ms();
        all += slice.items.len() as u64;
        past += slice.items.iter().filter(|seen| seen.score <= now).count() as u64;
    }
    Ok((all, past))
}
