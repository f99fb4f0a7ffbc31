//! What jobs cost that are not due for an hour: memory, and what workers send meanwhile.

use std::time::Duration;

use tokio::time::sleep;

use super::args::Options;
use super::bar::Bar;
use super::crew::Crew;
use super::figures::Figures;
use super::ground::Ground;
use super::stock;
use super::watch::Watch;

/// A worker that has just started looks around.
const SETTLING_IN: Duration = Duration::from_secs(2);

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
