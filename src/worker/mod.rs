//! Runs jobs: hears what is due, claims it, calls its handler, settles.
//!
//! | part | what it does |
//! |---|---|
//! | [`rerouting`] | replaces its routes while it runs, each set of them with an engine of its own |
//! | [`engine`] | starts and stops all of them, on a thread of their own |
//! | [`listener`] | hears `expired` events and wake-ups, and passes them on |
//! | [`server_monitor`] | has what exists once for each server: events, heartbeat, adoption, search, checkup |
//! | [`heartbeat`] | says that this instance lives, and asks who else does |
//! | [`checkup`] | looks for what is wrong with a server, with each new connection |
//! | [`conditions`] | knows what was said to be wrong with a server, so that it is said once |
//! | [`finding`] | finds what is due: [`pacer`](finding::pacer) and [`reconciler`](finding::reconciler), [`events`](finding::events) that are to be heard, jobs that nobody takes |
//! | [`adopting`] | makes jobs of plain keys |
//! | [`claiming`] | claims what was found, as much as can be run |
//! | [`running`] | calls the handlers, and keeps their leases |
//! | [`served`] | knows which kinds are served |
//! | [`description`] | says who this instance is, and which routes it has |
//! | [`instances`] | knows which instance is to take a job, or to pace a ledger |
//! | [`notice`] | tells the owner of the worker; [`readiness`] can be asked |

mod adopting;
mod checkup;
mod claiming;
mod conditions;
mod description;
mod engine;
mod finding;
mod freshness;
mod heartbeat;
mod instances;
mod listener;
mod notice;
mod readiness;
mod rerouting;
mod running;
mod served;
mod server_monitor;

use std::future::Future;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::Dispatch;
use tracing::subscriber::NoSubscriber;

pub use notice::Notice;
use notice::Notices;
pub use readiness::Readiness;
pub use rerouting::Rerouter;
use rerouting::{EngineParts, RerouteQueue};
use running::limits::Limits;
#[cfg(feature = "internals")]
pub(crate) use served::ServedLedgers;

use crate::client::Client;
use crate::error::{Error, ErrorKind, Result};
use crate::hooks::{DeadJob, HookFunctions, Hooks, IntoTold, LateJob};
use crate::router::{IntoRouter, Router, Routes};
use crate::settings::{LEASES, LeaseLength, WorkerSettings};

/// Runs the jobs of a router's kinds.
///
/// Handlers run on the tokio runtime that [`run`](Worker::run) or
/// [`run_until`](Worker::run_until) is called on. Everything else, the renewal of leases
/// above all, runs on a thread of its own, so that a handler that blocks its thread costs
/// no lease.
///
/// ```no_run
/// use keyfall::{Client, Job, Router, Worker};
///
/// async fn notify(job: Job) {
///     println!("{} is due", job.key());
/// }
///
/// # async fn example() -> keyfall::Result<()> {
/// let client = Client::connect("redis://127.0.0.1:6379").await?;
/// let app = Router::new().route("app1:trans:notice:{order}", notify);
/// Worker::new(client, app).run().await
/// # }
/// ```
#[must_use = "call `run` or `run_until`"]
pub struct Worker {
    client: Client,
    router: Router,
    settings: WorkerSettings,
    notices: Notices,
    hooks: HookFunctions,
    readiness: Readiness,
    rerouter: Rerouter,
    orders: RerouteQueue,
}

/// While workers are replaced by others, nobody may have a route for a moment.
const SHORTEST_UNROUTED: Duration = Duration::from_secs(1);

/// How long a hook may take: as long as the job that it is told of has to wait.
const HOOK_TIMEOUTS: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_secs(3600);

/// Stops the engine when the future that waits for it is dropped.
struct StopOnDrop {
    gently: CancellationToken,
    at_once: CancellationToken,
}

impl Worker {
    /// A worker with the default settings.
    pub fn new(client: Client, router: impl IntoRouter) -> Self {
        let (rerouter, orders) = Rerouter::new();
        Worker {
            client,
            router: router.into_router(),
            settings: WorkerSettings::default(),
            notices: Notices::default(),
            hooks: HookFunctions::default(),
            readiness: Readiness::default(),
            rerouter,
            orders,
        }
    }

    /// How many jobs run at the same time, over all routes. Defaults to 256: handlers mostly
    /// wait for something. One that computes wants a limit on its route.
    pub fn concurrency(mut self, jobs: usize) -> Self {
        self.settings.concurrency = jobs;
        self
    }

    /// For how long a job is claimed; renewed three times in that time while it runs. When
    /// a worker dies, its jobs are run again after this time. Defaults to 15 s; at least 1 s.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.lease = LeaseLength(lease);
        self
    }

    /// How long a graceful stop waits for handlers to finish. Then their cancellation signal
    /// is raised, and a moment later their jobs are given back, to be run by others, without
    /// the attempt being counted. Defaults to 25 s.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.settings.grace = grace;
        self
    }

    /// How long a run may take where its route does not say. Defaults to 5 minutes.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = timeout;
        self
    }

    /// How many dead letters each kind keeps, and for how long. The oldest go first, and are
    /// counted. Defaults to 10,000 for 90 days.
    pub fn dead_letters(mut self, count: u64, age: Duration) -> Self {
        self.settings.dead_count = count;
        self.settings.dead_age = age;
        self
    }

    /// Buries jobs that have been overdue for so long, and that no instance has had a route for
    /// in all that time, as far as this worker has seen. Without it they wait until an instance
    /// has one. See [`Client::unrouted`].
    pub fn bury_unrouted_after(mut self, age: Duration) -> Self {
        self.settings.bury_unrouted = Some(age);
        self
    }

    /// Whether routes may [adopt](crate::Handler::adopt) plain keys although Redis does not announce
    /// what is done to them, or it cannot be found out. Defaults to no, and such a worker does not
    /// start. With it keys are searched for every 15 s: those that expire before are lost.
    ///
    /// `docs/managed-redis.md` in the repository says what to set at which provider.
    pub fn allow_unannounced(mut self, allow: bool) -> Self {
        self.settings.allow_unannounced = allow;
        self
    }

    /// Calls `hook` with whatever the owner of the worker should know, to count it. It runs on
    /// the thread of the worker's engine, and must not block. All of it is logged, too.
    ///
    /// It tells what has happened, once, or never if the worker ends just then. What must not be
    /// missed when a job dies is for [`on_dead`](Worker::on_dead).
    pub fn on_notice(mut self, hook: impl Fn(&Notice) + Send + Sync + 'static) -> Self {
        self.notices = Notices::to(hook);
        self
    }

    /// Calls `hook` for each job that is about to become a dead letter, to raise an alarm, or to
    /// do what must be done for a job that failed. The last one that was set counts.
    ///
    /// It is told at least once: the job is buried when the hook has returned. If the worker dies
    /// in between, or is told to stop and has no time left, the lease lapses, the job is taken
    /// again, and the hook is told again, as a rule with the same
    /// [idempotency key](DeadJob::idempotency_key). What it is told may yet not come true: if
    /// somebody cancels the job meanwhile, or schedules it anew, or takes it over.
    ///
    /// A hook that fails, panics or takes longer than [`hook_timeout`](Worker::hook_timeout) is
    /// logged, and the job is buried nevertheless. A graceful stop waits for it within the
    /// [grace](Worker::grace).
    ///
    /// It hears of whatever this worker buries, and of jobs that are ended by
    /// [`Client::settle`] on a clone of the worker's client. Whoever settles by a client of a
    /// process without the worker is answered
    /// [`Settled::Buried`](crate::Settled::Buried) there, and no hook is told.
    ///
    /// ```no_run
    /// use keyfall::{Client, DeadJob, Router, Worker};
    ///
    /// async fn page_somebody(text: String) -> Result<(), std::io::Error> {
    ///     println!("{text}");
    ///     Ok(())
    /// }
    ///
    /// # async fn example(client: Client, app: Router) -> keyfall::Result<()> {
    /// Worker::new(client, app)
    ///     .on_dead(|job: DeadJob| async move {
    ///         page_somebody(format!("{} is dead: {}", job.key(), job.reason())).await
    ///     })
    ///     .run()
    ///     .await
    /// # }
    /// ```
    pub fn on_dead<F, Fut>(mut self, hook: F) -> Self
    where
        F: Fn(DeadJob) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: IntoTold> + Send + 'static,
    {
        self.hooks.set_dead(hook);
        self
    }

    /// Calls `hook` for each job that starts later than its route allows: see
    /// [`Handler::late_after`](crate::Handler::late_after) and
    /// [`Worker::late_after`](Worker::late_after). The last one that was set counts.
    ///
    /// It runs beside the handler, and delays nothing. A graceful stop waits for it within the
    /// [grace](Worker::grace). If the worker dies meanwhile, it is not told again. Up to 256 are
    /// told at the same time; the rest [are counted](LateJob::untold).
    ///
    /// A start is late by the time since the job was due, and a retry is due when its policy says,
    /// a requeued job when it was requeued. What waited because its kind was paused, or because
    /// nobody had a route or room for it, is late. A job that was scheduled or moved to a time
    /// that was over is due at once. Of several starts for the same due time the first
    /// counts: a job that is taken over from a worker that died does not start late by that.
    pub fn on_late<F, Fut>(mut self, hook: F) -> Self
    where
        F: Fn(LateJob) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: IntoTold> + Send + 'static,
    {
        self.hooks.set_late(hook);
        self
    }

    /// How late a job may start where its route does not say, before
    /// [`on_late`](Worker::on_late) is told. Defaults to any time.
    pub fn late_after(mut self, limit: Duration) -> Self {
        self.settings.late_after = Some(limit);
        self
    }

    /// How long [`on_dead`](Worker::on_dead) and [`on_late`](Worker::on_late) may take for one
    /// job. Defaults to 10 s; from 1 ms to 1 hour.
    pub fn hook_timeout(mut self, timeout: Duration) -> Self {
        self.settings.hook_timeout = timeout;
        self
    }

    /// What gives it other routes while it runs.
    pub fn rerouter(&self) -> Rerouter {
        self.rerouter.clone()
    }

    /// What says whether it is at work.
    pub fn readiness(&self) -> Readiness {
        self.readiness.clone()
    }

    /// Runs until the process is asked to stop, by SIGTERM or Ctrl-C, and then stops
    /// gracefully. A second signal stops hard: what still runs is given back at once.
    ///
    /// # Errors
    /// As [`run_until`](Worker::run_until).
    pub async fn run(self) -> Result<()> {
        let mut signals = Signals::new()?;
        let (gently, at_once) = (CancellationToken::new(), CancellationToken::new());
        let run = self.run_with(gently.clone(), at_once.clone());
        tokio::pin!(run);
        loop {
            tokio::select! {
                ended = &mut run => return ended,
                () = signals.next() => {
                    if gently.is_cancelled() {
                        at_once.cancel();
                    }
                    gently.cancel();
                }
            }
        }
    }

    /// Runs until `shutdown` is ready, and then stops gracefully: nothing more is claimed,
    /// handlers may finish within the [grace period](Worker::grace), and the rest is given
    /// back. Dropping the future stops hard.
    ///
    /// A Redis that goes away while the worker runs does not end it.
    ///
    /// # Errors
    /// If a setting is out of range, or the server cannot carry Keyfall; each with the
    /// remedy. Nothing is claimed then.
    pub async fn run_until(self, shutdown: impl Future<Output = ()>) -> Result<()> {
        let (gently, at_once) = (CancellationToken::new(), CancellationToken::new());
        let run = self.run_with(gently.clone(), at_once);
        tokio::pin!(run);
        tokio::select! {
            ended = &mut run => ended,
            () = shutdown => {
                gently.cancel();
                run.await
            }
        }
    }

    async fn run_with(self, gently: CancellationToken, at_once: CancellationToken) -> Result<()> {
        self.validate()?;
        let hooks = Hooks::new(self.hooks, self.settings.hook_timeout);
        self.client.listeners().join(&hooks);
        let staff = EngineParts {
            client: self.client,
            limits: Limits::new(self.settings.concurrency),
            settings: self.settings,
            notices: self.notices,
            hooks: hooks.clone(),
            readiness: self.readiness.clone(),
            gently: gently.clone(),
            at_once: at_once.clone(),
        };
        let _stop = StopOnDrop { gently, at_once };
        let ended = staff.run(self.router, self.orders).await;
        self.readiness.end();
        ended
    }

    fn validate(&self) -> Result<()> {
        let settings = &self.settings;
        let fault = if settings.concurrency == 0 {
            "concurrency is 0, so no job could run: write 1 or more".to_owned()
        } else if !LEASES.contains(&settings.lease.0) {
            format!("lease {:?} must be from 1 s to 1 day", settings.lease.0)
        } else if settings.timeout.is_zero() {
            "timeout is zero, so no run could end in time: make it longer".to_owned()
        } else if !HOOK_TIMEOUTS.contains(&settings.hook_timeout) {
            format!(
                "hook_timeout {:?} must be from 1 ms to 1 hour",
                settings.hook_timeout
            )
        } else if settings.dead_count == 0 || settings.dead_age.is_zero() {
            "dead_letters keeps none, so jobs would disappear: keep at least one".to_owned()
        } else if settings
            .bury_unrouted
            .is_some_and(|age| age < SHORTEST_UNROUTED)
        {
            format!(
                "bury_unrouted_after must be {SHORTEST_UNROUTED:?} or more, so that a deployment \
                 buries nothing"
            )
        } else {
            return Ok(());
        };
        Err(Error::new(
            ErrorKind::InvalidSetting,
            format!("worker: {fault}"),
        ))
    }
}

/// # Errors
/// If there is none.
fn routes(router: Router) -> Result<Routes> {
    let routes = router.finish()?;
    if routes.routes.is_empty() {
        return Err(Error::new(
            ErrorKind::InvalidRoute,
            "worker: its router has no route and no fallback, so it would run nothing: add one \
             with `.route(\"app:module:biz:{id}\", handler)`",
        ));
    }
    Ok(routes)
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.gently.cancel();
        self.at_once.cancel();
    }
}

/// Where the thread that starts a worker logs to, if that is another place than where all log.
struct Log(Option<Dispatch>);

impl Log {
    fn of_this_thread() -> Self {
        let log = tracing::dispatcher::get_default(Dispatch::clone);
        // Whoever sets up logging later sets it up for all threads.
        Log((!log.is::<NoSubscriber>()).then_some(log))
    }

    fn within<T>(&self, run: impl FnOnce() -> T) -> T {
        match &self.0 {
            Some(log) => tracing::dispatcher::with_default(log, run),
            None => run(),
        }
    }
}

/// The signals by which a process is asked to stop. Registered once, so that none is missed
/// between two waits.
struct Signals {
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
}

impl Signals {
    #[cfg(unix)]
    fn new() -> Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        let catch = |kind| {
            signal(kind).map_err(|error| {
                Error::new(ErrorKind::Unavailable, "signals cannot be caught").because(error)
            })
        };
        Ok(Signals {
            interrupt: catch(SignalKind::interrupt())?,
            terminate: catch(SignalKind::terminate())?,
        })
    }

    #[cfg(unix)]
    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }

    #[cfg(not(unix))]
    fn new() -> Result<Self> {
        Ok(Signals {})
    }

    #[cfg(not(unix))]
    async fn next(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
