//! Where the job of a key is, also while its kind is being resharded: keys are looked at in the ledgers
//! that have their jobs. Keys that are not those of jobs here, because of their names, or because
//! another server has the jobs of that name, are left alone, and said once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use tokio::sync::Notify;
use tokio::time::sleep;

use super::adopter::{AFTER_FAULT, Adopter, PATIENCE};
use crate::error::{Error, ErrorKind, Result};
use crate::key::{JobKey, Kind};
use crate::names::Names;
use crate::shards::Layout;
use crate::store::{Answered, Why, Word};
use crate::worker::conditions::Condition;
use crate::worker::served::ServedLedger;

/// Of how many kinds it is remembered that they have keys on the wrong server.
const KINDS: usize = 256;

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

/// What is known of keys whose jobs are on another server.
#[derive(Default)]
pub(super) struct Strays {
    by_kind: Mutex<HashMap<String, MisplacedKeys>>,
    /// Told of each new one.
    told: Notify,
}

/// What is known of a kind that has keys here and jobs elsewhere.
struct MisplacedKeys {
    /// The first one.
    key: JobKey,
    /// By which its job is elsewhere.
    layout: Layout,
    is_asked: bool,
}

impl Strays {
    /// The job of a key that is here is elsewhere, by this layout.
    fn note(&self, key: &JobKey, layout: Layout) {
        let mut by_kind = self.by_kind.lock().expect("no panic while held");
        if by_kind.contains_key(key.kind()) || by_kind.len() >= KINDS {
            return;
        }
        let stray = MisplacedKeys {
            key: key.clone(),
            layout,
            is_asked: false,
        };
        by_kind.insert(key.kind().to_owned(), stray);
        self.told.notify_one();
    }

    /// Forgets the kinds that go by another layout now, and returns whether there were any.
    fn forget_changed(&self, layout_of: impl Fn(&str) -> Layout) -> bool {
        let mut by_kind = self.by_kind.lock().expect("no panic while held");
        let before = by_kind.len();
        by_kind.retain(|kind, stray| layout_of(kind) == stray.layout);
        by_kind.len() < before
    }

    /// One whose layout is to be looked up.
    fn take_unasked(&self) -> Option<JobKey> {
        let mut by_kind = self.by_kind.lock().expect("no panic while held");
        let stray = by_kind.values_mut().find(|stray| !stray.is_asked)?;
        stray.is_asked = true;
        Some(stray.key.clone())
    }

    fn forget(&self, kind: &str) {
        self.by_kind
            .lock()
            .expect("no panic while held")
            .remove(kind);
    }
}

impl Adopter {
    /// A key that looks like those of a route cannot be one of a job. Said once: there may be many.
    pub(super) fn say_of_name(&self, key: &str, error: &Error) {
        let is_probe = Names::is_probe(key.as_bytes());
        if !is_probe && self.conditions.begin(Condition::UnfitKeys) {
            tracing::warn!(key, %error, "a plain key is not adopted, and its like are not either");
        }
    }

    /// A key is here, and its job on another server, as far as is known. It is left alone; but its
    /// kind may have been given other shards a moment ago.
    pub(super) fn leave(&self, key: &JobKey) {
        let layout = self.store.layout_of(key.kind());
        self.strays.note(key, layout);
    }

    /// Keys that were left alone by a layout which does not hold any more may belong here, and are
    /// searched for.
    pub(super) fn look_for_layouts(&self) {
        if self
            .strays
            .forget_changed(|kind| self.store.layout_of(kind))
        {
            self.hearing.miss();
        }
    }

    /// Looks up which layouts hold of kinds with keys that were left alone, for ever.
    pub(super) async fn look_after_strays(&self) {
        loop {
            self.strays.told.notified().await;
            while let Some(key) = self.strays.take_unasked() {
                self.look_after(&key).await;
            }
        }
    }

    async fn look_after(&self, key: &JobKey) {
        let Ok(kind) = Kind::parse(key.kind()) else {
            return;
        };
        if let Err(error) = self.store.look_up(&kind, Instant::now() + PATIENCE).await {
            // Looked up again when the next one is heard of.
            tracing::debug!(%kind, %error, "where its keys belong is not known");
            sleep(AFTER_FAULT).await;
            return self.strays.forget(key.kind());
        }
        self.meet(key.kind());
        if let Some(home) = self.served_ledgers.by_key(key.kind(), key.id())
            && home.ledger.server() != self.server.place()
        {
            self.say_of_server(key, &home);
        }
    }

    fn say_of_server(&self, key: &JobKey, home: &ServedLedger) {
        if self.conditions.begin(Condition::MisplacedKeys) {
            tracing::warn!(
                %key,
                here = self.server.address(),
                belongs = home.ledger.address_of_server(),
                "a plain key is on a server that does not have its job: it is not adopted, nor are \
                 its like; set it on the other one",
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(kind: usize) -> JobKey {
        JobKey::parse(&format!("app:module:biz{kind}:1")).unwrap()
    }

    #[test]
    fn a_kind_is_looked_up_once_by_each_layout() {
        let strays = Strays::default();
        for _ in 0..2 {
            strays.note(&key(1), Layout::FIRST);
        }
        assert_eq!(strays.take_unasked(), Some(key(1)));
        assert_eq!(strays.take_unasked(), None);
        assert!(!strays.forget_changed(|_| Layout::FIRST));
        strays.note(&key(1), Layout::FIRST);
        assert_eq!(strays.take_unasked(), None);
        let other = Layout::FIRST.to(2);
        assert!(
            strays.forget_changed(|_| other),
            "it may belong here by now"
        );
        strays.note(&key(1), other);
        assert_eq!(strays.take_unasked(), Some(key(1)));
        // What could not be looked up is looked up again.
        strays.forget(key(1).kind());
        strays.note(&key(1), other);
        assert_eq!(strays.take_unasked(), Some(key(1)));
    }

    #[test]
    fn so_many_kinds_are_kept() {
        let strays = Strays::default();
        for kind in 0..=KINDS {
            strays.note(&key(kind), Layout::FIRST);
        }
        assert_eq!(strays.by_kind.lock().unwrap().len(), KINDS);
    }
}
