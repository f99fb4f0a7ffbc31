//! Runs of which `make cost` counts the instructions.
//!
//! A run consists of parts, and each part ends with a mark: the server receives an `ECHO`, this
//! process calls [`part_ends`], and a line with the name and the number of jobs is printed. Callgrind
//! dumps its counters at these two functions. Nothing else sends an `ECHO`.

use std::hint::black_box;
use std::ops::Range;
use std::time::{Duration, Instant, SystemTime};

use clap::ValueEnum;
use keyfall::{ArchiveTerms, GroupBy, Limit, NewJob, Rule, Shards};
use tokio::time::{sleep, sleep_until};

use super::args::Options;
use super::bar::Bar;
use super::bare::{BATCH, BareWrites};
use super::burst::REST;
use super::crew::Crew;
use super::ground::Ground;
use super::lateness::{due_after, lead};
use super::stock::{self, HOUR};
use super::{ground, schedule};

/// Jobs before the first mark: with them connections open and scripts are loaded.
const WARM_UP: usize = 512;

/// The time before the first due time that belongs to the part with the runs.
const ONSET: Duration = Duration::from_millis(100);

/// How long workers may settle in before an idle part begins.
const SETTLING_IN: Duration = Duration::from_secs(2);

/// A run, the number of its jobs and its times by the options.
#[derive(ValueEnum, Debug, Clone, Copy)]
pub(super) enum Workload {
    /// Calls to schedule one job each, from 64 tasks
    Schedule,
    /// Calls to schedule many jobs
    Bulk,
    /// Bare writes, by a script and as commands
    Bare,
    /// Jobs that are due at one instant, scheduled and run
    Burst,
    /// Jobs with due times spread over the window, scheduled and run
    Paced,
    /// Jobs that are due at one instant, fail once, and wait for a retry
    Retry,
    /// Recurring jobs that are due at one instant, run, and wait for their next time
    Recur,
    /// Jobs that are due at one instant, of a kind with a limit that never holds one back
    Limited,
    /// The same with a limit of each group, and a group for each job
    Groups,
    /// Jobs that are due at one instant, whose records an archiver takes as they end
    Archived,
    /// A server alone, and with workers, both without due jobs
    Idle,
}

/// How many records an archiver takes at once, and how often it looks for some.
const RECORDS: usize = 2_000;
const LOOK: Duration = Duration::from_millis(100);

/// Runs a workload on a private Redis.
pub(super) async fn run(workload: Workload, options: &Options) -> anyhow::Result<()> {
    let ground = &Ground::new(None).await?;
    ground.prepare(options, 1).await?;
    let (bar, jobs) = (&Bar::new(), options.jobs);
    let (warm_up, measured) = (0..WARM_UP, WARM_UP..WARM_UP + jobs);
    match workload {
        Workload::Schedule => {
            schedule::single(ground, options, warm_up, bar).await?;
            mark(ground, "warm-up", WARM_UP).await?;
            schedule::single(ground, options, measured, bar).await?;
            mark(ground, "schedule", jobs).await
        }
        Workload::Bulk => {
            schedule::bulk(ground, options, warm_up, bar).await?;
            mark(ground, "warm-up", WARM_UP).await?;
            schedule::bulk(ground, options, measured, bar).await?;
            mark(ground, "bulk", jobs).await
        }
        Workload::Bare => bare(ground, options, bar).await,
        Workload::Burst => life(ground, options, |_| Duration::ZERO, Fate::Done, bar).await,
        Workload::Paced => {
            let after = |number| due_after(number, options);
            life(ground, options, after, Fate::Done, bar).await
        }
        Workload::Retry => life(ground, options, |_| Duration::ZERO, Fate::Retried, bar).await,
        Workload::Recur => life(ground, options, |_| Duration::ZERO, Fate::Recurs, bar).await,
        Workload::Limited | Workload::Groups => {
            let limit = ample_limit(options.jobs);
            let limit = match workload {
                Workload::Groups => limit.per(GroupBy::id_part(1)),
                _ => limit,
            };
            ground.client.limit(&ground.kind(), limit).await?;
            life(ground, options, |_| Duration::ZERO, Fate::Done, bar).await
        }
        Workload::Archived => {
            // With their payloads, all of them.
            let terms = ArchiveTerms::new().payload(1 << 20).waiting(1 << 30);
            let kind = ground.kind();
            ground.client.prefix(&kind).archive(terms).await?;
            let life = life(ground, options, |_| Duration::ZERO, Fate::Done, bar);
            tokio::select! {
                ended = life => ended,
                failed = take_records(ground) => failed,
            }
        }
        Workload::Idle => idle(ground, options, bar).await,
    }
}

/// Reads the records of ended jobs, and has Redis forget them, as an archiver does.
async fn take_records(ground: &Ground) -> anyhow::Result<()> {
    let kind = ground.kind().parse()?;
    loop {
        let ended = ground.client.ended(&kind, Shards::Present, RECORDS).await?;
        if ended.jobs.is_empty() {
            sleep(LOOK).await;
        } else {
            black_box(&ended.jobs);
            ground.client.forget_ended(&kind, &ended).await?;
        }
    }
}

/// A rate and a concurrency that allow all jobs at once.
fn ample_limit(jobs: usize) -> Limit {
    let all = u32::try_from(WARM_UP + jobs).unwrap_or(u32::MAX);
    let limit = Limit::new().rate(1000, Duration::from_secs(1));
    limit.burst(all).concurrency(all)
}

/// Writes the jobs by a script, and then as many by commands alone.
async fn bare(ground: &Ground, options: &Options, bar: &Bar) -> anyhow::Result<()> {
    let mut script = BareWrites::new(ground, options).await?;
    script.write(WARM_UP, bar).await?;
    write_by_commands(ground, options, 0..WARM_UP).await?;
    mark(ground, "warm-up", WARM_UP).await?;
    script.write(options.jobs, bar).await?;
    mark(ground, "script", options.jobs).await?;
    write_by_commands(ground, options, WARM_UP..WARM_UP + options.jobs).await?;
    mark(ground, "commands", options.jobs).await
}

/// Writes a due time and a payload for each of these jobs, in pipelines as large as a batch of
/// Keyfall.
async fn write_by_commands(
    ground: &Ground,
    options: &Options,
    numbers: Range<usize>,
) -> anyhow::Result<()> {
    let payload = stock::payload(options.payload);
    let due = ground.time().await?.server + HOUR;
    let due = due.duration_since(SystemTime::UNIX_EPOCH)?.as_millis() as u64;
    for first in numbers.clone().step_by(BATCH) {
        let mut pipeline = redis::pipe();
        for number in first..numbers.end.min(first + BATCH) {
            let key = ground::key("bare:trans:notice", number);
            pipeline.zadd("bare:due", number, due).ignore();
            let set = pipeline.cmd("SET").arg(key).arg(&payload[..]);
            set.arg("PXAT").arg(due).ignore();
        }
        let () = pipeline.query_async(&mut ground.redis()).await?;
    }
    Ok(())
}

/// What follows the run of each job.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Done,
    Retried,
    Recurs,
}

/// Schedules jobs with these due times in bulk, and runs them.
async fn life(
    ground: &Ground,
    options: &Options,
    after: impl Fn(usize) -> Duration,
    fate: Fate,
    bar: &Bar,
) -> anyhow::Result<()> {
    let (kind, payload) = (ground.kind(), stock::payload(options.payload));
    let mut crew = Crew::start(ground, options, options.instances, WARM_UP).await?;
    let now = ground.time().await?;
    let numbers = 0..WARM_UP;
    stock::schedule(ground, &kind, &payload, numbers, |_| now.server, bar).await?;
    crew.finish(ground, now.here, bar).await?;
    mark(ground, "warm-up", WARM_UP).await?;

    let jobs = options.jobs;
    crew.expect(jobs);
    if fate == Fate::Retried {
        crew.fail();
    }
    let start = ground.time().await?.plus(lead(jobs) + REST);
    let numbers = WARM_UP..WARM_UP + jobs;
    let due = |number| start.server + after(number - WARM_UP);
    // Its first time is the due time.
    let rule = Rule::every(HOUR)?.starting(start.server)?;
    let job = |number| {
        let job = NewJob::from_bytes(ground::key(&kind, number), payload.clone());
        match fate {
            Fate::Recurs => job.recurring(rule.clone()),
            Fate::Done | Fate::Retried => job.at(due(number)),
        }
    };
    stock::schedule_jobs(ground, numbers, job, bar).await?;
    mark(ground, "schedule", jobs).await?;
    anyhow::ensure!(
        Instant::now() + ONSET < start.here,
        "jobs were due before all of them were scheduled: slow the clock down more"
    );
    sleep_until((start.here - ONSET).into()).await;
    mark(ground, "wait", jobs).await?;
    crew.finish(ground, start.here + after(jobs), bar).await?;
    mark(ground, "run", jobs).await?;
    crew.stop().await?;
    Ok(())
}

/// Waits for the window twice, without workers and with workers. The jobs of these two parts are
/// seconds.
async fn idle(ground: &Ground, options: &Options, bar: &Bar) -> anyhow::Result<()> {
    let payload = stock::payload(options.payload);
    let seconds = options.window.as_secs() as usize;
    stock::pend(ground, &ground.kind(), &payload, 0..options.jobs, bar).await?;
    mark(ground, "warm-up", options.jobs).await?;
    sleep(options.window).await;
    mark(ground, "alone", seconds).await?;
    let mut crew = Crew::start(ground, options, options.instances, 0).await?;
    sleep(SETTLING_IN).await;
    mark(ground, "start", 1).await?;
    tokio::select! {
        () = sleep(options.window) => {}
        error = crew.failed() => return Err(error),
    }
    mark(ground, "idle", seconds).await?;
    crew.stop().await?;
    Ok(())
}

/// Ends a part of so many jobs.
async fn mark(ground: &Ground, part: &str, jobs: usize) -> anyhow::Result<()> {
    let mut echo = redis::cmd("ECHO");
    let () = echo.arg(part).query_async(&mut ground.redis()).await?;
    part_ends();
    println!("{part} {jobs}");
    Ok(())
}

/// Does nothing. Its name is where a count of this process ends a part.
#[inline(never)]
fn part_ends() {
    black_box(());
}
