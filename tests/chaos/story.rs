//! What must hold of all that happened to one key, whatever the weather was.

use std::collections::HashMap;

use crate::journal::{Answer, Ask, Micros, Version};
use crate::kept::Place;

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
#[derive(Debug)]
pub(crate) struct Run {
    #[expect(dead_code, reason = "it is told with the story")]
    pub(crate) process: String,
    pub(crate) version: Version,
    pub(crate) attempt: u32,
    pub(crate) fence: u64,
    pub(crate) late: Micros,
    pub(crate) began: Micros,
    /// With its process, if not before.
    pub(crate) ended: Micros,
    /// Whether it came to its end, done or buried.
    pub(crate) last: bool,
    /// Whether Redis took its end, if it was told.
    pub(crate) settled: Option<bool>,
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
    fn covers(&self, at: Micros) -> bool {
        (self.kept..=self.at).contains(&at)
    }
}

impl Call {
    pub(crate) fn is_acknowledged(&self) -> bool {
        use Answer::{Cancelled, Done, Follows, Replaced, Running};
        matches!(
            self.answer,
            Some(Done | Replaced | Follows | Cancelled | Running)
        )
    }

    pub(crate) fn is_unknown(&self) -> bool {
        matches!(self.answer, None | Some(Answer::Unknown(_)))
    }

    /// Whether it may have changed anything.
    fn may_count(&self) -> bool {
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

    /// Whether the job must run. What is running with another payload may never run again.
    fn wants_a_run(&self) -> bool {
        let of_a_run =
            matches!(self.ask, Ask::Update { .. }) && self.answer == Some(Answer::Running);
        self.is_acknowledged() && self.version().is_some() && !of_a_run
    }

    /// Whether it may take the place of what was there, or end it.
    fn may_end_others(&self) -> bool {
        let ends = matches!(
            self.ask,
            Ask::Schedule { .. } | Ask::Update { .. } | Ask::Cancel
        );
        ends && self.may_count()
    }

    /// How often what was there before may start after it was acknowledged, if it says so.
    fn starts_left(&self) -> Option<usize> {
        match (&self.ask, self.answer.as_ref()?) {
            (Ask::Cancel, Answer::Cancelled) | (Ask::Schedule { .. }, Answer::Replaced) => Some(0),
            // The one that it found claimed may only now come to begin.
            (Ask::Cancel, Answer::Running) => Some(1),
            _ => None,
        }
    }

    fn was_forgotten(&self, rollbacks: &[Rollback]) -> bool {
        let undone = |back: &Rollback| self.until >= back.kept && self.sent <= back.at;
        rollbacks.iter().any(undone)
    }
}

impl Story {
    /// All that is wrong, against what is still there.
    pub(crate) fn faults(
        &self,
        kept: &HashMap<Version, Place>,
        rollbacks: &[Rollback],
    ) -> Vec<Wrong> {
        let mut wrong = Vec::new();
        wrong.extend(self.lost(kept, rollbacks));
        wrong.extend(self.after_cancel(rollbacks));
        wrong.extend(self.faults_of_any(rollbacks));
        if rollbacks.is_empty() {
            wrong.extend(self.undead(kept));
        }
        wrong
    }

    /// What must not be of any job, however it came to be.
    pub(crate) fn faults_of_any(&self, rollbacks: &[Rollback]) -> Vec<Wrong> {
        let mut wrong: Vec<Wrong> = self.strangers().into_iter().collect();
        let overlaps = self.overlaps();
        let unfenced = overlaps.flat_map(|(older, newer)| {
            let wrong = unfenced(older, newer)?;
            // Two servers may each give a lease until one of them is followed by nobody any more.
            let given_twice =
                |back: &Rollback| back.covers(older.began) || back.covers(newer.began);
            let is_forgotten = rollbacks.iter().any(given_twice);
            Some(if is_forgotten {
                Wrong::Forgotten
            } else {
                wrong
            })
        });
        wrong.extend(unfenced);
        wrong.extend(self.failed());
        wrong
    }

    /// Acknowledged jobs that neither ran to their end, nor were replaced or cancelled, nor are there.
    fn lost(&self, kept: &HashMap<Version, Place>, rollbacks: &[Rollback]) -> Vec<Wrong> {
        let is_accounted_for = |call: &Call, version: Version| {
            let ran = |run: &Run| run.version == version && run.began >= call.sent && run.last;
            let ended_by = |other: &Call| {
                !std::ptr::eq(other, call) && other.may_end_others() && other.until > call.sent
            };
            kept.contains_key(&version)
                || self.runs.iter().any(ran)
                || self.calls.iter().any(ended_by)
        };
        let calls = self.calls.iter().filter(|call| call.wants_a_run());
        let lost = calls.filter_map(|call| {
            let version = call.version()?;
            if is_accounted_for(call, version) {
                None
            } else if call.was_forgotten(rollbacks) {
                Some(Wrong::Forgotten)
            } else {
                Some(Wrong::Lost(format!("version {version} is lost")))
            }
        });
        lost.collect()
    }

    /// Runs of what was there before a cancel, or before a job that took its place, begun after
    /// that was acknowledged.
    fn after_cancel(&self, rollbacks: &[Rollback]) -> Vec<Wrong> {
        let mut wrong = Vec::new();
        for call in &self.calls {
            let Some(left) = call.starts_left() else {
                continue;
            };
            let was_before = |version: Version| {
                let mut placed = self
                    .calls
                    .iter()
                    .filter(|one| one.version() == Some(version));
                placed.all(|one| !one.may_count() || one.until < call.sent)
            };
            let after = self.runs.iter();
            let after = after.filter(|run| run.began > call.until && was_before(run.version));
            if after.count() <= left {
                continue;
            }
            wrong.push(if call.was_forgotten(rollbacks) {
                Wrong::Forgotten
            } else {
                Wrong::AfterCancel(format!("it started after {call:?}"))
            });
        }
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

    /// Runs that began although another had their job by then: their lease was over, which their
    /// worker can tell by its own clock.
    pub(crate) fn stale(&self) -> usize {
        let stale = |(older, newer): &(&Run, &Run)| older.began > newer.began;
        self.overlaps().filter(stale).count()
    }

    /// Calls that failed as no weather explains.
    fn failed(&self) -> Vec<Wrong> {
        let failed = self.calls.iter().filter_map(|call| match &call.answer {
            Some(Answer::Failed(error)) => Some(Wrong::Other(format!("a call failed: {error}"))),
            _ => None,
        });
        failed.collect()
    }

    /// Jobs that can only end as dead letters with a reason, and have not, though nobody meddled.
    fn undead(&self, kept: &HashMap<Version, Place>) -> Option<Wrong> {
        let [call] = &self.calls[..] else {
            return None;
        };
        let Ask::Schedule {
            version,
            deadly: true,
        } = call.ask
        else {
            return None;
        };
        let is_dead = matches!(kept.get(&version), Some(Place::Dead(reason)) if !reason.is_empty());
        (call.is_acknowledged() && !is_dead)
            .then(|| Wrong::Other(format!("version {version} is no dead letter with a reason")))
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
    (older.settled == Some(true)).then(|| {
        Wrong::Leases(format!(
            "{older:?} was settled although {newer:?} had been claimed"
        ))
    })
}
