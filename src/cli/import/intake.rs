//! Schedules what was read, and counts what became of it.

use std::collections::BTreeSet;
use std::fmt;
use std::time::SystemTime;

use anyhow::bail;
use keyfall::Client;
use serde::Serialize;

use super::entry::Entry;
use super::pace::Pacing;
use super::{Options, Read};
use crate::cli::progress::Progress;

pub(super) struct Intake<'a> {
    client: &'a Client,
    options: &'a Options,
    progress: &'a Progress,
    pacing: Pacing,
    report: Report,
}

/// What became of it all.
#[derive(Debug, Clone, Default, Serialize)]
pub(super) struct Report {
    scheduled: u64,
    /// Left out, because a job of that name is there.
    present: u64,
    /// Left out, for they had been due for too long.
    overdue: u64,
    /// Dead letters that were left out.
    dead: u64,
    pub(super) invalid: u64,
    /// The kinds that were paused for it.
    paused: BTreeSet<String>,
}

impl<'a> Intake<'a> {
    pub(super) fn new(client: &'a Client, options: &'a Options, progress: &'a Progress) -> Self {
        Intake {
            client,
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
                Err(fault) => self.refuse(&place, &fault)?,
            }
        }
        let stride = self.pacing.stride(wanted.len());
        let mut wanted = wanted.into_iter().peekable();
        while wanted.peek().is_some() {
            self.send(wanted.by_ref().take(stride).collect()).await?;
        }
        Ok(())
    }

    pub(super) fn report(&self) -> Report {
        self.report.clone()
    }

    fn is_wanted(&mut self, entry: &Entry) -> bool {
        if entry.is_dead {
            self.report.dead += u64::from(!self.options.requeue_dead);
            return self.options.requeue_dead;
        }
        let late = SystemTime::now().duration_since(entry.due);
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
        let (places, entries): (Vec<String>, Vec<Entry>) = entries.into_iter().unzip();
        let jobs = entries.into_iter().map(|entry| match self.options.replace {
            true => entry.into_job(),
            false => entry.into_job().if_absent(),
        });
        let answers = self.client.schedule_many(jobs).await;
        for (place, answer) in places.iter().zip(answers) {
            match answer {
                Ok(Some(_)) => self.report.scheduled += 1,
                Ok(None) => self.report.present += 1,
                Err(error) if error.is_retryable() => return Err(error.into()),
                Err(error) => self.refuse(place, &error.to_string())?,
            }
        }
        Ok(())
    }

    /// Before the first job of the kind is there.
    async fn pause(&mut self, kind: &str) -> anyhow::Result<()> {
        if !self.report.paused.contains(kind) {
            self.client.prefix(&format!("{kind}:")).pause().await?;
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

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} scheduled", self.scheduled)?;
        for (count, what) in [
            (self.present, "were there already"),
            (self.overdue, "were overdue for too long"),
            (self.dead, "dead letters left out"),
            (self.invalid, "not valid"),
        ] {
            if count > 0 {
                write!(f, ", {count} {what}")?;
            }
        }
        for kind in &self.paused {
            write!(f, "; paused: `keyfall resume {kind}:` lets it start")?;
        }
        Ok(())
    }
}
