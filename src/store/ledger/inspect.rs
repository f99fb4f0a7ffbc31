//! Reads of a ledger that change nothing: one job in its present state, and the counts of all jobs.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Result};
use crate::store::Ledger;
use crate::store::ledger::call::Called;
use crate::store::ledger::reply::unexpected;
use crate::store::ledger::script::{GET, STATS, UPCOMING};
use crate::time::{UnixMs, UnixUs};

/// The state of one job in a ledger.
#[derive(Debug)]
pub(crate) enum Found {
    /// There is no job and no dead letter of this name.
    Absent,
    /// The job belongs to another ledger by now, or the ledger has another layout.
    Elsewhere,
    /// The job waits until it is due.
    Pending {
        /// The due time; past if the job is overdue.
        due: UnixMs,
        /// The record: header, steps and payload.
        record: Vec<u8>,
    },
    /// A worker runs the job, or its lease has lapsed.
    Leased {
        /// The time of the server, to compare with the deadline.
        now: UnixUs,
        /// The end of the lease.
        deadline: UnixMs,
        /// The lease, `token claims fence due flag`.
        lease: String,
        /// The record of the run in progress.
        record: Vec<u8>,
        /// The successor, `due record`; empty if there is none.
        successor: Vec<u8>,
    },
    /// No job of this name is pending or leased; this is its latest dead letter.
    Dead {
        /// The time of death.
        died: UnixMs,
        /// The number of the dead letter.
        number: u64,
        /// The record, with the error in its header.
        record: Vec<u8>,
    },
}

/// The number of jobs of a ledger in each state, and its counters, all of one instant.
#[derive(Debug)]
pub(crate) struct Tally {
    /// Jobs that wait, due ones included.
    pub(crate) pending: u64,
    /// Pending jobs whose due time has come.
    pub(crate) overdue: u64,
    /// Jobs that fall due within a minute, an hour and a day.
    pub(crate) due_within: [u64; 3],
    /// The due time of the first pending job.
    pub(crate) next_due: Option<UnixMs>,
    /// How long the oldest pending job has been due; zero if none is due.
    pub(crate) overdue_for: Duration,
    /// Jobs with a lease.
    pub(crate) leased: u64,
    /// Jobs that wait for the run of a job of the same name.
    pub(crate) successors: u64,
    /// Dead letters.
    pub(crate) dead: u64,
    /// Stored records of pending and leased jobs.
    pub(crate) records: u64,
    /// Stored leases; equal to `leased` in a sound ledger.
    pub(crate) leases: u64,
    /// Overdue jobs that wait for the limit of the kind.
    pub(crate) held: u64,
    /// Whether the kind is paused.
    pub(crate) paused: bool,
    /// The counters by name, such as `accepted` and `done`.
    pub(crate) counters: BTreeMap<String, u64>,
    /// Counters that are not numbers, because another program has changed them.
    pub(crate) broken: BTreeMap<String, String>,
}

/// The number of pending jobs of a ledger that fall due in each of several spans of time.
#[derive(Debug)]
pub(crate) struct DueInSpans {
    /// All pending jobs.
    pub(crate) pending: u64,
    /// Jobs that are due now. They are in no span.
    pub(crate) overdue: u64,
    /// Other jobs that fall due before the first span.
    pub(crate) earlier: u64,
    /// The number for each span. The last spans are missing if no job is due in them or later.
    pub(crate) spans: Vec<u64>,
}

impl Tally {
    /// Whether the ledger has jobs, or ever had some.
    pub(crate) fn is_used(&self) -> bool {
        let present = self.pending + self.leased + self.successors + self.dead + self.records;
        let accepted = "accepted";
        present > 0
            || self.leases > 0
            || self.counters.contains_key(accepted)
            || self.broken.contains_key(accepted)
    }

    /// The number of records that have neither due time nor lease, if no job is pending; else 0. In
    /// a sound ledger each record belongs to a pending or leased job.
    fn without_due_time(&self) -> u64 {
        match self.pending {
            0 => self.records.saturating_sub(self.leased.max(self.leases)),
            // Single flaws are left to an audit.
            _ => 0,
        }
    }
}

impl Ledger {
    /// The state of one job; `lua/get.lua`.
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

    /// The number of pending jobs that fall due in each of `count` spans of this length, the first
    /// of which begins at `from`; `lua/upcoming.lua`.
    pub(crate) async fn upcoming(
        &self,
        now: UnixMs,
        from: UnixMs,
        step: Duration,
        count: usize,
        until: Instant,
    ) -> Result<DueInSpans> {
        let mut cmd = self.call(&UPCOMING, &[&self.names.due], [].into_iter());
        cmd.arg(now.0)
            .arg(from.0)
            .arg(step.as_millis() as u64)
            .arg(count);
        let Called { mut reply, .. } = self.eval(&UPCOMING, &cmd, until).await?;
        let mut due = DueInSpans {
            pending: reply.number()?,
            overdue: reply.number()?,
            earlier: reply.number()?,
            spans: Vec::new(),
        };
        while !reply.is_exhausted() {
            due.spans.push(reply.number()?);
        }
        Ok(due)
    }

    /// As [`tally`](Self::tally), for callers that tell how many jobs are pending.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Damaged`] if the due times are lost and there are jobs: 0 would hide them.
    pub(crate) async fn tally_due(&self, until: Instant) -> Result<Tally> {
        let tally = self.tally(until).await?;
        match tally.without_due_time() {
            0 => Ok(tally),
            jobs => Err(Error::new(
                ErrorKind::Damaged,
                format!(
                    "`{}` is empty, and there are records of {jobs} jobs: their due times are lost. \
                     `keyfall audit --repair` makes dead letters of these jobs, which can be \
                     requeued",
                    self.names.due
                ),
            )),
        }
    }

    /// The number of jobs in each state, and the counters; `lua/stats.lua`.
    pub(crate) async fn tally(&self, until: Instant) -> Result<Tally> {
        let n = &self.names;
        let keys: [&str; 8] = [
            &n.due, &n.leased, &n.next, &n.dead, &n.stats, &n.calls, &n.shadow, &n.lease,
        ];
        let cmd = self.call(&STATS, &keys, [].into_iter());
        let Called { mut reply, .. } = self.eval(&STATS, &cmd, until).await?;
        let (pending, overdue) = (reply.number()?, reply.number()?);
        let due_within = [reply.number()?, reply.number()?, reply.number()?];
        // Another program may have stored a score that is no time.
        let next_due = reply.text()?.parse().ok().map(UnixMs);
        let mut tally = Tally {
            pending,
            overdue,
            due_within,
            next_due,
            overdue_for: next_due.map_or(Duration::ZERO, |due| reply.now.since(due)),
            leased: reply.number()?,
            successors: reply.number()?,
            dead: reply.number()?,
            records: reply.number()?,
            leases: reply.number()?,
            held: reply.number()?,
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
