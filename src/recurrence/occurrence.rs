//! The occurrence of a recurring job that is stored, and the occurrence that follows its end.

use std::time::{Duration, SystemTime};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::cron::a_moment_before;
use super::{Busy, Rule, Times};
use crate::error::Result;
use crate::time::UnixMs;

/// How long an occurrence whose rule this process cannot read is left to others: its time zone is
/// not known here, or a newer version wrote it.
const NOT_FOR_US: Duration = Duration::from_secs(30);

/// The field `recur` in the header of a recurring job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Recurring {
    /// The table of the rule. It is read when a next time is asked for: not each process that looks
    /// at the job has to know its zone.
    rule: Value,
    /// The number of this occurrence, from 1.
    n: u64,
    /// The time that the rule names, Unix ms. 0 if nobody has computed it yet.
    at: u64,
    /// The due time that was computed from it, Unix ms: with the jitter.
    due: u64,
    /// How many times of the rule were left out so far.
    #[serde(default, skip_serializing_if = "is_zero")]
    skipped: u64,
    /// Since when the rule is paused, Unix ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    paused: Option<u64>,
}

/// The times of a rule that were left out are counted up to this number at once.
const COUNTED: usize = 1000;

/// The occurrence of a recurring job.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Occurrence {
    /// Its number, from 1. Occurrences that were left out have none.
    pub number: u64,
    /// The time that the rule names. The job is due then or, because of jitter or a postponement,
    /// later; [`fire_now`](crate::Client::fire_now) makes it due before.
    pub scheduled_for: SystemTime,
    /// How many times of the rule were left out so far, because a run took too long or no worker
    /// was there.
    pub skipped: u64,
    /// Since when the rule is paused.
    pub paused: Option<SystemTime>,
    /// The rule, as a table in JSON.
    pub rule: Value,
}

impl Occurrence {
    /// An occurrence with this number, from 1, for a job that is
    /// [restored](crate::KeptJob::occurrence). `rule` is a [`Rule`](crate::Rule) as a table in JSON;
    /// all of its times may have passed.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRule`](crate::ErrorKind::InvalidRule) if the rule cannot be read.
    pub fn new(rule: Value, number: u64, scheduled_for: SystemTime) -> Result<Self> {
        Rule::stored(&rule)?;
        Ok(Occurrence {
            number,
            scheduled_for,
            skipped: 0,
            paused: None,
            rule,
        })
    }

    /// The number of times of the rule that were left out so far. Defaults to 0.
    pub fn skipped(mut self, times: u64) -> Self {
        self.skipped = times;
        self
    }
}

impl From<Occurrence> for Recurring {
    fn from(it: Occurrence) -> Self {
        let unix = |time| UnixMs::from_system(time).unwrap_or_default().0;
        let at = unix(it.scheduled_for);
        Recurring {
            rule: it.rule,
            n: it.number,
            at,
            due: at,
            skipped: it.skipped,
            paused: it.paused.map(unix),
        }
    }
}

/// The end of a run, by the clock of Redis.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunEnd {
    /// When the run ended.
    pub(crate) now: UnixMs,
    /// When the job was due, as its lease says.
    pub(crate) due: UnixMs,
    /// From 0 up to 1, for the jitter.
    pub(crate) random: f64,
}

impl Recurring {
    /// The first occurrence of a rule that is stored now. `None` if the rule names no time.
    pub(crate) fn first(rule: &Rule, now: UnixMs, random: f64) -> Option<Self> {
        let at = rule.next(instant(now)?)?;
        let mut first = Recurring {
            rule: serde_json::to_value(rule).expect("a table of texts is JSON"),
            n: 1,
            at: 0,
            due: 0,
            skipped: 0,
            paused: None,
        };
        first.set(rule, at, random)?;
        Some(first)
    }

    /// The due time.
    pub(crate) fn due(&self) -> UnixMs {
        UnixMs(self.due)
    }

    /// The time that the rule names.
    pub(crate) fn at(&self) -> UnixMs {
        UnixMs(self.at)
    }

    /// As callers see it.
    pub(crate) fn view(&self) -> Occurrence {
        Occurrence {
            number: self.n,
            scheduled_for: self.at().to_system(),
            skipped: self.skipped,
            paused: self.paused.map(|since| UnixMs(since).to_system()),
            rule: self.rule.clone(),
        }
    }

    /// Whether the due time of this occurrence is still to be computed.
    pub(crate) fn is_open(&self) -> bool {
        self.at == 0
    }

    /// The time at which a run of this occurrence has to make room for the next one.
    pub(crate) fn replaced_at(&self, now: UnixMs) -> Option<UnixMs> {
        let rule = Rule::stored(&self.rule).ok()?;
        if rule.busy != Busy::Replace {
            return None;
        }
        let next = rule.next(instant(UnixMs(self.at.max(now.0)))?)?;
        unix(next)
    }

    /// The occurrence that follows a run of this one that has ended. `None` if the rule has ended.
    pub(crate) fn next(&self, end: RunEnd) -> Option<Self> {
        let rule = match Rule::stored(&self.rule) {
            Ok(rule) => rule,
            Err(error) => {
                tracing::warn!(
                    %error,
                    "this process cannot compute the next occurrence of a recurring job, and leaves \
                     that to others"
                );
                return Some(self.open(end.now));
            }
        };
        self.next_by(&rule, end)
    }

    /// This occurrence with its due time, which the process that ended the last run could not
    /// compute. `None` if the rule has ended.
    pub(crate) fn resolved(&self, end: RunEnd) -> Option<Self> {
        let Ok(rule) = Rule::stored(&self.rule) else {
            return Some(self.open(end.now));
        };
        let at = rule.next(instant(end.now)?)?;
        let mut resolved = self.clone();
        resolved.set(&rule, at, end.random)?;
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
        let mut next = self.clone();
        next.n += 1;
        let was_fired = !self.is_open() && end.due < self.due();
        if was_fired && self.at > end.now.0 {
            // It ran before its time, which is still to come.
            return Some(next);
        }
        let at = instant(self.at())?;
        let named = if was_fired { a_moment_before(at)? } else { at };
        // A clock that was set back must not lead to the same time again.
        let now = instant(end.now)?.max(named);
        let passed = rule.count_passed(named, now);
        let at = if passed > 0 && rule.busy == Busy::QueueOne {
            next.skipped += passed - 1;
            rule.last_passed(named, now)
        } else {
            next.skipped += passed;
            rule.next(now)?
        };
        next.set(rule, at, end.random)?;
        Some(next)
    }

    /// Sets the time, and the due time with its jitter.
    fn set(&mut self, rule: &Rule, at: Timestamp, random: f64) -> Option<()> {
        let at = unix(at)?;
        self.at = at.0;
        self.due = at.plus(rule.jitter.mul_f64(random)).0;
        Some(())
    }
}

impl Rule {
    /// The number of times after `named` and up to `now`, [`COUNTED`] at the most.
    fn count_passed(&self, named: Timestamp, now: Timestamp) -> u64 {
        if matches!(self.times, Times::AfterEnd(_)) {
            return 0;
        }
        let times = std::iter::successors(self.next(named), |time| self.next(*time));
        let passed = times.take_while(|time| *time <= now).take(COUNTED);
        passed.count() as u64
    }

    /// The last time after `named` and up to `now`; there is one.
    fn last_passed(&self, named: Timestamp, now: Timestamp) -> Timestamp {
        let mut back = SignedDuration::from_secs(1);
        loop {
            let begin = now.checked_sub(back).unwrap_or(named).max(named);
            let times = std::iter::successors(self.next(begin), |time| self.next(*time));
            match times.take_while(|time| *time <= now).last() {
                Some(last) => return last,
                None if begin == named => return named,
                None => back *= 2,
            }
        }
    }
}

fn instant(time: UnixMs) -> Option<Timestamp> {
    Timestamp::from_millisecond(i64::try_from(time.0).ok()?).ok()
}

fn unix(time: Timestamp) -> Option<UnixMs> {
    u64::try_from(time.as_millisecond()).ok().map(UnixMs)
}

// By reference: serde wants it so.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(number: &u64) -> bool {
    *number == 0
}
