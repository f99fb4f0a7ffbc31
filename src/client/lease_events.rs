//! What workers are told of jobs that are in other hands.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::mpsc;

use crate::lease::Lease;
use crate::prefix::Prefix;

/// What somebody waits for: jobs of kinds that begin so.
pub(crate) type WantedKinds = Arc<[Prefix]>;

/// What a worker is told.
#[derive(Debug, Clone)]
pub(crate) enum LeaseEvent {
    /// Somebody waits for jobs of kinds that begin so.
    Waits(WantedKinds),
    /// A lease runs on for so long from now.
    Extended(Lease, Duration),
    /// A lease has ended, or it only remains to wait until it lapses.
    Ended(Lease),
}

/// The workers that are told.
#[derive(Debug, Default)]
pub(crate) struct LeaseSubscribers(Mutex<Vec<mpsc::UnboundedSender<LeaseEvent>>>);

impl LeaseSubscribers {
    pub(crate) fn join(&self, worker: mpsc::UnboundedSender<LeaseEvent>) {
        self.0.lock().expect("no panic while held").push(worker);
    }

    /// Workers that have ended are forgotten.
    pub(crate) fn tell(&self, news: &LeaseEvent) {
        let mut workers = self.0.lock().expect("no panic while held");
        workers.retain(|worker| worker.send(news.clone()).is_ok());
    }
}
