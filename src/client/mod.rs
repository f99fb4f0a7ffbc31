//! The producer's side: schedule, change, cancel, look up.

mod batcher;
mod builder;
mod due;
mod durably;
#[cfg(feature = "worker")]
mod lease_events;
#[cfg(feature = "worker")]
mod leases;
#[cfg(feature = "worker")]
mod listeners;
mod operating;
mod producing;
mod registry;
#[cfg(feature = "worker")]
mod settling;
mod view;

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use bytes::Bytes;
use futures_util::future::{BoxFuture, join_all};
use serde::Serialize;
use tokio::time::timeout_at;

pub(crate) use batcher::Batcher;
pub use builder::ClientBuilder;
pub(crate) use durably::Durably;
#[cfg(feature = "worker")]
pub(crate) use lease_events::{LeaseEvent, LeaseSubscribers, WantedKinds};
#[cfg(feature = "worker")]
pub use leases::{ExtendLease, Extended, SettleDurably, SettleLease, Settled};
#[cfg(feature = "worker")]
pub(crate) use listeners::{DyingJob, Listeners, TellDead};
pub use operating::audit::everything::{AuditAll, AuditAllReport};
pub use operating::audit::{Audit, AuditReport, Damage, Flawed};
pub use operating::bulk::{Bulk, BulkReport, Postpone};
pub use operating::counting::Counts;
#[cfg(feature = "worker")]
pub use operating::dropping::Dropped;
pub use operating::functions::{Functions, LibraryState};
#[cfg(feature = "worker")]
pub use operating::history::{Happening, KeepHistory, Tail, Tidings, What};
#[cfg(feature = "worker")]
pub use operating::instances::{Instance, Instances, Unrouted, UnroutedKinds};
pub use operating::letters::{DeleteDeadLetter, Requeue, Requeued};
pub use operating::listing::{Cursor, DamagedJob, ListJobs, Page};
#[cfg(feature = "worker")]
pub use operating::mending::{MendSlots, MendedSlots, StraySlot, StrayState, TornLedger};
use operating::partial::PartialView;
pub use operating::partial::{Kinds, Unseen};
pub use operating::pausing::{Pause, Paused, Resume};
#[cfg(feature = "worker")]
pub use operating::resharding::{Reshard, Resharded, Resharding};
pub use operating::restoring::{KeptJob, Restored};
pub use operating::selection::Selection;
pub use operating::stats::Stats;
#[cfg(feature = "worker")]
pub use operating::story::{KeyDiffers, Story, Wait};
pub use producing::change::{Cancel, CancelDurably, Cancelled, Reschedule, Rescheduled, Updated};
use producing::many::Lanes;
pub use producing::new_job::NewJob;
pub use producing::ordered::Ordered;
pub use producing::schedule::{
    IfAbsent, IfPresent, Placed, Schedule, ScheduleIfAbsent, ScheduleIfPresent, Scheduled,
};
use registry::{CallTarget, KindRegistry, KindShards, MisplacedJob};
#[cfg(feature = "worker")]
pub(crate) use settling::SettleTerms;
pub use view::{JobState, JobView};

use crate::durable::Durable;
use crate::error::{Error, ErrorKind, Result};
use crate::key::{IntoJobKey, JobKey, Kind};
use crate::settings::{ClientSettings, KNOWN_FOR, TOLD_AGAIN};
use crate::shards::Layout;
use crate::store::{
    Answered, BackupItem, Change, Discard, Ledger, Outdated, Placement, Revival, Store, Unlisted,
    Update, Word,
};
#[cfg(feature = "worker")]
use crate::store::{DeadLimits, Health, Server, Settlement};

/// Schedules jobs and looks after them.
///
/// Cheap to clone; all clones share one connection. Calls that are made at the same time
/// travel together, and a lone call is never held back. Each call ends within
/// [`call_timeout`](ClientBuilder::call_timeout), with an error that says
/// [whether trying again can help](Error::is_retryable).
///
/// A client belongs to the tokio runtime that it was connected on.
///
/// ```no_run
/// # async fn example() -> keyfall::Result<()> {
/// use std::time::Duration;
///
/// let client = keyfall::Client::connect("redis://127.0.0.1:6379").await?;
/// client
///     .schedule("app1:trans:notice:1615283234", &serde_json::json!({ "uid": 7 }))
///     .after(Duration::from_secs(900))
///     .await?;
/// client.cancel("app1:trans:notice:1615283234").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client(Arc<ClientInner>, Option<Admission>);

/// Whether a kind may begin that nobody has used yet.
type Admission = Arc<dyn Fn(&Kind) -> bool + Send + Sync>;

struct ClientInner {
    settings: ClientSettings,
    store: Arc<Store>,
    registry: KindRegistry,
    /// The workers of this client, which count what they handed over.
    #[cfg(feature = "worker")]
    lease_subscribers: Arc<LeaseSubscribers>,
    /// Their hooks.
    #[cfg(feature = "worker")]
    listeners: Listeners,
}

/// A ledger as a producer uses it: one outbox for each operation.
struct ShardClient {
    ledger: Arc<Ledger>,
    /// For the calls that bring batches of their own.
    lanes: Lanes,
    schedules: Batcher<Placement>,
    changes: Batcher<Change>,
    updates: Batcher<Update>,
    cancels: Batcher<JobKey>,
    outdated: Batcher<Outdated>,
    durable_schedules: Batcher<Durably<Placement>>,
    durable_cancels: Batcher<Durably<JobKey>>,
    requeues: Batcher<Revival>,
    discards: Batcher<Discard>,
    restores: Batcher<BackupItem>,
    moves: Batcher<MisplacedJob>,
    #[cfg(feature = "worker")]
    settles: Batcher<Settlement>,
    #[cfg(feature = "worker")]
    durable_settles: Batcher<Durably<Settlement>>,
}

impl ShardClient {
    /// `layout` says where what is moved out of the ledger goes.
    fn new(ledger: Arc<Ledger>, layout: Layout) -> Arc<Self> {
        Arc::new(ShardClient {
            lanes: Lanes::new(),
            schedules: Batcher::new(ledger.clone(), ()),
            changes: Batcher::new(ledger.clone(), ()),
            updates: Batcher::new(ledger.clone(), ()),
            cancels: Batcher::new(ledger.clone(), ()),
            outdated: Batcher::new(ledger.clone(), ()),
            durable_schedules: Batcher::new(ledger.clone(), ()),
            durable_cancels: Batcher::new(ledger.clone(), ()),
            requeues: Batcher::new(ledger.clone(), ()),
            discards: Batcher::new(ledger.clone(), ()),
            restores: Batcher::new(ledger.clone(), ()),
            moves: Batcher::new(ledger.clone(), layout),
            #[cfg(feature = "worker")]
            settles: Batcher::new(ledger.clone(), SettleTerms::at_once(DeadLimits::default())),
            #[cfg(feature = "worker")]
            durable_settles: Batcher::new(
                ledger.clone(),
                SettleTerms::at_once(DeadLimits::default()),
            ),
            ledger,
        })
    }
}

type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

impl Client {
    /// Connects with the default settings.
    ///
    /// The URL is `redis://[user:password@]host:port/database`,
    /// `redis+unix:///path/redis.sock?db=0`, or
    /// `redis+sentinel://[user:password@]host:port,host:port/master/database` for a primary that
    /// [sentinels](https://redis.io/docs/latest/operate/oss_and_stack/management/sentinel/) watch,
    /// with `?sentinel_user=…&sentinel_password=…&sentinel_tls=true` where they want that; or
    /// several of these, with spaces between, where each server has some
    /// [shards](Client::reshard) of the jobs: the same ones in the same order everywhere; or
    /// `redis+cluster://[user:password@]host:port,host:port` for a cluster, some of whose nodes are
    /// named. With the feature `tls`, `rediss://`, `rediss+sentinel://` and `rediss+cluster://` ask
    /// for TLS.
    ///
    /// # Errors
    /// If the URL is not valid, the server does not answer, or it cannot carry Keyfall; each
    /// with the remedy.
    pub async fn connect(url: &str) -> Result<Self> {
        Client::builder(url).connect().await
    }

    /// Settings other than the defaults.
    pub fn builder(url: &str) -> ClientBuilder {
        ClientBuilder::new(url)
    }

    async fn open(url: &str, settings: ClientSettings) -> Result<Self> {
        let client = Client::unchecked(url, settings)?;
        let settings = client.settings();
        // A server that is not there is a mistake at start-up more often than an outage.
        let patience = settings.call_timeout.min(settings.link.connect_timeout);
        let (until, soon) = (client.deadline(), Instant::now() + patience);
        let store = client.store();
        store.check(settings.allow_eviction, soon).await?;
        if store.is_several() {
            // So that jobs are found where they are, also if the first shard of their kind is away.
            store.kinds(until).await?;
        }
        Ok(client)
    }

    /// A client of a server that nobody has looked at; opens nothing yet.
    fn unchecked(url: &str, settings: ClientSettings) -> Result<Self> {
        let names = crate::names::Names::new(&settings.namespace);
        let store = Store::new(url, names, &settings.link)?;
        Ok(Client(
            Arc::new(ClientInner {
                settings,
                store,
                registry: KindRegistry::default(),
                #[cfg(feature = "worker")]
                lease_subscribers: Arc::default(),
                #[cfg(feature = "worker")]
                listeners: Listeners::default(),
            }),
            None,
        ))
    }

    pub(crate) fn store(&self) -> &Arc<Store> {
        &self.0.store
    }

    /// The same client, which asks before a kind begins that nobody has used yet: without leave, its
    /// jobs are refused with [`ErrorKind::TooManyKinds`]. The names of kinds are kept until somebody
    /// [drops](Self::drop_kind) them, so whoever lets others choose them should count them.
    pub fn admitting(&self, may_begin: impl Fn(&Kind) -> bool + Send + Sync + 'static) -> Self {
        Client(self.0.clone(), Some(Arc::new(may_begin)))
    }

    /// Schedules a job with a payload that is stored as JSON. Due now, unless
    /// [`after`](Schedule::after) or [`at`](Schedule::at) say otherwise.
    ///
    /// The newest call for a key wins, in one atomic step: it creates the job, or replaces
    /// the payload and the due time of the one that is pending. If the job is running just
    /// then, the new one follows when the run has ended, instead of its
    /// [retries](Placed::Succeeds).
    ///
    /// # Errors
    /// When it is awaited: if key, payload, time or terms are not valid, or Redis does not answer
    /// in time or is full. [`Error::is_retryable`] tells the one from the other.
    pub fn schedule(
        &self,
        key: impl IntoJobKey,
        payload: &(impl Serialize + ?Sized),
    ) -> Schedule<'_> {
        Schedule::new(self, NewJob::new(key, payload))
    }

    /// Schedules a job with a payload that is stored as it is, whatever bytes it holds.
    pub fn schedule_bytes(&self, key: impl IntoJobKey, payload: impl Into<Bytes>) -> Schedule<'_> {
        Schedule::new(self, NewJob::from_bytes(key, payload))
    }

    /// The job under this key, whatever its state, or its latest dead letter; `None` if
    /// there is neither.
    ///
    /// # Errors
    /// If the key is not valid, Redis does not answer in time, or the record is damaged.
    pub async fn get(&self, key: impl IntoJobKey) -> Result<Option<JobView>> {
        let key = key.into_job_key()?;
        self.view(key, self.deadline()).await
    }

    async fn view(&self, key: JobKey, until: Instant) -> Result<Option<JobView>> {
        let found = self.find(&key, until).await?;
        JobView::from_found(key, found)
    }

    /// How many jobs of a kind, `app:module:biz`, are in each state, and the counters of its
    /// ledger; all at one instant. If it has several shards, each at an instant of its own.
    ///
    /// # Errors
    /// If the kind is not valid or Redis does not answer in time.
    pub async fn stats(&self, kind: &str) -> Result<Stats> {
        let kind = Kind::parse(kind)?;
        self.stats_until(&kind, self.deadline()).await
    }

    pub(crate) async fn stats_until(&self, kind: &Kind, until: Instant) -> Result<Stats> {
        let kind_shards = self.kind_shards_now(kind, until).await?;
        let mut view = PartialView::now(self.store());
        let ledgers = kind_shards.all().map(|shard_client| &shard_client.ledger);
        let ledgers: Vec<_> = ledgers.filter(|ledger| !view.misses(ledger)).collect();
        let answers = join_all(ledgers.iter().map(|ledger| ledger.tally(until))).await;
        let mut tallies = Vec::new();
        for (ledger, answer) in ledgers.into_iter().zip(answers) {
            tallies.extend(view.take(ledger, answer)?);
        }
        let mut stats = Stats::sum(tallies);
        stats.unseen = view.unseen();
        Ok(stats)
    }

    /// Returns as soon as Redis answers; of several servers, as soon as one does. What a probe asks.
    ///
    /// # Errors
    /// If Redis does not answer in time.
    pub async fn ping(&self) -> Result<()> {
        self.store().time(self.deadline()).await.map(drop)
    }

    /// When a call has to end that begins now, whatever it consists of.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.0.settings.call_timeout
    }

    /// The same of a call that is to be durable: the wait for that is its own.
    fn deadline_for(&self, durable: Option<Durable>) -> Instant {
        self.deadline() + durable.map(|durable| durable.within).unwrap_or_default()
    }

    pub(crate) fn settings(&self) -> &ClientSettings {
        &self.0.settings
    }

    /// A store of its own for a worker, which lives on another runtime.
    #[cfg(feature = "worker")]
    pub(crate) fn store_for_worker(&self, health: &impl Fn(&Server) -> Health) -> Arc<Store> {
        self.0.store.insisting(&self.0.settings.link, health)
    }

    /// Those who are told which leases were ended or extended through this client.
    #[cfg(feature = "worker")]
    pub(crate) fn lease_subscribers(&self) -> &Arc<LeaseSubscribers> {
        &self.0.lease_subscribers
    }

    /// The hooks of those who run jobs with this client.
    #[cfg(feature = "worker")]
    pub(crate) fn listeners(&self) -> &Listeners {
        &self.0.listeners
    }

    /// Makes the kind known, once for each connection. Where one of several servers is there again,
    /// nobody waits for that: the others know the kind.
    async fn register(&self, kind: &str, until: Instant) -> Result<()> {
        let kind_shards = &self.kind_shards(kind)?;
        if self.is_registered(kind_shards) {
            return Ok(());
        }
        if self.store().is_several() && kind_shards.registered.load(Ordering::Acquire) != 0 {
            self.register_aside(kind_shards);
            return Ok(());
        }
        // Rare, and not a part of the type of every call.
        let registering: BoxFuture<'_, _> = Box::pin(self.register_in_turn(kind_shards, until));
        registering.await
    }

    /// One call does it for all that are made meanwhile.
    async fn register_in_turn(&self, kind_shards: &KindShards, until: Instant) -> Result<()> {
        let turn = timeout_at(until.into(), kind_shards.registering.lock()).await;
        // If that takes too long, this one says why.
        let _turn = turn.ok();
        if self.is_registered(kind_shards) {
            return Ok(());
        }
        self.admit(&kind_shards.kind, until).await?;
        self.make_known(kind_shards, until).await.map(drop)
    }

    /// Refuses a kind that nobody has used yet, if somebody was told to.
    async fn admit(&self, kind: &Kind, until: Instant) -> Result<()> {
        let Some(may_begin) = &self.1 else {
            return Ok(());
        };
        if self.store().knows(kind, until).await? || may_begin(kind) {
            return Ok(());
        }
        self.0.registry.remove(kind.as_str());
        Err(Error::new(
            ErrorKind::TooManyKinds,
            format!(
                "{kind} was never used, and no more kinds may begin for now: use a kind that was \
                 used before, or try again later"
            ),
        ))
    }

    /// The same, without anybody waiting for it.
    fn register_aside(&self, kind_shards: &Arc<KindShards>) {
        let (client, kind_shards) = (self.clone(), kind_shards.clone());
        tokio::spawn(async move {
            let Ok(_turn) = kind_shards.registering.try_lock() else {
                return;
            };
            if let Err(error) = client.make_known(&kind_shards, client.deadline()).await {
                tracing::warn!(kind = %kind_shards.kind, %error, "a kind could not be made known");
            }
        });
    }

    /// After jobs were stored, which were answered so: the server may have forgotten the kind,
    /// by a restart, or because somebody emptied it. Nobody waits for that, unless nobody has made
    /// it known since their ledger began: to a worker with wildcards these jobs would not exist.
    async fn register_again(
        &self,
        kind: &str,
        answered: &[Answered],
        until: Instant,
    ) -> Result<()> {
        let kind_shards = &self.kind_shards(kind)?;
        if let Some(unlisted) = answered.iter().find_map(|it| it.unlisted) {
            let again: BoxFuture<'_, _> = Box::pin(self.list_again(kind_shards, unlisted, until));
            again.await.map_err(|error| {
                let why = format!(
                    "it is stored, but its kind could not be made known, and workers with \
                     wildcards may not find it; repeat the call: {error}"
                );
                Error::new(ErrorKind::OutcomeUnknown, why)
            })?;
        }
        if self.is_registered(kind_shards) {
            let mut made_known = kind_shards.made_known.lock().expect("no panic while held");
            if made_known.elapsed() < KNOWN_FOR {
                return Ok(());
            }
            *made_known = Instant::now();
        }
        self.register_aside(kind_shards);
        Ok(())
    }

    /// Nobody has made the kind known since this ledger began, or the ledger was not told. One call does
    /// it for all that hear of it.
    async fn list_again(
        &self,
        kind_shards: &KindShards,
        unlisted: Unlisted,
        until: Instant,
    ) -> Result<()> {
        let turn = timeout_at(until.into(), kind_shards.registering.lock()).await;
        let mut turn = turn.ok();
        let done = turn.as_ref().and_then(|done| done.get(&unlisted.shard));
        if done.is_some_and(|(ledger, at)| *ledger == unlisted && at.elapsed() < TOLD_AGAIN) {
            return Ok(());
        }
        // Until it is done, so that a repeat of this call does it.
        kind_shards.registered.store(0, Ordering::Release);
        let is_listed = self.make_known(kind_shards, until).await?;
        if let Some(done) = turn.as_mut() {
            done.insert(unlisted.shard, (unlisted, Instant::now()));
        }
        drop(turn);
        // If that fails, or the list was away, whoever hears of it later makes it known once more.
        if is_listed {
            let until = until.min(Instant::now() + TOLD_AGAIN);
            let told = self
                .store()
                .is_listed(&kind_shards.kind, unlisted, until)
                .await;
            if let Err(error) = told {
                let kind = &kind_shards.kind;
                tracing::debug!(%kind, %error, "a ledger could not be told that its kind is known");
            }
        }
        Ok(())
    }

    /// Whether the kind was made known on the connection of now.
    fn is_registered(&self, kind_shards: &KindShards) -> bool {
        kind_shards.registered.load(Ordering::Acquire) == self.0.store.connections_opened()
    }

    /// Returns whether it is on the list now, which may be away.
    async fn make_known(&self, kind_shards: &KindShards, until: Instant) -> Result<bool> {
        let connection = self.0.store.connections_opened();
        let shards = self.0.settings.default_shards;
        let is_listed = self
            .0
            .store
            .register(&kind_shards.kind, shards, until)
            .await?;
        let before = kind_shards.registered.swap(connection, Ordering::AcqRel);
        if before != connection {
            self.0.store.warn_of_rights(&kind_shards.kind, until).await;
        }
        Ok(is_listed)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("server", &self.0.store.address())
            .field("namespace", &self.0.settings.namespace)
            .finish()
    }
}

fn out_of_place(answer: Word) -> Error {
    Error::new(
        ErrorKind::Damaged,
        format!("a script answered {answer:?} to a call that has no such answer"),
    )
}
