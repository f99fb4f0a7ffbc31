//! Schedules the imported jobs, and counts the outcomes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::SystemTime;

use anyhow::bail;
use serde::Serialize;
use serde_json::value::RawValue;

use super::entry::Entry;
use super::pace::Pacing;
use super::{Fault, Options, Read};
use crate::jobs::Jobs;
use crate::progress::Progress;
use crate::stop::Stop;
use crate::which::among;
use keyfall_daemon::shapes::{BatchOut, RestoredAs, RestoredOut};

/// The number of jobs that a dry run names.
const FIRST: usize = 5;

pub(super) struct Intake<'a> {
    jobs: &'a Jobs,
    options: &'a Options,
    progress: &'a Progress,
    pacing: Pacing,
    report: Report,
}

/// The counts of all outcomes.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Report {
    scheduled: u64,
    /// Jobs that a dry run has found, and the first of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    found: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    first: Vec<String>,
    /// Jobs that stay in the other system, by the reason.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    left_out: BTreeMap<String, u64>,
    /// Left out, because a job of that name exists, or that very letter.
    present: u64,
    /// Left out, because they had been due for too long.
    overdue: u64,
    /// Dead letters that were restored as dead letters.
    dead: u64,
    pub(super) invalid: u64,
    /// The kinds that were paused for the import.
    paused: BTreeSet<String>,
}

impl<'a> Intake<'a> {
    pub(super) fn new(jobs: &'a Jobs, options: &'a Options, progress: &'a Progress) -> Self {
        Intake {
            jobs,
            options,
            progress,
            pacing: Pacing::new(options.pace),
            report: Report::default(),
        }
    }

    pub(super) async fn take(&mut self, read: Vec<Read>) -> anyhow::Result<()> {
        let mut wanted = Vec::with_capacity(read.len());
        for Read { place, job } in read {
            match job {
                Ok(entry) if self.is_wanted(&entry) => wanted.push((place, entry)),
                Ok(_) => {}
                Err(Fault::LeftOut(reason)) => self.leave_out(reason, 1),
                Err(Fault::Invalid(fault)) => self.refuse(&place, &fault)?,
            }
        }
        if self.options.dry_run {
            self.note(&wanted);
            return Ok(());
        }
        let stride = self.pacing.stride(wanted.len());
        let mut wanted = wanted.into_iter().peekable();
        while wanted.peek().is_some() {
            self.send(wanted.by_ref().take(stride).collect()).await?;
        }
        Ok(())
    }

    /// Counts jobs that stay in the other system.
    pub(super) fn leave_out(&mut self, reason: String, number: u64) {
        *self.report.left_out.entry(reason).or_default() += number;
    }

    /// Counts the jobs of a dry run, and names the first.
    fn note(&mut self, entries: &[(String, Entry)]) {
        *self.report.found.get_or_insert(0) += entries.len() as u64;
        let room = FIRST - self.report.first.len();
        for (_, entry) in entries.iter().take(room) {
            self.report
                .first
                .push(format!("{} due {}", entry.key, entry.due()));
        }
    }

    pub(super) fn report(&self) -> Report {
        self.report.clone()
    }

    fn is_wanted(&mut self, entry: &Entry) -> bool {
        if entry.is_dead() {
            return true;
        }
        let late = SystemTime::now().duration_since(entry.due().0);
        let limit = self.options.skip_overdue;
        let is_overdue = limit.is_some_and(|limit| late.is_ok_and(|late| late > limit));
        self.report.overdue += u64::from(is_overdue);
        !is_overdue
    }

    async fn send(&mut self, entries: Vec<(String, Entry)>) -> anyhow::Result<()> {
        if self.options.paused {
            for (_, entry) in &entries {
                self.pause(entry.key.kind()).await?;
            }
        }
        self.pacing.wait(entries.len()).await;
        let (mut lines, mut places) = (Vec::new(), Vec::new());
        for (place, entry) in entries {
            let line = if entry.is_dead() && self.options.requeue_dead {
                entry.requeued(self.options.replace)
            } else {
                entry.restored(self.options.replace)
            };
            match line {
                Ok(line) => {
                    lines.extend(line);
                    places.push(place);
                }
                Err(fault) => self.refuse(&place, &fault)?,
            }
        }
        let answers = self.jobs.batch(lines, places.len()).await?;
        for (place, answer) in places.iter().zip(answers) {
            self.count(place, answer)?;
        }
        Ok(())
    }

    fn count(&mut self, place: &str, answer: BatchOut) -> anyhow::Result<()> {
        match answer.problem {
            None => match answer.result.as_deref().and_then(became) {
                Some(RestoredAs::Dead) => self.report.dead += 1,
                Some(RestoredAs::Present | RestoredAs::Running) => self.report.present += 1,
                _ => self.report.scheduled += 1,
            },
            Some(problem) if problem.code == "job_present" => self.report.present += 1,
            Some(problem) if problem.retryable || problem.code == "forbidden" => {
                return Err(Stop::of_problem(problem).into());
            }
            Some(problem) => self.refuse(place, &problem.detail)?,
        }
        Ok(())
    }

    /// Pauses a kind, before its first job is stored.
    async fn pause(&mut self, kind: &str) -> anyhow::Result<()> {
        if !self.report.paused.contains(kind) {
            self.jobs
                .pause(&among(Some(format!("{kind}:")), false))
                .await?;
            self.report.paused.insert(kind.to_owned());
        }
        Ok(())
    }

    fn refuse(&mut self, place: &str, fault: &str) -> anyhow::Result<()> {
        if !self.options.skip_invalid {
            bail!("{place}: {fault}; `--skip-invalid` goes on without it");
        }
        self.progress.note(&format!("{place}: {fault}"));
        self.report.invalid += 1;
        Ok(())
    }
}

/// The outcome of a restored job. A scheduled job has no such answer.
fn became(result: &RawValue) -> Option<RestoredAs> {
    let restored: RestoredOut = serde_json::from_str(result.get()).ok()?;
    Some(restored.restored)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.found {
            Some(found) => write!(f, "{found} to schedule")?,
            None => write!(f, "{} scheduled", self.scheduled)?,
        }
        for (count, what) in [
            (self.present, "were there already"),
            (self.overdue, "were overdue for too long"),
            (self.dead, "dead letters brought back"),
            (self.invalid, "not valid"),
        ] {
            if count > 0 {
                write!(f, ", {count} {what}")?;
            }
        }
        for kind in &self.paused {
            write!(f, "; paused: `keyfall resume {kind}:` lets it start")?;
        }
        for job in &self.first {
            write!(f, "\n  {job}")?;
        }
        for (reason, count) in &self.left_out {
            write!(f, "\n{count} left out, which {reason}")?;
        }
        Ok(())
    }
}
