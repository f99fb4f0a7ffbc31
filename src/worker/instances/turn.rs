//! The turn of a ledger: the instance that claims all jobs of the ledger that are announced, until
//! the next turn begins.
//!
//! Jobs that fall due together share a claim then, and later a settlement, which costs Redis a
//! fraction of a call for each. The pacer publishes the turns between its touches. Events and
//! messages of one server reach all instances in one order, so they agree on the turn of each job,
//! although none of them knows the time at which another one hears of it.
//!
//! On a cluster, events and messages come from different nodes in any order; there, and among
//! instances with few slots or of a version that does not know turns, the rank by job decides.

use super::PeerTable;
use crate::instance::seed_of;
use crate::worker::served::ServedLedger;

/// The hash of an instance's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InstanceHash(pub(super) u64);

/// The fewest slots with which instances take turns. With fewer, a claim has room for a few jobs
/// only, however many fall due together.
pub(super) const FEWEST_SLOTS: usize = 16;

/// The id of no instance, in messages.
pub(crate) const NOBODY: &str = "-";

/// An instance that takes turns on a ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TurnTaker {
    pub(crate) hash: InstanceHash,
    pub(crate) id: String,
    /// How many of its jobs can run at the same time.
    pub(crate) slots: usize,
    /// Whether it hears events and can run another job, by its last heartbeat.
    pub(super) ready: bool,
}

impl InstanceHash {
    /// The hash of the instance with this id.
    pub(crate) fn of(id: &str) -> Self {
        InstanceHash(seed_of(id))
    }
}

impl PeerTable {
    /// Takes in whose turn it is on a ledger from now on.
    pub(crate) fn turn_begins(&self, served: &ServedLedger, id: &str) {
        // `NOBODY` has a hash, too, and no instance has it.
        served.set_turn(InstanceHash::of(id).0);
    }

    /// The instance whose turn it is; `None` if the rank by job decides.
    pub(crate) fn turn_holder(&self, served: &ServedLedger) -> Option<InstanceHash> {
        let view = self.view(served.ledger.server());
        let standing = view.standing(served, &self.id);
        let turn = InstanceHash(served.turn());
        let mut takers = standing.takers.iter();
        takers.any(|taker| taker.hash == turn).then_some(turn)
    }

    /// Whether it is the turn of this instance.
    pub(crate) fn has_turn(&self, served: &ServedLedger) -> bool {
        self.turn_holder(served) == Some(self.me.hash())
    }

    /// The id of the instance with this hash, or [`NOBODY`] if it is not known any more.
    pub(crate) fn id_of(&self, served: &ServedLedger, taker: InstanceHash) -> String {
        let view = self.view(served.ledger.server());
        let mut peers = view.peers.iter();
        let peer = peers.find(|peer| peer.hash() == taker);
        peer.map_or_else(|| NOBODY.to_owned(), |peer| peer.id.clone())
    }

    /// The instance that gets the turn after this one: the next in the order of the ledger that is
    /// ready and not avoided. `None` if the instances take no turns, or there is no such instance.
    pub(crate) fn next_turn(
        &self,
        served: &ServedLedger,
        after: Option<InstanceHash>,
        is_avoided: impl Fn(InstanceHash) -> bool,
    ) -> Option<TurnTaker> {
        let view = self.view(served.ledger.server());
        let standing = view.standing(served, &self.id);
        let takers = &standing.takers;
        let place = takers.iter().position(|taker| Some(taker.hash) == after);
        let (before, behind) = takers.split_at(place.map_or(0, |place| place + 1));
        let mut next = behind.iter().chain(before);
        next.find(|taker| taker.ready && !is_avoided(taker.hash))
            .cloned()
    }

    /// Whether this instance still takes turns, and can run another job.
    pub(crate) fn is_ready(&self, served: &ServedLedger, taker: InstanceHash) -> bool {
        let view = self.view(served.ledger.server());
        let standing = view.standing(served, &self.id);
        let mut takers = standing.takers.iter();
        takers.any(|it| it.hash == taker && it.ready)
    }
}

#[cfg(test)]
impl TurnTaker {
    /// An instance with room.
    pub(crate) fn sample(id: &str, slots: usize) -> Self {
        TurnTaker {
            hash: InstanceHash::of(id),
            id: id.to_owned(),
            slots,
            ready: true,
        }
    }
}
