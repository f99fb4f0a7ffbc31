//! Whether there is anything of a kind, and removing one in which nothing is.
//!
//! What decides is one script on the first ledger of the kind, which by then is the only one that takes
//! jobs. Whoever stores a job there afterwards is told that it is the first one, and makes the kind
//! known anew before it is acknowledged; so the kind is taken off the list only if nobody has.

use std::time::Instant;

use super::script::IDLE;
#[cfg(feature = "worker")]
use super::script::{RAZE, UNLIST};
use super::{Ledger, Store};
use crate::error::Result;
use crate::key::Kind;
#[cfg(feature = "worker")]
use crate::shards::Layout;
use crate::time::UnixMs;

/// The field of the list of kinds that marks one that is about to be dropped. No kind is called so.
pub(super) fn dropping(kind: &Kind) -> String {
    format!("={kind}")
}

/// What became of a ledger that was to be removed.
#[cfg(feature = "worker")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Razed {
    Gone,
    /// So much holds it.
    Held(u64),
    /// It goes by another layout.
    Stale(Layout),
}

impl Store {
    /// Whether there is anything of the first ledger of a kind.
    pub(crate) async fn has_any_of(&self, kind: &Kind, until: Instant) -> Result<bool> {
        Ok(self.home_of(kind, 0).look(kind, 0, false, until).await?.0)
    }

    /// Calls `lua/idle.lua`. Returns whether there is anything of a ledger, and when it was last called.
    async fn look(
        &self,
        kind: &Kind,
        shard: u16,
        since: bool,
        until: Instant,
    ) -> Result<(bool, UnixMs)> {
        let n = self.names.ledger(kind, shard);
        let keys = n.of_looks();
        // A ledger of which a part is elsewhere is not taken for one of which nothing is there.
        let mut cmd = match self.is_cluster() {
            true => IDLE.call_on_whole(&keys, &n),
            false => {
                let mut cmd = IDLE.call(keys.len());
                cmd.arg(&keys[..]);
                cmd
            }
        };
        cmd.arg(u8::from(since));
        let called = self.eval(&IDLE, &cmd, &self.clock, &n.subject, until);
        let mut reply = called.await?.reply;
        Ok((reply.number()? > 0, UnixMs(reply.number()?)))
    }

    /// Marks a kind as about to be taken off the list.
    #[cfg(feature = "worker")]
    pub(crate) async fn mark_dropping(&self, kind: &Kind, until: Instant) -> Result<()> {
        let marked = self.on_all(until, |it, until| {
            Box::pin(async move {
                let mut mark = redis::cmd("HSET");
                mark.arg(it.names.kinds()).arg(dropping(kind)).arg("1");
                it.command(&mark, until).await.map(drop)
            })
        });
        marked.await.map(drop)
    }

    /// Takes the mark away, as whoever makes the kind known does.
    #[cfg(feature = "worker")]
    pub(crate) async fn keep_listed(&self, kind: &Kind, until: Instant) -> Result<()> {
        let layout = self.layout_of(kind.as_str());
        let kept = self.on_all(until, |it, until| {
            Box::pin(it.enlist_here(kind, layout, until))
        });
        kept.await.map(drop)
    }

    /// Takes a kind off the list of each server, unless somebody has made it known since it was marked;
    /// `lua/unlist.lua`. Returns whether it is off one of them by that.
    #[cfg(feature = "worker")]
    pub(crate) async fn unlist(&self, kind: &Kind, until: Instant) -> Result<bool> {
        let unlisted = self.on_all(until, |it, until| {
            Box::pin(async move {
                let kinds = it.names.kinds();
                let mut cmd = UNLIST.call(UNLIST.fixed_keys);
                cmd.arg(&kinds).arg(kind.as_str());
                let called = it.eval(&UNLIST, &cmd, &it.clock, &kinds, until).await;
                called?.reply.number()
            })
        });
        let unlisted = unlisted.await?;
        self.forget_layout(kind);
        Ok(unlisted.contains(&1))
    }

    /// A kind was dropped: if it comes again, it is as it was first.
    #[cfg(feature = "worker")]
    pub(crate) fn forget_layout(&self, kind: &Kind) {
        self.layouts.set(kind, Layout::FIRST);
    }
}

impl Ledger {
    /// When it was last called, if that is remembered.
    #[cfg(feature = "worker")]
    pub(crate) async fn last_called(&self, until: Instant) -> Result<Option<UnixMs>> {
        let looked = self
            .store
            .look(self.kind(), self.place().shard, true, until);
        let (_, called) = looked.await?;
        Ok((called.0 > 0).then_some(called))
    }

    /// Removes it, if nothing is in it; `lua/raze.lua`.
    #[cfg(feature = "worker")]
    pub(crate) async fn raze(&self, until: Instant) -> Result<Razed> {
        let mut cmd = self.call(&RAZE, &self.names.all(), [].into_iter());
        cmd.arg(self.place().to_string());
        let mut reply = self.eval(&RAZE, &cmd, until).await?.reply;
        if reply.status == "stale" {
            let layout = Layout::parse(&reply.text()?);
            return Ok(Razed::Stale(layout.unwrap_or(Layout::FIRST)));
        }
        Ok(match reply.number()? {
            0 => Razed::Gone,
            held => Razed::Held(held),
        })
    }
}
