//! Partial answers: a call on many jobs goes on when one of several servers is away, and names the
//! shards that it could not reach.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

use crate::error::{Error, ErrorKind, Result};
use crate::key::Kind;
use crate::store::{Away, Ledger, Store, is_of_absence};

/// The shards on one server that a call could not reach, where there are several servers. With a
/// single server, the call fails instead.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unseen {
    /// The address of the server, without credentials.
    pub server: String,
    /// The error of the server.
    pub error: String,
    /// The shards on this server that the call needed: their kinds and numbers.
    pub shards: Vec<(Kind, u16)>,
}

/// The kinds that were ever used, in order; from [`Client::kinds`](crate::Client::kinds).
/// Dereferences to a slice of kinds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Kinds {
    /// The kinds.
    pub kinds: Vec<Kind>,
    /// The servers that were away. Each server has the whole list, but a kind that was first used
    /// while a server was away is missing from the list of that server.
    pub unseen: Vec<Unseen>,
}

/// The servers that are away, as one call sees them, with the shards that it missed.
pub(crate) struct PartialView(BTreeMap<usize, UnseenServer>);

/// A server that is away, and the shards that were missed there.
struct UnseenServer {
    server: String,
    error: String,
    shards: BTreeSet<(Kind, u16)>,
}

impl PartialView {
    /// A view without these servers.
    pub(crate) fn new(store: &Store, away: Vec<Away>) -> Self {
        let missed = away.into_iter().map(|Away { place, error }| {
            let server = store.address_of_member(place);
            (place, UnseenServer::new(server, &error))
        });
        PartialView(missed.collect())
    }

    /// A view without the servers that were away when this call last asked all servers.
    pub(crate) fn now(store: &Store) -> Self {
        PartialView::new(store, store.away())
    }

    /// Whether the server of this ledger is known to be away. If so, the ledger is noted as missed.
    pub(crate) fn misses(&mut self, ledger: &Ledger) -> bool {
        let missed = self.0.get_mut(&ledger.server());
        missed.map(|missed| missed.note(ledger)).is_some()
    }

    /// Waits for the answer of this ledger; `None` if its server is away, and then the ledger is
    /// noted as missed.
    ///
    /// # Errors
    /// The error of the answer, if it has another cause, or there is a single server.
    pub(crate) async fn see<T>(
        &mut self,
        ledger: &Ledger,
        look: impl Future<Output = Result<T>>,
    ) -> Result<Option<T>> {
        if self.misses(ledger) {
            return Ok(None);
        }
        self.take(ledger, look.await)
    }

    /// As [`see`](Self::see), for an answer that has arrived.
    pub(crate) fn take<T>(&mut self, ledger: &Ledger, answer: Result<T>) -> Result<Option<T>> {
        match answer {
            Err(error) if ledger.is_one_of_many() && is_of_absence(&error) => {
                let missed = self.0.entry(ledger.server());
                let server = || UnseenServer::new(ledger.address_of_server(), &error);
                missed.or_insert_with(server).note(ledger);
                Ok(None)
            }
            answer => answer.map(Some),
        }
    }

    /// The servers that were away, for a report.
    pub(crate) fn unseen(self) -> Vec<Unseen> {
        let unseen = self.0.into_values().map(|missed| Unseen {
            server: missed.server,
            error: missed.error,
            shards: missed.shards.into_iter().collect(),
        });
        unseen.collect()
    }

    /// Fails if a server was away. For calls that must reach every server.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] with the name of one such server.
    pub(crate) fn all_done(self) -> Result<()> {
        let Some(missed) = self.0.into_values().next() else {
            return Ok(());
        };
        Err(Error::new(
            ErrorKind::Unavailable,
            format!(
                "this was done on the other servers, but not on {}: {}; make the call again when \
                 that server is back",
                missed.server, missed.error
            ),
        ))
    }
}

impl UnseenServer {
    fn new(server: String, error: &Error) -> Self {
        UnseenServer {
            server,
            error: error.to_string(),
            shards: BTreeSet::new(),
        }
    }

    /// Adds a missed ledger.
    fn note(&mut self, ledger: &Ledger) {
        let shard = (ledger.kind().clone(), ledger.place().shard);
        self.shards.insert(shard);
    }
}

impl Unseen {
    /// Adds the shards that another call missed to the same servers.
    pub(crate) fn merge(all: &mut Vec<Self>, more: &[Self]) {
        for one in more {
            match all.iter_mut().find(|known| known.server == one.server) {
                Some(known) => known.shards.extend(one.shards.iter().cloned()),
                None => all.push(one.clone()),
            }
        }
    }
}

impl Deref for Kinds {
    type Target = [Kind];

    fn deref(&self) -> &[Kind] {
        &self.kinds
    }
}

impl IntoIterator for Kinds {
    type Item = Kind;
    type IntoIter = std::vec::IntoIter<Kind>;

    fn into_iter(self) -> Self::IntoIter {
        self.kinds.into_iter()
    }
}
