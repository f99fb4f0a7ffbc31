//! The whole worker as one list: what starts, in which order it stops, and why.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::adopting::servers::Adopters;
use super::adopting::subscriber::ChangeSubscriber;
use super::checkup::Checkup;
use super::claiming::claimer::Claimer;
use super::claiming::inbox::ClaimInbox;
use super::description::describe;
use super::finding::events::Events;
use super::finding::kinds::KindMonitor;
use super::finding::pacer::Pacer;
use super::finding::reconciler::Reconciler;
use super::finding::timer::PreciseTimer;
use super::heartbeat::Heartbeat;
use super::instances::PeerTable;
use super::listener::Listener;
use super::notice::Notices;
use super::readiness::{Readiness, ReadinessByServer};
use super::running::leases::Leases;
use super::running::limits::Limits;
use super::running::runner::Runner;
use super::running::slots::Slots;
use super::served::ServedLedgers;
use crate::client::{LeaseSubscribers, SettleTerms};
use crate::error::{Error, ErrorKind, Result};
use crate::hooks::Hooks;
use crate::retry::RetryPolicy;
use crate::router::Routes;
use crate::settings::{LeaseLength, LinkSettings, SETTLE_ENOUGH, SETTLE_GATHER, WorkerSettings};
use crate::store::{DeadLimits, Store, WantedEvents};

/// How long the server is given at the start before it is asked again.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a stop waits for the last jobs to be given back.
const HAND_BACK: Duration = Duration::from_secs(2);

/// How many routes stand in the line that a worker logs at its start.
const SHOWN: usize = 20;

/// What an engine is made of.
pub(crate) struct Plan {
    pub(crate) link: LinkSettings,
    pub(crate) allow_eviction: bool,
    /// How many bytes a payload may have that is adopted.
    pub(crate) payload_limit: usize,
    pub(crate) store: Arc<Store>,
    pub(crate) routes: Arc<Routes>,
    pub(crate) settings: WorkerSettings,
    pub(crate) limits: Arc<Limits>,
    pub(crate) notices: Notices,
    pub(crate) hooks: Arc<Hooks>,
    pub(crate) readiness: Readiness,
    /// Where it learns what became of jobs that are in other hands.
    pub(crate) lease_subscribers: Arc<LeaseSubscribers>,
    /// Where handlers run.
    pub(crate) handlers: Handle,
    /// Told by the engine when it hears what is due, or finds it all the same.
    pub(crate) ready: CancellationToken,
    /// Asks it to claim nothing more, and to end when what it has claimed has ended. Raised with
    /// `gently`.
    pub(crate) retired: CancellationToken,
    /// Asks for a graceful stop.
    pub(crate) gently: CancellationToken,
    /// Asks for a stop without grace.
    pub(crate) at_once: CancellationToken,
}

/// Runs a worker on this thread, until it was asked to stop and has stopped.
pub(crate) fn run(plan: Plan) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(cannot_start)?;
    runtime.block_on(drive(plan))
}

fn cannot_start(error: std::io::Error) -> Error {
    let what = "no thread or timer could be started for the worker";
    Error::new(ErrorKind::Unavailable, what).because(error)
}

async fn drive(plan: Plan) -> Result<()> {
    let Plan {
        link,
        allow_eviction,
        payload_limit,
        store,
        routes,
        settings,
        limits,
        notices,
        hooks,
        readiness,
        lease_subscribers,
        handlers,
        ready,
        retired,
        gently,
        at_once,
    } = plan;
    tokio::select! {
        checked = check(&store, &routes, allow_eviction, settings.allow_unannounced) => checked?,
        () = retired.cancelled() => return Ok(()),
    }

    tell_start(&store, &routes, &settings);
    let dead = DeadLimits {
        count: settings.dead_count,
        age: settings.dead_age,
    };
    let told = notices.clone();
    let terms = SettleTerms {
        dead,
        gather: (SETTLE_GATHER, SETTLE_ENOUGH),
        on_trimmed: Some(Arc::new(move |kind, letters| told.trimmed(kind, letters))),
    };
    let description = describe(&routes);
    let instances = Arc::new(PeerTable::new(&description, store.members().len())?);
    let served_ledgers = Arc::new(ServedLedgers::new(store.clone(), routes.clone(), terms));
    let inbox = Arc::new(ClaimInbox::default());
    let alarm = PreciseTimer::new().map_err(cannot_start)?;
    // From here on nothing fails, and the limits can be those of these routes.
    let slots = Slots::new(&limits, &routes);
    let lengths = routes.routes.iter().map(|route| route.lease);
    let lengths = lengths.map(|lease| lease.map_or(settings.lease, LeaseLength));
    let shortest = lengths.clone().min().unwrap_or(settings.lease);
    let longest = lengths.max().unwrap_or(settings.lease);
    let leases = Leases::new(shortest);
    let adopters = Adopters::new(&store, &served_ledgers, &instances, payload_limit);
    let searches = adopters.searches();
    let wanted = match adopters.have_work() {
        true => WantedEvents::Changes,
        false => WantedEvents::Expiry,
    };
    let heard_at = Arc::new(ReadinessByServer::new(
        readiness,
        store.members().len(),
        settings.allow_unannounced,
    ));
    let events = store.members().into_iter().map(|server| {
        let place = server.place();
        Arc::new(Events::new(
            server,
            instances.id(),
            wanted,
            adopters.at(place).globs().collect(),
            adopters.at(place).hearing().clone(),
            searches[place].clone(),
            heard_at.clone(),
        ))
    });
    let events: Arc<[Arc<Events>]> = events.collect();
    let pacer = Pacer::new(
        served_ledgers.clone(),
        instances.clone(),
        events.clone(),
        inbox.clone(),
        alarm,
    );
    let reconciler = Reconciler::new(
        store.clone(),
        served_ledgers.clone(),
        instances.clone(),
        inbox.clone(),
        pacer.clone(),
        events.clone(),
        longest.renewal(),
    );
    let runner = Arc::new(Runner {
        handle: handlers,
        routes: routes.clone(),
        leases: leases.clone(),
        reconciler: reconciler.clone(),
        adopters: adopters.clone(),
        settings: settings.clone(),
        default_policy: RetryPolicy::default(),
        notices: notices.clone(),
        hooks: hooks.clone(),
        stopping: AtomicBool::new(false),
    });
    let kind_monitor = KindMonitor::new(
        store.clone(),
        served_ledgers.clone(),
        instances.clone(),
        notices,
        hooks.clone(),
        dead,
        settings.bury_unrouted,
    );
    let heartbeats = store.members().into_iter().map(|server| {
        Arc::new(Heartbeat {
            events: events[server.place()].clone(),
            adopter: adopters.at(server.place()).clone(),
            store: server,
            instances: instances.clone(),
            description: description.clone(),
            slots: slots.clone(),
            routes: routes.clone(),
            pacer: pacer.clone(),
            reconciler: reconciler.clone(),
            kind_monitor: kind_monitor.clone(),
            asked: Notify::new(),
        })
    });
    let heartbeats: Vec<_> = heartbeats.collect();
    let checkups: Vec<_> = store.members().into_iter().map(Checkup::new).collect();
    let subscribers = adopters.all().zip(&*events).map(|(adopter, events)| {
        Arc::new(ChangeSubscriber {
            adopter: adopter.clone(),
            events: events.clone(),
            pacer: pacer.clone(),
            reconciler: reconciler.clone(),
            is_up: watch::Sender::new(false),
        })
    });
    let subscribers: Vec<_> = subscribers.collect();
    let listener = Listener {
        store: store.clone(),
        subscribers: subscribers.clone(),
        served_ledgers: served_ledgers.clone(),
        instances: instances.clone(),
        kind_monitor: kind_monitor.clone(),
        heartbeats: heartbeats.clone(),
        events: events.clone(),
        checkups: checkups.clone(),
        inbox: inbox.clone(),
        pacer: pacer.clone(),
        reconciler: reconciler.clone(),
        leases: leases.clone(),
        ready,
    };
    let mut claimer = Claimer::new(
        served_ledgers,
        instances,
        inbox,
        adopters.clone(),
        slots.clone(),
        runner.clone(),
        &lease_subscribers,
    );

    // What finds work ends with the first word: nothing more is looked for.
    let finding = async {
        tokio::select! {
            () = retired.cancelled() => {}
            () = listener.run(&link) => {}
            _ = join_all(subscribers.iter().map(|subscriber| subscriber.run(&link))) => {}
            () = pacer.run() => {}
            _ = join_all(adopters.all().map(|adopter| adopter.run())) => {}
            _ = join_all(searches.iter().map(|search| search.run())) => {}
            () = reconciler.run() => {}
            _ = join_all(heartbeats.iter().map(|heartbeat| heartbeat.run())) => {}
            () = listener.keep_fresh() => {}
            () = listener.follow_layouts() => {}
            () = kind_monitor.run() => {}
            _ = join_all(events.iter().map(|events| events.run())) => {}
            _ = join_all(checkups.iter().map(|checkup| checkup.run())) => {}
        }
    };
    let stopping = async {
        retired.cancelled().await;
        if gently.is_cancelled() {
            tracing::info!("stopping: nothing more is claimed");
        }
        runner.stop();
        join_all(heartbeats.iter().map(|heartbeat| heartbeat.stop())).await;
    };
    // The end of everybody's patience: the grace is over, or nobody grants any.
    let too_late = async {
        gently.cancelled().await;
        tokio::select! {
            () = at_once.cancelled() => {}
            () = sleep(settings.grace) => {}
        }
    }
    .shared();
    // While Redis is away, claims have no end. Also without grace they have as long as it takes to give
    // jobs back: nobody else does that before their leases lapse.
    let unclaimed = async {
        too_late.clone().await;
        sleep(HAND_BACK).await;
    };
    // The claims under way are waited for, since their jobs are ours by then, and are given
    // back by the runner. Then the handlers have their time, and what is left is given back.
    let working = async {
        tokio::join!(finding, stopping, async {
            tokio::select! {
                () = claimer.run(&retired) => {}
                () = unclaimed => {}
            }
        });
        tokio::select! {
            biased;
            () = slots.all_free() => {}
            () = too_late.clone() => {
                if !at_once.is_cancelled() {
                    tracing::warn!(grace = ?settings.grace, "handlers are still running; their jobs are given back");
                }
            }
        }
        // Those of routes that are replaced go on beside those that follow.
        if gently.is_cancelled() {
            tokio::select! {
                biased;
                () = hooks.all_told() => {}
                () = too_late.clone() => hooks.cut_off(),
            }
        }
        leases.hand_back_all();
        if timeout(HAND_BACK + settings.lease.notice(), slots.all_free())
            .await
            .is_err()
        {
            tracing::warn!("some jobs could not be given back; they will be taken over");
        }
    };
    // Leases are renewed to the very end.
    tokio::select! {
        () = working => {}
        () = leases.run() => {}
    }
    if gently.is_cancelled() {
        tracing::info!("stopped");
    }
    Ok(())
}

/// Says in one line what is served, and where.
fn tell_start(store: &Arc<Store>, routes: &Routes, settings: &WorkerSettings) {
    let patterns = routes.of_table().iter().map(|route| route.pattern.as_str());
    let mut served: Vec<_> = patterns.take(SHOWN).map(str::to_owned).collect();
    let more = routes.of_table().len() - served.len();
    if more > 0 {
        served.push(format!("{more} more routes"));
    }
    if routes.fallback.is_some() {
        served.push("what nobody has a route for".to_owned());
    }
    let servers = store.members().into_iter().map(|server| server.address());
    tracing::info!(
        routes = served.join(", "),
        redis = servers.collect::<Vec<_>>().join(", "),
        concurrency = settings.concurrency,
        lease = ?settings.lease.0,
        version = env!("CARGO_PKG_VERSION"),
        "the worker serves"
    );
}

/// Refuses a server that cannot carry Keyfall, or does not let this user do it; waits for one
/// that is away.
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
            // The second, if it went away in the middle of a question.
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
