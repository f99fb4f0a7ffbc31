//! The kinds that this worker serves.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
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

/// How many kinds are looked at together that may have been dropped.
const AT_ONCE: usize = 64;

/// A ledger whose kind some route of this worker matches.
pub(crate) struct ServedLedger {
    pub(crate) ledger: Arc<Ledger>,
    pub(crate) coverage: Coverage,
    /// Some of its jobs have a route here, the fallback aside.
    pub(crate) is_routed: bool,
    /// The routes that match it, a fallback included.
    pub(crate) routes: Vec<usize>,
    /// Some of its jobs go to those who pull them.
    pub(crate) is_pulled: bool,
    /// Plain keys become jobs of it.
    pub(crate) adopts: bool,
    /// Its number among all that were ever served; those that come later have higher ones.
    pub(crate) index: usize,
    /// What waits to be claimed of it.
    pub(crate) ledger_inbox: Mutex<LedgerInbox>,
    pub(crate) settles: Batcher<Settlement>,
    /// For the routes that want it.
    pub(crate) durable_settles: Batcher<Durably<Settlement>>,
    /// Since this was set nothing was heard of its kind.
    is_in_doubt: AtomicBool,
    /// Its kind was dropped, and nobody looks into it any more.
    is_forgotten: AtomicBool,
}

/// The kinds that this worker serves: those that its routes name, and of those that exist
/// the ones that its wildcards match. The ledgers of each only grow, until the kind is dropped.
pub(crate) struct ServedLedgers {
    store: Arc<Store>,
    routes: Arc<Routes>,
    /// The kinds that its routes name, which are served whether they exist or not.
    literal: BTreeSet<Kind>,
    terms: SettleTerms,
    known: RwLock<ServedIndex>,
    freshness: Freshness,
    /// Routes may match kinds that nobody has used yet.
    awaits_kinds: bool,
}

#[derive(Default)]
struct ServedIndex {
    /// By their indices.
    list: Arc<[Arc<ServedLedger>]>,
    /// How many there ever were.
    count: usize,
    /// The ledgers of each kind, by their numbers.
    by_kind: HashMap<Kind, Arc<[Arc<ServedLedger>]>>,
}

/// Whose job a name is.
pub(crate) struct NameMatch<'a> {
    /// The ledger that it belongs to; and the one that it may be in until it has been moved.
    pub(crate) ledgers: [Option<Arc<ServedLedger>>; 2],
    pub(crate) id: &'a str,
}

impl ServedLedgers {
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

    /// Reads the list of kinds of a server anew and serves those that are routed. Returns what ledgers
    /// are new.
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

    /// Something was heard of a kind.
    pub(crate) fn hear_of(&self, kind: &str) {
        for served in self.shards(kind).iter() {
            served.is_heard_of();
        }
    }

    /// The lists of kinds of all servers are about to be read: what is not heard of from now on is on
    /// none of them.
    pub(crate) fn doubt_all(&self) {
        for served in self.all().iter() {
            served.is_in_doubt.store(true, Ordering::Relaxed);
        }
    }

    /// Forgets the kinds of which nothing was heard since all were doubted, and no ledger has ever
    /// accepted a job: they were dropped. One whose entry in the lists was lost has a ledger.
    /// Returns how many those were.
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

    /// The kinds of which nothing was heard since all were doubted, but for those that routes name.
    fn unheard(&self) -> Vec<Kind> {
        let known = self.known.read().expect("no panic while held");
        let unheard = known.by_kind.iter().filter(|(kind, shards)| {
            shards.iter().all(|served| served.is_in_doubt()) && !self.literal.contains(*kind)
        });
        unheard.map(|(kind, _)| kind.clone()).collect()
    }

    /// Forgets those of these kinds of which still nothing was heard. Returns how many those were.
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

    /// Whether the list of kinds may be another one by now.
    pub(crate) fn freshness(&self) -> &Freshness {
        &self.freshness
    }

    /// Serves what became known of the kinds that are served. Returns what ledgers are new.
    pub(crate) fn grow(&self) -> Vec<Arc<ServedLedger>> {
        let known = self.known.read().expect("no panic while held");
        let kinds: Vec<Kind> = known.by_kind.keys().cloned().collect();
        drop(known);
        kinds.iter().flat_map(|kind| self.add(kind)).collect()
    }

    /// A key that is recognised as nobody's has expired. If it looks like that of a job for which there
    /// is a route, its kind may be new.
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

    /// Serves a kind if a route matches it. Returns what ledgers are new.
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
            // Which jobs are left to it depends on who else lives.
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
            // The lanes run on the engine's thread and not on the handlers'.
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

    /// All ledgers served, in the order in which they came.
    pub(crate) fn all(&self) -> Arc<[Arc<ServedLedger>]> {
        self.known.read().expect("no panic while held").list.clone()
    }

    /// Those that came behind so many.
    pub(crate) fn all_behind(&self, count: usize) -> Vec<Arc<ServedLedger>> {
        let all = self.all();
        all[all.partition_point(|served| served.index < count)..].to_vec()
    }

    /// The ledgers of a kind, by their numbers; none if it is not served.
    pub(crate) fn shards(&self, kind: &str) -> Arc<[Arc<ServedLedger>]> {
        let known = self.known.read().expect("no panic while held");
        known.by_kind.get(kind).cloned().unwrap_or_default()
    }

    /// A ledger by what wake-ups call it.
    pub(crate) fn by_subject(&self, subject: &str) -> Option<Arc<ServedLedger>> {
        let (kind, shard) = shards::of_subject(subject)?;
        self.shards(kind).get(usize::from(shard)).cloned()
    }

    /// The ledger that a job belongs to, if its kind is served.
    pub(crate) fn by_key(&self, kind: &str, id: &str) -> Option<Arc<ServedLedger>> {
        let place = self.store.layout_of(kind).place_of(id);
        self.shards(kind).get(usize::from(place.shard)).cloned()
    }

    /// Recognises the name of a job that may be ours. Foreign names, which may come by the
    /// million, cost a scan for colons and one look-up, and no allocation.
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

    /// The ledger that a job belongs to, and the one that it may be in until it has been moved; if its
    /// kind is served.
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
    /// Something was heard of its kind.
    pub(crate) fn is_heard_of(&self) {
        self.is_in_doubt.store(false, Ordering::Relaxed);
    }

    fn is_in_doubt(&self) -> bool {
        self.is_in_doubt.load(Ordering::Relaxed)
    }

    /// Whether its kind was dropped, and is served no more.
    pub(crate) fn is_forgotten(&self) -> bool {
        self.is_forgotten.load(Ordering::Relaxed)
    }

    /// The key of a job of this kind. Ids that cannot be ours are nobody's.
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
    /// A kind that is served, on a Redis that is never asked.
    pub(crate) fn sample(kind: &str) -> Arc<Self> {
        ServedLedgers::sample(&[&format!("{kind}:*")]).shards(kind)[0].clone()
    }
}

#[cfg(test)]
impl ServedLedgers {
    /// With these routes, on a Redis that is never asked.
    pub(crate) fn sample(patterns: &[&str]) -> Self {
        let names = crate::names::Names::new("keyfall");
        let store = Store::new("redis://127.0.0.1:1", names, &Default::default()).unwrap();
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
    async fn what_was_dropped_is_forgotten_and_comes_again_as_another_one() {
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
    async fn what_cannot_be_asked_for_is_not_forgotten() {
        let served_ledgers = ServedLedgers::sample(&["app1:trans:notice:*", "app1:*:*:*"]);
        served_ledgers.add(&kinds(1)[0]);
        served_ledgers.doubt_all();
        assert_eq!(served_ledgers.forget_dropped(Instant::now()).await, 0);
        assert_eq!(served_ledgers.all().len(), 2);
    }
}
