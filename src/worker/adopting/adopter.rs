//! The adopter: looks at keys that have changed, in batches for each ledger, and so updates the
//! ledgers to match the keys.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::coverage::{ChangeCoverage, ExpiredKeys};
use super::location::Strays;
use super::pending::{PeerEvents, PendingIds};
use crate::error::Result;
use crate::handler::MissingKey;
use crate::key::{JobKey, Kind};
use crate::settings::LONGEST_SLEEP;
use crate::store::{Answered, Server, Store, Why, Word};
use crate::worker::conditions::Conditions;
use crate::worker::instances::PeerTable;
use crate::worker::served::{ServedLedger, ServedLedgers};

/// How many keys one call looks at.
pub(super) const AT_ONCE: usize = 64;

/// How long names of a ledger gather after a call that was not full, counted from its start. A look
/// at a single key costs Redis seven times as much as a look at a key among others.
const GATHER: Duration = Duration::from_millis(10);

/// How long a ledger is left alone after a fault.
pub(super) const AFTER_FAULT: Duration = Duration::from_millis(200);

/// Time limit of one call.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// Updates the ledgers on one server to match the plain keys that the routes of this worker adopt
/// there.
pub(crate) struct Adopter {
    /// The store with all servers: the job of a key may be on another server.
    pub(super) store: Arc<Store>,
    /// The server whose keys it looks at.
    pub(super) server: Arc<Server>,
    pub(super) served_ledgers: Arc<ServedLedgers>,
    pub(super) instances: Arc<PeerTable>,
    /// Largest payload in bytes, for routes without a limit of their own.
    payload_limit: usize,
    /// The keys to look at, by the index of their ledger.
    pub(super) names: Mutex<HashMap<usize, Noted>>,
    /// Events of keys that other instances have to look at, kept in case those instances are gone.
    pub(super) peer_events: PeerEvents,
    /// Notified of each new name.
    told: Notify,
    /// Notified after each call.
    landed: Notify,
    /// Keys whose jobs belong to another server.
    pub(super) strays: Strays,
    /// The reported problems of the server.
    pub(super) conditions: Arc<Conditions>,
    /// Tracks how completely changes of the keys are heard.
    pub(super) hearing: Arc<ChangeCoverage>,
    /// Expired keys, of routes where a missing key cancels its job.
    pub(super) expired: ExpiredKeys,
}

/// The keys of one ledger that are to be looked at.
pub(super) struct Noted {
    served: Arc<ServedLedger>,
    /// Their ids, with the reason and the time of each look.
    pub(super) names: PendingIds,
}

/// Keys of one ledger that one call looks at.
pub(super) struct KeyBatch {
    /// The ledger that the names were noted with; a resharding may move their jobs to another one.
    pub(super) served: Arc<ServedLedger>,
    /// The keys, with the reason for each look.
    pub(super) items: Vec<(JobKey, Why)>,
}

/// The answer to one call; its batch comes back with it.
pub(super) struct AdoptReply {
    pub(super) batch: KeyBatch,
    /// One answer for each item, in order; an error if none was looked at.
    pub(super) answers: Result<Vec<Answered>>,
}

impl Adopter {
    /// An adopter without names yet. `payload_limit` is in bytes.
    pub(crate) fn new(
        store: Arc<Store>,
        server: Arc<Server>,
        served_ledgers: Arc<ServedLedgers>,
        instances: Arc<PeerTable>,
        conditions: Arc<Conditions>,
        payload_limit: usize,
    ) -> Arc<Self> {
        Arc::new(Adopter {
            store,
            served_ledgers,
            instances,
            payload_limit,
            names: Mutex::default(),
            peer_events: PeerEvents::default(),
            told: Notify::new(),
            landed: Notify::new(),
            strays: Strays::default(),
            conditions,
            hearing: Arc::new(ChangeCoverage::new(server.clone())),
            server,
            expired: ExpiredKeys::default(),
        })
    }

    /// Tracks how completely changes of the keys are heard.
    pub(crate) fn hearing(&self) -> &Arc<ChangeCoverage> {
        &self.hearing
    }

    /// Redis patterns of the keys that the routes adopt; none if no route adopts keys.
    pub(crate) fn globs(&self) -> impl Iterator<Item = String> + use<> {
        self.served_ledgers.routes().adopted_keys().into_iter()
    }

    /// Waits until there is room for more names of this ledger. Returns `false` if that takes
    /// longer than [`PATIENCE`].
    pub(super) async fn has_room(&self, served: &ServedLedger) -> bool {
        let has_room = async {
            loop {
                let landed = self.landed.notified();
                let has_room = {
                    let names = self.names.lock().expect("no panic while held");
                    let noted = names.get(&served.index);
                    noted.is_none_or(|noted| noted.names.have_room())
                };
                if has_room {
                    return;
                }
                landed.await;
            }
        };
        timeout(PATIENCE, has_room).await.is_ok()
    }

    /// Whether a missing key can cancel a job of this kind.
    pub(super) fn cancels_missing(&self, served: &ServedLedger) -> bool {
        let routes = &self.served_ledgers.routes().routes;
        let cancels = |route: &usize| routes[*route].adopts == Some(MissingKey::Cancel);
        served.routes.iter().any(cancels)
    }

    /// The meaning of a missing key for its job; `None` if no route here adopts the key.
    pub(super) fn missing(&self, key: &JobKey) -> Option<MissingKey> {
        let routes = self.served_ledgers.routes();
        routes.routes[routes.table.find(key)?].adopts
    }

    /// Largest payload of this key, in bytes.
    pub(super) fn most(&self, key: &JobKey) -> usize {
        let routes = self.served_ledgers.routes();
        let route = routes.table.find(key);
        let limit = route.and_then(|route| routes.routes[route].payload_limit);
        limit.unwrap_or(self.payload_limit)
    }

    /// Serves all known shards of this kind. Returns the new ledgers.
    pub(super) fn meet(&self, kind: &str) -> Vec<Arc<ServedLedger>> {
        let wanted = usize::from(self.store.layout_of(kind).ledgers());
        if self.served_ledgers.shards(kind).len() >= wanted {
            return Vec::new();
        }
        Kind::parse(kind).map_or_else(|_| Vec::new(), |kind| self.served_ledgers.add(&kind))
    }

    /// Plans a look at a key, no sooner than `at`.
    pub(super) fn look_at(&self, served: &Arc<ServedLedger>, id: &str, why: Why, at: Instant) {
        self.note(served, |names| names.add(id, why, at));
    }

    /// Adds a name. If there is no room, the search has to find it.
    fn note(&self, served: &Arc<ServedLedger>, add: impl FnOnce(&mut PendingIds) -> bool) {
        let mut names = self.names.lock().expect("no panic while held");
        let noted = names.entry(served.index).or_insert_with(|| Noted {
            served: served.clone(),
            names: PendingIds::default(),
        });
        let fits = add(&mut noted.names);
        drop(names);
        self.told.notify_one();
        if !fits {
            self.expired.is_not_noted();
            self.hearing.miss();
        }
    }

    /// Looks at keys, for ever.
    pub(crate) async fn run(&self) {
        tokio::join!(self.look_at_names(), self.look_after_strays());
    }

    /// Sends the calls of all ledgers, one at a time for each.
    async fn look_at_names(&self) {
        let mut flights = FuturesUnordered::new();
        // Ledgers with a call under way, or in the pause after one.
        let mut busy: HashSet<usize> = HashSet::new();
        let mut registered: HashMap<usize, Arc<ServedLedger>> = HashMap::new();
        loop {
            self.hearing.look_for_demotion();
            self.look_for_layouts();
            let now = Instant::now();
            registered.retain(|_, served| !served.is_forgotten());
            for batch in self.next(now, &busy) {
                busy.insert(batch.served.index);
                let known = registered.insert(batch.served.index, batch.served.clone());
                let is_new = known.is_none();
                flights.push(self.look(batch, is_new));
            }
            let next = self.next_time(&busy);
            let wait = next.map_or(LONGEST_SLEEP, |at| at.saturating_duration_since(now));
            tokio::select! {
                () = self.told.notified() => {}
                () = sleep(wait) => {}
                Some(landing) = flights.next() => {
                    let index = landing.batch.served.index;
                    busy.remove(&index);
                    if landing.answers.is_err() {
                        registered.remove(&index);
                    }
                    self.land(landing);
                    self.landed.notify_one();
                }
            }
        }
    }

    /// The next batch of each ledger that is not busy.
    fn next(&self, now: Instant, busy: &HashSet<usize>) -> Vec<KeyBatch> {
        let mut names = self.names.lock().expect("no panic while held");
        // A name that was heard before its kind was dropped makes the kind known again.
        names.retain(|_, noted| !noted.served.is_forgotten() || noted.names.next().is_some());
        let idle = names.iter_mut().filter(|(index, _)| !busy.contains(index));
        let batches = idle.filter_map(|(_, Noted { served, names })| {
            let taken = names.take(now, AT_ONCE).into_iter();
            let items: Vec<_> = taken
                .filter_map(|(id, why)| Some((served.key(&id)?, why)))
                .collect();
            let served = served.clone();
            (!items.is_empty()).then_some(KeyBatch { served, items })
        });
        batches.collect()
    }

    /// The time of the first look in a ledger that is not busy.
    fn next_time(&self, busy: &HashSet<usize>) -> Option<Instant> {
        let names = self.names.lock().expect("no panic while held");
        let idle = names.iter().filter(|(index, _)| !busy.contains(index));
        idle.filter_map(|(_, noted)| noted.names.next()).min()
    }

    /// Sends one call. If `is_new`, it makes the kind known first, before the first job is stored.
    pub(super) async fn call(&self, batch: KeyBatch, is_new: bool) -> AdoptReply {
        let KeyBatch { served, items } = &batch;
        let look = async {
            if is_new {
                self.make_known(served).await?;
            }
            self.adopt(served, items, Instant::now() + PATIENCE).await
        };
        let answers = look.await;
        served.ledger.note("adopt", &answers);
        let unlisted = |all: &Vec<Answered>| all.iter().find_map(|it| it.unlisted);
        if let Some(unlisted) = answers.as_ref().ok().and_then(unlisted) {
            let registered = self.make_known(served).await;
            served.ledger.note("register", &registered);
            if let Ok(true) = registered {
                let (kind, until) = (served.ledger.kind(), Instant::now() + PATIENCE);
                let told = self.store.take_mark_off(kind, unlisted, until).await;
                served.ledger.note("register", &told);
            }
        }
        AdoptReply { batch, answers }
    }

    /// Adds the kind to the lists of all servers. A new kind starts with one ledger, so that a
    /// client that sets its keys knows on which of several servers.
    async fn make_known(&self, served: &ServedLedger) -> Result<bool> {
        // All servers are told; a server that is away delays the call.
        let until = Instant::now() + 2 * PATIENCE;
        self.store
            .register(served.ledger.kind(), Some(1), until)
            .await
    }

    /// Sends one call, and pauses: after a fault, or so that names gather.
    async fn look(&self, batch: KeyBatch, is_new: bool) -> AdoptReply {
        let began = Instant::now();
        let landing = self.call(batch, is_new).await;
        if landing.answers.is_err() {
            sleep(AFTER_FAULT).await;
        } else if landing.batch.items.len() < AT_ONCE {
            sleep(GATHER.saturating_sub(began.elapsed())).await;
        }
        landing
    }

    /// Takes in an answer. Keys that were not looked at are planned again.
    pub(super) fn land(&self, landing: AdoptReply) {
        let AdoptReply { batch, answers } = landing;
        let KeyBatch { served, items } = &batch;
        let is_replica = self.hearing.demotions().is_none();
        let answers = answers.unwrap_or_default();
        for (place, (key, why)) in items.iter().enumerate() {
            match answers.get(place).map(|answered| answered.answer) {
                None | Some(Word::Unread) => self.note(served, |names| {
                    let fits = names.put_back(key.id(), *why, Instant::now());
                    if is_replica {
                        // The announcement may have come from this server while it was a replica
                        // already.
                        names.doubt();
                    }
                    fits
                }),
                Some(answer) => tracing::trace!(%key, ?why, ?answer, "adopted"),
            }
        }
    }
}

#[cfg(test)]
impl Adopter {
    /// Takes the ids of this ledger whose keys are to be looked at.
    pub(crate) fn take_planned(&self, served: &ServedLedger) -> Vec<String> {
        let mut names = self.names.lock().unwrap();
        let noted = names.get_mut(&served.index);
        let taken = noted.map(|noted| noted.names.take(Instant::now(), AT_ONCE));
        taken.into_iter().flatten().map(|(id, _)| id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::SettleTerms;
    use crate::error::{Error, ErrorKind};
    use crate::names::Names;
    use crate::router::Router;
    use crate::worker::description::describe;

    /// An adopter of a Redis that is never called.
    fn adopter() -> Arc<Adopter> {
        let names = Names::new("keyfall");
        let store = Store::new("redis://127.0.0.1:1", names, &Default::default()).unwrap();
        let router: Router = Router::new().route("a:b:c:*", async || {});
        let routes = Arc::new(router.finish().unwrap());
        let instances = PeerTable::new(&describe(&routes, 256), 1).unwrap();
        let terms = SettleTerms::at_once(Default::default());
        let served_ledgers = Arc::new(ServedLedgers::new(store.clone(), routes, terms));
        let server = store.servers()[0].clone();
        let conditions = Arc::default();
        Adopter::new(
            store,
            server,
            served_ledgers,
            Arc::new(instances),
            conditions,
            1024,
        )
    }

    #[tokio::test]
    async fn keys_that_were_not_looked_at_are_planned_again() {
        let adopter = adopter();
        let served = adopter.served_ledgers.shards("a:b:c")[0].clone();
        let unread = || Answered::of(Word::Unread);
        let failed = || Err(Error::new(ErrorKind::Unavailable, "Redis is away"));
        for (answers, left) in [
            (failed(), vec!["1", "2"]),
            (Ok(vec![unread(), unread()]), vec!["1", "2"]),
            (Ok(vec![Answered::of(Word::Same)]), vec!["2"]),
            (Ok(vec![Answered::of(Word::Same), unread()]), vec!["2"]),
        ] {
            for id in ["1", "2"] {
                adopter.look_at(&served, id, Why::Seen, Instant::now());
            }
            let batch = adopter.next(Instant::now(), &HashSet::new()).pop().unwrap();
            adopter.land(AdoptReply { batch, answers });
            let again = adopter.next(Instant::now(), &HashSet::new()).pop().unwrap();
            let ids: Vec<_> = again.items.iter().map(|(key, _)| key.id()).collect();
            assert_eq!(ids, left);
        }
    }
}
