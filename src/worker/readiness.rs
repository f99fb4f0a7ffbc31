//! What a readiness probe asks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Whether a [`Worker`](crate::Worker) is at work: it is connected to Redis, and hears what that
/// announces; of several servers, one suffices. What a readiness probe asks. Clones say the same.
///
/// While it is not ready, a worker that can reach Redis still finds what is due, later.
#[derive(Debug, Clone, Default)]
pub struct Readiness(Arc<AtomicBool>);

impl Readiness {
    /// Whether it is, now. It is not before it has started, while Redis is away, nor after it has
    /// ended.
    pub fn is_ready(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn set(&self, ready: bool) {
        self.0.store(ready, Ordering::Relaxed);
    }
}

/// The same, made of what is known of each server.
pub(crate) struct HeardAt {
    readiness: Readiness,
    /// Whether events are heard there; nothing until it was tried.
    heard: Mutex<Vec<Option<bool>>>,
}

impl HeardAt {
    pub(crate) fn new(readiness: Readiness, servers: usize) -> Self {
        HeardAt {
            readiness,
            heard: Mutex::new(vec![None; servers]),
        }
    }

    /// Whether the events of this server are heard from now on.
    pub(crate) fn set(&self, server: usize, heard: bool) {
        let mut all = self.heard.lock().expect("no panic while held");
        all[server] = Some(heard);
        self.readiness
            .set(all.contains(&Some(true)) && !all.contains(&None));
    }

    /// Whether it was tried to hear those of this one.
    pub(crate) fn is_known(&self, server: usize) -> bool {
        self.heard.lock().expect("no panic while held")[server].is_some()
    }

    /// Whether those of this one are heard.
    pub(crate) fn is_heard(&self, server: usize) -> bool {
        self.heard.lock().expect("no panic while held")[server] == Some(true)
    }
}
