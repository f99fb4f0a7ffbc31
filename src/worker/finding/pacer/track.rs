//! The pacer's state of one ledger: the touched jobs, the next jobs, and the jobs to check.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::limit::LimitTrack;
use super::turns::Turns;
use crate::settings::UNANNOUNCED;
use crate::time::{UnixMs, UnixUs};
use crate::worker::instances::InstanceHash;
use crate::worker::served::ServedLedger;

/// How many jobs are read ahead, and touched in one call, while there are few due jobs. The number
/// grows to [`MOST`] while the reads come back full.
const LEAST: usize = 64;
/// The largest number of jobs that are read ahead, or touched in one call.
const MOST: usize = 1024;

/// How old the last read may be at a touch. The pacer is told of a job that is stored after the
/// read if the job is due sooner than all others, or within `NEAR_MS` of `lua/lib/trigger.lua`.
/// `NEAR_MS` is longer than this by the time that a read and a message may take.
const READ_AGAIN: Duration = Duration::from_millis(40);

/// Shortest time between two touches. The jobs of two milliseconds expire in one go and are claimed
/// in one call, which costs Redis hardly more than a single job.
const STRIDE: Duration = Duration::from_millis(2);

/// How far the server's clock may be behind its estimate here. A touch that comes too early has to
/// be repeated.
const MARGIN: Duration = Duration::from_micros(100);

/// Time until a second touch of a trigger that is still alive after the first. Redis expires a key
/// only when its clock is past the time, and the clocks differ a little.
const AGAIN: Duration = Duration::from_millis(1);

/// How long a check waits for more jobs to check.
const CHECK_GATHER: Duration = Duration::from_millis(8);

/// The pacer's state of one ledger.
pub(super) struct PaceTrack {
    pub(super) served: Arc<ServedLedger>,
    /// Whether this instance paces the ledger.
    pub(super) mine: bool,
    /// The number of the view of instances by which `mine` was decided.
    pub(super) view: Option<u64>,
    /// All jobs due before this time were touched, or left to the reconciler.
    pub(super) touched: UnixMs,
    /// The ids of the touched jobs that are due exactly at `touched`.
    pub(super) touched_then: HashSet<String>,
    /// The next jobs, the soonest first.
    pub(super) coming: VecDeque<(String, UnixMs)>,
    /// Touched jobs whose triggers may not have expired.
    pub(super) alive: Vec<(String, UnixMs)>,
    /// When to touch `alive` again.
    pub(super) touch_again: Option<UnixUs>,
    /// Jobs that were touched or announced, with the time to check whether they are still due.
    pub(super) checks: VecDeque<TouchCheck>,
    /// When to read the next jobs, even if nothing is due.
    pub(super) read_at: Option<UnixUs>,
    /// When the next jobs were last read.
    read: UnixUs,
    /// The planned time of the last touch.
    touched_at: UnixUs,
    /// Whether the last read reached the end of the ledger.
    complete: bool,
    /// How many jobs the next read returns at most; from [`LEAST`] to [`MOST`].
    pub(super) most: usize,
    /// Whose turn it is.
    pub(super) turns: Turns,
    /// The limit of the kind.
    pub(super) limit: LimitTrack,
}

/// Jobs to check, and when.
pub(super) struct TouchCheck {
    /// The earliest time of the check.
    pub(super) at: UnixUs,
    /// The ids of the jobs.
    pub(super) ids: Vec<String>,
    /// For each job, the instance whose turn it was when the job was announced.
    pub(super) holders: Vec<Option<InstanceHash>>,
    /// How many events had been heard before their triggers were touched; `None` for jobs that were
    /// announced when they were stored.
    pub(super) heard: Option<u64>,
}

/// Jobs that were not claimed in time, by the instance that had to claim them; without one, the
/// first in the rank of each job had to.
pub(super) type LeftJobs = Vec<(Option<InstanceHash>, Vec<String>)>;

/// The jobs of one touch.
#[derive(Default)]
pub(super) struct TouchBatch {
    /// Ids and due times.
    pub(super) jobs: Vec<(String, UnixMs)>,
    /// For each job, the instance whose turn it is.
    pub(super) holders: Vec<Option<InstanceHash>>,
    /// How many of them, at the front, were touched before.
    pub(super) first: usize,
}

impl TouchCheck {
    /// The jobs that are still due, though their time was some time ago, by the instance whose turn
    /// it was; `dues` has the due time of each job that is pending.
    pub(super) fn still_due(self, dues: &[Option<UnixMs>], now: UnixUs) -> LeftJobs {
        let is_due = |due: &Option<UnixMs>| due.is_some_and(|due| due <= now.floor_ms());
        let checked = self.ids.into_iter().zip(self.holders).zip(dues);
        let mut left = LeftJobs::new();
        for ((id, holder), _) in checked.filter(|(_, due)| is_due(due)) {
            match left.iter_mut().find(|(other, _)| *other == holder) {
                Some((_, ids)) => ids.push(id),
                None => left.push((holder, vec![id])),
            }
        }
        left
    }
}

impl PaceTrack {
    /// The state of a ledger that this instance does not pace yet.
    pub(super) fn new(served: Arc<ServedLedger>) -> Self {
        PaceTrack {
            served,
            mine: false,
            view: None,
            touched: UnixMs(0),
            touched_then: HashSet::new(),
            coming: VecDeque::new(),
            alive: Vec::new(),
            touch_again: None,
            checks: VecDeque::new(),
            read_at: None,
            read: UnixUs(0),
            touched_at: UnixUs(0),
            complete: false,
            most: LEAST,
            turns: Turns::default(),
            limit: LimitTrack::default(),
        }
    }

    /// When there is something to do; the end of time if nothing is known.
    pub(super) fn next_action(&self) -> UnixUs {
        if self.turns.is_used_up() && !self.checks.is_empty() {
            // Jobs are announced without a touch, and the next ones are for another instance.
            return UnixUs(0);
        }
        let check = self.checks.front().map(|check| check.at.plus(CHECK_GATHER));
        let admit = self.limit.next().filter(|_| self.mine);
        let next = [
            self.next_touch(),
            check,
            self.touch_again,
            self.read_at,
            admit,
        ]
        .into_iter()
        .flatten()
        .min();
        next.unwrap_or(UnixUs(u64::MAX))
    }

    /// When to touch the next job.
    fn next_touch(&self) -> Option<UnixUs> {
        let (_, due) = self.coming.front()?;
        Some(expires_at(*due).max(self.touched_at.plus(STRIDE)))
    }

    /// Takes the jobs to touch now: first the jobs whose triggers were alive after their last
    /// touch, then the jobs that are due for the first time.
    pub(super) fn take_due(&mut self, now: UnixUs) -> TouchBatch {
        let is_time = |at: Option<UnixUs>| at.is_some_and(|at| at <= now);
        if !is_time(self.next_touch()) && !is_time(self.touch_again) {
            return TouchBatch::default();
        }
        // Not the time of this call, which may be late: the strides would grow.
        self.touched_at = self.next_touch().map_or(now, |planned| planned.min(now));
        self.touch_again = None;
        let mut jobs = std::mem::take(&mut self.alive);
        let first = jobs.len();
        while let Some((_, due)) = self.coming.front()
            && expires_at(*due) <= now
        {
            jobs.extend(self.coming.pop_front());
        }
        self.note_touched(&jobs[first..]);
        TouchBatch {
            jobs,
            first,
            ..TouchBatch::default()
        }
    }

    /// The due time and the limit of a read of the next jobs, if it is time to read. `touching`
    /// tells that the round trip is made anyway.
    pub(super) fn take_read(&mut self, now: UnixUs, touching: bool) -> Option<(UnixMs, usize)> {
        let is_short = !self.complete && self.coming.len() < LEAST / 2;
        let is_time = self.read_at.is_some_and(|at| at <= now)
            || touching && (is_short || now >= self.read.plus(READ_AGAIN));
        let limit = self.most + self.touched_then.len();
        is_time.then_some((self.touched, limit))
    }

    /// Plans a read, because the touch came without one.
    pub(super) fn read_soon(&mut self) {
        let soon = self.read.plus(READ_AGAIN);
        self.read_at = Some(self.read_at.map_or(soon, |at| at.min(soon)));
    }

    /// Takes the jobs that it is time to check, once some have gathered, with the number of events
    /// that had been heard before the first of them was touched.
    pub(super) fn take_checks(&mut self, now: UnixUs) -> Option<TouchCheck> {
        if self.checks.front()?.at.plus(CHECK_GATHER) > now {
            return None;
        }
        let mut all = self.checks.pop_front()?;
        while self.checks.front().is_some_and(|check| check.at <= now)
            && all.ids.len() < MOST
            && let Some(next) = self.checks.pop_front()
        {
            all.ids.extend(next.ids);
            all.holders.extend(next.holders);
            all.heard = all.heard.or(next.heard);
        }
        Some(all)
    }

    /// Plans a check whether these jobs are still due; each has the instance whose turn it was.
    pub(super) fn look_after(
        &mut self,
        now: UnixUs,
        jobs: impl IntoIterator<Item = (String, Option<InstanceHash>)>,
        heard: Option<u64>,
    ) {
        let (ids, holders): (Vec<_>, Vec<_>) = jobs.into_iter().unzip();
        if !ids.is_empty() {
            self.checks.push_back(TouchCheck {
                at: now.plus(UNANNOUNCED),
                ids,
                holders,
                heard,
            });
        }
    }

    /// Takes in whether this instance paces the ledger.
    pub(super) fn set_mine(&mut self, mine: bool, now: UnixUs) {
        self.limit.observe(now);
        // The server's clock may have been set back: then touched jobs lie ahead again.
        if mine && (!self.mine || self.touched > now.floor_ms()) {
            self.start_from(now);
            self.checks.clear();
            // Another instance may have begun turns meanwhile, or jobs may wait for the limit.
            self.turns = Turns::default();
            self.limit.begin(now);
        } else if self.mine && !mine {
            self.rest();
        }
        self.mine = mine;
    }

    /// Takes in that the call of a step failed, and plans the next one. Whether its jobs were
    /// touched is unknown, so they are checked once more. Jobs that it was to check are left to the
    /// reconciler.
    pub(super) fn see_fault(&mut self, batch: TouchBatch, again: UnixUs, now: UnixUs) {
        let jobs = batch.jobs.into_iter().map(|(id, _)| id);
        self.look_after(now, jobs.zip(batch.holders), None);
        self.read_at = Some(again);
        // Whether the instances were told of a turn is unknown, too.
        self.turns = Turns::default();
    }

    /// Leaves the jobs that are due before now to others, and reads the next jobs.
    pub(super) fn start_from(&mut self, now: UnixUs) {
        self.rest();
        self.touched = now.floor_ms();
        // Both are ahead if the clock was set back, and would delay all touches until then.
        self.touched_at = self.touched_at.min(now);
        self.read = self.read.min(now);
        self.read_at = Some(now);
    }

    /// Stops pacing, because another instance does. Jobs that were touched here are still checked.
    pub(super) fn rest(&mut self) {
        self.touched_then.clear();
        self.coming.clear();
        self.alive.clear();
        self.touch_again = None;
        self.read_at = None;
    }

    /// Records the jobs of a batch as touched. The batch is in order of due times.
    fn note_touched(&mut self, batch: &[(String, UnixMs)]) {
        for (id, due) in batch {
            if *due > self.touched {
                self.touched = *due;
                self.touched_then.clear();
            }
            self.touched_then.insert(id.clone());
        }
    }

    /// Takes in the next jobs, which were read with this limit at this time.
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
        self.most = match (full, all_due) {
            (true, true) => (self.most * 8).min(MOST),
            _ => LEAST,
        };
        self.read = now;
        self.read_at = None;
        self.complete = !full;
        coming.retain(|(id, due)| *due > self.touched || !self.touched_then.contains(id));
        self.coming = coming.into();
    }

    /// Takes in how many triggers of the batch are still alive.
    pub(super) fn see_touched(&mut self, batch: TouchBatch, alive: u64, heard: u64, now: UnixUs) {
        let TouchBatch {
            mut jobs,
            holders,
            first,
        } = batch;
        let touched = jobs.iter().map(|(id, _)| id.clone()).zip(holders);
        let touched: Vec<_> = touched.skip(first).collect();
        self.look_after(now, touched, Some(heard));
        // Redis does not say which of them are alive, so all are touched again, until it is too
        // late for an event.
        jobs.retain(|(_, due)| now.since(*due) < UNANNOUNCED);
        if alive > 0 && !jobs.is_empty() {
            self.alive = jobs;
            self.touch_again = Some(now.plus(AGAIN));
        }
    }

    /// Takes in that a job is due at `due`, which may be sooner than all known jobs. The same call
    /// may have scheduled further jobs.
    pub(super) fn hear_of(&mut self, due: UnixMs, now: UnixUs) {
        let is_next = self.coming.front().is_none_or(|(_, next)| due < *next);
        // A job that is not the next is read before it is due.
        let by = if is_next {
            now
        } else {
            now.max(UnixUs(due.0.saturating_mul(1000)))
        };
        self.read_at = Some(self.read_at.map_or(by, |at| at.min(by)));
    }

    /// Whether as many jobs are due as one call can touch.
    pub(super) fn is_flooded(&self, now: UnixUs) -> bool {
        self.coming.len() >= MOST
            && self
                .coming
                .back()
                .is_some_and(|(_, due)| expires_at(*due) <= now)
    }
}

/// The time at which Redis expires a trigger: when its clock is past the due time.
fn expires_at(due: UnixMs) -> UnixUs {
    UnixUs(due.0.saturating_add(1).saturating_mul(1000)).plus(MARGIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> UnixUs {
        UnixUs(1_000_000 + us)
    }

    fn reading(jobs: &[(&str, u64)]) -> PaceTrack {
        let mut track = PaceTrack::new(ServedLedger::sample("a:b:c"));
        track.start_from(at(0));
        assert!(track.take_read(at(0), false).is_some());
        let job = |&(id, ms): &(&str, u64)| (id.to_owned(), UnixMs(1000 + ms));
        track.see_coming(jobs.iter().map(job).collect(), LEAST, at(0));
        track
    }

    #[tokio::test]
    async fn due_times_not_read_with_a_touch_are_read_soon_after() {
        let mut track = reading(&[("first", 1)]);
        let touch = track.next_action();
        assert_eq!(touch, at(2000).plus(MARGIN));
        assert!(track.take_due(at(1999)).jobs.is_empty());
        assert_eq!(track.take_due(touch).jobs.len(), 1);
        // The touch comes so soon after the read that it brings no other read, although new jobs
        // may have been stored.
        assert!(track.take_read(touch, true).is_none());
        track.read_soon();
        let next = track.next_action();
        assert_eq!(next, at(0).plus(READ_AGAIN));
        assert!(track.take_read(next, false).is_some());
    }

    #[tokio::test]
    async fn jobs_within_two_milliseconds_are_touched_together() {
        let mut track = reading(&[("a", 1), ("b", 1), ("c", 2), ("d", 3), ("e", 9)]);
        let mut touched = Vec::new();
        while !track.coming.is_empty() {
            // As late as a real touch is.
            let now = track.next_action().plus(Duration::from_micros(90));
            let jobs = track.take_due(now).jobs.into_iter();
            touched.push(jobs.map(|(id, _)| id).collect::<String>());
        }
        assert_eq!(touched, ["ab", "cd", "e"]);
    }

    #[tokio::test]
    async fn a_clock_that_is_set_back_brings_touched_jobs_ahead_again() {
        let mut track = reading(&[("first", 1)]);
        track.mine = true;
        assert_eq!(track.take_due(at(5000)).jobs.len(), 1);
        track.set_mine(true, at(5000));
        assert_eq!(
            track.touched,
            UnixMs(1001),
            "a clock that goes on changes nothing"
        );
        let back = UnixUs(500_000);
        track.set_mine(true, back);
        assert_eq!(track.next_action(), back);
        let (from, _) = track.take_read(back, false).unwrap();
        assert_eq!(from, UnixMs(500), "all later jobs are read anew");
        let due = back.plus(Duration::from_millis(5)).floor_ms();
        track.see_coming(vec![("again".to_owned(), due)], LEAST, back);
        assert_eq!(track.next_action(), expires_at(due), "and touched in time");
        assert_eq!(track.take_due(expires_at(due)).jobs.len(), 1);
    }

    #[tokio::test]
    async fn after_a_fault_the_next_read_is_planned_and_the_jobs_are_checked() {
        let mut track = reading(&[("first", 1), ("second", 2)]);
        let mut batch = track.take_due(at(9000));
        assert_eq!(batch.jobs.len(), 2);
        batch.holders = vec![None; 2];
        track.see_fault(batch, at(20_000), at(9000));
        assert_eq!(track.next_action(), at(20_000));
        assert!(track.take_read(at(20_000), false).is_some());
        let check = track.take_checks(at(9000).plus(UNANNOUNCED).plus(CHECK_GATHER));
        assert_eq!(check.unwrap().ids, ["first", "second"]);
    }

    #[test]
    fn a_check_names_the_jobs_whose_time_has_come() {
        let ids = ["overdue", "due", "postponed", "claimed"]
            .map(str::to_owned)
            .into();
        let (one, other) = (InstanceHash::of("one"), InstanceHash::of("other"));
        let check = TouchCheck {
            at: at(0),
            ids,
            holders: vec![Some(one), Some(other), None, Some(one)],
            heard: None,
        };
        let dues = [
            Some(UnixMs(7)),
            Some(UnixMs(1000)),
            Some(UnixMs(1001)),
            None,
        ];
        let left = |holder, id: &str| (Some(holder), vec![id.to_owned()]);
        let still_due = check.still_due(&dues, at(0));
        assert_eq!(still_due, [left(one, "overdue"), left(other, "due")]);
    }

    #[test]
    fn a_read_is_not_trusted_for_longer_than_wake_ups_are_sent() {
        let lua = include_str!("../../../../lua/lib/trigger.lua");
        let (_, rest) = lua.split_once("NEAR_MS = ").unwrap();
        let near: u64 = rest.split_whitespace().next().unwrap().parse().unwrap();
        assert!(READ_AGAIN + Duration::from_millis(10) <= Duration::from_millis(near));
    }

    #[tokio::test]
    async fn jobs_touched_at_about_the_same_time_are_checked_together() {
        let mut track = PaceTrack::new(ServedLedger::sample("a:b:c"));
        for (ms, heard) in [(0, None), (2, Some(7)), (4, Some(9)), (30, Some(11))] {
            let at = UnixUs(1_000_000 + ms * 1000);
            track.look_after(at, [(ms.to_string(), None)], heard);
        }
        let due = UnixUs(1_000_000).plus(UNANNOUNCED).plus(CHECK_GATHER);
        assert!(track.take_checks(UnixUs(due.0 - 1)).is_none());
        let check = track.take_checks(due).unwrap();
        assert_eq!(check.ids, ["0", "2", "4"]);
        assert_eq!(check.heard, Some(7));
        assert!(track.take_checks(due).is_none());
    }
}
