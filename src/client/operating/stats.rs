//! The counts of one kind.

use std::time::Duration;

use crate::store::Tally;

/// How many jobs of a kind are in each state, and what became of the others.
///
/// Read in one step, so the counters [balance](Stats::is_balanced):
/// accepted + requeued = pending + leased + successors + done + cancelled + replaced + buried.
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
}

impl Stats {
    /// Whether every job that was ever accepted is accounted for, and every dead letter.
    pub fn is_balanced(&self) -> bool {
        self.difference() == 0 && self.letters_difference() == 0
    }

    /// How many more jobs came than are present or accounted for; negative if fewer did. Zero,
    /// unless somebody writes to the ledger who does not keep its books.
    pub fn difference(&self) -> i64 {
        let came = self.accepted + self.requeued;
        let present = self.pending + self.leased + self.successors;
        let left = self.done + self.cancelled + self.replaced + self.buried;
        came.wrapping_sub(present + left).cast_signed()
    }

    /// How many more dead letters came than are present or accounted for; negative if fewer
    /// did.
    pub fn letters_difference(&self) -> i64 {
        let left = self.dead + self.requeued + self.deleted + self.trimmed;
        self.buried.wrapping_sub(left).cast_signed()
    }
}

impl From<Tally> for Stats {
    fn from(tally: Tally) -> Self {
        let counter = |name| tally.counters.get(name).copied().unwrap_or(0);
        Stats {
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
        }
    }
}
