//! Looks at the keys that something happened to.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::expired::Expired;
use super::hearing::Hearing;
use super::names::Names;
use super::others::Others;
use crate::error::{Error, ErrorKind, Result};
use crate::handler::MissingKey;
use crate::key::{JobKey, Kind};
use crate::settings::LONGEST_SLEEP;
use crate::store::{Answered, Store, Why, Word};
use crate::worker::instances::Instances;
use crate::worker::roster::{Roster, Served};

/// How many keys one call looks at.
pub(super) const AT_ONCE: usize = 64;

/// After how long the second in rank looks, in case that the first is gone. What happened to a
/// key meanwhile needs one look.
const STAND_IN: Duration = Duration::from_millis(50);

/// How long names of a ledger gather after a call that was not full, counted from its beginning.
/// To look at a key alone costs Redis seven times as much as to look at it among others.
const GATHER: Duration = Duration::from_millis(10);

/// How long a ledger is left alone after a fault.
pub(super) const AFTER_FAULT: Duration = Duration::from_millis(200);

/// How long a call may take.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// Brings the ledgers of this worker into line with the keys that it adopts.
pub(crate) struct Adopter {
    pub(super) store: Arc<Store>,
    roster: Arc<Roster>,
    pub(super) instances: Arc<Instances>,
    /// How many bytes a payload may have.
    pub(super) payload_limit: usize,
    /// By the place of the kind in the roster.
    names: Mutex<HashMap<usize, Names>>,
    others: Others,
    told: Notify,
    /// Told after each call.
    landed: Notify,
    /// That there are keys which cannot be adopted for their names was said.
    is_named: AtomicBool,
    pub(super) hearing: Arc<Hearing>,
    /// Of those whose jobs are cancelled if they are missing and did not expire.
    pub(super) expired: Expired,
}

/// Keys of one ledger that are looked at in one call.
struct Batch {
    served: Arc<Served>,
    items: Vec<(JobKey, Why)>,
}

/// What became of one call.
struct Landing {
    batch: Batch,
    answers: Result<Vec<Answered>>,
}

impl Adopter {
    pub(crate) fn new(
        store: Arc<Store>,
        roster: Arc<Roster>,
        instances: Arc<Instances>,
        hearing: Arc<Hearing>,
        payload_limit: usize,
    ) -> Arc<Self> {
        Arc::new(Adopter {
            store,
            roster,
            instances,
            payload_limit,
            names: Mutex::default(),
            others: Others::default(),
            told: Notify::new(),
            landed: Notify::new(),
            is_named: AtomicBool::new(false),
            hearing,
            expired: Expired::default(),
        })
    }

    /// What the keys look like that something may happen to.
    pub(crate) fn globs(&self) -> impl Iterator<Item = String> + use<> {
        self.roster.routes().adopted_keys().into_iter()
    }

    /// This happened to a key that matches one of the globs. Returns the kind if it is new here.
    pub(crate) fn hear(&self, key: &str, event: &[u8]) -> Option<Arc<Served>> {
        let why = match event {
            b"expired" => {
                self.hear_expired(key);
                return None;
            }
            // It takes its job along no more than an evicted trigger does.
            b"evicted" => return None,
            b"del" | b"rename_from" | b"move_from" => Why::Gone,
            _ => Why::Seen,
        };
        let why = match self.hearing.demotions() {
            Some(_) => why,
            None => Why::Seen,
        };
        let key = JobKey::parse(key)
            .inspect_err(|error| self.say_of_name(key, error))
            .ok()?;
        self.missing(&key)?;
        let new = self.meet(key.kind());
        let served = self.roster.by_key(key.kind(), key.id())?;
        self.look_in_turn(&served, key.id(), why);
        new
    }

    /// A key that looks like those of a route cannot be one of a job. Said once: there may be many.
    fn say_of_name(&self, key: &str, error: &Error) {
        if !self.is_named.swap(true, Ordering::Relaxed) {
            tracing::warn!(key, %error, "a plain key is not adopted, and its like are not either");
        }
    }

    /// All hear of it, and two look.
    fn look_in_turn(&self, served: &Arc<Served>, id: &str, why: Why) {
        let rank = self.instances.rank(served, id);
        if rank.claims() {
            self.look_at(served, id, why, Instant::now());
        } else if rank.stands_in() {
            self.look_at(served, id, why, Instant::now() + STAND_IN);
        } else {
            self.others.keep(served, id, why);
        }
    }

    /// An instance is gone: it, and who stands in for it, may have been gone for a while.
    pub(crate) fn somebody_went(&self) {
        for (served, id, why) in self.others.take() {
            self.look_in_turn(&served, &id, why);
        }
    }

    /// There are these keys. Returns when those that are adopted have been looked at, so that
    /// whoever goes on behind them misses none; or when one ledger cannot take them, and the rest
    /// shall not wait for it. Whether there was room for all.
    ///
    /// # Errors
    /// If they are to be found again.
    pub(super) async fn find(&self, keys: &[String]) -> Result<bool> {
        let mut found: HashMap<usize, Batch> = HashMap::new();
        let keys = keys.iter().map(|key| JobKey::parse(key.as_str()));
        for key in keys.filter_map(std::result::Result::ok) {
            if self.missing(&key).is_none() {
                continue;
            }
            self.meet(key.kind());
            let Some(served) = self.roster.by_key(key.kind(), key.id()) else {
                continue;
            };
            let batch = found.entry(served.index).or_insert_with(|| Batch {
                served,
                items: Vec::new(),
            });
            batch.items.push((key, Why::Seen));
        }
        let mut fit = true;
        for Batch { served, mut items } in found.into_values() {
            let mut is_new = true;
            while !items.is_empty() {
                let rest = items.split_off(items.len().min(AT_ONCE));
                let batch = Batch {
                    served: served.clone(),
                    items,
                };
                let Landing { batch, answers } = self.call(batch, is_new).await;
                is_new = false;
                items = rest;
                match answers {
                    Ok(answers) => {
                        // What is behind large values; or what a full server has no room for, which
                        // is refused when it comes alone.
                        let all = batch.items.into_iter().zip(answers);
                        let unread = all.filter(|(_, it)| it.answer == Word::Unread);
                        items.extend(unread.map(|(item, _)| item));
                    }
                    Err(error) if error.kind() == ErrorKind::Full => fit = false,
                    Err(error) if error.is_retryable() => return Err(error),
                    answers => self.land(Landing { batch, answers }),
                }
            }
        }
        Ok(fit)
    }

    /// Returns whether there is room for more names of this ledger, when there is, or after a
    /// while.
    pub(super) async fn has_room(&self, served: &Served) -> bool {
        let has_room = async {
            loop {
                let landed = self.landed.notified();
                let has_room = {
                    let names = self.names.lock().expect("no panic while held");
                    names.get(&served.index).is_none_or(Names::have_room)
                };
                if has_room {
                    return;
                }
                landed.await;
            }
        };
        timeout(PATIENCE, has_room).await.is_ok()
    }

    /// Whether a missing key may mean that a job of this kind is cancelled.
    pub(super) fn cancels_missing(&self, served: &Served) -> bool {
        let routes = &self.roster.routes().routes;
        let cancels = |route: &usize| routes[*route].adopts == Some(MissingKey::Cancel);
        served.routes.iter().any(cancels)
    }

    /// This key expired. Where a missing key can mean that its job is cancelled, that is noted at
    /// once, since the job may begin later, and where nobody heard it. Elsewhere it is looked at if
    /// its job is not claimed soon: if it was brought forward and expired before anybody looked,
    /// the job is not known to be due.
    fn hear_expired(&self, key: &str) {
        let Ok(key) = JobKey::parse(key) else {
            return;
        };
        let served = self.roster.by_key(key.kind(), key.id());
        let (Some(missing), Some(served)) = (self.missing(&key), served) else {
            return;
        };
        if missing == MissingKey::Cancel {
            self.expired.hear(&key);
            self.look_in_turn(&served, key.id(), Why::Over);
        } else if self.instances.rank(&served, key.id()).claims() {
            let soon = Instant::now() + STAND_IN;
            self.look_at(&served, key.id(), Why::Over, soon);
        } else {
            self.others.keep(&served, key.id(), Why::Over);
        }
    }

    /// These jobs were claimed.
    pub(crate) fn claimed<'a>(&self, served: &Served, ids: impl Iterator<Item = &'a str>) {
        if !served.adopts {
            return;
        }
        let mut names = self.names.lock().expect("no panic while held");
        if let Some(names) = names.get_mut(&served.index) {
            ids.for_each(|id| names.forget_expired(id));
        }
    }

    /// A job was not due although its key expired: that may have been brought forward.
    pub(crate) fn expired(&self, served: &Served, id: &str) {
        if served.adopts {
            self.look_at(served, id, Why::Over, Instant::now());
        }
    }

    /// What it means if the key is missing; nothing if it is not adopted here.
    pub(super) fn missing(&self, key: &JobKey) -> Option<MissingKey> {
        let routes = self.roster.routes();
        routes.routes[routes.table.find(key)?].adopts
    }

    fn meet(&self, kind: &str) -> Option<Arc<Served>> {
        match self.roster.shards(kind).is_empty() {
            false => None,
            true => self.roster.add(&Kind::parse(kind).ok()?).into_iter().next(),
        }
    }

    pub(super) fn look_at(&self, served: &Served, id: &str, why: Why, at: Instant) {
        self.note(served, |names| names.add(id, why, at));
    }

    fn note(&self, served: &Served, add: impl FnOnce(&mut Names) -> bool) {
        let mut names = self.names.lock().expect("no panic while held");
        let fits = add(names.entry(served.index).or_default());
        drop(names);
        self.told.notify_one();
        if !fits {
            self.expired.is_not_noted();
            self.hearing.miss();
        }
    }

    /// Looks, for ever.
    pub(crate) async fn run(&self) {
        let mut flights = FuturesUnordered::new();
        // Those with a call under way, and those left alone.
        let mut busy: HashSet<usize> = HashSet::new();
        let mut registered: HashSet<usize> = HashSet::new();
        loop {
            self.hearing.look_for_demotion();
            let now = Instant::now();
            for batch in self.next(now, &busy) {
                busy.insert(batch.served.index);
                let is_new = registered.insert(batch.served.index);
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

    /// What to look at now, of each ledger without a call.
    fn next(&self, now: Instant, busy: &HashSet<usize>) -> Vec<Batch> {
        let ledgers = self.roster.all();
        let mut names = self.names.lock().expect("no panic while held");
        let idle = names.iter_mut().filter(|(index, _)| !busy.contains(index));
        let batches = idle.filter_map(|(index, names)| {
            let served = ledgers.get(*index)?;
            let taken = names.take(now, AT_ONCE).into_iter();
            let items: Vec<_> = taken
                .filter_map(|(id, why)| Some((served.key(&id)?, why)))
                .collect();
            let served = served.clone();
            (!items.is_empty()).then_some(Batch { served, items })
        });
        batches.collect()
    }

    fn next_time(&self, busy: &HashSet<usize>) -> Option<Instant> {
        let names = self.names.lock().expect("no panic while held");
        let idle = names.iter().filter(|(index, _)| !busy.contains(index));
        idle.filter_map(|(_, names)| names.next()).min()
    }

    /// One call. A kind is made known before its first job is stored.
    async fn call(&self, batch: Batch, is_new: bool) -> Landing {
        let Batch { served, items } = &batch;
        let until = Instant::now() + PATIENCE;
        let look = async {
            if is_new {
                self.store.register(served.ledger.kind(), until).await?;
            }
            served.ledger.adopt(items, self.payload_limit, until).await
        };
        let answers = look.await;
        served.ledger.note("adopt", &answers);
        let is_first = |it: &Answered| matches!(it.answer, Word::First(_));
        if answers.as_ref().is_ok_and(|all| all.iter().any(is_first)) && !is_new {
            // Somebody emptied the database, and its kind may be unknown.
            let registered = self.store.register(served.ledger.kind(), until).await;
            served.ledger.note("register", &registered);
        }
        Landing { batch, answers }
    }

    async fn look(&self, batch: Batch, is_new: bool) -> Landing {
        let began = Instant::now();
        let landing = self.call(batch, is_new).await;
        if landing.answers.is_err() {
            sleep(AFTER_FAULT).await;
        } else if landing.batch.items.len() < AT_ONCE {
            sleep(GATHER.saturating_sub(began.elapsed())).await;
        }
        landing
    }

    /// What was not looked at is looked at again.
    fn land(&self, landing: Landing) {
        let Landing { batch, answers } = landing;
        let Batch { served, items } = &batch;
        let is_replica = self.hearing.demotions().is_none();
        let answers = answers.unwrap_or_default();
        for (place, (key, why)) in items.iter().enumerate() {
            match answers.get(place).map(|answered| answered.answer) {
                None | Some(Word::Unread) => self.note(served, |names| {
                    let fits = names.put_back(key.id(), *why, Instant::now());
                    if is_replica {
                        // It may have been the one that announced it.
                        names.doubt();
                    }
                    fits
                }),
                Some(answer) => tracing::trace!(%key, ?why, ?answer, "adopted"),
            }
        }
    }
}
