//! Which keys were heard to expire. Where a missing key cancels its job, that is what it takes to
//! run: nobody who has not heard it can tell a key that expired from one that was deleted.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use xxhash_rust::xxh3::xxh3_64;

use crate::key::JobKey;

/// How many are remembered. Of more, the latest are.
const MOST: usize = 65_536;

/// How long it takes at the most until a ledger has noted what was heard, with an outage in
/// between. After that the ledger can be asked.
const NOTED_WITHIN: Duration = Duration::from_secs(60);

/// How far the clock of Redis may be off, as it is known here. What a key of the same name did
/// longer before a job was due says nothing of that job.
const VAGUE: Duration = Duration::from_millis(100);

/// What was heard, by a hash of the key.
#[derive(Default)]
pub(super) struct Expired(Mutex<RecentExpiries>);

#[derive(Default)]
struct RecentExpiries {
    latest: HashMap<u64, Instant>,
    /// In the order in which they came; some of them have come again since.
    order: VecDeque<(u64, Instant)>,
    /// Up to then keys were heard of that are not remembered, and may not have been noted.
    forgotten: Option<Instant>,
}

impl Expired {
    /// This key expired now.
    pub(super) fn hear(&self, key: &JobKey) {
        let (hash, now) = (hash_of(key), Instant::now());
        let mut heard = self.0.lock().expect("no panic while held");
        heard.latest.insert(hash, now);
        heard.order.push_back((hash, now));
        if heard.order.len() > MOST
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
        let expired = Expired::default();
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
        let expired = Expired::default();
        for number in 0..=MOST {
            expired.hear(&key(number));
        }
        assert!(!expired.knows(&key(0), AGO));
        assert!(expired.knows(&key(1), AGO));
        assert!(expired.may_have_known(AGO));
        assert_eq!(expired.0.lock().unwrap().latest.len(), MOST);

        let mut old = RecentExpiries::default();
        for number in 0..MOST {
            old.order.push_back((number as u64, Instant::now() - AGO));
        }
        let old = Expired(Mutex::new(old));
        old.hear(&key(0));
        assert!(!old.may_have_known(2 * AGO));
    }

    #[test]
    fn one_that_is_heard_again_is_remembered_for_as_long() {
        let expired = Expired::default();
        for number in 0..MOST {
            expired.hear(&key(number));
        }
        expired.hear(&key(0));
        assert!(expired.knows(&key(0), AGO));
        assert!(!expired.may_have_known(AGO));
    }
}
