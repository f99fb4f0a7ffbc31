//! The ledgers of one kind, as producers use them: which of them has which job, and the calls that
//! find out.

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

/// The ledgers of a kind by one layout. With another there is another registry entry.
pub(super) struct KindShards {
    pub(super) kind: Kind,
    pub(super) layout: Layout,
    /// The number of the connection on which the kind was last made known. A server that
    /// was restarted may have forgotten it.
    pub(super) registered: AtomicU64,
    /// When it was last made known.
    pub(super) made_known: Mutex<Instant>,
    /// Held while that is done. By shard, the ledgers that have asked for it, and when that was done.
    pub(super) registering: tokio::sync::Mutex<HashMap<u16, (Unlisted, Instant)>>,
    /// When something of the kind was last seen.
    found: Mutex<Option<Instant>>,
    shard_clients: Vec<Arc<ShardClient>>,
    /// By the layout before, while jobs are moved from there.
    old: Vec<Arc<ShardClient>>,
    /// When it was last found out whether the layout is still this.
    agreed: tokio::sync::Mutex<Option<Instant>>,
}

/// The registry of a client, by kind. One that nobody uses for a while is cleared away.
#[derive(Default)]
pub(super) struct KindRegistry(Mutex<RegistryState>);

#[derive(Default)]
struct RegistryState {
    by_kind: HashMap<Kind, (Arc<KindShards>, Instant)>,
    /// Somebody sees to it that they are cleared away.
    is_tended: bool,
}

/// What of a job a call is about, which says where it is while its kind is being resharded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CallTarget {
    /// What is pending or runs. A run stays where it is.
    Job,
    /// Its dead letters, which are moved at once.
    Letters,
}

impl KindShards {
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

    /// Whether something of the kind was seen a moment ago.
    fn was_found(&self) -> bool {
        let found = self.found.lock().expect("no panic while held");
        found.is_some_and(|at| at.elapsed() < FOUND_FOR)
    }

    /// Something of the kind is there.
    pub(super) fn is_found(&self) {
        *self.found.lock().expect("no panic while held") = Some(Instant::now());
    }

    /// Where the job with this id belongs.
    pub(super) fn shard_client(&self, id: &str) -> &Arc<ShardClient> {
        &self.shard_clients[usize::from(self.layout.place_of(id).shard)]
    }

    /// The same, for those who look in several places.
    #[cfg(feature = "worker")]
    pub(super) fn new_shard_client(&self, id: &str) -> Option<&Arc<ShardClient>> {
        Some(self.shard_client(id))
    }

    /// Where it may be instead.
    pub(super) fn old_shard_client(&self, id: &str) -> Option<&Arc<ShardClient>> {
        let old = self.layout.old_place_of(id)?;
        Some(&self.old[usize::from(old.shard)])
    }

    /// Whether jobs are being moved.
    pub(super) fn is_moving(&self) -> bool {
        self.layout.from.is_some()
    }

    /// The ledgers that jobs are moved out of, which may be those that they are moved to, too.
    pub(super) fn before(&self) -> &[Arc<ShardClient>] {
        &self.old
    }

    /// The ledgers of this layout.
    pub(super) fn shard_clients(&self) -> &[Arc<ShardClient>] {
        &self.shard_clients
    }

    /// Every ledger that may have jobs, once.
    pub(super) fn all(&self) -> impl Iterator<Item = &Arc<ShardClient>> {
        let emptied = self.old.iter().skip(self.shard_clients.len());
        self.shard_clients.iter().chain(emptied)
    }
}

impl RegistryState {
    /// The registry entry of a kind, which is used now.
    fn used(&mut self, kind: &str) -> Option<&Arc<KindShards>> {
        // The lookup by text spares the allocation of a kind for every call.
        let (kind_shards, used) = self.by_kind.get_mut(kind)?;
        *used = Instant::now();
        Some(kind_shards)
    }
}

impl KindRegistry {
    /// Clears away what nobody has used for so long. Returns how many are left; of none, nobody looks
    /// after them any more.
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

    /// Forgets what is known of a kind that is gone, or never was.
    pub(super) fn remove(&self, kind: &str) {
        let mut registry = self.0.lock().expect("no panic while held");
        registry.by_kind.remove(kind);
    }
}

/// Clears registry away that nobody uses, until there are none, or the client is gone.
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
    /// The registry entry of a kind by the layout that it has, as far as is known; kept for the next call.
    pub(super) fn kind_shards(&self, kind: &str) -> Result<Arc<KindShards>> {
        let layout = self.store().layout_of(kind);
        let mut registry = self.0.registry.0.lock().expect("no panic while held");
        let known = match registry.used(kind) {
            Some(kind_shards) if kind_shards.layout == layout => return Ok(kind_shards.clone()),
            known => known.map(|before| before.registered.load(Ordering::Acquire)),
        };
        let kind_shards = self.new_kind_shards(kind, layout)?;
        // With another layout it is known all the same.
        kind_shards
            .registered
            .store(known.unwrap_or(0), Ordering::Release);
        let kept = (kind_shards.clone(), Instant::now());
        registry.by_kind.insert(kind_shards.kind.clone(), kept);
        self.tend(&mut registry);
        Ok(kind_shards)
    }

    /// The same, for those who only look: names that nobody has used would fill the memory.
    pub(super) fn kind_shards_to_look(&self, kind: &str) -> Result<Arc<KindShards>> {
        let layout = self.store().layout_of(kind);
        match self.kind_shards_in_use(kind) {
            Some(kind_shards) if kind_shards.layout == layout => Ok(kind_shards),
            _ => self.new_kind_shards(kind, layout),
        }
    }

    fn kind_shards_in_use(&self, kind: &str) -> Option<Arc<KindShards>> {
        let mut registry = self.0.registry.0.lock().expect("no panic while held");
        registry.used(kind).cloned()
    }

    fn new_kind_shards(&self, kind: &str, layout: Layout) -> Result<Arc<KindShards>> {
        let kind = Kind::parse(kind)?;
        let shard_client = |place| ShardClient::new(self.store().ledger(&kind, place), layout);
        Ok(KindShards::new(kind.clone(), layout, shard_client))
    }

    /// The registry entry of a kind by the layout that it has now, for those who only look.
    pub(super) async fn kind_shards_now(
        &self,
        kind: &Kind,
        until: Instant,
    ) -> Result<Arc<KindShards>> {
        self.store().look_up(kind, until).await?;
        self.kind_shards_to_look(kind.as_str())
    }

    /// Has registry cleared away that nobody uses, as long as there are some.
    fn tend(&self, registry: &mut RegistryState) {
        if registry.is_tended {
            return;
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            registry.is_tended = true;
            runtime.spawn(clear_away(Arc::downgrade(&self.0)));
        }
    }

    /// Whether there can be anything of a kind that a call finds. If there is not, it must not be sent: a
    /// ledger would have to remember it, since its original may arrive after its repeat, and names
    /// that nobody has used would fill Redis.
    pub(super) async fn may_find(&self, kind: &str, until: Instant) -> Result<bool> {
        // One that goes by another layout was used, and says so to whoever is behind.
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
        // Rare, and not a part of the type of every call.
        let looking: BoxFuture<'_, _> = Box::pin(self.store().has_any_of(&of, until));
        let has_any = looking.await?;
        if has_any {
            self.kind_shards(kind)?.is_found();
        } else if let Some(kind_shards) = kind_shards {
            // It was dropped: whoever schedules next is to read the rules of pauses again.
            kind_shards.registered.store(0, Ordering::Release);
        }
        Ok(has_any)
    }

    /// Sends an item to where its job is, and returns what it is answered there.
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
                    // It ended between the two calls.
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

    /// Looks a job up where it is.
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

    /// The last letters of a job, the newest first, or the one with this number.
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

    /// The ledger that a job is in. What is not where it belongs by now is moved there first, unless
    /// it runs. Nothing if the kind goes by another layout, which is known then.
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

    /// Looks whether the job is elsewhere, after one of several servers did not answer: no ledger there
    /// can say so. The call has failed by then; the next one knows.
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

    /// Finds out by which layout a kind goes, after a ledger has refused this one. One call does it
    /// for all that were refused meanwhile.
    ///
    /// Rare, and not a part of the type of every call.
    pub(super) fn catch_up<'a>(
        &'a self,
        kind_shards: &'a KindShards,
        until: Instant,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.look_again(kind_shards, until))
    }

    async fn look_again(&self, kind_shards: &KindShards, until: Instant) -> Result<()> {
        let store = self.store();
        if store.is_several() && store.layout_of(kind_shards.kind.as_str()) != kind_shards.layout {
            // The ledger has said by which it goes. One of the servers may be away, which is to hold up
            // nobody who does not need it.
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

    /// Whether somebody dropped the kind, or emptied the database. Whoever stores a job makes it known
    /// anew, and nobody else.
    fn is_gone(&self, kind_shards: &KindShards) -> bool {
        kind_shards.layout != Layout::FIRST
            && self.store().layout_of(kind_shards.kind.as_str()) == Layout::FIRST
    }
}

/// What says what became of a job.
pub(super) trait JobVerdict {
    fn says(&self) -> Word;

    /// There is no such job, since there is nothing of its kind.
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

/// With how far it got.
impl JobVerdict for (Answered, Result<Reached>) {
    fn says(&self) -> Word {
        self.0.answer
    }

    /// Nothing was written, so there is nothing that anybody has to have.
    fn absent() -> Self {
        (Answered::absent(), Ok(Reached::NOTHING))
    }
}

/// A job to move out of a ledger that it does not belong to any more.
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

/// What goes on being refused ends with the time of the call.
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
    async fn kinds_that_nobody_uses_for_a_while_take_no_room() {
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
        // Whoever comes again is known as before.
        client.cancel(key(7)).await.unwrap();
        assert_eq!(client.stats("idle:it:kind7").await.unwrap().cancelled, 1);
    }
}
