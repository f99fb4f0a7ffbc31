//! The location of a key's job, also while its kind is being resharded. A key is looked at in the
//! ledger that has its job. Keys that have no job on this server, because of their names or because
//! another server has the jobs with these names, are ignored, and logged once.

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

/// How many kinds with keys on the wrong server are remembered.
const KINDS: usize = 256;

/// Indices of items, by the shard in which they are looked at.
type ByShard = HashMap<u16, Vec<usize>>;

/// The location of the job of a key on this server.
pub(super) enum JobLocation {
    /// On this server: in this ledger, or on its way to it from another ledger here.
    Here(Arc<ServedLedger>),
    /// The job may still be in this ledger, until it has been moved to another server. It does not
    /// follow the key any more.
    WasHere(Arc<ServedLedger>),
    /// On another server.
    Elsewhere,
}

impl Adopter {
    /// The location of a key's job; `None` if its kind is not served.
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

    /// Looks at keys that were noted with this ledger, and may belong to another one by now.
    /// Returns one answer for each item, in order.
    ///
    /// # Errors
    /// If a call fails, or a resharding does not settle before `until`.
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
        // Boxed: this future is large and rarely needed.
        Box::pin(self.adopt_everywhere(kind, items, until)).await
    }

    /// Looks at keys while their kind is being resharded: moves their jobs first, then looks at
    /// each key in the ledger that has its job.
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
            format!("{kind} is being resharded, and its keys could not be read in time"),
        ))
    }

    /// Moves jobs that are not where they belong, unless they run. Returns the ledger of each item;
    /// `None` if the kind has another layout by now.
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

    /// Looks at each item in its ledger. Returns `None` if the kind has another layout by now. An
    /// item that was not looked at gets the answer `Unread`.
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
                // An event of this server says nothing of a key on another server.
                (key, _) => (key.clone(), Why::Seen),
            });
            let some: Vec<_> = some.collect();
            let most = |key: &JobKey| self.most(key);
            let answers = ledger.adopt(&some, most, until).await?;
            if is_refused(&answers) {
                return Ok(None);
            }
            for (at, answered) in places.into_iter().zip(answers) {
                // `Elsewhere`: its run ended between the two calls.
                if answered.answer != Word::Elsewhere {
                    all[at] = answered;
                }
            }
        }
        Ok(Some(all))
    }
}

/// Whether the ledger has refused the call because its kind has another layout.
pub(super) fn is_refused(answers: &[Answered]) -> bool {
    answers.iter().any(|it| it.answer == Word::Stale)
}

/// The kinds with keys on this server whose jobs are on another one.
#[derive(Default)]
pub(super) struct Strays {
    by_kind: Mutex<HashMap<String, MisplacedKeys>>,
    /// Notified of each new kind.
    told: Notify,
}

/// A kind with such keys.
struct MisplacedKeys {
    /// The first such key.
    key: JobKey,
    /// The layout by which its job is elsewhere.
    layout: Layout,
    /// Whether the layout has been looked up since.
    is_asked: bool,
}

impl Strays {
    /// Records a key on this server whose job is elsewhere by this layout. Only the first key of
    /// each kind is kept.
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

    /// Forgets kinds that have another layout now. Returns whether there were any.
    fn forget_changed(&self, layout_of: impl Fn(&str) -> Layout) -> bool {
        let mut by_kind = self.by_kind.lock().expect("no panic while held");
        let before = by_kind.len();
        by_kind.retain(|kind, stray| layout_of(kind) == stray.layout);
        by_kind.len() < before
    }

    /// The key of a kind whose layout is still to be looked up.
    fn take_unasked(&self) -> Option<JobKey> {
        let mut by_kind = self.by_kind.lock().expect("no panic while held");
        let stray = by_kind.values_mut().find(|stray| !stray.is_asked)?;
        stray.is_asked = true;
        Some(stray.key.clone())
    }

    /// Forgets a kind, so that its next key is looked up again.
    fn forget(&self, kind: &str) {
        self.by_kind
            .lock()
            .expect("no panic while held")
            .remove(kind);
    }
}

impl Adopter {
    /// Logs a key that matches a route but cannot be the key of a job. Once for each server,
    /// because there may be many.
    pub(super) fn say_of_name(&self, key: &str, error: &Error) {
        let is_probe = Names::is_probe(key.as_bytes());
        if !is_probe && self.conditions.begin(Condition::UnfitKeys) {
            tracing::warn!(
                key, %error,
                "a plain key is not adopted; other keys with the same fault are not logged"
            );
        }
    }

    /// Ignores a key whose job is on another server, as far as is known. Its layout is looked up,
    /// because it may have changed a moment ago.
    pub(super) fn leave(&self, key: &JobKey) {
        let layout = self.store.layout_of(key.kind());
        self.strays.note(key, layout);
    }

    /// Requests a search if a layout has changed: keys that were ignored by the old one may belong
    /// here.
    pub(super) fn look_for_layouts(&self) {
        if self
            .strays
            .forget_changed(|kind| self.store.layout_of(kind))
        {
            self.hearing.miss();
        }
    }

    /// Looks up the layouts of kinds whose keys were ignored, for ever.
    pub(super) async fn look_after_strays(&self) {
        loop {
            self.strays.told.notified().await;
            while let Some(key) = self.strays.take_unasked() {
                self.look_after(&key).await;
            }
        }
    }

    /// Looks up the layout of a key's kind, and logs the key if its job is on another server.
    async fn look_after(&self, key: &JobKey) {
        let Ok(kind) = Kind::parse(key.kind()) else {
            return;
        };
        if let Err(error) = self.store.look_up(&kind, Instant::now() + PATIENCE).await {
            // The next such key causes another look-up.
            tracing::debug!(%kind, %error, "the server that has the jobs of these keys is unknown");
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

    /// Logs that keys are on the wrong server, once.
    fn say_of_server(&self, key: &JobKey, home: &ServedLedger) {
        if self.conditions.begin(Condition::MisplacedKeys) {
            tracing::warn!(
                %key,
                here = self.server.address(),
                belongs = home.ledger.address_of_server(),
                "a plain key is on a server that does not have its job, so it is not adopted, and \
                 other such keys are not logged; set the key on the other server",
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
    fn a_kind_is_located_once_for_each_layout() {
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
        // A failed lookup is repeated.
        strays.forget(key(1).kind());
        strays.note(&key(1), other);
        assert_eq!(strays.take_unasked(), Some(key(1)));
    }

    #[test]
    fn the_number_of_kinds_is_limited() {
        let strays = Strays::default();
        for kind in 0..=KINDS {
            strays.note(&key(kind), Layout::FIRST);
        }
        assert_eq!(strays.by_kind.lock().unwrap().len(), KINDS);
    }
}
