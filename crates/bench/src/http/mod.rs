//! The phase `http`: the rates of scheduling and pulling over HTTP and in this process, and their
//! ratios, which show the cost of the daemon.
//!
//! | part | contents |
//! |---|---|
//! | [`calls`] | the requests |

mod calls;

use std::time::{Duration, Instant};

use keyfall::target::Pull;
use keyfall::{Router, Worker};
use tokio_util::sync::CancellationToken;

use super::args::Options;
use super::bar::Bar;
use super::daemon::Daemon;
use super::drain::{self, Consumers};
use super::figures::Figures;
use super::ground::Ground;
use super::{schedule, stock};
use calls::Api;

/// The consumers, as many as the tasks that schedule.
const CONSUMERS: Consumers = Consumers {
    count: schedule::TASKS,
    max: 10,
    wait: Duration::from_secs(1),
};

/// The rates that are measured in both ways.
#[derive(Clone, Copy)]
struct Rates {
    /// Jobs scheduled in a second, one with each call.
    schedule: f64,
    /// Jobs scheduled in a second, many with each call.
    batch: f64,
    /// Jobs pulled and finished in a second.
    pull: f64,
}

/// Measures both ways, and their ratios.
pub(super) async fn measure(
    ground: &Ground,
    options: &Options,
    bar: &Bar,
    figures: &mut Figures,
) -> anyhow::Result<()> {
    let here = in_process(ground, options, bar).await?;
    let there = over_http(ground, options, bar).await?;
    figures.note("http_schedule_jobs_per_s", there.schedule);
    figures.note("http_batch_jobs_per_s", there.batch);
    figures.note("http_pull_jobs_per_s", there.pull);
    figures.note("in_process_schedule_jobs_per_s", here.schedule);
    figures.note("in_process_batch_jobs_per_s", here.batch);
    figures.note("in_process_pull_jobs_per_s", here.pull);
    figures.note("http_schedule_ratio", there.schedule / here.schedule);
    figures.note("http_batch_ratio", there.batch / here.batch);
    figures.note("http_pull_ratio", there.pull / here.pull);
    Ok(())
}

/// The rates with the library alone.
async fn in_process(ground: &Ground, options: &Options, bar: &Bar) -> anyhow::Result<Rates> {
    let jobs = options.jobs;
    let schedule = schedule::single(ground, options, 0..jobs, bar).await?;
    let batch = schedule::bulk(ground, options, jobs..2 * jobs, bar).await?;

    let (pull, stop) = (Pull::new(), CancellationToken::new());
    let routes = Router::new().route(&pattern(ground), pull.clone());
    let client = ground.another_client().await?;
    let worker = Worker::new(client.clone(), routes).run_until(stop.clone().cancelled_owned());
    let worker = tokio::spawn(worker);
    fall_due(ground, options, bar).await?;
    let take = move || drain::locally(CONSUMERS, pull.clone(), client.clone());
    let pull = rate(jobs, take, bar).await;
    stop.cancel();
    worker.await??;
    Ok(Rates {
        schedule,
        batch,
        pull: pull?,
    })
}

/// The rates with a daemon.
async fn over_http(ground: &Ground, options: &Options, bar: &Bar) -> anyhow::Result<Rates> {
    let jobs = options.jobs;
    let flags = ["--pull", &pattern(ground)];
    let daemon = Daemon::start(ground, &flags, "listening on ").await?;
    let api = Api::new(daemon.url(), ground.kind(), options.payload);
    let call = {
        let api = api.clone();
        move |number| api.clone().schedule(number)
    };
    let schedule = schedule::from_many_tasks(2 * jobs..3 * jobs, call, bar).await?;
    let batch = api.batches(3 * jobs..4 * jobs, bar).await?;
    fall_due(ground, options, bar).await?;
    let take = move || api.clone().pull_and_finish();
    let pull = rate(jobs, take, bar).await?;
    daemon.stop().await?;
    Ok(Rates {
        schedule,
        batch,
        pull,
    })
}

/// The jobs that consumers pull and finish in a second.
async fn rate<F>(
    jobs: usize,
    take: impl Fn() -> F + Clone + Send + 'static,
    bar: &Bar,
) -> anyhow::Result<f64>
where
    F: Future<Output = anyhow::Result<usize>> + Send,
{
    let began = Instant::now();
    let done = drain::until_done(CONSUMERS, jobs, take, bar).await?;
    Ok(jobs as f64 / (done - began).as_secs_f64())
}

/// The kind of the jobs that are pulled. The jobs of the other kind are due in an hour.
fn pulled(ground: &Ground) -> String {
    ground.kinds(2).last().expect("two")
}

/// The route of the pulled jobs.
fn pattern(ground: &Ground) -> String {
    format!("{}:*", pulled(ground))
}

/// Schedules a backlog of jobs that are due now.
async fn fall_due(ground: &Ground, options: &Options, bar: &Bar) -> anyhow::Result<()> {
    bar.begin("filling", options.jobs);
    let payload = stock::payload(options.payload);
    let (kind, now) = (pulled(ground), ground.time().await?.server);
    stock::schedule(ground, &kind, &payload, 0..options.jobs, |_| now, bar).await
}
