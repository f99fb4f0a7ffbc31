//! The workers that listen to their client: for events of leases, and for dead letters.
//!
//! A client sends a [`LeaseEvent`] to each of its workers when one of its calls waits for jobs, or
//! extends or ends a lease. The workers count their free room by these events. Each worker also
//! adds its hooks to the [`Listeners`] of its client. A call that buries a job runs them while the
//! job's lease is still held.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use tokio::sync::mpsc;

use crate::key::JobKey;
use crate::lease::Lease;
use crate::prefix::Prefix;
use crate::record::Record;
use crate::time::UnixMs;

/// A job that is about to become a dead letter, as the hooks see it.
#[derive(Clone, Copy)]
pub(crate) struct DyingJob<'a> {
    pub(crate) key: &'a JobKey,
    /// The header line of the future dead letter.
    pub(crate) header: &'a str,
    /// The due time of the last run, by Redis' clock.
    pub(crate) due: UnixMs,
    /// The time from the due time to the start of the last run, if this process started it.
    pub(crate) lag: Option<Duration>,
    /// `None` if the record cannot be read.
    pub(crate) record: Option<&'a Record>,
}

/// The hooks of one worker.
pub(crate) trait TellDead: Send + Sync {
    /// Whether the worker has a hook for dead letters.
    fn wants_dead(&self) -> bool;

    /// The longest that one call of the hook may take.
    fn limit(&self) -> Duration;

    /// Calls the hook, and waits until it has returned or can no longer return.
    fn tell<'a>(&'a self, letter: DyingJob<'a>) -> BoxFuture<'a, ()>;
}

/// The hooks of all workers that share a client. Each call that settles a lease through the client
/// runs all of them.
#[derive(Default)]
pub(crate) struct Listeners(Mutex<Vec<Weak<dyn TellDead>>>);

impl Listeners {
    /// Adds the hooks of one worker. They are called until their worker drops them: only a weak
    /// reference is kept.
    pub(crate) fn join(&self, hooks: &Arc<impl TellDead + 'static>) {
        let hooks = Arc::downgrade(hooks);
        let mut all = self.0.lock().expect("no panic while held");
        all.retain(|hooks| hooks.strong_count() > 0);
        all.push(hooks);
    }

    /// The hooks of the workers that listen for dead letters.
    pub(crate) fn of_dead(&self) -> Vec<Arc<dyn TellDead>> {
        let all = self.0.lock().expect("no panic while held");
        let all = all.iter().filter_map(Weak::upgrade);
        all.filter(|hooks| hooks.wants_dead()).collect()
    }

    /// Runs these hooks at the same time, and returns when all of them have ended.
    pub(crate) async fn tell(hooks: &[Arc<dyn TellDead>], letter: DyingJob<'_>) {
        join_all(hooks.iter().map(|hooks| hooks.tell(letter))).await;
    }
}

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
