//! `keyfall cancel`, `postpone` and `fire`: of one job, or of many.

use std::time::{Duration, SystemTime};

use anyhow::anyhow;
use jiff::Timestamp;
use keyfall::{BulkReport, Cancelled, JobKey, Rescheduled};
use serde::Serialize;

use super::ask;
use super::connect::Server;
use super::out::Form;
use super::stop::Stop;
use super::when::{When, shown, stamp};
use super::which::Which;
use crate::duration;

#[derive(clap::Args, Debug)]
pub(crate) struct Cancel {
    #[command(flatten)]
    which: Which,

    /// Change nothing, and count the jobs
    #[arg(long, conflicts_with = "key")]
    dry_run: bool,

    /// Do not ask before many jobs are cancelled
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    server: Server,
}

#[derive(clap::Args, Debug)]
pub(crate) struct Postpone {
    #[command(flatten)]
    which: Which,

    #[command(flatten)]
    when: When,

    /// So much later than each of many jobs is due
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, conflicts_with_all = ["after", "at", "key"])]
    by: Option<Duration>,

    /// Change nothing, and count the jobs
    #[arg(long, conflicts_with = "key")]
    dry_run: bool,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    server: Server,
}

#[derive(clap::Args, Debug)]
pub(crate) struct Fire {
    #[command(flatten)]
    which: Which,

    /// Change nothing, and count the jobs
    #[arg(long, conflicts_with = "key")]
    dry_run: bool,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    server: Server,
}

pub(crate) async fn cancel(options: Cancel) -> anyhow::Result<()> {
    let client = options.server.connect().await?;
    let which = &options.which;
    let Some(key) = &which.key else {
        let counted = which.among(&client).cancel().dry_run().await?;
        if options.dry_run {
            return tell_many(counted, true, options.form);
        }
        let what = format!("this cancels {}", which.jobs(counted.matched));
        ask::confirm(&what, options.yes)?;
        let report = which.among(&client).cancel().await?;
        return tell_many(report, false, options.form);
    };
    #[derive(Serialize)]
    struct Answer<'a> {
        key: &'a str,
        running: bool,
    }
    let (running, sentence) = match client.cancel(key).await? {
        Cancelled::Cancelled => (false, "is cancelled: it will never start"),
        Cancelled::Running => (true, "is running: it is told to stop, and is not retried"),
        Cancelled::Absent => return Err(absent(key)),
    };
    let answer = Answer {
        key: key.as_str(),
        running,
    };
    options.form.say(&answer, format!("{key} {sentence}"))?;
    Ok(())
}

pub(crate) async fn postpone(options: Postpone) -> anyhow::Result<()> {
    let Postpone {
        which, when, by, ..
    } = &options;
    let at = when.at()?;
    if when.is_open() && by.is_none() {
        let missing = "to when? say `--after 15m` or `--at 'tomorrow 9:00'`, or, of many jobs, \
                       `--by 1h`";
        return Err(Stop::wrong(missing).into());
    }
    let client = options.server.connect().await?;
    let Some(key) = &which.key else {
        let mut call = which.among(&client).postpone();
        if let Some(delay) = when.after {
            call = call.after(delay);
        }
        if let Some(due) = at {
            call = call.at(due);
        }
        if let Some(delay) = by {
            call = call.by(*delay);
        }
        if options.dry_run {
            call = call.dry_run();
        }
        return tell_many(call.await?, options.dry_run, options.form);
    };
    let mut call = client.reschedule(key);
    if let Some(delay) = when.after {
        call = call.after(delay);
    }
    if let Some(due) = at {
        call = call.at(due);
    }
    tell_one(key, call.await?, options.form)
}

pub(crate) async fn fire(options: Fire) -> anyhow::Result<()> {
    let client = options.server.connect().await?;
    let which = &options.which;
    let Some(key) = &which.key else {
        let mut call = which.among(&client).fire_now();
        if options.dry_run {
            call = call.dry_run();
        }
        return tell_many(call.await?, options.dry_run, options.form);
    };
    tell_one(key, client.fire_now(key).await?, options.form)
}

fn tell_one(key: &JobKey, changed: Rescheduled, form: Form) -> anyhow::Result<()> {
    #[derive(Serialize)]
    struct Answer<'a> {
        key: &'a str,
        /// Whether it runs, and what will follow the run was moved.
        successor: bool,
        due: Timestamp,
    }
    let (successor, due): (bool, SystemTime) = match changed {
        Rescheduled::Moved(due) => (false, due),
        Rescheduled::SuccessorMoved(due) => (true, due),
        Rescheduled::Running => return Err(anyhow!("{key} is running: it was left as it is")),
        _ => return Err(absent(key)),
    };
    let answer = Answer {
        key: key.as_str(),
        successor,
        due: stamp(due),
    };
    let what = if successor { ", after its run," } else { "" };
    form.say(&answer, format!("{key}{what} is due {}", shown(due)))?;
    Ok(())
}

/// What became of many, or would.
pub(crate) fn tell_many(report: BulkReport, dry_run: bool, form: Form) -> anyhow::Result<()> {
    #[derive(Serialize)]
    struct Answer {
        matched: u64,
        done: u64,
        running: u64,
        skipped: u64,
        dry_run: bool,
    }
    let BulkReport {
        matched,
        done,
        running,
        skipped,
        ..
    } = report;
    let answer = Answer {
        matched,
        done,
        running,
        skipped,
        dry_run,
    };
    let sentence = if dry_run {
        format!("{matched} matched, and nothing was changed")
    } else {
        let mut parts = vec![format!("{done} of {matched} done")];
        if running > 0 {
            parts.push(format!("{running} running, and told to stop"));
        }
        if skipped > 0 {
            parts.push(format!("{skipped} left as they are"));
        }
        parts.join(", ")
    };
    form.say(&answer, sentence)?;
    Ok(())
}

fn absent(key: &JobKey) -> anyhow::Error {
    Stop::absent(format!("there is no job {key}")).into()
}
