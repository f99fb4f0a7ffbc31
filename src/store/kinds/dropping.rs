//! Whether there is anything of a kind, and removing one in which nothing is.
//!
//! What decides is one script on the first ledger of the kind, which by then is the only one that takes
//! jobs. Whoever stores a job there afterwards is told that the ledger is new, and makes the kind known
//! before the job is acknowledged, until somebody has; so the kind is taken off the list only if nobody
//! has.

use std::time::Instant;

use crate::error::Result;
use crate::key::Kind;
#[cfg(feature = "worker")]
use crate::shards::Layout;
use crate::store::ledger::reply::Unlisted;
#[cfg(feature = "worker")]
use crate::store::ledger::script::RAZE;
use crate::store::ledger::script::{IDLE, UNMARK};
use crate::store::{Ledger, Server, Store};
use crate::time::UnixMs;

/// The field of `calls` by which a ledger says that its kind is to be made known.
const UNLISTED: &str = "unlisted";

/// The field of the list of kinds that marks one that is about to be dropped. No kind is called so.
pub(in crate::store) fn dropping(kind: &Kind) -> String {
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

    /// Marks a kind as about to be taken off the list, by a mark that nobody else has.
    #[cfg(feature = "worker")]
    pub(crate) async fn mark_dropping(
        &self,
        kind: &Kind,
        mark: &str,
        until: Instant,
    ) -> Result<()> {
        let marked = self.on_all(until, |it, until| {
            Box::pin(async move {
                let mut cmd = redis::cmd("HSET");
                cmd.arg(it.names.kinds()).arg(dropping(kind)).arg(mark);
                it.command(&cmd, until).await.map(drop)
            })
        });
        marked.await.map(drop)
    }

    /// Takes that mark away, and sees to it that the kind is listed.
    #[cfg(feature = "worker")]
    pub(crate) async fn keep_listed(&self, kind: &Kind, mark: &str, until: Instant) -> Result<()> {
        let layout = self.layout_of(kind.as_str()).to_string();
        let kept = self.on_all(until, |it, until| {
            let layout = layout.clone();
            Box::pin(async move {
                let kinds = it.names.kinds();
                it.unmark(&kinds, &dropping(kind), mark, &[], until).await?;
                let mut list = redis::cmd("HSETNX");
                list.arg(&kinds).arg(kind.as_str()).arg(layout);
                it.command(&list, until).await.map(drop)
            })
        });
        kept.await.map(drop)
    }

    /// Takes a kind off the list of each server that still has that mark: nobody has made the kind known
    /// since, nor begun to drop it, too. Returns whether it is off one of them by that.
    #[cfg(feature = "worker")]
    pub(crate) async fn unlist(&self, kind: &Kind, mark: &str, until: Instant) -> Result<bool> {
        let unlisted = self.on_all(until, |it, until| {
            Box::pin(async move {
                let listed = [kind.as_str()];
                it.unmark(&it.names.kinds(), &dropping(kind), mark, &listed, until)
                    .await
            })
        });
        let unlisted = unlisted.await?;
        self.forget_layout(kind);
        Ok(unlisted.contains(&true))
    }

    /// The kind of that ledger was made known, after the ledger had said that it was to be.
    pub(crate) async fn is_listed(
        &self,
        kind: &Kind,
        unlisted: Unlisted,
        until: Instant,
    ) -> Result<()> {
        let home = self.home_of(kind, unlisted.shard);
        let calls = home.names.ledger(kind, unlisted.shard).calls;
        let mark = unlisted.since.0.to_string();
        let unmarked = home.unmark(&calls, UNLISTED, &mark, &[], until);
        unmarked.await.map(drop)
    }

    /// A kind was dropped: if it comes again, it is as it was first.
    #[cfg(feature = "worker")]
    pub(crate) fn forget_layout(&self, kind: &Kind) {
        self.layouts.set(kind, Layout::FIRST);
    }
}

impl Server {
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

    /// Takes a mark away, with the fields that go with it, if it is this one; `lua/unmark.lua`. Returns
    /// whether it was.
    async fn unmark(
        &self,
        hash: &str,
        field: &str,
        mark: &str,
        with_it: &[&str],
        until: Instant,
    ) -> Result<bool> {
        let mut cmd = UNMARK.call(UNMARK.fixed_keys);
        cmd.arg(hash).arg(field).arg(mark).arg(with_it);
        let called = self.eval(&UNMARK, &cmd, &self.clock, hash, until).await;
        Ok(called?.reply.number()? == 1)
    }
}

impl Ledger {
    /// When it was last called, if that is remembered.
    #[cfg(feature = "worker")]
    pub(crate) async fn last_called(&self, until: Instant) -> Result<Option<UnixMs>> {
        let looked = self
            .server
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
