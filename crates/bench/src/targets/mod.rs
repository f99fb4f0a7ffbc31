//! The phase `targets`: the rates at which jobs that are due at one instant go to each target and
//! to a function that does nothing, and their ratios, which show the cost of a target.
//!
//! | part | contents |
//! |---|---|
//! | [`receiver`] | an HTTP server that accepts every request |
//! | [`pops`] | a thousand waiting consumers of the classic interface |

mod pops;
mod receiver;

use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use keyfall::{Handler, Route, Router, Worker, target};
use tokio::time::{interval, timeout};
use tokio_util::sync::CancellationToken;

use super::args::Options;
use super::bar::Bar;
use super::crew::PATIENCE;
use super::figures::Figures;
use super::ground::{Ground, Moment};
use super::lateness::{lead, warn_if_late};
use super::stock;
use receiver::Receiver;

/// Measures all targets, each with a kind of its own.
pub(super) async fn measure(
    ground: &Ground,
    options: &Options,
    bar: &Bar,
    figures: &mut Figures,
) -> anyhow::Result<()> {
    let receiver = Receiver::start().await?;
    let (url, namespace) = ground.place();
    let beside = |name| format!("{namespace}:{name}");
    let function = async || ();
    let mut kinds = ground.kinds(6).skip(1);
    let mut rate = async |route: Route| {
        let kind = kinds.next().expect("there are enough");
        one(ground, options, &kind, route, bar).await
    };
    let here = rate(function.into_route()).await?;
    let called = rate(target::http(receiver.url()).into_route()).await?;
    let listed = rate(target::list(url, &beside("list")).into_route()).await?;
    let streamed = rate(target::stream(url, &beside("stream")).into_route()).await?;
    let (waiting, popped) = pops::measure(ground, options, bar).await?;
    figures.note("function_jobs_per_s", here);
    figures.note("callback_jobs_per_s", called);
    figures.note("callback_ratio", called / here);
    figures.note("list_jobs_per_s", listed);
    figures.note("list_ratio", listed / here);
    figures.note("stream_jobs_per_s", streamed);
    figures.note("stream_ratio", streamed / here);
    figures.note("pop_jobs_per_s", popped);
    figures.note("pop_in_process_jobs_per_s", waiting);
    figures.note("pop_ratio", popped / waiting);
    Ok(())
}

/// The jobs that are done in a second with this route.
async fn one(
    ground: &Ground,
    options: &Options,
    kind: &str,
    route: Route,
    bar: &Bar,
) -> anyhow::Result<f64> {
    let routes = Router::new().try_route(&format!("{kind}:*"), route)?;
    let client = ground.another_client().await?;
    let stop = CancellationToken::new();
    let worker = Worker::new(client, routes).concurrency(options.concurrency);
    let mut worker = tokio::spawn(worker.run_until(stop.clone().cancelled_owned()));
    let due = fall_due(ground, options, kind, Duration::ZERO, bar).await?;
    let done = tokio::select! {
        done = done(ground, options.burst, kind, bar) => done?,
        _ = &mut worker => return Err(anyhow!("the worker ended")),
    };
    stop.cancel();
    worker.await.context("the worker panicked")??;
    Ok(options.burst as f64 / (done - due.here).as_secs_f64())
}

/// Schedules the jobs of a burst, all due at the moment that it returns, with at least `rest`
/// between the last call and that moment.
async fn fall_due(
    ground: &Ground,
    options: &Options,
    kind: &str,
    rest: Duration,
    bar: &Bar,
) -> anyhow::Result<Moment> {
    bar.begin("scheduling", options.burst);
    let payload = stock::payload(options.payload);
    let due = ground.time().await?.plus(lead(options.burst) + rest);
    let jobs = 0..options.burst;
    stock::schedule(ground, kind, &payload, jobs, |_| due.server, bar).await?;
    warn_if_late(due, bar);
    Ok(due)
}

/// Waits until `jobs` jobs of a kind are done, and returns that instant.
async fn done(ground: &Ground, jobs: usize, kind: &str, bar: &Bar) -> anyhow::Result<Instant> {
    bar.begin("running", jobs);
    let done = async {
        // Often enough for an exact ratio, and too seldom to influence it.
        let mut look = interval(Duration::from_millis(10));
        loop {
            look.tick().await;
            let done = ground.client.stats(kind).await?.done;
            let now = Instant::now();
            if done >= jobs as u64 {
                return anyhow::Ok(now);
            }
            bar.reach(usize::try_from(done)?);
        }
    };
    let done = timeout(PATIENCE, done).await;
    done.with_context(|| format!("not all jobs of {kind} were done within {PATIENCE:?}"))?
}
