//! How many ledgers a kind has, and how all come to agree on it.
//!
//! It is written down with the kind, and in each ledger, which refuses calls that go by another
//! layout. Whatever two of them say, the newer holds; and whoever finds out that one of them is
//! behind, because a fail-over forgot it or somebody stopped half-way, brings it up to date.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Instant;

use super::call::Called;
use super::script::{FOUND, LAYOUT};
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
    fn set(&self, kind: &Kind, layout: Layout) {
        let mut known = self.0.lock().expect("no panic while held");
        known.insert(kind.clone(), layout);
    }
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

    /// Finds out by which layout a kind goes, and brings its ledgers up to date.
    pub(crate) async fn agree(&self, kind: &Kind, until: Instant) -> Result<Layout> {
        let newest = self.look_up(kind, until).await?;
        self.spread(kind, newest, newest.ledgers(), until).await?;
        Ok(newest)
    }

    /// Finds out by which layout a kind goes.
    pub(crate) async fn look_up(&self, kind: &Kind, until: Instant) -> Result<Layout> {
        let mut newest = Layout::FIRST;
        let kinds = self.names.kinds();
        let first = self.names.ledger(kind, 0).calls;
        for (key, field) in [(&kinds, kind.as_str()), (&first, "layout")] {
            let mut get = redis::cmd("HGET");
            get.arg(key).arg(field);
            let text: Option<String> = from_value(self.command(&get, until).await?)?;
            let Some(text) = text else { continue };
            let layout = Layout::parse(&text).ok_or_else(|| not_ours(kind, key, &text))?;
            if layout.follows(newest) {
                newest = layout;
            }
        }
        self.layouts.set(kind, newest);
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
        if layout != Layout::FIRST {
            // The list first: whoever stops here is known to have begun.
            self.set_layout(&self.names.kinds(), kind.as_str(), layout, None, &[], until)
                .await?;
            let first = self.names.ledger(kind, 0).calls;
            let mut get = redis::cmd("HMGET");
            get.arg(first).arg("paused").arg("history");
            let (paused, history): (Option<String>, Option<String>) =
                from_value(self.command(&get, until).await?)?;
            let kept = [("paused", paused), ("history", history)];
            for shard in 0..ledgers {
                let calls = self.names.ledger(kind, shard).calls;
                self.set_layout(&calls, "layout", layout, None, &kept, until)
                    .await?;
            }
            self.found(kind, ledgers, until).await?;
        }
        Ok(())
    }

    /// On a cluster, sees to it that all keys of these ledgers are there and stay: a slot that moves
    /// is then served by the one node until the first key of the ledger has left, and by the other
    /// as soon as the last has come; see `lua/lib/placeholder.lua`.
    pub(super) async fn found(&self, kind: &Kind, ledgers: u16, until: Instant) -> Result<()> {
        if !self.is_cluster() {
            return Ok(());
        }
        for shard in 0..ledgers {
            self.found_one(kind, shard, until).await?;
        }
        Ok(())
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
    /// there now.
    #[cfg(feature = "worker")]
    pub(crate) async fn propose(
        &self,
        kind: &Kind,
        expected: Layout,
        layout: Layout,
        until: Instant,
    ) -> Result<Layout> {
        let kinds = self.names.kinds();
        let expected = Some(expected);
        self.set_layout(&kinds, kind.as_str(), layout, expected, &[], until)
            .await
    }

    /// Calls `lua/layout.lua`.
    pub(super) async fn set_layout(
        &self,
        key: &str,
        field: &str,
        layout: Layout,
        expected: Option<Layout>,
        kept: &[(&str, Option<String>)],
        until: Instant,
    ) -> Result<Layout> {
        let mut cmd = LAYOUT.call(1);
        cmd.arg(key).arg(field).arg(layout.to_string());
        cmd.arg(expected.map_or(String::new(), |layout| layout.to_string()));
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

fn not_ours(kind: &Kind, key: &str, text: &str) -> Error {
    Error::new(
        ErrorKind::Incompatible,
        format!(
            "{kind} has the layout {text:?} in {key}, which this version does not know: run the \
             version of Keyfall that wrote it, or use another namespace"
        ),
    )
}
