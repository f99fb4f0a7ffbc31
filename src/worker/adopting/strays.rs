//! Keys that are not those of jobs here: because of their names, or because another server has the
//! jobs of that name. They are left alone, and said once.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use tokio::sync::Notify;
use tokio::time::sleep;

use super::adopter::{AFTER_FAULT, Adopter, PATIENCE};
use crate::error::Error;
use crate::key::{JobKey, Kind};
use crate::names::Names;
use crate::shards::Layout;
use crate::worker::served::ServedLedger;

/// Of how many kinds it is remembered that they have keys on the wrong server.
const KINDS: usize = 256;

/// What was said of such keys, and what is not certain yet.
#[derive(Default)]
pub(super) struct Strays {
    /// That there are keys which cannot be adopted for their names was said.
    is_named: AtomicBool,
    /// That there are some on the wrong server was said.
    is_said: AtomicBool,
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
    /// A key that looks like those of a route cannot be one of a job. Said once: there may be many.
    pub(super) fn say_of_name(&self, key: &str, error: &Error) {
        let is_probe = Names::is_probe(key.as_bytes());
        if !is_probe && !self.is_named.swap(true, Ordering::Relaxed) {
            tracing::warn!(key, %error, "a plain key is not adopted, and its like are not either");
        }
    }

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
        if !self.strays.is_said.swap(true, Ordering::Relaxed) {
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
