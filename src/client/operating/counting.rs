//! How many jobs there are in each state.

use std::sync::Arc;

use super::walk::Walk;
use crate::client::{Client, Selection};
use crate::error::Result;
use crate::key::Kind;
use crate::store::{Ledger, Sought};

/// How many jobs are in each state; from [`Client::count`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
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
        for kind in client.kinds_of(&prefix).await? {
            counts.add(client, &kind, prefix.of_id()).await?;
        }
        Ok(counts)
    }
}

impl Counts {
    async fn add(&mut self, client: &Client, kind: &Kind, of_id: &str) -> Result<()> {
        for book in client.shelf(kind.as_str())?.all() {
            self.add_ledger(client, &book.ledger, of_id).await?;
        }
        Ok(())
    }

    async fn add_ledger(
        &mut self,
        client: &Client,
        ledger: &Arc<Ledger>,
        of_id: &str,
    ) -> Result<()> {
        if of_id.is_empty() {
            let tally = ledger.tally(client.deadline()).await?;
            self.pending += tally.pending;
            self.overdue += tally.overdue;
            self.dead += tally.dead;
        } else {
            let (pending, overdue) = count(client, ledger, "pending", of_id).await?;
            self.pending += pending;
            self.overdue += overdue;
            self.dead += count(client, ledger, "dead", of_id).await?.0;
        }
        let (leased, lapsed) = count(client, ledger, "leased", of_id).await?;
        self.running += leased - lapsed;
        self.lapsed += lapsed;
        Ok(())
    }
}

/// How many there are, and how many of them are past their time.
async fn count(
    client: &Client,
    ledger: &Arc<Ledger>,
    state: &'static str,
    of_id: &str,
) -> Result<(u64, u64)> {
    let mut walk = Walk::through(client, ledger, Sought::all_of(state, of_id)).await?;
    let (mut all, mut past) = (0, 0);
    while let Some(slice) = walk.next().await? {
        let now = slice.now.floor_ms();
        all += slice.items.len() as u64;
        past += slice.items.iter().filter(|seen| seen.score <= now).count() as u64;
    }
    Ok((all, past))
}
