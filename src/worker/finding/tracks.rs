//! Tracks: the state that the pacer and the reconciler keep for each served ledger.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::worker::served::{ServedLedger, ServedLedgers};

/// The state of an actor for one ledger.
pub(super) trait OfLedger {
    fn served(&self) -> &ServedLedger;
}

/// The states of all served ledgers, by ledger index. A state that is `None` is taken out for a
/// step, and comes back with [`put_back`](Self::put_back).
pub(super) struct Tracks<T> {
    by_index: BTreeMap<usize, Option<T>>,
    /// How many ledgers were ever met: the next unknown index.
    met: usize,
}

impl<T> Default for Tracks<T> {
    fn default() -> Self {
        Tracks {
            by_index: BTreeMap::new(),
            met: 0,
        }
    }
}

impl<T: OfLedger> Tracks<T> {
    /// Adds new ledgers, with the state that `new` gives, and drops forgotten ones.
    pub(super) fn meet(
        &mut self,
        served_ledgers: &ServedLedgers,
        new: impl Fn(Arc<ServedLedger>) -> T,
    ) {
        let is_forgotten = |track: &T| track.served().is_forgotten();
        self.by_index
            .retain(|_, track| !track.as_ref().is_some_and(is_forgotten));
        for served in served_ledgers.all_behind(self.met) {
            self.met = served.index + 1;
            self.by_index.insert(served.index, Some(new(served)));
        }
    }

    /// The states that are not taken out.
    pub(super) fn at_rest(&mut self) -> impl Iterator<Item = &mut T> {
        self.by_index.values_mut().flatten()
    }

    /// All places; a state can be taken from each.
    pub(super) fn places(&mut self) -> impl Iterator<Item = &mut Option<T>> {
        self.by_index.values_mut()
    }

    /// Puts a state back after its step, unless its ledger was forgotten meanwhile.
    pub(super) fn put_back(&mut self, track: T) {
        let index = track.served().index;
        match track.served().is_forgotten() {
            true => drop(self.by_index.remove(&index)),
            false => drop(self.by_index.insert(index, Some(track))),
        }
    }

    /// Whether the ledger with this index is served.
    pub(super) fn have(&self, index: usize) -> bool {
        self.by_index.contains_key(&index)
    }
}
