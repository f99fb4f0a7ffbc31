//! [`Stats`]: the counts and counters of one kind, and the proof that they balance.

use std::time::{Duration, SystemTime};

use crate::client::Unseen;
use crate::store::Tally;
use crate::time::UnixMs;

/// The number of jobs of a kind in each state, and counters of all jobs that came and left; from
/// [`Client::stats`](crate::Client::stats). Counters run since the kind was first used.
///
/// The values of a shard are read in one step, so the counters [balance](Stats::is_balanced):
/// accepted + requeued + moved in = pending + leased + successors + done + cancelled + replaced +
/// buried + skipped + moved out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Jobs that wait for their due time, or for a worker; retries included.
    pub pending: u64,
    /// Pending jobs whose due time has passed.
    pub overdue: u64,
    /// Overdue jobs that wait for the [limit](crate::Client::limit) of the kind: all of them, if it
    /// lets none start now, and else none.
    pub held: u64,
    /// The time since the due time of the oldest overdue job, by Redis' clock; zero if no job is
    /// overdue.
    pub overdue_for: Duration,
    /// The due time of the first pending job, which is past if the job is overdue.
    pub next_due: Option<SystemTime>,
    /// The pending jobs that fall due soon; overdue jobs are left out.
    pub due_within: DueWithin,
    /// Jobs with a lease: running, or lapsed and not yet taken over.
    pub leased: u64,
    /// Jobs that were scheduled during a run of the same key, and follow it.
    pub successors: u64,
    /// Dead letters that are kept now.
    pub dead: u64,
    /// Whether the kind is paused, so that none of its jobs starts. With several shards: whether
    /// any of them is.
    pub paused: bool,
    /// Jobs that were accepted: one for each call that created a job, replaced one, or added a
    /// successor.
    pub accepted: u64,
    /// Dead letters that were made pending again.
    pub requeued: u64,
    /// Jobs that ended with success.
    pub done: u64,
    /// Jobs that were cancelled.
    pub cancelled: u64,
    /// Jobs that a newer schedule replaced.
    pub replaced: u64,
    /// Jobs that ended as dead letters.
    pub buried: u64,
    /// Jobs that ended without a run, because they were [too late](crate::Late::Skip).
    pub skipped: u64,
    /// Dead letters that were deleted.
    pub deleted: u64,
    /// Dead letters that were removed by the limits of number and age.
    pub trimmed: u64,
    /// Attempts that failed and were retried.
    pub failed: u64,
    /// Runs that asked to run again without a failure.
    pub again: u64,
    /// Runs that were snoozed; such a run does not count as an attempt.
    pub snoozed: u64,
    /// Jobs that a stopping worker returned.
    pub returned: u64,
    /// Lapsed leases whose jobs another worker took over.
    pub lapsed: u64,
    /// Jobs that came from another shard during a reshard.
    pub moved_in: u64,
    /// Jobs that left for another shard during a reshard.
    pub moved_out: u64,
    /// Dead letters that came from another shard during a reshard.
    pub letters_in: u64,
    /// Dead letters that left for another shard during a reshard.
    pub letters_out: u64,
    /// The shards that were not counted, because one of several servers was away. The counted
    /// shards still [balance](Stats::is_balanced).
    pub unseen: Vec<Unseen>,
}

/// The number of pending jobs that fall due within a time from now; each number includes the one
/// before.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DueWithin {
    /// Within a minute.
    pub minute: u64,
    /// Within an hour.
    pub hour: u64,
    /// Within a day.
    pub day: u64,
}

impl Stats {
    /// Whether the kind has no job and no dead letter.
    pub fn is_empty(&self) -> bool {
        self.pending + self.leased + self.successors + self.dead == 0
    }

    /// Whether every job and every dead letter that ever came is present or accounted for.
    pub fn is_balanced(&self) -> bool {
        self.difference() == 0 && self.letters_difference() == 0
    }

    /// The number of jobs that came, minus the jobs that are present or accounted for. Zero, unless
    /// a foreign program writes to the ledger; negative if jobs are there that never came.
    pub fn difference(&self) -> i64 {
        let came = self.accepted + self.requeued + self.moved_in;
        let present = self.pending + self.leased + self.successors;
        let left = self.done
            + self.cancelled
            + self.replaced
            + self.buried
            + self.skipped
            + self.moved_out;
        came.wrapping_sub(present + left).cast_signed()
    }

    /// The same for dead letters: the number that came, minus the letters that are present or
    /// accounted for.
    pub fn letters_difference(&self) -> i64 {
        let came = self.buried + self.letters_in;
        let left = self.dead + self.requeued + self.deleted + self.trimmed + self.letters_out;
        came.wrapping_sub(left).cast_signed()
    }

    /// The value that balances the books, for a counter that is read as zero here; `None` for a
    /// counter outside of the books.
    pub(super) fn balanced_by(&self, counter: &str) -> Option<i64> {
        Some(match counter {
            "accepted" | "requeued" | "moved_in" => -self.difference(),
            "done" | "cancelled" | "replaced" | "unrun" | "moved_out" => self.difference(),
            "buried" | "letters_in" => -self.letters_difference(),
            "deleted" | "trimmed" | "letters_out" => self.letters_difference(),
            _ => return None,
        })
    }

    /// The sum over the shards of a kind.
    pub(crate) fn sum(tallies: impl IntoIterator<Item = Tally>) -> Self {
        let shards = tallies.into_iter().map(Stats::from);
        shards
            .reduce(|one, other| one.plus(&other))
            .unwrap_or_default()
    }

    /// The sum of two shards; of the oldest job, the older one.
    pub(super) fn plus(&self, other: &Stats) -> Stats {
        Stats {
            unseen: [&*self.unseen, &*other.unseen].concat(),
            pending: self.pending + other.pending,
            overdue: self.overdue + other.overdue,
            held: self.held + other.held,
            overdue_for: self.overdue_for.max(other.overdue_for),
            next_due: [self.next_due, other.next_due].into_iter().flatten().min(),
            due_within: DueWithin {
                minute: self.due_within.minute + other.due_within.minute,
                hour: self.due_within.hour + other.due_within.hour,
                day: self.due_within.day + other.due_within.day,
            },
            leased: self.leased + other.leased,
            successors: self.successors + other.successors,
            dead: self.dead + other.dead,
            paused: self.paused || other.paused,
            accepted: self.accepted + other.accepted,
            requeued: self.requeued + other.requeued,
            done: self.done + other.done,
            cancelled: self.cancelled + other.cancelled,
            replaced: self.replaced + other.replaced,
            buried: self.buried + other.buried,
            skipped: self.skipped + other.skipped,
            deleted: self.deleted + other.deleted,
            trimmed: self.trimmed + other.trimmed,
            failed: self.failed + other.failed,
            again: self.again + other.again,
            snoozed: self.snoozed + other.snoozed,
            returned: self.returned + other.returned,
            lapsed: self.lapsed + other.lapsed,
            moved_in: self.moved_in + other.moved_in,
            moved_out: self.moved_out + other.moved_out,
            letters_in: self.letters_in + other.letters_in,
            letters_out: self.letters_out + other.letters_out,
        }
    }
}

impl From<Tally> for Stats {
    fn from(tally: Tally) -> Self {
        Stats::from(&tally)
    }
}

impl From<&Tally> for Stats {
    fn from(tally: &Tally) -> Self {
        let [minute, hour, day] = tally.due_within;
        let counter = |name| tally.counters.get(name).copied().unwrap_or(0);
        Stats {
            unseen: Vec::new(),
            pending: tally.pending,
            overdue: tally.overdue,
            held: tally.held,
            overdue_for: tally.overdue_for,
            next_due: tally.next_due.map(UnixMs::to_system),
            due_within: DueWithin { minute, hour, day },
            leased: tally.leased,
            successors: tally.successors,
            dead: tally.dead,
            paused: tally.paused,
            accepted: counter("accepted"),
            requeued: counter("requeued"),
            done: counter("done"),
            cancelled: counter("cancelled"),
            replaced: counter("replaced"),
            buried: counter("buried"),
            // `skipped` in Redis are numbers of dead letters.
            skipped: counter("unrun"),
            deleted: counter("deleted"),
            trimmed: counter("trimmed"),
            failed: counter("failed"),
            again: counter("again"),
            snoozed: counter("snoozed"),
            returned: counter("returned"),
            lapsed: counter("lapsed"),
            moved_in: counter("moved_in"),
            moved_out: counter("moved_out"),
            letters_in: counter("letters_in"),
            letters_out: counter("letters_out"),
        }
    }
}
