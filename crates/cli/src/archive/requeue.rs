//! `keyfall archive requeue`: schedules jobs that have ended again.

use keyfall::{JobKey, LaneId};
use keyfall_daemon::shapes::{
    ArchiveRequeueIn, ArchiveRequeueOut, EndedIn, EndedRequeueIn, Moment, Time,
};

use crate::ask;
use crate::connect::Server;
use crate::jobs::Jobs;
use crate::out::Form;
use crate::progress::Progress;
use crate::stop::Stop;
use crate::when::{When, shown};
use crate::which::Which;

#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    which: Which,

    /// The run of the job that ended at this time, as `archive search --json` shows it; by default
    /// the last one
    #[arg(long, value_name = "TIME", value_parser = ended)]
    ended: Option<Time>,

    #[command(flatten)]
    when: When,

    /// How the jobs ended: done, skipped, cancelled, replaced or buried
    #[arg(long)]
    how: Option<String>,

    /// Jobs that ended at this time or later, 2026-12-24T18:00:00Z, or within the last 7d
    #[arg(long, value_name = "TIME")]
    since: Option<Moment>,

    /// Jobs that ended before this time, or longer ago than this
    #[arg(long, value_name = "TIME")]
    until: Option<Moment>,

    /// Jobs whose error has all of these words
    #[arg(long, value_name = "WORDS")]
    error: Option<String>,

    /// The name of a requeue that ended early, as its error says: no job is scheduled twice
    #[arg(long, value_name = "NAME", value_parser = name)]
    call: Option<LaneId>,

    /// Go on at the end of that requeue
    #[arg(long, value_name = "CURSOR", requires = "call")]
    cursor: Option<String>,

    /// Change nothing, and count the jobs
    #[arg(long)]
    dry_run: bool,

    /// Do not ask before many jobs are requeued
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    server: Server,
}

fn ended(text: &str) -> Result<Time, String> {
    let time = text.parse::<jiff::Timestamp>();
    let time =
        time.map_err(|_| "write it as `archive search --json` does: 2026-12-24T18:00:00.000001Z")?;
    Ok(Time(time.into()))
}

fn name(text: &str) -> Result<LaneId, &'static str> {
    LaneId::parse(text).map_err(|_| "write the 24 hexadecimal digits that the error has")
}

pub(super) async fn run(options: Options) -> anyhow::Result<()> {
    let which = &options.which;
    for (flag, is_given) in [
        ("--how", options.how.is_some()),
        ("--since", options.since.is_some()),
        ("--until", options.until.is_some()),
        ("--error", options.error.is_some()),
        ("--call", options.call.is_some()),
        ("--cursor", options.cursor.is_some()),
        ("--dry-run", options.dry_run),
    ] {
        which.refuse_for_one(flag, is_given)?;
    }
    which.refuse_for_many("--ended", options.ended.is_some())?;
    if which.key().is_none() && !options.when.is_open() {
        let wrong = "many jobs are requeued to be due now: leave out `--after` and `--at`, or postpone \
                     the jobs afterwards";
        return Err(Stop::wrong(wrong).into());
    }
    let jobs = options.server.connect().await?;
    match which.key() {
        Some(key) => one(&jobs, key, &options).await,
        None => many(&jobs, &options).await,
    }
}

async fn one(jobs: &Jobs, key: &JobKey, options: &Options) -> anyhow::Result<()> {
    let ended = match options.ended {
        Some(ended) => ended,
        None => jobs.ended(key, &EndedIn::default()).await?.run.ended,
    };
    let wanted = EndedRequeueIn {
        ended,
        after: options.when.after(),
        at: options.when.at()?,
        call: Some(LaneId::new().to_string()),
    };
    let requeued = jobs.requeue_ended(key, &wanted).await?;
    let due = match requeued.due {
        Some(due) => format!("due {}", shown(due)),
        None => "and has begun".to_owned(),
    };
    options
        .form
        .say(&requeued, format!("{key} is pending again: {due}"))?;
    Ok(())
}

async fn many(jobs: &Jobs, options: &Options) -> anyhow::Result<()> {
    let call = options.call.clone().unwrap_or_else(LaneId::new);
    let wanted = |dry_run| ArchiveRequeueIn {
        everything: options.which.prefix().is_none(),
        prefix: options.which.prefix(),
        how: options.how.clone(),
        since: options.since,
        until: options.until,
        error: options.error.clone(),
        cursor: options.cursor.clone(),
        call: Some(call.to_string()),
        dry_run,
        ..ArchiveRequeueIn::default()
    };
    let counted = all(jobs, wanted(true), &Progress::new(None, "jobs found")).await?;
    if options.dry_run {
        return tell(&counted, options.form);
    }
    let lacking = match counted.without_payload {
        0 => String::new(),
        lacking => {
            format!("; the archive lacks the payloads of {lacking} of them, which stay as they are")
        }
    };
    let ended = options.which.jobs(counted.matched);
    ask::confirm(
        &format!("this schedules again what has ended: {ended}{lacking}"),
        options.yes,
    )?;
    let progress = Progress::new(Some(counted.matched), "jobs");
    let requeued = all(jobs, wanted(false), &progress).await?;
    drop(progress);
    tell(&requeued, options.form)
}

/// Repeats the call until there are no more jobs, and adds up the answers.
async fn all(
    jobs: &Jobs,
    mut wanted: ArchiveRequeueIn,
    progress: &Progress,
) -> anyhow::Result<ArchiveRequeueOut> {
    let mut sum = ArchiveRequeueOut {
        dry_run: wanted.dry_run,
        ..ArchiveRequeueOut::default()
    };
    loop {
        let part = match jobs.requeue_many_ended(&wanted).await {
            Ok(part) => part,
            Err(error) if wanted.dry_run => return Err(error),
            Err(error) => return Err(error.context(broken_off(&wanted))),
        };
        sum.matched += part.matched;
        sum.done += part.done;
        sum.skipped += part.skipped;
        sum.without_payload += part.without_payload;
        progress.advance(usize::try_from(part.matched).unwrap_or(usize::MAX));
        if part.next.is_none() {
            return Ok(sum);
        }
        wanted.cursor = part.next;
    }
}

/// How to go on after an error, so that no job is scheduled twice.
fn broken_off(wanted: &ArchiveRequeueIn) -> String {
    let call = wanted.call.as_deref().unwrap_or_default();
    let cursor = match &wanted.cursor {
        Some(cursor) => format!(" --cursor '{cursor}'"),
        None => String::new(),
    };
    format!("it ended early: go on within an hour with `--call {call}{cursor}`")
}

fn tell(report: &ArchiveRequeueOut, form: Form) -> anyhow::Result<()> {
    let mut parts = vec![match report.dry_run {
        true => format!("{} matched, and nothing was changed", report.matched),
        false => format!("{} of {} done", report.done, report.matched),
    }];
    if report.skipped > 0 {
        parts.push(format!("{} left as they are", report.skipped));
    }
    if report.without_payload > 0 {
        parts.push(format!(
            "{} without a payload in the archive",
            report.without_payload
        ));
    }
    form.say(report, parts.join(", "))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::jobs::answers::{self, found, refused};

    #[tokio::test]
    async fn a_requeue_that_ends_early_says_how_to_go_on() {
        let page = ArchiveRequeueOut {
            matched: 1000,
            done: 1000,
            next: Some("17/x".to_owned()),
            ..ArchiveRequeueOut::default()
        };
        let told = async |is_first: bool, dry_run: bool| {
            let wanted = ArchiveRequeueIn {
                call: Some("0123456789abcdef01234567".to_owned()),
                dry_run,
                ..ArchiveRequeueIn::default()
            };
            let mut answers = vec![refused(503, "unavailable", 1)];
            if !is_first {
                answers.insert(0, found(&page));
            }
            let (jobs, progress) = (answers::jobs(answers), Progress::new(None, "jobs"));
            let error = all(&jobs, wanted, &progress).await.unwrap_err();
            assert!(Stop::is_passing(&error), "{error:#}");
            format!("{error:#}")
        };
        let error = told(true, false).await;
        let flags = "`--call 0123456789abcdef01234567`";
        assert!(error.contains(flags), "{error}");
        let error = told(false, false).await;
        let flags = "`--call 0123456789abcdef01234567 --cursor '17/x'`";
        assert!(error.contains(flags), "{error}");
        let error = told(false, true).await;
        assert!(!error.contains("--call"), "a count: {error}");
    }
}
