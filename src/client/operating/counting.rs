//! How many jobs there are in each state.

use std::sync::Arc;

use super::scan::JobScan;
use crate::client::{Client, Selection, Unseen};
use crate::error::Result;
use crate::store::{Ledger, Sought};

/// How many jobs are in each state; from [`Client::count`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Waiting to fall due, those that wait to be retried included.
    pub pending: u64,
    /// Those of the pending that are due.
    pub overdue: u64,
    /// Running.
    pub running: u64,
    /// Claimed by a worker that has not been heard of since its lease ended. Another one is about
    /// to take them over.
    pub lapsed: u64,
    /// Dead letters.
    pub dead: u64,
    /// What was not counted, because one of several servers was away.
    pub unseen: Vec<Unseen>,
}

impl Client {
    /// How many jobs whose keys begin so are in each state: short for
    /// [`prefix(text)`](Client::prefix)`.`[`count()`](Selection::count).
    ///
    /// # Errors
    /// If the prefix is not valid or Redis does not answer in time.
    pub async fn count(&self, prefix: &str) -> Result<Counts> {
        self.prefix(prefix).count().await
    }
}

impl Selection<'_> {
    /// How many jobs are in each state. Kinds are counted one after the other, while work goes
    /// on.
    ///
    /// Whole kinds cost little; where the prefix reaches into the id, every id of the kind is
    /// looked at, a thousand in each call.
    ///
    /// # Errors
    /// If the prefix is not valid or Redis does not answer in time.
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

    async fn of_ledger(client: &Client, ledger: &Arc<Ledger>, of_id: &str) -> Result<Self> {
        let mut counts = Counts::default();
        if of_id.is_empty() {
            let tally = ledger.tally(client.deadline()).await?;
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

/// How many there are, and how many of them are past their time.
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
