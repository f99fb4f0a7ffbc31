//! The kind monitor: looks through all existing kinds for jobs that no live instance has a route
//! for, reports and buries them, and trims dead letters that are too old.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::burial::Burial;
use crate::error::Result;
use crate::hooks::Hooks;
use crate::key::Kind;
use crate::settings::{BATCH, LOOKOUT, TRIM};
use crate::shards::Layout;
use crate::store::{DeadLimits, Ledger, Store, is_of_absence};
use crate::worker::instances::PeerTable;
use crate::worker::notice::{Notice, Notices};
use crate::worker::served::ServedLedgers;

/// Shortest time between two rounds, however often one is requested, so that a worker that replaces
/// another is not missed in between.
const AT_LEAST: Duration = Duration::from_secs(1);

/// How often the limits of the ledgers are compared with the rules.
const LIMIT_AGAIN: Duration = Duration::from_secs(60);

/// Time limit of one call.
const PATIENCE: Duration = Duration::from_secs(5);

/// Looks through all kinds that exist.
pub(crate) struct KindMonitor {
    store: Arc<Store>,
    served_ledgers: Arc<ServedLedgers>,
    instances: Arc<PeerTable>,
    notices: Notices,
    dead: DeadLimits,
    /// Buries jobs without a route, if the worker is set to.
    burial: Option<Burial>,
    /// When an instance last went: it may have taken routes along.
    went: Mutex<Instant>,
    /// Requests a round before its time.
    asked: Notify,
}

/// The results of the rounds so far.
#[derive(Default)]
struct Memory {
    /// When the limits were last compared with the rules.
    limited: Option<Instant>,
    /// Kinds that were reported as unrouted.
    told: HashSet<Kind>,
    /// The time since when no instance is known to have had a route for any job of the kind.
    without: HashMap<Kind, Instant>,
}

/// Adds the server of this ledger to `away`, if it is one of several and away.
fn note_absence<T>(ledger: &Ledger, found: &Result<T>, away: &mut HashSet<usize>) {
    if ledger.is_one_of_many() && found.as_ref().is_err_and(is_of_absence) {
        away.insert(ledger.server());
    }
}

impl KindMonitor {
    /// `bury_after` is how long jobs without a route are overdue before they are buried; `None`
    /// never buries them.
    pub(crate) fn new(
        store: Arc<Store>,
        served_ledgers: Arc<ServedLedgers>,
        instances: Arc<PeerTable>,
        notices: Notices,
        hooks: Arc<Hooks>,
        dead: DeadLimits,
        bury_after: Option<Duration>,
    ) -> Arc<Self> {
        let burial = bury_after.map(|age| Burial {
            instances: instances.clone(),
            notices: notices.clone(),
            hooks,
            dead,
            age,
        });
        Arc::new(KindMonitor {
            store,
            served_ledgers,
            instances,
            notices,
            dead,
            burial,
            went: Mutex::new(Instant::now()),
            asked: Notify::new(),
        })
    }

    /// Requests a round, because there is a kind without a route here.
    pub(crate) fn look(&self) {
        self.asked.notify_one();
    }

    /// Takes in that an instance went, perhaps with the only route for some jobs.
    pub(crate) fn somebody_went(&self) {
        *self.went.lock().expect("no panic while held") = Instant::now();
        self.look();
    }

    /// Runs rounds until the shutdown.
    pub(crate) async fn run(&self, shutdown: &CancellationToken) {
        shutdown.run_until_cancelled(self.look_out()).await;
    }

    /// Runs rounds for ever, and trims dead letters now and then.
    async fn look_out(&self) {
        let mut memory = Memory::default();
        let mut trimmed: Option<Instant> = None;
        let age = self.burial.as_ref().map_or(LOOKOUT, |burial| burial.age);
        let pause = age.clamp(AT_LEAST, LOOKOUT);
        loop {
            sleep(AT_LEAST).await;
            self.step(&mut memory).await;
            if trimmed.is_none_or(|at| at.elapsed() >= TRIM) {
                trimmed = Some(Instant::now());
                self.trim().await;
            }
            tokio::select! {
                () = sleep(pause) => {}
                () = self.asked.notified() => {}
            }
        }
    }

    /// One round over all kinds. An error in one ledger does not stop the round.
    async fn step(&self, memory: &mut Memory) {
        let kinds = match self.store.kinds(Instant::now() + PATIENCE).await {
            Ok(kinds) => kinds,
            Err(error) => return tracing::debug!(%error, "the list of kinds is unknown"),
        };
        // Nothing is kept of dropped kinds.
        let there: HashSet<&Kind> = kinds.iter().collect();
        memory.told.retain(|kind| there.contains(kind));
        memory.without.retain(|kind, _| there.contains(kind));
        // Each of several servers that is away costs the round one time limit.
        let mut away = HashSet::new();
        if memory.limited.is_none_or(|at| at.elapsed() >= LIMIT_AGAIN) {
            memory.limited = Some(Instant::now());
            self.limit_again(&kinds).await;
        }
        for kind in kinds {
            let since = if self.instances.route_kind(kind.as_str()) {
                memory.without.remove(&kind);
                *self.went.lock().expect("no panic while held")
            } else {
                let now = Instant::now();
                *memory.without.entry(kind.clone()).or_insert(now)
            };
            let layout = self.store.layout_of(kind.as_str());
            self.push_on(&kind, layout, &mut away).await;
            let mut jobs = Some(0);
            for shard in 0..layout.ledgers() {
                let ledger = self.store.ledger(&kind, layout.place(shard));
                if away.contains(&ledger.server()) {
                    jobs = None;
                    continue;
                }
                let found = self.jobs_without_route(&ledger).await;
                ledger.note("lookout", &found);
                note_absence(&ledger, &found, &mut away);
                jobs = jobs.and_then(|jobs| Some(jobs + found.ok()?));
                if let Some(burial) = &self.burial {
                    let buried = burial.hold(&ledger, since).await;
                    ledger.note("burial", &buried);
                }
            }
            if let Some(jobs) = jobs {
                self.report(&kind, jobs, memory);
            }
        }
    }

    /// Limits the ledgers anew that should have a limit and have none, because their server has lost
    /// it.
    async fn limit_again(&self, kinds: &[Kind]) {
        let scopes = match self.store.limit_scopes(Instant::now() + PATIENCE).await {
            Ok(scopes) => scopes,
            Err(error) => return tracing::debug!(%error, "the limits are unknown"),
        };
        let is_limited = |kind: &&Kind| scopes.iter().any(|scope| scope.covers(kind));
        // Of all of them: a server that is away delays the round once.
        let until = Instant::now() + PATIENCE;
        for kind in kinds.iter().filter(is_limited) {
            if let Err(error) = self.store.apply_limit_rule(kind, until).await {
                tracing::debug!(%kind, %error, "a kind could not be limited");
            }
        }
    }

    /// Delivers jobs that are on their way to another ledger, where nobody can claim them yet, in
    /// case the instance that moved them is gone.
    async fn push_on(&self, kind: &Kind, layout: Layout, away: &mut HashSet<usize>) {
        for shard in 0..layout.from.unwrap_or(0) {
            let ledger = self.store.ledger(kind, layout.old_place(shard));
            if away.contains(&ledger.server()) {
                continue;
            }
            let pushed = ledger.push_on(layout, Instant::now() + PATIENCE).await;
            ledger.note("take", &pushed);
        }
    }

    /// Number of waiting jobs of a kind that no instance has a route for: pending jobs, and jobs
    /// whose worker is gone. 0 if there is a route. Of lapsed leases, one page counts.
    async fn jobs_without_route(&self, ledger: &Ledger) -> Result<u64> {
        if self.instances.route_kind(ledger.kind().as_str()) {
            return Ok(0);
        }
        let until = Instant::now() + PATIENCE;
        let tally = ledger.tally(until).await?;
        if tally.leased == 0 {
            return Ok(tally.pending);
        }
        let found = ledger.sweep(Duration::ZERO, (0, 0), BATCH, until).await?;
        Ok(tally.pending + found.lapsed.len() as u64)
    }

    /// Sends a notice if the kind has become unrouted or routed.
    fn report(&self, kind: &Kind, jobs: u64, memory: &mut Memory) {
        if jobs == 0 {
            if memory.told.remove(kind) {
                self.notices.tell(&Notice::Routed { kind: kind.clone() });
            }
        } else if !memory.told.contains(kind) && self.instances.reports(kind.as_str()) {
            memory.told.insert(kind.clone());
            let kind = kind.clone();
            self.notices.tell(&Notice::Unrouted { kind, jobs });
        }
    }

    /// Drops dead letters that are too old, in case no burial does. Only letters of kinds that this
    /// worker has a route for: other workers may keep the letters of their kinds for longer.
    async fn trim(&self) {
        for served in self.served_ledgers.all().iter() {
            let ledger = &served.ledger;
            while served.is_routed && self.instances.paces(served) {
                let until = Instant::now() + PATIENCE;
                let letters = ledger.trim(self.dead, BATCH, until).await;
                ledger.note("trim", &letters);
                match letters {
                    Ok(letters) if letters > 0 => self.notices.trimmed(ledger.kind(), letters),
                    _ => break,
                }
            }
        }
    }
}
