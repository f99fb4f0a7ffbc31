//! Removing an empty kind.
//!
//! A kind of several shards is resharded to one first, so that the other shards refuse every call.
//! Then one script, on the first ledger, checks that the kind is empty and removes it. So there is
//! one instant: a job before it keeps the kind, and a job after it begins the kind anew.

use std::time::Instant;

use futures_util::StreamExt;
use futures_util::future::try_join;
use futures_util::stream;

use crate::client::{Client, CopiedShard, Shards, Stats};
use crate::error::{Error, ErrorKind, Result};
use crate::key::Kind;
use crate::shards::{Layout, MAX_SHARDS, ShardRef};
use crate::store::{Away, Razed, unique_id};

/// The number of ledgers that are removed at the same time.
const AT_ONCE: usize = 32;

/// The answer of [`Client::drop_kind`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Dropped {
    /// The kind is gone.
    Dropped,
    /// There is no such kind.
    Absent,
    /// The kind was left as it is, because it is in use; the text names the use.
    InUse(String),
}

impl Client {
    /// Removes a kind, `app:module:biz`, with all its keys, counters and history, if it is empty:
    /// no pending or running job, no dead letter, no adopted plain key that is still to expire, and
    /// no reshard in progress.
    ///
    /// Other clients may use the kind meanwhile: a job that is scheduled before the removal keeps
    /// the kind, and a job that is scheduled afterwards begins it anew. If the kind was used in the
    /// last hour, the answers to its last calls are kept for two hours, so that a repeated call
    /// does nothing twice.
    ///
    /// # Errors
    /// If the kind is not valid, one of several servers is away, another client reshards the kind
    /// meanwhile, or Redis does not answer in time. The call may be repeated. A kind of several
    /// shards is resharded first, which may take as long as it makes progress.
    pub async fn drop_kind(&self, kind: &str) -> Result<Dropped> {
        let (kind, store) = (Kind::parse(kind)?, self.store());
        let mut until = self.deadline();
        // Each server has a list of kinds, and the kind must leave all of them.
        if let Some(Away { error, .. }) = store.kinds_seen(until).await?.1.pop() {
            return Err(error);
        }
        if !store.knows(&kind, until).await? {
            let stats = self.stats_until(&kind, until).await?;
            // The list may have lost the kind. The memory of calls may outlive a kind.
            if stats.is_empty() && stats.accepted == 0 {
                return Ok(Dropped::Absent);
            }
        }
        let before = store.agree(&kind, until).await?;
        if before.from.is_some() {
            let shards = before.shards;
            return Ok(Dropped::InUse(format!(
                "it is being resharded: `keyfall reshard {kind} --to {shards}` goes on"
            )));
        }
        if let Some(held) = held(&self.stats_until(&kind, until).await?) {
            return Ok(Dropped::InUse(held));
        }
        if before.shards > 1 {
            self.reshard(kind.as_str(), 1).await?;
            until = self.deadline();
        }
        let dropped = self.drop_one(&kind, until).await?;
        if before.shards > 1 && matches!(dropped, Dropped::InUse(_)) {
            self.reshard(kind.as_str(), before.shards).await?;
        }
        Ok(dropped)
    }

    /// Removes a kind that has one shard.
    async fn drop_one(&self, kind: &Kind, until: Instant) -> Result<Dropped> {
        let store = self.store();
        let layout = store.look_up(kind, until).await?;
        if self.records_wait(kind).await? {
            let what = "records of ended jobs wait for the archive, or changes for the copy";
            return Ok(Dropped::InUse(what.to_owned()));
        }
        let mark = &unique_id();
        store.mark_dropping(kind, mark, until).await?;
        store.note_leaving(kind, until).await?;
        let first = store.ledger(kind, layout.place(0));
        match first.raze(until).await? {
            Razed::Gone => {}
            Razed::Held(_) => {
                store.keep_listed(kind, mark, until).await?;
                return Ok(Dropped::InUse(
                    "a job came meanwhile, plain keys that were adopted are still to expire, or \
                     records of ended jobs wait for the archive, or changes for the copy"
                        .into(),
                ));
            }
            Razed::Stale(_) => {
                store.keep_listed(kind, mark, until).await?;
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    format!("another client is resharding {kind}: try again when it has finished"),
                ));
            }
        }
        // Before the kind leaves the list: a call that repeats this one after a crash finds it
        // there, and goes on.
        if layout != Layout::FIRST && !self.raze_the_rest(kind, layout, until).await? {
            store.keep_listed(kind, mark, until).await?;
            let what = "records of ended jobs wait in a shard that it once had";
            return Ok(Dropped::InUse(what.to_owned()));
        }
        store.drop_activity(kind, until).await?;
        let is_unlisted = store.unlist(kind, mark, until).await?;
        // A call that was about to list the kind may have ended before.
        let is_used = store.was_used(kind, until).await;
        if !matches!(is_used, Ok(false)) {
            store.keep_listed(kind, mark, until).await?;
        }
        self.0.registry.remove(kind.as_str());
        // Clients that have noticed the return of the kind must not be told that it is gone.
        if is_unlisted && !is_used? {
            store.tell(&format!("gone {kind}"), until).await?;
        }
        Ok(Dropped::Dropped)
    }

    /// Whether any shard has records for the archive, or changes for the copy, which may also be those
    /// that were too many to be noted; a user who may not look has none.
    async fn records_wait(&self, kind: &Kind) -> Result<bool> {
        let ended = self.ended(kind, Shards::All, 0);
        match try_join(ended, self.changes(kind, Shards::All, 0)).await {
            Ok((ended, changes)) => {
                let is_over =
                    |it: &CopiedShard| it.terms.is_some() && it.version > 0 && !it.is_noting;
                let mut shards = changes.shards.iter();
                Ok(ended.waiting > 0 || shards.any(|it| it.waiting > 0 || is_over(it)))
            }
            Err(error) if error.kind() == ErrorKind::Denied => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Removes the other ledgers that the kind has or ever had. If the kind comes back with several
    /// shards, they are told of the new layout first. Returns whether none of them holds anything.
    async fn raze_the_rest(&self, kind: &Kind, layout: Layout, until: Instant) -> Result<bool> {
        let store = self.store();
        let razed = (1..MAX_SHARDS).map(async |shard| {
            let place = |layout: Layout| layout.place(shard);
            let raze = async |place: ShardRef| store.ledger(kind, place).raze(until).await;
            match raze(place(layout)).await? {
                // An earlier reshard gave this ledger up, and no later layout has reached it.
                Razed::Stale(older) if !older.follows(layout) => raze(place(older)).await,
                razed => Ok(razed),
            }
        });
        let razed = stream::iter(razed).buffer_unordered(AT_ONCE);
        let razed: Vec<Result<Razed>> = razed.collect().await;
        let mut are_gone = true;
        for razed in razed {
            are_gone &= !matches!(razed?, Razed::Held(_));
        }
        Ok(are_gone)
    }
}

/// The contents of a kind, as a text; `None` if it is empty.
fn held(stats: &Stats) -> Option<String> {
    let counts = [
        (stats.pending, "pending"),
        (stats.leased, "running"),
        (stats.successors, "to follow a run"),
        (stats.dead, "dead letters"),
    ];
    let held = counts.into_iter().filter(|(count, _)| *count > 0);
    let held: Vec<String> = held
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    (!held.is_empty()).then(|| held.join(", "))
}
