//! The registry of kinds: the shards of each kind as producers use them, and the registration of a
//! kind on the list of kinds.
//!
//! A call looks its kind up once, and once more if the kind got another layout meanwhile. It holds
//! the entry until it is answered.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use tokio::sync::OwnedMutexGuard;
use tokio::time::timeout_at;

use super::{Client, ClientInner, ShardClient};
use crate::error::{Error, ErrorKind, Result};
use crate::key::Kind;
use crate::settings::{FOUND_FOR, IDLE, IDLE_LOOK, KNOWN_FOR, TOLD_AGAIN};
use crate::shards::{Layout, ShardRef, shard_of};
use crate::store::Unlisted;

/// The shards of one kind under one layout. Another layout gets another registry entry.
pub(super) struct KindShards {
    pub(super) kind: Kind,
    pub(super) layout: Layout,
    /// The number of the connection on which the kind was last put on the list of kinds; 0 for
    /// none. A server that was restarted may have lost the list.
    registered: AtomicU64,
    /// The time of that listing.
    made_known: Mutex<Instant>,
    /// Locked during the listing.
    registering: Arc<tokio::sync::Mutex<Reports>>,
    /// When a job of the kind was last seen.
    found: Mutex<Option<Instant>>,
    /// The shards of this layout, by number.
    shard_clients: Vec<Arc<ShardClient>>,
    /// The shards of the previous layout, while jobs are moved out of them.
    old: Vec<Arc<ShardClient>>,
    /// When the layout was last confirmed by the servers.
    pub(super) agreed: tokio::sync::Mutex<Option<Instant>>,
}

/// For each shard, the ledger whose report led to a listing, and the time of it.
type Reports = HashMap<u16, (Unlisted, Instant)>;

/// The right to list a kind, which one call at a time has.
type Turn = OwnedMutexGuard<Reports>;

/// The registry of a client, by kind. Entries without use for [`IDLE`] are removed.
#[derive(Default)]
pub(super) struct KindRegistry(Mutex<RegistryState>);

/// The entries, each with the time of its last use.
#[derive(Default)]
struct RegistryState {
    by_kind: HashMap<Kind, (Arc<KindShards>, Instant)>,
    /// Whether a background task removes idle entries.
    is_tended: bool,
}

impl KindShards {
    /// Shards for each number of the layout; `shard_client` opens one.
    pub(super) fn new(
        kind: Kind,
        layout: Layout,
        shard_client: impl Fn(ShardRef) -> Arc<ShardClient>,
    ) -> Arc<Self> {
        Arc::new(KindShards {
            registered: AtomicU64::new(0),
            made_known: Mutex::new(Instant::now()),
            registering: Arc::default(),
            found: Mutex::default(),
            shard_clients: (0..layout.shards)
                .map(|it| shard_client(layout.place(it)))
                .collect(),
            old: (0..layout.from.unwrap_or(0))
                .map(|it| shard_client(layout.old_place(it)))
                .collect(),
            agreed: tokio::sync::Mutex::default(),
            kind,
            layout,
        })
    }

    /// Whether a job of the kind was seen in the last [`FOUND_FOR`].
    fn was_found(&self) -> bool {
        let found = self.found.lock().expect("no panic while held");
        found.is_some_and(|at| at.elapsed() < FOUND_FOR)
    }

    /// Records that the kind has jobs now.
    pub(super) fn note_jobs(&self) {
        *self.found.lock().expect("no panic while held") = Some(Instant::now());
    }

    /// Waits for the turn of a call to list the kind.
    ///
    /// # Errors
    /// If the call has no time left by then.
    async fn turn(&self, until: Instant) -> Result<Turn> {
        let turn = timeout_at(until.into(), self.registering.clone().lock_owned()).await;
        turn.map_err(|_| self.is_not_known_in_time())
    }

    fn is_not_known_in_time(&self) -> Error {
        let why = format!("{} could not be made known in time: try again", self.kind);
        Error::new(ErrorKind::Unavailable, why)
    }

    /// From now on the kind counts as not listed: the next call that creates a job lists it.
    pub(super) fn unregister(&self) {
        self.registered.store(0, Ordering::Release);
    }

    /// The shard that this id belongs to under this layout.
    pub(super) fn shard_client(&self, id: &str) -> &Arc<ShardClient> {
        &self.shard_clients[usize::from(shard_of(id, self.layout.shards))]
    }

    /// The same, in the form of [`old_shard_client`](Self::old_shard_client).
    #[cfg(feature = "worker")]
    pub(super) fn new_shard_client(&self, id: &str) -> Option<&Arc<ShardClient>> {
        Some(self.shard_client(id))
    }

    /// The shard that this id had under the previous layout; `None` unless the kind is being
    /// resharded.
    pub(super) fn old_shard_client(&self, id: &str) -> Option<&Arc<ShardClient>> {
        let old = self.layout.old_place_of(id)?;
        Some(&self.old[usize::from(old.shard)])
    }

    /// Whether the kind is being resharded.
    pub(super) fn is_moving(&self) -> bool {
        self.layout.from.is_some()
    }

    /// The shards that jobs are moved out of. Some may be shards of the new layout, too.
    pub(super) fn before(&self) -> &[Arc<ShardClient>] {
        &self.old
    }

    /// The shards of this layout.
    pub(super) fn shard_clients(&self) -> &[Arc<ShardClient>] {
        &self.shard_clients
    }

    /// Every shard that may have jobs, once.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<ShardClient>> {
        let emptied = self.old.iter().skip(self.shard_clients.len());
        self.shard_clients.iter().chain(emptied)
    }
}

impl KindRegistry {
    /// Removes the entries that no call holds and that were idle for this long. Returns the number
    /// of entries left; at zero, the background task ends.
    fn clear_away(&self, idle: Duration) -> usize {
        let mut registry = self.0.lock().expect("no panic while held");
        let is_used = |kind_shards: &Arc<KindShards>, used: &Instant| {
            Arc::strong_count(kind_shards) > 1 || used.elapsed() < idle
        };
        registry
            .by_kind
            .retain(|_, (kind_shards, used)| is_used(kind_shards, used));
        registry.by_kind.shrink_to_fit();
        registry.is_tended = !registry.by_kind.is_empty();
        registry.by_kind.len()
    }

    /// Removes the entry of a kind that is gone or never existed.
    pub(super) fn remove(&self, kind: &str) {
        let mut registry = self.0.lock().expect("no panic while held");
        registry.by_kind.remove(kind);
    }
}

/// Removes idle entries once in each [`IDLE_LOOK`], until there are none or the client is gone.
async fn clear_away(shared: Weak<ClientInner>) {
    loop {
        tokio::time::sleep(IDLE_LOOK).await;
        let Some(shared) = shared.upgrade() else {
            return;
        };
        if shared.registry.clear_away(IDLE) == 0 {
            return;
        }
    }
}

impl Client {
    /// The shards of the kind of a call. A call that can create a job registers the kind first. Any
    /// other call gets `None` for a kind without jobs, and must not be sent: its original could
    /// arrive after its repeat, so the ledger would have to remember the call, and unused names
    /// would fill Redis.
    pub(super) async fn kind_shards_for(
        &self,
        kind: &str,
        creates: bool,
        until: Instant,
    ) -> Result<Option<Arc<KindShards>>> {
        if creates {
            let kind_shards = self.kind_shards(kind)?;
            if self.is_registered(&kind_shards) {
                return Ok(Some(kind_shards));
            }
            self.register(&kind_shards, until).await?;
            // The layout may have become known.
            return self.kind_shards(kind).map(Some);
        }
        let layout = self.store().layout_of(kind);
        if let Some(known) = self.kind_shards_in_use(kind, layout)
            && known.was_found()
        {
            return Ok(Some(known));
        }
        // A kind with another layout than the first is in use, and its ledgers tell clients with an
        // old layout.
        if layout == Layout::FIRST {
            let of = Kind::parse(kind)?;
            // Rare; boxed, so that it does not enlarge the future of every call.
            let looking: BoxFuture<'_, _> = Box::pin(self.store().has_any_of(&of, until));
            if !looking.await? {
                // The kind was dropped: the next call that schedules has to read the pause rules
                // again.
                self.0.registry.remove(kind);
                return Ok(None);
            }
        }
        let kind_shards = self.kind_shards(kind)?;
        kind_shards.note_jobs();
        Ok(Some(kind_shards))
    }

    /// The entry of a kind, by its layout as far as this process knows it. A new entry is kept.
    pub(super) fn kind_shards(&self, kind: &str) -> Result<Arc<KindShards>> {
        let layout = self.store().layout_of(kind);
        let mut registry = self.0.registry.0.lock().expect("no panic while held");
        let mut registered = 0;
        // The lookup by text spares the allocation of a kind for every call.
        if let Some((known, used)) = registry.by_kind.get_mut(kind) {
            *used = Instant::now();
            if known.layout == layout {
                return Ok(known.clone());
            }
            // The kind stays listed when its layout changes.
            registered = known.registered.load(Ordering::Acquire);
        }
        let kind_shards = self.new_kind_shards(kind, layout)?;
        kind_shards.registered.store(registered, Ordering::Release);
        let kept = (kind_shards.clone(), Instant::now());
        registry.by_kind.insert(kind_shards.kind.clone(), kept);
        self.tend(&mut registry);
        Ok(kind_shards)
    }

    /// The same for calls that only read: a new entry is not kept, so that lookups of unused names
    /// do not fill the memory.
    pub(super) fn kind_shards_to_look(&self, kind: &str) -> Result<Arc<KindShards>> {
        let layout = self.store().layout_of(kind);
        match self.kind_shards_in_use(kind, layout) {
            Some(kind_shards) => Ok(kind_shards),
            None => self.new_kind_shards(kind, layout),
        }
    }

    /// The entry of a kind under this layout, if it is kept; notes its use.
    fn kind_shards_in_use(&self, kind: &str, layout: Layout) -> Option<Arc<KindShards>> {
        let mut registry = self.0.registry.0.lock().expect("no panic while held");
        let (known, used) = registry.by_kind.get_mut(kind)?;
        *used = Instant::now();
        (known.layout == layout).then(|| known.clone())
    }

    /// A fresh entry, outside of the registry.
    fn new_kind_shards(&self, kind: &str, layout: Layout) -> Result<Arc<KindShards>> {
        let kind = Kind::parse(kind)?;
        let shard_client = |place| ShardClient::new(self.store().ledger(&kind, place), layout);
        Ok(KindShards::new(kind.clone(), layout, shard_client))
    }

    /// The entry of a kind by its present layout, which is read from Redis. For calls that only
    /// read.
    pub(super) async fn kind_shards_now(
        &self,
        kind: &Kind,
        until: Instant,
    ) -> Result<Arc<KindShards>> {
        self.store().look_up(kind, until).await?;
        self.kind_shards_to_look(kind.as_str())
    }

    /// Starts the background task that removes idle entries, unless it runs.
    fn tend(&self, registry: &mut RegistryState) {
        if registry.is_tended {
            return;
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            registry.is_tended = true;
            runtime.spawn(clear_away(Arc::downgrade(&self.0)));
        }
    }

    /// Puts the kind on the list of kinds, once for each connection; under a lock, so that one call
    /// does it for all calls that wait meanwhile. If one of several servers has just come back, the
    /// call does not wait for the listing: the other servers know the kind.
    async fn register(&self, kind_shards: &Arc<KindShards>, until: Instant) -> Result<()> {
        if self.store().is_several() && kind_shards.registered.load(Ordering::Acquire) != 0 {
            self.register_aside(kind_shards);
            return Ok(());
        }
        // Rare; boxed, so that it does not enlarge the future of every call.
        let registering: BoxFuture<'_, _> = Box::pin(async {
            let turn = kind_shards.turn(until).await?;
            if self.is_registered(kind_shards) {
                return Ok(());
            }
            let (client, listed) = (self.clone(), kind_shards.clone());
            let listing = move |until| async move {
                let _turn = turn;
                client.admit(&listed.kind, until).await?;
                client.make_known(&listed, until).await.map(drop)
            };
            self.to_its_end(kind_shards, until, listing).await
        });
        registering.await
    }

    /// Makes a listing, which goes on when the call that waits for it has no time left. A call that
    /// has waited for its turn has little time: if each gave up its listing then, and the next
    /// began anew with as little, none would ever end while such calls keep coming.
    async fn to_its_end<F>(
        &self,
        kind_shards: &KindShards,
        until: Instant,
        listing: impl FnOnce(Instant) -> F,
    ) -> Result<()>
    where
        F: Future<Output = Result<()>> + Send + 'static,
    {
        let whole = self.deadline();
        let has_waited = until + self.0.settings.call_timeout / 2 < whole;
        let listing = tokio::spawn(listing(if has_waited { whole } else { until }));
        let listed = match has_waited {
            true => timeout_at(until.into(), listing).await,
            // It ends in time, and reports the reason if it fails.
            false => Ok(listing.await),
        };
        listed
            .ok()
            .and_then(Result::ok)
            .unwrap_or_else(|| Err(kind_shards.is_not_known_in_time()))
    }

    /// Refuses a new kind if the check of [`admitting`](Self::admitting) refuses it.
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

    /// Lists the kind in a background task. A failure is logged.
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

    /// Lists the kind again after jobs were stored, if their ledger or the age of the last listing
    /// call for it: the server may have forgotten the kind, by a restart or because somebody
    /// emptied it. This happens in the background, unless the ledger reports that its kind was
    /// never listed since the ledger began; then the call waits, because workers with wildcards
    /// would not find its jobs.
    pub(super) async fn register_again(
        &self,
        kind_shards: &Arc<KindShards>,
        unlisted: Option<Unlisted>,
        until: Instant,
    ) -> Result<()> {
        if let Some(unlisted) = unlisted {
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

    /// Lists the kind after a ledger reported that its kind is not listed, or that it was not told
    /// of the listing. One call does it for all calls that get the same report.
    async fn list_again(
        &self,
        kind_shards: &Arc<KindShards>,
        unlisted: Unlisted,
        until: Instant,
    ) -> Result<()> {
        let turn = kind_shards.turn(until).await?;
        let done = turn.get(&unlisted.shard);
        if done.is_some_and(|(ledger, at)| *ledger == unlisted && at.elapsed() < TOLD_AGAIN) {
            return Ok(());
        }
        // Reset first: if this call breaks off, a repeat of it lists the kind.
        kind_shards.unregister();
        let (client, listed) = (self.clone(), kind_shards.clone());
        let listing =
            move |until| async move { client.list_and_tell(&listed, turn, unlisted, until).await };
        self.to_its_end(kind_shards, until, listing).await
    }

    /// Lists the kind, and tells the ledger that reported that it is not listed.
    async fn list_and_tell(
        &self,
        kind_shards: &KindShards,
        mut turn: Turn,
        unlisted: Unlisted,
        until: Instant,
    ) -> Result<()> {
        let is_listed = self.make_known(kind_shards, until).await?;
        turn.insert(unlisted.shard, (unlisted, Instant::now()));
        drop(turn);
        // If this fails, or the server of the list was away, the next call with such a report lists
        // the kind again.
        if is_listed {
            let until = until.min(Instant::now() + TOLD_AGAIN);
            let told = self
                .store()
                .take_mark_off(&kind_shards.kind, unlisted, until)
                .await;
            if let Err(error) = told {
                let kind = &kind_shards.kind;
                tracing::debug!(%kind, %error, "a ledger could not be told that its kind is known");
            }
        }
        Ok(())
    }

    /// Whether the kind was listed on the present connection.
    fn is_registered(&self, kind_shards: &KindShards) -> bool {
        kind_shards.registered.load(Ordering::Acquire) == self.0.store.connections_opened()
    }

    /// Puts the kind on the list of kinds. Returns whether the list has it now: the server of the
    /// list may be away.
    pub(super) async fn make_known(
        &self,
        kind_shards: &KindShards,
        until: Instant,
    ) -> Result<bool> {
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

    /// Whether the kind was dropped, or the database emptied. Only a call that stores a job lists
    /// the kind again.
    pub(super) fn is_gone(&self, kind_shards: &KindShards) -> bool {
        kind_shards.layout != Layout::FIRST
            && self.store().layout_of(kind_shards.kind.as_str()) == Layout::FIRST
    }
}

#[cfg(all(test, feature = "embedded", feature = "worker", unix))]
mod tests {
    use super::*;
    use crate::embedded::Embedded;

    #[tokio::test]
    async fn unused_kinds_are_forgotten() {
        let redis = Embedded::start().await.unwrap();
        let client = Client::connect(&redis.url()).await.unwrap();
        let key = |number| format!("idle:it:kind{number}:1");
        for number in 0..100 {
            let scheduled = client.schedule(key(number), "");
            scheduled.after(Duration::from_secs(3600)).await.unwrap();
        }
        let registry = &client.0.registry;
        assert_eq!(registry.clear_away(IDLE), 100);
        assert!(registry.0.lock().unwrap().is_tended, "somebody will look");
        assert_eq!(registry.clear_away(Duration::ZERO), 0);
        let kept = registry.0.lock().unwrap().by_kind.capacity();
        assert_eq!(kept, 0);
        // A kind that comes back works as before.
        client.cancel(key(7)).await.unwrap();
        assert_eq!(client.stats("idle:it:kind7").await.unwrap().cancelled, 1);
    }
}
