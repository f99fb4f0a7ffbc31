//! Drops of kinds: checks whether a kind has anything, and removes a kind without jobs.
//!
//! One script on the first ledger of the kind decides, `lua/raze.lua`; by then the first ledger is
//! the only one that takes jobs. A client that stores a job there afterwards is told that the
//! ledger is new. It registers the kind before it acknowledges the job, and so does every other
//! client until one has done so. So the kind is taken off the list only if no client has registered
//! it again.

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

/// The field of `calls` by which a ledger says that its kind has to be registered.
const UNLISTED: &str = "unlisted";

/// The field of the list of kinds that marks a kind as about to be dropped. No kind has such a
/// name.
pub(in crate::store) fn dropping(kind: &Kind) -> String {
    format!("={kind}")
}

/// The result of the removal of a ledger.
#[cfg(feature = "worker")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Razed {
    /// The ledger is removed, or was not there.
    Gone,
    /// The ledger is unchanged, because it holds so many jobs, dead letters, and adopted keys that
    /// are still to expire.
    Held(u64),
    /// The ledger has another layout, and is unchanged.
    Stale(Layout),
}

impl Store {
    /// Whether the first ledger of a kind has any content: jobs, dead letters, counters, or marks
    /// and remembered calls. It only reads.
    pub(crate) async fn has_any_of(&self, kind: &Kind, until: Instant) -> Result<bool> {
        Ok(self.home_of(kind, 0).look(kind, 0, false, until).await?.0)
    }

    /// Marks a kind on each server as about to be taken off the list. `mark` has to be unique: a
    /// later drop overwrites it, and then the earlier one does not act. A client that registers the
    /// kind removes the mark.
    ///
    /// # Errors
    ///
    /// If one of the servers is away.
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

    /// Ends a drop that did not succeed: removes the mark, and adds the kind to the list if it is
    /// missing.
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

    /// Takes a kind off the list of each server that still has this mark: there nobody has
    /// registered the kind since, nor begun another drop. Returns whether at least one server has
    /// taken it off. This client forgets the layout of the kind.
    ///
    /// # Errors
    ///
    /// If one of the servers is away; the others may have taken it off.
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

    /// Tells a ledger that its kind is registered now, so that it stops asking for that. A ledger
    /// that began anew since `unlisted` keeps asking.
    pub(crate) async fn take_mark_off(
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

    /// Forgets the layout of a dropped kind: a kind of the same name begins with [`Layout::FIRST`].
    #[cfg(feature = "worker")]
    pub(crate) fn forget_layout(&self, kind: &Kind) {
        self.layouts.set(kind, Layout::FIRST);
    }
}

impl Server {
    /// Returns whether a ledger has any content and, if `since` is set, the time of its last call
    /// that is remembered, else 0; `lua/idle.lua`.
    async fn look(
        &self,
        kind: &Kind,
        shard: u16,
        since: bool,
        until: Instant,
    ) -> Result<(bool, UnixMs)> {
        let n = self.names.ledger(kind, shard);
        let keys = n.of_looks();
        // A split ledger must not pass for an empty one.
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

    /// Removes the field `field` of a hash, and the fields `with_it`, if the field still holds
    /// `mark`; `lua/unmark.lua`. Returns whether it did.
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
    /// The time of the last call of this ledger, if it is remembered.
    #[cfg(feature = "worker")]
    pub(crate) async fn last_called(&self, until: Instant) -> Result<Option<UnixMs>> {
        let looked = self
            .server
            .look(self.kind(), self.place().shard, true, until);
        let (_, called) = looked.await?;
        Ok((called.0 > 0).then_some(called))
    }

    /// Removes this ledger if it holds nothing; `lua/raze.lua`. The call may be repeated, and works
    /// while Redis is full. The calls of the last hour are remembered for two more hours, and so
    /// are a pause and the largest fencing value.
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
