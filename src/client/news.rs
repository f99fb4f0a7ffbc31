//! What workers are told of jobs that are in other hands.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::mpsc;

use crate::lease::Lease;
use crate::prefix::Prefix;

/// What somebody waits for: jobs of kinds that begin so.
pub(crate) type Wanted = Arc<[Prefix]>;

/// What a worker is told.
#[derive(Debug, Clone)]
pub(crate) enum News {
    /// Somebody waits for jobs of kinds that begin so.
    Waits(Wanted),
    /// A lease runs on for so long from now.
    Extended(Lease, Duration),
    /// A lease has ended, or it only remains to wait until it lapses.
    Ended(Lease),
}

/// The workers that are told.
#[derive(Debug, Default)]
pub(crate) struct Audience(Mutex<Vec<mpsc::UnboundedSender<News>>>);

impl Audience {
    pub(crate) fn join(&self, worker: mpsc::UnboundedSender<News>) {
        self.0.lock().expect("no panic while held").push(worker);
    }

    /// Workers that have ended are forgotten.
    pub(crate) fn tell(&self, news: &News) {
        let mut workers = self.0.lock().expect("no panic while held");
        workers.retain(|worker| worker.send(news.clone()).is_ok());
    }
}
