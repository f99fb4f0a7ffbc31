//! Consumers that pull and finish, until nothing is left.

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

/// How long all of it may take.
const PATIENCE: Duration = Duration::from_secs(300);

/// Consumers that take jobs, and how many.
#[derive(Clone, Copy)]
pub(super) struct Consumers {
    pub(super) count: usize,
    /// How many jobs each takes at a time.
    pub(super) max: usize,
    /// How long it waits for them.
    pub(super) wait: Duration,
}

/// When these consumers had finished so many jobs. `take` pulls some and finishes them, and
/// returns how many.
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
    // Those who wait in vain when all is done are dropped with it.
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

/// Pulls and finishes in this process.
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
