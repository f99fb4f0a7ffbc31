//! What a readiness probe asks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a [`Worker`](crate::Worker) is at work: it is connected to Redis, and hears what that
/// announces. What a readiness probe asks. Clones say the same.
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
