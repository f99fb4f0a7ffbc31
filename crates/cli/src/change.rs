//! `keyfall cancel`, `postpone` and `fire`: of one job, or of many.

use std::time::Duration;

use super::ask;
use super::connect::Server;
use super::durably::Durably;
use super::out::Form;
use super::stop::Stop;
use super::unseen;
use super::when::{When, shown};
use super::which::Which;
use keyfall_daemon::duration;
use keyfall_daemon::shapes::{BulkIn, BulkOut, BulkPostponeIn, ChangedOut, PostponeIn, Span};

#[derive(clap::Args, Debug)]
pub(crate) struct Cancel {
    #[command(flatten)]
    which: Which,

    /// Change nothing, and count the jobs
    #[arg(long)]
    dry_run: bool,

    /// Do not ask before many jobs are cancelled
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    durably: Durably,

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

    /// Postpone each of many jobs by this duration
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, conflicts_with_all = ["after", "at"])]
    by: Option<Duration>,

    /// Change nothing, and count the jobs
    #[arg(long)]
    dry_run: bool,

    /// Do not ask before many jobs are postponed
    #[arg(long)]
    yes: bool,

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
    #[arg(long)]
    dry_run: bool,

    /// Do not ask before many jobs are fired
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    server: Server,
}

pub(crate) async fn cancel(options: Cancel) -> anyhow::Result<()> {
    let which = &options.which;
    let asked = options.durably.asked();
    which.refuse_for_one("--dry-run", options.dry_run)?;
    if which.key().is_none() && asked.is_any() {
        let one = "a cancel of many jobs cannot be durable: name one job, or leave out \
                   `--durable` and `--fsynced`";
        return Err(Stop::wrong(one).into());
    }
    let jobs = options.server.connect().await?;
    let Some(key) = which.key() else {
        let counted = jobs.cancel_many(&which.many(true)).await?;
        if options.dry_run {
            return tell_many(&counted, options.form);
        }
        let what = format!("this cancels {}", which.jobs(counted.matched));
        ask::confirm(&what, options.yes)?;
        let report = jobs.cancel_many(&which.many(false)).await?;
        return tell_many(&report, options.form);
    };
    let cancelled = jobs.cancel(key, asked).await?;
    let sentence = if cancelled.running {
        "is running: it is told to stop, and is not retried"
    } else {
        "is cancelled: it will never start"
    };
    let reached = options.durably.told(cancelled.reached);
    options
        .form
        .say(&cancelled, format!("{key} {sentence}{reached}"))?;
    Ok(())
}

pub(crate) async fn postpone(options: Postpone) -> anyhow::Result<()> {
    let Postpone {
        which, when, by, ..
    } = &options;
    let (after, at) = (when.after(), when.at()?);
    if when.is_open() && by.is_none() {
        let missing = "the new due time is missing: give `--after 15m` or `--at 'tomorrow 9:00'`, \
                       or, for many jobs, `--by 1h`";
        return Err(Stop::wrong(missing).into());
    }
    which.refuse_for_one("--by", by.is_some())?;
    which.refuse_for_one("--dry-run", options.dry_run)?;
    let jobs = options.server.connect().await?;
    let Some(key) = which.key() else {
        let call = |dry_run| {
            let BulkIn {
                prefix,
                everything,
                dry_run,
            } = which.many(dry_run);
            BulkPostponeIn {
                prefix,
                everything,
                dry_run,
                after,
                at,
                by: by.map(Span),
            }
        };
        let counted = jobs.postpone_many(&call(true)).await?;
        if options.dry_run {
            return tell_many(&counted, options.form);
        }
        let what = format!("this postpones {}", which.jobs(counted.matched));
        ask::confirm(&what, options.yes)?;
        return tell_many(&jobs.postpone_many(&call(false)).await?, options.form);
    };
    let changed = jobs.postpone(key, &PostponeIn { after, at }).await?;
    tell_one(&changed, options.form)
}

pub(crate) async fn fire(options: Fire) -> anyhow::Result<()> {
    let which = &options.which;
    which.refuse_for_one("--dry-run", options.dry_run)?;
    let jobs = options.server.connect().await?;
    let Some(key) = which.key() else {
        let counted = jobs.fire_many(&which.many(true)).await?;
        if options.dry_run {
            return tell_many(&counted, options.form);
        }
        let what = format!("this fires {} now", which.jobs(counted.matched));
        ask::confirm(&what, options.yes)?;
        let report = jobs.fire_many(&which.many(false)).await?;
        return tell_many(&report, options.form);
    };
    tell_one(&jobs.fire(key).await?, options.form)
}

fn tell_one(changed: &ChangedOut, form: Form) -> anyhow::Result<()> {
    let what = if changed.successor {
        ", after its run,"
    } else {
        ""
    };
    let sentence = format!("{}{what} is due {}", changed.key, shown(changed.due));
    form.say(changed, sentence)?;
    Ok(())
}

/// Prints the outcome of a call on many jobs, or of its dry run.
pub(crate) fn tell_many(report: &BulkOut, form: Form) -> anyhow::Result<()> {
    let sentence = if report.dry_run {
        format!("{} matched, and nothing was changed", report.matched)
    } else {
        let mut parts = vec![format!("{} of {} done", report.done, report.matched)];
        if report.running > 0 {
            parts.push(format!("{} running, and told to stop", report.running));
        }
        if report.skipped > 0 {
            parts.push(format!("{} left as they are", report.skipped));
        }
        parts.join(", ")
    };
    form.say(report, sentence)?;
    unseen::told(&report.unseen)
}
