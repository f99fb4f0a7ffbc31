//! All events of one key, and the rules for it that need no other facts. [`ends`](crate::ends)
//! judges the fate of each version.

use keyfall_testing::journals::Micros;

use crate::evidence::Evidence;
use crate::journal::{Answer, Ask, Version};

/// A call of a producer. If it took effect, then at some instant from `sent` to `until`.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) sent: Micros,
    /// The time of the answer; the end of time without one, or if the answer leaves the outcome
    /// open.
    pub(crate) until: Micros,
    pub(crate) ask: Ask,
    /// `None` if its process did not live to see it.
    pub(crate) answer: Option<Answer>,
    /// The first reply that all replicas had, and every reply to a repeat since then, each with its
    /// time. Empty for a call that has no id.
    pub(crate) replies: Vec<(Micros, String)>,
}

/// A run of a handler.
#[derive(Debug, Clone, Default)]
pub(crate) struct Run {
    pub(crate) process: String,
    pub(crate) version: Version,
    pub(crate) attempt: u32,
    pub(crate) fence: u64,
    pub(crate) late: Micros,
    pub(crate) began: Micros,
    /// The end of the run, or of its process, if that came first.
    pub(crate) ended: Micros,
    /// The time at which its process was gone.
    pub(crate) gone: Micros,
    /// Whether the run came to its end, done or buried.
    pub(crate) last: bool,
    /// The time of Redis' answer to its end, if known, and whether Redis took it.
    pub(crate) settled: Option<(Micros, bool)>,
    /// Whether its end may not have reached the process that is to tell Redis.
    pub(crate) unheard: bool,
}

/// All events of one key.
#[derive(Debug, Clone, Default)]
pub(crate) struct Story {
    pub(crate) calls: Vec<Call>,
    pub(crate) runs: Vec<Run>,
}

/// A violation in a story.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// An acknowledged job is lost.
    Lost(String),
    /// A job started after it had been cancelled or replaced.
    AfterCancel(String),
    /// Two leases were valid at once.
    Leases(String),
    /// As one of the first two, but Redis had gone back to a time before the call.
    Forgotten,
    /// Anything else.
    Other(String),
}

/// The time of a rollback, and the time of the restored state.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rollback {
    pub(crate) kept: Micros,
    pub(crate) at: Micros,
    /// A call that was sent after the first of these times and answered before the second is
    /// undone, if the times are known.
    pub(crate) undone: Option<(Micros, Micros)>,
    /// Whether jobs were brought back from the copy, which has no dead letters.
    pub(crate) is_rebuilt: bool,
}

impl Rollback {
    /// Whether leases and effects of that time may be gone.
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

    /// Whether the call may have changed anything.
    pub(crate) fn may_count(&self) -> bool {
        self.is_acknowledged() || self.is_unknown()
    }

    /// The version that the call stores, or brings back.
    pub(crate) fn version(&self) -> Option<Version> {
        match self.ask {
            Ask::Schedule { version, .. }
            | Ask::Update { version }
            | Ask::Requeue { version }
            | Ask::Set { version, .. } => Some(version),
            Ask::Move
            | Ask::Cancel
            | Ask::Discard
            | Ask::Look
            | Ask::Expire { .. }
            | Ask::Persist
            | Ask::Delete => None,
        }
    }

    /// Whether every server that can become the primary had the effect.
    fn is_kept(&self) -> bool {
        !self.replies.is_empty()
    }

    /// How often the call was repeated under its id at another primary than the one that had
    /// carried it out; each of them served from one of these times on.
    pub(crate) fn repeats_elsewhere(&self, served: &[(Micros, Micros)]) -> usize {
        let Some(((first, _), repeats)) = self.replies.split_first() else {
            return 0;
        };
        let is_elsewhere = |(at, _): &&(Micros, String)| {
            let mut changes = served.iter();
            changes.any(|(_, change)| (*first..*at).contains(change))
        };
        repeats.iter().filter(is_elsewhere).count()
    }

    pub(crate) fn was_forgotten(&self, rollbacks: &[Rollback]) -> bool {
        let undone = |back: &Rollback| self.until >= back.kept && self.sent <= back.at;
        !self.is_kept() && rollbacks.iter().any(undone)
    }
}

impl Story {
    /// Violations that no job may have, whatever its origin.
    pub(crate) fn faults_of_any(&self, evidence: &Evidence) -> Vec<Wrong> {
        let mut wrong: Vec<Wrong> = self.strangers().into_iter().collect();
        let overlaps = self.overlaps();
        let unfenced = overlaps.flat_map(|(older, newer)| {
            let wrong = unfenced(older, newer)?;
            // Two servers may each give a lease until nobody follows one of them any more.
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
        wrong.extend(self.answered_anew());
        wrong
    }

    /// Runs of a job that nobody scheduled, or whose schedule was refused.
    fn strangers(&self) -> Option<Wrong> {
        let is_known = |run: &&Run| {
            let mut calls = self.calls.iter();
            calls.any(|call| call.version() == Some(run.version) && call.may_count())
        };
        let stranger = self.runs.iter().find(|run| !is_known(run))?;
        Some(Wrong::Other(format!("nobody scheduled {stranger:?}")))
    }

    /// Pairs of runs in which the older, by its fencing value, had not ended when the newer began.
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

    /// Failed calls that no fault explains.
    fn failed(&self) -> Vec<Wrong> {
        let failed = self.calls.iter().filter_map(|call| match &call.answer {
            Some(Answer::Failed(error)) => Some(Wrong::Other(format!("a call failed: {error}"))),
            _ => None,
        });
        failed.collect()
    }

    /// Calls that were repeated under their ids and answered otherwise than before: each repeat was
    /// a new call.
    fn answered_anew(&self) -> Vec<Wrong> {
        let mut wrong = Vec::new();
        for call in &self.calls {
            let replies = call.replies.windows(2);
            wrong.extend(replies.filter(|pair| pair[0].1 != pair[1].1).map(|pair| {
                let (before, then) = (&pair[0].1, &pair[1].1);
                Wrong::Other(format!(
                    "a repeat under the same id was answered {then:?} after {before:?}: {call:?}"
                ))
            }));
        }
        wrong
    }
}

/// Overlapping runs must have an order, and Redis must not have taken the end of the older one.
fn unfenced(older: &Run, newer: &Run) -> Option<Wrong> {
    if older.fence == newer.fence {
        return Some(Wrong::Other(format!(
            "{older:?} and {newer:?} have no order"
        )));
    }
    // The older run sent its settlement when it had ended, and so after the other's claim: had
    // Redis taken it, the older lease would have been valid besides the newer one.
    matches!(older.settled, Some((_, true))).then(|| {
        Wrong::Leases(format!(
            "{older:?} was settled although {newer:?} had been claimed"
        ))
    })
}
