//! The rehearsal: a router, a clock, and jobs in memory.
//!
//! It replaces Redis and the worker, but uses the workers' code (`crate::ended`) to decide the
//! consequence of each run.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use serde::Serialize;
use tokio::time::timeout;

use super::{JobView, ManualClock, Schedule};
use crate::client::{Cancelled, Client, MemoryJob, MemoryLedger, micros};
use crate::ended::{self, Ended};
use crate::handler::{CancelSignal, Job, JobParts};
use crate::key::{IntoJobKey, JobKey};
use crate::lease::Lease;
use crate::outcome::Outcome;
use crate::record::Header;
use crate::recurrence::{Recurring, RunEnd};
use crate::router::{RouteEntry, Router, Routes};
use crate::settings::WorkerSettings;
use crate::source::Source;
use crate::store::{Next, Verb};
use crate::time::{UnixMs, UnixUs};

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
/// - Limits of rate and lateness have no effect, nor has a [`Limit`](crate::Limit), which all workers
///   share: each job starts when it is due. Quiet hours of routes have an effect.
/// - A handler that schedules other jobs gets a [client](ManualClock::client) of the rehearsal. It
///   knows the calls on single jobs and on series; other calls need a Redis, and are refused.
///
/// The [module](super) has an example.
pub struct Rehearsal {
    routes: Routes,
    clock: ManualClock,
    ledger: Arc<MemoryLedger>,
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
        Rehearsal::with_client(app, &clock.client())
    }

    /// A rehearsal of the jobs of this client, for handlers that schedule, change or cancel jobs: a
    /// client of [`ManualClock::client`], which the handlers have in their state. The clock of the
    /// rehearsal is the clock of the client.
    ///
    /// ```
    /// use keyfall::testing::{ManualClock, Rehearsal};
    /// use keyfall::{Client, Job, Result, Router, State};
    /// use std::time::Duration;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> keyfall::Result<()> {
    /// const HOUR: Duration = Duration::from_secs(3600);
    ///
    /// async fn ask(job: Job, State(client): State<Client>) -> Result<()> {
    ///     let reminder = format!("app1:poll:remind:{}", job.key().id());
    ///     client.schedule(reminder, "still open").after(HOUR).await?;
    ///     Ok(())
    /// }
    ///
    /// async fn remind() {}
    ///
    /// let client = ManualClock::new().client();
    /// let app = Router::new()
    ///     .route("app1:poll:ask:*", ask)
    ///     .route("app1:poll:remind:*", remind)
    ///     .with_state(client.clone());
    /// let mut rehearsal = Rehearsal::with_client(app, &client);
    /// client.schedule("app1:poll:ask:42", "Shall we?").await?;
    /// let runs = rehearsal.advance(2 * HOUR).await;
    /// assert_eq!(runs[1].key.as_str(), "app1:poll:remind:42");
    /// assert_eq!(runs[1].at, runs[0].at + HOUR);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// If the client is connected to a Redis; or if the routes do not compile together, which only
    /// very many or very large regexes can cause.
    #[track_caller]
    pub fn with_client(app: Router, client: &Client) -> Self {
        let ledger = client.memory().cloned();
        let ledger = ledger.expect("the client of a rehearsal comes from `ManualClock::client`");
        Rehearsal {
            routes: app
                .finish()
                .expect("routes are checked against each other when they are added"),
            clock: ManualClock::of(ledger.clock()),
            ledger,
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
        self.ledger.with(|jobs| {
            let now = jobs.now();
            let due = UnixMs(now.0.div_ceil(1000));
            let job = MemoryJob::new(Header::default(), payload.into(), due, now);
            jobs.put(key.clone(), job);
        });
        Schedule {
            ledger: &self.ledger,
            key,
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
        let key = parsed(key);
        match self.ledger.with(|jobs| jobs.cancel(&key)) {
            true => Cancelled::Cancelled,
            false => Cancelled::Absent,
        }
    }

    /// The job that was last scheduled under this name, waiting or ended. `None` if no job was
    /// scheduled under it.
    ///
    /// # Panics
    /// If `key` is no job key.
    #[track_caller]
    pub fn job(&self, key: impl IntoJobKey) -> Option<JobView> {
        let key = parsed(key);
        let job = self.ledger.with(|jobs| jobs.get(&key).cloned())?;
        Some(JobView::new(key, job))
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
            let run = self.run(key.clone()).await;
            at_this_instant = if self.now() == before {
                at_this_instant + 1
            } else {
                1
            };
            assert!(
                at_this_instant < TOO_MANY,
                "{key} and other jobs ran {TOO_MANY} times at one instant: do their handlers snooze \
                 for zero time?"
            );
            runs.extend(run);
        }
        self.clock.reach(end);
        runs
    }

    /// The next job that is due at `end` or before.
    fn next_due(&self, end: SystemTime) -> Option<JobKey> {
        let end = micros(end).floor_ms();
        let is_routed = |key: &JobKey| self.routes.find_or_fallback(key).is_some();
        self.ledger.with(|jobs| jobs.next_due(end, is_routed))
    }

    /// Runs one job with a route, at its due time or now if that is later. `None` if the job does
    /// not run: quiet hours of its route put it off, or it is the plan of a series.
    async fn run(&mut self, key: JobKey) -> Option<Run> {
        let job = self.ledger.with(|jobs| jobs.get(&key).cloned())?;
        self.clock.reach(job.due.to_system());
        let at = self.clock.now();
        let route = self
            .routes
            .find_or_fallback(&key)
            .expect("each job that runs has a route");
        let header = &job.header;
        let attempt = header.attempts + 1;
        let of_route = route.retry.clone().unwrap_or_default();
        let policy = header.terms.policy(&of_route).into_owned();
        let ended = Ended {
            header,
            attempt,
            policy: &policy,
        };
        let quiet = route.quiet.as_ref();
        let quieted = quiet.and_then(|it| ended.quieted(it.at_start(micros(at).floor_ms())));
        let is_plan = header.plan().is_some();
        if let Some(verb) = quieted.or(is_plan.then_some(Verb::Done)) {
            self.settle(&key, &job, attempt - 1, at, Some(verb));
            return None;
        }
        let usual_limit = route.timeout.unwrap_or(self.settings.timeout);
        let limit = header.terms.timeout().unwrap_or(usual_limit);
        let fence = micros(at).0.max(self.last_fence + 1);
        let signal = CancelSignal::new();
        let parts = JobParts {
            key: key.clone(),
            payload: match header.recur() {
                Some(recurring) => recurring.payload(&job.payload),
                None => job.payload.clone(),
            },
            due: job.due.to_system(),
            lag: at.duration_since(job.due.to_system()).unwrap_or_default(),
            attempt,
            max_attempts: policy.max_attempts(),
            policy: policy.clone(),
            limit,
            usual_limit,
            first_scheduled_at: system(job.accepted),
            occurrence: header.recur().map(Recurring::view),
            fence,
            source: Source::Event,
            headers: header.headers.clone(),
            names: route.names.clone(),
            cancellation: signal.clone(),
            lease: Lease::new(key.clone(), "rehearsal".into()),
        };
        self.ledger
            .with(|jobs| jobs.begin(key.clone(), move || signal.raise()));
        let outcome = call(route, Job::new(parts), limit, self.settings.lease.notice()).await;
        let verb = ended.verb(outcome.clone(), self.jitter);
        self.last_fence = fence;
        self.settle(&key, &job, attempt, at, verb);
        Some(Run {
            at,
            key,
            attempt,
            outcome,
        })
    }

    /// Ends an attempt that began at `began`; `job` is the job as it was then.
    fn settle(
        &self,
        key: &JobKey,
        job: &MemoryJob,
        attempt: u32,
        began: SystemTime,
        verb: Option<Verb>,
    ) {
        let end = RunEnd {
            now: micros(self.clock.now()).floor_ms(),
            claimed: micros(began).floor_ms(),
            due: job.due,
            random: self.jitter,
        };
        let next = verb
            .as_ref()
            .map(|verb| ended::next(&job.header, verb, end));
        let next = next.unwrap_or(Next::Unknown);
        self.ledger
            .with(|jobs| jobs.settle(key, attempt, verb, next));
    }
}

fn system(time: UnixUs) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(time.0)
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
