//! What a readiness probe asks.

use std::sync::{Arc, Mutex};

/// Whether a [`Worker`](crate::Worker) is at work: it is connected to Redis, and hears what that
/// announces; of several servers, one suffices. One whose routes adopt plain keys also has to hear
/// what is done to those, on each server that it is connected to, unless
/// [that is accepted](crate::Worker::allow_unannounced). What a readiness probe asks. Clones say the
/// same.
///
/// While it is not ready, a worker that can reach Redis still finds what is due, later.
#[derive(Debug, Clone, Default)]
pub struct Readiness(Arc<Mutex<ReadinessState>>);

#[derive(Debug, Default)]
struct ReadinessState {
    is_ready: bool,
    unannounced: Option<String>,
}

impl Readiness {
    /// Whether it is, now. It is not before it has started, while Redis is away, nor after it has
    /// ended.
    pub fn is_ready(&self) -> bool {
        self.0.lock().expect("no panic while held").is_ready
    }

    /// Why plain keys that routes adopt may be lost now, and what to set: Redis does not announce
    /// what is done to them. `None` if it does, or no route adopts keys.
    pub fn unannounced(&self) -> Option<String> {
        let state = self.0.lock().expect("no panic while held");
        state.unannounced.clone()
    }

    pub(super) fn end(&self) {
        self.set(ReadinessState::default());
    }

    fn set(&self, state: ReadinessState) {
        *self.0.lock().expect("no panic while held") = state;
    }
}

/// The same, made of what is known of each server.
pub(crate) struct ReadinessByServer {
    readiness: Readiness,
    /// Whether keys may be adopted that are not announced.
    allow_unannounced: bool,
    servers: Mutex<Vec<ServerReadiness>>,
}

/// What is heard of one server.
#[derive(Clone, Default)]
struct ServerReadiness {
    /// Whether events are; nothing until it was tried.
    events: Option<bool>,
    /// Why it is not heard what is done to keys that are adopted.
    unannounced: Option<String>,
}

impl ReadinessByServer {
    pub(crate) fn new(readiness: Readiness, servers: usize, allow_unannounced: bool) -> Self {
        ReadinessByServer {
            readiness,
            allow_unannounced,
            servers: Mutex::new(vec![ServerReadiness::default(); servers]),
        }
    }

    /// Whether the events of this server are heard from now on.
    pub(crate) fn set(&self, server: usize, heard: bool) {
        self.change(server, |it| it.events = Some(heard));
    }

    /// Why this server does not announce from now on what is done to keys that are adopted; nothing
    /// if it does.
    pub(crate) fn set_unannounced(&self, server: usize, why: Option<String>) {
        self.change(server, |it| it.unannounced = why);
    }

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

    /// Whether it was tried to hear those of this one.
    pub(crate) fn is_known(&self, server: usize) -> bool {
        self.events(server).is_some()
    }

    /// Whether those of this one are heard.
    pub(crate) fn is_heard(&self, server: usize) -> bool {
        self.events(server) == Some(true)
    }

    fn events(&self, server: usize) -> Option<bool> {
        self.servers.lock().expect("no panic while held")[server].events
    }
}
