//! Readiness: the answer to readiness probes. [`Readiness`] is the public handle;
//! [`ReadinessByServer`] computes its state from the state of each server.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

/// Whether a [`Worker`](crate::Worker) is ready: it is connected to Redis, and hears its events. Of
/// several servers, one suffices. A worker whose routes adopt plain keys also has to hear changes
/// of these keys, on each server that it is connected to, unless [unannounced changes are
/// accepted](crate::Worker::allow_unannounced). For readiness probes; all clones show the same
/// state.
///
/// A worker that is not ready, but can reach Redis, still finds due jobs, only later.
#[derive(Debug, Clone, Default)]
pub struct Readiness(Arc<Handle>);

/// What all clones share.
#[derive(Debug, Default)]
struct Handle {
    state: Mutex<ReadinessState>,
    /// Wakes the threads of the worker, which answer.
    asked: Notify,
    answered: Notify,
}

/// The current answers.
#[derive(Debug, Default)]
struct ReadinessState {
    /// See [`Readiness::is_ready`].
    is_ready: bool,
    /// See [`Readiness::unannounced`].
    unannounced: Option<String>,
}

impl Readiness {
    /// Whether the worker is ready now. `false` before it has started, while Redis is away, and
    /// after it has ended.
    pub fn is_ready(&self) -> bool {
        self.0.state.lock().expect("no panic while held").is_ready
    }

    /// The reason why adopted plain keys may be lost now, with the setting that prevents it: Redis
    /// does not announce changes of keys. `None` if it does, or if no route adopts keys.
    pub fn unannounced(&self) -> Option<String> {
        let state = self.0.state.lock().expect("no panic while held");
        state.unannounced.clone()
    }

    /// Waits until the thread of the worker answers: at once as a rule, and for ever while it hangs
    /// or the worker does not run. For watchdogs that restart a process that hangs. It needs no
    /// Redis.
    pub async fn responds(&self) {
        let answered = self.0.answered.notified();
        self.0.asked.notify_waiters();
        answered.await;
    }

    /// Answers on the thread of the worker, for ever.
    pub(super) async fn respond(&self) -> Infallible {
        loop {
            // It takes note of a question from here on; the answer is for earlier ones.
            let asked = self.0.asked.notified();
            self.0.answered.notify_waiters();
            asked.await;
        }
    }

    /// Records that the worker has ended.
    pub(super) fn end(&self) {
        self.set(ReadinessState::default());
    }

    fn set(&self, state: ReadinessState) {
        *self.0.state.lock().expect("no panic while held") = state;
    }
}

/// The state of each server, from which the state of the [`Readiness`] handle follows.
pub(crate) struct ReadinessByServer {
    readiness: Readiness,
    /// Whether keys may be adopted although their changes are not announced.
    allow_unannounced: bool,
    servers: Mutex<Vec<ServerReadiness>>,
}

/// The state of one server.
#[derive(Clone, Default)]
struct ServerReadiness {
    /// Whether its events are heard; `None` until the first attempt to listen.
    events: Option<bool>,
    /// Why changes of adopted keys are not heard; `None` if they are.
    unannounced: Option<String>,
}

impl ReadinessByServer {
    /// `servers` is the number of servers. Nothing is known of them yet.
    pub(crate) fn new(readiness: Readiness, servers: usize, allow_unannounced: bool) -> Self {
        ReadinessByServer {
            readiness,
            allow_unannounced,
            servers: Mutex::new(vec![ServerReadiness::default(); servers]),
        }
    }

    /// Records whether the events of this server are heard from now on.
    pub(crate) fn set(&self, server: usize, heard: bool) {
        self.change(server, |it| it.events = Some(heard));
    }

    /// Records why this server does not announce changes of adopted keys from now on; `None` if it
    /// does.
    pub(crate) fn set_unannounced(&self, server: usize, why: Option<String>) {
        self.change(server, |it| it.unannounced = why);
    }

    /// Changes the state of one server, and updates the handle. Ready means: each server was tried,
    /// one is heard, and unannounced changes do not occur or are accepted.
    fn change(&self, server: usize, change: impl FnOnce(&mut ServerReadiness)) {
        let mut all = self.servers.lock().expect("no panic while held");
        change(&mut all[server]);
        let unannounced = all.iter().find_map(|it| it.unannounced.clone());
        let is_tried = all.iter().all(|it| it.events.is_some());
        let is_heard = all.iter().any(|it| it.events == Some(true));
        let is_accepted = unannounced.is_none() || self.allow_unannounced;
        self.readiness.set(ReadinessState {
            is_ready: is_tried && is_heard && is_accepted,
            unannounced,
        });
    }

    /// Whether there was an attempt to hear the events of this server.
    pub(crate) fn is_known(&self, server: usize) -> bool {
        self.events(server).is_some()
    }

    /// Whether the events of this server are heard.
    pub(crate) fn is_heard(&self, server: usize) -> bool {
        self.events(server) == Some(true)
    }

    fn events(&self, server: usize) -> Option<bool> {
        self.servers.lock().expect("no panic while held")[server].events
    }
}
