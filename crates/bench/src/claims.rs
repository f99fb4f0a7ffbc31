//! The phase `claims`: how often all workers together ask for a job.

use super::args::Options;
use super::bar::Bar;
use super::crew::Crew;
use super::figures::Figures;
use super::ground::Ground;
use super::lateness::{due_after, lead};
use super::stock;
use super::watch::Watch;

/// The most jobs of this phase: a server under MONITOR is slower, and this many suffice.
const MOST_JOBS: usize = 2000;

/// Measures the claims for each job. Jobs fall due at the rate of the lateness phase.
pub(super) async fn measure(
    ground: &Ground,
    options: &Options,
    bar: &Bar,
    figures: &mut Figures,
) -> anyhow::Result<()> {
    let jobs = options.jobs.min(MOST_JOBS);
    let payload = stock::payload(options.payload);
    let mut crew = Crew::start(ground, options, options.instances, jobs).await?;
    let watch = Watch::start(ground).await?;
    let start = ground.time().await?.plus(lead(jobs));
    let due = |number| start.server + due_after(number, options);
    bar.begin("scheduling", jobs);
    stock::schedule(ground, &ground.kind(), &payload, 0..jobs, due, bar).await?;
    let last = start.here + due_after(jobs, options);
    crew.finish(ground, last, bar).await?;
    let seen = watch.end(ground).await?;
    let claims = seen.named + crew.stop().await?.unnamed;
    figures.note("claims_per_job", claims as f64 / jobs as f64);
    Ok(())
}
