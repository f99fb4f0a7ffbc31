//! Who looks at the keys of each server.

use std::sync::Arc;

use super::adopter::Adopter;
use super::search::KeySearch;
use crate::store::Store;
use crate::worker::instances::PeerTable;
use crate::worker::served::{ServedLedger, ServedLedgers};

/// One for each server: a key is on that of its ledger, and what is done to the keys of one is heard,
/// missed and searched for there, whatever becomes of the others.
pub(crate) struct Adopters(Vec<Arc<Adopter>>);

impl Adopters {
    pub(crate) fn new(
        store: &Arc<Store>,
        served_ledgers: &Arc<ServedLedgers>,
        instances: &Arc<PeerTable>,
        payload_limit: usize,
    ) -> Arc<Self> {
        let servers = store.members().into_iter();
        let adopters = servers.map(|server| {
            Adopter::new(
                store.clone(),
                server,
                served_ledgers.clone(),
                instances.clone(),
                payload_limit,
            )
        });
        Arc::new(Adopters(adopters.collect()))
    }

    /// That of the server with this place.
    pub(crate) fn at(&self, server: usize) -> &Arc<Adopter> {
        &self.0[server]
    }

    /// That of the server which has this ledger.
    pub(crate) fn of(&self, served: &ServedLedger) -> &Arc<Adopter> {
        self.at(served.ledger.server())
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Adopter>> {
        self.0.iter()
    }

    /// Whoever searches each of them.
    pub(crate) fn searches(&self) -> Vec<Arc<KeySearch>> {
        self.all().cloned().map(KeySearch::new).collect()
    }

    /// Whether keys are adopted at all.
    pub(crate) fn have_work(&self) -> bool {
        self.at(0).globs().next().is_some()
    }
}
