//! Tells one of several servers that was away the changes that it has missed, before any other
//! call: the kinds that were paused and resumed meanwhile, new kinds, and their numbers of ledgers.
//!
//! Whatever breaks a connection, the server may have been away; so it is told with each new
//! connection, before a call uses that. The news may come repeatedly, or late: pauses and resumes
//! are numbered, and so are layouts.

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

/// The longest that each of the servers is asked for its records. A new connection waits for that.
const PATIENCE: Duration = Duration::from_secs(1);

/// The longest that the telling may take.
const TELLING: Duration = Duration::from_secs(5);

/// Number of kinds that a server is told about at the same time.
const AT_ONCE: usize = 256;

/// Tells one of several servers the changes that it has missed.
pub(in crate::store) struct CatchUp {
    /// All servers, with links that do not use a `CatchUp` themselves.
    store: Arc<Store>,
    /// The index of the server to be told.
    place: usize,
}

/// The records of a server on kinds: their list, and their pauses.
#[derive(Default)]
struct KindRecords {
    /// Each kind with its layout.
    kinds: HashMap<Kind, Layout>,
    /// The latest pauses and resumes.
    switches: Switches,
    /// The server came back without any data, and no operator has taken note of it yet.
    was_emptied: bool,
}

impl CatchUp {
    /// Tells the server at index `place` of this store.
    pub(in crate::store) fn new(store: Arc<Store>, place: usize) -> Self {
        CatchUp { store, place }
    }

    /// Tells the server its news, and starts to tell other servers theirs. Boxed, since it is rare:
    /// else it is part of the type of every call.
    ///
    /// # Errors
    /// If the server is away again. A refusal of the server is logged only: it prevents no other
    /// call.
    pub(in crate::store) fn tell(&self) -> BoxFuture<'_, Result<(), Fault>> {
        Box::pin(async move {
            let told = self.tell_by_all().await;
            self.store.hang_up();
            told.map_err(|error| {
                tracing::debug!(
                    %error,
                    "a server could not be told about the changes that it missed"
                );
                Fault::unreachable(&self.store.address_of_member(self.place))
            })
        })
    }

    /// Asks all servers for their records, merges these, and sends each server its news.
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
                Err(error) => tracing::debug!(%error, "the state of a server is unknown"),
            }
        }
        let all = Arc::new(KindRecords::together(known.iter().map(|(_, one)| one)));
        for (kind, layout) in &all.kinds {
            self.store.layouts.learn(kind, *layout);
        }
        for (place, one) in known {
            if place == self.place {
                if one.was_emptied && all.kinds.is_empty() {
                    // No server knows of a job, so none was lost: this server is as new as the
                    // others.
                    self.store.servers[place].forget_emptying().await?;
                }
                all.tell(&self.store, place, &one).await?;
            } else if all.is_news_to(&one) {
                // That server has missed changes while this one was away: no call waits for it.
                let (store, all) = (self.store.clone(), all.clone());
                tokio::spawn(async move {
                    if let Err(error) = all.tell(&store, place, &one).await {
                        tracing::debug!(
                            %error,
                            "a server could not be told about the changes that it missed"
                        );
                    }
                    store.hang_up();
                });
            }
        }
        Ok(())
    }
}

impl Server {
    /// The records of this server, if it answers at the first try.
    async fn known(&self, until: Instant) -> Result<KindRecords> {
        let mut both = redis::pipe();
        both.cmd("HGETALL").arg(self.names.kinds());
        both.cmd("HGETALL").arg(self.names.paused());
        both.cmd("HGET").arg(self.names.meta()).arg(EMPTIED);
        let answer = self.link.send_at_once(Request::Many(&both), until).await?;
        let [kinds, switches, emptied]: [Value; 3] = from_value(answer.value)?;
        let (kinds, switches) = (texts(kinds)?, texts(switches)?);
        // Records that this version cannot read are passed on to no server.
        let kind = |(name, layout): (String, String)| {
            Some((Kind::parse(&name).ok()?, Layout::parse(&layout)?))
        };
        Ok(KindRecords {
            kinds: kinds.into_iter().filter_map(kind).collect(),
            switches: Switches::read(switches),
            was_emptied: emptied != Value::Nil,
        })
    }

    /// Removes the note that this server came back without data.
    async fn forget_emptying(&self) -> Result<()> {
        let mut forget = redis::cmd("HDEL");
        forget.arg(self.names.meta()).arg(EMPTIED);
        let until = self.patience(Instant::now() + PATIENCE);
        self.command(&forget, until).await.map(drop)
    }

    /// The number of the latest pause or resume in this ledger; 0 if there was none.
    async fn turn_of(&self, calls: &str, until: Instant) -> Result<UnixMs> {
        let mut get = redis::cmd("HGET");
        get.arg(calls).arg("turn");
        let turn: Option<u64> = from_value(self.command(&get, until).await?)?;
        Ok(UnixMs(turn.unwrap_or(0)))
    }
}

impl KindRecords {
    /// The newest record of each kind.
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

    /// The kinds that are new, or have a newer layout, to a server with the records `one`.
    fn news<'a>(&'a self, one: &'a KindRecords) -> impl Iterator<Item = (&'a Kind, Layout)> {
        let is_new = |(kind, layout): &(&Kind, &Layout)| {
            let known = one.kinds.get(*kind);
            known.is_none_or(|known| layout.follows(*known))
        };
        let news = self.kinds.iter().filter(is_new);
        news.map(|(kind, layout)| (kind, *layout))
    }

    /// True if a server with the records `one` lacks any of these.
    fn is_news_to(&self, one: &KindRecords) -> bool {
        self.news(one).next().is_some() || self.switches.change(&one.switches) != Default::default()
    }

    /// Sends the news to the server at index `place`, which has the records `one`.
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

    /// Pauses or resumes the ledgers of a kind on this server, unless they know that turn or a
    /// later one.
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
            tracing::debug!(
                ?ledger,
                ?switch,
                "the server has received the changes that it missed"
            );
        }
        Ok(())
    }

    /// Tells a server of a kind that is new to it, or has another number of ledgers. The list of
    /// kinds is written last, so that an interrupted telling is done again.
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

/// Passes on the error of a server that is away, and logs a refusal. A refusal must not keep the
/// server from other calls: it may be full, or this user may have fewer rights than others.
fn unless_refused(error: Error) -> Result<()> {
    if is_of_absence(&error) {
        return Err(error);
    }
    tracing::debug!(%error, "a server could not be told about all changes that it missed");
    Ok(())
}
