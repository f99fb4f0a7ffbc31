//! Registration of kinds: adds a kind to the list of kinds before its first job is acknowledged,
//! and creates the ledgers that it starts with.
//!
//! A kind has one ledger by default on a single server, and about one for each primary on a
//! cluster. The first ledger decides: it takes the layout of a kind that starts with several, unless
//! a client that takes the kind for a kind of one ledger has stored a job there. From then on it
//! refuses such clients. So no job has to be moved, and the other ledgers may be told later.

use std::time::Instant;

use futures_util::future::{BoxFuture, try_join3};

use crate::error::Result;
use crate::key::Kind;
use crate::shards::Layout;
use crate::store::kinds::dropping::dropping;
use crate::store::servers::fan_out::is_of_absence;
use crate::store::{Server, Store, from_value};

/// The most ledgers that a kind starts with by default.
const MOST: u16 = 8;

impl Store {
    /// Makes a kind known to all clients and workers, before its first job is acknowledged.
    ///
    /// A kind that nobody knows yet starts with `ledgers` ledgers, or by default with as many as
    /// suit this server. A known kind keeps its layout. The pause rules that cover the kind, its limit
    /// and its archive are applied to it.
    ///
    /// Returns whether the kind is on the list now; `false` if the node of a cluster that has the
    /// list is away.
    ///
    /// # Errors
    ///
    /// If a server that is needed does not answer before `until`, or refuses a call. A repeat is
    /// harmless.
    pub(crate) async fn register(
        &self,
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
        // Boxed, as above.
        let rules: BoxFuture<'_, Result<()>> = Box::pin(self.apply_rules(kind, layout, until));
        rules.await?;
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

    /// Has a kind follow the rules that cover it. Ledgers on servers that are away hear of their
    /// archive and copy from the archiver and the copier.
    pub(crate) async fn apply_rules(
        &self,
        kind: &Kind,
        layout: Layout,
        until: Instant,
    ) -> Result<()> {
        // At the same time: a call that lists a kind has little time left.
        let rules = try_join3(
            self.apply_pause_rules(kind, until),
            self.apply_limit_rule(kind, until),
            self.apply_kept_terms(kind, layout, until),
        );
        let ((), (), _) = rules.await?;
        Ok(())
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
    async fn find_or_found(&self, kind: &Kind, ledgers: u16, until: Instant) -> Result<()> {
        if self.knows(kind, until).await? {
            return self.look_up(kind, until).await.map(drop);
        }
        // A fail-over may have lost the entry in the list, but not all ledgers.
        if let Some(layout) = self.of_ledgers(kind, ledgers.max(MOST), until).await? {
            self.layouts.set(kind, layout);
            return self.spread(kind, layout, layout.ledgers(), until).await;
        }
        let mut layout = Layout::FIRST;
        if ledgers > 1 {
            let several = layout.to_at(ledgers, self.time(until).await?).settled();
            let home = self.home_of(kind, 0);
            layout = home.start(kind, several, until).await?;
        }
        self.layouts.set(kind, layout);
        match layout {
            Layout::FIRST => self.enlist(kind, until).await,
            layout => self.spread_as_can_be(kind, layout, until).await,
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
