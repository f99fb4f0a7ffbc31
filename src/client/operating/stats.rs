//! The counts of one kind.

use std::time::Duration;

use crate::client::Unseen;
use crate::store::Tally;

/// How many jobs of a kind are in each state, and what became of the others.
///
/// Read in one step, so the counters [balance](Stats::is_balanced):
/// accepted + requeued + moved in = pending + leased + successors + done + cancelled + replaced +
/// buried + moved out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Waiting to fall due, those that wait to be retried included.
    pub pending: u64,
    /// Those of the pending that are due.
    pub overdue: u64,
    /// For how long the oldest of those has been due, by the clock of Redis; zero if none is.
    pub overdue_for: Duration,
    /// Running, or claimed by a worker that has not been heard of since.
    pub leased: u64,
    /// Scheduled while the job of the same name was running.
    pub successors: u64,
    /// Dead letters.
    pub dead: u64,
    /// Whether the kind is paused: nothing of it starts.
    pub paused: bool,
    /// Jobs that were scheduled: one for each call that created, replaced or followed a job.
    pub accepted: u64,
    /// Dead letters that were made pending again.
    pub requeued: u64,
    /// Jobs that ended well.
    pub done: u64,
    /// Jobs that somebody cancelled.
    pub cancelled: u64,
    /// Jobs that a newer schedule took the place of.
    pub replaced: u64,
    /// Jobs that ended as dead letters.
    pub buried: u64,
    /// Dead letters that were deleted.
    pub deleted: u64,
    /// Dead letters that fell to the limits of number and age.
    pub trimmed: u64,
    /// Attempts that failed and were followed by another.
    pub failed: u64,
    /// Runs that asked to be repeated without having failed.
    pub again: u64,
    /// Runs that asked to be put off, without the attempt being counted.
    pub snoozed: u64,
    /// Jobs that a stopping worker gave back.
    pub returned: u64,
    /// Leases that lapsed and were taken over.
    pub lapsed: u64,
    /// Jobs that came from another shard of the kind, when it was resharded.
    pub moved_in: u64,
    /// Jobs that left for another shard.
    pub moved_out: u64,
    /// Dead letters that came from another shard.
    pub letters_in: u64,
    /// Dead letters that left for another shard.
    pub letters_out: u64,
    /// What was not counted, because one of several servers was away. The rest
    /// [balances](Stats::is_balanced) all the same.
    pub unseen: Vec<Unseen>,
}

impl Stats {
    /// Whether nothing is there: no job, and no dead letter.
    pub fn is_empty(&self) -> bool {
        self.pending + self.leased + self.successors + self.dead == 0
    }

    /// Whether every job that was ever accepted is accounted for, and every dead letter.
    pub fn is_balanced(&self) -> bool {
        self.difference() == 0 && self.letters_difference() == 0
    }

    /// How many more jobs came than are present or accounted for; negative if fewer did. Zero,
    /// unless somebody writes to the ledger who does not keep its books.
    pub fn difference(&self) -> i64 {
        let came = self.accepted + self.requeued + self.moved_in;
        let present = self.pending + self.leased + self.successors;
        let left = self.done + self.cancelled + self.replaced + self.buried + self.moved_out;
        came.wrapping_sub(present + left).cast_signed()
    }

    /// How many more dead letters came than are present or accounted for; negative if fewer
    /// did.
    pub fn letters_difference(&self) -> i64 {
        let came = self.buried + self.letters_in;
        let left = self.dead + self.requeued + self.deleted + self.trimmed + self.letters_out;
        came.wrapping_sub(left).cast_signed()
    }

    /// What this counter, which counts as zero here, has to be for the books to balance, if it is in
    /// them.
    pub(super) fn balanced_by(&self, counter: &str) -> Option<i64> {
        Some(match counter {
            "accepted" | "requeued" | "moved_in" => -self.difference(),
            "done" | "cancelled" | "replaced" | "moved_out" => self.difference(),
            "buried" | "letters_in" => -self.letters_difference(),
            "deleted" | "trimmed" | "letters_out" => self.letters_difference(),
            _ => return None,
        })
    }

    /// Of all shards of a kind.
    pub(crate) fn sum(tallies: impl IntoIterator<Item = Tally>) -> Self {
        let shards = tallies.into_iter().map(Stats::from);
        shards
            .reduce(|one, other| one.plus(&other))
            .unwrap_or_default()
    }

    pub(super) fn plus(&self, other: &Stats) -> Stats {
        Stats {
            unseen: [&*self.unseen, &*other.unseen].concat(),
            pending: self.pending + other.pending,
            overdue: self.overdue + other.overdue,
            overdue_for: self.overdue_for.max(other.overdue_for),
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
        let counter = |name| tally.counters.get(name).copied().unwrap_or(0);
        Stats {
            unseen: Vec::new(),
            pending: tally.pending,
            overdue: tally.overdue,
            overdue_for: tally.overdue_for,
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
