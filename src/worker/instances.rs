//! The peer table: the live instances, and which of them claims a job or paces a ledger.
//!
//! Every instance hears of every job, and the instances agree on the one that claims it. They take
//! [turns](turn), or each ranks all live instances by a hash of instance and job (rendezvous
//! hashing, <https://en.wikipedia.org/wiki/Rendezvous_hashing>), and claims the jobs for which it
//! comes first. When their views differ, because an instance has just come or gone, two instances
//! claim or none does, and the ledger still gives the job to one: the agreement only saves work.
//!
//! Only instances with a route for the job are ranked; if there is none, the instances with a
//! fallback. Instances that hear events and have room come before all others. If the first does not
//! claim a job in time, the pacer of the ledger gives it to the second; if the holder of the turn
//! does not, to the first of the others.
//!
//! The [heartbeat](super::heartbeat) fills the table, once for each server. Until the first beat,
//! an instance acts as if it were alone.

mod turn;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, RwLock};
use std::time::Instant;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::served::ServedLedger;
use crate::instance::{Description, Takes, pacing_rank};
use crate::key::JobKey;
use crate::router::Routes;
use crate::routing::Coverage;
use crate::settings::LATELY;
use crate::store::{Alive, Ledger, unique_id};
use turn::FEWEST_SLOTS;
pub(crate) use turn::{InstanceHash, NOBODY, TurnTaker};

/// An instance as the others see it.
pub(crate) struct PeerTable {
    id: String,
    /// This instance, for as long as it knows of no other.
    me: Arc<Peer>,
    /// For each server, the instances that were seen there. An instance may be seen on one server
    /// and not on another.
    views: RwLock<Vec<Arc<View>>>,
    /// Number of views so far.
    number: AtomicU64,
    /// The recently seen instances, with the time when each was seen last.
    lately: Mutex<Vec<(Arc<Peer>, Instant)>>,
    /// When this instance saw others first.
    begun: OnceLock<Instant>,
    /// For each server: whether the description of a live peer has an unknown format.
    riddles: Vec<AtomicBool>,
}

/// The rank of this instance for claiming a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClaimRank {
    /// No other instance can claim the job; this one claims it at once.
    Only,
    /// This instance claims the job at once.
    First,
    /// This instance claims the job if the first has not done so after a while.
    Second,
    /// Another instance claims the job.
    Other,
}

/// An instance as the others see it.
pub(crate) struct Peer {
    id: String,
    /// Hash of its id; the seed of all other hashes.
    seed: u64,
    /// The jobs that it takes, from its description.
    takes: Arc<Takes>,
    /// For each of its routes, in order: whether it can run another job.
    room: Vec<bool>,
    /// Whether it hears events.
    hears: bool,
    /// Whether a beat since this instance began has proved that it lives: it may have died shortly
    /// before.
    is_proven: bool,
}

/// The instances that were alive at one time on one server.
struct View {
    /// When the instances were seen.
    at: Instant,
    peers: Vec<Arc<Peer>>,
    /// Rankings by the index of the served ledger; computed on first use.
    standings: Mutex<HashMap<usize, Arc<KindRanking>>>,
}

/// The ranking of the instances for one ledger.
struct KindRanking {
    /// How many instances come before this one in pacing and sweeping the ledger. 0 paces it;
    /// `usize::MAX` if this instance takes none of its jobs.
    order: usize,
    /// The instances that take its jobs; `None` if that depends on the job's id.
    contenders: Option<Vec<Contender>>,
    /// The instances that take [turns](turn) in claiming its jobs, in their order; empty if they
    /// take none.
    takers: Vec<TurnTaker>,
}

/// An instance that can take jobs of a kind.
#[derive(Clone)]
struct Contender {
    /// Whether it is this instance.
    is_me: bool,
    /// Hash of its id.
    hash: InstanceHash,
    /// Whether it hears events and can run another job.
    ready: bool,
    /// As in [`Peer`].
    is_proven: bool,
    /// Whether its route adopts plain keys.
    adopts: bool,
    /// Hash of instance and kind; the seed of the hash of each id.
    seed: u64,
}

impl ClaimRank {
    /// Whether this instance claims a job as soon as it hears of it.
    pub(crate) fn claims(self) -> bool {
        matches!(self, ClaimRank::Only | ClaimRank::First)
    }

    /// Whether this instance claims a job that the first in rank should have claimed by now.
    pub(crate) fn stands_in(self) -> bool {
        matches!(self, ClaimRank::Only | ClaimRank::Second)
    }
}

/// The difference between two views.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PeerChange {
    /// At least one instance is new.
    pub(crate) came: bool,
    /// At least one instance is gone.
    pub(crate) went: bool,
}

impl PeerTable {
    /// A table that knows only this instance, under a new random id. `servers` is the number of
    /// servers.
    ///
    /// # Errors
    /// If a pattern of the description is invalid.
    pub(crate) fn new(description: &Description, servers: usize) -> crate::error::Result<Self> {
        let id = unique_id();
        let takes = Arc::new(description.takes()?);
        let me = Arc::new(Peer::new(id.clone(), takes, "", true));
        Ok(PeerTable {
            id,
            views: RwLock::new(
                (0..servers)
                    .map(|_| Arc::new(View::first(me.clone())))
                    .collect(),
            ),
            me,
            number: AtomicU64::new(0),
            lately: Mutex::default(),
            begun: OnceLock::new(),
            riddles: (0..servers).map(|_| AtomicBool::new(false)).collect(),
        })
    }

    /// The id of this instance.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// The number of the current views. It grows with each [`meet`](Self::meet), so that callers
    /// can cache answers.
    pub(crate) fn number(&self) -> u64 {
        self.number.load(Ordering::Acquire)
    }

    /// Whether no other instance is known on the server of this ledger.
    pub(crate) fn is_alone(&self, served: &ServedLedger) -> bool {
        self.view(served.ledger.server()).peers.len() == 1
    }

    /// The jobs that the instance with this id takes, if it is known.
    pub(crate) fn known(&self, id: &str) -> Option<Arc<Takes>> {
        let views = self.views();
        let mut peers = views.iter().flat_map(|view| &view.peers);
        Some(peers.find(|peer| peer.id == id)?.takes.clone())
    }

    /// Takes in the live instances, as this server lists them. `takes` has the jobs that each
    /// takes; an instance that is missing there is not ranked. Returns whether instances came or
    /// went.
    pub(crate) fn meet(
        &self,
        server: usize,
        seen: &[Alive],
        takes: &HashMap<String, Arc<Takes>>,
    ) -> PeerChange {
        let begun = self.begun.get_or_init(Instant::now).elapsed();
        let peers: Vec<Arc<Peer>> = seen
            .iter()
            .filter_map(|one| {
                let takes = match takes.get(&one.id) {
                    Some(takes) => takes.clone(),
                    None if one.id == self.id => self.me.takes.clone(),
                    None => return None,
                };
                let is_proven = one.id == self.id || one.age <= begun;
                let id = one.id.clone();
                Some(Arc::new(Peer::new(id, takes, &one.room, is_proven)))
            })
            .collect();
        self.riddles[server].store(peers.len() < seen.len(), Ordering::Relaxed);
        let old = self.view(server);
        let lacks = |peers: &[Arc<Peer>], id: &str| peers.iter().all(|peer| peer.id != id);
        let change = PeerChange {
            came: peers.iter().any(|peer| lacks(&old.peers, &peer.id)),
            went: old.peers.iter().any(|peer| lacks(&peers, &peer.id)),
        };
        self.remember(&peers);
        self.views.write().expect("no panic while held")[server] = Arc::new(View::of(peers));
        self.number.fetch_add(1, Ordering::Release);
        change
    }

    /// Whether this instance claims the job with this id, which was just announced: because it is
    /// its turn, or by its rank.
    pub(crate) fn claims(&self, served: &ServedLedger, id: &str) -> bool {
        match self.turn_holder(served) {
            Some(holder) => holder == self.me.hash(),
            None => self.rank(served, id).claims(),
        }
    }

    /// Whether this instance claims the job with this id, which another instance had to claim and
    /// has left to others.
    pub(crate) fn claims_after(&self, served: &ServedLedger, id: &str, left_by: &str) -> bool {
        let other = InstanceHash::of(left_by);
        let rank = self.rank_by(served, id, |contender| {
            (contender.hash != other).then_some(contender.ready)
        });
        rank.claims()
    }

    /// The rank of this instance for claiming the job with this id, where instances take no turns.
    pub(crate) fn rank(&self, served: &ServedLedger, id: &str) -> ClaimRank {
        self.rank_by(served, id, |contender| Some(contender.ready))
    }

    /// The rank of this instance for looking at the plain key of the job with this id. It ignores
    /// room: a look needs none, and room changes with every beat, so that two instances could leave
    /// a key to each other. An instance that begins does not rely on others until they have beaten
    /// since: after all instances were killed together, a key may be gone before it is known that
    /// the first two in rank are dead. An instance whose route adopts no keys looks at none.
    pub(crate) fn rank_to_look(&self, served: &ServedLedger, id: &str) -> ClaimRank {
        self.rank_by(served, id, |contender| {
            contender.adopts.then_some(contender.is_proven)
        })
    }

    /// The rank of this instance; `ready` tells which contenders come first, and `None` which are
    /// left out.
    fn rank_by(
        &self,
        served: &ServedLedger,
        id: &str,
        ready: impl Fn(&Contender) -> Option<bool>,
    ) -> ClaimRank {
        let view = self.view(served.ledger.server());
        if view.peers.len() == 1 {
            return ClaimRank::Only;
        }
        let standing = view.standing(served, &self.id);
        match &standing.contenders {
            Some(contenders) => rank(contenders.iter(), id, ready),
            None => match served.key(id) {
                Some(key) => rank(view.contenders_for(&key, &self.id).iter(), id, ready),
                None => ClaimRank::Other,
            },
        }
    }

    /// Whether this instance paces the ledger.
    pub(crate) fn paces(&self, served: &ServedLedger) -> bool {
        let view = self.view(served.ledger.server());
        view.standing(served, &self.id).order == 0
    }

    /// How many instances sweep this ledger before this one does. 0 if the job's id decides which
    /// instance takes a job: then another instance may not take the jobs that this one takes.
    pub(crate) fn sweep_order(&self, served: &ServedLedger) -> usize {
        let view = self.view(served.ledger.server());
        let standing = view.standing(served, &self.id);
        let is_by_kind = standing.contenders.is_some();
        if is_by_kind { standing.order } else { 0 }
    }

    /// The index of the route of this instance that takes a job. The fallback takes it only if no
    /// instance has another route for it.
    pub(crate) fn route_of(&self, key: &JobKey, routes: &Routes) -> Option<usize> {
        let by_fallback = || {
            let fallback = routes.fallback?;
            (!self.route(key)).then_some(fallback)
        };
        routes.table.find(key).or_else(by_fallback)
    }

    /// Whether an instance has a route for this job now, or had one recently, fallbacks aside.
    /// `true` also while this is unknown: before the first beat, and while the description of a
    /// peer cannot be read.
    pub(crate) fn route(&self, key: &JobKey) -> bool {
        self.some_lately(|peer| peer.takes.route_of(key).is_some())
    }

    /// Whether an instance has, or recently had, a route for any job of this kind, as
    /// [`route`](Self::route).
    pub(crate) fn route_kind(&self, kind: &str) -> bool {
        self.some_lately(|peer| peer.takes.coverage(kind) != Coverage::None)
    }

    /// Whether an instance has, or recently had, one route for all jobs of this kind, as
    /// [`route`](Self::route).
    pub(crate) fn route_whole(&self, kind: &str) -> bool {
        self.some_lately(|peer| matches!(peer.takes.coverage(kind), Coverage::Whole(_)))
    }

    /// Whether an instance has, or recently had, a fallback, as [`route`](Self::route).
    pub(crate) fn fallback(&self) -> bool {
        self.some_lately(|peer| peer.takes.fallback.is_some())
    }

    /// Whether `routes` holds for an instance that is alive or was seen within [`LATELY`]. `true`
    /// while this is unknown.
    fn some_lately(&self, routes: impl Fn(&Peer) -> bool) -> bool {
        let lately = self.lately.lock().expect("no panic while held");
        let is_unknown = lately.is_empty() || self.has_riddles();
        is_unknown || lately.iter().any(|(peer, _)| routes(peer))
    }

    /// Whether the description of a live peer cannot be read.
    fn has_riddles(&self) -> bool {
        let mut riddles = self.riddles.iter();
        riddles.any(|riddle| riddle.load(Ordering::Relaxed))
    }

    /// Updates the recently seen instances. An instance that is gone may be replaced soon, or was
    /// held up together with Redis: its jobs do not fall to fallbacks or burials at once.
    fn remember(&self, peers: &[Arc<Peer>]) {
        let now = Instant::now();
        let mut lately = self.lately.lock().expect("no panic while held");
        lately.retain(|(old, seen)| {
            now.duration_since(*seen) < LATELY && peers.iter().all(|peer| peer.id != old.id)
        });
        lately.extend(peers.iter().map(|peer| (peer.clone(), now)));
    }

    /// Whether this instance is the one that reports a kind without a route.
    pub(crate) fn reports(&self, kind: &str) -> bool {
        let hash = |peer: &&Arc<Peer>| xxh3_64_with_seed(kind.as_bytes(), peer.seed);
        let views = self.views();
        // The view of a server that is away is old.
        let newest = views.iter().map(|view| view.at).max();
        let is_new = |view: &&Arc<View>| newest.is_some_and(|newest| newest - view.at < LATELY);
        let peers = views.iter().filter(is_new).flat_map(|view| &view.peers);
        peers
            .max_by_key(hash)
            .is_some_and(|peer| peer.id == self.id)
    }

    /// The view of one server.
    fn view(&self, server: usize) -> Arc<View> {
        self.views.read().expect("no panic while held")[server].clone()
    }

    /// The views of all servers, by server number.
    fn views(&self) -> Vec<Arc<View>> {
        self.views.read().expect("no panic while held").clone()
    }
}

impl Peer {
    /// `room` is in its published form, as in [`Beat::room`](crate::store::Beat::room).
    fn new(id: String, takes: Arc<Takes>, room: &str, is_proven: bool) -> Self {
        Peer {
            seed: InstanceHash::of(&id).0,
            room: room
                .bytes()
                .take_while(|byte| *byte != b'/')
                .map(|byte| byte == b'1')
                .collect(),
            hears: room.ends_with('h'),
            id,
            takes,
            is_proven,
        }
    }

    /// The hash of its id.
    fn hash(&self) -> InstanceHash {
        InstanceHash(self.seed)
    }

    /// This peer as one that takes turns. It has no slots if it takes only some jobs of the kind.
    fn taker(&self, coverage: Coverage) -> TurnTaker {
        let route = match coverage {
            Coverage::Whole(route) => Some(route),
            Coverage::Mixed => None,
            Coverage::None => self.takes.fallback,
        };
        TurnTaker {
            hash: self.hash(),
            id: self.id.clone(),
            slots: route.map_or(0, |route| self.takes.slots(route)),
            ready: route.is_some_and(|route| self.is_ready(route)),
        }
    }

    /// Whether it hears events, and its route with this index can run another job.
    fn is_ready(&self, route: usize) -> bool {
        self.hears && self.room.get(route).copied().unwrap_or(false)
    }

    /// This peer as a contender for jobs of a kind, on the route with this index. Not ready if
    /// there is no such route.
    fn contender(&self, kind: &str, route: usize, me: &str) -> Contender {
        Contender {
            is_me: self.id == me,
            hash: self.hash(),
            ready: self.is_ready(route),
            is_proven: self.is_proven,
            adopts: self.takes.adopts(route),
            seed: xxh3_64_with_seed(kind.as_bytes(), self.seed),
        }
    }
}

impl View {
    fn of(peers: Vec<Arc<Peer>>) -> Self {
        View {
            at: Instant::now(),
            peers,
            standings: Mutex::default(),
        }
    }

    /// The view before the first beat: this instance alone.
    fn first(me: Arc<Peer>) -> Self {
        View::of(vec![me])
    }

    /// The ranking for a ledger, cached for the life of the view.
    fn standing(&self, served: &ServedLedger, me: &str) -> Arc<KindRanking> {
        let mut standings = self.standings.lock().expect("no panic while held");
        let standing = standings
            .entry(served.index)
            .or_insert_with(|| Arc::new(self.stand(&served.ledger, me)));
        standing.clone()
    }

    /// Computes the ranking for a ledger. `me` is the id of this instance.
    fn stand(&self, ledger: &Ledger, me: &str) -> KindRanking {
        let kind = ledger.kind().as_str();
        let coverages: Vec<(&Peer, Coverage)> = self
            .peers
            .iter()
            .map(|peer| (&**peer, peer.takes.coverage(kind)))
            .collect();
        let routed = coverages
            .iter()
            .any(|(_, coverage)| *coverage != Coverage::None);
        let contender = |(peer, coverage): &(&Peer, Coverage)| match coverage {
            Coverage::Whole(route) => Some(peer.contender(kind, *route, me)),
            Coverage::Mixed => Some(peer.contender(kind, usize::MAX, me)),
            Coverage::None if routed => None,
            Coverage::None => Some(peer.contender(kind, peer.takes.fallback?, me)),
        };
        let contenders: Vec<Contender> = coverages.iter().filter_map(contender).collect();
        let takes_some = |peer: &&(&Peer, Coverage)| contender(peer).is_some();
        let standing = coverages.iter().filter(takes_some).map(|(peer, coverage)| {
            let rank = pacing_rank(ledger.subject(), peer.seed, peer.hears);
            (rank, *peer, *coverage)
        });
        let mut standing: Vec<_> = standing.collect();
        standing.sort_unstable_by(|(one, ..), (other, ..)| other.cmp(one));
        let order = standing.iter().position(|(_, peer, _)| peer.id == me);
        let by_id = coverages
            .iter()
            .any(|(_, coverage)| *coverage == Coverage::Mixed);
        let takers = standing
            .iter()
            .map(|(_, peer, coverage)| peer.taker(*coverage));
        let takers: Vec<TurnTaker> = takers.collect();
        let take_turns = takers.len() > 1
            && takers.iter().all(|taker| taker.slots >= FEWEST_SLOTS)
            && !ledger.has_triggers_elsewhere();
        KindRanking {
            order: order.unwrap_or(usize::MAX),
            contenders: (!by_id).then_some(contenders),
            takers: if take_turns { takers } else { Vec::new() },
        }
    }

    /// The instances that take one job: the instances with a route for it; if there are none, the
    /// instances with a fallback.
    fn contenders_for(&self, key: &JobKey, me: &str) -> Vec<Contender> {
        let by_route = |peer: &Arc<Peer>| {
            let route = peer.takes.route_of(key)?;
            Some(peer.contender(key.kind(), route, me))
        };
        let by_fallback = |peer: &Arc<Peer>| {
            let route = peer.takes.fallback?;
            Some(peer.contender(key.kind(), route, me))
        };
        let routed: Vec<Contender> = self.peers.iter().filter_map(by_route).collect();
        if routed.is_empty() {
            return self.peers.iter().filter_map(by_fallback).collect();
        }
        routed
    }
}

/// Ranks by hash, highest first; contenders that are not ready come after all that are.
fn rank<'a>(
    contenders: impl Iterator<Item = &'a Contender>,
    id: &str,
    ready: impl Fn(&Contender) -> Option<bool>,
) -> ClaimRank {
    let mut best: [Option<((bool, u64), bool)>; 2] = [None, None];
    for contender in contenders {
        let Some(ready) = ready(contender) else {
            continue;
        };
        let hash = xxh3_64_with_seed(id.as_bytes(), contender.seed);
        let this = Some(((ready, hash), contender.is_me));
        if this > best[0] {
            best = [this, best[0]];
        } else if this > best[1] {
            best[1] = this;
        }
    }
    match best {
        [Some((_, true)), None] => ClaimRank::Only,
        [Some((_, true)), _] => ClaimRank::First,
        [_, Some((_, true))] => ClaimRank::Second,
        _ => ClaimRank::Other,
    }
}

#[cfg(test)]
mod tests;
