//! What was heard of keys: since when without a gap, how far, and which of them expired. From that one
//! can tell whether a key that is missing expired or was deleted.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};
use tokio::time::timeout;
use xxhash_rust::xxh3::xxh3_64;

use super::adopter::PATIENCE;
use crate::key::JobKey;
use crate::store::Server;

/// How many expired keys are remembered. Of more, the latest are.
const EXPIRED_KEYS: usize = 65_536;

/// How long it takes at the most until a ledger has noted what was heard, with an outage in
/// between. After that the ledger can be asked.
const NOTED_WITHIN: Duration = Duration::from_secs(60);

/// How far the clock of Redis may be off, as it is known here. What a key of the same name did
/// longer before a job was due says nothing of that job.
const VAGUE: Duration = Duration::from_millis(100);

/// What is heard of changes on one server.
pub(crate) struct ChangeCoverage {
    server: Arc<Server>,
    gap: Mutex<EventGap>,
    /// All that was announced until then has been heard; nothing while there is no connection.
    heard: watch::Sender<Option<Instant>>,
    /// Asks how far.
    pub(super) asked: Arc<Notify>,
    /// Told when changes may have been missed.
    missed: Notify,
}

/// The end of the last time that changes went unheard.
#[derive(Default)]
struct EventGap {
    /// Nothing while they do.
    end: Option<Instant>,
    /// How often the server had been found to be a replica then.
    demotions: u64,
}

impl ChangeCoverage {
    pub(crate) fn new(server: Arc<Server>) -> Self {
        ChangeCoverage {
            server,
            gap: Mutex::default(),
            heard: watch::Sender::new(None),
            asked: Arc::default(),
            missed: Notify::new(),
        }
    }

    /// Whether changes are heard from now on.
    pub(crate) fn begin(&self, hears: bool) {
        *self.gap.lock().expect("no panic while held") = EventGap {
            end: hears.then(Instant::now),
            demotions: self.demotions().unwrap_or_default(),
        };
    }

    /// Since when changes have been heard without a gap, from a primary; nothing while they are
    /// not.
    pub(super) fn since(&self) -> Option<Instant> {
        let demotions = self.demotions()?;
        let gap = self.gap.lock().expect("no panic while held");
        gap.end.filter(|_| gap.demotions == demotions)
    }

    /// Nothing while the server is a replica.
    pub(super) fn demotions(&self) -> Option<u64> {
        match self.server.health() {
            Some(health) => health.demotions(),
            None => Some(0),
        }
    }

    /// A server that was a replica for a while and is none any more: that was a gap.
    pub(super) fn look_for_demotion(&self) {
        let Some(demotions) = self.demotions() else {
            return;
        };
        let mut gap = self.gap.lock().expect("no panic while held");
        if gap.end.is_some() && gap.demotions != demotions {
            *gap = EventGap {
                end: Some(Instant::now()),
                demotions,
            };
            self.miss();
        }
    }

    /// Changes may have been missed.
    pub(super) fn miss(&self) {
        self.missed.notify_one();
    }

    /// Returns when changes may have been missed.
    pub(super) async fn missed(&self) {
        self.missed.notified().await;
    }

    /// All that was announced until then has been heard, on the connection that there is; nothing
    /// if there is none any more.
    pub(super) fn heard_until(&self, at: Option<Instant>) {
        self.heard.send_replace(at);
    }

    /// Returns whether all that was announced until now, and that this instance will ever hear,
    /// has been heard; when that is so, or after a while.
    pub(super) async fn catch_up(&self) -> bool {
        let now = Instant::now();
        let mut heard = self.heard.subscribe();
        self.asked.notify_one();
        let has_heard = heard.wait_for(|until| until.is_none_or(|until| until >= now));
        matches!(timeout(PATIENCE, has_heard).await, Ok(Ok(_)))
    }
}

/// Which keys were heard to expire, by a hash of the key. Where a missing key cancels its job, that
/// is what it takes to run: nobody who has not heard it can tell a key that expired from one that was
/// deleted.
#[derive(Default)]
pub(super) struct ExpiredKeys(Mutex<RecentExpiries>);

#[derive(Default)]
struct RecentExpiries {
    latest: HashMap<u64, Instant>,
    /// In the order in which they came; some of them have come again since.
    order: VecDeque<(u64, Instant)>,
    /// Up to then keys were heard of that are not remembered, and may not have been noted.
    forgotten: Option<Instant>,
}

impl ExpiredKeys {
    /// This key expired now.
    pub(super) fn hear(&self, key: &JobKey) {
        let (hash, now) = (hash_of(key), Instant::now());
        let mut heard = self.0.lock().expect("no panic while held");
        heard.latest.insert(hash, now);
        heard.order.push_back((hash, now));
        if heard.order.len() > EXPIRED_KEYS
            && let Some((oldest, at)) = heard.order.pop_front()
            && heard.latest.get(&oldest) == Some(&at)
        {
            heard.latest.remove(&oldest);
            if at.elapsed() < NOTED_WITHIN {
                heard.forgotten = Some(at);
            }
        }
    }

    /// What was heard just now may never be noted.
    pub(super) fn is_not_noted(&self) {
        let mut heard = self.0.lock().expect("no panic while held");
        heard.forgotten = Some(Instant::now());
    }

    /// Whether it was heard that this key expired, so long ago at the most.
    pub(super) fn knows(&self, key: &JobKey, ago: Duration) -> bool {
        let heard = self.0.lock().expect("no panic while held");
        let at = heard.latest.get(&hash_of(key));
        at.is_some_and(|at| at.elapsed() <= ago.saturating_add(VAGUE))
    }

    /// Whether that may have been heard of a key, so long ago at the most, and is known to nobody
    /// any more: there were too many.
    pub(super) fn may_have_known(&self, ago: Duration) -> bool {
        let heard = self.0.lock().expect("no panic while held");
        let until = heard.forgotten;
        until.is_some_and(|until| until.elapsed() <= ago.saturating_add(VAGUE))
    }
}

fn hash_of(key: &JobKey) -> u64 {
    xxh3_64(key.as_str().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGO: Duration = Duration::from_secs(3600);

    fn key(number: usize) -> JobKey {
        JobKey::parse(&format!("app:module:biz:{number}")).unwrap()
    }

    #[test]
    fn what_was_heard_before_a_job_was_due_says_nothing_of_it() {
        let expired = ExpiredKeys::default();
        expired.hear(&key(1));
        assert!(expired.knows(&key(1), AGO));
        assert!(!expired.knows(&key(2), AGO));
        let early = Instant::now() - AGO;
        expired
            .0
            .lock()
            .unwrap()
            .latest
            .insert(hash_of(&key(1)), early);
        assert!(!expired.knows(&key(1), AGO / 2));
        expired.hear(&key(1));
        assert!(expired.knows(&key(1), AGO / 2));
        assert!(!expired.may_have_known(AGO));
    }

    #[test]
    fn of_too_many_it_is_known_that_some_may_be_missing_unless_they_are_old() {
        let expired = ExpiredKeys::default();
        for number in 0..=EXPIRED_KEYS {
            expired.hear(&key(number));
        }
        assert!(!expired.knows(&key(0), AGO));
        assert!(expired.knows(&key(1), AGO));
        assert!(expired.may_have_known(AGO));
        assert_eq!(expired.0.lock().unwrap().latest.len(), EXPIRED_KEYS);

        let mut old = RecentExpiries::default();
        for number in 0..EXPIRED_KEYS {
            old.order.push_back((number as u64, Instant::now() - AGO));
        }
        let old = ExpiredKeys(Mutex::new(old));
        old.hear(&key(0));
        assert!(!old.may_have_known(2 * AGO));
    }

    #[test]
    fn one_that_is_heard_again_is_remembered_for_as_long() {
        let expired = ExpiredKeys::default();
        for number in 0..EXPIRED_KEYS {
            expired.hear(&key(number));
        }
        expired.hear(&key(0));
        assert!(expired.knows(&key(0), AGO));
        assert!(!expired.may_have_known(AGO));
    }
}
