//! The kinds that this worker serves.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Instant;

use crate::client::{Durably, Outbox, SettleTerms};
use crate::error::Result;
use crate::key::{JobKey, Kind};
use crate::router::Routes;
use crate::routing::Coverage;
use crate::shards::{self, Place};
use crate::store::{Ledger, Settlement, Store};
use crate::worker::freshness::Freshness;

/// A ledger whose kind some route of this worker matches.
pub(crate) struct Served {
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
    /// Its place in the roster; stays the same.
    pub(crate) index: usize,
    pub(crate) settles: Outbox<Settlement>,
    /// For the routes that want it.
    pub(crate) durable_settles: Outbox<Durably<Settlement>>,
    /// Its kind was dropped, and nothing was heard of it since: nobody looks into it.
    is_gone: AtomicBool,
}

/// The kinds that this worker serves: those that its routes name, and of those that exist
/// the ones that its wildcards match. It only grows, and so do the ledgers of each.
pub(crate) struct Roster {
    store: Arc<Store>,
    routes: Arc<Routes>,
    terms: SettleTerms,
    known: RwLock<Known>,
    freshness: Freshness,
    /// Routes may match kinds that nobody has used yet.
    awaits_kinds: bool,
}

#[derive(Default)]
struct Known {
    list: Arc<[Arc<Served>]>,
    /// The ledgers of each kind, by their numbers.
    by_kind: HashMap<Kind, Arc<[Arc<Served>]>>,
}

/// Whose job a name is.
pub(crate) struct Recognised<'a> {
    /// The ledger that it belongs to; and the one that it may be in until it has been moved.
    pub(crate) ledgers: [Option<Arc<Served>>; 2],
    pub(crate) id: &'a str,
}

impl Roster {
    pub(crate) fn new(store: Arc<Store>, routes: Arc<Routes>, terms: SettleTerms) -> Self {
        let roster = Roster {
            store,
            routes: routes.clone(),
            terms,
            known: RwLock::default(),
            freshness: Freshness::default(),
            awaits_kinds: routes.match_more_than_literal_kinds(),
        };
        for kind in routes.literal_kinds() {
            roster.add(&kind);
        }
        roster
    }

    /// The routes of this worker.
    pub(crate) fn routes(&self) -> &Routes {
        &self.routes
    }

    /// Reads the list of kinds of a server anew and serves those that are routed. Returns what ledgers
    /// are new.
    ///
    /// One that was dropped and is on the list again is new as well: that it came may have gone unheard.
    pub(crate) async fn refresh(&self, from: &Store, until: Instant) -> Result<Vec<Arc<Served>>> {
        let kinds = from.kinds(until).await?;
        let mut new = Vec::new();
        for kind in &kinds {
            new.extend(self.add(kind));
            let known = self.shards(kind.as_str());
            new.extend(known.iter().filter(|served| served.comes_again()).cloned());
        }
        Ok(new)
    }

    /// Whether the list of kinds may be another one by now.
    pub(crate) fn freshness(&self) -> &Freshness {
        &self.freshness
    }

    /// Serves what became known of the kinds that are served. Returns what ledgers are new.
    pub(crate) fn grow(&self) -> Vec<Arc<Served>> {
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
    pub(crate) fn add(&self, kind: &Kind) -> Vec<Arc<Served>> {
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
            let settles = Outbox::new(ledger.clone(), self.terms.clone()).here();
            let durable_settles = Outbox::new(ledger.clone(), self.terms.clone()).here();
            Arc::new(Served {
                ledger,
                coverage,
                is_routed,
                adopts,
                is_pulled,
                routes: routes.clone(),
                index: known.list.len() + shard - shards.len(),
                settles,
                durable_settles,
                is_gone: AtomicBool::new(false),
            })
        };
        let new: Vec<Arc<Served>> = (shards.len()..wanted).map(serve).collect();
        known.list = known.list.iter().chain(&new).cloned().collect();
        *shards = shards.iter().chain(&new).cloned().collect();
        new
    }

    /// All ledgers served, in the order in which they came.
    pub(crate) fn all(&self) -> Arc<[Arc<Served>]> {
        self.known.read().expect("no panic while held").list.clone()
    }

    /// The ledgers of a kind, by their numbers; none if it is not served.
    pub(crate) fn shards(&self, kind: &str) -> Arc<[Arc<Served>]> {
        let known = self.known.read().expect("no panic while held");
        known.by_kind.get(kind).cloned().unwrap_or_default()
    }

    /// A ledger by what wake-ups call it.
    pub(crate) fn by_subject(&self, subject: &str) -> Option<Arc<Served>> {
        let (kind, shard) = shards::of_subject(subject)?;
        self.shards(kind).get(usize::from(shard)).cloned()
    }

    /// The ledger that a job belongs to, if its kind is served.
    pub(crate) fn by_key(&self, kind: &str, id: &str) -> Option<Arc<Served>> {
        let place = self.store.layout_of(kind).place_of(id);
        self.shards(kind).get(usize::from(place.shard)).cloned()
    }

    /// Recognises the name of a job that may be ours. Foreign names, which may come by the
    /// million, cost a scan for colons and one look-up, and no allocation.
    pub(crate) fn recognise<'a>(&self, name: &'a [u8]) -> Option<Recognised<'a>> {
        let mut colons = name.iter().enumerate().filter(|(_, byte)| **byte == b':');
        let third = colons.nth(2)?.0;
        if colons.next().is_some() {
            let name = std::str::from_utf8(name).ok()?;
            let (kind, id) = self.store.names().of_own_trigger(name)?;
            return self.recognise_job(kind, id);
        }
        let kind = std::str::from_utf8(&name[..third]).ok()?;
        let id = &name[third + 1..];
        self.recognise_job(kind, std::str::from_utf8(id).ok()?)
    }

    fn recognise_job<'a>(&self, kind: &str, id: &'a str) -> Option<Recognised<'a>> {
        if id.is_empty() {
            return None;
        }
        let ledgers = self.places_of(kind, id)?;
        Some(Recognised { ledgers, id })
    }

    /// The ledger that a job belongs to, and the one that it may be in until it has been moved; if its
    /// kind is served.
    pub(crate) fn places_of(&self, kind: &str, id: &str) -> Option<[Option<Arc<Served>>; 2]> {
        let shards = self.shards(kind);
        if shards.is_empty() {
            return None;
        }
        let layout = self.store.layout_of(kind);
        let places = [Some(layout.place_of(id)), layout.old_place_of(id)];
        let served = |place: Option<Place>| shards.get(usize::from(place?.shard)).cloned();
        Some(places.map(served))
    }
}

impl Served {
    /// Its kind was dropped.
    pub(crate) fn goes(&self) {
        self.is_gone.store(true, Ordering::Relaxed);
    }

    /// Something was heard of its kind. Returns whether that was gone.
    pub(crate) fn comes_again(&self) -> bool {
        self.is_gone.swap(false, Ordering::Relaxed)
    }

    /// Whether its kind was dropped.
    pub(crate) fn is_gone(&self) -> bool {
        self.is_gone.load(Ordering::Relaxed)
    }

    /// The key of a job of this kind. Ids that cannot be ours are nobody's.
    pub(crate) fn key(&self, id: &str) -> Option<JobKey> {
        self.ledger.kind().key(id).ok()
    }
}

impl fmt::Debug for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ledger.fmt(f)
    }
}

#[cfg(test)]
impl Served {
    /// A kind that is served, on a Redis that is never asked.
    pub(crate) fn sample(kind: &str) -> Arc<Self> {
        let names = crate::names::Names::new("keyfall");
        let store = Store::new("redis://127.0.0.1:1", names, &Default::default()).unwrap();
        let router = crate::Router::new().route(&format!("{kind}:*"), async || {});
        let terms = SettleTerms::at_once(Default::default());
        let roster = Roster::new(store, Arc::new(router.finish().unwrap()), terms);
        roster.shards(kind)[0].clone()
    }
}
