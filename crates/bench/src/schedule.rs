//! The phases `schedule` and `bulk`: the rate of scheduling jobs that are due in an hour, beside bare
//! writes.

use std::ops::Range;
use std::time::Instant;

use anyhow::Context;
use tokio::task::JoinSet;

use super::args::Options;
use super::bar::Bar;
use super::bare::BareWrites;
use super::cost::{Cost, Meter};
use super::figures::Figures;
use super::ground::{self, Ground};
use super::stock::{self, HOUR};

/// The number of tasks that call at the same time.
pub(super) const TASKS: usize = 64;

/// How often bare writes and schedules take turns: on a machine whose speed changes, both meet the
/// same changes.
const TURNS: usize = 4;

/// Measures rate and cost of calls that schedule one job each.
pub(super) async fn one_by_one(
    ground: &Ground,
    options: &Options,
    bar: &Bar,
    figures: &mut Figures,
) -> anyhow::Result<()> {
    let schedule = async |numbers| single(ground, options, numbers, bar).await;
    let turns = in_turns(ground, options, bar, schedule).await?;
    figures.note_cost("schedule", turns.cost);
    figures.note("schedule_jobs_per_s", turns.rate);
    figures.note("schedule_to_bare", turns.to_bare);
    Ok(())
}

/// Measures rate and cost of calls that schedule many jobs.
pub(super) async fn in_bulk(
    ground: &Ground,
    options: &Options,
    bar: &Bar,
    figures: &mut Figures,
) -> anyhow::Result<()> {
    let schedule = async |numbers| bulk(ground, options, numbers, bar).await;
    let turns = in_turns(ground, options, bar, schedule).await?;
    figures.note_cost("bulk", turns.cost);
    figures.note("schedule_bulk_jobs_per_s", turns.rate);
    figures.note("schedule_bulk_to_bare", turns.to_bare);
    Ok(())
}

/// The schedules of all turns, without the bare writes.
struct Turns {
    cost: Cost,
    /// Jobs scheduled in a second.
    rate: f64,
    /// This rate as a share of the rate of the bare writes.
    to_bare: f64,
}

/// Schedules the jobs of the options by `schedule`, in [`TURNS`] with as many bare writes.
async fn in_turns(
    ground: &Ground,
    options: &Options,
    bar: &Bar,
    schedule: impl AsyncFn(Range<usize>) -> anyhow::Result<f64>,
) -> anyhow::Result<Turns> {
    let mut bare = BareWrites::new(ground, options).await?;
    let (mut meter, mut took) = (Meter::start(ground).await?, 0.0);
    for turn in 0..TURNS {
        let numbers = options.jobs * turn / TURNS..options.jobs * (turn + 1) / TURNS;
        let jobs = numbers.len();
        if jobs > 0 {
            meter.without(bare.write(jobs, bar)).await?;
            took += jobs as f64 / schedule(numbers).await?;
        }
    }
    let rate = options.jobs as f64 / took;
    Ok(Turns {
        cost: meter.read(options.jobs).await?,
        rate,
        to_bare: rate / bare.rate(),
    })
}

/// Schedules these jobs, and returns the jobs in a second. Each call schedules one job, and each
/// task waits for the answer before its next call.
pub(super) async fn single(
    ground: &Ground,
    options: &Options,
    numbers: Range<usize>,
    bar: &Bar,
) -> anyhow::Result<f64> {
    let payload = stock::payload(options.payload);
    let (client, kind) = (ground.client.clone(), ground.kind());
    let call = move |number| {
        let (client, key) = (client.clone(), ground::key(&kind, number));
        let payload = payload.clone();
        async move {
            let call = client.schedule_bytes(key, payload);
            call.after(HOUR).await?;
            Ok(())
        }
    };
    from_many_tasks(numbers, call, bar).await
}

/// Schedules these jobs, many with each call, and returns the jobs in a second.
pub(super) async fn bulk(
    ground: &Ground,
    options: &Options,
    numbers: Range<usize>,
    bar: &Bar,
) -> anyhow::Result<f64> {
    let payload = stock::payload(options.payload);
    let (jobs, began) = (numbers.len(), Instant::now());
    stock::pend(ground, &ground.kind(), &payload, numbers, bar).await?;
    Ok(jobs as f64 / began.elapsed().as_secs_f64())
}

/// Makes a call for each number, [`TASKS`] at the same time, and returns the calls in a second.
pub(super) async fn from_many_tasks<F>(
    numbers: Range<usize>,
    call: impl Fn(usize) -> F + Clone + Send + 'static,
    bar: &Bar,
) -> anyhow::Result<f64>
where
    F: Future<Output = anyhow::Result<()>> + Send,
{
    bar.begin("scheduling", TASKS);
    let (jobs, began) = (numbers.len(), Instant::now());
    let mut tasks = JoinSet::<anyhow::Result<()>>::new();
    for task in 0..TASKS {
        let (call, numbers) = (call.clone(), numbers.clone());
        tasks.spawn(async move {
            for number in numbers.skip(task).step_by(TASKS) {
                call(number).await?;
            }
            Ok(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.context("a task panicked")??;
        bar.advance(1);
    }
    Ok(jobs as f64 / began.elapsed().as_secs_f64())
}
