//! The engine: all actors of a worker with one set of routes. [`Engine::run`] lists the actors, the
//! order in which they stop, and the reasons. An engine runs on a thread of its own;
//! [`rerouting`](super::rerouting) starts and retires engines.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::activity_writer::ActivityWriter;
use super::claiming::claimer::Claimer;
use super::claiming::inbox::ClaimInbox;
use super::declaring::{declare_later, declare_limits};
use super::description::describe;
use super::finding::Finders;
use super::finding::balancer::Balancer;
use super::finding::kinds::KindMonitor;
use super::finding::pacer::Pacer;
use super::finding::reconciler::Reconciler;
use super::finding::timer::PreciseTimer;
use super::instances::PeerTable;
use super::listener::Listener;
use super::notice::Notices;
use super::readiness::{Readiness, ReadinessByServer};
use super::running::leases::Leases;
use super::running::limits::Limits;
use super::running::runner::Runner;
use super::running::slots::Slots;
use super::served::ServedLedgers;
use super::server_monitor::{MonitorContext, ServerMonitors};
use crate::client::{Client, LeaseSubscribers, SettleTerms};
use crate::error::{Error, ErrorKind, Result};
use crate::hooks::Hooks;
use crate::retry::RetryPolicy;
use crate::router::Routes;
use crate::settings::{LeaseLength, LinkSettings, SETTLE_ENOUGH, SETTLE_GATHER, WorkerSettings};
use crate::store::{DeadLimits, Store};

/// Time limit of one round of checks at the start, before the server is called again.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a stop waits for the last jobs to be given back.
const HAND_BACK: Duration = Duration::from_secs(2);

/// How many routes the start line in the log names.
const SHOWN: usize = 20;

/// The parts and settings that an engine is built from.
pub(crate) struct Plan {
    /// The client of the worker, which declares the limits of routes.
    pub(crate) client: Client,
    /// Settings of the connections to Redis.
    pub(crate) link: LinkSettings,
    /// Whether a server that may evict keys is accepted.
    pub(crate) allow_eviction: bool,
    /// Largest payload that is adopted, in bytes, for routes without a limit of their own.
    pub(crate) payload_limit: usize,
    /// The store with all servers.
    pub(crate) store: Arc<Store>,
    /// The routes that this engine serves; they never change.
    pub(crate) routes: Arc<Routes>,
    /// The settings of the worker, for everything that a route does not set itself.
    pub(crate) settings: WorkerSettings,
    /// Job limits, shared with the engines before and after this one.
    pub(crate) limits: Arc<Limits>,
    /// Reports to the owner of the worker.
    pub(crate) notices: Notices,
    /// Hooks for dead and late jobs, shared with the engines before and after this one.
    pub(crate) hooks: Arc<Hooks>,
    /// The handle that readiness probes read.
    pub(crate) readiness: Readiness,
    /// The source of news about leases that clients hold outside of the engine.
    pub(crate) lease_subscribers: Arc<LeaseSubscribers>,
    /// The runtime that handlers run on.
    pub(crate) handlers: Handle,
    /// Raised by the engine when it hears due jobs, or when it cannot hear them but finds them by
    /// sweeps.
    pub(crate) ready: CancellationToken,
    /// Asks the engine to claim nothing more, and to end after its last claimed job. A child of
    /// `gently`: raised with it.
    pub(crate) retired: CancellationToken,
    /// Asks for a graceful stop.
    pub(crate) gently: CancellationToken,
    /// Asks for a stop without grace.
    pub(crate) at_once: CancellationToken,
}

/// Runs an engine on the current thread, until it is asked to stop and has stopped.
///
/// # Errors
/// If a thread or timer cannot be started, or a server cannot carry Keyfall.
pub(crate) fn run(plan: Plan) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(cannot_start)?;
    let readiness = plan.readiness.clone();
    // In one task with all actors, so that it does not answer while one of them blocks.
    runtime.block_on(async {
        tokio::select! {
            ended = drive(plan) => ended,
            never = readiness.respond() => match never {},
        }
    })
}

/// The error for a thread or timer that the system refuses.
fn cannot_start(error: std::io::Error) -> Error {
    let what = "no thread or timer could be started for the worker";
    Error::new(ErrorKind::Unavailable, what).because(error)
}

/// The error for a task that ended with the runtime of the handlers.
fn was_aborted(error: tokio::task::JoinError) -> Error {
    let what = "the runtime of the handlers has ended before the worker could start";
    Error::new(ErrorKind::Unavailable, what).because(error)
}

/// Checks the servers, declares the limits of routes, logs the start, and runs the engine.
async fn drive(plan: Plan) -> Result<()> {
    let Plan {
        client,
        store,
        routes,
        settings,
        handlers,
        ..
    } = &plan;
    let prepared = async {
        check(
            store,
            routes,
            plan.allow_eviction,
            settings.allow_unannounced,
        )
        .await?;
        // On the runtime that the connections of the client belong to.
        let declaring = handlers.spawn(declare_limits(client.clone(), routes.clone()));
        let left = AbortOnDropHandle::new(declaring).await;
        let left = left.map_err(was_aborted)??;
        let later = handlers.spawn(declare_later(client.clone(), left));
        Ok::<_, Error>(AbortOnDropHandle::new(later))
    };
    let _declaring = tokio::select! {
        prepared = prepared => prepared?,
        () = plan.retired.cancelled() => return Ok(()),
    };
    tell_start(store, routes, settings);
    Engine::new(plan)?.run().await;
    Ok(())
}

/// The actors of one engine. They share the engine's thread, so that no actor may block.
struct Engine {
    link: LinkSettings,
    listener: Listener,
    finders: Finders,
    monitors: Arc<ServerMonitors>,
    claimer: Claimer,
    runner: Arc<Runner>,
    slots: Arc<Slots>,
    hooks: Arc<Hooks>,
    leases: Arc<Leases>,
    activity_writer: ActivityWriter,
    stop: StopSignals,
}

impl Engine {
    /// Connects the actors with each other. None of them runs yet.
    fn new(plan: Plan) -> Result<Self> {
        let Plan {
            link,
            payload_limit,
            store,
            routes,
            settings,
            notices,
            hooks,
            ..
        } = plan;
        let terms = settle_terms(&settings, &notices);
        let dead = terms.dead;
        let description = describe(&routes, settings.concurrency);
        let instances = Arc::new(PeerTable::new(&description, store.servers().len())?);
        let served_ledgers = Arc::new(ServedLedgers::new(store.clone(), routes.clone(), terms));
        let inbox = Arc::new(ClaimInbox::default());
        let alarm = PreciseTimer::new().map_err(cannot_start)?;
        // From here on nothing fails, and the limits can be set to the limits of these routes.
        let slots = Slots::new(&plan.limits, &routes);
        let (shortest, longest) = lease_lengths(&settings, &routes);
        let leases = Leases::new(shortest);
        let monitors = ServerMonitors::new(&MonitorContext {
            store: store.clone(),
            routes: routes.clone(),
            served_ledgers: served_ledgers.clone(),
            instances: instances.clone(),
            description,
            slots: slots.clone(),
            heard_at: Arc::new(ReadinessByServer::new(
                plan.readiness,
                store.servers().len(),
                settings.allow_unannounced,
            )),
            payload_limit,
        });
        let pacer = Pacer::new(
            served_ledgers.clone(),
            instances.clone(),
            monitors.clone(),
            inbox.clone(),
            alarm,
        );
        let balancer = Balancer::new(store.clone(), instances.clone());
        let reconciler = Reconciler::new(
            served_ledgers.clone(),
            instances.clone(),
            inbox.clone(),
            (pacer.clone(), balancer.clone()),
            monitors.clone(),
            longest.renewal(),
        );
        let kind_monitor = KindMonitor::new(
            store.clone(),
            served_ledgers.clone(),
            instances.clone(),
            notices.clone(),
            hooks.clone(),
            dead,
            settings.bury_unrouted,
        );
        let activity_writer = ActivityWriter::new(store.clone());
        let stop = StopSignals {
            retired: plan.retired,
            gently: plan.gently,
            at_once: plan.at_once,
            grace: settings.grace,
            notice: settings.lease.notice(),
        };
        let runner = Arc::new(Runner {
            handle: plan.handlers,
            routes,
            leases: leases.clone(),
            reconciler: reconciler.clone(),
            monitors: monitors.clone(),
            settings,
            default_policy: RetryPolicy::default(),
            notices,
            hooks: hooks.clone(),
            stopping: AtomicBool::new(false),
        });
        let finders = Finders {
            pacer,
            reconciler,
            balancer,
            kind_monitor,
        };
        let listener = Listener {
            store,
            served_ledgers: served_ledgers.clone(),
            instances: instances.clone(),
            monitors: monitors.clone(),
            finders: finders.clone(),
            inbox: inbox.clone(),
            leases: leases.clone(),
            ready: plan.ready,
        };
        let claimer = Claimer::new(
            served_ledgers,
            instances,
            inbox,
            monitors.clone(),
            slots.clone(),
            runner.clone(),
            &plan.lease_subscribers,
        );
        Ok(Engine {
            link,
            listener,
            finders,
            monitors,
            claimer,
            runner,
            slots,
            hooks,
            leases,
            activity_writer,
            stop,
        })
    }

    /// Runs all actors. They stop in this order:
    ///
    /// | | actor | stops |
    /// |---|---|---|
    /// | 1 | listener, pacer, reconciler, balancer, kind monitor, server monitors | at the first request: nothing more is looked for |
    /// | 2 | claimer | when the claims under way are answered: this worker owns their jobs by then |
    /// | 3 | handlers | when they end, or the grace is over |
    /// | 4 | hooks | like handlers: a dying job waits for its hook |
    /// | 5 | slots | when the remaining jobs have been given back |
    /// | 6 | leases | when the engine has no job left: they are renewed until then |
    /// | 7 | activity writer | last: it counts the ends of all runs |
    async fn run(self) {
        let Engine {
            link,
            listener,
            finders,
            monitors,
            mut claimer,
            runner,
            slots,
            hooks,
            leases,
            activity_writer,
            stop,
        } = self;
        let retired = &stop.retired;
        let too_late = stop.too_late().shared();

        let servers = monitors.iter();
        let servers = servers.map(|monitor| monitor.run(&finders, &link, retired));
        // They take turns in being polled first, so that a flood of events in one starves no other.
        let finding = async {
            tokio::join!(
                listener.run(&link, retired),
                finders.pacer.run(retired),
                finders.reconciler.run(retired),
                finders.balancer.run(retired),
                finders.kind_monitor.run(retired),
                activity_writer.run(retired),
                join_all(servers),
            )
        };
        let stopping = async {
            retired.cancelled().await;
            if stop.gently.is_cancelled() {
                tracing::info!("the worker stops, and claims no more jobs");
            }
            // Jobs that are claimed from now on go back.
            runner.stop();
        };
        // While Redis is away, a claim does not end. Even without grace, a claim gets the time that
        // giving jobs back takes: otherwise these jobs wait until their leases lapse.
        let claiming = async {
            tokio::select! {
                () = claimer.run(retired) => {}
                () = too_late.clone().then(|()| sleep(HAND_BACK)) => {}
            }
        };
        let working = async {
            tokio::join!(stopping, finding, claiming);
            stop.wait_for_handlers(&slots, too_late.clone()).await;
            stop.wait_for_hooks(&hooks, too_late.clone()).await;
            leases.hand_back_all();
            stop.wait_for_slots(&slots).await;
        };
        tokio::select! {
            () = working => {}
            () = leases.run() => {}
        }
        if !stop.at_once.is_cancelled() {
            activity_writer.stop().await;
        }
        if stop.gently.is_cancelled() {
            tracing::info!("stopped");
        }
    }
}

/// The stop signals of an engine, and its time limits for a stop.
struct StopSignals {
    retired: CancellationToken,
    gently: CancellationToken,
    at_once: CancellationToken,
    grace: Duration,
    /// How long before the end of a lease the handler is warned.
    notice: Duration,
}

impl StopSignals {
    /// Returns when the wait for handlers is over: the grace has passed, or a stop without grace
    /// was requested. Never returns for an engine that is only retired.
    async fn too_late(&self) {
        self.gently.cancelled().await;
        tokio::select! {
            () = self.at_once.cancelled() => {}
            () = sleep(self.grace) => {}
        }
    }

    /// Returns when all handlers have ended, or `too_late` does.
    async fn wait_for_handlers(&self, slots: &Slots, too_late: impl Future<Output = ()>) {
        tokio::select! {
            biased;
            () = slots.all_free() => {}
            () = too_late => {
                if !self.at_once.is_cancelled() {
                    tracing::warn!(
                        grace = ?self.grace,
                        "handlers are still running; the worker gives their jobs back"
                    );
                }
            }
        }
    }

    /// Waits for hooks, on a graceful stop only: the hooks of replaced routes continue beside the
    /// hooks of the routes that follow. Hooks that still run at `too_late` are cut off.
    async fn wait_for_hooks(&self, hooks: &Hooks, too_late: impl Future<Output = ()>) {
        if self.gently.is_cancelled() {
            tokio::select! {
                biased;
                () = hooks.all_told() => {}
                () = too_late => hooks.cut_off(),
            }
        }
    }

    /// Returns when the remaining jobs have been given back, or after a limit; other workers take
    /// the jobs over then.
    async fn wait_for_slots(&self, slots: &Slots) {
        let given_back = timeout(HAND_BACK + self.notice, slots.all_free());
        if given_back.await.is_err() {
            tracing::warn!("some jobs could not be given back; other workers take them over");
        }
    }
}

/// The limits of dead letters, and of the batches of settlements.
fn settle_terms(settings: &WorkerSettings, notices: &Notices) -> SettleTerms {
    let told = notices.clone();
    SettleTerms {
        dead: DeadLimits {
            count: settings.dead_count,
            age: settings.dead_age,
        },
        gather: (SETTLE_GATHER, SETTLE_ENOUGH),
        on_trimmed: Some(Arc::new(move |kind, letters| told.trimmed(kind, letters))),
    }
}

/// The shortest and the longest lease of these routes.
fn lease_lengths(settings: &WorkerSettings, routes: &Routes) -> (LeaseLength, LeaseLength) {
    let lengths = routes.routes.iter().map(|route| route.lease);
    let lengths = lengths.map(|lease| lease.map_or(settings.lease, LeaseLength));
    let shortest = lengths.clone().min().unwrap_or(settings.lease);
    (shortest, lengths.max().unwrap_or(settings.lease))
}

/// Logs one line with the served routes, the servers and the main settings.
fn tell_start(store: &Arc<Store>, routes: &Routes, settings: &WorkerSettings) {
    let patterns = routes.of_table().iter().map(|route| route.pattern.as_str());
    let mut served: Vec<_> = patterns.take(SHOWN).map(str::to_owned).collect();
    let more = routes.of_table().len() - served.len();
    if more > 0 {
        served.push(format!("{more} more routes"));
    }
    if routes.fallback.is_some() {
        served.push("all jobs without a route".to_owned());
    }
    let servers = store.servers().iter().map(|server| server.address());
    tracing::info!(
        routes = served.join(", "),
        redis = servers.collect::<Vec<_>>().join(", "),
        concurrency = settings.concurrency,
        lease = ?settings.lease.0,
        version = env!("CARGO_PKG_VERSION"),
        "the worker serves these routes"
    );
}

/// Checks that the servers can carry Keyfall, and that this user may run every named kind. Waits
/// for a server that is away.
///
/// # Errors
/// If a server cannot carry Keyfall, or refuses a right.
async fn check(
    store: &Store,
    routes: &Routes,
    allow_eviction: bool,
    allow_unannounced: bool,
) -> Result<()> {
    let check = async || {
        let until = Instant::now() + PATIENCE;
        store.check(allow_eviction, until).await?;
        for kind in routes.literal_kinds() {
            store.check_rights(&kind, until).await?;
        }
        let adopted = Vec::from_iter(routes.adopted_keys());
        if !adopted.is_empty() {
            store
                .check_adoption(&adopted, allow_unannounced, until)
                .await?;
        }
        Ok::<(), Error>(())
    };
    loop {
        match check().await {
            Ok(()) => return Ok(()),
            // `OutcomeUnknown`: the server went away in the middle of a call.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::Unavailable | ErrorKind::OutcomeUnknown
                ) =>
            {
                tracing::debug!(%error, "waiting for Redis");
                sleep(Duration::from_millis(100)).await;
            }
            Err(error) => return Err(error),
        }
    }
}
