//! Bounds on the lateness of jobs and on the time until the next run; which bounds were judged, and
//! which were not.

use std::collections::BTreeMap;
use std::time::Duration;

use keyfall_testing::journals::Micros;

use crate::report::{Phase, Row};
use crate::scenarios::Punctual;
use crate::worker::LEASE;

/// The name of a measurement, its value, and its bound on an idle machine.
pub(crate) type Bound = (&'static str, Option<Micros>, Duration);

/// How late 99 of 100 jobs may be that fall due after the faults. Generous: this is no optimised
/// build, and after an outage a backlog is in their way.
pub(crate) const ON_TIME: Duration = Duration::from_secs(1);

/// How late each of these jobs may be, and how long a job may wait for its next run after the last
/// sign of life of its worker.
pub(crate) const IN_TIME: Duration = LEASE.saturating_add(Duration::from_secs(1));

/// How soon first starts must be on time again, after another primary takes writes.
const BACK: Duration = Duration::from_secs(5);

/// A machine with such an allowance is so busy that work piles up: lateness means nothing there.
pub(crate) const TOO_BUSY: Duration = Duration::from_secs(2);

/// The least number of first starts from which lateness is judged. There are some 400 in four
/// seconds.
pub(crate) const LEAST: usize = 50;

/// The reason why a bound is not judged.
const BUSY: &str = "the machine was too busy";
const NONE: &str = "nothing was measured";

impl Row {
    /// Adds the broken bounds, and the bounds that were not judged, to the row.
    pub(crate) fn judge_times(&mut self, punctual: Punctual) {
        match punctual {
            Punctual::Throughout | Punctual::Afterwards => {}
            Punctual::ByLedgers => {
                self.forget_outside();
                self.forget_redeliveries();
            }
            Punctual::FromOutside => {
                self.forget_lateness();
                self.forget_redeliveries();
            }
            Punctual::Untold => {
                self.forget_lateness();
                self.forget_outside();
                self.forget_redeliveries();
            }
        }
        let phases = match punctual {
            Punctual::Throughout => &[Phase::During, Phase::After][..],
            _ => &[Phase::After],
        };
        let outside = |percent| self.late_after_outside(percent);
        let mut bounds: Vec<Bound> = vec![
            ("p99 late after the faults", self.late_after(99), ON_TIME),
            ("late after the faults", self.late_after(100), IN_TIME),
            ("p99 late from outside", outside(99), ON_TIME),
            ("late from outside", outside(100), IN_TIME),
            ("until it ran again", self.redelivery(phases), IN_TIME),
        ];
        if self.served.is_some() {
            let back = Some(self.back.unwrap_or(0));
            bounds.push(("late after another primary took writes", back, BACK));
        }
        if let Some(spared) = &self.spared {
            bounds.extend(spared.bounds());
            let faults = spared.faults();
            self.violations.extend(faults);
        }
        for bound in bounds {
            self.judge(bound);
        }
        if punctual != Punctual::Untold && self.starts_after() < LEAST {
            let starts = self.starts_after();
            self.violations.push(format!(
                "{starts} first starts after the faults were measured, and not {LEAST}"
            ));
        }
    }

    fn judge(&mut self, (what, measured, limit): Bound) {
        let allowance = self.strain.allowance();
        let why_not = match measured {
            None => NONE,
            Some(_) if allowance >= TOO_BUSY => BUSY,
            Some(measured) => {
                let measured = Duration::from_micros(measured);
                if measured > limit + allowance {
                    self.violations.push(format!(
                        "{measured:.1?} {what}, instead of {limit:?} at the most: {}",
                        self.strain
                    ));
                } else {
                    self.bounds += 1;
                }
                return;
            }
        };
        self.unjudged.push((what, why_not, self.scenario.clone()));
    }

    /// The judged bounds and the others, in one line.
    pub(crate) fn summary(&self) -> String {
        let mut scenarios: BTreeMap<_, Vec<&str>> = BTreeMap::new();
        for (what, why, scenario) in &self.unjudged {
            scenarios.entry((*why, *what)).or_default().push(scenario);
        }
        // Bounds that were not judged in the same scenarios share one part of the line.
        let mut bounds: BTreeMap<_, Vec<&str>> = BTreeMap::new();
        for ((why, what), scenarios) in scenarios {
            let scenarios = scenarios.join(", ");
            bounds.entry((why, scenarios)).or_default().push(what);
        }
        let told = |((why, scenarios), bounds): (&(&str, String), &Vec<&str>)| {
            format!("{} ({why}): {scenarios}", bounds.join(", "))
        };
        let unjudged: Vec<String> = bounds.iter().map(told).collect();
        let unjudged = match &unjudged[..] {
            [] => "none".into(),
            all => all.join("; "),
        };
        format!(
            "{} violations, {} bounds kept; not judged: {unjudged}",
            self.violations.len(),
            self.bounds
        )
    }
}
