//! The server monitor: all parts of a worker that exist once for each server. They are its events,
//! its heartbeat, the adoption of its plain keys, the search for such keys, and the checkup.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::adopting::adopter::Adopter;
use super::adopting::changes::ChangeSubscriber;
use super::adopting::search::KeySearch;
use super::checkup::Checkup;
use super::conditions::Conditions;
use super::finding::Finders;
use super::finding::events::Events;
use super::heartbeat::Heartbeat;
use super::instances::PeerTable;
use super::readiness::ReadinessByServer;
use super::running::slots::Slots;
use super::served::{ServedLedger, ServedLedgers};
use crate::instance::Description;
use crate::router::Routes;
use crate::settings::LinkSettings;
use crate::store::{Server, Store};

/// The state that the monitors of all servers share.
pub(crate) struct MonitorContext {
    /// The store with all servers.
    pub(crate) store: Arc<Store>,
    /// The routes of the engine.
    pub(crate) routes: Arc<Routes>,
    /// The ledgers of all servers.
    pub(crate) served_ledgers: Arc<ServedLedgers>,
    /// The peers, as seen on each server.
    pub(crate) instances: Arc<PeerTable>,
    /// The description that each heartbeat publishes.
    pub(crate) description: Description,
    /// Room for more jobs, which each heartbeat publishes.
    pub(crate) slots: Arc<Slots>,
    /// The state of the events of all servers.
    pub(crate) heard_at: Arc<ReadinessByServer>,
    /// Largest payload that is adopted, in bytes, for routes without a limit of their own.
    pub(crate) payload_limit: usize,
}

/// The monitors of all servers, by server number.
pub(crate) struct ServerMonitors(Vec<ServerMonitor>);

/// The monitor of one server.
pub(crate) struct ServerMonitor {
    /// The server that this monitor is for.
    pub(crate) server: Arc<Server>,
    /// Whether the server announces events, and whether they are heard.
    pub(crate) events: Arc<Events>,
    /// Publishes this instance on the server.
    pub(crate) heartbeat: Heartbeat,
    /// Looks at plain keys of the server that have changed.
    pub(crate) adopter: Arc<Adopter>,
    /// Hears changes of plain keys of the server.
    pub(crate) changes: ChangeSubscriber,
    /// Checks the server after each new connection.
    pub(crate) checkup: Checkup,
    search: Arc<KeySearch>,
}

impl ServerMonitors {
    /// One monitor for each server of the store. None of them runs yet.
    pub(crate) fn new(context: &MonitorContext) -> Arc<Self> {
        let servers = context.store.servers().iter().cloned();
        let monitors = servers.map(|server| ServerMonitor::new(server, context));
        Arc::new(ServerMonitors(monitors.collect()))
    }

    /// The monitor of the server with this number.
    ///
    /// # Panics
    /// If there is no such server.
    pub(crate) fn at(&self, server: usize) -> &ServerMonitor {
        &self.0[server]
    }

    /// The monitor of the server that has this ledger.
    pub(crate) fn of(&self, served: &ServedLedger) -> &ServerMonitor {
        self.at(served.ledger.server())
    }

    /// All monitors, by server number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &ServerMonitor> {
        self.0.iter()
    }
}

impl ServerMonitor {
    /// Builds the parts of one monitor, and connects them.
    fn new(server: Arc<Server>, context: &MonitorContext) -> Self {
        let conditions = Arc::new(Conditions::default());
        let adopter = Adopter::new(
            context.store.clone(),
            server.clone(),
            context.served_ledgers.clone(),
            context.instances.clone(),
            conditions.clone(),
            context.payload_limit,
        );
        let search = KeySearch::new(adopter.clone());
        let events = Arc::new(Events::new(
            server.clone(),
            context.instances.id(),
            adopter.globs().collect(),
            adopter.hearing().clone(),
            search.clone(),
            context.heard_at.clone(),
            conditions.clone(),
        ));
        let heartbeat = Heartbeat::new(server.clone(), context, events.clone(), adopter.clone());
        let changes = ChangeSubscriber::new(adopter.clone(), events.clone());
        ServerMonitor {
            checkup: Checkup::new(server.clone(), conditions),
            server,
            events,
            heartbeat,
            adopter,
            changes,
            search,
        }
    }

    /// Runs all parts until the shutdown. Then it tells the other instances that this one is gone.
    pub(crate) async fn run(
        &self,
        finders: &Finders,
        link: &LinkSettings,
        shutdown: &CancellationToken,
    ) {
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = self.events.run() => {}
            () = self.heartbeat.run(finders) => {}
            () = self.adopter.run() => {}
            () = self.changes.run(finders, link) => {}
            () = self.search.run() => {}
            () = self.checkup.run() => {}
        }
        self.heartbeat.stop().await;
    }
}
