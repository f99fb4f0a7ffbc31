//! The pacer's state of the [turns](crate::worker::instances) on one ledger.

use std::time::Duration;

use crate::settings::BEAT;
use crate::time::UnixUs;
use crate::worker::instances::{InstanceHash, TurnTaker};

/// The longest turn, if its jobs are not few.
const LONGEST: Duration = Duration::from_millis(100);

/// A turn has this many jobs at least, however long that takes: the message that begins a turn
/// costs about as much as the event of a job.
const FEWEST: usize = 16;

/// How long an instance that has left jobs to others gets no turn. Then its heartbeat has told
/// whether it has room.
const AVOIDED: Duration = BEAT.saturating_mul(2);

/// Whose turn it is on one ledger, and how long.
#[derive(Default)]
pub(super) struct Turns {
    /// The instance; `None` if the rank by job decides.
    holder: Option<InstanceHash>,
    /// The earliest time of the next turn.
    ends: UnixUs,
    /// How many jobs were announced in this turn.
    given: usize,
    /// With this many jobs the turn is over.
    most: usize,
    /// Instances that get no turn until a time, because they left jobs to others.
    avoided: Vec<(InstanceHash, UnixUs)>,
}

impl Turns {
    /// The instance whose turn it is.
    pub(super) fn holder(&self) -> Option<InstanceHash> {
        self.holder
    }

    /// Counts jobs that were announced in this turn.
    pub(super) fn give(&mut self, jobs: usize) {
        self.given += jobs;
    }

    /// Whether the next turn begins before another job is announced.
    pub(super) fn is_over(&self, now: UnixUs) -> bool {
        let is_long = now >= self.ends && (self.given >= FEWEST || self.holder.is_none());
        is_long || self.is_used_up()
    }

    /// Whether an instance had as many jobs as one turn gives.
    pub(super) fn is_used_up(&self) -> bool {
        self.holder.is_some() && self.given >= self.most
    }

    /// Begins the next turn. Returns whether the instances have to be told.
    pub(super) fn begin(&mut self, next: Option<&TurnTaker>, now: UnixUs) -> bool {
        let holder = next.map(|next| next.hash);
        let is_new = holder != self.holder;
        self.holder = holder;
        self.ends = now.plus(LONGEST);
        self.given = 0;
        // Half, since the jobs of its turn before may still run.
        self.most = next.map_or(0, |next| next.slots / 2);
        is_new
    }

    /// Ends the turn, because its holder is gone or has no room.
    pub(super) fn end(&mut self) {
        self.ends = UnixUs(0);
        self.given = FEWEST.max(self.most);
    }

    /// Takes in that this instance left jobs to others.
    pub(super) fn avoid(&mut self, instance: InstanceHash, now: UnixUs) {
        self.avoided
            .retain(|(other, until)| *other != instance && *until > now);
        self.avoided.push((instance, now.plus(AVOIDED)));
        if self.holder == Some(instance) {
            self.end();
        }
    }

    /// Whether this instance gets no turn now.
    pub(super) fn is_avoided(&self, instance: InstanceHash, now: UnixUs) -> bool {
        let mut avoided = self.avoided.iter();
        avoided.any(|(other, until)| *other == instance && *until > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taker(id: &str) -> TurnTaker {
        TurnTaker::sample(id, 64)
    }

    const START: UnixUs = UnixUs(1_000_000);

    #[test]
    fn a_turn_ends_after_its_time_or_with_half_of_the_slots() {
        let mut turns = Turns::default();
        assert!(turns.is_over(START), "nobody has the first turn");
        let (one, other) = (taker("one"), taker("other"));
        assert!(turns.begin(Some(&one), START));
        turns.give(31);
        assert!(!turns.is_over(START));
        turns.give(1);
        assert!(turns.is_over(START) && turns.is_used_up());
        assert!(turns.begin(Some(&other), START));
        let later = START.plus(LONGEST);
        turns.give(FEWEST - 1);
        assert!(!turns.is_over(later), "it had few jobs");
        turns.give(1);
        assert!(!turns.is_over(START) && turns.is_over(later));
        assert!(!turns.begin(Some(&other), later), "nothing has changed");
    }

    #[test]
    fn an_instance_that_left_jobs_to_others_loses_its_turn_for_a_while() {
        let mut turns = Turns::default();
        let (one, other) = (taker("one"), taker("other"));
        turns.begin(Some(&one), START);
        turns.avoid(other.hash, START);
        assert!(!turns.is_over(START));
        turns.avoid(one.hash, START);
        assert!(turns.is_over(START));
        assert!(turns.is_avoided(one.hash, START) && turns.is_avoided(other.hash, START));
        assert!(!turns.is_avoided(one.hash, START.plus(AVOIDED)));
    }

    #[test]
    fn without_an_instance_for_it_the_next_turn_is_looked_for_after_a_while() {
        let mut turns = Turns::default();
        turns.begin(Some(&taker("one")), START);
        assert!(turns.begin(None, START), "all have to know");
        turns.give(1000);
        assert!(!turns.is_over(START) && turns.is_over(START.plus(LONGEST)));
    }
}
