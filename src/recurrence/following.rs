//! The occurrence that follows the end of a run, by the rule of the job.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::cron::a_moment_before;
use super::occurrence::{instant, unix};
use super::{Busy, Missed, Recurring, Rule, Times};
use crate::lateness::{Late, MaxLateness};
use crate::settings::MAX_DELAY;
use crate::time::UnixMs;

/// How long an occurrence whose rule this process cannot read is left to others: its time zone is
/// not known here, or a newer version wrote it.
const NOT_FOR_US: Duration = Duration::from_secs(30);

/// The times of a rule that were left out are counted up to this number at once.
const COUNTED: usize = 1000;

/// From this lateness on, a time counts as missed.
const MISSED_FROM: Duration = Duration::from_secs(60);

/// The end of a run, by the clock of Redis.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunEnd {
    /// When the run ended.
    pub(crate) now: UnixMs,
    /// When the job was claimed for the run.
    pub(crate) claimed: UnixMs,
    /// When the job was due, as its lease says.
    pub(crate) due: UnixMs,
    /// From 0 up to 1, for the jitter.
    pub(crate) random: f64,
}

impl Recurring {
    /// Whether the due time of this occurrence is still to be computed.
    pub(crate) fn is_open(&self) -> bool {
        self.at == 0
    }

    /// The time at which a run of this occurrence has to make room for the next one.
    pub(crate) fn replaced_at(&self, now: UnixMs) -> Option<UnixMs> {
        let rule = Rule::from_table(&self.rule).ok()?;
        if rule.busy != Busy::Replace || self.is_paused() {
            return None;
        }
        let next = rule.next(instant(UnixMs(self.at.max(now.0)))?)?;
        unix(next)
    }

    /// The occurrence that follows a run of this one that has ended. `None` if the rule has ended.
    pub(crate) fn next(&self, end: RunEnd) -> Option<Self> {
        let rule = match Rule::from_table(&self.rule) {
            Ok(rule) => rule,
            Err(error) => {
                tracing::warn!(
                    %error,
                    "this process cannot compute the next occurrence of a recurring job, and leaves \
                     that to others"
                );
                return Some(match self.is_paused() {
                    true => self.following(),
                    false => self.open(end.now),
                });
            }
        };
        self.next_by(&rule, end)
    }

    /// This occurrence with its due time, which the process that ended the last run could not
    /// compute. `None` if the rule has ended.
    pub(crate) fn resolved(&self, end: RunEnd) -> Option<Self> {
        let Ok(rule) = Rule::from_table(&self.rule) else {
            return Some(self.open(end.now));
        };
        let at = rule.next(instant(end.now)?)?;
        let mut resolved = self.clone();
        resolved.set(&rule, at, end.now, end.random)?;
        Some(resolved)
    }

    /// An occurrence whose due time another process has to compute.
    fn open(&self, now: UnixMs) -> Self {
        Recurring {
            n: self.n + u64::from(!self.is_open()),
            at: 0,
            due: now.plus(NOT_FOR_US).0,
            ..self.clone()
        }
    }

    fn next_by(&self, rule: &Rule, end: RunEnd) -> Option<Self> {
        if rule.runs.is_some_and(|runs| self.n >= runs) {
            return None;
        }
        let mut next = self.following();
        if self.is_paused() {
            return Some(next);
        }
        if self.is_open() {
            // The times since the last run were never computed, so that none of them counts as
            // passed.
            next.set(rule, rule.next(instant(end.now)?)?, end.now, end.random)?;
            return Some(next);
        }
        let was_fired = end.due < self.due();
        if was_fired && self.at > end.now.0 {
            // It ran before its time, which is still to come.
            return Some(next);
        }
        let at = instant(self.at())?;
        let named = if was_fired { a_moment_before(at)? } else { at };
        // A clock that was set back must not lead to the same time again.
        let now = instant(end.now)?.max(named);
        let claimed = instant(end.claimed)?.clamp(named, now);
        let passed = rule.count_passed(named, now);
        let at = if let Some(missed) = rule.first_to_make_up_for(named, claimed) {
            next.skipped += rule.count_passed(named, a_moment_before(missed)?);
            missed
        } else if passed > 0 && rule.busy == Busy::QueueOne {
            next.skipped += passed - 1;
            *rule.last_passed(named, now, 1).first()?
        } else {
            next.skipped += passed;
            rule.next(now)?
        };
        next.set(rule, at, end.now, end.random)?;
        Some(next)
    }
}

impl Rule {
    /// The limit of lateness that the rule sets; `None` if the rule leaves it to the route.
    pub(crate) fn max_lateness(&self) -> Option<MaxLateness> {
        let (limit, then) = match self.missed {
            Missed::One => return None,
            Missed::Skip => (MISSED_FROM, Late::Skip),
            Missed::Spread(time) => (MISSED_FROM, Late::Spread(time)),
            // Runs that are made up for are late.
            Missed::All(_) => (MAX_DELAY, Late::Run),
        };
        Some(MaxLateness { limit, then })
    }

    /// The number of times after `named` and up to `now`, [`COUNTED`] at the most.
    fn count_passed(&self, named: Timestamp, now: Timestamp) -> u64 {
        if matches!(self.times, Times::AfterEnd(_)) {
            return 0;
        }
        let times = std::iter::successors(self.next(named), |time| self.next(*time));
        let passed = times.take_while(|time| *time <= now).take(COUNTED);
        passed.count() as u64
    }

    /// The last times after `named` and up to `now`, `most` of them, the oldest first.
    fn last_passed(&self, named: Timestamp, now: Timestamp, most: usize) -> Vec<Timestamp> {
        let mut back = SignedDuration::from_secs(1);
        loop {
            let begin = now.checked_sub(back).unwrap_or(named).max(named);
            let times = std::iter::successors(self.next(begin), |time| self.next(*time));
            let mut passed: Vec<_> = times.take_while(|time| *time <= now).collect();
            if passed.len() >= most || begin == named {
                let before = passed.len().saturating_sub(most);
                return passed.split_off(before);
            }
            back *= 2;
        }
    }

    /// The first time after `named`, and up to the claim, that gets a run of its own although nobody
    /// could run the job then.
    fn first_to_make_up_for(&self, named: Timestamp, claimed: Timestamp) -> Option<Timestamp> {
        match self.missed {
            Missed::All(most) if !matches!(self.times, Times::AfterEnd(_)) => {
                let missed = self.last_passed(named, claimed, most as usize);
                missed.first().copied()
            }
            _ => None,
        }
    }
}
