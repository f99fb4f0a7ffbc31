//! The client: every call of producers and operators, and the calls of lease holders.
//!
//! [`Client`] owns the settings, the store and a registry of kinds; `asking` sends a call on one job
//! to the shard that has it. `producing` holds the calls that schedule and change jobs; `operating`
//! holds the calls on many jobs and on whole kinds; `leases` extends and ends leases. The
//! [`Batcher`]s of each shard send simultaneous calls as one script call; the calls of large batches
//! wait for each other in `background`. Workers use the same client.

mod asking;
mod background;
mod batcher;
mod builder;
mod durably;
#[cfg(feature = "worker")]
mod in_memory;
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
use std::time::Instant;

use bytes::Bytes;
use futures_util::future::join_all;
use serde::Serialize;

use asking::JobCall;
use background::Background;
pub(crate) use batcher::Batcher;
use batcher::MisplacedJob;
pub use builder::ClientBuilder;
pub(crate) use durably::Durably;
#[cfg(feature = "worker")]
pub(crate) use in_memory::{MemoryJob, MemoryLedger, MemoryStage, micros};
#[cfg(feature = "worker")]
pub use leases::{ExtendLease, Extended, SettleDurably, SettleLease, Settled};
#[cfg(feature = "worker")]
pub(crate) use listeners::{
    DyingJob, LeaseEvent, LeaseSubscribers, Listeners, TellDead, WantedKinds,
};
#[cfg(feature = "worker")]
pub use operating::actions::{Action, LogAction};
#[cfg(feature = "worker")]
pub use operating::activity::{ActivityChart, ActivitySpan};
pub use operating::audit::everything::{AuditAll, AuditAllReport};
pub use operating::audit::{Audit, AuditReport, Damage, Flawed};
pub use operating::bulk::{Bulk, BulkReport, Postpone};
pub use operating::changes::{
    ChangedJob, Changes, CopiedJob, CopiedShard, CopyMark, CopyStep, Shards,
};
pub use operating::counting::{Counts, LateServer};
pub use operating::cursor::Cursor;
#[cfg(feature = "worker")]
pub use operating::dropping::Dropped;
pub use operating::ended::{EndedJob, EndedJobs, JobEnd};
pub use operating::folding::fold_reason;
pub use operating::functions::{Functions, LibraryState};
pub use operating::grouping::{DeadGroup, DeadGroups, GroupDead};
#[cfg(feature = "worker")]
pub use operating::history::{Happening, KeepHistory, Tail, Tidings, What};
#[cfg(feature = "worker")]
pub use operating::instances::{Instance, Instances, Unrouted, UnroutedKinds};
#[cfg(feature = "worker")]
pub use operating::layouts::{KindLayout, Layouts, ShardPlace, ShardPlaces};
pub use operating::letters::{DeleteDeadLetter, Requeue, Requeued};
pub use operating::limiting::{KindLimit, Limits, SetLimit};
pub use operating::listing::{DamagedJob, ListJobs, Page};
#[cfg(feature = "worker")]
pub use operating::mending::{MendSlots, MendedSlots, StraySlot, StrayState, TornLedger};
use operating::partial::PartialView;
pub use operating::partial::{Kinds, Unseen};
pub use operating::pausing::{Pause, Paused, Resume};
#[cfg(feature = "worker")]
pub use operating::resharding::{Reshard, Resharded, Resharding};
pub use operating::restoring::{KeptJob, Restored};
pub use operating::selection::Selection;
#[cfg(feature = "worker")]
pub use operating::servers::{PacerShare, RedisServer, Topology};
pub use operating::stats::{DueWithin, Stats};
#[cfg(feature = "worker")]
pub use operating::story::{KeyDiffers, Story, Wait};
pub use operating::terms::{SetTerms, TermsOf};
pub use operating::upcoming::{CountUpcoming, Upcoming};
pub use producing::change::{Cancel, CancelDurably, Cancelled, Reschedule, Rescheduled, Updated};
#[cfg(feature = "worker")]
pub use producing::declaring::Declared;
pub use producing::new_job::NewJob;
pub use producing::numbered::{
    LaneId, MAX_BATCH_NUMBER, MAX_NUMBERED_CALLS, MoveTo, NumberedAnswer, NumberedCall,
};
pub use producing::ordered::Ordered;
pub use producing::rule::RuleChange;
pub use producing::schedule::{
    IfAbsent, IfPresent, Placed, Schedule, ScheduleIfAbsent, ScheduleIfPresent, Scheduled,
};
pub use producing::series::{
    Member, MemberChange, MemberState, MemberView, Series, SeriesChange, SeriesView,
};
pub use producing::terms::JobTerms;
use registry::{KindRegistry, KindShards};
#[cfg(feature = "worker")]
pub(crate) use settling::SettleTerms;
pub use view::{JobState, JobView};

use crate::durable::Durable;
use crate::error::{Error, ErrorKind, Result};
use crate::key::{IntoJobKey, JobKey, Kind};
use crate::settings::{ClientSettings, LANES};
use crate::shards::Layout;
use crate::store::{
    Amendment, BackupItem, CancelIf, Change, Discard, LanePool, Ledger, Placement, Revival,
    SeriesCall, Store, Update, Word,
};
#[cfg(feature = "worker")]
use crate::store::{DeadLimits, Health, Server, Settlement};
use crate::time::UnixMs;

/// Schedules, changes, looks up and ends jobs.
///
/// Cheap to clone; all clones share one connection. Calls that are made at the same time share a
/// round trip, and a single call is never delayed to wait for others. Each call ends within
/// [`call_timeout`](ClientBuilder::call_timeout), with an error that says [whether a repeat can
/// help](Error::is_retryable).
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

/// Decides whether a kind that is not yet in use may begin; see [`Client::admitting`].
type Admission = Arc<dyn Fn(&Kind) -> bool + Send + Sync>;

/// The state that all clones of a client share.
struct ClientInner {
    settings: ClientSettings,
    store: Arc<Store>,
    registry: KindRegistry,
    background: Background,
    /// The jobs, if they are in memory, and there is no Redis.
    #[cfg(feature = "worker")]
    memory: Option<Arc<MemoryLedger>>,
    /// The workers of this client. They hear of the leases that calls of this client end or extend.
    #[cfg(feature = "worker")]
    lease_subscribers: Arc<LeaseSubscribers>,
    /// The hooks of those workers.
    #[cfg(feature = "worker")]
    listeners: Listeners,
}

/// One ledger (a shard of a kind), with one batcher for each operation.
struct ShardClient {
    ledger: Arc<Ledger>,
    /// Lanes for the batches of `schedule_many`.
    lanes: LanePool,
    /// Lanes for the pages of bulk calls. A `schedule_many` that its caller does not poll keeps its
    /// lanes, and must not hold these calls up.
    bulk_lanes: LanePool,
    schedules: Batcher<Placement>,
    changes: Batcher<Change>,
    updates: Batcher<Update>,
    amendments: Batcher<Amendment>,
    series: Batcher<SeriesCall>,
    cancels: Batcher<JobKey>,
    conditional_cancels: Batcher<CancelIf>,
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
    /// `layout` names the shard that each misplaced job moves to.
    fn new(ledger: Arc<Ledger>, layout: Layout) -> Arc<Self> {
        Arc::new(ShardClient {
            lanes: LanePool::new(LANES),
            bulk_lanes: LanePool::new(LANES),
            schedules: Batcher::new(ledger.clone(), ()),
            changes: Batcher::new(ledger.clone(), ()),
            updates: Batcher::new(ledger.clone(), ()),
            amendments: Batcher::new(ledger.clone(), ()),
            series: Batcher::new(ledger.clone(), ()),
            cancels: Batcher::new(ledger.clone(), ()),
            conditional_cancels: Batcher::new(ledger.clone(), ()),
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

/// The future of a call that is built first and awaited afterwards.
type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

impl Client {
    /// Connects with the default settings.
    ///
    /// The URL has one of these forms:
    ///
    /// - One server: `redis://[user:password@]host:port/database`, or
    ///   `redis+unix:///path/redis.sock?db=0`.
    /// - A primary that
    ///   [sentinels](https://redis.io/docs/latest/operate/oss_and_stack/management/sentinel/)
    ///   watch: `redis+sentinel://[user:password@]host:port,host:port/master/database`. If the
    ///   sentinels require a login or TLS, add
    ///   `?sentinel_user=…&sentinel_password=…&sentinel_tls=true`.
    /// - Several servers: several of these URLs, with spaces between them. Each server holds some
    ///   [shards](Client::reshard) of the jobs. All clients and workers must give the same URLs in
    ///   the same order.
    /// - A cluster: `redis+cluster://[user:password@]host:port,host:port`, with the addresses of
    ///   some of its nodes.
    ///
    /// With the feature `tls`, `rediss://`, `rediss+sentinel://` and `rediss+cluster://` use TLS.
    ///
    /// # Errors
    /// If the URL is not valid, the server does not answer, or it cannot carry Keyfall. The error
    /// names the remedy.
    pub async fn connect(url: &str) -> Result<Self> {
        Client::builder(url).connect().await
    }

    /// Starts a client with settings of its own; [`connect`](ClientBuilder::connect) finishes it.
    /// The URL is read there, in the forms of [`Client::connect`].
    pub fn builder(url: &str) -> ClientBuilder {
        ClientBuilder::new(url)
    }

    /// Connects, checks every server, and reads the list of kinds if there are several servers.
    async fn open(url: &str, settings: ClientSettings) -> Result<Self> {
        let client = Client::unchecked(url, settings)?;
        let settings = client.settings();
        // At start-up, a missing server is more often a mistake than an outage: give up early.
        let patience = settings.call_timeout.min(settings.link.connect_timeout);
        let (until, soon) = (client.deadline(), Instant::now() + patience);
        let store = client.store();
        store.check(settings.allow_eviction, soon).await?;
        if store.is_several() {
            // Learn the layouts now, so that jobs are found even if the first shard of their kind
            // is away.
            store.kinds(until).await?;
        }
        Ok(client)
    }

    /// A client that has neither connected to its server nor checked it.
    fn unchecked(url: &str, settings: ClientSettings) -> Result<Self> {
        let names = crate::names::Names::new(&settings.namespace);
        let store = Store::new(url, names, &settings.link)?;
        Ok(Client(Arc::new(ClientInner::new(settings, store)), None))
    }

    /// The time by the clock of Redis, as far as it is known; of jobs in memory, by their clock.
    fn now(&self) -> UnixMs {
        #[cfg(feature = "worker")]
        if let Some(ledger) = self.memory() {
            return ledger.now();
        }
        self.store().now()
    }

    /// The Redis store of this client.
    pub(crate) fn store(&self) -> &Arc<Store> {
        &self.0.store
    }

    /// Returns the same client with a check on new kinds: before a job begins a kind that is not
    /// yet in use, `may_begin` is called with it. If `may_begin` returns `false`, the job is
    /// refused with [`ErrorKind::TooManyKinds`].
    ///
    /// Redis keeps the name of each kind until [`drop_kind`](Self::drop_kind) removes it. A service
    /// whose users choose kinds should limit their number here.
    pub fn admitting(&self, may_begin: impl Fn(&Kind) -> bool + Send + Sync + 'static) -> Self {
        Client(self.0.clone(), Some(Arc::new(may_begin)))
    }

    /// Schedules a job with a payload that is stored as JSON. The job is due now, unless
    /// [`after`](Schedule::after) or [`at`](Schedule::at) set another time.
    ///
    /// The newest call for a key wins, in one atomic step. It creates the job, or replaces payload
    /// and due time of the pending job. If the job is running, the new job follows when the run has
    /// ended, instead of the [retries](Placed::Succeeds) of the run.
    ///
    /// # Errors
    /// When it is awaited: if key, payload, time or terms are not valid, if Redis does not answer
    /// in time, or if Redis is full. [`Error::is_retryable`] tells whether a repeat can help.
    pub fn schedule(
        &self,
        key: impl IntoJobKey,
        payload: &(impl Serialize + ?Sized),
    ) -> Schedule<'_> {
        Schedule::new(self, NewJob::new(key, payload))
    }

    /// Schedules a job with a payload of any bytes, stored unchanged. All else is as in
    /// [`schedule`](Self::schedule), its errors too.
    pub fn schedule_bytes(&self, key: impl IntoJobKey, payload: impl Into<Bytes>) -> Schedule<'_> {
        Schedule::new(self, NewJob::from_bytes(key, payload))
    }

    /// Looks up the job with this key, in any state. If there is no such job, returns its latest
    /// dead letter; `None` if there is neither.
    ///
    /// # Errors
    /// If the key is not valid, Redis does not answer in time, or the record is damaged.
    pub async fn get(&self, key: impl IntoJobKey) -> Result<Option<JobView>> {
        let key = key.into_job_key()?;
        self.view(key, self.deadline()).await
    }

    /// As [`get`](Self::get), with a deadline from the caller.
    async fn view(&self, key: JobKey, until: Instant) -> Result<Option<JobView>> {
        let found = self.find(&key, until).await?;
        JobView::from_found(key, found)
    }

    /// Counts the jobs of a kind, `app:module:biz`, in each state, and reads the counters of its
    /// ledger, all at one instant. If the kind has several shards, each shard is read at an instant
    /// of its own. Shards on a server that is away are listed in [`Stats::unseen`].
    ///
    /// # Errors
    /// If the kind is not valid, or Redis does not answer in time.
    pub async fn stats(&self, kind: &str) -> Result<Stats> {
        let kind = Kind::parse(kind)?;
        self.stats_until(&kind, self.deadline()).await
    }

    /// As [`stats`](Self::stats), with a deadline from the caller.
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

    /// Returns as soon as Redis answers; if there are several servers, as soon as one of them
    /// answers. For readiness probes.
    ///
    /// # Errors
    /// If Redis does not answer in time.
    pub async fn ping(&self) -> Result<()> {
        self.store().time(self.deadline()).await.map(drop)
    }

    /// The deadline of a call that begins now: [`call_timeout`](ClientBuilder::call_timeout) from
    /// here.
    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.0.settings.call_timeout
    }

    /// The deadline of a durable call: the wait for durability is added to the call timeout.
    fn deadline_for(&self, durable: Option<Durable>) -> Instant {
        self.deadline() + durable.map(|durable| durable.within).unwrap_or_default()
    }

    /// The settings that this client was built with.
    pub(crate) fn settings(&self) -> &ClientSettings {
        &self.0.settings
    }

    /// Makes a call that carries a large batch. Such calls [wait for each other](background). `call` learns
    /// whether jobs may fall due on the server.
    async fn in_background<F: Future>(
        &self,
        ledger: &Ledger,
        call: impl FnOnce(bool) -> F,
    ) -> F::Output {
        let expired = async { ledger.expired_keys(self.deadline()).await };
        let background = &self.0.background;
        background.call(ledger.server(), expired, call).await
    }

    /// A separate store for a worker, which runs on another runtime.
    #[cfg(feature = "worker")]
    pub(crate) fn store_for_worker(&self, health: &impl Fn(&Server) -> Health) -> Arc<Store> {
        self.0.store.insisting(&self.0.settings.link, health)
    }

    /// The workers that hear of each lease that this client ends or extends.
    #[cfg(feature = "worker")]
    pub(crate) fn lease_subscribers(&self) -> &Arc<LeaseSubscribers> {
        &self.0.lease_subscribers
    }

    /// The hooks of the workers that run jobs with this client.
    #[cfg(feature = "worker")]
    pub(crate) fn listeners(&self) -> &Listeners {
        &self.0.listeners
    }
}

impl ClientInner {
    fn new(settings: ClientSettings, store: Arc<Store>) -> Self {
        ClientInner {
            settings,
            background: Background::new(store.servers().len()),
            store,
            registry: KindRegistry::default(),
            #[cfg(feature = "worker")]
            memory: None,
            #[cfg(feature = "worker")]
            lease_subscribers: Arc::default(),
            #[cfg(feature = "worker")]
            listeners: Listeners::default(),
        }
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

/// The error for an answer that the script of this call never gives: the server runs other code.
fn out_of_place(answer: Word) -> Error {
    Error::new(
        ErrorKind::Damaged,
        format!("a script answered {answer:?} to a call that has no such answer"),
    )
}
