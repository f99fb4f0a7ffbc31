//! The pacer's state of the [turns](crate::worker::instances) on one ledger.

use std::time::Duration;

use crate::settings::BEAT;
use crate::time::UnixUs;
use crate::worker::instances::{InstanceHash, NOBODY, PeerTable, TurnTaker};
use crate::worker::served::ServedLedger;

/// The longest turn, if its jobs are not few.
const LONGEST: Duration = Duration::from_millis(100);

/// A turn has this many jobs at least, however long that takes: the message that begins a turn
/// costs about as much as the event of a job.
const FEWEST_JOBS: usize = 16;

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
    fn is_over(&self, now: UnixUs) -> bool {
        let is_long = now >= self.ends && (self.given >= FEWEST_JOBS || self.holder.is_none());
        is_long || self.is_used_up()
    }

    /// Whether an instance had as many jobs as one turn gives.
    pub(super) fn is_used_up(&self) -> bool {
        self.holder.is_some() && self.given >= self.most
    }

    /// Begins the next turn, if it is time. Returns the message for the instances, if it changes
    /// anything for them. `may_tell` is false if this instance cannot tell them: then nobody gets a
    /// turn.
    pub(super) fn next(
        &mut self,
        served: &ServedLedger,
        instances: &PeerTable,
        may_tell: bool,
        now: UnixUs,
    ) -> Option<String> {
        if !self.is_over(now) {
            return None;
        }
        // The pacer before this one may have begun a turn, which lasts until the next.
        self.holder = self.holder.or_else(|| instances.turn_holder(served));
        let is_avoided = |instance| self.is_avoided(instance, now);
        let next = may_tell.then(|| instances.next_turn(served, self.holder, is_avoided));
        let next = next.flatten();
        let is_new = self.begin(next.as_ref(), now);
        let id = next.as_ref().map_or(NOBODY, |next| &next.id);
        (is_new && may_tell).then(|| format!("turn {} {id}", served.ledger.subject()))
    }

    /// Begins a turn. Returns whether it is the turn of another instance than before.
    fn begin(&mut self, next: Option<&TurnTaker>, now: UnixUs) -> bool {
        let holder = next.map(|next| next.hash);
        let is_new = holder != self.holder;
        self.holder = holder;
        self.ends = now.plus(LONGEST);
        self.given = 0;
        // Half, since the jobs of its turn before may still run.
        self.most = next.map_or(0, |next| next.slots / 2);
        is_new
    }

    fn end(&mut self) {
        self.ends = UnixUs(0);
        self.given = FEWEST_JOBS.max(self.most);
    }

    /// Ends the turn if its holder is not ready: it is gone, or has no room.
    pub(super) fn look_after(&mut self, is_ready: impl FnOnce(InstanceHash) -> bool) {
        if !self.holder.is_none_or(is_ready) {
            self.end();
        }
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
    fn is_avoided(&self, instance: InstanceHash, now: UnixUs) -> bool {
        let mut avoided = self.avoided.iter();
        avoided.any(|(other, until)| *other == instance && *until > now)
    }
}

/// The message that passes these jobs of a ledger on to other instances than `left_by`, which had to
/// claim them by its turn; without it, than the first in the rank of each job. `None` without jobs.
pub(super) fn passed_on(subject: &str, left_by: Option<&str>, ids: &[String]) -> Option<String> {
    if ids.is_empty() {
        return None;
    }
    let ids = ids.join(" ");
    Some(match left_by {
        Some(left_by) => format!("left {subject} {left_by} {ids}"),
        None => format!("late {subject} {ids}"),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::router::Router;
    use crate::store::Alive;
    use crate::worker::description::describe;

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
        turns.give(FEWEST_JOBS - 1);
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

    #[test]
    fn the_turn_of_an_instance_that_is_gone_ends() {
        let mut turns = Turns::default();
        turns.look_after(|_| false);
        turns.begin(Some(&taker("one")), START);
        turns.look_after(|holder| holder == taker("one").hash);
        assert!(!turns.is_over(START));
        turns.look_after(|_| false);
        assert!(turns.is_over(START));
    }

    #[test]
    fn jobs_that_an_instance_has_left_are_passed_on() {
        let ids = ["1", "2"].map(str::to_owned);
        let left = passed_on("a:b:c/0", Some("one"), &ids);
        assert_eq!(left.as_deref(), Some("left a:b:c/0 one 1 2"));
        let late = passed_on("a:b:c/0", None, &ids);
        assert_eq!(late.as_deref(), Some("late a:b:c/0 1 2"));
        assert_eq!(passed_on("a:b:c/0", Some("one"), &[]), None);
    }

    #[tokio::test]
    async fn instances_with_few_slots_take_no_turns() {
        let served = ServedLedger::sample("a:b:c");
        for (slots, take_turns) in [(15, false), (16, true)] {
            let (table, _) = fleet_of(&served, slots);
            let told = Turns::default().next(&served, &table, true, START);
            assert_eq!(told.is_some(), take_turns, "{slots} slots");
        }
    }

    /// An instance that knows two others with room, and these two.
    fn fleet(served: &ServedLedger) -> (PeerTable, [String; 2]) {
        fleet_of(served, 64)
    }

    /// The same with so many slots in each instance.
    fn fleet_of(served: &ServedLedger, slots: usize) -> (PeerTable, [String; 2]) {
        let pattern = format!("{}:*", served.ledger.kind());
        let router: Router = Router::new().route(&pattern, async || {});
        let description = describe(&router.finish().unwrap(), slots);
        let table = PeerTable::new(&description, 1).unwrap();
        let ids = ["one", "other"].map(str::to_owned);
        let alive = ids.clone().map(|id| Alive {
            id,
            age: Duration::ZERO,
            room: "1h".into(),
        });
        let takes = Arc::new(description.takes().unwrap());
        let takes = ids.clone().map(|id| (id, takes.clone()));
        table.meet(0, &alive, &takes.into());
        (table, ids)
    }

    #[tokio::test]
    async fn each_turn_is_told_once_and_goes_to_another_instance() {
        let served = ServedLedger::sample("a:b:c");
        let (table, ids) = fleet(&served);
        let mut turns = Turns::default();
        let mut told = Vec::new();
        for place in 0..96 {
            told.extend(
                turns
                    .next(&served, &table, true, START)
                    .map(|it| (place, it)),
            );
            turns.give(1);
        }
        let places: Vec<usize> = told.iter().map(|(place, _)| *place).collect();
        assert_eq!(places, [0, 32, 64]);
        let [first, second, third] = [0, 1, 2].map(|number: usize| told[number].1.clone());
        let of = |id: &String| format!("turn {} {id}", served.ledger.subject());
        assert!(first == third && first != second);
        assert!(
            ids.iter()
                .all(|id| told.iter().any(|(_, it)| *it == of(id)))
        );
    }

    #[tokio::test]
    async fn a_new_pacer_ends_the_turn_of_the_one_before() {
        let served = ServedLedger::sample("a:b:c");
        let (table, [one, other]) = fleet(&served);
        table.turn_begins(&served, &one);
        let mut turns = Turns::default();
        for id in [&one, &other] {
            turns.avoid(InstanceHash::of(id), START);
        }
        let none = format!("turn {} {NOBODY}", served.ledger.subject());
        assert_eq!(turns.next(&served, &table, true, START), Some(none));
    }

    #[tokio::test]
    async fn a_pacer_that_cannot_tell_the_others_lets_the_rank_decide() {
        let served = ServedLedger::sample("a:b:c");
        let (table, _) = fleet(&served);
        let mut turns = Turns::default();
        assert!(turns.next(&served, &table, true, START).is_some());
        turns.give(1000);
        assert!(turns.is_used_up());
        // Else the pacer would try again at once, for ever.
        assert_eq!(turns.next(&served, &table, false, START), None);
        assert!(!turns.is_used_up() && turns.holder().is_none());
    }
}
