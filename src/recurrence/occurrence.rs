//! The occurrence of a recurring job that is stored.

use std::time::SystemTime;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::changing::NEVER;
use super::{Quieted, Rule, Shift};
use crate::error::Result;
#[cfg(feature = "worker")]
use crate::lateness::MaxLateness;
use crate::time::UnixMs;

/// The field `recur` in the header of a recurring job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Recurring {
    /// The table of the rule. It is read when a next time is asked for: not each process that looks
    /// at the job has to know its zone.
    pub(super) rule: Value,
    /// The number of this occurrence, from 1.
    pub(super) n: u64,
    /// The time that the rule names, Unix ms. 0 if nobody has computed it yet.
    pub(super) at: u64,
    /// The due time that was computed from it, Unix ms: with the jitter.
    pub(super) due: u64,
    /// How many times of the rule were left out so far.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) skipped: u64,
    /// Since when the rule is paused, Unix ms. 0 if it is not.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(super) paused: u64,
    /// The name of the declaration that the job comes from, if it comes from one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) by: Option<String>,
    /// The change of the due time by quiet hours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) shift: Option<Shift>,
}

/// The occurrence of a recurring job.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// Since when the rule is [paused](crate::Client::pause_rule), if it is.
    pub paused_since: Option<SystemTime>,
    /// The name of the [declaration](crate::Client::declare) that the job comes from, if it comes
    /// from one.
    pub declared_by: Option<String>,
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
        Rule::from_table(&rule)?;
        Ok(Occurrence {
            number,
            scheduled_for,
            skipped: 0,
            paused_since: None,
            declared_by: None,
            rule,
        })
    }

    /// The number of times of the rule that were left out so far. Defaults to 0.
    pub fn skipped(mut self, times: u64) -> Self {
        self.skipped = times;
        self
    }

    /// The declaration that the job comes from. Defaults to none.
    pub fn declared_by(mut self, name: impl Into<String>) -> Self {
        self.declared_by = Some(name.into());
        self
    }

    /// Since when the rule is paused. Defaults to no pause.
    pub fn paused_since(mut self, since: SystemTime) -> Self {
        self.paused_since = Some(since);
        self
    }
}

#[cfg(feature = "worker")]
impl Occurrence {
    /// Whether the time of the next occurrence has come by then.
    pub(crate) fn is_outlasted_by(&self, time: SystemTime) -> bool {
        let rule = Rule::from_table(&self.rule).ok();
        let next = rule.and_then(|rule| rule.next_after(self.scheduled_for));
        next.is_some_and(|next| next <= time)
    }
}

/// The change of a time of this rule by its quiet hours. Without it, a run that quiet hours have
/// moved to an earlier time would look as if somebody had fired it, and would be repeated.
fn shift_of(rule: &Value, at: UnixMs) -> Option<Shift> {
    let rule = Rule::from_table(rule).ok()?;
    match rule.quiet.as_ref()?.settle(at, UnixMs(0), &rule.zone) {
        Quieted::Moved(shift) => Some(shift),
        _ => None,
    }
}

impl From<Occurrence> for Recurring {
    fn from(it: Occurrence) -> Self {
        let unix = |time| UnixMs::from_system(time).unwrap_or_default().0;
        let at = unix(it.scheduled_for);
        let shift = match it.paused_since {
            Some(_) => None,
            None => shift_of(&it.rule, UnixMs(at)),
        };
        let due = shift.as_ref().map_or(at, |shift| shift.to);
        Recurring {
            rule: it.rule,
            n: it.number,
            at,
            due: if it.paused_since.is_some() {
                NEVER.0
            } else {
                due
            },
            skipped: it.skipped,
            paused: it.paused_since.map_or(0, unix),
            by: it.declared_by,
            shift,
        }
    }
}

impl Recurring {
    /// The first occurrence of a rule that is stored now. `None` if the rule names no time.
    pub(crate) fn first(rule: &Rule, now: UnixMs, random: f64) -> Option<Self> {
        let at = rule.next(instant(now)?)?;
        let mut first = Recurring {
            rule: rule.to_value(),
            n: 1,
            at: 0,
            due: 0,
            skipped: 0,
            paused: 0,
            by: None,
            shift: None,
        };
        first.set(rule, at, now, random)?;
        Some(first)
    }

    /// The same occurrence of a job that this declaration has.
    #[cfg(feature = "worker")]
    pub(crate) fn declared_by(mut self, name: &str) -> Self {
        self.by = Some(name.to_owned());
        self
    }

    /// Whether the job comes from this declaration.
    #[cfg(feature = "worker")]
    pub(crate) fn is_declared_by(&self, name: &str) -> bool {
        self.by.as_deref() == Some(name)
    }

    /// The limit of lateness that the rule sets; `None` if it sets none, or this process cannot read
    /// it.
    #[cfg(feature = "worker")]
    pub(crate) fn max_lateness(&self) -> Option<MaxLateness> {
        Rule::from_table(&self.rule).ok()?.max_lateness()
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
            paused_since: (self.paused > 0).then(|| UnixMs(self.paused).to_system()),
            declared_by: self.by.clone(),
            rule: self.rule.clone(),
        }
    }

    /// Sets the time, and the due time with its jitter and outside of quiet hours.
    pub(super) fn set(
        &mut self,
        rule: &Rule,
        at: Timestamp,
        now: UnixMs,
        random: f64,
    ) -> Option<()> {
        let at = unix(at)?;
        let due = at.plus(rule.jitter.mul_f64(random));
        let quieted = rule
            .quiet
            .as_ref()
            .map(|it| it.settle(due, now, &rule.zone));
        self.shift = match quieted {
            Some(Quieted::Moved(shift)) => Some(shift),
            // The rule does not name times that are left out; here the jitter led to one.
            _ => None,
        };
        self.at = at.0;
        self.due = self.shift.as_ref().map_or(due.0, |shift| shift.to);
        Some(())
    }

    /// The change of the due time by quiet hours.
    pub(crate) fn shift(&self) -> Option<&Shift> {
        self.shift.as_ref()
    }
}

pub(super) fn instant(time: UnixMs) -> Option<Timestamp> {
    Timestamp::from_millisecond(i64::try_from(time.0).ok()?).ok()
}

pub(super) fn unix(time: Timestamp) -> Option<UnixMs> {
    u64::try_from(time.as_millisecond()).ok().map(UnixMs)
}

// By reference: serde wants it so.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(number: &u64) -> bool {
    *number == 0
}
