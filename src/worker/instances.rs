//! Which instances live, and which of them is to take a job or to pace a ledger.
//!
//! Every instance hears of every job. That one of them claims it, and not all, is agreed
//! without a word: each ranks all that live by a hash of instance and job (rendezvous
//! hashing, <https://en.wikipedia.org/wiki/Rendezvous_hashing>), and claims what it comes
//! first for. Where they disagree, because one has just come or gone, two ask or none does,
//! and the ledger still gives the job to one: the ranking only spares work.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Instant;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::served::ServedLedger;
use crate::instance::{Description, Takes};
use crate::key::JobKey;
use crate::router::Routes;
use crate::routing::Coverage;
use crate::settings::LATELY;
use crate::store::{Alive, Ledger, unique_id};

/// This instance and its peers.
pub(crate) struct PeerTable {
    id: String,
    /// This instance, for as long as it knows of no other.
    me: Arc<Peer>,
    /// Of those who were seen on each server. One may be seen on one of them and not on another.
    views: RwLock<Vec<Arc<View>>>,
    /// How many views there were.
    number: AtomicU64,
    /// The instances that were seen lately, and when each was last.
    lately: Mutex<Vec<(Arc<Peer>, Instant)>>,
    /// Of each server: one of those that live says in a way not known here what it takes.
    riddles: Vec<AtomicBool>,
}

/// Who is to claim a job that was heard of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClaimRank {
    /// This instance, at once, and nobody else.
    Only,
    /// This one, at once.
    First,
    /// This one, if the first has not done so after a while.
    Second,
    /// Another one.
    Other,
}

/// An instance as the others know it.
pub(crate) struct Peer {
    id: String,
    seed: u64,
    takes: Arc<Takes>,
    /// Of its routes, in order: whether it can run another job.
    room: Vec<bool>,
    hears: bool,
}

/// The instances that lived at one time.
struct View {
    at: Instant,
    peers: Vec<Arc<Peer>>,
    /// By the place of the kind in the served ledgers. Filled as they are asked for.
    standings: Mutex<HashMap<usize, Arc<KindRanking>>>,
}

/// How the instances stand to one kind.
struct KindRanking {
    /// How many come before this instance to see to its ledger. The first one paces it.
    turn: usize,
    /// Those that take its jobs, unless the id decides.
    contenders: Option<Vec<Contender>>,
}

#[derive(Clone)]
struct Contender {
    is_me: bool,
    /// It hears events and can run another job.
    ready: bool,
    /// Of instance and kind.
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

/// What changed between two views.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PeerChange {
    pub(crate) came: bool,
    pub(crate) went: bool,
}

impl PeerTable {
    /// `servers` is how many there are.
    pub(crate) fn new(description: &Description, servers: usize) -> crate::error::Result<Self> {
        let id = unique_id();
        let takes = Arc::new(description.takes()?);
        let me = Arc::new(Peer::new(id.clone(), takes, ""));
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
            riddles: (0..servers).map(|_| AtomicBool::new(false)).collect(),
        })
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// The number of the view that answers are given by.
    pub(crate) fn number(&self) -> u64 {
        self.number.load(Ordering::Acquire)
    }

    /// Whether no other instance is known that might take jobs of this ledger.
    pub(crate) fn is_alone(&self, served: &ServedLedger) -> bool {
        self.view(served.ledger.server()).peers.len() == 1
    }

    /// What the instance with this id takes, if it is known.
    pub(crate) fn known(&self, id: &str) -> Option<Arc<Takes>> {
        let views = self.views();
        let mut peers = views.iter().flat_map(|view| &view.peers);
        Some(peers.find(|peer| peer.id == id)?.takes.clone())
    }

    /// Takes in who lives, as this server knows. `takes` says what each takes; who is not in it is not ranked.
    pub(crate) fn meet(
        &self,
        server: usize,
        seen: &[Alive],
        takes: &HashMap<String, Arc<Takes>>,
    ) -> PeerChange {
        let peers: Vec<Arc<Peer>> = seen
            .iter()
            .filter_map(|one| {
                let takes = match takes.get(&one.id) {
                    Some(takes) => takes.clone(),
                    None if one.id == self.id => self.me.takes.clone(),
                    None => return None,
                };
                Some(Arc::new(Peer::new(one.id.clone(), takes, &one.room)))
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

    /// Who is to claim the job of this kind with this id.
    pub(crate) fn rank(&self, served: &ServedLedger, id: &str) -> ClaimRank {
        self.rank_by(served, id, |contender| contender.ready)
    }

    /// Who is to look at the key of that job. It takes no room; and about what changes from beat to
    /// beat two may differ for a moment, and leave it to each other.
    pub(crate) fn rank_to_look(&self, served: &ServedLedger, id: &str) -> ClaimRank {
        self.rank_by(served, id, |_| true)
    }

    fn rank_by(
        &self,
        served: &ServedLedger,
        id: &str,
        ready: impl Fn(&Contender) -> bool,
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
        view.standing(served, &self.id).turn == 0
    }

    /// How many instances look before this one for what nobody announced. None does where each
    /// may take other jobs.
    pub(crate) fn turn(&self, served: &ServedLedger) -> usize {
        let view = self.view(served.ledger.server());
        let standing = view.standing(served, &self.id);
        let is_by_kind = standing.contenders.is_some();
        if is_by_kind { standing.turn } else { 0 }
    }

    /// The route of this instance that takes a job; its fallback only if no instance has another
    /// one.
    pub(crate) fn route_of(&self, key: &JobKey, routes: &Routes) -> Option<usize> {
        let by_fallback = || {
            let fallback = routes.fallback?;
            (!self.route(key)).then_some(fallback)
        };
        routes.table.find(key).or_else(by_fallback)
    }

    /// Whether an instance has a route for this job, or had one lately, fallbacks aside. As long
    /// as nobody knows it is as if one had: before the first look, and while one of them cannot
    /// be understood.
    pub(crate) fn route(&self, key: &JobKey) -> bool {
        self.some_lately(|peer| peer.takes.route_of(key).is_some())
    }

    /// The same of any job of this kind.
    pub(crate) fn route_kind(&self, kind: &str) -> bool {
        self.some_lately(|peer| peer.takes.coverage(kind) != Coverage::None)
    }

    /// Whether one of them has a route for all jobs of this kind.
    pub(crate) fn route_whole(&self, kind: &str) -> bool {
        self.some_lately(|peer| matches!(peer.takes.coverage(kind), Coverage::Whole(_)))
    }

    fn some_lately(&self, routes: impl Fn(&Peer) -> bool) -> bool {
        let lately = self.lately.lock().expect("no panic while held");
        let is_unknown = lately.is_empty() || self.has_riddles();
        is_unknown || lately.iter().any(|(peer, _)| routes(peer))
    }

    fn has_riddles(&self) -> bool {
        let mut riddles = self.riddles.iter();
        riddles.any(|riddle| riddle.load(Ordering::Relaxed))
    }

    /// An instance that is gone may be one that is replaced, or one that was held up together
    /// with Redis: what it has a route for is not up for others to grab at once.
    fn remember(&self, peers: &[Arc<Peer>]) {
        let now = Instant::now();
        let mut lately = self.lately.lock().expect("no panic while held");
        lately.retain(|(old, seen)| {
            now.duration_since(*seen) < LATELY && peers.iter().all(|peer| peer.id != old.id)
        });
        lately.extend(peers.iter().map(|peer| (peer.clone(), now)));
    }

    /// Whether it falls to this instance to report about a kind that nobody has a route for.
    pub(crate) fn reports(&self, kind: &str) -> bool {
        let hash = |peer: &&Arc<Peer>| xxh3_64_with_seed(kind.as_bytes(), peer.seed);
        let views = self.views();
        // One that is away knows only who lived when it was there.
        let newest = views.iter().map(|view| view.at).max();
        let is_new = |view: &&Arc<View>| newest.is_some_and(|newest| newest - view.at < LATELY);
        let peers = views.iter().filter(is_new).flat_map(|view| &view.peers);
        peers
            .max_by_key(hash)
            .is_some_and(|peer| peer.id == self.id)
    }

    fn view(&self, server: usize) -> Arc<View> {
        self.views.read().expect("no panic while held")[server].clone()
    }

    fn views(&self) -> Vec<Arc<View>> {
        self.views.read().expect("no panic while held").clone()
    }
}

impl Peer {
    /// `room` as it is published: `1` or `0` for each route, `h` or `d` for hearing or deaf.
    fn new(id: String, takes: Arc<Takes>, room: &str) -> Self {
        Peer {
            seed: xxh3_64_with_seed(id.as_bytes(), 0),
            room: room.bytes().map(|byte| byte == b'1').collect(),
            hears: room.ends_with('h'),
            id,
            takes,
        }
    }

    fn contender(&self, kind: &str, route: usize, me: &str) -> Contender {
        let has_room = self.room.get(route).copied().unwrap_or(false);
        Contender {
            is_me: self.id == me,
            ready: self.hears && has_room,
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

    /// As long as nobody has looked.
    fn first(me: Arc<Peer>) -> Self {
        View::of(vec![me])
    }

    fn standing(&self, served: &ServedLedger, me: &str) -> Arc<KindRanking> {
        let mut standings = self.standings.lock().expect("no panic while held");
        let standing = standings
            .entry(served.index)
            .or_insert_with(|| Arc::new(self.stand(&served.ledger, me)));
        standing.clone()
    }

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
        let standing = coverages.iter().filter(takes_some).map(|(peer, _)| {
            // By ledger, so that the shards of a kind are paced by several.
            let seed = xxh3_64_with_seed(ledger.subject().as_bytes(), peer.seed);
            let place = (peer.hears, xxh3_64_with_seed(b"pacer", seed));
            (place, peer.id == me)
        });
        let mut standing: Vec<_> = standing.collect();
        standing.sort_unstable_by(|one, other| other.cmp(one));
        let turn = standing.iter().position(|(_, is_me)| *is_me);
        let by_id = coverages
            .iter()
            .any(|(_, coverage)| *coverage == Coverage::Mixed);
        KindRanking {
            turn: turn.unwrap_or(usize::MAX),
            contenders: (!by_id).then_some(contenders),
        }
    }

    /// Those that take one job: who has a route for it; if nobody has, who has a fallback.
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

/// The highest hash comes first; who cannot run a job now comes behind all who can.
fn rank<'a>(
    contenders: impl Iterator<Item = &'a Contender>,
    id: &str,
    ready: impl Fn(&Contender) -> bool,
) -> ClaimRank {
    let mut best: [Option<((bool, u64), bool)>; 2] = [None, None];
    for contender in contenders {
        let hash = xxh3_64_with_seed(id.as_bytes(), contender.seed);
        let this = Some(((ready(contender), hash), contender.is_me));
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
