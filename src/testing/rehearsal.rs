//! The rehearsal: a router, a clock, and jobs in memory.
//!
//! It replaces Redis and the worker, but uses the workers' code (`crate::ending`) to decide the
//! consequence of each run.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde::Serialize;
use tokio::time::timeout;

use super::{JobView, ManualClock, Schedule};
use crate::client::Cancelled;
use crate::ending::Ending;
use crate::handler::{CancelSignal, Job, JobParts};
use crate::key::{IntoJobKey, JobKey};
use crate::lease::Lease;
use crate::outcome::Outcome;
use crate::router::{RouteEntry, Router, Routes};
use crate::settings::WorkerSettings;
use crate::source::Source;

/// The number of runs at one instant that ends a rehearsal: a job must be asking for another run at
/// once, for ever.
const TOO_MANY: usize = 100_000;

/// Plays the jobs of a router in memory, by a clock that moves only when the test moves it: for
/// tests of a job over all its retries, without Redis and without waiting.
///
/// The consequences of each attempt are decided by the code that workers use: outcomes, retry
/// policies, attempts, dead letters. A panic of a handler is a failure. The differences from a
/// worker:
///
/// - Jobs run one after the other, in the order of their due times and then of their names, each
///   exactly when it is due. Limits of concurrency have no effect.
/// - The clock stands still while a handler runs.
/// - The timeout of a route is in real time, or in the time of tokio's paused clock.
/// - Jitter is not random; see [`jitter`](Self::jitter).
/// - A handler that schedules other jobs needs a [`Client`](crate::Client), and so a Redis.
///
/// The [module](super) has an example.
pub struct Rehearsal {
    routes: Routes,
    clock: ManualClock,
    jobs: BTreeMap<JobKey, JobView>,
    jitter: f64,
    /// The fencing value of the last run, over all jobs.
    last_fence: u64,
    settings: WorkerSettings,
}

/// A run that took place in a [`Rehearsal`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Run {
    /// The time of the run, by the clock of the rehearsal.
    pub at: SystemTime,
    /// The key of the job.
    pub key: JobKey,
    /// The number of the attempt; the first is 1.
    pub attempt: u32,
    /// The outcome of the run.
    pub outcome: Outcome,
}

impl Rehearsal {
    /// A rehearsal with a clock of its own, which starts at 2030-01-01, 00:00 UTC.
    pub fn new(app: Router) -> Self {
        Rehearsal::with_clock(app, &ManualClock::new())
    }

    /// A rehearsal by this clock, for handlers that have it in their state.
    ///
    /// ```
    /// use keyfall::testing::{ManualClock, Rehearsal};
    /// use keyfall::{Clock, Outcome, Router, State};
    /// use std::time::{Duration, SystemTime};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// #[derive(Clone)]
    /// struct Shop { clock: Clock, opens: SystemTime }
    ///
    /// async fn call(State(shop): State<Shop>) -> Outcome {
    ///     match shop.opens.duration_since(shop.clock.now()) {
    ///         Ok(wait) if !wait.is_zero() => Outcome::snooze(wait),
    ///         _ => Outcome::Done,
    ///     }
    /// }
    ///
    /// let time = ManualClock::new();
    /// let opens = time.now() + Duration::from_secs(3600);
    /// let shop = Shop { clock: time.clock(), opens };
    /// let app = Router::new().route("app1:shop:call:*", call).with_state(shop);
    ///
    /// let mut rehearsal = Rehearsal::with_clock(app, &time);
    /// rehearsal.schedule("app1:shop:call:1", "");
    /// let runs = rehearsal.advance(Duration::from_secs(7200)).await;
    /// assert_eq!(runs[1].at, opens);
    /// assert_eq!(runs[1].outcome, Outcome::Done);
    /// # }
    /// ```
    ///
    /// # Panics
    /// If the routes do not compile together, which only very many or very large regexes can cause.
    pub fn with_clock(app: Router, clock: &ManualClock) -> Self {
        Rehearsal {
            routes: app
                .finish()
                .expect("routes are checked against each other when they are added"),
            clock: clock.clone(),
            jobs: BTreeMap::new(),
            jitter: 0.5,
            last_fence: 0,
            settings: WorkerSettings::default(),
        }
    }

    /// Sets the number that takes the place of the random one in delays with jitter, from 0 up to
    /// 1: 0 gives the shortest possible delay, 1 the longest. Defaults to 0.5.
    #[must_use]
    pub fn jitter(mut self, jitter: f64) -> Self {
        self.jitter = jitter;
        self
    }

    /// The time by the clock of the rehearsal.
    pub fn now(&self) -> SystemTime {
        self.clock.now()
    }

    /// Schedules a job with a payload that is written as JSON. It is due now, and runs with the
    /// next [`advance`](Self::advance), unless `.after(…)` or `.at(…)` sets a time. A job of the
    /// same name is replaced.
    ///
    /// # Panics
    /// If `key` is no job key, or the payload cannot be written as JSON.
    #[track_caller]
    pub fn schedule(
        &mut self,
        key: impl IntoJobKey,
        payload: &(impl Serialize + ?Sized),
    ) -> Schedule<'_> {
        match serde_json::to_vec(payload) {
            Ok(json) => self.schedule_bytes(key, json),
            Err(error) => panic!("the payload cannot be written as JSON: {error}"),
        }
    }

    /// Schedules a job as [`schedule`](Self::schedule) does, with a payload byte for byte.
    ///
    /// # Panics
    /// If `key` is no job key.
    #[track_caller]
    pub fn schedule_bytes(
        &mut self,
        key: impl IntoJobKey,
        payload: impl Into<Bytes>,
    ) -> Schedule<'_> {
        let key = parsed(key);
        let routed = self.routes.find_or_fallback(&key).is_some();
        let job = JobView::new(key.clone(), payload.into(), self.now(), routed);
        self.jobs.remove(&key);
        Schedule {
            job: self.jobs.entry(key).or_insert(job),
        }
    }

    /// Cancels a job that is still to run. The answer is never [`Cancelled::Running`], because no
    /// job runs between two calls.
    ///
    /// ```
    /// use keyfall::testing::Rehearsal;
    /// use keyfall::{Cancelled, Router};
    /// # async fn notify() {}
    ///
    /// let mut rehearsal = Rehearsal::new(Router::new().route("app1:trans:notice:*", notify));
    /// rehearsal.schedule("app1:trans:notice:42", "order 42");
    /// assert_eq!(rehearsal.cancel("app1:trans:notice:42"), Cancelled::Cancelled);
    /// assert_eq!(rehearsal.cancel("app1:trans:notice:42"), Cancelled::Absent);
    /// ```
    ///
    /// # Panics
    /// If `key` is no job key.
    #[track_caller]
    pub fn cancel(&mut self, key: impl IntoJobKey) -> Cancelled {
        match self.jobs.get_mut(&parsed(key)) {
            Some(job) if job.is_waiting() => {
                job.cancel();
                Cancelled::Cancelled
            }
            _ => Cancelled::Absent,
        }
    }

    /// The job that was last scheduled under this name, waiting or ended. `None` if no job was
    /// scheduled under it.
    ///
    /// # Panics
    /// If `key` is no job key.
    #[track_caller]
    pub fn job(&self, key: impl IntoJobKey) -> Option<&JobView> {
        self.jobs.get(&parsed(key))
    }

    /// Moves the clock on, and runs every job that falls due meanwhile, retries included. Returns
    /// the runs in order. `Duration::ZERO` runs the jobs that are due now.
    ///
    /// A job that no route matches stays pending, as it does with a worker.
    ///
    /// # Panics
    /// If jobs run a hundred thousand times at one instant, as a job does that asks for another run
    /// at once for ever.
    pub async fn advance(&mut self, time: Duration) -> Vec<Run> {
        let end = self.now() + time;
        let mut runs = Vec::new();
        let mut at_this_instant = 0;
        while let Some(key) = self.next_due(end) {
            let before = self.now();
            let run = self.run(key).await;
            at_this_instant = if run.at == before {
                at_this_instant + 1
            } else {
                1
            };
            assert!(
                at_this_instant < TOO_MANY,
                "{} and other jobs ran {TOO_MANY} times at one instant: do their handlers snooze \
                 for zero time?",
                run.key
            );
            runs.push(run);
        }
        self.clock.reach(end);
        runs
    }

    /// The next job that is due at `end` or before.
    fn next_due(&self, end: SystemTime) -> Option<JobKey> {
        let due = self
            .jobs
            .iter()
            .filter(|(_, job)| job.is_waiting() && job.routed && job.due <= end);
        let (key, _) = due.min_by_key(|(_, job)| job.due)?;
        Some(key.clone())
    }

    /// Runs one job with a route, at its due time or now if that is later.
    async fn run(&mut self, key: JobKey) -> Run {
        let view = &self.jobs[&key];
        self.clock.reach(view.due);
        let at = self.clock.now();
        let route = self
            .routes
            .find_or_fallback(&key)
            .expect("each job that runs has a route");
        let attempt = view.attempts() + 1;
        let of_route = route.retry.clone().unwrap_or_default();
        let policy = view.terms.policy(&of_route).into_owned();
        let limit = view.terms.timeout().or(route.timeout);
        let limit = limit.unwrap_or(self.settings.timeout);
        let micros = at
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default()
            .as_micros();
        let fence = u64::try_from(micros)
            .unwrap_or(u64::MAX)
            .max(self.last_fence + 1);
        let job = Job::new(JobParts {
            key: key.clone(),
            payload: match &view.recurring {
                Some(recurring) => recurring.payload(&view.payload),
                None => view.payload.clone(),
            },
            due: view.due,
            lag: at.duration_since(view.due).unwrap_or_default(),
            attempt,
            max_attempts: policy.max_attempts(),
            policy: policy.clone(),
            limit,
            first_scheduled_at: view.first_scheduled_at,
            occurrence: view.occurrence(),
            fence,
            source: Source::Event,
            headers: view.headers.clone(),
            names: route.names.clone(),
            cancellation: CancelSignal::new(),
            lease: Lease::new(key.clone(), "rehearsal"),
        });
        let outcome = call(route, job, limit, self.settings.lease.notice()).await;
        let ending = Ending::of(outcome.clone(), attempt, &policy, self.jitter);
        self.last_fence = fence;
        if let Some(view) = self.jobs.get_mut(&key) {
            view.end(attempt, at, ending);
            view.recur(at, self.clock.now(), self.jitter);
        }
        Run {
            at,
            key,
            attempt,
            outcome,
        }
    }
}

/// Calls a handler within its timeout. After that it is told to stop, and may still return its own
/// outcome within `notice`.
async fn call(route: &RouteEntry, job: Job, limit: Duration, notice: Duration) -> Outcome {
    let signal = job.cancellation().clone();
    let mut run = std::pin::pin!(route.handler.call_and_catch(job));
    if let Ok(outcome) = timeout(limit, &mut run).await {
        return outcome;
    }
    signal.raise();
    let ended = timeout(notice, run).await;
    ended.unwrap_or_else(|_| Outcome::timed_out(limit))
}

/// The parsed key, or a panic at the caller's line.
#[track_caller]
fn parsed(key: impl IntoJobKey) -> JobKey {
    match key.into_job_key() {
        Ok(key) => key,
        Err(error) => panic!("{error}"),
    }
}
