//! How many ledgers a kind has, and how all come to agree on it.
//!
//! It is written down with the kind, and in each ledger, which refuses calls that go by another
//! layout. Whatever two of them say, the newer holds; and whoever finds out that one of them is
//! behind, because a fail-over forgot it or somebody stopped half-way, brings it up to date.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Instant;

use futures_util::future::{BoxFuture, join_all};
use redis::Cmd;
use tokio::sync::watch;

use crate::error::{Error, ErrorKind, Result};
use crate::key::Kind;
use crate::names::LedgerNames;
use crate::shards::Layout;
use crate::store::kinds::switches::Switches;
use crate::store::ledger::script::{FOUND, LAYOUT, Script};
use crate::store::servers::fan_out::is_of_absence;
use crate::store::{Server, Store, from_value};

/// The layouts of kinds, as far as they are known; of others it is assumed that they are as they
/// were first.
#[derive(Default)]
pub(in crate::store) struct Layouts {
    known: Mutex<HashMap<Kind, Layout>>,
    /// Told when another one is known.
    changed: watch::Sender<()>,
}

impl Layouts {
    pub(in crate::store) fn of(&self, kind: &str) -> Layout {
        let known = self.known.lock().expect("no panic while held");
        known.get(kind).copied().unwrap_or(Layout::FIRST)
    }

    /// Takes note of a layout, unless a newer one is known.
    pub(in crate::store) fn learn(&self, kind: &Kind, layout: Layout) {
        let mut known = self.known.lock().expect("no panic while held");
        let before = known.get(kind).copied().unwrap_or(Layout::FIRST);
        if layout.follows(before) {
            known.insert(kind.clone(), layout);
            self.changed.send_replace(());
        }
    }

    /// Takes note of what holds, be it older than what was known.
    pub(in crate::store) fn set(&self, kind: &Kind, layout: Layout) {
        let mut known = self.known.lock().expect("no panic while held");
        // Of the first nothing is kept: names that nobody has used would fill the memory.
        let before = match layout {
            Layout::FIRST => known.remove(kind),
            layout => known.insert(kind.clone(), layout),
        };
        if before.unwrap_or(Layout::FIRST) != layout {
            self.changed.send_replace(());
        }
    }
}

/// What stands where a layout is to be written down.
#[derive(Clone, Copy)]
pub(in crate::store) enum Expected {
    /// Whatever it follows.
    Anything,
    Nothing,
    #[cfg(feature = "worker")]
    This(Layout),
}

impl Store {
    /// The layout of a kind, as far as it is known here.
    pub(crate) fn layout_of(&self, kind: &str) -> Layout {
        self.layouts.of(kind)
    }

    /// Changes whenever another layout is known, however it was learned.
    #[cfg(feature = "worker")]
    pub(crate) fn layouts_changed(&self) -> watch::Receiver<()> {
        self.layouts.changed.subscribe()
    }

    /// Takes note of a layout, unless a newer one is known.
    #[cfg(feature = "worker")]
    pub(crate) fn learn_layout(&self, kind: &Kind, layout: Layout) {
        self.layouts.learn(kind, layout);
    }

    /// Finds out by which layout a kind goes, and brings its ledgers up to date. Those of a server that
    /// is away are behind when it is there again, and turn away whoever asks them by the newer one.
    pub(crate) async fn agree(&self, kind: &Kind, until: Instant) -> Result<Layout> {
        let newest = self.look_up(kind, until).await?;
        self.spread_as_can_be(kind, newest, until).await?;
        Ok(newest)
    }

    /// Finds out by which layout a kind goes.
    pub(crate) async fn look_up(&self, kind: &Kind, until: Instant) -> Result<Layout> {
        let home = self.place_of(kind, 0);
        let looked = self.on_each(until, |it, until| {
            Box::pin(it.look_up(kind, it.place() == home, until))
        });
        let (found, away) = looked.await.unless_refused()?;
        let is_all = away.is_empty() && found.iter().all(|(_, is_all)| *is_all);
        let found = found.into_iter().map(|(layout, _)| layout);
        let newest = found.fold(Layout::FIRST, newer);
        let known = self.layout_of(kind.as_str());
        let newest = match known.follows(newest) {
            // One of its ledgers may have said so, where the list and the first were rolled back.
            true => self.newest_of(kind, known, newest, until).await?,
            false => newest,
        };
        match is_all {
            true => self.layouts.set(kind, newest),
            // Whoever is away may know of a newer one that was known here before.
            false => self.layouts.learn(kind, newest),
        }
        Ok(self.layouts.of(kind.as_str()))
    }

    /// The newest of this layout and those that the ledgers know that there are by `known`.
    ///
    /// Rare, and not a part of the type of every call.
    fn newest_of<'a>(
        &'a self,
        kind: &'a Kind,
        known: Layout,
        newest: Layout,
        until: Instant,
    ) -> BoxFuture<'a, Result<Layout>> {
        Box::pin(async move {
            let told = self.of_ledgers(kind, known.ledgers(), until).await?;
            Ok(match told {
                Some(told) if told.follows(newest) => told,
                _ => newest,
            })
        })
    }

    /// Makes so many ledgers of a kind go by this layout, and the list of kinds: those that are empty
    /// from now on as well, so that they turn away whoever comes late.
    pub(crate) async fn spread(
        &self,
        kind: &Kind,
        layout: Layout,
        ledgers: u16,
        until: Instant,
    ) -> Result<()> {
        if layout == Layout::FIRST {
            return Ok(());
        }
        let news = &LayoutNotice::new(kind, layout, ledgers);
        // The list first: whoever stops here is known to have begun.
        let listed = self.on_all(until, |it, until| Box::pin(it.list(news, until)));
        listed.await?;
        let kept = &self.kept_of_kind(news, until).await?;
        let told = self.on_all(until, |it, until| {
            Box::pin(it.tell_ledgers(news, self, kept, until))
        });
        told.await.map(drop)
    }

    /// The same on the servers that are there.
    async fn spread_as_can_be(&self, kind: &Kind, layout: Layout, until: Instant) -> Result<()> {
        if layout == Layout::FIRST {
            return Ok(());
        }
        let news = &LayoutNotice::new(kind, layout, layout.ledgers());
        let listed = self.on_each(until, |it, until| Box::pin(it.list(news, until)));
        listed.await.of_those_there()?;
        let kept = &self.kept_of_kind(news, until).await?;
        let told = self.on_each(until, |it, until| {
            Box::pin(it.tell_those_there(news, self, kept, until))
        });
        told.await.of_those_there().map(drop)
    }

    /// What all ledgers of a kind keep in mind: what the first one does that is there and knows of it.
    /// If none of them does, the rules of pauses hold, as for a kind that is new.
    pub(in crate::store) fn kept_of_kind<'a>(
        &'a self,
        news: &'a LayoutNotice<'_>,
        until: Instant,
    ) -> BoxFuture<'a, Result<LayoutFields>> {
        Box::pin(async move {
            let asked = (0..news.ledgers).map(|shard| {
                let home = self.home_of(news.kind, shard);
                home.kept_of_ledger(news.kind, shard, home.patience_for_one(until))
            });
            for told in join_all(asked).await {
                match told {
                    Ok(None) => {}
                    Err(error) if self.has_parts() && is_of_absence(&error) => {}
                    Ok(Some(kept)) => return Ok(kept),
                    Err(error) => return Err(error),
                }
            }
            let known = self.on_each(until, |it, until| Box::pin(it.switches(until)));
            let known = Switches::together(known.await.of_those_there()?);
            let mut kept = LayoutFields::default();
            if let Some(since) = known.rule_of(news.kind) {
                let turn = self.is_several().then(|| known.newest().0.to_string());
                kept = [
                    ("paused", Some(since.0.to_string())),
                    ("turn", turn),
                    Default::default(),
                ];
            }
            Ok(kept)
        })
    }

    /// The same, without anybody waiting for it: a node that is away would keep a call from ledgers on
    /// other ones.
    pub(in crate::store) fn found_aside(&self, kind: &Kind, layout: Layout, until: Instant) {
        let Some(server) = self.cluster() else {
            return;
        };
        let (server, kind) = (server.clone(), kind.clone());
        tokio::spawn(async move {
            let ledgers = (0..layout.ledgers()).map(|shard| server.found_one(&kind, shard, until));
            for founded in join_all(ledgers).await {
                if let Err(error) = founded {
                    tracing::debug!(%kind, %error, "not all keys of a ledger are there");
                }
            }
        });
    }

    /// Writes a layout down with the kind, if `expected` is what stands there. Returns what stands
    /// there now. Of several servers the one that has the first ledger decides.
    #[cfg(feature = "worker")]
    pub(crate) async fn propose(
        &self,
        kind: &Kind,
        expected: Layout,
        layout: Layout,
        until: Instant,
    ) -> Result<Layout> {
        let kinds = self.names.kinds();
        let expected = Expected::This(expected);
        let home = self.home_of(kind, 0);
        home.set_layout(
            &kinds,
            kind.as_str(),
            layout,
            expected,
            &LayoutFields::default(),
            until,
        )
        .await
    }
}

impl Server {
    /// The same on one server, which may have the first ledger. On a cluster that may be on another
    /// node than the list, and one of the two suffices.
    async fn look_up(&self, kind: &Kind, is_home: bool, until: Instant) -> Result<(Layout, IsAll)> {
        let kinds = self.names.kinds();
        let listed = self.layout_in(kind, &kinds, kind.as_str(), until);
        if !is_home {
            return Ok((listed.await?.unwrap_or(Layout::FIRST), true));
        }
        let calls = self.names.ledger(kind, 0).calls;
        let of_first = self.layout_in(kind, &calls, "layout", until);
        let (told, is_all) = self.one_suffices(listed, of_first).await?;
        let newest = told.into_iter().flatten().fold(Layout::FIRST, newer);
        Ok((newest, is_all))
    }

    /// The layout that is written down there, if one is.
    async fn layout_in(
        &self,
        kind: &Kind,
        key: &str,
        field: &str,
        until: Instant,
    ) -> Result<Option<Layout>> {
        let mut get = redis::cmd("HGET");
        get.arg(key).arg(field);
        let text: Option<String> = from_value(self.command(&get, until).await?)?;
        let Some(text) = text else { return Ok(None) };
        Layout::parse(&text)
            .map(Some)
            .ok_or_else(|| not_ours(kind, key, &text))
    }

    pub(in crate::store) async fn list(
        &self,
        news: &LayoutNotice<'_>,
        until: Instant,
    ) -> Result<()> {
        let (kinds, kind, nothing) = (
            self.names.kinds(),
            news.kind.as_str(),
            LayoutFields::default(),
        );
        let any = Expected::Anything;
        let listed = self.set_layout(&kinds, kind, news.layout, any, &nothing, until);
        listed.await.map(drop)
    }

    async fn kept_of_ledger(
        &self,
        kind: &Kind,
        shard: u16,
        until: Instant,
    ) -> Result<Option<LayoutFields>> {
        let mut get = redis::cmd("HMGET");
        get.arg(self.names.ledger(kind, shard).calls);
        get.arg("layout").arg("paused").arg("turn").arg("history");
        type Told = (
            Option<String>,
            Option<String>,
            Option<String>,
            Option<String>,
        );
        let (layout, paused, turn, history): Told = from_value(self.command(&get, until).await?)?;
        // One that was told a layout was told what goes with it.
        let knows = layout.is_some() || paused.is_some() || history.is_some();
        Ok(knows.then_some([("paused", paused), ("turn", turn), ("history", history)]))
    }

    /// Tells those of the ledgers that this server has.
    pub(in crate::store) async fn tell_ledgers(
        &self,
        news: &LayoutNotice<'_>,
        store: &Store,
        kept: &LayoutFields,
        until: Instant,
    ) -> Result<()> {
        let told = join_all(self.telling(news, store, kept, until)).await;
        told.into_iter().collect::<Result<()>>()?;
        self.found(news.kind, news.ledgers, until).await
    }

    /// The same of those that are on nodes of a cluster that are there.
    async fn tell_those_there(
        &self,
        news: &LayoutNotice<'_>,
        store: &Store,
        kept: &LayoutFields,
        until: Instant,
    ) -> Result<()> {
        if !self.is_cluster() {
            return self.tell_ledgers(news, store, kept, until).await;
        }
        let until = self.patience_for_one(until);
        let told = join_all(self.telling(news, store, kept, until)).await;
        let is_any_there = told.iter().any(Result::is_ok);
        for told in told {
            match told {
                Err(error) if is_any_there && is_of_absence(&error) => {}
                told => told?,
            }
        }
        let founding = (0..news.ledgers).map(|shard| self.found_one(news.kind, shard, until));
        for founded in join_all(founding).await {
            match founded {
                Err(error) if is_of_absence(&error) => {}
                founded => founded?,
            }
        }
        Ok(())
    }

    fn telling<'a>(
        &'a self,
        news: &'a LayoutNotice<'_>,
        store: &Store,
        kept: &'a LayoutFields,
        until: Instant,
    ) -> impl Iterator<Item = impl Future<Output = Result<()>>> {
        let is_here = |shard: &u16| store.place_of(news.kind, *shard) == self.place();
        let shards: Vec<u16> = (0..news.ledgers).filter(is_here).collect();
        shards.into_iter().map(move |shard| async move {
            let ledger = self.names.ledger(news.kind, shard);
            let mut cmd = self.call_on(&LAYOUT, &[&ledger.calls], &ledger);
            add_layout(&mut cmd, "layout", news.layout, Expected::Anything, kept);
            let told = self.layout_after(&cmd, &ledger.subject, "layout", until);
            told.await.map(drop)
        })
    }

    /// On a cluster, sees to it that all keys of these ledgers are there and stay: a slot that moves
    /// is then served by the one node until the first key of the ledger has left, and by the other
    /// as soon as the last has come; see `lua/lib/placeholder.lua`.
    ///
    /// Rare, and not a part of the type of every call.
    pub(crate) fn found<'a>(
        &'a self,
        kind: &'a Kind,
        ledgers: u16,
        until: Instant,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            if self.is_cluster() {
                for shard in 0..ledgers {
                    self.found_one(kind, shard, until).await?;
                }
            }
            Ok(())
        })
    }

    /// Calls `lua/found.lua`.
    pub(in crate::store) async fn found_one(
        &self,
        kind: &Kind,
        shard: u16,
        until: Instant,
    ) -> Result<()> {
        let names = self.names.ledger(kind, shard);
        let cmd = self.call_on(&FOUND, &names.all(), &names);
        let founded = self.eval(&FOUND, &cmd, &self.clock, &names.subject, until);
        founded.await.map(drop)
    }

    /// Calls `lua/layout.lua` on a key.
    pub(in crate::store) async fn set_layout(
        &self,
        key: &str,
        field: &str,
        layout: Layout,
        expected: Expected,
        kept: &LayoutFields,
        until: Instant,
    ) -> Result<Layout> {
        let mut cmd = LAYOUT.call(1);
        cmd.arg(key);
        add_layout(&mut cmd, field, layout, expected, kept);
        self.layout_after(&cmd, key, field, until).await
    }

    /// The layout that is there after a call of `lua/layout.lua`.
    async fn layout_after(
        &self,
        cmd: &Cmd,
        subject: &str,
        field: &str,
        until: Instant,
    ) -> Result<Layout> {
        let called = self.eval(&LAYOUT, cmd, &self.clock, subject, until).await;
        let text = called?.reply.text()?;
        Layout::parse(&text).ok_or_else(|| {
            let told = format!("{subject} has the layout {text:?} for {field}");
            Error::new(ErrorKind::Damaged, told)
        })
    }

    /// A call of a script on keys of a ledger that are not those of [`Ledger::call`].
    fn call_on(&self, script: &'static Script, keys: &[&str], ledger: &LedgerNames) -> Cmd {
        if self.is_cluster() {
            return script.call_on_whole(keys, ledger);
        }
        let mut cmd = script.call(keys.len());
        cmd.arg(keys);
        cmd
    }
}

/// The arguments of `lua/layout.lua`.
fn add_layout(cmd: &mut Cmd, field: &str, layout: Layout, expected: Expected, kept: &LayoutFields) {
    cmd.arg(field).arg(layout.to_string());
    match expected {
        Expected::Anything => cmd.arg(""),
        Expected::Nothing => cmd.arg("-"),
        #[cfg(feature = "worker")]
        Expected::This(layout) => cmd.arg(layout.to_string()),
    };
    for (name, value) in kept {
        if let Some(value) = value {
            cmd.arg(name).arg(value);
        }
    }
}

/// What the ledgers of a kind are told.
pub(in crate::store) struct LayoutNotice<'a> {
    kind: &'a Kind,
    layout: Layout,
    /// How many of them.
    ledgers: u16,
}

impl<'a> LayoutNotice<'a> {
    pub(in crate::store) fn new(kind: &'a Kind, layout: Layout, ledgers: u16) -> Self {
        LayoutNotice {
            kind,
            layout,
            ledgers,
        }
    }
}

/// What a ledger keeps in mind of its kind, by field.
pub(in crate::store) type LayoutFields = [(&'static str, Option<String>); 3];

/// Whether all were seen that may know of a layout.
type IsAll = bool;

fn newer(one: Layout, other: Layout) -> Layout {
    match other.follows(one) {
        true => other,
        false => one,
    }
}

fn not_ours(kind: &Kind, key: &str, text: &str) -> Error {
    Error::new(
        ErrorKind::Incompatible,
        format!(
            "{kind} has the layout {text:?} in {key}, which this version does not know: run the \
             version of Keyfall that wrote it, or use another namespace"
        ),
    )
}
