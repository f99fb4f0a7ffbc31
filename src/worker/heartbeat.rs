//! The heartbeat of this instance on one server. Each beat publishes which routes have room, and
//! reads which other instances live and which jobs they take. The [`PeerTable`] keeps the result;
//! the finders are called when an instance came or went.

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

/// Shortest time between two beats, however often one is requested.
const AT_LEAST: Duration = Duration::from_millis(50);

/// Time limit of one beat.
const PATIENCE: Duration = Duration::from_secs(2);

/// The heartbeat of one instance on one server.
pub(crate) struct Heartbeat {
    /// The server that stores the beats.
    server: Arc<Server>,
    /// Takes in the answer of each beat.
    instances: Arc<PeerTable>,
    /// The published description, without the open circuit breakers, which each beat adds.
    description: Description,
    /// The source of the published room: whether each route can run another job.
    slots: Arc<Slots>,
    /// The source of the open circuit breakers.
    routes: Arc<Routes>,
    /// Whether this instance hears events, which each beat publishes.
    events: Arc<Events>,
    /// Told of gone instances.
    adopter: Arc<Adopter>,
    /// Requests a beat before its time.
    asked: Notify,
}

impl Heartbeat {
    /// A heartbeat that does not beat until [`run`](Self::run) is called.
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

    /// Requests a beat: an instance came or went, or a circuit breaker has closed.
    pub(crate) fn look(&self) {
        self.asked.notify_one();
    }

    /// Beats for ever. Tells the finders when instances came or went. A beat that fails is repeated
    /// at the usual time.
    pub(crate) async fn run(&self, finders: &Finders) {
        loop {
            let began = Instant::now();
            let next = self.beat(finders).await.unwrap_or_else(|error| {
                tracing::debug!(%error, "a heartbeat failed");
                BEAT
            });
            sleep(AT_LEAST).await;
            tokio::select! {
                () = sleep((began + next).saturating_duration_since(Instant::now())) => {}
                () = self.asked.notified() => {}
            }
        }
    }

    /// Tells the other instances that this one is gone. Best effort: if the call fails, they find
    /// out when the heartbeat is overdue.
    pub(crate) async fn stop(&self) {
        let until = Instant::now() + PATIENCE;
        if let Err(error) = self.server.leave(self.instances.id(), until).await {
            tracing::debug!(%error, "the other instances could not be told about the stop");
        }
    }

    /// Sends one beat and takes in the answer. Returns the time until the next beat, counted from
    /// the start of this one.
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
            tracing::debug!(instances = seen.len(), "instances have started or ended");
            finders.pacer.look();
        }
        if change.went {
            // The jobs and ledgers of the gone instance are looked for at once.
            finders.reconciler.sweep_all(self.server.place());
            finders.kind_monitor.somebody_went();
            self.adopter.somebody_went();
        }
        // An instance that is late is checked again at the time when it counts as gone.
        let others = seen.iter().filter(|one| one.id != beat.id);
        let late = others.filter(|one| one.age > BEAT);
        let gone = late.map(|one| SILENCE.saturating_sub(one.age));
        Ok(gone.fold(BEAT, Duration::min))
    }

    /// The jobs that each instance takes, by instance id. An instance whose description this
    /// version cannot read is missing from the result: it is not ranked, and claims for itself.
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
                _ => tracing::debug!(
                    id,
                    text,
                    "this version cannot read the record of an instance"
                ),
            }
        }
        Ok(takes)
    }

    /// As [`Beat::room`].
    fn room(&self) -> String {
        let routes = 0..self.routes.routes.len();
        let free = routes.clone().map(|route| self.slots.has_room(route));
        let mut room: String = free.map(|free| if free { '1' } else { '0' }).collect();
        let vacant: Vec<String> = routes
            .map(|route| self.slots.vacant(route).to_string())
            .collect();
        room.push('/');
        room += &vacant.join(",");
        room.push(if self.events.are_unheard() { 'd' } else { 'h' });
        room
    }
}
