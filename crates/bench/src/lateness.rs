//! The phase `lateness`: the delay of jobs with due times spread over the window, and their cost.

use std::time::Duration;

use super::args::Options;
use super::bar::Bar;
use super::cost::Meter;
use super::crew::Crew;
use super::figures::Figures;
use super::ground::{Ground, Moment};
use super::histogram::Histogram;
use super::stock;

/// Measures lateness and cost, beside the waiting jobs of the options.
pub(super) async fn measure(
    ground: &Ground,
    options: &Options,
    bar: &Bar,
    figures: &mut Figures,
) -> anyhow::Result<()> {
    let payload = stock::payload(options.payload);
    let beside = options.jobs..options.jobs + options.beside();
    stock::pend(ground, &ground.kind(), &payload, beside, bar).await?;
    let mut crew = Crew::start(ground, options, options.instances, options.jobs).await?;

    let before = ground.usage().await?;
    let start = ground.time().await?.plus(lead(options.jobs));
    let due = |number| start.server + due_after(number, options);
    bar.begin("scheduling", options.jobs);
    stock::schedule(ground, &ground.kind(), &payload, 0..options.jobs, due, bar).await?;
    warn_if_late(start, bar);
    let meter = Meter::start(ground).await?;
    crew.finish(ground, start.here + options.window, bar)
        .await?;
    figures.note_cost("firing", meter.read(options.jobs).await?);
    let used = ground.usage().await?.since(before);
    let mut lags = crew.stop().await?.lags;

    let jobs = options.jobs as f64;
    let early = lags.iter().filter(|lag| lag.is_zero()).count();
    figures.note("early", early as f64);
    figures.note("commands_per_job", used.commands / jobs);
    figures.note("redis_cpu_us_per_job", used.cpu_us / jobs);
    figures.note_lateness(LATENESS, &mut lags);
    figures.lateness.merge(&Histogram::of(&lags));
    Ok(())
}

/// The figures of the percentiles of lateness.
const LATENESS: [&str; 5] = [
    "lateness_ms.p50",
    "lateness_ms.p90",
    "lateness_ms.p99",
    "lateness_ms.p999",
    "lateness_ms.max",
];

/// The due time of a job, from the start of the window: the jobs are spread evenly.
pub(super) fn due_after(number: usize, options: &Options) -> Duration {
    options.window.mul_f64(number as f64 / options.jobs as f64)
}

/// The time from the first schedule to the first due time: long enough to schedule `jobs` jobs.
pub(super) fn lead(jobs: usize) -> Duration {
    Duration::from_secs(1) + Duration::from_micros(100) * u32::try_from(jobs).unwrap_or(u32::MAX)
}

/// Warns if the first due time is over when scheduling ends: figures that count from due times mean
/// less then.
pub(super) fn warn_if_late(start: Moment, bar: &Bar) {
    let late = start.here.elapsed();
    if !late.is_zero() {
        bar.warn(&format!(
            "scheduling went on for {late:.1?} after the first job was due: this machine is too \
             busy, or the build is not optimized"
        ));
    }
}
