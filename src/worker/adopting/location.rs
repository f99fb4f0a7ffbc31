//! Looks at keys in whichever ledgers their jobs are, while their kind is being resharded, too.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use super::adopter::Adopter;
use crate::error::{Error, ErrorKind, Result};
use crate::key::{JobKey, Kind};
use crate::shards::Layout;
use crate::store::{Answered, Why, Word};
use crate::worker::served::ServedLedger;

/// The places of some items, by the shard where they are looked at.
type ByShard = HashMap<u16, Vec<usize>>;

/// Where the job of a key is that this server has.
pub(super) enum JobLocation {
    /// Here, or on its way from another ledger here.
    Here(Arc<ServedLedger>),
    /// It may be here, in this ledger, until it has been moved to another server. Then it follows no
    /// key any more.
    WasHere(Arc<ServedLedger>),
    /// On another server.
    Elsewhere,
}

impl Adopter {
    /// Where the job of a key is, if its kind is served.
    pub(super) fn home_of(&self, key: &JobKey) -> Option<JobLocation> {
        let [home, old] = self.served_ledgers.places_of(key.kind(), key.id())?;
        let is_here = |it: &ServedLedger| it.ledger.server() == self.server.place();
        let home = home?;
        if is_here(&home) {
            return Some(JobLocation::Here(home));
        }
        let was_here = old.filter(|old| is_here(old));
        Some(was_here.map_or(JobLocation::Elsewhere, JobLocation::WasHere))
    }

    /// Has keys looked at that were noted with this ledger, and may belong to another one by now.
    pub(super) async fn adopt(
        &self,
        served: &ServedLedger,
        items: &[(JobKey, Why)],
        until: Instant,
    ) -> Result<Vec<Answered>> {
        let kind = served.ledger.kind();
        let layout = self.store.layout_of(kind.as_str());
        let shard = served.ledger.place().shard;
        let are_here = |it: &(JobKey, Why)| layout.place_of(it.0.id()).shard == shard;
        if layout.from.is_none() && items.iter().all(are_here) {
            let most = |key: &JobKey| self.most(key);
            let answers = served.ledger.adopt(items, most, until).await?;
            if !is_refused(&answers) && answers.iter().all(|it| it.answer != Word::Elsewhere) {
                return Ok(answers);
            }
            self.store.agree(kind, until).await?;
        }
        // Rare and large, and so not a part of every call.
        Box::pin(self.adopt_everywhere(kind, items, until)).await
    }

    async fn adopt_everywhere(
        &self,
        kind: &Kind,
        items: &[(JobKey, Why)],
        until: Instant,
    ) -> Result<Vec<Answered>> {
        while Instant::now() < until {
            let layout = self.store.layout_of(kind.as_str());
            let by_shard = self.bring(kind, layout, items, until).await?;
            let answers = match by_shard {
                Some(by_shard) => self.adopt_in(kind, layout, items, by_shard, until).await?,
                None => None,
            };
            match answers {
                Some(answers) => return Ok(answers),
                None => self.store.agree(kind, until).await.map(drop)?,
            }
        }
        Err(Error::new(
            ErrorKind::Unavailable,
            format!("{kind} is being resharded, and its keys could not be looked at in time"),
        ))
    }

    /// Moves jobs that are not where they belong, unless they run. Returns which ledger has which;
    /// nothing if the kind goes by another layout.
    async fn bring(
        &self,
        kind: &Kind,
        layout: Layout,
        items: &[(JobKey, Why)],
        until: Instant,
    ) -> Result<Option<ByShard>> {
        let mut by_shard = ByShard::new();
        let mut leave = ByShard::new();
        for (at, (key, _)) in items.iter().enumerate() {
            match layout.old_place_of(key.id()) {
                Some(old) => leave.entry(old.shard).or_default().push(at),
                None => {
                    let home = layout.place_of(key.id()).shard;
                    by_shard.entry(home).or_default().push(at);
                }
            }
        }
        for (shard, mut places) in leave {
            let old = self.store.adopting_ledger(kind, layout.old_place(shard));
            while !places.is_empty() {
                let names = places.iter().map(|at| items[*at].0.id().to_owned());
                let names: Vec<String> = names.collect();
                let Some(moved) = old.move_out(&names, layout, until).await? else {
                    return Ok(None);
                };
                let mut wait = Vec::new();
                for (at, moved) in places.into_iter().zip(moved) {
                    match moved.answer {
                        Word::NotYet => wait.push(at),
                        Word::Leased => by_shard.entry(shard).or_default().push(at),
                        _ => {
                            let home = layout.place_of(items[at].0.id()).shard;
                            by_shard.entry(home).or_default().push(at);
                        }
                    }
                }
                places = wait;
            }
        }
        Ok(Some(by_shard))
    }

    /// Nothing if the kind goes by another layout.
    async fn adopt_in(
        &self,
        kind: &Kind,
        layout: Layout,
        items: &[(JobKey, Why)],
        by_shard: ByShard,
        until: Instant,
    ) -> Result<Option<Vec<Answered>>> {
        let unread = Answered::of(Word::Unread);
        let mut all = vec![unread; items.len()];
        for (shard, places) in by_shard {
            let ledger = self.store.adopting_ledger(kind, layout.place(shard));
            let is_here = ledger.server() == self.server.place();
            let some = places.iter().map(|at| match &items[*at] {
                (key, why) if is_here => (key.clone(), *why),
                // What was heard here says nothing of a key on another server.
                (key, _) => (key.clone(), Why::Seen),
            });
            let some: Vec<_> = some.collect();
            let most = |key: &JobKey| self.most(key);
            let answers = ledger.adopt(&some, most, until).await?;
            if is_refused(&answers) {
                return Ok(None);
            }
            for (at, answered) in places.into_iter().zip(answers) {
                // Its run ended between the two calls.
                if answered.answer != Word::Elsewhere {
                    all[at] = answered;
                }
            }
        }
        Ok(Some(all))
    }
}

/// Whether the ledger goes by another layout.
pub(super) fn is_refused(answers: &[Answered]) -> bool {
    answers.iter().any(|it| it.answer == Word::Stale)
}
