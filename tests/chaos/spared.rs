//! The jobs of healthy servers while a fault hits one of several: they must notice nothing.

use keyfall_testing::journals::Micros;

use crate::bounds::{Bound, IN_TIME, LEAST, ON_TIME};
use crate::journal::{Answer, Part};
use crate::punctual::RECOVERY;
use crate::report::{percentile, written};
use crate::story::Call;

/// How many calls without an answer are printed.
const TOLD: usize = 3;

/// Faults of parts of all jobs.
#[derive(Debug, Default)]
pub(crate) struct Blows(Vec<Blow>);

#[derive(Debug)]
struct Blow {
    /// The jobs of these ledgers suffer.
    part: Part,
    from: Micros,
    until: Micros,
}

/// The jobs that no fault hit while others suffered.
#[derive(Debug, Default)]
pub(crate) struct Spared {
    /// The lateness of their first starts.
    late: Vec<Micros>,
    /// The durations of calls on them.
    calls: Vec<Micros>,
    /// The calls without an answer.
    unanswered: Vec<String>,
}

impl Blows {
    pub(crate) fn add(&mut self, part: &Part, from: Micros, until: Micros) {
        let part = part.clone();
        self.0.push(Blow { part, from, until });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether other jobs suffer at this time, or are still catching up, and the job of this key
    /// does not: the span excludes its own recovery, and the time before the latest start that the
    /// machine's own lateness allows.
    pub(crate) fn spare(&self, key: &str, at: Micros, allowance: Micros) -> bool {
        let latest = at + IN_TIME.as_micros() as Micros + allowance;
        let (own, others): (Vec<&Blow>, Vec<&Blow>) =
            self.0.iter().partition(|blow| blow.part.has(key));
        let is_under = |blow: &&Blow| blow.from <= at && at < blow.until + RECOVERY;
        let is_near = |blow: &&Blow| blow.from <= latest && at < blow.until + RECOVERY;
        others.iter().any(is_under) && !own.iter().any(is_near)
    }
}

impl Spared {
    pub(crate) fn started(&mut self, late: Micros) {
        self.late.push(late);
    }

    pub(crate) fn called(&mut self, key: &str, call: &Call) {
        match call.answer {
            None | Some(Answer::Refused(_) | Answer::Unknown(_)) => {
                self.unanswered.push(format!("{key}: {call:?}"));
            }
            // The caller reports this error elsewhere.
            Some(Answer::Failed(_)) => {}
            Some(_) => self.calls.push(call.until - call.sent),
        }
    }

    pub(crate) fn add(&mut self, other: &Spared) {
        self.late.extend(&other.late);
        self.calls.extend(&other.calls);
        self.unanswered.extend(other.unanswered.iter().cloned());
    }

    /// The number of first starts.
    pub(crate) fn starts(&self) -> usize {
        self.late.len()
    }

    /// Violations that no busy machine excuses.
    pub(crate) fn faults(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let unanswered = self.unanswered.len();
        if unanswered > 0 {
            let some = &self.unanswered[..unanswered.min(TOLD)];
            wrong.push(format!(
                "{unanswered} calls were not answered though their server was there: {some:#?}"
            ));
        }
        if self.starts() < LEAST {
            let judged = self.starts();
            wrong.push(format!(
                "{judged} first starts on the other servers were judged, and not {LEAST}"
            ));
        }
        wrong
    }

    pub(crate) fn bounds(&self) -> [Bound; 3] {
        let late = |percent| percentile(&self.late, percent);
        [
            ("p99 late where nothing was done", late(99), ON_TIME),
            ("late where nothing was done", late(100), IN_TIME),
            (
                "until a call was answered where nothing was done",
                percentile(&self.calls, 100),
                IN_TIME,
            ),
        ]
    }

    /// The row of a table of its own.
    pub(crate) fn row(&self, scenario: &str) -> String {
        let p99 = |all| written(percentile(all, 99));
        let longest = |all| written(percentile(all, 100));
        format!(
            "| {scenario:25} | {:6} | {:>8} | {:>8} | {:6} | {:>8} | {:>8} |",
            self.late.len(),
            p99(&self.late),
            longest(&self.late),
            self.calls.len(),
            p99(&self.calls),
            longest(&self.calls),
        )
    }
}

/// The head of that table.
pub(crate) const HEAD: &str = "\
| where nothing was done    | starts |      p99 |   latest |  calls |      p99 |  longest |
|---------------------------|-------:|---------:|---------:|-------:|---------:|---------:|";
