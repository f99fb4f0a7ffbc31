//! The phase `burst`: the rate at which jobs run that fall due at one instant.

use std::time::Duration;

use super::args::Options;
use super::bar::Bar;
use super::bare::BareWrites;
use super::cost::Meter;
use super::crew::Crew;
use super::figures::Figures;
use super::ground::Ground;
use super::lateness::{lead, warn_if_late};
use super::stock;

/// The pause between the last schedule and the due time, in which the server comes to rest.
pub(super) const REST: Duration = Duration::from_secs(1);

/// Measures the rate from the due time to the last settlement, and the CPU time of Redis for each
/// job, scheduling included. Bare writes before and after it show the speed of the machine.
pub(super) async fn measure(
    ground: &Ground,
    options: &Options,
    bar: &Bar,
    figures: &mut Figures,
) -> anyhow::Result<()> {
    let payload = stock::payload(options.payload);
    let beside = options.burst..options.burst + options.beside();
    stock::pend(ground, &ground.kind(), &payload, beside, bar).await?;
    let mut bare = BareWrites::new(ground, options).await?;
    bare.write(options.burst, bar).await?;
    let mut crew = Crew::start(ground, options, options.instances, options.burst).await?;

    let before = ground.usage().await?;
    let due = ground.time().await?.plus(lead(options.burst) + REST);
    bar.begin("scheduling", options.burst);
    stock::schedule(
        ground,
        &ground.kind(),
        &payload,
        0..options.burst,
        |_| due.server,
        bar,
    )
    .await?;
    warn_if_late(due, bar);
    let meter = Meter::start(ground).await?;
    crew.finish(ground, due.here, bar).await?;
    let took = due.here.elapsed();
    figures.note_cost("burst", meter.read(options.burst).await?);
    let used = ground.usage().await?.since(before);
    bare.write(options.burst, bar).await?;
    crew.stop().await?;

    let jobs = options.burst as f64;
    let rate = jobs / took.as_secs_f64();
    figures.note("burst_jobs_per_s", rate);
    figures.note("burst_to_bare", rate / bare.rate());
    figures.note("burst_redis_cpu_us_per_job", used.cpu_us / jobs);
    Ok(())
}
