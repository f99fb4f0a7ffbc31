//! Hears what is done to keys, and decides who looks at each, why, and when.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::time::timeout;

use super::adopter::Adopter;
use super::location::JobLocation;
use crate::handler::MissingKey;
use crate::key::JobKey;
use crate::settings::LinkSettings;
use crate::store::{Signal, Subscription, Why};
use crate::worker::finding::Finders;
use crate::worker::finding::events::Events;
use crate::worker::served::ServedLedger;

/// After how long the second in rank looks, in case that the first is gone. What happened to a
/// key meanwhile needs one look.
const STAND_IN: Duration = Duration::from_millis(50);

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

impl Adopter {
    /// This happened to a key that matches one of the globs. Returns what ledgers are new here.
    pub(crate) fn hear(&self, key: &str, event: &[u8]) -> Vec<Arc<ServedLedger>> {
        // It takes its job along no more than an evicted trigger does.
        if event == b"evicted" {
            return Vec::new();
        }
        let key = match JobKey::parse(key) {
            Ok(key) => key,
            Err(error) => {
                self.say_of_name(key, &error);
                return Vec::new();
            }
        };
        let Some(missing) = self.missing(&key) else {
            return Vec::new();
        };
        let new = self.meet(key.kind());
        let served = match self.home_of(&key) {
            Some(JobLocation::Here(served)) => served,
            // Whoever runs it until it has been moved has to know that.
            Some(JobLocation::WasHere(old)) => {
                if event == b"expired" && missing == MissingKey::Cancel {
                    self.hear_expired(&old, &key, missing);
                }
                return new;
            }
            Some(JobLocation::Elsewhere) => {
                self.leave(&key);
                return new;
            }
            None => return new,
        };
        match event {
            b"expired" => self.hear_expired(&served, &key, missing),
            b"del" | b"rename_from" | b"move_from" if self.hearing.demotions().is_some() => {
                self.look_in_turn(&served, key.id(), Why::Gone);
            }
            _ => self.look_in_turn(&served, key.id(), Why::Seen),
        }
        new
    }

    /// All hear of it, and two look.
    fn look_in_turn(&self, served: &Arc<ServedLedger>, id: &str, why: Why) {
        let rank = self.instances.rank_to_look(served, id);
        if rank.claims() {
            self.look_at(served, id, why, Instant::now());
        } else if rank.stands_in() {
            self.look_at(served, id, why, Instant::now() + STAND_IN);
        } else {
            self.peer_events.keep(served, id, why);
        }
    }

    /// An instance is gone: it, and who stands in for it, may have been gone for a while.
    pub(crate) fn somebody_went(&self) {
        for (served, id, why) in self.peer_events.take() {
            self.look_in_turn(&served, &id, why);
        }
    }

    /// This key expired. Where a missing key can mean that its job is cancelled, that is noted at
    /// once, since the job may begin later, and where nobody heard it. Elsewhere it is looked at if
    /// its job is not claimed soon: if it was brought forward and expired before anybody looked,
    /// the job is not known to be due.
    fn hear_expired(&self, served: &Arc<ServedLedger>, key: &JobKey, missing: MissingKey) {
        if missing == MissingKey::Cancel {
            self.expired.hear(key);
            self.look_in_turn(served, key.id(), Why::Over);
        } else if self.instances.rank_to_look(served, key.id()).claims() {
            let soon = Instant::now() + STAND_IN;
            self.look_at(served, key.id(), Why::Over, soon);
        } else {
            self.peer_events.keep(served, key.id(), Why::Over);
        }
    }

    /// These jobs were claimed.
    pub(crate) fn claimed<'a>(&self, served: &ServedLedger, ids: impl Iterator<Item = &'a str>) {
        if !served.adopts {
            return;
        }
        let mut names = self.names.lock().expect("no panic while held");
        if let Some(noted) = names.get_mut(&served.index) {
            ids.for_each(|id| noted.names.forget_expired(id));
        }
    }

    /// A job was not due although its key expired: that may have been brought forward.
    pub(crate) fn expired(&self, served: &Arc<ServedLedger>, id: &str) {
        if served.adopts {
            self.look_at(served, id, Why::Over, Instant::now());
        }
    }
}
