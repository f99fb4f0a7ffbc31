//! The pending keys of one ledger: keys that this instance has to look at, and events of keys that
//! other instances have to look at, in case those instances are gone.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::settings::{BEAT, SILENCE};
use crate::store::Why;
use crate::worker::served::ServedLedger;

/// How many names are kept for one ledger. A name that does not fit is found by the next search.
const NAMES: usize = 65_536;

/// How many events are kept for other instances; the oldest are dropped first.
const PEER_EVENTS: usize = 65_536;

/// How long these events are kept. An instance that was gone when it should have looked counts as
/// gone by then.
const KEPT_FOR: Duration = SILENCE.saturating_add(BEAT).saturating_mul(2);

/// The ids to look at, with the reason and the time of each.
#[derive(Default)]
pub(super) struct PendingIds {
    /// Reason and time, by id.
    whys: HashMap<String, (Why, Instant)>,
    /// The soonest first; at the same time, in the order of arrival. An entry that is not in `whys`
    /// any more has been looked at.
    order: BinaryHeap<Reverse<(Instant, u64, String)>>,
    /// Number of arrivals so far.
    came: u64,
}

impl PendingIds {
    /// Plans a look at a key, no sooner than `at`, or sooner if that was planned before. Returns
    /// whether there was room for it.
    pub(super) fn add(&mut self, id: &str, why: Why, at: Instant) -> bool {
        if let Some((known, when)) = self.whys.get_mut(id) {
            // `Missed` says less than an event before or since: the last event may be the expiry of
            // the key.
            if why == Why::Missed {
                return true;
            } else if *known == Why::Missed {
                *known = why;
            }
            // A removal or expiry says more than a change, which a look shows anyway. The first
            // event concerns the job that the ledger knows; or, if that has been replaced meanwhile,
            // the last one.
            let is_later = matches!((*known, why), (Why::Over(_), Why::Over(_)));
            if *known == Why::Seen || is_later {
                *known = why;
            }
            if *when <= at {
                return true;
            }
            *when = at;
        } else if self.whys.len() < NAMES {
            self.whys.insert(id.to_owned(), (why, at));
        } else {
            return false;
        }
        self.came += 1;
        self.order.push(Reverse((at, self.came, id.to_owned())));
        true
    }

    /// Plans another look at a key, for a reason that precedes all others. Returns whether there
    /// was room for it.
    pub(super) fn put_back(&mut self, id: &str, why: Why, at: Instant) -> bool {
        let fits = self.add(id, why, at);
        if why != Why::Seen
            && let Some((known, _)) = self.whys.get_mut(id)
        {
            *known = why;
        }
        fits
    }

    /// Reduces all reasons to "something may have happened".
    pub(super) fn doubt(&mut self) {
        self.whys.values_mut().for_each(|(why, _)| *why = Why::Seen);
    }

    /// Drops an expired key, because its job is claimed.
    pub(super) fn forget_expired(&mut self, id: &str) {
        if matches!(self.whys.get(id), Some((Why::Over(_), _))) {
            self.whys.remove(id);
        }
    }

    /// Takes the ids whose time has come, at most `most`.
    pub(super) fn take(&mut self, now: Instant, most: usize) -> Vec<(String, Why)> {
        let mut taken = Vec::new();
        while taken.len() < most && self.next().is_some_and(|at| at <= now) {
            let Some(Reverse((_, _, id))) = self.order.pop() else {
                break;
            };
            if let Some((why, _)) = self.whys.remove(&id) {
                taken.push((id, why));
            }
        }
        taken
    }

    /// Whether half of the places are free.
    pub(super) fn have_room(&self) -> bool {
        self.whys.len() < NAMES / 2
    }

    /// The time of the first look.
    pub(super) fn next(&self) -> Option<Instant> {
        let Reverse((at, ..)) = self.order.peek()?;
        Some(*at)
    }
}

/// Events of keys that other instances have to look at, kept until a dead instance would be known
/// to be dead.
#[derive(Default)]
pub(super) struct PeerEvents(Mutex<VecDeque<PeerEvent>>);

/// One event: when it happened, to which key, and what it means.
struct PeerEvent {
    at: Instant,
    served: Arc<ServedLedger>,
    id: String,
    why: Why,
}

impl PeerEvents {
    /// Keeps an event that happened now.
    pub(super) fn keep(&self, served: &Arc<ServedLedger>, id: &str, why: Why) {
        let at = Instant::now();
        let mut heard = self.0.lock().expect("no panic while held");
        let is_over = |one: &PeerEvent| at.duration_since(one.at) > KEPT_FOR;
        // At most two are dropped for each new one, so that the queue shrinks without long loops.
        for _ in 0..2 {
            if heard.len() >= PEER_EVENTS || heard.front().is_some_and(is_over) {
                heard.pop_front();
            }
        }
        heard.push_back(PeerEvent {
            at,
            served: served.clone(),
            id: id.to_owned(),
            why,
        });
    }

    /// Takes all events that are not too old, in the order in which they happened.
    pub(super) fn take(&self) -> impl Iterator<Item = (Arc<ServedLedger>, String, Why)> + use<> {
        let heard = std::mem::take(&mut *self.0.lock().expect("no panic while held"));
        let heard = heard.into_iter().filter(|one| one.at.elapsed() <= KEPT_FOR);
        heard.map(|one| (one.served, one.id, one.why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_is_looked_at_once_for_its_strongest_reason_at_its_time() {
        let mut names = PendingIds::default();
        let now = Instant::now();
        let soon = now + Duration::from_secs(1);
        for (id, why) in [("a", Why::Seen), ("b", Why::Gone), ("a", Why::Gone)] {
            names.add(id, why, now);
        }
        names.add("b", Why::Seen, now);
        names.add("b", Why::Over(now), now);
        names.add("c", Why::Seen, soon);
        let own = |id: &str, why| (id.to_owned(), why);
        assert_eq!(names.take(now, 1), [own("a", Why::Gone)]);
        assert_eq!(names.take(now, 9), [own("b", Why::Gone)]);
        assert_eq!(names.next(), Some(soon));
        assert_eq!(names.take(soon, 9), [own("c", Why::Seen)]);
        assert!(names.next().is_none());

        for later in [Why::Seen, Why::Over(now)] {
            names.add("d", later, now);
            names.put_back("d", Why::Gone, now);
            assert_eq!(names.take(now, 9), [own("d", Why::Gone)]);
        }
        names.add("d", Why::Over(now), now);
        names.add("d", Why::Over(soon), now);
        assert_eq!(names.take(now, 9), [own("d", Why::Over(soon))]);
        names.add("e", Why::Gone, now);
        names.doubt();
        assert_eq!(names.take(now, 9), [own("e", Why::Seen)]);
        names.add("e", Why::Gone, now);
        names.put_back("e", Why::Seen, now);
        assert_eq!(names.take(now, 9), [own("e", Why::Gone)]);
    }

    #[test]
    fn a_waiting_key_holds_up_no_other_and_may_be_brought_forward() {
        let mut names = PendingIds::default();
        let now = Instant::now();
        let soon = now + Duration::from_secs(1);
        names.add("waits", Why::Over(now), soon);
        names.add("sooner", Why::Over(now), soon);
        names.add("a", Why::Seen, now);
        names.add("sooner", Why::Seen, now);
        let own = |id: &str, why| (id.to_owned(), why);
        let taken = [own("a", Why::Seen), own("sooner", Why::Over(now))];
        assert_eq!(names.take(now, 9), taken);
        assert_eq!(names.take(soon, 9), [own("waits", Why::Over(now))]);
        assert_eq!(names.next(), None);
    }

    #[test]
    fn an_event_outweighs_a_missing_key() {
        let mut names = PendingIds::default();
        let now = Instant::now();
        let soon = now + Duration::from_secs(1);
        let own = |id: &str, why| (id.to_owned(), why);
        names.add("a", Why::Seen, now);
        names.add("a", Why::Missed, soon);
        assert_eq!(names.take(soon, 9), [own("a", Why::Seen)]);
        names.add("a", Why::Missed, soon);
        assert_eq!(names.take(now, 9), []);
        names.add("a", Why::Over(now), now);
        assert_eq!(names.take(now, 9), [own("a", Why::Over(now))]);
        names.add("a", Why::Missed, soon);
        assert_eq!(names.take(soon, 9), [own("a", Why::Missed)]);
    }

    #[test]
    fn an_expired_key_is_forgotten_when_its_job_is_claimed() {
        let mut names = PendingIds::default();
        let now = Instant::now();
        names.add("a", Why::Over(now), now);
        names.add("b", Why::Gone, now);
        names.forget_expired("a");
        names.forget_expired("b");
        assert_eq!(names.take(now, 9), [("b".to_owned(), Why::Gone)]);
    }

    #[test]
    fn the_number_of_pending_keys_is_limited() {
        let mut names = PendingIds::default();
        for id in 0..NAMES {
            assert!(names.add(&id.to_string(), Why::Seen, Instant::now()));
        }
        assert!(!names.add("one more", Why::Seen, Instant::now()));
        assert_eq!(names.take(Instant::now(), usize::MAX).len(), NAMES);
    }
}
