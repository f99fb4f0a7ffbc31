//! Telling one of several servers that was away what it has missed, before anything else is asked of
//! it: which kinds were paused and resumed meanwhile, which are new, and how many ledgers they have.
//!
//! Whatever breaks a connection, the server may have been away; so it is told whenever one is opened,
//! and before that is used. What it is told by the others it may be told again, or late: pauses and
//! resumes are numbered, and so are layouts.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, join_all};
use redis::Value;

use crate::error::{Error, Result};
use crate::key::Kind;
use crate::shards::Layout;
use crate::store::connections::fault::Fault;
use crate::store::connections::link::Request;
use crate::store::kinds::layout::LayoutNotice;
use crate::store::kinds::switches::{PauseSwitch, Switches};
use crate::store::servers::fan_out::is_of_absence;
use crate::store::servers::membership::EMPTIED;
use crate::store::{Lane, Ledger, Server, Store, from_value, texts};
use crate::time::UnixMs;

/// How long each of the servers is asked for what it knows. Whoever opens a connection waits for that.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long the telling may take.
const TELLING: Duration = Duration::from_secs(5);

/// Of how many kinds it is told at the same time.
const AT_ONCE: usize = 256;

/// Tells one of several servers what it has missed.
pub(in crate::store) struct CatchUp {
    /// All of them, by connections on which nobody is told anything.
    store: Arc<Store>,
    /// Which one it is.
    place: usize,
}

/// What a server knows of kinds as wholes.
#[derive(Default)]
struct KindRecords {
    kinds: HashMap<Kind, Layout>,
    switches: Switches,
    /// It came without any data, which nobody has taken note of.
    was_emptied: bool,
}

impl CatchUp {
    pub(in crate::store) fn new(store: Arc<Store>, place: usize) -> Self {
        CatchUp { store, place }
    }

    /// Fails if the server is away again. What it refuses keeps it from nothing else.
    ///
    /// Rare, and not a part of the type of every call.
    pub(in crate::store) fn tell(&self) -> BoxFuture<'_, Result<(), Fault>> {
        Box::pin(async move {
            let told = self.tell_by_all().await;
            self.store.hang_up();
            told.map_err(|error| {
                tracing::debug!(%error, "what a server has missed could not be told");
                Fault::unreachable(&self.store.address_of_member(self.place))
            })
        })
    }

    async fn tell_by_all(&self) -> Result<()> {
        let asked = self.store.servers.iter().map(|it| async move {
            let known = it.known(it.patience(Instant::now() + PATIENCE)).await;
            it.note_presence(&known);
            known
        });
        let mut known = Vec::new();
        for (place, answer) in join_all(asked).await.into_iter().enumerate() {
            match answer {
                Ok(one) => known.push((place, one)),
                Err(error) if place == self.place => return unless_refused(error),
                Err(error) => tracing::debug!(%error, "what a server knows is not known"),
            }
        }
        let all = Arc::new(KindRecords::together(known.iter().map(|(_, one)| one)));
        for (kind, layout) in &all.kinds {
            self.store.layouts.learn(kind, *layout);
        }
        for (place, one) in known {
            if place == self.place {
                if one.was_emptied && all.kinds.is_empty() {
                    // There was nothing to lose: it is as new as the others.
                    self.store.servers[place].forget_emptying().await?;
                }
                all.tell(&self.store, place, &one).await?;
            } else if all.is_news_to(&one) {
                // It was there while this one knew more and was away: nobody waits for that.
                let (store, all) = (self.store.clone(), all.clone());
                tokio::spawn(async move {
                    if let Err(error) = all.tell(&store, place, &one).await {
                        tracing::debug!(%error, "what a server has missed could not be told");
                    }
                    store.hang_up();
                });
            }
        }
        Ok(())
    }
}

impl Server {
    /// What this server knows, if it says so at once.
    async fn known(&self, until: Instant) -> Result<KindRecords> {
        let mut both = redis::pipe();
        both.cmd("HGETALL").arg(self.names.kinds());
        both.cmd("HGETALL").arg(self.names.paused());
        both.cmd("HGET").arg(self.names.meta()).arg(EMPTIED);
        let answer = self.link.send_at_once(Request::Many(&both), until).await?;
        let [kinds, switches, emptied]: [Value; 3] = from_value(answer.value)?;
        let (kinds, switches) = (texts(kinds)?, texts(switches)?);
        // What this version does not know it says to nobody.
        let kind = |(name, layout): (String, String)| {
            Some((Kind::parse(&name).ok()?, Layout::parse(&layout)?))
        };
        Ok(KindRecords {
            kinds: kinds.into_iter().filter_map(kind).collect(),
            switches: Switches::read(switches),
            was_emptied: emptied != Value::Nil,
        })
    }

    async fn forget_emptying(&self) -> Result<()> {
        let mut forget = redis::cmd("HDEL");
        forget.arg(self.names.meta()).arg(EMPTIED);
        let until = self.patience(Instant::now() + PATIENCE);
        self.command(&forget, until).await.map(drop)
    }

    /// The number of the last pause or resume that this ledger was told of.
    async fn turn_of(&self, calls: &str, until: Instant) -> Result<UnixMs> {
        let mut get = redis::cmd("HGET");
        get.arg(calls).arg("turn");
        let turn: Option<u64> = from_value(self.command(&get, until).await?)?;
        Ok(UnixMs(turn.unwrap_or(0)))
    }
}

impl KindRecords {
    fn together<'a>(all: impl Iterator<Item = &'a KindRecords> + Clone) -> Self {
        let mut kinds: HashMap<Kind, Layout> = HashMap::new();
        for (kind, layout) in all.clone().flat_map(|one| &one.kinds) {
            let known = kinds.entry(kind.clone()).or_insert(*layout);
            if layout.follows(*known) {
                *known = *layout;
            }
        }
        KindRecords {
            kinds,
            switches: Switches::together(all.map(|one| one.switches.clone())),
            was_emptied: false,
        }
    }

    /// What is new of a kind to a server that knows `one`.
    fn news<'a>(&'a self, one: &'a KindRecords) -> impl Iterator<Item = (&'a Kind, Layout)> {
        let is_new = |(kind, layout): &(&Kind, &Layout)| {
            let known = one.kinds.get(*kind);
            known.is_none_or(|known| layout.follows(*known))
        };
        let news = self.kinds.iter().filter(is_new);
        news.map(|(kind, layout)| (kind, *layout))
    }

    fn is_news_to(&self, one: &KindRecords) -> bool {
        self.news(one).next().is_some() || self.switches.change(&one.switches) != Default::default()
    }

    /// Tells the server at this place, which knows `one`.
    async fn tell(&self, store: &Arc<Store>, place: usize, one: &KindRecords) -> Result<()> {
        let (it, until) = (&store.servers[place], Instant::now() + TELLING);
        let kinds: Vec<&Kind> = one.kinds.keys().collect();
        for kinds in kinds.chunks(AT_ONCE) {
            let told = kinds
                .iter()
                .map(|kind| self.tell_switch(store, it, kind, until));
            for told in join_all(told).await {
                told.or_else(unless_refused)?;
            }
        }
        let news: Vec<(&Kind, Layout)> = self.news(one).collect();
        for news in news.chunks(AT_ONCE) {
            let told = news.iter().map(|(kind, layout)| {
                let is_known = one.kinds.contains_key(*kind);
                self.tell_of(store, it, kind, *layout, is_known, until)
            });
            for told in join_all(told).await {
                told.or_else(unless_refused)?;
            }
        }
        let told = it.keep_switches(&self.switches, &one.switches, until).await;
        told.or_else(unless_refused)
    }

    /// Pauses or resumes what this server has of a kind, if that was done since it was last told.
    async fn tell_switch(
        &self,
        store: &Arc<Store>,
        it: &Server,
        kind: &Kind,
        until: Instant,
    ) -> Result<()> {
        let Some((turn, switch)) = self.switches.last_of(kind) else {
            return Ok(());
        };
        let layout = store.layout_of(kind.as_str());
        for shard in store.shards_at(it, kind) {
            let ledger = Ledger::new(store.clone(), kind.clone(), layout.place(shard), false);
            if it.turn_of(&ledger.names.calls, until).await? >= turn {
                continue;
            }
            let mut lane = Lane::new();
            match switch {
                PauseSwitch::Paused => ledger.pause(&mut lane, Some(turn), until).await?,
                PauseSwitch::Resumed => ledger.resume(&mut lane, Some(turn), until).await?,
            }
            tracing::debug!(?ledger, ?switch, "told what it has missed");
        }
        Ok(())
    }

    /// Tells a server of a kind that is new to it, or has another number of ledgers. The list comes
    /// last: what breaks off is done again.
    async fn tell_of(
        &self,
        store: &Arc<Store>,
        it: &Server,
        kind: &Kind,
        layout: Layout,
        is_known: bool,
        until: Instant,
    ) -> Result<()> {
        if !is_known {
            it.apply_pause_rules(&self.switches, kind, store, until)
                .await?;
        }
        if layout == Layout::FIRST {
            return it.enlist(kind, layout, until).await;
        }
        let news = LayoutNotice::new(kind, layout, layout.ledgers());
        let kept = store.kept_of_kind(&news, until).await?;
        it.tell_ledgers(&news, store, &kept, until).await?;
        it.list(&news, until).await
    }
}

/// What a server refuses is no reason to leave it alone: it may be full, or this user may not do all
/// that others may.
fn unless_refused(error: Error) -> Result<()> {
    if is_of_absence(&error) {
        return Err(error);
    }
    tracing::debug!(%error, "a server could not be told all that it has missed");
    Ok(())
}
