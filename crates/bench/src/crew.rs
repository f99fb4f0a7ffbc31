//! The workers that run the jobs, and the record of their runs.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use keyfall::{Handler, Job, MissingKey, Outcome, Router, Source, State, Worker};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::args::Options;
use super::bar::Bar;
use super::ground::Ground;
use super::stock::HOUR;

/// How long workers may take until all of them hear events and know each other.
const START_LIMIT: Duration = Duration::from_secs(30);

/// How long the last jobs may take to run after the last due time.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// Workers in this process. Dropping it stops them hard.
pub(super) struct Crew {
    workers: JoinSet<keyfall::Result<()>>,
    stop: CancellationToken,
    runs: Runs,
}

/// The record of all runs, shared by the handlers.
#[derive(Clone, Default)]
struct Runs(Arc<Shared>);

/// The contents of [`Runs`].
#[derive(Default)]
struct Shared {
    noted: Mutex<Noted>,
    /// Notified when the expected number of jobs has run.
    complete: Notify,
}

/// The noted runs.
#[derive(Default)]
pub(super) struct Noted {
    /// The lateness of each run, by the clock of Redis.
    pub(super) lags: Vec<Duration>,
    /// The number of jobs that a claim took as the oldest of their ledger, without naming them.
    pub(super) unnamed: usize,
    /// The number of jobs that will run.
    expected: usize,
    /// Whether each run fails, and waits for a retry.
    fails: bool,
}

impl Crew {
    /// Starts workers for `expected` jobs, and returns when all of them hear events.
    pub(super) async fn start(
        ground: &Ground,
        options: &Options,
        instances: u16,
        expected: usize,
    ) -> anyhow::Result<Self> {
        Crew::begin(ground, options, instances, expected, None).await
    }

    /// Starts the workers of the options, with routes that adopt plain keys; `expected` of these
    /// keys will expire.
    pub(super) async fn adopting(
        ground: &Ground,
        options: &Options,
        expected: usize,
    ) -> anyhow::Result<Self> {
        let adopts = Some(MissingKey::Run);
        Crew::begin(ground, options, options.instances, expected, adopts).await
    }

    /// Starts workers, with `adopts` as the meaning of a missing key, if they adopt keys.
    async fn begin(
        ground: &Ground,
        options: &Options,
        instances: u16,
        expected: usize,
        adopts: Option<MissingKey>,
    ) -> anyhow::Result<Self> {
        let mut crew = Crew {
            workers: JoinSet::new(),
            stop: CancellationToken::new(),
            runs: Runs::expecting(expected),
        };
        for _ in 0..instances {
            let mut routes = Router::new();
            for kind in ground.kinds(options.kinds) {
                let pattern = format!("{kind}:{{id}}");
                routes = match adopts {
                    Some(missing) => routes.route(&pattern, note.adopt(missing)),
                    None => routes.route(&pattern, note),
                };
            }
            let routes = routes.with_state(crew.runs.clone());
            let client = ground.another_client().await?;
            let worker = Worker::new(client, routes).concurrency(options.concurrency);
            let stopped = crew.stop.clone().cancelled_owned();
            crew.workers.spawn(worker.run_until(stopped));
        }
        let all_hear = async {
            loop {
                let live = ground.client.instances().await?;
                let hear = live.iter().filter(|one| one.hears_events).count();
                if hear == usize::from(instances) {
                    return anyhow::Ok(());
                }
                sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::select! {
            all = timeout(START_LIMIT, all_hear) => {
                all.context("the workers do not come to hear events")??;
            }
            error = failed(&mut crew.workers) => return Err(error),
        }
        Ok(crew)
    }

    /// Makes [`finish`](Self::finish) wait for so many further jobs.
    pub(super) fn expect(&self, further: usize) {
        let mut noted = self.runs.0.noted.lock().expect("no panic while held");
        noted.expected += further;
    }

    /// Makes each run fail from now on, and wait for a retry.
    pub(super) fn fail(&self) {
        let mut noted = self.runs.0.noted.lock().expect("no panic while held");
        noted.fails = true;
    }

    /// Waits until all jobs have run and are settled. The last of them is due at `due`.
    ///
    /// # Errors
    /// If they take longer than [`PATIENCE`] after `due`, or if a worker fails.
    pub(super) async fn finish(
        &mut self,
        ground: &Ground,
        due: Instant,
        bar: &Bar,
    ) -> anyhow::Result<()> {
        let Crew { workers, runs, .. } = self;
        let expected = runs.0.noted.lock().expect("no panic while held").expected;
        bar.begin("running", expected);
        let settled = async {
            let mut look = interval(Duration::from_millis(100));
            loop {
                tokio::select! {
                    () = runs.0.complete.notified() => break,
                    _ = look.tick() => bar.reach(runs.count()),
                }
            }
            loop {
                let stats = ground.client.stats(&ground.kind()).await?;
                if stats.done + stats.failed >= expected as u64 {
                    return anyhow::Ok(());
                }
                sleep(Duration::from_millis(1)).await;
            }
        };
        let limit = due.saturating_duration_since(Instant::now()) + PATIENCE;
        tokio::select! {
            settled = timeout(limit, settled) => match settled {
                Ok(settled) => settled,
                Err(_) => bail!(
                    "{} of {expected} jobs had run {PATIENCE:?} after the last was due",
                    runs.count()
                ),
            },
            error = failed(workers) => Err(error),
        }
    }

    /// Waits until a worker ends although nobody stopped it, and returns its error.
    pub(super) async fn failed(&mut self) -> anyhow::Error {
        failed(&mut self.workers).await
    }

    /// Stops the workers gracefully, and returns the noted runs.
    pub(super) async fn stop(mut self) -> anyhow::Result<Noted> {
        self.stop.cancel();
        while let Some(ended) = self.workers.join_next().await {
            ended.context("a worker panicked")??;
        }
        let mut noted = self.runs.0.noted.lock().expect("no panic while held");
        Ok(std::mem::take(&mut *noted))
    }
}

/// See [`Crew::failed`].
async fn failed(workers: &mut JoinSet<keyfall::Result<()>>) -> anyhow::Error {
    match workers.join_next().await {
        Some(Ok(Err(error))) => error.into(),
        Some(Err(error)) => anyhow::Error::new(error).context("a worker panicked"),
        Some(Ok(Ok(()))) | None => anyhow::anyhow!("a worker ended without being stopped"),
    }
}

/// The handler of all jobs: it notes the run, and does nothing else.
async fn note(job: Job, State(runs): State<Runs>) -> Outcome {
    let mut noted = runs.0.noted.lock().expect("no panic while held");
    noted.lags.push(job.lag());
    if job.source() == Source::Backlog {
        noted.unnamed += 1;
    }
    if noted.lags.len() == noted.expected {
        runs.0.complete.notify_one();
    }
    match noted.fails {
        true => Outcome::retry_after(HOUR, "as it should"),
        false => Outcome::Done,
    }
}

impl Runs {
    /// An empty record.
    fn expecting(expected: usize) -> Self {
        let noted = Noted {
            lags: Vec::with_capacity(expected),
            expected,
            ..Noted::default()
        };
        Runs(Arc::new(Shared {
            noted: Mutex::new(noted),
            ..Shared::default()
        }))
    }

    /// The number of runs up to now.
    fn count(&self) -> usize {
        let noted = self.0.noted.lock().expect("no panic while held");
        noted.lags.len()
    }
}
