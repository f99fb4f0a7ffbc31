//! Registration of kinds: adds a kind to the list of kinds before its first job is acknowledged,
//! and creates the ledgers that it starts with.
//!
//! A kind has one ledger by default on a single server, and about one for each primary on a
//! cluster. A kind with more begins as if it were resharded at once: the list of kinds gets a
//! layout "from one to n", all n ledgers are told, and once the first ledger holds nothing that
//! belongs elsewhere, the layout is settled. So the ledgers refuse a client that still takes the
//! kind for a kind of one ledger, and jobs that it stored before are moved. A client that registers
//! the same kind at the same time finds it in the list.

use std::sync::Arc;
use std::time::Instant;

use futures_util::future::BoxFuture;
use tokio::time::timeout_at;

use crate::error::Result;
use crate::key::Kind;
use crate::shards::{Layout, shard_of};
use crate::store::kinds::dropping::dropping;
use crate::store::kinds::layout::Expected;
use crate::store::kinds::moving::Part;
use crate::store::ledger::reply::ReplyWord;
use crate::store::servers::fan_out::is_of_absence;
use crate::store::{Ledger, Server, Store, from_value};

/// The most ledgers that a kind starts with by default.
const MOST: u16 = 8;

/// How often the first ledger is looked through. Jobs that are still there afterwards are left to a
/// reshard.
const LOOKS: usize = 4;

/// How many names one call of `lua/take.lua` gets at the most.
const NAMES: usize = 128;

impl Store {
    /// Makes a kind known to all clients and workers, before its first job is acknowledged.
    ///
    /// A kind that nobody knows yet starts with `ledgers` ledgers, or by default with as many as
    /// suit this server. A known kind keeps its layout. The pause rules that cover the kind are
    /// applied to it.
    ///
    /// Returns whether the kind is on the list now; `false` if the node of a cluster that has the
    /// list is away.
    ///
    /// # Errors
    ///
    /// If a server that is needed does not answer before `until`, or refuses a call. A repeat is
    /// harmless.
    pub(crate) async fn register(
        self: &Arc<Self>,
        kind: &Kind,
        ledgers: Option<u16>,
        until: Instant,
    ) -> Result<bool> {
        let mut is_listed = true;
        let ledgers = ledgers.unwrap_or_else(|| self.usual_ledgers());
        // A single server loses all of its data or nothing, so its list needs no comparison with
        // the ledgers. A layout that only this client still knows is looked up first, and not
        // written down.
        let is_first = self.layout_of(kind.as_str()) == Layout::FIRST;
        if ledgers == 1 && !self.is_cluster() && is_first {
            self.enlist(kind, until).await?;
        } else {
            // Boxed, so that this future does not enlarge the future of every call.
            let found: BoxFuture<'_, _> = Box::pin(self.find_or_found(kind, ledgers, until));
            found.await?;
        }
        let layout = self.layout_of(kind.as_str());
        if layout != Layout::FIRST || self.is_cluster() {
            // The look-up may have come a moment before a drop of the kind.
            let kept = self.enlist(kind, self.patience_for_one(until)).await;
            // While the list is away nobody can drop the kind. If the kind was dropped before, its
            // first job leads here again.
            if let Err(error) = kept {
                if !(self.is_cluster() && is_of_absence(&error)) {
                    return Err(error);
                }
                is_listed = false;
            }
        }
        self.found_aside(kind, layout, until);
        self.apply_pause_rules(kind, until).await?;
        // Announced in every case: another client may have added the kind and died before its
        // announcement. It is only a hint, because workers also read the list anew.
        let of_layout = (layout != Layout::FIRST).then(|| format!("layout {kind} {layout}"));
        for message in of_layout.into_iter().chain([format!("kind {kind}")]) {
            if let Err(error) = self.tell(&message, self.patience_for_one(until)).await {
                tracing::warn!(%kind, %error, "a kind could not be announced");
            }
        }
        Ok(is_listed)
    }

    /// The number of ledgers that a kind starts with by default: 1 on a single server; on a cluster
    /// about one for each primary, [`MOST`] at the most, and a power of two, because jobs spread
    /// evenly over it.
    fn usual_ledgers(&self) -> u16 {
        let Some(cluster) = self.cluster().and_then(|it| it.link.origin().cluster()) else {
            return 1;
        };
        let primaries = cluster.nodes().0.len().clamp(1, usize::from(MOST));
        primaries.next_power_of_two() as u16
    }

    /// Adds a kind to the list of each server, unless it is there. A server that is away is told
    /// when it is back.
    async fn enlist(&self, kind: &Kind, until: Instant) -> Result<()> {
        let layout = self.layout_of(kind.as_str());
        let added = self.on_each(until, |it, until| Box::pin(it.enlist(kind, layout, until)));
        added.await.of_those_there().map(drop)
    }

    /// Looks up the layout of a kind. A kind that nobody knows gets `ledgers` ledgers and is added
    /// to the list.
    async fn find_or_found(
        self: &Arc<Self>,
        kind: &Kind,
        ledgers: u16,
        until: Instant,
    ) -> Result<()> {
        if self.knows(kind, until).await? {
            let layout = self.look_up(kind, until).await?;
            // The client that registered it may have died half-way.
            if layout.from == Some(Layout::FIRST.shards) {
                self.see_it_arrive(kind, layout, until).await;
            }
            return Ok(());
        }
        // A fail-over may have lost the entry in the list, but not all ledgers.
        if let Some(layout) = self.of_ledgers(kind, ledgers.max(MOST), until).await? {
            self.layouts.set(kind, layout);
            return self.spread(kind, layout, layout.ledgers(), until).await;
        }
        let first = Ledger::new(self.clone(), kind.clone(), Layout::FIRST.place(0), false);
        if ledgers == 1 || first.was_used(until).await? {
            self.layouts.set(kind, Layout::FIRST);
            return self.enlist(kind, until).await;
        }
        let wanted = Layout::FIRST.to_at(ledgers, self.time(until).await?);
        let kinds = self.names.kinds();
        let (home, nothing) = (self.home_of(kind, 0), Default::default());
        let expected = Expected::Nothing;
        let founding = home.set_layout(&kinds, kind.as_str(), wanted, expected, &nothing, until);
        let layout = founding.await?;
        self.layouts.set(kind, layout);
        if layout == wanted {
            self.see_it_arrive(kind, layout, until).await;
        }
        Ok(())
    }

    /// Settles the layout of a kind that starts with several ledgers; see `arrive`.
    ///
    /// A ledger on a node that is away must not hold up calls on the others. So this waits only as
    /// long as a call to all servers may take; the task goes on in the background, and if it fails,
    /// the next registration repeats it.
    async fn see_it_arrive(self: &Arc<Self>, kind: &Kind, layout: Layout, until: Instant) {
        let (store, of) = (self.clone(), kind.clone());
        let arriving = tokio::spawn(async move {
            if let Err(error) = store.arrive(&of, layout, until).await {
                tracing::debug!(kind = %of, %error, "a kind has not arrived yet");
            }
        });
        let patience = self.patience_for_all(until);
        if timeout_at(patience.into(), arriving).await.is_err() {
            tracing::debug!(%kind, "it arrives while others go on");
        }
    }

    /// The newest layout that the first `ledgers` ledgers of a kind know, or `None` if none of them
    /// knows one. Ledgers on servers that are away are left out.
    pub(in crate::store) async fn of_ledgers(
        &self,
        kind: &Kind,
        ledgers: u16,
        until: Instant,
    ) -> Result<Option<Layout>> {
        let mut newest: Option<Layout> = None;
        for shard in 0..ledgers {
            let mut get = redis::cmd("HGET");
            get.arg(self.names.ledger(kind, shard).calls).arg("layout");
            let home = self.home_of(kind, shard);
            let text: Option<String> = match home.command(&get, home.patience(until)).await {
                Err(error) if self.is_several() && is_of_absence(&error) => continue,
                told => from_value(told?)?,
            };
            let Some(layout) = text.and_then(|text| Layout::parse(&text)) else {
                continue;
            };
            if newest.is_none_or(|newest| layout.follows(newest)) {
                newest = Some(layout);
            }
        }
        Ok(newest)
    }

    /// Tells all ledgers of a kind that starts with several, moves jobs that other clients have
    /// stored in the first one meanwhile, and settles the layout. A layout that is not settled
    /// after [`LOOKS`] rounds is left to a reshard.
    async fn arrive(self: &Arc<Self>, kind: &Kind, layout: Layout, until: Instant) -> Result<()> {
        self.spread(kind, layout, layout.ledgers(), until).await?;
        let first = Ledger::new(self.clone(), kind.clone(), layout.old_place(0), false);
        for _ in 0..LOOKS {
            match first.clear(layout, until).await? {
                None => break,
                Some(0) => {
                    let settled = layout.settled();
                    self.spread(kind, settled, layout.ledgers(), until).await?;
                    self.layouts.learn(kind, settled);
                    break;
                }
                Some(_) => {}
            }
        }
        Ok(())
    }
}

impl Server {
    /// Adds a kind with its layout to the list of this server, unless it is there, and removes the
    /// mark of a drop in progress. Both are one round trip, but not one transaction.
    pub(in crate::store) async fn enlist(
        &self,
        kind: &Kind,
        layout: Layout,
        until: Instant,
    ) -> Result<()> {
        let kinds = self.names.kinds();
        let mut both = redis::pipe();
        // Without the mark, a drop in progress does not take the kind off the list.
        both.hdel(&kinds, dropping(kind));
        both.hset_nx(&kinds, kind.as_str(), layout.to_string());
        self.pipeline(&both, until).await.map(drop)
    }
}

impl Ledger {
    /// Whether this ledger has ever accepted a job: its counter `accepted` exists.
    async fn was_used(&self, until: Instant) -> Result<bool> {
        let mut get = redis::cmd("HGET");
        get.arg(&self.names.stats).arg("accepted");
        let accepted: Option<u64> = from_value(self.server.command(&get, until).await?)?;
        Ok(accepted.is_some())
    }

    /// Moves the jobs, dead letters and adopted keys that belong to other ledgers by this layout.
    /// Returns the number of names that were found. `None` if a part has more than one page, if a
    /// job to be moved is running, or if the ledger has another layout.
    async fn clear(&self, layout: Layout, until: Instant) -> Result<Option<usize>> {
        let mut moved = 0;
        for part in [Part::Jobs, Part::Letters, Part::Keys] {
            let (next, mut names) = self.names_in(part, "0", until).await?;
            if next != "0" {
                return Ok(None);
            }
            let shard = |name: &str| {
                let id = name.split_once(':').map_or(name, |(id, _)| id);
                shard_of(id, layout.shards)
            };
            names.retain(|name| shard(name) != self.place().shard);
            moved += names.len();
            for names in names.chunks(NAMES) {
                let answers = self.move_out(names, layout, until).await?;
                let is_free = |it: &crate::store::Answered| it.answer != ReplyWord::Leased;
                if !answers.is_some_and(|answers| answers.iter().all(is_free)) {
                    return Ok(None);
                }
            }
        }
        // After the search: a batch that another client took out before the search was not visible
        // to it.
        let is_pushed = self.push_on(layout, until).await?;
        Ok(is_pushed.then_some(moved))
    }
}
