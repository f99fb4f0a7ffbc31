//! The kinds and ledgers that this worker serves. [`ServedLedgers`] starts with the kinds that
//! routes name, and grows when kinds or shards become known; dropped kinds are forgotten. It also
//! finds the ledger of a job by its key name.
//!
//! A kind becomes known by its entry in the list of kinds of any server, by a wake-up, or by a
//! plain key that a route adopts. A kind that was forgotten and comes back gets new ledgers, with
//! new indices.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Instant;

use futures_util::future::join_all;

use crate::client::{Batcher, Durably, SettleTerms};
use crate::error::Result;
use crate::key::{JobKey, Kind};
use crate::router::Routes;
use crate::routing::Coverage;
use crate::shards::{self, ShardRef};
use crate::store::{Ledger, Server, Settlement, Store};
use crate::worker::claiming::inbox::LedgerInbox;
use crate::worker::freshness::Freshness;

/// How many kinds are checked in parallel for having been dropped.
const AT_ONCE: usize = 64;

/// A ledger whose kind at least one route of this worker matches.
pub(crate) struct ServedLedger {
    /// The ledger itself: one shard of one kind, on one server.
    pub(crate) ledger: Arc<Ledger>,
    /// Whether all jobs of the kind have one route here, or their route depends on their ids. It
    /// also depends on their ids if a fallback takes jobs of the kind.
    pub(crate) coverage: Coverage,
    /// Whether a route other than the fallback matches some of its jobs.
    pub(crate) is_routed: bool,
    /// Indices of the routes that match the kind, a fallback included.
    pub(crate) routes: Vec<usize>,
    /// Whether one of these routes hands jobs to clients that pull them.
    pub(crate) is_pulled: bool,
    /// Whether one of these routes turns plain keys into jobs.
    pub(crate) adopts: bool,
    /// Serial number among all ledgers that were ever served; later ledgers have higher numbers.
    /// Never reused.
    pub(crate) index: usize,
    /// The instance whose turn it is to claim its jobs, as the number of an
    /// [`InstanceHash`](super::instances::InstanceHash).
    turn: AtomicU64,
    /// Its jobs that wait to be claimed.
    pub(crate) ledger_inbox: Mutex<LedgerInbox>,
    /// Batches the settlements of its jobs.
    pub(crate) settles: Batcher<Settlement>,
    /// Batches the settlements of routes that ask for durability.
    pub(crate) durable_settles: Batcher<Durably<Settlement>>,
    /// Set while the lists of kinds are read; cleared when its kind is seen. See
    /// [`ServedLedgers::doubt_all`].
    is_in_doubt: AtomicBool,
    /// Its kind was dropped, and the parts of the worker skip this ledger from now on.
    is_forgotten: AtomicBool,
}

/// The kinds that this worker serves: the kinds that its routes name, and the existing kinds that
/// its wildcards match. The number of ledgers of a kind only grows, until the kind is dropped.
pub(crate) struct ServedLedgers {
    store: Arc<Store>,
    routes: Arc<Routes>,
    /// Kinds that the routes name in full. They are served even if they do not exist yet, and never
    /// forgotten.
    literal: BTreeSet<Kind>,
    terms: SettleTerms,
    known: RwLock<ServedIndex>,
    freshness: Freshness,
    /// Whether routes can match kinds that do not exist yet.
    awaits_kinds: bool,
}

/// The list of served ledgers, and its index.
#[derive(Default)]
struct ServedIndex {
    /// Sorted by [`ServedLedger::index`].
    list: Arc<[Arc<ServedLedger>]>,
    /// Number of ledgers ever served: the next free index.
    count: usize,
    /// The ledgers of each kind, by shard number.
    by_kind: HashMap<Kind, Arc<[Arc<ServedLedger>]>>,
}

/// The ledgers and the id of the job that a key name belongs to.
pub(crate) struct NameMatch<'a> {
    /// The ledger that the job belongs to; then the ledger that may still have it while the kind is
    /// being resharded. `None` if that ledger is not served, or there is none.
    pub(crate) ledgers: [Option<Arc<ServedLedger>>; 2],
    /// The id of the job: the part of the name after the kind.
    pub(crate) id: &'a str,
}

impl ServedLedgers {
    /// Serves the kinds that the routes name in full. `terms` apply to all settlements.
    pub(crate) fn new(store: Arc<Store>, routes: Arc<Routes>, terms: SettleTerms) -> Self {
        let served_ledgers = ServedLedgers {
            store,
            literal: routes.literal_kinds(),
            terms,
            known: RwLock::default(),
            freshness: Freshness::default(),
            awaits_kinds: routes.match_more_than_literal_kinds(),
            routes,
        };
        for kind in &served_ledgers.literal {
            served_ledgers.add(kind);
        }
        served_ledgers
    }

    /// The routes of this worker.
    pub(crate) fn routes(&self) -> &Routes {
        &self.routes
    }

    /// Reads the list of kinds from one server, and serves the kinds that a route matches. Returns
    /// the new ledgers.
    ///
    /// # Errors
    /// If the list cannot be read before `until`.
    pub(crate) async fn refresh(
        &self,
        from: &Server,
        until: Instant,
    ) -> Result<Vec<Arc<ServedLedger>>> {
        let kinds = from.kinds(until).await?;
        let mut new = Vec::new();
        for kind in &kinds {
            new.extend(self.add(kind));
            self.hear_of(kind.as_str());
        }
        Ok(new)
    }

    /// Records that this kind exists.
    pub(crate) fn hear_of(&self, kind: &str) {
        for served in self.shards(kind).iter() {
            served.is_heard_of();
        }
    }

    /// Starts a round of [`forget_dropped`](Self::forget_dropped), before the lists of kinds of all
    /// servers are read: a kind that is not heard of from now on is in none of them.
    pub(crate) fn doubt_all(&self) {
        for served in self.all().iter() {
            served.is_in_doubt.store(true, Ordering::Relaxed);
        }
    }

    /// Forgets dropped kinds: kinds that were not heard of since [`doubt_all`](Self::doubt_all) and
    /// have no ledger that ever accepted a job. A kind whose entry in the lists was lost still has
    /// such a ledger, and stays. Returns the number of forgotten kinds.
    pub(crate) async fn forget_dropped(&self, until: Instant) -> usize {
        let unheard = self.unheard();
        let mut gone = Vec::new();
        for kinds in unheard.chunks(AT_ONCE) {
            let asked = kinds.iter().map(|kind| self.store.was_used(kind, until));
            let asked = kinds.iter().zip(join_all(asked).await);
            gone.extend(asked.filter(|(_, used)| matches!(used, Ok(false))));
        }
        self.forget(gone.into_iter().map(|(kind, _)| kind))
    }

    /// The kinds that were not heard of since [`doubt_all`](Self::doubt_all), without the kinds
    /// that routes name.
    fn unheard(&self) -> Vec<Kind> {
        let known = self.known.read().expect("no panic while held");
        let unheard = known.by_kind.iter().filter(|(kind, shards)| {
            shards.iter().all(|served| served.is_in_doubt()) && !self.literal.contains(*kind)
        });
        unheard.map(|(kind, _)| kind.clone()).collect()
    }

    /// Forgets each of these kinds that was not heard of meanwhile. Returns their number.
    fn forget<'a>(&self, kinds: impl Iterator<Item = &'a Kind>) -> usize {
        let mut known = self.known.write().expect("no panic while held");
        let known = &mut *known;
        let before = known.by_kind.len();
        for kind in kinds {
            let is_unheard =
                |shards: &Arc<[Arc<ServedLedger>]>| shards.iter().all(|it| it.is_in_doubt());
            if !known.by_kind.get(kind).is_some_and(is_unheard) {
                continue;
            }
            for served in known.by_kind.remove(kind).iter().flat_map(|it| it.iter()) {
                served.is_forgotten.store(true, Ordering::Relaxed);
            }
            self.store.forget_layout(kind);
        }
        let forgotten = before - known.by_kind.len();
        if forgotten > 0 {
            let left = known.list.iter().filter(|served| !served.is_forgotten());
            known.list = left.cloned().collect();
        }
        forgotten
    }

    /// Decides when the list of kinds is read again.
    pub(crate) fn freshness(&self) -> &Freshness {
        &self.freshness
    }

    /// Serves new shards of the served kinds, as far as the store knows their layouts. Returns the
    /// new ledgers.
    pub(crate) fn grow(&self) -> Vec<Arc<ServedLedger>> {
        let known = self.known.read().expect("no panic while held");
        let kinds: Vec<Kind> = known.by_kind.keys().cloned().collect();
        drop(known);
        kinds.iter().flat_map(|kind| self.add(kind)).collect()
    }

    /// Takes in the name of an expired key that belongs to no served kind. If it has the form of a
    /// job key and a route matches it, its kind may be new, and the list of kinds is read again.
    pub(crate) fn met(&self, name: &[u8]) {
        if self.freshness.is_doubted() || !self.awaits_kinds {
            return;
        }
        let Ok(Ok(key)) = std::str::from_utf8(name).map(JobKey::parse) else {
            return;
        };
        if self.shards(key.kind()).is_empty()
            && (self.routes.fallback.is_some() || self.routes.table.find(&key).is_some())
        {
            self.freshness.doubt();
        }
    }

    /// Serves all known shards of a kind, if a route matches it. Returns the new ledgers; none if
    /// all are served already or no route matches.
    pub(crate) fn add(&self, kind: &Kind) -> Vec<Arc<ServedLedger>> {
        let wanted = usize::from(self.store.layout_of(kind.as_str()).ledgers());
        if self.shards(kind.as_str()).len() >= wanted {
            return Vec::new();
        }
        let mut coverage = self.routes.table.coverage(kind.as_str());
        let mut routes = self.routes.table.of_kind(kind.as_str());
        let is_routed = coverage != Coverage::None;
        if !matches!(coverage, Coverage::Whole(_))
            && let Some(fallback) = self.routes.fallback
        {
            // The fallback takes a job only if no live instance has a route for it.
            coverage = Coverage::Mixed;
            routes.push(fallback);
        }
        if coverage == Coverage::None {
            return Vec::new();
        }
        let mut known = self.known.write().expect("no panic while held");
        let known = &mut *known;
        let shards = known.by_kind.entry(kind.clone()).or_default();
        let adopts = routes
            .iter()
            .any(|route| self.routes.routes[*route].adopts.is_some());
        let is_pulled = routes
            .iter()
            .any(|route| self.routes.routes[*route].pull.is_some());
        let layout = self.store.layout_of(kind.as_str());
        let serve = |shard: usize| {
            let place = layout.place(u16::try_from(shard).expect("a number of a shard"));
            let ledger = match adopts {
                true => self.store.adopting_ledger(kind, place),
                false => self.store.ledger(kind, place),
            };
            // The lanes run on the engine's thread, not on the threads of the handlers.
            let settles = Batcher::new(ledger.clone(), self.terms.clone()).here();
            let durable_settles = Batcher::new(ledger.clone(), self.terms.clone()).here();
            Arc::new(ServedLedger {
                ledger,
                coverage,
                is_routed,
                adopts,
                is_pulled,
                routes: routes.clone(),
                index: known.count + shard - shards.len(),
                turn: AtomicU64::new(0),
                ledger_inbox: Mutex::default(),
                settles,
                durable_settles,
                is_in_doubt: AtomicBool::new(false),
                is_forgotten: AtomicBool::new(false),
            })
        };
        let new: Vec<Arc<ServedLedger>> = (shards.len()..wanted).map(serve).collect();
        known.count += new.len();
        known.list = known.list.iter().chain(&new).cloned().collect();
        *shards = shards.iter().chain(&new).cloned().collect();
        new
    }

    /// All served ledgers, by index. Cheap: the list is shared.
    pub(crate) fn all(&self) -> Arc<[Arc<ServedLedger>]> {
        self.known.read().expect("no panic while held").list.clone()
    }

    /// The served ledgers whose index is `count` or higher.
    pub(crate) fn all_behind(&self, count: usize) -> Vec<Arc<ServedLedger>> {
        let all = self.all();
        all[all.partition_point(|served| served.index < count)..].to_vec()
    }

    /// The ledgers of a kind, by shard number; empty if the kind is not served.
    pub(crate) fn shards(&self, kind: &str) -> Arc<[Arc<ServedLedger>]> {
        let known = self.known.read().expect("no panic while held");
        known.by_kind.get(kind).cloned().unwrap_or_default()
    }

    /// The ledger with this subject, which is its name in wake-ups. `None` if it is not served.
    pub(crate) fn by_subject(&self, subject: &str) -> Option<Arc<ServedLedger>> {
        let (kind, shard) = shards::of_subject(subject)?;
        self.shards(kind).get(usize::from(shard)).cloned()
    }

    /// The ledger that a job belongs to, if its kind is served.
    pub(crate) fn by_key(&self, kind: &str, id: &str) -> Option<Arc<ServedLedger>> {
        let place = self.store.layout_of(kind).place_of(id);
        self.shards(kind).get(usize::from(place.shard)).cloned()
    }

    /// Finds the job that a key name belongs to, if its kind is served. Foreign names may come by
    /// the million: such a name costs a scan for colons and one look-up, and no allocation.
    pub(crate) fn recognise<'a>(&self, name: &'a [u8]) -> Option<NameMatch<'a>> {
        let mut colons = name.iter().enumerate().filter(|(_, byte)| **byte == b':');
        let third = colons.nth(2)?.0;
        let (kind, id) = if colons.next().is_some() {
            let name = std::str::from_utf8(name).ok()?;
            self.store.names().of_own_trigger(name)?
        } else {
            let kind = std::str::from_utf8(&name[..third]).ok()?;
            (kind, std::str::from_utf8(&name[third + 1..]).ok()?)
        };
        if id.is_empty() {
            return None;
        }
        let ledgers = self.places_of(kind, id)?;
        Some(NameMatch { ledgers, id })
    }

    /// The ledger that a job belongs to, and the ledger that may still have it while the kind is
    /// being resharded. `None` if the kind is not served.
    pub(crate) fn places_of(&self, kind: &str, id: &str) -> Option<[Option<Arc<ServedLedger>>; 2]> {
        let shards = self.shards(kind);
        if shards.is_empty() {
            return None;
        }
        let layout = self.store.layout_of(kind);
        let places = [Some(layout.place_of(id)), layout.old_place_of(id)];
        let served = |place: Option<ShardRef>| shards.get(usize::from(place?.shard)).cloned();
        Some(places.map(served))
    }
}

impl ServedLedger {
    /// Records that its kind exists.
    pub(crate) fn is_heard_of(&self) {
        self.is_in_doubt.store(false, Ordering::Relaxed);
    }

    /// Whether its kind was not heard of since [`ServedLedgers::doubt_all`].
    fn is_in_doubt(&self) -> bool {
        self.is_in_doubt.load(Ordering::Relaxed)
    }

    /// Whether its kind was dropped, and is not served any more.
    pub(crate) fn is_forgotten(&self) -> bool {
        self.is_forgotten.load(Ordering::Relaxed)
    }

    /// The number of the instance whose turn it is; 0 if there is none.
    pub(crate) fn turn(&self) -> u64 {
        self.turn.load(Ordering::Relaxed)
    }

    /// Takes in whose turn it is, as [`turn`](Self::turn).
    pub(crate) fn set_turn(&self, holder: u64) {
        self.turn.store(holder, Ordering::Relaxed);
    }

    /// The key of the job with this id. `None` if no job can have this id.
    pub(crate) fn key(&self, id: &str) -> Option<JobKey> {
        self.ledger.kind().key(id).ok()
    }
}

impl fmt::Debug for ServedLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ledger.fmt(f)
    }
}

#[cfg(test)]
impl ServedLedger {
    /// A served ledger of this kind, on a Redis that is never called.
    pub(crate) fn sample(kind: &str) -> Arc<Self> {
        ServedLedgers::sample(&[&format!("{kind}:*")]).shards(kind)[0].clone()
    }
}

#[cfg(test)]
impl ServedLedgers {
    /// Serves these patterns, on a Redis that is never called.
    pub(crate) fn sample(patterns: &[&str]) -> Self {
        ServedLedgers::sample_at("redis://127.0.0.1:1", patterns)
    }

    /// Serves these patterns, on the Redis at this URL.
    pub(crate) fn sample_at(url: &str, patterns: &[&str]) -> Self {
        let names = crate::names::Names::new("keyfall");
        let store = Store::new(url, names, &Default::default()).unwrap();
        let route = |router: crate::Router, pattern: &&str| router.route(pattern, async || {});
        let router = patterns.iter().fold(crate::Router::new(), route);
        let terms = SettleTerms::at_once(Default::default());
        ServedLedgers::new(store, Arc::new(router.finish().unwrap()), terms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(count: usize) -> Vec<Kind> {
        let kind = |number| Kind::parse(&format!("app1:it:kind{number}")).unwrap();
        (0..count).map(kind).collect()
    }

    #[tokio::test]
    async fn a_dropped_kind_is_forgotten_and_comes_back_as_new() {
        let served_ledgers = ServedLedgers::sample(&["app1:trans:notice:*", "app1:*:*:*"]);
        let kinds = kinds(1000);
        let first: Vec<_> = kinds
            .iter()
            .flat_map(|kind| served_ledgers.add(kind))
            .collect();
        assert_eq!(served_ledgers.all().len(), 1001);
        assert_eq!(served_ledgers.forget(kinds.iter()), 0, "nobody doubts them");
        served_ledgers.doubt_all();
        served_ledgers.hear_of("app1:it:kind7");
        let literal = Kind::parse("app1:trans:notice").unwrap();
        assert_eq!(served_ledgers.forget(kinds.iter()), 999);
        let left = served_ledgers.all();
        let left: Vec<&Kind> = left.iter().map(|served| served.ledger.kind()).collect();
        assert_eq!(left, [&literal, &kinds[7]]);
        assert!(first[0].is_forgotten() && !first[7].is_forgotten());
        assert!(served_ledgers.shards("app1:it:kind0").is_empty());
        let again = served_ledgers.add(&kinds[0]);
        assert_eq!(again[0].index, 1001);
        assert_eq!(served_ledgers.all_behind(1001).len(), 1);
        assert_eq!(served_ledgers.all_behind(1).len(), 2);
    }

    #[tokio::test]
    async fn a_kind_that_cannot_be_asked_for_is_not_forgotten() {
        let served_ledgers = ServedLedgers::sample(&["app1:trans:notice:*", "app1:*:*:*"]);
        served_ledgers.add(&kinds(1)[0]);
        served_ledgers.doubt_all();
        assert_eq!(served_ledgers.forget_dropped(Instant::now()).await, 0);
        assert_eq!(served_ledgers.all().len(), 2);
    }
}
