//! Search for kinds that have jobs, by the names of the keys in the database. It does not need the
//! list of kinds, so it also finds kinds that the list has lost.

use std::collections::BTreeSet;
use std::time::Instant;

use redis::Cmd;

use crate::error::{ErrorKind, Result};
use crate::key::{JobKey, Kind};
use crate::store::servers::fan_out::is_of_absence;
use crate::store::servers::nodes::ServerNode;
use crate::store::{Server, Store, from_value};

/// About how many keys of the database one `SCAN` looks at.
const PAGE: u64 = 1000;

/// How many keys of each node a search for ledgers looks at: about ten seconds of work.
const MOST: u64 = 10_000_000;

/// How many keys of each node [`Store::kind_with_jobs`] looks at.
const FEW: u64 = 20_000;

/// How many kinds [`Store::kind_with_jobs`] asks for jobs.
const KINDS: usize = 64;

/// The result of a search for ledgers.
#[derive(Debug)]
pub(crate) struct Searched {
    /// The kinds with at least one ledger, with or without jobs.
    pub(crate) kinds: BTreeSet<Kind>,
    /// Whether the search has looked at all keys of all servers.
    pub(crate) is_complete: bool,
}

/// The progress of a `SCAN` through one node.
struct LedgerSearch<'a> {
    server: &'a Server,
    node: ServerNode,
    glob: Option<String>,
    /// The cursor of the next page; empty at the end.
    cursor: String,
    /// How many more keys the search may look at.
    left: u64,
}

impl LedgerSearch<'_> {
    /// The keys of the next page. `None` at the end of the node, or once the search has looked at
    /// as many keys as it may.
    async fn next(&mut self, until: Instant) -> Result<Option<Vec<String>>> {
        if self.cursor.is_empty() || self.left == 0 {
            return Ok(None);
        }
        let mut scan: Cmd = redis::cmd("SCAN");
        scan.arg(&self.cursor);
        if let Some(glob) = &self.glob {
            scan.arg("MATCH").arg(glob);
        }
        scan.arg("COUNT").arg(PAGE);
        let page = self.server.command_at(&self.node, &scan, until).await?;
        let (next, keys): (String, Vec<Vec<u8>>) = from_value(page)?;
        self.left = self.left.saturating_sub(PAGE);
        self.cursor = if next == "0" { String::new() } else { next };
        let keys = keys
            .into_iter()
            .filter_map(|key| String::from_utf8(key).ok());
        Ok(Some(keys.collect()))
    }

    /// Whether the search has reached the end of the node.
    fn is_over(&self) -> bool {
        self.cursor.is_empty()
    }
}

impl Store {
    /// Looks for ledgers by their names, on all servers. `until` gives the deadline of each call,
    /// when the call begins. A server that is away, or that denies `SCAN` to this user, leaves the
    /// search incomplete.
    ///
    /// # Errors
    ///
    /// If the only server does not answer, or one fails for another reason.
    pub(crate) async fn search(&self, until: impl Fn() -> Instant) -> Result<Searched> {
        let mut searched = Searched {
            kinds: BTreeSet::new(),
            is_complete: true,
        };
        for server in &self.servers {
            match server.search(&mut searched.kinds, &until).await {
                Ok(is_complete) => searched.is_complete &= is_complete,
                Err(error) if error.kind() == ErrorKind::Denied => searched.is_complete = false,
                Err(error) if self.is_several() && is_of_absence(&error) => {
                    searched.is_complete = false;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(searched)
    }

    /// A kind that has accepted jobs, if the first [`FEW`] keys of each node lead to one: keys of
    /// ledgers, and keys whose names have the form of a job key.
    ///
    /// Where the list of kinds is empty, this tells a lost list from a new database. It is a hint:
    /// `None` also means that the search was not possible.
    pub(crate) async fn kind_with_jobs(&self, until: Instant) -> Option<Kind> {
        let mut asked = BTreeSet::new();
        for server in &self.servers {
            for node in server.data_nodes(until).await.ok()? {
                let mut search = server.looking(node, None, FEW);
                while let Ok(Some(keys)) = search.next(until).await {
                    let kinds: BTreeSet<Kind> =
                        keys.iter().filter_map(|key| server.kind_by(key)).collect();
                    for kind in kinds {
                        if asked.len() == KINDS {
                            return None;
                        }
                        if asked.insert(kind.clone()) && self.has_accepted(&kind, until).await {
                            return Some(kind);
                        }
                    }
                }
            }
        }
        None
    }

    /// Whether the first ledger of a kind has ever accepted jobs; `false` if it cannot be read.
    pub(crate) async fn has_accepted(&self, kind: &Kind, until: Instant) -> bool {
        self.was_used(kind, until).await.unwrap_or(false)
    }

    /// Whether the first ledger of a kind has ever accepted jobs.
    pub(crate) async fn was_used(&self, kind: &Kind, until: Instant) -> Result<bool> {
        let home = self.home_of(kind, 0);
        let stats = home.names.ledger(kind, 0).stats;
        let until = home.patience(until);
        home.has_field(&stats, "accepted", until).await
    }
}

impl Server {
    /// Adds the kinds of all ledgers on this server to `kinds`. Returns whether all keys were
    /// looked at.
    async fn search(
        &self,
        kinds: &mut BTreeSet<Kind>,
        until: impl Fn() -> Instant,
    ) -> Result<bool> {
        let mut is_complete = true;
        for node in self.data_nodes(until()).await? {
            let mut search = self.looking(node, Some(self.names.of_ledgers()), MOST);
            while let Some(keys) = search.next(until()).await? {
                let found = keys.iter().filter_map(|key| self.names.kind_of(key));
                kinds.extend(found.filter_map(|kind| Kind::parse(kind).ok()));
            }
            is_complete &= search.is_over();
        }
        Ok(is_complete)
    }

    /// Begins a search of one node for the names that match `glob`; it looks at `left` keys at the
    /// most.
    fn looking(&self, node: ServerNode, glob: Option<String>, left: u64) -> LedgerSearch<'_> {
        LedgerSearch {
            server: self,
            node,
            glob,
            cursor: "0".to_owned(),
            left,
        }
    }

    /// The kind of a key, if it is the key of a ledger or has the form of a job key.
    fn kind_by(&self, key: &str) -> Option<Kind> {
        let of_ledger = self.names.kind_of(key).map(Kind::parse);
        let of_job = || JobKey::parse(key).map(|job| Kind::parse(job.kind()));
        match of_ledger {
            Some(kind) => kind.ok(),
            None => of_job().ok()?.ok(),
        }
    }
}
