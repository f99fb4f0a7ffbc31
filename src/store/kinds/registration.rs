//! Making a kind known, with as many ledgers as it starts with.
//!
//! A kind of which nothing was said has one. With more it begins as if it were given them at once:
//! the list of kinds says that it is on its way from one to so many, all its ledgers are told, and
//! when nothing is in the first that belongs elsewhere, it has arrived. So whoever takes it for a
//! kind of one ledger meanwhile is turned away, and what came there before is moved; and who makes
//! known the same kind at the same time finds it in the list.

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

/// The most ledgers that a kind starts with where nobody has said how many.
const MOST: u16 = 8;

/// How often the first ledger is looked through. What is still there then is for those who reshard.
const LOOKS: usize = 4;

/// How many names go into one call.
const NAMES: usize = 128;

impl Store {
    /// Makes a kind known to all, before its first job is stored. If nobody knows it yet, it starts
    /// with so many ledgers, or else with as many as fit this server. Returns whether it is on the
    /// list now; the node of a cluster that has the list may be away.
    pub(crate) async fn register(
        self: &Arc<Self>,
        kind: &Kind,
        ledgers: Option<u16>,
        until: Instant,
    ) -> Result<bool> {
        let mut is_listed = true;
        let ledgers = ledgers.unwrap_or_else(|| self.usual_ledgers());
        // What a single server forgets, it forgets as a whole.
        // Nor is it made known by a layout of which nobody else knows any more.
        let is_first = self.layout_of(kind.as_str()) == Layout::FIRST;
        if ledgers == 1 && !self.is_cluster() && is_first {
            self.enlist(kind, until).await?;
        } else {
            // Not a part of the type of every call.
            let found: BoxFuture<'_, _> = Box::pin(self.find_or_found(kind, ledgers, until));
            found.await?;
        }
        let layout = self.layout_of(kind.as_str());
        if layout != Layout::FIRST || self.is_cluster() {
            // It may have been looked up a moment before somebody dropped it.
            let kept = self.enlist(kind, self.patience_for_one(until)).await;
            // While the list is away nobody drops it; if somebody has, its first job leads here again.
            if let Err(error) = kept {
                if !(self.is_cluster() && is_of_absence(&error)) {
                    return Err(error);
                }
                is_listed = false;
            }
        }
        self.found_aside(kind, layout, until);
        self.apply_pause_rules(kind, until).await?;
        // Always, since whoever added it may not have come to say so. Only a hint: workers
        // read the list anew, too.
        let of_layout = (layout != Layout::FIRST).then(|| format!("layout {kind} {layout}"));
        for message in of_layout.into_iter().chain([format!("kind {kind}")]) {
            if let Err(error) = self.tell(&message, self.patience_for_one(until)).await {
                tracing::warn!(%kind, %error, "a kind could not be announced");
            }
        }
        Ok(is_listed)
    }

    /// How many ledgers a kind starts with here: on a cluster about one for each primary, and a
    /// power of two, since that many are spread evenly.
    fn usual_ledgers(&self) -> u16 {
        let Some(cluster) = self.cluster().and_then(|it| it.link.origin().cluster()) else {
            return 1;
        };
        let primaries = cluster.nodes().0.len().clamp(1, usize::from(MOST));
        primaries.next_power_of_two() as u16
    }

    /// Adds a kind to the list, unless it is there. A server that is away learns of it when it is
    /// there again.
    async fn enlist(&self, kind: &Kind, until: Instant) -> Result<()> {
        let layout = self.layout_of(kind.as_str());
        let added = self.on_each(until, |it, until| Box::pin(it.enlist(kind, layout, until)));
        added.await.of_those_there().map(drop)
    }

    /// Finds out by which layout a kind goes. If nobody knows it, it is one of so many ledgers from
    /// now on.
    async fn find_or_found(
        self: &Arc<Self>,
        kind: &Kind,
        ledgers: u16,
        until: Instant,
    ) -> Result<()> {
        if self.knows(kind, until).await? {
            let layout = self.look_up(kind, until).await?;
            // Whoever founded it may not have come to the end.
            if layout.from == Some(Layout::FIRST.shards) {
                self.see_it_arrive(kind, layout, until).await;
            }
            return Ok(());
        }
        // A fail-over may have forgotten it, but not all of its ledgers.
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

    /// Has a kind arrive that starts with several ledgers. One of them that is away keeps nobody from
    /// the others: then it goes on aside, and if it comes to no end, that is for the next one.
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

    /// The newest layout that one of its ledgers knows, if one does, of those that are there.
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

    /// Tells all ledgers of a kind that starts with several, and moves what somebody has put into
    /// the first meanwhile. If that takes long, it is left to those who reshard it.
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
    pub(in crate::store) async fn enlist(
        &self,
        kind: &Kind,
        layout: Layout,
        until: Instant,
    ) -> Result<()> {
        let kinds = self.names.kinds();
        let mut both = redis::pipe();
        // Whoever is about to drop it is not to take it off the list from here on.
        both.hdel(&kinds, dropping(kind));
        both.hset_nx(&kinds, kind.as_str(), layout.to_string());
        self.pipeline(&both, until).await.map(drop)
    }
}

impl Ledger {
    /// Whether jobs were ever stored here.
    async fn was_used(&self, until: Instant) -> Result<bool> {
        let mut get = redis::cmd("HGET");
        get.arg(&self.names.stats).arg("accepted");
        let accepted: Option<u64> = from_value(self.server.command(&get, until).await?)?;
        Ok(accepted.is_some())
    }

    /// Moves what does not belong here by this layout. Returns how many names that were; `None` if
    /// there is more than is looked through at once, or something that cannot be moved now.
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
        // Behind the look at it: what somebody took out before that was not to be seen.
        let is_pushed = self.push_on(layout, until).await?;
        Ok(is_pushed.then_some(moved))
    }
}
