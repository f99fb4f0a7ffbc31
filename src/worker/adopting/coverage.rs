//! The coverage of the change events of one server: since when they were heard without a gap, up to
//! when, and which keys expired. It tells whether a missing key has expired or was deleted.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};
use tokio::time::timeout;
use xxhash_rust::xxh3::xxh3_64;

use super::adopter::PATIENCE;
use crate::key::JobKey;
use crate::store::Server;

/// How many expired keys are remembered; the oldest are forgotten first.
const EXPIRED_KEYS: usize = 65_536;

/// Longest time until a ledger has noted an event, with an outage in between. After that the ledger
/// knows it.
const NOTED_WITHIN: Duration = Duration::from_secs(60);

/// How far the estimate of the server's clock may be off. An event of a key with the same name that
/// is older by more than this does not concern the job.
const VAGUE: Duration = Duration::from_millis(100);

/// Tracks how completely the changes of one server are heard.
pub(crate) struct ChangeCoverage {
    server: Arc<Server>,
    gap: Mutex<EventGap>,
    /// All changes announced until this time have been heard; `None` while there is no connection.
    heard: watch::Sender<Option<Instant>>,
    /// Asks the connection how far it has heard.
    pub(super) asked: Arc<Notify>,
    /// Notified when changes may have been missed.
    missed: Notify,
}

/// The last gap, in which changes went unheard.
#[derive(Default)]
struct EventGap {
    /// When the gap ended; `None` while it lasts.
    end: Option<Instant>,
    /// How often the server had been found to be a replica when the gap ended.
    demotions: u64,
}

impl ChangeCoverage {
    /// Nothing is heard yet.
    pub(crate) fn new(server: Arc<Server>) -> Self {
        ChangeCoverage {
            server,
            gap: Mutex::default(),
            heard: watch::Sender::new(None),
            asked: Arc::default(),
            missed: Notify::new(),
        }
    }

    /// Records whether changes are heard from now on.
    pub(crate) fn begin(&self, hears: bool) {
        *self.gap.lock().expect("no panic while held") = EventGap {
            end: hears.then(Instant::now),
            demotions: self.demotions().unwrap_or_default(),
        };
    }

    /// Since when changes have been heard from a primary without a gap; `None` during a gap.
    pub(super) fn since(&self) -> Option<Instant> {
        let demotions = self.demotions()?;
        let gap = self.gap.lock().expect("no panic while held");
        gap.end.filter(|_| gap.demotions == demotions)
    }

    /// How often the server was found to be a replica; `None` while it is one.
    pub(super) fn demotions(&self) -> Option<u64> {
        match self.server.health() {
            Some(health) => health.demotions(),
            None => Some(0),
        }
    }

    /// Records a gap if the server was a replica and is none any more.
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

    /// Reports that changes may have been missed.
    pub(super) fn miss(&self) {
        self.missed.notify_one();
    }

    /// Returns when changes may have been missed.
    pub(super) async fn missed(&self) {
        self.missed.notified().await;
    }

    /// Records up to when the current connection has heard all changes; `None` if it is down.
    pub(super) fn heard_until(&self, at: Option<Instant>) {
        self.heard.send_replace(at);
    }

    /// Waits until all changes that were announced before the call have been heard. Returns `false`
    /// if that takes longer than [`PATIENCE`]. Without a connection it returns `true` at once: this
    /// instance hears no more of these changes.
    pub(super) async fn catch_up(&self) -> bool {
        let now = Instant::now();
        let mut heard = self.heard.subscribe();
        self.asked.notify_one();
        let has_heard = heard.wait_for(|until| until.is_none_or(|until| until >= now));
        matches!(timeout(PATIENCE, has_heard).await, Ok(Ok(_)))
    }
}

/// The keys that were heard to expire, by their hashes. If a missing key cancels its job, such a
/// job runs only with this knowledge: an instance that has not heard the expiry cannot tell it from
/// a deletion.
#[derive(Default)]
pub(super) struct ExpiredKeys(Mutex<RecentExpiries>);

/// The remembered expiries.
#[derive(Default)]
struct RecentExpiries {
    /// Last expiry of each key, by the hash of the key.
    latest: HashMap<u64, Instant>,
    /// Expiries in the order of arrival; a key that expired twice is in it twice.
    order: VecDeque<(u64, Instant)>,
    /// Expiries until this time may be forgotten here without having been noted in a ledger.
    forgotten: Option<Instant>,
}

impl ExpiredKeys {
    /// Records that this key expired now.
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

    /// Records that an expiry heard just now may never be noted in a ledger.
    pub(super) fn is_not_noted(&self) {
        let mut heard = self.0.lock().expect("no panic while held");
        heard.forgotten = Some(Instant::now());
    }

    /// Whether this key was heard to expire, at most `ago` before now.
    pub(super) fn knows(&self, key: &JobKey, ago: Duration) -> bool {
        let heard = self.0.lock().expect("no panic while held");
        let at = heard.latest.get(&hash_of(key));
        at.is_some_and(|at| at.elapsed() <= ago.saturating_add(VAGUE))
    }

    /// Whether the expiry of a key, at most `ago` before now, may have been heard and forgotten,
    /// because there were too many.
    pub(super) fn may_have_known(&self, ago: Duration) -> bool {
        let heard = self.0.lock().expect("no panic while held");
        let until = heard.forgotten;
        until.is_some_and(|until| until.elapsed() <= ago.saturating_add(VAGUE))
    }
}

/// The hash of the whole key.
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
    fn an_event_before_the_due_time_proves_nothing() {
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
    fn an_overflow_marks_recent_expiries_as_unknown() {
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
    fn a_key_that_is_heard_again_is_remembered_anew() {
        let expired = ExpiredKeys::default();
        for number in 0..EXPIRED_KEYS {
            expired.hear(&key(number));
        }
        expired.hear(&key(0));
        assert!(expired.knows(&key(0), AGO));
        assert!(!expired.may_have_known(AGO));
    }
}
