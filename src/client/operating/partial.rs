//! What a call on many jobs could not see, where there are several servers and one of them is away.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

use crate::error::{Error, ErrorKind, Result};
use crate::key::Kind;
use crate::store::{Away, Ledger, Store, is_of_absence};

/// What a call could not see, because one of several servers was away. With a single server, such a
/// call fails instead.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unseen {
    /// Where the server is; without credentials.
    pub server: String,
    /// Why it was not seen.
    pub error: String,
    /// The shards that it has of the kinds that the call was about, by their numbers.
    pub shards: Vec<(Kind, u16)>,
}

/// The kinds that were ever used, in order; from [`Client::kinds`](crate::Client::kinds). It can be
/// used as the slice that it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Kinds {
    /// The kinds.
    pub kinds: Vec<Kind>,
    /// The servers that were away. Each has the whole list, but what was used for the first time while
    /// one was away is not in its own.
    pub unseen: Vec<Unseen>,
}

/// What a call sees, and what it does not: by server.
pub(crate) struct PartialView(BTreeMap<usize, UnseenServer>);

struct UnseenServer {
    server: String,
    error: String,
    shards: BTreeSet<(Kind, u16)>,
}

impl PartialView {
    pub(crate) fn new(store: &Store, away: Vec<Away>) -> Self {
        let missed = away.into_iter().map(|Away { place, error }| {
            let server = store.address_of_member(place);
            (place, UnseenServer::new(server, &error))
        });
        PartialView(missed.collect())
    }

    /// As it was found out when all servers were asked the last time, by the same call.
    pub(crate) fn now(store: &Store) -> Self {
        PartialView::new(store, store.away())
    }

    /// Whether the server of this ledger is known to be away; that it is not seen is noted then.
    pub(crate) fn misses(&mut self, ledger: &Ledger) -> bool {
        let missed = self.0.get_mut(&ledger.server());
        missed.map(|missed| missed.note(ledger)).is_some()
    }

    /// What this ledger was asked; nothing if its server is away, which is noted.
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

    /// The same of an answer that is there.
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

    /// What was not seen.
    pub(crate) fn unseen(self) -> Vec<Unseen> {
        let unseen = self.0.into_values().map(|missed| Unseen {
            server: missed.server,
            error: missed.error,
            shards: missed.shards.into_iter().collect(),
        });
        unseen.collect()
    }

    /// Fails if something was not seen, after all else was done.
    pub(crate) fn all_done(self) -> Result<()> {
        let Some(missed) = self.0.into_values().next() else {
            return Ok(());
        };
        Err(Error::new(
            ErrorKind::Unavailable,
            format!(
                "it was done on the other servers, and not on {}: {}; make the call again when \
                 that is there",
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

    fn note(&mut self, ledger: &Ledger) {
        let shard = (ledger.kind().clone(), ledger.place().shard);
        self.shards.insert(shard);
    }
}

impl Unseen {
    /// Adds what another call did not see.
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
