//! What happened to keys that others are to look at, until it would show that these are gone.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::settings::{BEAT, SILENCE};
use crate::store::Why;
use crate::worker::served::ServedLedger;

/// How many are kept. Of more, the latest are.
const MOST: usize = 65_536;

/// For how long. By then an instance that was gone when it should have looked counts as gone.
const KEPT_FOR: Duration = SILENCE.saturating_add(BEAT).saturating_mul(2);

/// What others are to look at.
#[derive(Default)]
pub(super) struct Others(Mutex<VecDeque<PeerEvent>>);

struct PeerEvent {
    at: Instant,
    served: Arc<ServedLedger>,
    id: String,
    why: Why,
}

impl Others {
    /// Something happened to a key now.
    pub(super) fn keep(&self, served: &Arc<ServedLedger>, id: &str, why: Why) {
        let at = Instant::now();
        let mut heard = self.0.lock().expect("no panic while held");
        let is_over = |one: &PeerEvent| at.duration_since(one.at) > KEPT_FOR;
        // Two for one: it becomes no longer than it has to be.
        for _ in 0..2 {
            if heard.len() >= MOST || heard.front().is_some_and(is_over) {
                heard.pop_front();
            }
        }
        heard.push_back(PeerEvent {
            at,
            served: served.clone(),
            id: id.to_owned(),
            why,
        });
    }

    /// Takes all of them, in the order in which they happened.
    pub(super) fn take(&self) -> impl Iterator<Item = (Arc<ServedLedger>, String, Why)> + use<> {
        let heard = std::mem::take(&mut *self.0.lock().expect("no panic while held"));
        let heard = heard.into_iter().filter(|one| one.at.elapsed() <= KEPT_FOR);
        heard.map(|one| (one.served, one.id, one.why))
    }
}
