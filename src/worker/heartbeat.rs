//! Says that this instance lives, and learns which others do.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::sleep;

use super::adopting::adopter::Adopter;
use super::finding::Finders;
use super::finding::events::Events;
use super::instances::PeerTable;
use super::running::slots::Slots;
use super::server_monitor::MonitorContext;
use crate::counters;
use crate::error::Result;
use crate::instance::{Description, Takes};
use crate::router::Routes;
use crate::settings::{BEAT, SILENCE};
use crate::store::{Alive, Beat, Server};

/// The shortest time between two beats, whoever asks for one.
const AT_LEAST: Duration = Duration::from_millis(50);

/// How long a beat may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// Beats for one instance, on one server.
pub(crate) struct Heartbeat {
    /// That server.
    server: Arc<Server>,
    instances: Arc<PeerTable>,
    description: Description,
    slots: Arc<Slots>,
    routes: Arc<Routes>,
    events: Arc<Events>,
    adopter: Arc<Adopter>,
    /// Asks for a beat before its time.
    asked: Notify,
}

impl Heartbeat {
    pub(crate) fn new(
        server: Arc<Server>,
        context: &MonitorContext,
        events: Arc<Events>,
        adopter: Arc<Adopter>,
    ) -> Self {
        Heartbeat {
            server,
            instances: context.instances.clone(),
            description: context.description.clone(),
            slots: context.slots.clone(),
            routes: context.routes.clone(),
            events,
            adopter,
            asked: Notify::new(),
        }
    }

    /// Somebody came or went: look who lives.
    pub(crate) fn look(&self) {
        self.asked.notify_one();
    }

    /// Beats, for ever. The finders are told of instances that came or went.
    pub(crate) async fn run(&self, finders: &Finders) {
        loop {
            let began = Instant::now();
            let next = self.beat(finders).await.unwrap_or_else(|error| {
                tracing::debug!(%error, "no beat");
                BEAT
            });
            sleep(AT_LEAST).await;
            tokio::select! {
                () = sleep((began + next).saturating_duration_since(Instant::now())) => {}
                () = self.asked.notified() => {}
            }
        }
    }

    /// Tells the others that this instance is gone.
    pub(crate) async fn stop(&self) {
        let until = Instant::now() + PATIENCE;
        if let Err(error) = self.server.leave(self.instances.id(), until).await {
            tracing::debug!(%error, "the other instances could not be told of the stop");
        }
    }

    /// One beat. Returns when the next is due.
    async fn beat(&self, finders: &Finders) -> Result<Duration> {
        let until = Instant::now() + PATIENCE;
        let down = self.routes.open_breakers();
        counters::breakers_are_open(down.len());
        let beat = Beat {
            id: self.instances.id(),
            room: &self.room(),
            description: &self.description.leaving_alone(down).to_line(),
            silence: SILENCE,
        };
        let seen = self.server.beat(&beat, until).await?;
        let takes = self.takes(&seen, until).await?;
        let change = self.instances.meet(self.server.place(), &seen, &takes);
        if change.came || change.went {
            tracing::debug!(instances = seen.len(), "instances came or went");
            finders.pacer.look();
        }
        if change.went {
            // What it was about to claim, or to pace, is looked for at once.
            finders.reconciler.sweep_all(self.server.place());
            finders.kind_monitor.somebody_went();
            self.adopter.somebody_went();
        }
        // Whoever is late is looked at again when it would count as gone.
        let others = seen.iter().filter(|one| one.id != beat.id);
        let late = others.filter(|one| one.age > BEAT);
        let gone = late.map(|one| SILENCE.saturating_sub(one.age));
        Ok(gone.fold(BEAT, Duration::min))
    }

    /// What each instance takes. A description that this version cannot read belongs to one
    /// that is not ranked: it claims for itself.
    async fn takes(&self, seen: &[Alive], until: Instant) -> Result<HashMap<String, Arc<Takes>>> {
        let (mut takes, mut unknown) = (HashMap::new(), Vec::new());
        for one in seen {
            match self.instances.known(&one.id) {
                Some(known) => {
                    takes.insert(one.id.clone(), known);
                }
                None => unknown.push(one.id.as_str()),
            }
        }
        if unknown.is_empty() {
            return Ok(takes);
        }
        let descriptions = self.server.descriptions(&unknown, until).await?;
        for (id, text) in unknown.into_iter().zip(descriptions) {
            let Some(text) = text else { continue };
            let description = serde_json::from_str::<Description>(&text);
            match description.map(|description| description.takes()) {
                Ok(Ok(one)) => {
                    takes.insert(id.to_owned(), Arc::new(one));
                }
                _ => tracing::debug!(id, text, "an instance that this version cannot read"),
            }
        }
        Ok(takes)
    }

    fn room(&self) -> String {
        let routes = (0..self.routes.routes.len()).map(|route| self.slots.has_room(route));
        let mut room: String = routes.map(|free| if free { '1' } else { '0' }).collect();
        room.push(if self.events.are_unheard() { 'd' } else { 'h' });
        room
    }
}
