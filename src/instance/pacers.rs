//! The order of the live instances in pacing a ledger. The instances compute it for themselves, and
//! clients to show it.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::{Description, Takes};
use crate::routing::Coverage;

/// The seed of all hashes of the instance with this id.
pub(crate) fn seed_of(id: &str) -> u64 {
    xxh3_64_with_seed(id.as_bytes(), 0)
}

/// The rank of an instance in pacing a ledger: the highest paces it, the next stands by. Instances
/// that hear events come first. The hash is by ledger, so that several instances share the shards
/// of a kind.
pub(crate) fn pacing_rank(ledger: &str, seed: u64, hears: bool) -> (bool, u64) {
    let seed = xxh3_64_with_seed(ledger.as_bytes(), seed);
    (hears, xxh3_64_with_seed(b"pacer", seed))
}

/// The live instances as pacers.
pub(crate) struct Pacers {
    /// The different descriptions: instances of one deployment have the same.
    takes: Vec<Takes>,
    peers: Vec<PacingPeer>,
}

/// A live instance.
struct PacingPeer {
    id: String,
    seed: u64,
    hears: bool,
    /// The index of its description.
    takes: usize,
}

/// The live instances that take jobs of one kind.
pub(crate) struct KindPacers<'a>(Vec<&'a PacingPeer>);

impl Pacers {
    /// Reads the live instances: the id, the room and the description of each. An instance with a
    /// description of an unknown form is left out, as the other instances leave it out.
    pub(crate) fn new<'a>(live: impl IntoIterator<Item = (&'a str, &'a str, &'a str)>) -> Self {
        let (mut takes, mut texts, mut peers) = (Vec::new(), Vec::new(), Vec::new());
        for (id, room, text) in live {
            let known = texts.iter().position(|known: &&str| *known == text);
            let index = known.or_else(|| {
                let description = serde_json::from_str::<Description>(text).ok()?;
                takes.push(description.takes().ok()?);
                texts.push(text);
                Some(takes.len() - 1)
            });
            peers.extend(index.map(|takes| PacingPeer {
                seed: seed_of(id),
                hears: room.ends_with('h'),
                id: id.to_owned(),
                takes,
            }));
        }
        Pacers { takes, peers }
    }

    /// The instances that take jobs of this kind: those with a route for some of them, or else
    /// those with a fallback.
    pub(crate) fn of_kind(&self, kind: &str) -> KindPacers<'_> {
        let covers = |takes: &Takes| takes.coverage(kind) != Coverage::None;
        let routed: Vec<bool> = self.takes.iter().map(covers).collect();
        let is_routed = routed.contains(&true);
        let takes_some = |peer: &&PacingPeer| match is_routed {
            true => routed[peer.takes],
            false => self.takes[peer.takes].fallback.is_some(),
        };
        KindPacers(self.peers.iter().filter(takes_some).collect())
    }
}

impl<'a> KindPacers<'a> {
    /// The ids of the instance that paces the ledger with this name, and of the one that stands by.
    pub(crate) fn first_two(&self, ledger: &str) -> [Option<&'a str>; 2] {
        let mut best: [Option<((bool, u64), &str)>; 2] = [None, None];
        for peer in &self.0 {
            let this = Some((pacing_rank(ledger, peer.seed, peer.hears), &*peer.id));
            if this > best[0] {
                best = [this, best[0]];
            } else if this > best[1] {
                best[1] = this;
            }
        }
        best.map(|one| one.map(|(_, id)| id))
    }
}
