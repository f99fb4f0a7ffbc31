//! Changes of a recurring job: another rule, a pause, a resume.

use super::occurrence::instant;
use super::{Recurring, Rule};
use crate::time::UnixMs;

/// The due time of an occurrence whose rule is paused, 31 December 9999: pacers, lists and audits
/// treat it as any other.
pub(super) const NEVER: UnixMs = UnixMs(253_402_214_400_000);

impl Recurring {
    /// Whether the rule is paused.
    pub(crate) fn is_paused(&self) -> bool {
        self.paused > 0
    }

    /// Whether the job has this rule.
    pub(crate) fn has_rule(&self, rule: &Rule) -> bool {
        Rule::from_table(&self.rule).is_ok_and(|own| own == *rule)
    }

    /// The occurrence after this one, with its time still to be set.
    pub(crate) fn following(&self) -> Self {
        Recurring {
            n: self.n + 1,
            ..self.clone()
        }
    }

    /// This occurrence at the next time of another rule; one that is paused stays paused. `None` if
    /// the rule names no time any more, or allows fewer runs.
    pub(crate) fn by_rule(&self, rule: &Rule, now: UnixMs, random: f64) -> Option<Self> {
        let mut changed = self.with_rule(rule)?;
        if !self.is_paused() {
            changed.set(rule, rule.next(instant(now)?)?, now, random)?;
        }
        Some(changed)
    }

    /// This occurrence at its own time; the next one follows another rule. `None` if that rule allows
    /// fewer runs.
    pub(crate) fn with_rule(&self, rule: &Rule) -> Option<Self> {
        let allowed = rule.runs.is_none_or(|runs| self.n <= runs);
        allowed.then(|| Recurring {
            rule: rule.to_value(),
            ..self.clone()
        })
    }

    /// This occurrence with its rule paused. `None` if it is paused, or the last run is under way.
    pub(crate) fn paused(&self, now: UnixMs) -> Option<Self> {
        let runs = Rule::from_table(&self.rule).ok().and_then(|rule| rule.runs);
        let is_over = runs.is_some_and(|runs| self.n > runs);
        (!self.is_paused() && !is_over).then(|| Recurring {
            paused: now.0,
            due: NEVER.0,
            ..self.clone()
        })
    }

    /// This occurrence at the next time of its rule, which is paused no more. `None` if the rule names
    /// no time any more, or cannot be read.
    pub(crate) fn resumed(&self, now: UnixMs, random: f64) -> Option<Self> {
        let rule = Rule::from_table(&self.rule).ok()?;
        let mut resumed = self.with_own_time();
        resumed.set(&rule, rule.next(instant(now)?)?, now, random)?;
        Some(resumed)
    }

    /// This occurrence at its own time, with its rule paused no more.
    pub(crate) fn with_own_time(&self) -> Self {
        Recurring {
            paused: 0,
            due: self.shift.as_ref().map_or(self.at, |shift| shift.to),
            ..self.clone()
        }
    }
}
