//! The worker: finds due jobs, claims them, calls their handlers, and settles the results.
//! [`Worker`] is the public builder; an [`engine`] runs the parts below on one thread, and the
//! handlers run on the caller's runtime.
//!
//! | part | task |
//! |---|---|
//! | [`rerouting`] | replaces the routes of a running worker; each set of routes has an engine of its own |
//! | [`engine`] | starts and stops all other parts, on a thread of their own |
//! | [`listener`] | receives `expired` events and wake-ups, and passes them on |
//! | [`server_monitor`] | groups the parts that exist once for each server: events, heartbeat, adoption, search, checkup |
//! | [`heartbeat`] | publishes that this instance lives, and reads which other instances live |
//! | [`checkup`] | checks a server after each new connection |
//! | [`conditions`] | remembers the reported problems of a server, so that each is logged once |
//! | [`finding`] | finds due jobs: [`pacer`](finding::pacer), [`reconciler`](finding::reconciler), the [`events`](finding::events) of Redis, and jobs without a route |
//! | [`adopting`] | turns plain keys into jobs |
//! | [`claiming`] | claims found jobs, as many as there are free slots |
//! | [`running`] | calls the handlers, and renews the leases of their jobs |
//! | [`activity_writer`] | writes once a minute how many runs began and ended |
//! | [`served`] | lists the kinds that this worker serves, with their ledgers |
//! | [`freshness`] | decides when the list of kinds is read again |
//! | [`declaring`] | declares the limits of routes at the start |
//! | [`description`] | describes this instance and its routes to its peers |
//! | [`instances`] | ranks the live instances: which one claims a job, which one paces a ledger |
//! | [`notice`] | reports events to the owner of the worker; [`readiness`] answers probes |

mod activity_writer;
mod adopting;
mod checkup;
mod claiming;
mod conditions;
mod declaring;
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

/// Runs the jobs that the routes of a [`Router`] match.
///
/// Handlers run on the tokio runtime that [`run`](Worker::run) or
/// [`run_until`](Worker::run_until) is called on. Everything else, above all the renewal of
/// leases, runs on a thread of its own, so that a handler that blocks its thread loses no lease.
///
/// Each setting has a default. The worker checks all settings when it starts.
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

/// Shortest accepted value of [`Worker::bury_unrouted_after`]. While a deployment replaces workers,
/// there may be no route for a moment.
const SHORTEST_UNROUTED: Duration = Duration::from_secs(1);

/// Accepted values of [`Worker::hook_timeout`]. The job that a hook is called for waits as long as
/// the hook runs.
const HOOK_TIMEOUTS: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_secs(3600);

/// Stops the engine at once when the future that waits for it is dropped.
struct StopOnDrop {
    gently: CancellationToken,
    at_once: CancellationToken,
}

impl Worker {
    /// Creates a worker with the default settings; it does nothing until [`run`](Worker::run) or
    /// [`run_until`](Worker::run_until) is called. `router` is a [`Router`], or anything that turns
    /// into one.
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

    /// Sets how many jobs run at the same time, over all routes. Defaults to 256, because most
    /// handlers wait for I/O; 0 is refused when the worker starts. Give a route whose handler
    /// computes a limit of its own.
    pub fn concurrency(mut self, jobs: usize) -> Self {
        self.settings.concurrency = jobs;
        self
    }

    /// Sets the length of leases, for routes without a length of their own. The worker renews the
    /// lease of a running job three times in that time. When a worker dies, its jobs run again
    /// after this time. Defaults to 15 s; from 1 s to 1 day.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.lease = LeaseLength(lease);
        self
    }

    /// Sets how long a graceful stop waits for handlers to finish. After it, the worker raises
    /// their cancellation signal, and a moment later gives their jobs back. Other workers run these
    /// jobs, and the interrupted attempt does not count. Defaults to 25 s.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.settings.grace = grace;
        self
    }

    /// Sets how long a run may take, for routes without a timeout of their own. A run that takes
    /// longer counts as a failed attempt. Defaults to 5 minutes; zero is refused when the worker
    /// starts.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = timeout;
        self
    }

    /// Sets how many dead letters each shard of a kind keeps, and for how long. The oldest are dropped first,
    /// and the worker reports their number as [`Notice::Trimmed`]. Defaults to 10,000 letters for
    /// 90 days; zero of either is refused when the worker starts.
    pub fn dead_letters(mut self, count: u64, age: Duration) -> Self {
        self.settings.dead_count = count;
        self.settings.dead_age = age;
        self
    }

    /// Buries jobs that have been overdue for this long, if this worker has seen no instance with a
    /// route for them, and none with a [fallback](crate::Router::fallback), in all that time. At
    /// least 1 s. Without this setting such jobs wait until an
    /// instance has a route. See [`Client::unrouted`].
    pub fn bury_unrouted_after(mut self, age: Duration) -> Self {
        self.settings.bury_unrouted = Some(age);
        self
    }

    /// Lets the worker start, and report that it is ready, although its routes
    /// [adopt](crate::Handler::adopt) plain keys and Redis does not announce changes of keys, or
    /// the setting cannot be verified. Defaults to `false`: such a worker does not start. With
    /// `true` the worker searches for keys every 15 s; keys that expire between two searches are
    /// lost.
    ///
    /// `docs/managed-redis.md` in the repository lists the setting of each provider.
    pub fn allow_unannounced(mut self, allow: bool) -> Self {
        self.settings.allow_unannounced = allow;
        self
    }

    /// Calls `hook` with each [`Notice`], for metrics or alerts. The worker also logs every notice.
    /// The hook must not block: most notices come on the thread of the worker's engine, which also
    /// renews leases; [`Notice::Buried`] comes on the runtime of the handlers. The last hook that
    /// was set counts.
    ///
    /// The hook is called at most once for each event, after the event; a worker that ends just
    /// then skips the call. To react to every dead job, use [`on_dead`](Worker::on_dead).
    pub fn on_notice(mut self, hook: impl Fn(&Notice) + Send + Sync + 'static) -> Self {
        self.notices = Notices::to(hook);
        self
    }

    /// Calls `hook` for each job that is about to become a dead letter, to raise an alarm or to
    /// compensate for the failed job. The last hook that was set counts.
    ///
    /// The hook is called at least once for each dead job: the worker buries the job after the hook
    /// has returned. If the worker dies in between, or has no time left in a stop, the lease
    /// lapses, another worker takes the job, and the hook is called again, as a rule with the same
    /// [idempotency key](DeadJob::idempotency_key). The job may still escape its burial after the
    /// call: if somebody cancels it, schedules it again or takes it over meanwhile.
    ///
    /// A hook that fails, panics or takes longer than [`hook_timeout`](Worker::hook_timeout) is
    /// logged, and the job is buried nevertheless. A graceful stop waits for the hook within the
    /// [grace](Worker::grace).
    ///
    /// The hook is called for every job that this worker buries, and for jobs that
    /// [`Client::settle`] ends on a clone of the worker's client. A client in a process without the
    /// worker gets [`Settled::Buried`](crate::Settled::Buried) as its answer, and no hook is
    /// called.
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
    /// [`Worker::late_after`](Worker::late_after). The last hook that was set counts.
    ///
    /// The hook runs beside the handler, and delays nothing. A graceful stop waits for it within
    /// the [grace](Worker::grace). If the worker dies meanwhile, the hook is not called again. Up
    /// to 256 calls run at the same time; further late starts [are counted](LateJob::untold).
    ///
    /// The lateness of a start counts from the time that the job was due: for a retry from the time
    /// that its policy gives, for a requeued job from the time of the requeue, for a job that was
    /// scheduled or moved to a time in the past from that call. Time that a job waited because its
    /// kind was paused, or because there was no route or room for it, counts too. Of several starts
    /// for the same due time only the first counts: a job that a worker takes over from a dead
    /// worker does not become late by the takeover.
    pub fn on_late<F, Fut>(mut self, hook: F) -> Self
    where
        F: Fn(LateJob) -> Fut + Send + Sync + 'static,
        Fut: Future<Output: IntoTold> + Send + 'static,
    {
        self.hooks.set_late(hook);
        self
    }

    /// Sets how late a job may start before [`on_late`](Worker::on_late) is called, for routes
    /// without a limit of their own. Without this setting there is no limit.
    pub fn late_after(mut self, limit: Duration) -> Self {
        self.settings.late_after = Some(limit);
        self
    }

    /// Sets how long [`on_dead`](Worker::on_dead) and [`on_late`](Worker::on_late) may take for one
    /// job. Defaults to 10 s; from 1 ms to 1 hour.
    pub fn hook_timeout(mut self, timeout: Duration) -> Self {
        self.settings.hook_timeout = timeout;
        self
    }

    /// A handle that replaces the routes of this worker while it runs. Take it before
    /// [`run`](Worker::run), which consumes the worker.
    pub fn rerouter(&self) -> Rerouter {
        self.rerouter.clone()
    }

    /// A handle for readiness probes. Take it before [`run`](Worker::run), which consumes the
    /// worker.
    pub fn readiness(&self) -> Readiness {
        self.readiness.clone()
    }

    /// Runs until the process receives SIGTERM or Ctrl-C, and then stops gracefully. A second
    /// signal stops the worker without grace: it gives the jobs that still run back at once.
    ///
    /// # Errors
    /// As [`run_until`](Worker::run_until); [`ErrorKind::Unavailable`] also if the process cannot
    /// install signal handlers.
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

    /// Runs until `shutdown` is ready, and then stops gracefully: the worker claims nothing more,
    /// handlers may finish within the [grace period](Worker::grace), and the worker gives the
    /// remaining jobs back. Dropping the future stops the worker without grace.
    ///
    /// A worker whose Redis goes away keeps running, and waits for it to come back.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidSetting`] if a setting is out of range, [`ErrorKind::InvalidRoute`] if
    /// the router has no route, and other kinds if the server cannot carry Keyfall; each error
    /// names the remedy. The worker has claimed nothing in these cases.
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

    /// Runs until one of the tokens is raised: `gently` for a graceful stop, `at_once` to end the
    /// grace.
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

    /// Checks the ranges of all settings.
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
            "dead_letters keeps no dead letter, so jobs would disappear: keep at least one"
                .to_owned()
        } else if settings
            .bury_unrouted
            .is_some_and(|age| age < SHORTEST_UNROUTED)
        {
            format!(
                "bury_unrouted_after must be {SHORTEST_UNROUTED:?} or more, so that no job is \
                 buried during a deployment"
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

/// The checked routes of a router.
///
/// # Errors
/// If the router has no route and no fallback, or one of its routes is invalid.
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

/// The log subscriber of the thread that starts a worker, if it differs from the global one. The
/// engine's thread uses it too.
struct Log(Option<Dispatch>);

impl Log {
    fn of_this_thread() -> Self {
        let log = tracing::dispatcher::get_default(Dispatch::clone);
        // A global subscriber that is set later applies to all threads.
        Log((!log.is::<NoSubscriber>()).then_some(log))
    }

    /// Runs a closure with this subscriber.
    fn within<T>(&self, run: impl FnOnce() -> T) -> T {
        match &self.0 {
            Some(log) => tracing::dispatcher::with_default(log, run),
            None => run(),
        }
    }
}

/// The signals that stop the process: SIGINT and SIGTERM, or Ctrl-C outside of Unix. Registered
/// once, so that no signal is missed between two waits.
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
                Error::new(
                    ErrorKind::Unavailable,
                    "the process cannot listen for stop signals",
                )
                .because(error)
            })
        };
        Ok(Signals {
            interrupt: catch(SignalKind::interrupt())?,
            terminate: catch(SignalKind::terminate())?,
        })
    }

    /// Returns when one of the signals arrives.
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
