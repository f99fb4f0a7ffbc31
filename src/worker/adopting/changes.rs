//! Hears changes of adopted keys, and decides for each which instance looks at the key, why, and
//! when.

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

/// How long the second in rank waits before it looks at a key, in case the first is gone. All
/// changes in that time need one look.
const STAND_IN: Duration = Duration::from_millis(50);

/// How long [`ChangeSubscriber::is_there`] waits for the first connection.
const PATIENCE: Duration = Duration::from_secs(2);

/// Hears changes of the adopted keys of one server, on a connection of its own.
pub(crate) struct ChangeSubscriber {
    adopter: Arc<Adopter>,
    events: Arc<Events>,
    is_up: watch::Sender<bool>,
}

impl ChangeSubscriber {
    /// A subscriber without a connection yet.
    pub(crate) fn new(adopter: Arc<Adopter>, events: Arc<Events>) -> Self {
        ChangeSubscriber {
            adopter,
            events,
            is_up: watch::Sender::new(false),
        }
    }

    /// Listens for ever; does nothing if the worker adopts no keys. Tells the finders of new
    /// ledgers.
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

    /// Returns when the connection is up, or not needed, or after [`PATIENCE`].
    pub(crate) async fn is_there(&self) {
        if self.adopter.globs().next().is_some() {
            let mut is_up = self.is_up.subscribe();
            // A connection that is not up by then has another fault, which is logged.
            let _ = timeout(PATIENCE, is_up.wait_for(|up| *up)).await;
        }
    }
}

impl Adopter {
    /// Takes in a change of a key that matches one of the globs. `event` is the name of the event,
    /// as Redis announces it. Returns the new ledgers.
    pub(crate) fn hear(&self, key: &str, event: &[u8]) -> Vec<Arc<ServedLedger>> {
        // Eviction cancels no job, just as the eviction of a trigger does not.
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
            // The old ledger has the job until the job is moved. An instance that runs it meanwhile
            // must know that the key expired and was not deleted.
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

    /// Has two of the instances that heard of a key look at it: the first in rank now, the second
    /// later. The others remember the event.
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

    /// Takes in that an instance is gone, perhaps for some time and together with the second in
    /// rank: looks at the keys of remembered events.
    pub(crate) fn somebody_went(&self) {
        for (served, id, why) in self.peer_events.take() {
            self.look_in_turn(&served, &id, why);
        }
    }

    /// Takes in the expiry of a key. If a missing key can cancel its job, the expiry is noted at
    /// once in the ledger, because the job may start later, on an instance that has not heard it.
    /// Otherwise the key is looked at only if its job is not claimed soon: if the key was brought
    /// forward and expired before anybody looked, the ledger does not know that the job is due.
    fn hear_expired(&self, served: &Arc<ServedLedger>, key: &JobKey, missing: MissingKey) {
        let now = Instant::now();
        if missing == MissingKey::Cancel {
            self.expired.hear(key);
            self.look_in_turn(served, key.id(), Why::Over(now));
        } else if self.instances.rank_to_look(served, key.id()).claims() {
            self.look_at(served, key.id(), Why::Over(now), now + STAND_IN);
        } else {
            self.peer_events.keep(served, key.id(), Why::Over(now));
        }
    }

    /// Takes in that these jobs were claimed: their expired keys need no look any more.
    pub(crate) fn claimed<'a>(&self, served: &ServedLedger, ids: impl Iterator<Item = &'a str>) {
        if !served.adopts {
            return;
        }
        let mut names = self.names.lock().expect("no panic while held");
        if let Some(noted) = names.get_mut(&served.index) {
            ids.for_each(|id| noted.names.forget_expired(id));
        }
    }

    /// Looks at the key of a job that was not due although its key expired: the key may have been
    /// brought forward.
    pub(crate) fn expired(&self, served: &Arc<ServedLedger>, id: &str) {
        if served.adopts {
            let now = Instant::now();
            self.look_at(served, id, Why::Over(now), now);
        }
    }
}
