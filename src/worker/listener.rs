//! The listener: receives the `expired` events and wake-ups of all servers, and passes each on to
//! the part that it concerns. It also keeps the list of served kinds and their shards up to date.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;

use super::claiming::inbox::ClaimInbox;
use super::finding::Finders;
use super::instances::PeerTable;
use super::running::leases::Leases;
use super::served::{NameMatch, ServedLedger, ServedLedgers};
use super::server_monitor::{ServerMonitor, ServerMonitors};
use crate::counters;
use crate::error::{Error, ErrorKind};
use crate::key::Kind;
use crate::names::Names;
use crate::settings::LinkSettings;
use crate::shards::Layout;
use crate::source::Source;
use crate::store::{Held, Server, Signal, Store, follow_events};
use crate::time::UnixMs;

/// Time limit of reading the list of kinds.
const PATIENCE: Duration = Duration::from_secs(5);

/// Receives events and wake-ups from all servers.
pub(crate) struct Listener {
    /// Learns the layouts that wake-ups carry.
    pub(crate) store: Arc<Store>,
    /// Recognises key names, and grows with new kinds and shards.
    pub(crate) served_ledgers: Arc<ServedLedgers>,
    /// Ranks this instance for each job that is heard of.
    pub(crate) instances: Arc<PeerTable>,
    /// The servers to listen to, with the state of their events.
    pub(crate) monitors: Arc<ServerMonitors>,
    /// Told of due times, new ledgers and lost events.
    pub(crate) finders: Finders,
    /// Takes the due jobs that this instance has to claim.
    pub(crate) inbox: Arc<ClaimInbox>,
    /// Told of cancelled jobs.
    pub(crate) leases: Arc<Leases>,
    /// Raised when events flow for the first time, or when the connection for them fails.
    pub(crate) ready: CancellationToken,
}

impl Listener {
    /// Listens until the shutdown. Each server has a connection of its own, so that a slow or
    /// absent server does not delay the others.
    pub(crate) async fn run(&self, settings: &LinkSettings, shutdown: &CancellationToken) {
        let servers = self.monitors.iter();
        tokio::select! {
            () = shutdown.cancelled() => {}
            _ = join_all(servers.map(|monitor| self.listen_to(monitor, settings))) => {}
            () = self.keep_fresh() => {}
            () = self.follow_layouts() => {}
        }
    }

    /// Listens to one server, for ever.
    async fn listen_to(&self, monitor: &ServerMonitor, settings: &LinkSettings) {
        let id = self.instances.id();
        let server = &monitor.server;
        let place = server.place();
        follow_events(server.clone(), id, settings, async |signal| match signal {
            Signal::Up => {
                if let Some(health) = server.health() {
                    health.hears();
                }
                self.up(monitor).await;
                self.ready.cancel();
            }
            Signal::Gap(error) => {
                monitor.events.are_heard(false);
                self.finders.reconciler.sweep_all(place);
                if let Some(health) = server.health() {
                    health.is_deaf(&error);
                }
                self.ready.cancel();
            }
            Signal::Expired(name) => self.expired(name, place),
            Signal::Wake(message) => self.woken(message, place),
            Signal::Changed { .. } | Signal::HeardUntil(_) => {}
        })
        .await;
    }

    /// Takes in a new connection. Events from before it may have been missed, so all ledgers of the
    /// server are swept.
    async fn up(&self, monitor: &ServerMonitor) {
        self.finders.reconciler.sweep_all(monitor.server.place());
        if monitor.events.were_never_tried() {
            monitor.changes.is_there().await;
        }
        monitor.events.begin().await;
        monitor.checkup.ask();
        self.refresh_from(&monitor.server).await;
    }

    /// Serves new shards as soon as their layout is known, whatever the source: a wake-up, or a
    /// ledger that refused a call of this process. Runs for ever.
    async fn follow_layouts(&self) {
        let mut changed = self.store.layouts_changed();
        loop {
            let new = self.served_ledgers.grow();
            if !new.is_empty() {
                tracing::info!(
                    ledgers = new.len(),
                    "the worker serves more shards of known kinds"
                );
                self.finders.serve(&new);
            }
            if changed.changed().await.is_err() {
                // Its sender lives as long as the store.
                return std::future::pending().await;
            }
        }
    }

    /// Reads the list of kinds at intervals, and at once when a name suggests a new kind, because
    /// announcements may be lost. Runs for ever.
    async fn keep_fresh(&self) {
        let freshness = self.served_ledgers.freshness();
        freshness.run(async || self.refresh().await).await;
    }

    /// Reads the list of kinds from all servers. Returns whether a ledger is new or a kind was
    /// dropped.
    async fn refresh(&self) -> bool {
        self.served_ledgers.doubt_all();
        let servers = self.monitors.iter().map(|monitor| &monitor.server);
        let read = join_all(servers.map(|server| self.refresh_from(server))).await;
        let mut forgotten = 0;
        // A server that is away may list kinds that the others do not.
        if !read.contains(&None) {
            let until = Instant::now() + PATIENCE;
            forgotten = self.served_ledgers.forget_dropped(until).await;
        }
        if forgotten > 0 {
            tracing::info!(
                kinds = forgotten,
                "kinds were dropped, and the worker no longer serves them"
            );
        }
        forgotten > 0 || read.contains(&Some(true))
    }

    /// Reads the list of kinds from one server. Returns whether a ledger is new; `None` if the list
    /// could not be read: it is read again before long.
    async fn refresh_from(&self, server: &Server) -> Option<bool> {
        let refreshed = self
            .served_ledgers
            .refresh(server, Instant::now() + PATIENCE)
            .await;
        server.note("the list of kinds", "read", refreshed.as_ref().err());
        let new = refreshed.ok()?;
        for served in &new {
            tracing::info!(kind = %served.ledger.kind(), "the worker serves a kind");
            self.finders.reconciler.expect(served, None);
        }
        Some(!new.is_empty())
    }

    /// Takes in the name of an expired key. Most of these names are foreign.
    fn expired(&self, name: &[u8], place: usize) {
        if Names::is_probe(name) {
            return;
        }
        let Some(NameMatch { ledgers, id }) = self.served_ledgers.recognise(name) else {
            self.served_ledgers.met(name);
            return counters::event_is_foreign();
        };
        counters::event_is_heard();
        self.monitors.at(place).events.hear();
        // An expired key on the wrong server says nothing of the job with that name.
        let is_here = |served: &&Arc<ServedLedger>| served.ledger.server() == place;
        for served in ledgers.iter().flatten().filter(is_here) {
            self.announced(served, id);
            self.finders.reconciler.expect(served, None);
        }
    }

    /// Takes in a due job. All instances hear of it, and the one whose turn it is claims it, or the
    /// first in rank.
    fn announced(&self, served: &ServedLedger, id: &str) {
        if self.instances.claims(served, id) {
            self.inbox.hear(served, id.to_owned(), Source::Event);
        }
    }

    /// Takes in a message of the wake channel; [`Names::wake`](crate::names::Names::wake) lists the
    /// messages. An unknown message is logged and ignored.
    fn woken(&self, message: &[u8], place: usize) {
        let understood = std::str::from_utf8(message).ok().and_then(|message| {
            let (word, rest) = message.split_once(' ').unwrap_or((message, ""));
            match word {
                "due" => {
                    let (served, ms) = self.served(rest)?;
                    let due = UnixMs(ms.parse().ok()?);
                    if let Some(served) = served {
                        self.finders.pacer.wake(&served, due);
                        self.finders.reconciler.expect(&served, Some(due));
                    }
                }
                "now" => {
                    let (served, ids) = self.served(rest)?;
                    if let Some(served) = served {
                        ids.split(' ').for_each(|id| self.announced(&served, id));
                        self.finders.pacer.look_after(&served, ids.split(' '));
                        self.finders.reconciler.expect(&served, None);
                    }
                }
                "late" => {
                    let (served, ids) = self.served(rest)?;
                    if let Some(served) = served {
                        let ids = ids.split(' ');
                        let mine = ids.filter(|id| self.instances.rank(&served, id).stands_in());
                        for id in mine {
                            self.inbox.hear(&served, id.to_owned(), Source::Pacer);
                        }
                    }
                }
                "held" => {
                    let (served, held) = self.served(rest)?;
                    let held = Held::parse(held)?;
                    if let Some(served) = served {
                        self.finders.is_held(&served, held);
                    }
                }
                "turn" => {
                    let (served, id) = self.served(rest)?;
                    if let Some(served) = served {
                        self.instances.turn_begins(&served, id);
                    }
                }
                "left" => {
                    let (served, rest) = self.served(rest)?;
                    let (by, ids) = rest.split_once(' ')?;
                    if let Some(served) = served {
                        self.finders.pacer.left(&served, by);
                        let ids = ids.split(' ');
                        let claims = |id: &&str| self.instances.claims_after(&served, id, by);
                        for id in ids.filter(claims) {
                            self.inbox.hear(&served, id.to_owned(), Source::Pacer);
                        }
                    }
                }
                "flood" => {
                    if let (Some(served), _) = self.served(rest)? {
                        self.inbox.fall_behind(&served);
                    }
                }
                // The kind may exist again by now: the lists say so.
                "gone" => self.served_ledgers.freshness().doubt(),
                "kind" => {
                    self.served_ledgers.hear_of(rest);
                    let new = self.served_ledgers.add(&Kind::parse(rest).ok()?);
                    if new.is_empty() {
                        self.finders.kind_monitor.look();
                    } else {
                        tracing::info!(kind = rest, "the worker serves a new kind");
                        self.finders.serve(&new);
                    }
                }
                "layout" => {
                    let (kind, layout) = rest.split_once(' ')?;
                    let kind = Kind::parse(kind).ok()?;
                    self.store.learn_layout(&kind, Layout::parse(layout)?);
                    self.served_ledgers.hear_of(kind.as_str());
                    let new = self.served_ledgers.add(&kind);
                    if !new.is_empty() {
                        tracing::info!(
                            %kind, shards = layout,
                            "the worker serves more shards of a kind"
                        );
                        self.finders.serve(&new);
                    }
                }
                "cancel" => {
                    let (kind, id) = rest.split_once(' ')?;
                    self.leases.cancel(kind, id);
                }
                "breaker" => {
                    if self.served_ledgers.routes().close_breaker(rest) {
                        let monitors = self.monitors.iter();
                        monitors.for_each(|monitor| monitor.heartbeat.look());
                    }
                }
                "instances" => self.monitors.at(place).heartbeat.look(),
                "unheard" => {
                    if rest != self.instances.id() {
                        self.monitors.at(place).events.were_unheard();
                    }
                }
                "pause" => {
                    for served in self.served_ledgers.shards(rest).iter() {
                        self.inbox.pause(served);
                    }
                }
                "resume" => {
                    for served in self.served_ledgers.shards(rest).iter() {
                        self.inbox.resume(served);
                        // Leases may have lapsed meanwhile.
                        self.finders.reconciler.expect(served, None);
                    }
                }
                _ => return None,
            }
            Some(())
        });
        if understood.is_none() {
            let error = Error::new(ErrorKind::Damaged, String::from_utf8_lossy(message));
            tracing::debug!(%error, "this version does not know the wake-up message");
        }
    }

    /// The ledger whose subject the message starts with, and the rest of the message. The ledger is
    /// `None` if it is not served here; the result is `None` if there is no subject.
    fn served<'a>(&self, message: &'a str) -> Option<(Option<Arc<ServedLedger>>, &'a str)> {
        let (subject, rest) = message.split_once(' ').unwrap_or((message, ""));
        subject
            .contains('/')
            .then(|| (self.served_ledgers.by_subject(subject), rest))
    }
}
