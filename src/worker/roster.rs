//! The kinds that this worker serves.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, RwLock};
use std::time::Instant;

use crate::client::{Outbox, SettleTerms};
use crate::error::Result;
use crate::key::{JobKey, Kind};
use crate::router::Routes;
use crate::routing::Coverage;
use crate::store::{Ledger, Settlement, Store};

/// A kind that some route of this worker matches.
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
}

/// The kinds that this worker serves: those that its routes name, and of those that exist
/// the ones that its wildcards match. It only grows.
pub(crate) struct Roster {
    store: Arc<Store>,
    routes: Arc<Routes>,
    terms: SettleTerms,
    known: RwLock<Known>,
}

#[derive(Default)]
struct Known {
    list: Arc<[Arc<Served>]>,
    by_kind: HashMap<Kind, Arc<Served>>,
}

impl Roster {
    pub(crate) fn new(store: Arc<Store>, routes: Arc<Routes>, terms: SettleTerms) -> Self {
        let roster = Roster {
            store,
            routes: routes.clone(),
            terms,
            known: RwLock::default(),
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

    /// Reads the list of kinds anew and serves those that are routed. Returns what is new.
    pub(crate) async fn refresh(&self, until: Instant) -> Result<Vec<Arc<Served>>> {
        let kinds = self.store.kinds(until).await?;
        Ok(kinds.iter().filter_map(|kind| self.add(kind)).collect())
    }

    /// Serves a kind if a route matches it. Returns it if it is new.
    pub(crate) fn add(&self, kind: &Kind) -> Option<Arc<Served>> {
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
            return None;
        }
        let mut known = self.known.write().expect("no panic while held");
        if known.by_kind.contains_key(kind) {
            return None;
        }
        let adopts = routes
            .iter()
            .any(|route| self.routes.routes[*route].adopts.is_some());
        let ledger = match adopts {
            true => self.store.adopting_ledger(kind),
            false => self.store.ledger(kind),
        };
        // Opened here, so that its lanes run on the engine's thread and not on the handlers'.
        let settles = Outbox::new(ledger.clone(), self.terms.clone());
        settles.open();
        let served = Arc::new(Served {
            ledger,
            coverage,
            is_routed,
            adopts,
            is_pulled: routes
                .iter()
                .any(|route| self.routes.routes[*route].pull.is_some()),
            routes,
            index: known.list.len(),
            settles,
        });
        known.list = known.list.iter().cloned().chain([served.clone()]).collect();
        known.by_kind.insert(kind.clone(), served.clone());
        Some(served)
    }

    /// All kinds served, in the order in which they came.
    pub(crate) fn all(&self) -> Arc<[Arc<Served>]> {
        self.known.read().expect("no panic while held").list.clone()
    }

    pub(crate) fn by_kind(&self, kind: &str) -> Option<Arc<Served>> {
        let known = self.known.read().expect("no panic while held");
        known.by_kind.get(kind).cloned()
    }

    /// Recognises the name of a job that may be ours. Foreign names, which may come by the
    /// million, cost a scan for colons and one look-up, and no allocation.
    pub(crate) fn recognise<'a>(&self, name: &'a [u8]) -> Option<(Arc<Served>, &'a str)> {
        let mut colons = name.iter().enumerate().filter(|(_, byte)| **byte == b':');
        let third = colons.nth(2)?.0;
        if colons.next().is_some() {
            let name = std::str::from_utf8(name).ok()?;
            let (kind, id) = self.store.names().of_own_trigger(name)?;
            return Some((self.by_kind(kind)?, id));
        }
        let kind = std::str::from_utf8(&name[..third]).ok()?;
        let served = self.by_kind(kind)?;
        let id = std::str::from_utf8(&name[third + 1..]).ok()?;
        (!id.is_empty()).then_some((served, id))
    }
}

impl Served {
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
        roster.by_kind(kind).unwrap()
    }
}
