//! Consumers that pull and finish jobs until none is left.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use futures_util::future::join_all;
use keyfall::target::{Pull, Pulled};
use keyfall::{Client, Outcome};
use tokio::task::JoinSet;
use tokio::time::{interval, timeout};

use super::bar::Bar;

/// How long the consumers may take for all jobs.
const PATIENCE: Duration = Duration::from_secs(300);

/// The number of consumers, and their manner of pulling.
#[derive(Clone, Copy)]
pub(super) struct Consumers {
    pub(super) count: usize,
    /// The most jobs that each consumer takes at a time.
    pub(super) max: usize,
    /// How long a pull waits for jobs.
    pub(super) wait: Duration,
}

/// Runs the consumers, and returns the instant at which they have finished `jobs` jobs. `take`
/// pulls some jobs, finishes them, and returns their number.
pub(super) async fn until_done<F>(
    consumers: Consumers,
    jobs: usize,
    take: impl Fn() -> F + Clone + Send + 'static,
    bar: &Bar,
) -> anyhow::Result<Instant>
where
    F: Future<Output = anyhow::Result<usize>> + Send,
{
    bar.begin("pulling", jobs);
    let finished = Arc::<AtomicUsize>::default();
    // Dropping the set ends the consumers that still wait when all is done.
    let mut tasks = JoinSet::<anyhow::Result<Instant>>::new();
    for _ in 0..consumers.count {
        let (take, finished) = (take.clone(), finished.clone());
        tasks.spawn(async move {
            loop {
                let some = take().await?;
                if some > 0 && finished.fetch_add(some, Ordering::Relaxed) + some >= jobs {
                    return Ok(Instant::now());
                }
            }
        });
    }
    let watch = async {
        let mut look = interval(Duration::from_millis(100));
        loop {
            look.tick().await;
            bar.reach(finished.load(Ordering::Relaxed));
        }
    };
    let last = tokio::select! {
        last = timeout(PATIENCE, tasks.join_next()) => last,
        () = watch => unreachable!("it has no end"),
    };
    let Ok(last) = last else {
        let finished = finished.load(Ordering::Relaxed);
        bail!("{finished} of {jobs} jobs were finished within {PATIENCE:?}");
    };
    last.expect("there are consumers")
        .context("a task panicked")?
}

/// Pulls some jobs in this process, finishes them, and returns their number.
pub(super) async fn locally(
    consumers: Consumers,
    pull: Pull,
    client: Client,
) -> anyhow::Result<usize> {
    let pulled = pull.pull(&[""; 0], consumers.max, consumers.wait).await?;
    let taken: Vec<_> = pulled.into_iter().filter_map(Pulled::accept).collect();
    let settle = |(_, lease)| {
        let client = &client;
        async move { client.settle(&lease, Outcome::Done).await }
    };
    let settled = join_all(taken.into_iter().map(settle)).await;
    for one in &settled {
        if let Err(error) = one {
            bail!("a job could not be finished: {error}");
        }
    }
    Ok(settled.len())
}
