//! All that happened to one key, and what must hold of it whatever is known besides. What becomes
//! of each version is judged in [`ends`](crate::ends).

use keyfall_testing::journals::Micros;

use crate::evidence::Evidence;
use crate::journal::{Answer, Ask, Version};

/// A call of a producer. It took effect at some instant from `sent` to `until`, if it did.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) sent: Micros,
    /// When it was answered; the end of time if it was not, or if its answer leaves it open.
    pub(crate) until: Micros,
    pub(crate) ask: Ask,
    /// `None` if its process did not live to see it.
    pub(crate) answer: Option<Answer>,
}

/// A run of a handler.
#[derive(Debug, Default)]
pub(crate) struct Run {
    pub(crate) process: String,
    pub(crate) version: Version,
    pub(crate) attempt: u32,
    pub(crate) fence: u64,
    pub(crate) late: Micros,
    pub(crate) began: Micros,
    /// With its process, if not before.
    pub(crate) ended: Micros,
    /// When its process was no more.
    pub(crate) gone: Micros,
    /// Whether it came to its end, done or buried.
    pub(crate) last: bool,
    /// When Redis answered to its end, if it is known, and whether it took that.
    pub(crate) settled: Option<(Micros, bool)>,
    /// Whether its end may not have reached whoever was to tell Redis.
    pub(crate) unheard: bool,
}

/// All that happened to one key.
#[derive(Debug, Default)]
pub(crate) struct Story {
    pub(crate) calls: Vec<Call>,
    pub(crate) runs: Vec<Run>,
}

/// What is wrong with a story.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// An acknowledged job is nowhere.
    Lost(String),
    /// A job started after it had been cancelled or replaced.
    AfterCancel(String),
    /// Two leases were valid at once.
    Leases(String),
    /// As one of the first two, and Redis had gone back to before the call.
    Forgotten,
    /// Anything else.
    Other(String),
}

/// When Redis went back, and what it still had of the time before.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rollback {
    pub(crate) kept: Micros,
    pub(crate) at: Micros,
}

impl Rollback {
    /// Whether what was given or taken then may be gone.
    pub(crate) fn covers(&self, at: Micros) -> bool {
        (self.kept..=self.at).contains(&at)
    }
}

impl Call {
    pub(crate) fn is_acknowledged(&self) -> bool {
        use Answer::{Cancelled, Done, Follows, Placed, Replaced, Running};
        matches!(
            self.answer,
            Some(Done | Placed | Replaced | Follows | Cancelled | Running)
        )
    }

    pub(crate) fn is_unknown(&self) -> bool {
        matches!(self.answer, None | Some(Answer::Unknown(_)))
    }

    /// Whether it may have changed anything.
    pub(crate) fn may_count(&self) -> bool {
        self.is_acknowledged() || self.is_unknown()
    }

    /// The version that it stores, or brings back.
    pub(crate) fn version(&self) -> Option<Version> {
        match self.ask {
            Ask::Schedule { version, .. }
            | Ask::Update { version }
            | Ask::Requeue { version }
            | Ask::Set { version, .. } => Some(version),
            Ask::Move
            | Ask::Cancel
            | Ask::Discard
            | Ask::Expire { .. }
            | Ask::Persist
            | Ask::Delete => None,
        }
    }

    pub(crate) fn was_forgotten(&self, rollbacks: &[Rollback]) -> bool {
        let undone = |back: &Rollback| self.until >= back.kept && self.sent <= back.at;
        rollbacks.iter().any(undone)
    }
}

impl Story {
    /// What must not be of any job, however it came to be.
    pub(crate) fn faults_of_any(&self, evidence: &Evidence) -> Vec<Wrong> {
        let mut wrong: Vec<Wrong> = self.strangers().into_iter().collect();
        let overlaps = self.overlaps();
        let unfenced = overlaps.flat_map(|(older, newer)| {
            let wrong = unfenced(older, newer)?;
            // Two servers may each give a lease until one of them is followed by nobody any more.
            let given_twice =
                |back: &Rollback| back.covers(older.began) || back.covers(newer.began);
            let is_forgotten = evidence.rollbacks.iter().any(given_twice);
            Some(if is_forgotten {
                Wrong::Forgotten
            } else {
                wrong
            })
        });
        wrong.extend(unfenced);
        wrong.extend(self.repeated(evidence));
        wrong.extend(self.failed());
        wrong
    }

    /// Runs of what nobody scheduled, or of what was refused.
    fn strangers(&self) -> Option<Wrong> {
        let is_known = |run: &&Run| {
            let mut calls = self.calls.iter();
            calls.any(|call| call.version() == Some(run.version) && call.may_count())
        };
        let stranger = self.runs.iter().find(|run| !is_known(run))?;
        Some(Wrong::Other(format!("nobody scheduled {stranger:?}")))
    }

    /// Pairs of runs of which the older, by its fencing value, had not ended when the newer
    /// began.
    pub(crate) fn overlaps(&self) -> impl Iterator<Item = (&Run, &Run)> {
        let pairs = self.runs.iter().enumerate().flat_map(|(number, run)| {
            self.runs[number + 1..].iter().map(move |other| {
                if run.fence <= other.fence {
                    (run, other)
                } else {
                    (other, run)
                }
            })
        });
        pairs.filter(|(older, newer)| older.ended > newer.began)
    }

    /// Calls that failed as no weather explains.
    fn failed(&self) -> Vec<Wrong> {
        let failed = self.calls.iter().filter_map(|call| match &call.answer {
            Some(Answer::Failed(error)) => Some(Wrong::Other(format!("a call failed: {error}"))),
            _ => None,
        });
        failed.collect()
    }
}

/// Runs that overlap must have an order, and the older one must not have been believed.
fn unfenced(older: &Run, newer: &Run) -> Option<Wrong> {
    if older.fence == newer.fence {
        return Some(Wrong::Other(format!(
            "{older:?} and {newer:?} have no order"
        )));
    }
    // Its settlement was sent when it had ended, and so after the other's claim: had Redis
    // taken it, the older lease would have been valid besides the newer one.
    matches!(older.settled, Some((_, true))).then(|| {
        Wrong::Leases(format!(
            "{older:?} was settled although {newer:?} had been claimed"
        ))
    })
}
