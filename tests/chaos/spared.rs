//! Where something is done to one of several servers: what becomes meanwhile of the jobs that the
//! others have. They are to notice nothing.

use keyfall_testing::journals::Micros;

use crate::bounds::{Bound, IN_TIME, LEAST, ON_TIME};
use crate::journal::{Answer, Part};
use crate::punctual::RECOVERY;
use crate::report::{percentile, written};
use crate::story::Call;

/// How many calls are told that were not answered.
const TOLD: usize = 3;

/// What was done to parts of all jobs.
#[derive(Debug, Default)]
pub(crate) struct Blows(Vec<Blow>);

#[derive(Debug)]
struct Blow {
    /// The jobs of these ledgers suffer from it.
    part: Part,
    from: Micros,
    until: Micros,
}

/// What became of the jobs that nothing was done to while something was done to others.
#[derive(Debug, Default)]
pub(crate) struct Spared {
    /// How late their first starts were.
    late: Vec<Micros>,
    /// How long calls on them took.
    calls: Vec<Micros>,
    /// Those that were not answered.
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

    /// Whether others suffer at this time, or what they have missed is made up for; and the job of this
    /// key does not: not since it would have recovered, nor before the latest that it may start, on a
    /// machine that makes it so late by itself.
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
            // Its caller is told of it elsewhere.
            Some(Answer::Failed(_)) => {}
            Some(_) => self.calls.push(call.until - call.sent),
        }
    }

    pub(crate) fn add(&mut self, other: &Spared) {
        self.late.extend(&other.late);
        self.calls.extend(&other.calls);
        self.unanswered.extend(other.unanswered.iter().cloned());
    }

    /// How many first starts there were.
    pub(crate) fn starts(&self) -> usize {
        self.late.len()
    }

    /// What is wrong with it, however busy the machine is.
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
                "{judged} first starts of what the other servers have were judged, and not {LEAST}"
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

    /// As a row of a table of its own.
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
