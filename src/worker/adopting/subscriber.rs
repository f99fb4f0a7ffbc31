//! Hears what is done to keys.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::time::timeout;

use super::adopter::Adopter;
use crate::settings::LinkSettings;
use crate::store::{Signal, Subscription};
use crate::worker::finding::Finders;
use crate::worker::finding::events::Events;

/// How long the first connection is waited for by whoever wants to say that all is ready.
const PATIENCE: Duration = Duration::from_secs(2);

/// Hears what is done to keys of one server that are adopted, on a connection of its own.
pub(crate) struct ChangeSubscriber {
    adopter: Arc<Adopter>,
    events: Arc<Events>,
    is_up: watch::Sender<bool>,
}

impl ChangeSubscriber {
    pub(crate) fn new(adopter: Arc<Adopter>, events: Arc<Events>) -> Self {
        ChangeSubscriber {
            adopter,
            events,
            is_up: watch::Sender::new(false),
        }
    }

    /// Hears, for ever. The finders are told of ledgers that are new here.
    pub(crate) async fn run(&self, finders: &Finders, settings: &LinkSettings) {
        if self.adopter.globs().next().is_none() {
            return std::future::pending().await;
        }
        let globs = self.adopter.globs();
        let (server, hearing) = (self.adopter.server.clone(), &self.adopter.hearing);
        let asked = hearing.asked.clone();
        Subscription::to_changes(server, globs, asked, settings)
            .run(async |signal| match signal {
                Signal::Up => {
                    hearing.heard_until(Some(Instant::now()));
                    self.events.begin_changes().await;
                    self.is_up.send_replace(true);
                }
                Signal::Gap(error) => {
                    hearing.heard_until(None);
                    self.events.end_changes(&error);
                    self.is_up.send_replace(false);
                }
                Signal::HeardUntil(at) => hearing.heard_until(Some(at)),
                Signal::Changed { key, event } => {
                    finders.serve(&self.adopter.hear(key, event));
                }
                Signal::Expired(_) | Signal::Wake(_) => {}
            })
            .await;
    }

    /// Returns when it hears, or is not needed, or has had its time.
    pub(crate) async fn is_there(&self) {
        if self.adopter.globs().next().is_some() {
            let mut is_up = self.is_up.subscribe();
            // Whoever is not there by then is deaf for another reason, and that is said.
            let _ = timeout(PATIENCE, is_up.wait_for(|up| *up)).await;
        }
    }
}
