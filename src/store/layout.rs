//! How many ledgers a kind has, and how all come to agree on it.
//!
//! It is written down with the kind, and in each ledger, which refuses calls that go by another
//! layout. Whatever two of them say, the newer holds; and whoever finds out that one of them is
//! behind, because a fail-over forgot it or somebody stopped half-way, brings it up to date.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use futures_util::future::{BoxFuture, join_all};

use super::call::Called;
use super::script::{FOUND, LAYOUT};
use super::several::is_of_absence;
use super::{Store, from_value};
use crate::error::{Error, ErrorKind, Result};
use crate::key::Kind;
use crate::shards::Layout;

/// The layouts of kinds, as far as they are known; of others it is assumed that they are as they
/// were first.
#[derive(Default)]
pub(super) struct Layouts(Mutex<HashMap<Kind, Layout>>);

impl Layouts {
    pub(super) fn of(&self, kind: &str) -> Layout {
        let known = self.0.lock().expect("no panic while held");
        known.get(kind).copied().unwrap_or(Layout::FIRST)
    }

    /// Takes note of a layout, unless a newer one is known.
    pub(super) fn learn(&self, kind: &Kind, layout: Layout) {
        let mut known = self.0.lock().expect("no panic while held");
        let before = known.get(kind).copied().unwrap_or(Layout::FIRST);
        if layout.follows(before) {
            known.insert(kind.clone(), layout);
        }
    }

    /// Takes note of what holds, be it older than what was known.
    pub(super) fn set(&self, kind: &Kind, layout: Layout) {
        let mut known = self.0.lock().expect("no panic while held");
        known.insert(kind.clone(), layout);
    }
}

/// What stands where a layout is to be written down.
#[derive(Clone, Copy)]
pub(super) enum Expected {
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
            Box::pin(it.look_up_here(kind, it.place() == home, until))
        });
        let (found, away) = looked.await.unless_refused()?;
        let newest = found.into_iter().fold(Layout::FIRST, |newest, layout| {
            match layout.follows(newest) {
                true => layout,
                false => newest,
            }
        });
        let known = self.layout_of(kind.as_str());
        let newest = match known.follows(newest) {
            // One of its ledgers may have said so, where the list and the first were rolled back.
            true => self.newest_of(kind, known, newest, until).await?,
            false => newest,
        };
        match away.is_empty() {
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

    /// The same on one server, which may have the first ledger.
    async fn look_up_here(&self, kind: &Kind, is_home: bool, until: Instant) -> Result<Layout> {
        let mut newest = Layout::FIRST;
        let kinds = self.names.kinds();
        let first = is_home.then(|| self.names.ledger(kind, 0).calls);
        let of_first = first.iter().map(|calls| (calls, "layout"));
        for (key, field) in [(&kinds, kind.as_str())].into_iter().chain(of_first) {
            let mut get = redis::cmd("HGET");
            get.arg(key).arg(field);
            let text: Option<String> = from_value(self.command(&get, until).await?)?;
            let Some(text) = text else { continue };
            let layout = Layout::parse(&text).ok_or_else(|| not_ours(kind, key, &text))?;
            if layout.follows(newest) {
                newest = layout;
            }
        }
        Ok(newest)
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
        let news = &News::new(kind, layout, ledgers);
        // The list first: whoever stops here is known to have begun.
        let listed = self.on_all(until, |it, until| Box::pin(it.list(news, until)));
        listed.await?;
        let kept = &self.home_of(kind, 0).kept_of_kind(kind, until).await?;
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
        let news = &News::new(kind, layout, layout.ledgers());
        let listed = self.on_each(until, |it, until| Box::pin(it.list(news, until)));
        listed.await.of_those_there()?;
        let home = self.home_of(kind, 0);
        let kept = match home.kept_of_kind(kind, home.patience(until)).await {
            // The other ledgers were told when they came to be.
            Err(error) if self.is_several() && is_of_absence(&error) => Kept::default(),
            kept => kept?,
        };
        let told = self.on_each(until, |it, until| {
            Box::pin(it.tell_ledgers(news, self, &kept, until))
        });
        told.await.of_those_there().map(drop)
    }

    async fn list(&self, news: &News<'_>, until: Instant) -> Result<()> {
        let (kinds, kind, nothing) = (self.names.kinds(), news.kind.as_str(), Kept::default());
        let listed = self.set_layout(
            &kinds,
            kind,
            news.layout,
            Expected::Anything,
            &nothing,
            until,
        );
        listed.await.map(drop)
    }

    /// What all ledgers of a kind keep in mind, as the first one does.
    async fn kept_of_kind(&self, kind: &Kind, until: Instant) -> Result<Kept> {
        let mut get = redis::cmd("HMGET");
        get.arg(self.names.ledger(kind, 0).calls);
        get.arg("paused").arg("history");
        let (paused, history) = from_value(self.command(&get, until).await?)?;
        Ok([("paused", paused), ("history", history)])
    }

    /// Tells those of the ledgers that this server has.
    async fn tell_ledgers(
        &self,
        news: &News<'_>,
        whole: &Store,
        kept: &Kept,
        until: Instant,
    ) -> Result<()> {
        let is_here = |shard: &u16| whole.place_of(news.kind, *shard) == self.place();
        for shard in (0..news.ledgers).filter(is_here) {
            let calls = self.names.ledger(news.kind, shard).calls;
            self.set_layout(
                &calls,
                "layout",
                news.layout,
                Expected::Anything,
                kept,
                until,
            )
            .await?;
        }
        self.found(news.kind, news.ledgers, until).await
    }

    /// On a cluster, sees to it that all keys of these ledgers are there and stay: a slot that moves
    /// is then served by the one node until the first key of the ledger has left, and by the other
    /// as soon as the last has come; see `lua/lib/placeholder.lua`.
    ///
    /// Rare, and not a part of the type of every call.
    pub(super) fn found<'a>(
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

    /// The same, without anybody waiting for it: a node that is away would keep a call from ledgers on
    /// other ones.
    pub(super) fn found_aside(self: &Arc<Self>, kind: &Kind, layout: Layout, until: Instant) {
        if !self.is_cluster() {
            return;
        }
        let (store, kind) = (self.clone(), kind.clone());
        tokio::spawn(async move {
            let ledgers = (0..layout.ledgers()).map(|shard| store.found_one(&kind, shard, until));
            for founded in join_all(ledgers).await {
                if let Err(error) = founded {
                    tracing::debug!(%kind, %error, "not all keys of a ledger are there");
                }
            }
        });
    }

    /// Calls `lua/found.lua`.
    pub(super) async fn found_one(&self, kind: &Kind, shard: u16, until: Instant) -> Result<()> {
        let names = self.names.ledger(kind, shard);
        let mut cmd = FOUND.call(FOUND.fixed_keys);
        cmd.arg(&names.all()[..]);
        let founded = self.eval(&FOUND, &cmd, &self.clock, &names.subject, until);
        founded.await.map(drop)
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
            &Kept::default(),
            until,
        )
        .await
    }

    /// Calls `lua/layout.lua`.
    pub(super) async fn set_layout(
        &self,
        key: &str,
        field: &str,
        layout: Layout,
        expected: Expected,
        kept: &Kept,
        until: Instant,
    ) -> Result<Layout> {
        let mut cmd = LAYOUT.call(1);
        cmd.arg(key).arg(field).arg(layout.to_string());
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
        let Called { mut reply, .. } = self.eval(&LAYOUT, &cmd, &self.clock, key, until).await?;
        let text = reply.text()?;
        Layout::parse(&text).ok_or_else(|| {
            Error::new(
                ErrorKind::Damaged,
                format!("{key} has the layout {text:?} for {field}"),
            )
        })
    }
}

/// What the ledgers of a kind are told.
struct News<'a> {
    kind: &'a Kind,
    layout: Layout,
    /// How many of them.
    ledgers: u16,
}

impl<'a> News<'a> {
    fn new(kind: &'a Kind, layout: Layout, ledgers: u16) -> Self {
        News {
            kind,
            layout,
            ledgers,
        }
    }
}

/// What a ledger keeps in mind of its kind, by field.
type Kept = [(&'static str, Option<String>); 2];

fn not_ours(kind: &Kind, key: &str, text: &str) -> Error {
    Error::new(
        ErrorKind::Incompatible,
        format!(
            "{kind} has the layout {text:?} in {key}, which this version does not know: run the \
             version of Keyfall that wrote it, or use another namespace"
        ),
    )
}
