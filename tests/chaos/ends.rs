//! The end of each version of a key: in a run, by another version, by a cancel, or as a dead
//! letter; once, and not otherwise.

use keyfall_testing::journals::Micros;

use crate::evidence::Evidence;
use crate::journal::{Answer, Ask, Version};
use crate::kept::KeptAs;
use crate::story::{Call, Run, Story, Wrong};

impl Call {
    /// Whether the job must run. A job that is running with another payload may never run again.
    fn wants_a_run(&self) -> bool {
        self.is_acknowledged() && self.version().is_some() && !self.changed_a_run()
    }

    /// Whether the call gave a payload to a job that was running with another one: a further run
    /// has the new payload.
    fn changed_a_run(&self) -> bool {
        matches!(self.ask, Ask::Update { .. }) && self.answer == Some(Answer::Running)
    }

    /// Whether the call may have replaced or ended an earlier job.
    fn may_end_others(&self) -> bool {
        match self.ask {
            // The answer says that there was no job to end.
            Ask::Schedule { .. } => self.may_count() && self.answer != Some(Answer::Done),
            Ask::Update { .. } | Ask::Cancel => self.may_count() && !self.changed_a_run(),
            _ => false,
        }
    }

    /// Whether the answer says that no job was there.
    fn found_nothing(&self) -> bool {
        match self.ask {
            Ask::Schedule { .. } | Ask::Requeue { .. } => self.answer == Some(Answer::Done),
            Ask::Cancel | Ask::Move | Ask::Update { .. } => self.answer == Some(Answer::Absent),
            _ => false,
        }
    }

    /// Whether the job can only end as a dead letter.
    fn is_deadly(&self) -> bool {
        matches!(self.ask, Ask::Schedule { deadly: true, .. })
    }

    /// Whether the job may rightly end as a dead letter. A payload may be given to a deadly job.
    fn may_be_buried(&self) -> bool {
        self.is_deadly() || matches!(self.ask, Ask::Update { .. })
    }

    /// How often the earlier job may start after the acknowledgement, if the answer says so.
    fn starts_left(&self) -> Option<usize> {
        match (&self.ask, self.answer.as_ref()?) {
            (Ask::Cancel, Answer::Cancelled) | (Ask::Schedule { .. }, Answer::Replaced) => Some(0),
            // The run that the cancel found claimed may begin only now.
            (Ask::Cancel, Answer::Running) => Some(1),
            _ => None,
        }
    }
}

impl Story {
    /// All violations of a scheduled job.
    pub(crate) fn faults(&self, evidence: &Evidence) -> Vec<Wrong> {
        let mut wrong = Vec::new();
        wrong.extend(self.lost(evidence));
        wrong.extend(self.after_cancel(evidence));
        wrong.extend(self.undead(evidence));
        wrong.extend(self.buried(evidence));
        wrong.extend(self.early(evidence));
        wrong.extend(self.faults_of_any(evidence));
        wrong
    }

    /// Acknowledged jobs that neither ran to their end, nor were replaced or cancelled, nor are
    /// there.
    fn lost(&self, evidence: &Evidence) -> Vec<Wrong> {
        let calls = self.calls.iter().filter(|call| call.wants_a_run());
        let lost = calls.filter_map(|call| {
            let version = call.version()?;
            let has_ended = self.is_accounted_for(call, version, evidence)
                || self
                    .changes_of_runs(call)
                    .any(|(change, version)| self.is_accounted_for(change, version, evidence));
            if has_ended {
                None
            } else if call.was_forgotten(&evidence.rollbacks) {
                Some(Wrong::Forgotten)
            } else {
                Some(Wrong::Lost(format!("version {version} is lost")))
            }
        });
        lost.collect()
    }

    fn is_accounted_for(&self, call: &Call, version: Version, evidence: &Evidence) -> bool {
        let gone = self.gone(call, evidence);
        let ran = |run: &Run| {
            let is_it = run.version == version && run.last;
            is_it && (call.sent..gone).contains(&run.began)
        };
        evidence.kept.contains_key(&version)
            || self.runs.iter().any(ran)
            || self.was_ended(call, gone, evidence)
    }

    /// The calls that can have given another payload to a run of the job of this call, with their
    /// versions: the job must end under its own version or under one of these.
    fn changes_of_runs(&self, call: &Call) -> impl Iterator<Item = (&Call, Version)> {
        let sent = call.sent;
        let changes = self.calls.iter();
        let changes = changes.filter(move |other| other.changed_a_run() && other.until > sent);
        changes.filter_map(|other| Some((other, other.version()?)))
    }

    /// Whether another call can have ended the job of this call before this time; or its letter, at
    /// any time.
    fn was_ended(&self, call: &Call, before: Micros, evidence: &Evidence) -> bool {
        // A rebuild brings back no job whose name another one has by then.
        let took_its_place = |other: &Call| {
            let is_new = matches!(other.ask, Ask::Schedule { .. }) && other.may_count();
            let is_late = other.was_forgotten(&evidence.rollbacks);
            is_new && is_late && evidence.was_rebuilt_after(other.sent)
        };
        let ended_by = |other: &Call| {
            let is_other = !std::ptr::eq(other, call) && other.until > call.sent;
            let ends = match other.ask {
                // The requeued job is judged by itself.
                Ask::Requeue { version } => other.may_count() && call.version() == Some(version),
                Ask::Discard => other.may_count() && call.may_be_buried(),
                _ => (other.may_end_others() || took_its_place(other)) && other.sent < before,
            };
            is_other && ends
        };
        self.calls.iter().any(ended_by)
    }

    /// The time by which the job of this call was gone, according to the answer of another call.
    fn gone(&self, call: &Call, evidence: &Evidence) -> Micros {
        let found_nothing = |other: &&Call| {
            // A server that nobody follows any more may have told the caller that a forgotten job
            // is gone.
            other.found_nothing()
                && other.sent >= call.until
                && !other.was_forgotten(&evidence.rollbacks)
        };
        let others = self.calls.iter().filter(found_nothing);
        others.map(|other| other.until).min().unwrap_or(Micros::MAX)
    }

    /// Runs of an earlier job that began after the acknowledgement of a cancel, or of a job that
    /// took its place.
    fn after_cancel(&self, evidence: &Evidence) -> Vec<Wrong> {
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
            let (claimed, new): (Vec<&Run>, Vec<&Run>) =
                after.partition(|run| self.may_have_been_claimed(run, call, evidence));
            if new.is_empty() && claimed.len() <= left {
                continue;
            }
            wrong.push(if call.was_forgotten(&evidence.rollbacks) {
                Wrong::Forgotten
            } else {
                Wrong::AfterCancel(format!("it started after {call:?}"))
            });
        }
        wrong
    }

    /// Whether a cancel can have found this run claimed. Where nothing dates the claim: not if the
    /// cancel was told of another run, which had begun.
    fn may_have_been_claimed(&self, run: &Run, call: &Call, evidence: &Evidence) -> bool {
        let had_begun = |other: &Run| other.version == run.version && other.began < call.sent;
        let claimed = evidence.was_claimed_before(run, call.until);
        claimed.unwrap_or_else(|| !self.runs.iter().any(had_begun))
    }

    /// Jobs that can only end as dead letters with a reason, and have not, though nobody
    /// interfered.
    fn undead(&self, evidence: &Evidence) -> Vec<Wrong> {
        let calls = self.calls.iter();
        let deadly = calls.filter(|call| call.is_deadly() && call.is_acknowledged());
        let undead = deadly.filter_map(|call| {
            let version = call.version()?;
            let place = evidence.kept.get(&version);
            let is_dead = matches!(place, Some(KeptAs::Dead(reason)) if !reason.is_empty());
            // The copy has no dead letters.
            let is_excused = call.was_forgotten(&evidence.rollbacks)
                || evidence.was_rebuilt_after(call.sent)
                || self.changes_of_runs(call).next().is_some()
                || self.was_ended(call, Micros::MAX, evidence);
            (!is_dead && !is_excused).then_some(version)
        });
        let told = |version| {
            Wrong::Other(format!(
                "version {version} is not a dead letter with a reason"
            ))
        };
        undead.map(told).collect()
    }

    /// Dead letters of jobs that can end well: no fault uses up their attempts. A payload that was
    /// changed is not judged: it may belong to a job that can only end as a dead letter.
    fn buried(&self, evidence: &Evidence) -> Vec<Wrong> {
        let calls = self.calls.iter();
        let others = calls.filter(|call| matches!(call.ask, Ask::Schedule { deadly: false, .. }));
        let buried = others.filter_map(|call| {
            let version = call.version()?;
            let Some(KeptAs::Dead(reason)) = evidence.kept.get(&version) else {
                return None;
            };
            let told = format!("version {version} is a dead letter for no reason: {reason:?}");
            Some(Wrong::Other(told))
        });
        buried.collect()
    }

    /// Runs that began before their time, by the delay that the call asked for. Where a clock of
    /// Redis was set, due times moved with it.
    fn early(&self, evidence: &Evidence) -> Vec<Wrong> {
        let is_early = |run: &&Run| {
            let due = self.soonest(run);
            due.is_some_and(|due| evidence.is_before(run.began, due))
        };
        let early = self.runs.iter().filter(is_early);
        early
            .map(|run| Wrong::Other(format!("it began before its time: {run:?}")))
            .collect()
    }

    /// Runs of a job that had run to its end before, without evidence of a reason.
    pub(crate) fn repeated(&self, evidence: &Evidence) -> Vec<Wrong> {
        let mut ends: Vec<&Run> = self.runs.iter().filter(|run| run.last).collect();
        ends.sort_by_key(|run| (run.version, run.fence));
        // Where no time tells which run lapsed, each lapse may explain one run.
        let mut lapses = evidence.lapses();
        let mut may_have_lapsed = |run: &Run| {
            let is_open = run.settled.is_none() && evidence.has_no_time(run);
            is_open && lapses.next().is_some()
        };
        let pairs = ends.windows(2).filter(|pair| {
            let (run, next) = (pair[0], pair[1]);
            let is_same = run.version == next.version;
            is_same && !self.may_repeat(run, next, evidence) && !may_have_lapsed(run)
        });
        let told = |pair: &[&Run]| format!("{:?} was run to its end after {:?}", pair[1], pair[0]);
        pairs.map(|pair| Wrong::Other(told(pair))).collect()
    }

    fn may_repeat(&self, run: &Run, next: &Run, evidence: &Evidence) -> bool {
        let was_not_taken = match run.settled {
            Some((_, taken)) => !taken,
            None => {
                let is_doubted = run.unheard || evidence.was_stopped(run, next.began);
                is_doubted || evidence.lapsed(run, next) || evidence.was_unheard(run)
            }
        };
        let requeued = |call: &Call| {
            let is_it = call.ask
                == Ask::Requeue {
                    version: run.version,
                };
            is_it && call.may_count() && call.until > run.ended && call.sent < next.began
        };
        was_not_taken || evidence.forgot_the_end(run, next) || self.calls.iter().any(requeued)
    }

    /// Runs that began although another worker had their job by then: their lease was over, and
    /// their worker can tell by its own clock.
    pub(crate) fn stale(&self, evidence: &Evidence) -> usize {
        let is_stale = |run: &&Run| {
            let had_it = |other: &Run| {
                let is_later = other.fence > run.fence && other.began < run.began;
                is_later && !evidence.may_have_been_cut_short(run, other)
            };
            self.runs.iter().any(had_it) && !evidence.forgot_the_lease(run)
        };
        self.runs.iter().filter(is_stale).count()
    }
}
