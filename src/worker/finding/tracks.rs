//! Where pacer and reconciler stand in each ledger that is served.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::worker::served::{ServedLedger, ServedLedgers};

/// What is known of one ledger.
pub(super) trait OfLedger {
    fn served(&self) -> &ServedLedger;
}

/// What is known of each, by its index. Those that are absent are being stepped.
pub(super) struct Tracks<T> {
    by_index: BTreeMap<usize, Option<T>>,
    /// How many ledgers were ever met.
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
    /// Takes in new ledgers, and forgets those that are served no more.
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

    /// Those that are not being stepped.
    pub(super) fn at_rest(&mut self) -> impl Iterator<Item = &mut T> {
        self.by_index.values_mut().flatten()
    }

    /// All places, from which one can be taken to be stepped.
    pub(super) fn places(&mut self) -> impl Iterator<Item = &mut Option<T>> {
        self.by_index.values_mut()
    }

    /// One has been stepped.
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
