//! Sees to it that Redis announces the keys that it expires: the setting is looked up with
//! each new connection, and whenever jobs fall due and nothing is heard of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::sleep;

use crate::store::{Announced, Store};
use crate::worker::readiness::Readiness;

/// How often the setting is looked up at the most, whoever doubts it.
const AT_LEAST: Duration = Duration::from_secs(3);

/// How long a look may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is known of the events of a server.
pub(crate) struct Events {
    store: Arc<Store>,
    /// Whether events and wake-ups are heard.
    readiness: Readiness,
    /// How many were heard that concern this worker.
    heard: AtomicU64,
    doubted: Notify,
    /// That nothing is announced, and cannot be changed from here, was said.
    said: AtomicBool,
    /// That the setting cannot be looked up was said.
    unknown: AtomicBool,
}

impl Events {
    pub(crate) fn new(store: Arc<Store>, readiness: Readiness) -> Self {
        Events {
            store,
            readiness,
            heard: AtomicU64::new(0),
            doubted: Notify::new(),
            said: AtomicBool::new(false),
            unknown: AtomicBool::new(false),
        }
    }

    /// Whether events and wake-ups are heard from now on.
    pub(crate) fn are_heard(&self, heard: bool) {
        self.readiness.set(heard);
    }

    /// Whether neither events nor wake-ups are heard.
    pub(crate) fn are_unheard(&self) -> bool {
        !self.readiness.is_ready()
    }

    /// An event was heard.
    pub(crate) fn hear(&self) {
        self.heard.fetch_add(1, Ordering::Relaxed);
        if self.said.load(Ordering::Relaxed) && self.said.swap(false, Ordering::Relaxed) {
            tracing::info!("expired keys are announced now");
        }
    }

    /// How many events were heard so far.
    pub(crate) fn heard(&self) -> u64 {
        self.heard.load(Ordering::Relaxed)
    }

    /// Triggers were touched when they were due, and no event followed: has somebody turned
    /// them off? There may be a harmless reason, so it is only looked up.
    pub(crate) fn doubt(&self) {
        self.doubted.notify_one();
    }

    /// Looks the setting up whenever somebody doubts it, for ever.
    pub(crate) async fn run(&self) {
        loop {
            self.doubted.notified().await;
            // Whoever is deaf hears nothing whatever the setting is.
            if !self.are_unheard() {
                self.look(true).await;
            }
            sleep(AT_LEAST).await;
        }
    }

    /// Looks up what Redis announces, and sets what is missing. `in_doubt` if nothing is heard
    /// although jobs fall due.
    pub(crate) async fn look(&self, in_doubt: bool) {
        match self.store.announce_expired(Instant::now() + PATIENCE).await {
            Announced::Already => self.said.store(false, Ordering::Relaxed),
            Announced::FromNow { was, set } => {
                self.said.store(false, Ordering::Relaxed);
                tracing::warn!(
                    was,
                    set,
                    "Redis did not announce expired keys; the missing flags are set until it \
                     restarts: put `notify-keyspace-events {set}` into its configuration"
                );
            }
            Announced::Never(error) => self.say(&error),
            Announced::Unknown(error) if in_doubt => self.say(&error),
            Announced::Unknown(error) => {
                if !self.unknown.swap(true, Ordering::Relaxed) {
                    tracing::info!(
                        %error,
                        "whether Redis announces expired keys cannot be looked up: see that \
                         `notify-keyspace-events` in its configuration has `Ex`"
                    );
                }
            }
            Announced::Unanswered(error) => {
                tracing::debug!(%error, "what Redis announces is not known yet");
            }
        }
    }

    fn say(&self, error: &crate::Error) {
        if !self.said.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                %error,
                "Redis does not announce expired keys, and this user may not change that: set \
                 `notify-keyspace-events Ex` in its configuration; until then jobs start some \
                 20 ms late"
            );
        }
    }
}
