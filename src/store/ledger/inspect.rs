//! What can be read from a ledger without changing it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::error::Result;
use crate::store::Ledger;
use crate::store::ledger::call::Called;
use crate::store::ledger::reply::unexpected;
use crate::store::ledger::script::{GET, STATS};
use crate::time::{UnixMs, UnixUs};

/// One job as the ledger sees it.
#[derive(Debug)]
pub(crate) enum Found {
    Absent,
    /// Not here any more, by an old place; or the ledger goes by another layout.
    Elsewhere,
    Pending {
        due: UnixMs,
        record: Vec<u8>,
    },
    Leased {
        now: UnixUs,
        deadline: UnixMs,
        /// `token claims fence due flag`.
        lease: String,
        record: Vec<u8>,
        /// `due record`, or nothing.
        successor: Vec<u8>,
    },
    Dead {
        died: UnixMs,
        number: u64,
        record: Vec<u8>,
    },
}

/// How many jobs a ledger holds in each state, and its counters, at one instant.
#[derive(Debug)]
pub(crate) struct Tally {
    pub(crate) pending: u64,
    pub(crate) overdue: u64,
    /// For how long the oldest of the pending has been due.
    pub(crate) overdue_for: Duration,
    pub(crate) leased: u64,
    pub(crate) successors: u64,
    pub(crate) dead: u64,
    pub(crate) records: u64,
    pub(crate) leases: u64,
    pub(crate) paused: bool,
    pub(crate) counters: BTreeMap<String, u64>,
    /// Those that are no numbers, which somebody else made of them.
    pub(crate) broken: BTreeMap<String, String>,
}

impl Tally {
    /// Whether there are jobs, or ever were.
    pub(crate) fn is_used(&self) -> bool {
        let present = self.pending + self.leased + self.successors + self.dead + self.records;
        let accepted = "accepted";
        present > 0
            || self.leases > 0
            || self.counters.contains_key(accepted)
            || self.broken.contains_key(accepted)
    }
}

impl Ledger {
    /// One job; `lua/get.lua`.
    pub(crate) async fn get(&self, id: &str, until: Instant) -> Result<Found> {
        let keys = self.names.of_reads();
        let mut cmd = self.call(&GET, &keys, [].into_iter());
        cmd.arg(id).arg(self.place().to_string());
        let Called { mut reply, .. } = self.eval(&GET, &cmd, until).await?;
        if self.is_stale(&mut reply)? {
            return Ok(Found::Elsewhere);
        }
        Ok(match reply.status.as_str() {
            "absent" => Found::Absent,
            "elsewhere" => Found::Elsewhere,
            "pending" => Found::Pending {
                due: UnixMs(reply.number()?),
                record: reply.bytes()?,
            },
            "leased" => Found::Leased {
                now: reply.now,
                deadline: UnixMs(reply.number()?),
                lease: reply.text()?,
                record: reply.bytes()?,
                successor: reply.bytes()?,
            },
            "dead" => Found::Dead {
                died: UnixMs(reply.number()?),
                number: reply.number()?,
                record: reply.bytes()?,
            },
            other => return Err(unexpected(format!("the state {other:?}"))),
        })
    }

    /// Counts and counters; `lua/stats.lua`.
    pub(crate) async fn tally(&self, until: Instant) -> Result<Tally> {
        let n = &self.names;
        let keys: [&str; 8] = [
            &n.due, &n.leased, &n.next, &n.dead, &n.stats, &n.calls, &n.shadow, &n.lease,
        ];
        let cmd = self.call(&STATS, &keys, [].into_iter());
        let Called { mut reply, .. } = self.eval(&STATS, &cmd, until).await?;
        let (pending, overdue) = (reply.number()?, reply.number()?);
        let oldest = reply.text()?;
        let mut tally = Tally {
            pending,
            overdue,
            overdue_for: overdue_for(&oldest, reply.now),
            leased: reply.number()?,
            successors: reply.number()?,
            dead: reply.number()?,
            records: reply.number()?,
            leases: reply.number()?,
            paused: reply.is_paused(),
            counters: BTreeMap::new(),
            broken: BTreeMap::new(),
        };
        while !reply.is_exhausted() {
            let name = reply.text()?;
            let value = reply.text()?;
            match value.parse() {
                Ok(number) => drop(tally.counters.insert(name, number)),
                Err(_) => drop(tally.broken.insert(name, value)),
            }
        }
        Ok(tally)
    }
}

/// How long before `now` this score is. There is none if nothing is pending; and one that is no
/// time was put there by hand.
fn overdue_for(score: &str, now: UnixUs) -> Duration {
    let due = score.parse().map(UnixMs);
    due.map_or(Duration::ZERO, |due| now.since(due))
}
