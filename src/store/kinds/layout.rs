//! Layouts: how many ledgers a kind has, and how all clients and ledgers come to agree on it.
//!
//! The layout of a kind is stored in the list of kinds and in each of its ledgers. A ledger refuses
//! calls with another layout. If two places disagree, the newer layout holds. A client that finds a
//! place with an older one, after a fail-over or after a client that stopped half-way, brings it up
//! to date.

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
use crate::store::ledger::script::{FOUND, LAYOUT, START, Script};
use crate::store::servers::fan_out::is_of_absence;
use crate::store::{Server, Store, from_value};

/// The layouts of kinds, as far as this client knows them. A kind that is not in it has
/// [`Layout::FIRST`].
#[derive(Default)]
pub(in crate::store) struct Layouts {
    known: Mutex<HashMap<Kind, Layout>>,
    /// Notified of every change.
    changed: watch::Sender<()>,
}

impl Layouts {
    /// The layout of a kind, as far as it is known here.
    pub(in crate::store) fn of(&self, kind: &str) -> Layout {
        let known = self.known.lock().expect("no panic while held");
        known.get(kind).copied().unwrap_or(Layout::FIRST)
    }

    /// Notes a layout, unless a newer one is known.
    pub(in crate::store) fn learn(&self, kind: &Kind, layout: Layout) {
        let mut known = self.known.lock().expect("no panic while held");
        let before = known.get(kind).copied().unwrap_or(Layout::FIRST);
        if layout.follows(before) {
            known.insert(kind.clone(), layout);
            self.changed.send_replace(());
        }
    }

    /// Notes the layout that holds, even if a newer one was known.
    pub(in crate::store) fn set(&self, kind: &Kind, layout: Layout) {
        let mut known = self.known.lock().expect("no panic while held");
        // The first layout is not stored: names of kinds that nobody has used would fill the
        // memory.
        let before = match layout {
            Layout::FIRST => known.remove(kind),
            layout => known.insert(kind.clone(), layout),
        };
        if before.unwrap_or(Layout::FIRST) != layout {
            self.changed.send_replace(());
        }
    }
}

/// The condition of a write of a layout, on the layout that is stored there.
#[derive(Clone, Copy)]
pub(in crate::store) enum Expected {
    /// Any layout that the new one follows.
    Anything,
    /// This layout.
    #[cfg(feature = "worker")]
    This(Layout),
}

impl Store {
    /// The layout of a kind, as far as it is known here; no I/O.
    pub(crate) fn layout_of(&self, kind: &str) -> Layout {
        self.layouts.of(kind)
    }

    /// Notified of every change of a known layout.
    #[cfg(feature = "worker")]
    pub(crate) fn layouts_changed(&self) -> watch::Receiver<()> {
        self.layouts.changed.subscribe()
    }

    /// Notes a layout, unless a newer one is known.
    #[cfg(feature = "worker")]
    pub(crate) fn learn_layout(&self, kind: &Kind, layout: Layout) {
        self.layouts.learn(kind, layout);
    }

    /// Looks up the layout of a kind, and brings its ledgers up to date. Ledgers on a server that
    /// is away stay behind; when the server is back, they refuse calls by the newer layout.
    ///
    /// # Errors
    ///
    /// If no server can be reached, or one refuses.
    pub(crate) async fn agree(&self, kind: &Kind, until: Instant) -> Result<Layout> {
        let newest = self.look_up(kind, until).await?;
        self.spread_as_can_be(kind, newest, until).await?;
        Ok(newest)
    }

    /// Looks up the layout of a kind, in the list of kinds of each server and in its first ledger.
    /// Returns the newest layout, and notes it.
    ///
    /// While a server is away, a layout that was known before is kept, even if it is newer than the
    /// layouts that were found.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Incompatible`] if a layout has a form that this version does not know.
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
            // One of its ledgers may have said so, if the list and the first ledger were rolled
            // back.
            true => self.newest_of(kind, known, newest, until).await?,
            false => newest,
        };
        match is_all {
            true => self.layouts.set(kind, newest),
            // A server that is away may have a newer layout, which was known here before.
            false => self.layouts.learn(kind, newest),
        }
        Ok(self.layouts.of(kind.as_str()))
    }

    /// The newest of `newest` and the layouts that the ledgers store, as many ledgers as `known`
    /// has.
    ///
    /// It is rarely needed, and boxed so that it does not enlarge the future of every call.
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

    /// Writes this layout to the list of kinds of each server and to the first `ledgers` ledgers of
    /// a kind. Empty ledgers are told, too, so that they refuse late calls by another layout. A
    /// kind with [`Layout::FIRST`] needs nothing.
    ///
    /// # Errors
    ///
    /// If one of the servers is away, or refuses. A repeat is harmless.
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
        // The list first: if this client stops here, others see that it has begun.
        let listed = self.on_all(until, |it, until| Box::pin(it.list(news, until)));
        listed.await?;
        let kept = &self.kept_of_kind(news, until).await?;
        let told = self.on_all(until, |it, until| {
            Box::pin(it.tell_ledgers(news, self, kept, until))
        });
        told.await.map(drop)
    }

    /// As `spread`, but leaves out servers and nodes that are away.
    pub(in crate::store) async fn spread_as_can_be(
        &self,
        kind: &Kind,
        layout: Layout,
        until: Instant,
    ) -> Result<()> {
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

    /// The fields that all ledgers of a kind have in common: pause, turn and length of the history.
    /// They are read from the first of its ledgers that can be reached and has them. If no ledger
    /// has them, the pause rules decide, as for a new kind.
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

    /// Creates the missing keys of all ledgers of a kind on a cluster, in a background task: a node
    /// that is away must not hold up a call on ledgers of other nodes.
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

    /// Writes a layout to the list of kinds, if `expected` is stored there. Returns the layout that
    /// is stored there afterwards: `layout` on success, another one if another client was faster.
    /// Of several servers the one with the first ledger decides.
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
    /// As [`Store::look_up`], on one server. If `is_home`, the server also has the first ledger. On
    /// a cluster the first ledger may be on another node than the list; one of the two nodes
    /// suffices.
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

    /// The layout in a field of a hash; `None` if the field is missing.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Incompatible`] if the field holds a layout that this version cannot read.
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

    /// Writes a layout to the list of kinds of this server, if it follows the one that is stored
    /// there.
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

    /// The fields of one ledger that hold for the whole kind; `None` if the ledger was never told
    /// them.
    async fn kept_of_ledger(
        &self,
        kind: &Kind,
        shard: u16,
        until: Instant,
    ) -> Result<Option<LayoutFields>> {
        let mut get = redis::cmd("HMGET");
        get.arg(self.names.ledger(kind, shard).calls);
        get.arg("layout").arg("founding");
        get.arg("paused").arg("turn").arg("history");
        let told: [Option<String>; 5] = from_value(self.command(&get, until).await?)?;
        let [layout, founding, paused, turn, history] = told;
        // A ledger that was told a layout was told the other fields with it, unless the kind is
        // still being founded.
        let was_told = layout.is_some() && founding.is_none();
        let knows = was_told || paused.is_some() || history.is_some();
        Ok(knows.then_some([("paused", paused), ("turn", turn), ("history", history)]))
    }

    /// Tells a layout to the ledgers that are on this server, and creates their missing keys on a
    /// cluster.
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

    /// As [`Self::tell_ledgers`], but leaves out nodes of a cluster that are away. Fails if all of
    /// them are.
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
        match told.iter().any(Result::is_ok) {
            true => unless_refused(told)?,
            false => told.into_iter().collect::<Result<()>>()?,
        }
        let founding = (0..news.ledgers).map(|shard| self.found_one(news.kind, shard, until));
        unless_refused(join_all(founding).await)
    }

    /// The calls that tell a layout to each ledger on this server.
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

    /// On a cluster, creates the missing keys of the first `ledgers` ledgers of a kind; they then
    /// stay. With all keys in place, the source of a moving slot serves it until the first key of
    /// the ledger has left, and the target serves it once the last one has come; see
    /// `lua/lib/placeholder.lua`.
    ///
    /// It is rarely needed, and boxed so that it does not enlarge the future of every call.
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

    /// Creates the missing keys of one ledger; `lua/found.lua`. It changes no key that exists, also
    /// none of another type, and may be repeated.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Full`] while Redis is at its memory limit.
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

    /// Writes a layout to a field of a hash, under a condition; `lua/layout.lua`. Returns the
    /// layout that is stored there afterwards. The call may be repeated and be late: a newer layout
    /// stays.
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

    /// Writes a layout to the first ledger of a kind, if that is new; `lua/start.lua`. Returns the
    /// layout of the ledger after that. The call may be repeated and be late.
    pub(in crate::store) async fn start(
        &self,
        kind: &Kind,
        layout: Layout,
        until: Instant,
    ) -> Result<Layout> {
        let first = self.names.ledger(kind, 0);
        let mut cmd = self.call_on(&START, &[&first.stats, &first.calls], &first);
        cmd.arg(layout.to_string());
        let called = self.eval(&START, &cmd, &self.clock, &first.subject, until);
        match called.await?.reply.text()?.as_str() {
            "" => Ok(Layout::FIRST),
            text => Layout::parse(text).ok_or_else(|| not_ours(kind, &first.calls, text)),
        }
    }

    /// Sends a call of `lua/layout.lua`, and returns the layout that is stored after it.
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

    /// A call of a script on keys of a ledger, for scripts that do not go through
    /// [`Ledger::call`](crate::store::Ledger).
    pub(in crate::store) fn call_on(
        &self,
        script: &'static Script,
        keys: &[&str],
        ledger: &LedgerNames,
    ) -> Cmd {
        if self.is_cluster() {
            return script.call_on_whole(keys, ledger);
        }
        let mut cmd = script.call(keys.len());
        cmd.arg(keys);
        cmd
    }
}

/// Adds the arguments of `lua/layout.lua`.
fn add_layout(cmd: &mut Cmd, field: &str, layout: Layout, expected: Expected, kept: &LayoutFields) {
    cmd.arg(field).arg(layout.to_string());
    match expected {
        Expected::Anything => cmd.arg(""),
        #[cfg(feature = "worker")]
        Expected::This(layout) => cmd.arg(layout.to_string()),
    };
    for (name, value) in kept {
        if let Some(value) = value {
            cmd.arg(name).arg(value);
        }
    }
}

/// The layout of a kind, as its ledgers are told.
pub(in crate::store) struct LayoutNotice<'a> {
    kind: &'a Kind,
    layout: Layout,
    /// How many ledgers are told, counted from the first.
    ledgers: u16,
}

impl<'a> LayoutNotice<'a> {
    /// A notice for the first `ledgers` ledgers of a kind.
    pub(in crate::store) fn new(kind: &'a Kind, layout: Layout, ledgers: u16) -> Self {
        LayoutNotice {
            kind,
            layout,
            ledgers,
        }
    }
}

/// The fields that each ledger of a kind keeps in `calls` for the whole kind: name and value.
/// `None` is not written.
pub(in crate::store) type LayoutFields = [(&'static str, Option<String>); 3];

/// Whether all places that may know of a layout were read.
type IsAll = bool;

/// Passes on the first refusal. A node that is away is left out.
fn unless_refused(told: Vec<Result<()>>) -> Result<()> {
    let is_away = |told: &Result<()>| told.as_ref().is_err_and(is_of_absence);
    told.into_iter().filter(|told| !is_away(told)).collect()
}

/// The newer of two layouts.
fn newer(one: Layout, other: Layout) -> Layout {
    match other.follows(one) {
        true => other,
        false => one,
    }
}

/// The error for a layout that this version cannot read.
fn not_ours(kind: &Kind, key: &str, text: &str) -> Error {
    Error::new(
        ErrorKind::Incompatible,
        format!(
            "{kind} has the layout {text:?} in {key}, which this version does not know: run the \
             version of Keyfall that wrote it, or use another namespace"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind() -> Kind {
        Kind::parse("app1:trans:notice").unwrap()
    }

    fn layout(text: &str) -> Layout {
        Layout::parse(text).unwrap()
    }

    #[test]
    fn each_change_of_a_layout_is_told_and_nothing_else() {
        let (layouts, kind) = (Layouts::default(), kind());
        let mut changed = layouts.changed.subscribe();
        let mut is_told = || {
            let is_told = changed.has_changed().unwrap();
            changed.mark_unchanged();
            is_told
        };
        let (older, newer) = (layout("2 5"), layout("4 7"));
        layouts.set(&kind, Layout::FIRST);
        assert!(!is_told(), "a new kind has the first layout anyway");
        layouts.set(&kind, newer);
        assert!(is_told() && layouts.of(kind.as_str()) == newer);
        layouts.set(&kind, newer);
        layouts.learn(&kind, older);
        assert!(!is_told() && layouts.of(kind.as_str()) == newer);
        layouts.set(&kind, older);
        assert!(is_told() && layouts.of(kind.as_str()) == older);
        layouts.learn(&kind, newer);
        assert!(is_told() && layouts.of(kind.as_str()) == newer);
        layouts.set(&kind, Layout::FIRST);
        assert!(is_told() && layouts.of(kind.as_str()) == Layout::FIRST);
        assert!(layouts.known.lock().unwrap().is_empty());
    }

    #[test]
    fn only_nodes_that_are_away_are_left_out() {
        let told = |words: &str| {
            let told = words.split(' ').map(|word| match word {
                "told" => Ok(()),
                "away" => Err(ErrorKind::Unavailable),
                "lost" => Err(ErrorKind::OutcomeUnknown),
                _ => Err(ErrorKind::Full),
            });
            let told = told.map(|told| told.map_err(|kind| Error::new(kind, "an answer")));
            unless_refused(told.collect()).map_err(|error| error.kind())
        };
        for all_well in ["told", "told away", "lost told", "away lost"] {
            assert_eq!(told(all_well), Ok(()), "{all_well}");
        }
        for refused in ["full", "told full", "away full told", "full lost"] {
            assert_eq!(told(refused), Err(ErrorKind::Full), "{refused}");
        }
    }

    #[cfg(feature = "worker")]
    #[tokio::test]
    async fn a_worker_that_hears_of_a_newer_layout_uses_it() {
        let names = crate::names::Names::new("keyfall");
        let store = Store::new("redis://127.0.0.1:1", names, &Default::default()).unwrap();
        let kind = kind();
        store.learn_layout(&kind, layout("4 7"));
        store.learn_layout(&kind, layout("2 5"));
        assert_eq!(store.layout_of(kind.as_str()), layout("4 7"));
    }
}
