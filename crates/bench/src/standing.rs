//! The phases `memory` and `idle`: the cost of jobs that are not due for an hour, as memory of
//! Redis and as commands of idle workers.

use std::time::Duration;

use tokio::time::sleep;

use super::args::Options;
use super::bar::Bar;
use super::crew::Crew;
use super::figures::Figures;
use super::ground::Ground;
use super::stock;
use super::watch::Watch;

/// How long workers may settle in before the idle phase counts: a new worker sends more commands.
const SETTLING_IN: Duration = Duration::from_secs(2);

/// Measures the memory of a pending job.
pub(super) async fn memory(
    ground: &Ground,
    options: &Options,
    bar: &Bar,
    figures: &mut Figures,
) -> anyhow::Result<()> {
    let jobs = options.standing();
    let payload = stock::payload(options.payload);
    let before = ground.usage().await?;
    stock::pend(ground, &ground.kind(), &payload, 0..jobs, bar).await?;
    let used = ground.usage().await?.since(before);
    figures.note("bytes_per_pending_job", used.memory / jobs as f64);
    Ok(())
}

/// Counts the commands of idle workers during the window.
pub(super) async fn idle(
    ground: &Ground,
    options: &Options,
    bar: &Bar,
    figures: &mut Figures,
) -> anyhow::Result<()> {
    let payload = stock::payload(options.payload);
    let each = options.standing().div_ceil(options.kinds.into());
    for kind in ground.kinds(options.kinds) {
        stock::pend(ground, &kind, &payload, 0..each, bar).await?;
    }
    let mut crew = Crew::start(ground, options, options.instances, 0).await?;
    sleep(SETTLING_IN).await;

    let watch = Watch::start(ground).await?;
    bar.begin("watching", 1);
    tokio::select! {
        () = sleep(options.window) => {}
        error = crew.failed() => return Err(error),
    }
    let seen = watch.end(ground).await?;
    crew.stop().await?;
    let window = options.window.as_secs_f64();
    figures.note("idle_commands_per_s", seen.commands as f64 / window);
    Ok(())
}
