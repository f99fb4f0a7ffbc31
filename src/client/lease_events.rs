//! Events about leases that are held outside of a worker.
//!
//! A client sends a [`LeaseEvent`] to each of its workers when one of its calls waits for jobs, or
//! extends or ends a lease. The workers count their free room by these events.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::mpsc;

use crate::lease::Lease;
use crate::prefix::Prefix;

/// Prefixes of the kinds whose jobs a caller waits for.
pub(crate) type WantedKinds = Arc<[Prefix]>;

/// An event for the workers of a client.
#[derive(Debug, Clone)]
pub(crate) enum LeaseEvent {
    /// A caller waits for jobs of kinds with these prefixes.
    Waits(WantedKinds),
    /// A lease was extended by this length, from now.
    Extended(Lease, Duration),
    /// A lease has ended, or nobody holds it and it will lapse.
    Ended(Lease),
}

/// The workers of a client that receive lease events.
#[derive(Debug, Default)]
pub(crate) struct LeaseSubscribers(Mutex<Vec<mpsc::UnboundedSender<LeaseEvent>>>);

impl LeaseSubscribers {
    /// Adds a worker. Its channel has no bound: sending never waits.
    pub(crate) fn join(&self, worker: mpsc::UnboundedSender<LeaseEvent>) {
        self.0.lock().expect("no panic while held").push(worker);
    }

    /// Sends the event to all workers, and forgets the workers that have ended.
    pub(crate) fn tell(&self, news: &LeaseEvent) {
        let mut workers = self.0.lock().expect("no panic while held");
        workers.retain(|worker| worker.send(news.clone()).is_ok());
    }
}
