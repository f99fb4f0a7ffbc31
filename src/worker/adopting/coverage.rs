//! Whether what is done to keys is heard, since when, and how far.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use super::adopter::PATIENCE;
use crate::store::Store;

/// What is heard of changes on one server.
pub(crate) struct ChangeCoverage {
    server: Arc<Store>,
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
    pub(crate) fn new(server: Arc<Store>) -> Self {
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
