//! Where the pacer stands in one ledger: what was touched, what comes, what is looked after.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::super::roster::Served;
use crate::settings::UNANNOUNCED;
use crate::time::{UnixMs, UnixUs};

/// How many jobs are read ahead, and touched in one call, while there are few; it grows to
/// [`MOST`] while the reads come back full.
const LEAST: usize = 64;
const MOST: usize = 1024;

/// How old what was read may be when something is touched. Reading costs more than touching,
/// and jobs that are due within so little are rarely scheduled.
const READ_AGAIN: Duration = Duration::from_millis(4);

/// Jobs are looked after so much sooner, if others are at that moment.
const CHECK_AHEAD: Duration = Duration::from_millis(5);

/// Where the pacer stands in one ledger.
pub(super) struct Track {
    pub(super) served: Arc<Served>,
    /// The ledger falls to this instance.
    pub(super) mine: bool,
    /// Everything due before this was touched, or left to the reconciler.
    pub(super) touched: UnixMs,
    /// What was touched of those that are due exactly then.
    pub(super) touched_then: HashSet<String>,
    /// What comes next, the soonest first.
    pub(super) coming: VecDeque<(String, UnixMs)>,
    /// Touched, and not known to have expired.
    pub(super) alive: Vec<(String, UnixMs)>,
    pub(super) touch_again: Option<UnixUs>,
    /// Touched or announced a while ago: which of them are still due?
    pub(super) checks: VecDeque<Check>,
    /// When to read what comes next, even if nothing is due.
    pub(super) read_at: Option<UnixUs>,
    /// When that was last read.
    read: UnixUs,
    /// There was no more to read.
    complete: bool,
    pub(super) limit: usize,
}

/// Jobs to be looked after.
pub(super) struct Check {
    pub(super) at: UnixUs,
    pub(super) ids: Vec<String>,
    /// How many events had been heard before their triggers were touched; `None` for those
    /// that were announced by whoever stored them.
    pub(super) heard: Option<u64>,
}

impl Track {
    pub(super) fn new(served: Arc<Served>) -> Self {
        Track {
            served,
            mine: false,
            touched: UnixMs(0),
            touched_then: HashSet::new(),
            coming: VecDeque::new(),
            alive: Vec::new(),
            touch_again: None,
            checks: VecDeque::new(),
            read_at: None,
            read: UnixUs(0),
            complete: false,
            limit: LEAST,
        }
    }

    /// When there is something to do; far away if nothing is known.
    pub(super) fn next_action(&self) -> UnixUs {
        let due = self.coming.front().map(|(_, due)| expires_at(*due));
        let check = self.checks.front().map(|check| check.at);
        let next = [due, check, self.touch_again, self.read_at]
            .into_iter()
            .flatten()
            .min();
        next.unwrap_or(UnixUs(u64::MAX))
    }

    pub(super) fn has_due(&self, now: UnixUs) -> bool {
        self.coming
            .front()
            .is_some_and(|(_, due)| expires_at(*due) <= now)
    }

    /// Whether to read what comes next with the next touch. A job that is not the next one is
    /// stored without a word, so what was read does not stay true.
    pub(super) fn wants_to_read(&self, now: UnixUs) -> bool {
        self.read_at.is_some_and(|at| at <= now)
            || now >= self.read.plus(READ_AGAIN)
            || !self.complete && self.coming.len() < LEAST / 2
    }

    /// What comes next was not read with a touch: it will be soon.
    pub(super) fn read_soon(&mut self) {
        let soon = self.read.plus(READ_AGAIN);
        self.read_at = Some(self.read_at.map_or(soon, |at| at.min(soon)));
    }

    /// The jobs that it is time to look after, and those that it soon will be; and how many
    /// events had been heard before the first of them was touched.
    pub(super) fn take_checks(&mut self, now: UnixUs) -> Option<Check> {
        if self.checks.front()?.at > now {
            return None;
        }
        let mut all = self.checks.pop_front()?;
        let soon = now.plus(CHECK_AHEAD);
        while self.checks.front().is_some_and(|check| check.at <= soon)
            && all.ids.len() < MOST
            && let Some(next) = self.checks.pop_front()
        {
            all.ids.extend(next.ids);
            all.heard = all.heard.or(next.heard);
        }
        Some(all)
    }

    /// See in a while which of these are still due.
    pub(super) fn look_after(&mut self, now: UnixUs, ids: Vec<String>, heard: Option<u64>) {
        if !ids.is_empty() {
            let at = now.plus(UNANNOUNCED);
            self.checks.push_back(Check { at, ids, heard });
        }
    }

    /// What is due before now is left to others; read anew what comes.
    pub(super) fn start_from(&mut self, now: UnixUs) {
        self.rest();
        self.touched = now.floor_ms();
        self.read_at = Some(now);
    }

    /// Another instance paces from now on. What was touched here is still looked after.
    pub(super) fn rest(&mut self) {
        self.touched_then.clear();
        self.coming.clear();
        self.alive.clear();
        self.touch_again = None;
        self.read_at = None;
    }

    /// The batch is in order of its due times.
    pub(super) fn note_touched(&mut self, batch: &[(String, UnixMs)]) {
        for (id, due) in batch {
            if *due > self.touched {
                self.touched = *due;
                self.touched_then.clear();
            }
            self.touched_then.insert(id.clone());
        }
    }

    pub(super) fn see_coming(
        &mut self,
        mut coming: Vec<(String, UnixMs)>,
        limit: usize,
        now: UnixUs,
    ) {
        let full = coming.len() == limit;
        let all_due = coming
            .last()
            .is_some_and(|(_, due)| expires_at(*due) <= now);
        self.limit = match (full, all_due) {
            (true, true) => (self.limit * 8).min(MOST),
            _ => LEAST,
        };
        self.read = now;
        self.read_at = None;
        self.complete = !full;
        coming.retain(|(id, due)| *due > self.touched || !self.touched_then.contains(id));
        self.coming = coming.into();
    }

    /// Whether as many jobs as can be touched at once are due.
    pub(super) fn is_flooded(&self, now: UnixUs) -> bool {
        self.coming.len() >= MOST
            && self
                .coming
                .back()
                .is_some_and(|(_, due)| expires_at(*due) <= now)
    }
}

/// Redis expires a key only when its clock is past the time.
fn expires_at(due: UnixMs) -> UnixUs {
    UnixUs(due.0.saturating_add(1).saturating_mul(1000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_not_read_with_a_touch_is_read_soon_after() {
        let mut track = Track::new(Served::sample("a:b:c"));
        let now = UnixUs(1_000_000);
        track.start_from(now);
        assert!(track.wants_to_read(now));
        let first = vec![("first".to_owned(), UnixMs(1001))];
        track.see_coming(first, LEAST, now);
        assert_eq!(track.next_action(), UnixUs(1_002_000));
        // Touched so soon after the read that there is no other; others may have come.
        let touched = UnixUs(1_002_000);
        assert!(track.has_due(touched) && !track.wants_to_read(touched));
        let batch: Vec<_> = track.coming.drain(..).collect();
        track.note_touched(&batch);
        track.read_soon();
        let next = track.next_action();
        assert_eq!(next, now.plus(READ_AGAIN));
        assert!(track.wants_to_read(next));
    }

    #[tokio::test]
    async fn what_was_touched_at_about_the_same_time_is_looked_after_together() {
        let mut track = Track::new(Served::sample("a:b:c"));
        for (ms, heard) in [(0, None), (2, Some(7)), (4, Some(9)), (30, Some(11))] {
            let at = UnixUs(1_000_000 + ms * 1000);
            track.look_after(at, vec![ms.to_string()], heard);
        }
        let due = UnixUs(1_000_000).plus(UNANNOUNCED);
        assert!(track.take_checks(UnixUs(due.0 - 1)).is_none());
        let check = track.take_checks(due).unwrap();
        assert_eq!(check.ids, ["0", "2", "4"]);
        assert_eq!(check.heard, Some(7));
        assert!(track.take_checks(due).is_none());
    }
}
