//! [`Counts`]: the number of jobs in each state, for any prefix.

use std::sync::Arc;
use std::time::Duration;

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
    /// The servers with overdue jobs, or the nodes of a cluster, by address. Empty if the prefix
    /// extends into the id.
    pub late: Vec<LateServer>,
    /// The shards that were not counted, because one of several servers was away.
    pub unseen: Vec<Unseen>,
}

/// A server with overdue jobs; from [`Counts::late`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LateServer {
    /// Its address, as `RedisServer` has it.
    pub address: String,
    /// The overdue jobs on it.
    pub overdue: u64,
    /// The time since the oldest of them fell due.
    pub overdue_for: Duration,
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
                if let Some((more, lag)) = view.see(ledger, of_ledger).await? {
                    counts.add(&more);
                    if let Some(lag) = lag {
                        let address = client.store().address_of_ledger(ledger);
                        counts.add_late(address, more.overdue, lag);
                    }
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

    /// Adds the overdue jobs of a ledger to those of its server.
    fn add_late(&mut self, address: String, overdue: u64, overdue_for: Duration) {
        match self.late.binary_search_by(|one| one.address.cmp(&address)) {
            Ok(at) => {
                let server = &mut self.late[at];
                server.overdue += overdue;
                server.overdue_for = server.overdue_for.max(overdue_for);
            }
            Err(at) => {
                let server = LateServer {
                    address,
                    overdue,
                    overdue_for,
                };
                self.late.insert(at, server);
            }
        }
    }

    /// Counts one ledger, with the time since its oldest overdue job fell due. `of_id` is the part
    /// of the prefix that extends into the id.
    async fn of_ledger(
        client: &Client,
        ledger: &Arc<Ledger>,
        of_id: &str,
    ) -> Result<(Self, Option<Duration>)> {
        let (mut counts, mut lag) = (Counts::default(), None);
        if of_id.is_empty() {
            let tally = ledger.tally_due(client.deadline()).await?;
            counts.pending = tally.pending;
            counts.overdue = tally.overdue;
            lag = Some(tally.overdue_for).filter(|_| tally.overdue > 0);
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
        Ok((counts, lag))
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
