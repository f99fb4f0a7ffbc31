//! The registry of kinds: the shards of each kind as producers use them, and the lookup of the
//! shard that has a job.
//!
//! While a kind is being resharded, a job can be in its old or its new shard. [`Client::ask`] finds
//! the right one, and repeats a call that a ledger refused because of its layout.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;

use super::batcher::{BatchOperation, Batcher};
use super::{Client, ClientInner, ShardClient};
use crate::durable::Reached;
use crate::error::{Error, ErrorKind, Result};
use crate::key::{JobKey, Kind};
use crate::settings::{FOUND_FOR, IDLE, IDLE_LOOK};
use crate::shards::{Layout, ShardRef};
use crate::store::{Answered, Found, Lane, Ledger, Letter, Unlisted, Word, is_of_absence};

/// The shards of one kind under one layout. Another layout gets another registry entry.
pub(super) struct KindShards {
    pub(super) kind: Kind,
    pub(super) layout: Layout,
    /// The number of the connection on which the kind was last put on the list of kinds; 0 for
    /// none. A server that was restarted may have lost the list.
    pub(super) registered: AtomicU64,
    /// The time of that listing.
    pub(super) made_known: Mutex<Instant>,
    /// Locked during the listing. For each shard, the ledger whose report led to a listing, and the
    /// time of it.
    pub(super) registering: tokio::sync::Mutex<HashMap<u16, (Unlisted, Instant)>>,
    /// When a job of the kind was last seen.
    found: Mutex<Option<Instant>>,
    /// The shards of this layout, by number.
    shard_clients: Vec<Arc<ShardClient>>,
    /// The shards of the previous layout, while jobs are moved out of them.
    old: Vec<Arc<ShardClient>>,
    /// When the layout was last confirmed by the servers.
    agreed: tokio::sync::Mutex<Option<Instant>>,
}

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

/// The target of a call: the live job, or its dead letters. It decides where to look while a kind
/// is being resharded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CallTarget {
    /// The job that is pending or runs. A running job stays in its old shard until the run ends.
    Job,
    /// Its dead letters. They are moved to the new shard at once.
    Letters,
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
            registering: tokio::sync::Mutex::default(),
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
    pub(super) fn is_found(&self) {
        *self.found.lock().expect("no panic while held") = Some(Instant::now());
    }

    /// The shard that this id belongs to under this layout.
    pub(super) fn shard_client(&self, id: &str) -> &Arc<ShardClient> {
        &self.shard_clients[usize::from(self.layout.place_of(id).shard)]
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

impl RegistryState {
    /// Returns the entry of a kind, and notes its use.
    fn used(&mut self, kind: &str) -> Option<&Arc<KindShards>> {
        // The lookup by text spares the allocation of a kind for every call.
        let (kind_shards, used) = self.by_kind.get_mut(kind)?;
        *used = Instant::now();
        Some(kind_shards)
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
    /// The entry of a kind, by its layout as far as this process knows it. A new entry is kept.
    pub(super) fn kind_shards(&self, kind: &str) -> Result<Arc<KindShards>> {
        let layout = self.store().layout_of(kind);
        let mut registry = self.0.registry.0.lock().expect("no panic while held");
        let known = match registry.used(kind) {
            Some(kind_shards) if kind_shards.layout == layout => return Ok(kind_shards.clone()),
            known => known.map(|before| before.registered.load(Ordering::Acquire)),
        };
        let kind_shards = self.new_kind_shards(kind, layout)?;
        // The kind stays listed when its layout changes.
        kind_shards
            .registered
            .store(known.unwrap_or(0), Ordering::Release);
        let kept = (kind_shards.clone(), Instant::now());
        registry.by_kind.insert(kind_shards.kind.clone(), kept);
        self.tend(&mut registry);
        Ok(kind_shards)
    }

    /// The same for calls that only read: a new entry is not kept, so that lookups of unused names
    /// do not fill the memory.
    pub(super) fn kind_shards_to_look(&self, kind: &str) -> Result<Arc<KindShards>> {
        let layout = self.store().layout_of(kind);
        match self.kind_shards_in_use(kind) {
            Some(kind_shards) if kind_shards.layout == layout => Ok(kind_shards),
            _ => self.new_kind_shards(kind, layout),
        }
    }

    /// The entry of a kind, if there is one; notes its use.
    fn kind_shards_in_use(&self, kind: &str) -> Option<Arc<KindShards>> {
        let mut registry = self.0.registry.0.lock().expect("no panic while held");
        registry.used(kind).cloned()
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

    /// Whether the kind may have a job for a call to find. If not, the call must not be sent: the
    /// ledger would have to remember it, since the original can arrive after its repeat, and unused
    /// names would fill Redis.
    pub(super) async fn may_find(&self, kind: &str, until: Instant) -> Result<bool> {
        // A kind with another layout than the first is in use, and its ledgers tell clients with an
        // old layout.
        if self.store().layout_of(kind) != Layout::FIRST {
            return Ok(true);
        }
        let kind_shards = self.kind_shards_in_use(kind);
        if kind_shards
            .as_ref()
            .is_some_and(|kind_shards| kind_shards.was_found())
        {
            return Ok(true);
        }
        let of = Kind::parse(kind)?;
        // Rare; boxed, so that it does not enlarge the future of every call.
        let looking: BoxFuture<'_, _> = Box::pin(self.store().has_any_of(&of, until));
        let has_any = looking.await?;
        if has_any {
            self.kind_shards(kind)?.is_found();
        } else if let Some(kind_shards) = kind_shards {
            // The kind was dropped: the next call that schedules has to read the pause rules again.
            kind_shards.registered.store(0, Ordering::Release);
        }
        Ok(has_any)
    }

    /// Sends an item to the shard that has its job, and returns the answer. A call that the ledger
    /// refused because of its layout is repeated until the deadline.
    pub(super) async fn ask<Op>(
        &self,
        key: &JobKey,
        of: CallTarget,
        item: Op,
        until: Instant,
        outbox: impl Fn(&ShardClient) -> &Batcher<Op>,
    ) -> Result<Op::Answer>
    where
        Op: BatchOperation<Answer: JobVerdict> + Clone,
    {
        if !item.creates() && !self.may_find(key.kind(), until).await? {
            return Ok(Op::Answer::absent());
        }
        loop {
            let kind_shards = self.kind_shards(key.kind())?;
            if let Some(shard_client) = self.place(&kind_shards, key, of, until).await? {
                let answered = outbox(shard_client).send(item.clone(), until).await;
                let answered = answered.inspect_err(|error| self.suspect(&kind_shards, error))?;
                match answered.says() {
                    Word::Stale => {
                        self.catch_up(&kind_shards, until).await?;
                        if item.creates() && self.is_gone(&kind_shards) {
                            self.make_known(&kind_shards, until).await?;
                        }
                    }
                    // The run ended between the two calls.
                    Word::Elsewhere => {}
                    Word::Absent => return Ok(answered),
                    _ => {
                        kind_shards.is_found();
                        return Ok(answered);
                    }
                }
            }
            in_time(key, until)?;
        }
    }

    /// Reads a job from the shard that has it.
    pub(super) async fn find(&self, key: &JobKey, until: Instant) -> Result<Found> {
        loop {
            let kind_shards = self.kind_shards_to_look(key.kind())?;
            if let Some(shard_client) = self
                .place(&kind_shards, key, CallTarget::Job, until)
                .await?
            {
                let found = shard_client.ledger.get(key.id(), until).await;
                match found.inspect_err(|error| self.suspect(&kind_shards, error))? {
                    Found::Elsewhere => self.catch_up(&kind_shards, until).await?,
                    found => return Ok(found),
                }
            }
            in_time(key, until)?;
        }
    }

    /// Reads up to `limit` dead letters of a job, the newest first, or only the one with this
    /// number.
    pub(super) async fn letters(
        &self,
        key: &JobKey,
        number: Option<u64>,
        limit: usize,
        until: Instant,
    ) -> Result<Vec<Letter>> {
        loop {
            let kind_shards = self.kind_shards_to_look(key.kind())?;
            if let Some(shard_client) = self
                .place(&kind_shards, key, CallTarget::Letters, until)
                .await?
            {
                let letters = shard_client.ledger.letters(key.id(), number, limit, until);
                match letters.await? {
                    Some(letters) => return Ok(letters),
                    None => self.catch_up(&kind_shards, until).await?,
                }
            }
            in_time(key, until)?;
        }
    }

    /// The shard that has the job. A job in an old shard is moved to its new one first, unless it
    /// runs. `None` if the kind has another layout by now; the caller then starts again with the
    /// new one.
    pub(super) async fn place<'a>(
        &self,
        kind_shards: &'a KindShards,
        key: &JobKey,
        of: CallTarget,
        until: Instant,
    ) -> Result<Option<&'a Arc<ShardClient>>> {
        let shard_client = kind_shards.shard_client(key.id());
        let Some(old) = kind_shards.old_shard_client(key.id()) else {
            return Ok(Some(shard_client));
        };
        let moving: BoxFuture<'_, _> =
            Box::pin(old.moves.send(MisplacedJob(key.id().to_owned()), until));
        let moved = moving.await?;
        Ok(match moved.answer {
            Word::Leased if of == CallTarget::Job => Some(old),
            Word::Leased | Word::Taken | Word::Absent => Some(shard_client),
            Word::NotYet => None,
            _ => {
                self.catch_up(kind_shards, until).await?;
                None
            }
        })
    }

    /// Reads the layout again in the background, after one of several servers did not answer: the
    /// job may be on another server by now. This call has failed; the next one knows the layout.
    fn suspect(&self, kind_shards: &KindShards, error: &Error) {
        if !self.store().is_several() || !is_of_absence(error) {
            return;
        }
        let (client, kind) = (self.clone(), kind_shards.kind.clone());
        tokio::spawn(async move {
            if let Err(error) = client.store().look_up(&kind, client.deadline()).await {
                tracing::debug!(%kind, %error, "its layout could not be looked up");
            }
        });
    }

    /// Learns the present layout of a kind, after a ledger refused this one. One call does it for
    /// all calls that were refused meanwhile.
    ///
    /// Rare; boxed, so that it does not enlarge the future of every call.
    pub(super) fn catch_up<'a>(
        &'a self,
        kind_shards: &'a KindShards,
        until: Instant,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.look_again(kind_shards, until))
    }

    /// The body of [`catch_up`](Self::catch_up).
    async fn look_again(&self, kind_shards: &KindShards, until: Instant) -> Result<()> {
        let store = self.store();
        if store.is_several() && store.layout_of(kind_shards.kind.as_str()) != kind_shards.layout {
            // The ledger has reported its layout. One of the servers may be away: that must not
            // delay a call that does not need it.
            let (store, kind) = (store.clone(), kind_shards.kind.clone());
            tokio::spawn(async move {
                if let Err(error) = store.agree(&kind, until).await {
                    tracing::debug!(%kind, %error, "not all know the layout");
                }
            });
            return Ok(());
        }
        let refused = Instant::now();
        let mut agreed = kind_shards.agreed.lock().await;
        if agreed.is_none_or(|at| at < refused) {
            let began = Instant::now();
            self.store().agree(&kind_shards.kind, until).await?;
            if self.is_gone(kind_shards) {
                kind_shards.registered.store(0, Ordering::Release);
            }
            *agreed = Some(began);
        }
        Ok(())
    }

    /// Whether the kind was dropped, or the database emptied. Only a call that stores a job lists
    /// the kind again.
    fn is_gone(&self, kind_shards: &KindShards) -> bool {
        kind_shards.layout != Layout::FIRST
            && self.store().layout_of(kind_shards.kind.as_str()) == Layout::FIRST
    }
}

/// An answer that tells the result for a job.
pub(super) trait JobVerdict {
    /// The word that the script answered.
    fn says(&self) -> Word;

    /// The answer for a kind that has no jobs: there is no such job.
    fn absent() -> Self;
}

impl JobVerdict for Answered {
    fn says(&self) -> Word {
        self.answer
    }

    fn absent() -> Self {
        Answered::of(Word::Absent)
    }
}

/// The answer of a durable call, with its durability.
impl JobVerdict for (Answered, Result<Reached>) {
    fn says(&self) -> Word {
        self.0.answer
    }

    /// Nothing was written, so no replica has to have it.
    fn absent() -> Self {
        (Answered::absent(), Ok(Reached::NOTHING))
    }
}

/// The id of a job in a shard that it no longer belongs to.
#[derive(Clone)]
pub(super) struct MisplacedJob(pub(super) String);

impl BatchOperation for MisplacedJob {
    type Terms = Layout;
    type Answer = Answered;

    async fn send(
        ledger: &Ledger,
        _: &mut Lane,
        layout: &Layout,
        items: &[Self],
        until: Instant,
    ) -> Result<Vec<Answered>> {
        let names: Vec<String> = items.iter().map(|item| item.0.clone()).collect();
        let answers = ledger.move_out(&names, *layout, until).await?;
        Ok(answers.unwrap_or_else(|| vec![Answered::STALE; items.len()]))
    }
}

/// Ends the repeats of a call at its deadline.
///
/// # Errors
/// [`ErrorKind::Unavailable`] after `until`.
fn in_time(key: &JobKey, until: Instant) -> Result<()> {
    if Instant::now() < until {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Unavailable,
        format!(
            "{} is being resharded, and {key} was not found in time: try again",
            key.kind()
        ),
    ))
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
