//! A connection for commands that is opened again when it breaks or hangs; on a cluster, one for
//! each node.
//!
//! The client library reconnects after a clean break only, and would wait again and again for a
//! peer that stops answering. So a connection that timed out is dropped, and the next call opens
//! another. Whether a call that got no answer was carried out is unknown, which is why every call
//! of this crate may be repeated.

mod node;

use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use redis::Pipeline;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, RedisError, RedisResult, Value};
use tokio::time::sleep;

use crate::counters;
use crate::error::Result;
use crate::moment::Moment;
use crate::names::Names;
use crate::settings::LinkSettings;
use crate::store::connections::cluster::Node;
use crate::store::connections::connection::{Connection, ConnectionSlot};
use crate::store::connections::fault::Fault;
use crate::store::connections::in_time::in_time;
use crate::store::connections::origin::Origin;
use crate::store::servers::catch_up::CatchUp;
#[cfg(feature = "worker")]
use crate::store::servers::health::Health;
use crate::store::servers::membership::Membership;
use crate::store::servers::schema::SchemaGuard;
use node::NodeChoice;

/// The first pause between two tries; it doubles up to [`LAST_PAUSE`], and starts again when the
/// server moves.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// The longest pause between two tries.
const LAST_PAUSE: Duration = Duration::from_millis(500);

/// This many redirections of one call are followed without a pause. More than one come from slots
/// that are being moved.
const REDIRECTIONS: usize = 4;

/// One server, or the nodes of a cluster, each reached through one connection at a time. Calls that
/// are made together share it.
pub(crate) struct Link {
    /// Finds the server for new connections.
    origin: Origin,
    /// Without timeouts, because this module keeps them.
    config: AsyncConnectionConfig,
    /// The longest that opening a connection may take.
    connect_timeout: Duration,
    /// The longest that a single try may take, from sending to the reply.
    response_timeout: Duration,
    /// By node; a single server has the key `None`.
    connection_slots: Mutex<HashMap<Option<Node>, Arc<ConnectionSlot>>>,
    /// Held while the layout of a cluster is read.
    surveying: tokio::sync::Mutex<()>,
    /// The number of connections opened so far.
    opened: AtomicU64,
    /// Verifies the schema with each new connection to a server that has jobs.
    schema: Option<Arc<SchemaGuard>>,
    /// Verifies with each new connection that the server is number m of n, if there are several.
    membership: Option<Arc<Membership>>,
    /// Tells that server the changes that it has missed, with each new connection.
    missed: Option<CatchUp>,
    /// Gets a report of each fault that concerns the whole server.
    #[cfg(feature = "worker")]
    health: Option<Arc<Health>>,
}

/// An answer of a server, with its times by the clock of this process.
pub(crate) struct ServerReply {
    /// The answer itself.
    pub(crate) value: Value,
    /// The start of the try that was answered.
    pub(crate) sent: Moment,
    /// The end of that try.
    pub(crate) received: Instant,
}

/// When a request is sent again after a fault that time, or an operator, can end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Repeats {
    /// After each such fault.
    Always,
    /// Only if the request cannot have been carried out.
    #[cfg(feature = "worker")]
    Unsent,
    /// After none.
    Never,
}

impl Repeats {
    /// True if a request is sent again; `maybe_done` if it may have been carried out.
    fn after(self, maybe_done: bool) -> bool {
        match (self, maybe_done) {
            (Repeats::Always, _) => true,
            #[cfg(feature = "worker")]
            (Repeats::Unsent, maybe_done) => !maybe_done,
            (Repeats::Never, _) => false,
        }
    }

    /// True if an idle connection is checked before anything is sent on it.
    fn asks_first(self) -> bool {
        match self {
            #[cfg(feature = "worker")]
            Repeats::Unsent => true,
            Repeats::Always | Repeats::Never => false,
        }
    }
}

/// The commands of one call.
#[derive(Clone, Copy)]
pub(crate) enum Request<'a> {
    /// One command, for the node of its key.
    One(&'a Cmd),
    /// One command, for this node of a cluster, with any key.
    At(&'a Node, &'a Cmd),
    /// Several commands that are sent together and answered as one array.
    Many(&'a Pipeline),
    /// The same, but each command may fail alone. Commands without a key are for this node of a
    /// cluster, if one is given.
    #[cfg(feature = "worker")]
    Each(&'a Pipeline, Option<&'a Node>),
    /// Commands on one key, all on one connection to the node of that key: they see the same data,
    /// and run in this order.
    #[cfg(feature = "worker")]
    Together(&'a Pipeline),
}

impl Link {
    /// A link to a server. Opens no connection yet.
    pub(crate) fn new(origin: Origin, settings: &LinkSettings) -> Self {
        Link {
            origin,
            config: AsyncConnectionConfig::new()
                // This module keeps the timeouts.
                .set_connection_timeout(None)
                .set_response_timeout(None),
            connect_timeout: settings.connect_timeout,
            response_timeout: settings.response_timeout,
            connection_slots: Mutex::default(),
            surveying: tokio::sync::Mutex::new(()),
            opened: AtomicU64::new(0),
            schema: None,
            membership: None,
            missed: None,
            #[cfg(feature = "worker")]
            health: None,
        }
    }

    /// The same link, for a server that has jobs.
    pub(in crate::store) fn with_jobs(self, names: Names) -> Self {
        Link {
            schema: Some(Arc::new(SchemaGuard::new(names))),
            ..self
        }
    }

    /// The same link, for one of several servers.
    pub(in crate::store) fn of_member(self, membership: Membership) -> Self {
        Link {
            membership: Some(Arc::new(membership)),
            ..self
        }
    }

    /// From now on the server is told the changes that it has missed with each new connection,
    /// before a call uses it.
    pub(in crate::store) fn begin_to_tell(&mut self, missed: CatchUp) {
        self.missed = Some(missed);
    }

    /// Tells the server now.
    pub(in crate::store) async fn tell_missed(&self) -> Result<(), Fault> {
        match &self.missed {
            Some(missed) => missed.tell().await,
            None => Ok(()),
        }
    }

    /// Drops all connections, to save them while no call is made. The next call opens new ones.
    pub(in crate::store) fn hang_up(&self) {
        self.connection_slots
            .lock()
            .expect("no panic while held")
            .clear();
    }

    /// Another link to the same server, with connections of its own. It tells the server nothing.
    pub(crate) fn another(&self, settings: &LinkSettings) -> Self {
        Link {
            schema: self.schema.clone(),
            membership: self.membership.clone(),
            ..Link::new(self.origin.clone(), settings)
        }
    }

    /// A link to the same server for use on another runtime, which reports faults to `health`.
    #[cfg(feature = "worker")]
    pub(crate) fn watched(&self, settings: &LinkSettings, health: Arc<Health>) -> Self {
        Link {
            health: Some(health),
            schema: self.schema.clone(),
            membership: self.membership.clone(),
            ..Link::new(self.origin.apart(), settings)
        }
    }

    /// The address of the server; without credentials.
    pub(crate) fn address(&self) -> String {
        self.origin.address()
    }

    /// The address of a node, or of the server if no node is given; without credentials.
    pub(in crate::store) fn address_of(&self, node: Option<&Node>) -> String {
        match (self.origin.cluster(), node) {
            (Some(cluster), Some(node)) => cluster.address_of(node),
            _ => self.address(),
        }
    }

    /// Verifies the schema of the server.
    ///
    /// # Panics
    /// If the server is one of a target, which has no jobs.
    pub(in crate::store) fn schema_guard(&self) -> &SchemaGuard {
        self.schema.as_deref().expect("a server that has jobs")
    }

    /// The number that the server must have among several; nothing if there is one server.
    pub(in crate::store) fn membership(&self) -> Option<&Membership> {
        self.membership.as_deref()
    }

    /// Finds the server for new connections.
    pub(crate) fn origin(&self) -> &Origin {
        &self.origin
    }

    /// The number of connections opened so far. If it has grown, there was a gap.
    pub(crate) fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    /// Sends a request until it is answered or `until` has passed. Repeats it after faults of the
    /// connection, while the server is loading or busy, and where a redirection points. A refusal
    /// that a repeat would not change comes back at once, as an error.
    pub(crate) async fn send(
        &self,
        request: Request<'_>,
        until: Instant,
    ) -> Result<ServerReply, Fault> {
        #[cfg(feature = "worker")]
        if self.origin.cluster().is_some() {
            match request {
                Request::Many(pipeline) => {
                    return self.scatter(pipeline, None, false, until).await;
                }
                Request::Each(pipeline, node) => {
                    return self.scatter(pipeline, node, true, until).await;
                }
                Request::One(_) | Request::At(..) | Request::Together(_) => {}
            }
        }
        let aim = self.aim(request);
        self.keep_sending(request, &aim, until, Repeats::Always)
            .await
    }

    /// Like [`send`](Self::send), but repeats only while the request cannot have been carried out.
    #[cfg(feature = "worker")]
    pub(crate) async fn send_once(
        &self,
        request: Request<'_>,
        until: Instant,
    ) -> Result<ServerReply, Fault> {
        let aim = self.aim(request);
        self.keep_sending(request, &aim, until, Repeats::Unsent)
            .await
    }

    /// Like [`send`](Self::send), but repeats nothing, so that a server that is away costs one try.
    pub(in crate::store) async fn send_at_once(
        &self,
        request: Request<'_>,
        until: Instant,
    ) -> Result<ServerReply, Fault> {
        let aim = self.aim(request);
        self.keep_sending(request, &aim, until, Repeats::Never)
            .await
    }

    /// Sends a whole request to one node of a cluster, and repeats nothing.
    pub(in crate::store) async fn try_at_once(
        &self,
        node: &Node,
        request: Request<'_>,
        until: Instant,
    ) -> Result<ServerReply, Fault> {
        let once = Repeats::Never;
        self.try_at(Some(node), request, false, once, until, &mut false)
            .await
    }

    /// Sends a request until it is answered, or a fault ends it. A fault after which the request
    /// may have been carried out by any try becomes
    /// [`OutcomeUnknown`](crate::error::ErrorKind::OutcomeUnknown).
    async fn keep_sending(
        &self,
        request: Request<'_>,
        aim: &NodeChoice<'_>,
        until: Instant,
        repeats: Repeats,
    ) -> Result<ServerReply, Fault> {
        let mut pause = FIRST_PAUSE;
        let mut maybe_done = false;
        let mut redirections = 0;
        let mut asked = None;
        loop {
            #[cfg(feature = "worker")]
            let sent = Instant::now();
            let moves = self.origin.moves();
            let is_asked = asked.is_some();
            let node = match asked.take() {
                Some(node) => Ok(Some(node)),
                None => self.node(aim, until).await,
            };
            let tried = async {
                let node = node?;
                let node = node.as_ref();
                let answered =
                    self.try_at(node, request, is_asked, repeats, until, &mut maybe_done);
                let answer = answered.await?;
                if !is_asked && self.is_replaced(aim, node) {
                    maybe_done = true;
                    return Err(Fault::moved(&self.address_of(node)).at_node(node));
                }
                Ok(answer)
            };
            let fault = match tried.await {
                Ok(answer) => return Ok(answer),
                Err(fault) => fault,
            };
            #[cfg(feature = "worker")]
            if let (Some(health), Some(ailment)) = (&self.health, fault.ailment())
                && !self.is_hurried(sent, until)
                // A fault of one node says nothing of the whole cluster. There the heartbeat of the
                // instance reports the health.
                && self.origin.cluster().is_none()
            {
                health.fails(ailment, sent, fault.error());
            }
            let again = Instant::now() + pause;
            let passes = fault.is_passing() || fault.is_demoted() && self.origin.can_move();
            if !passes || again >= until || !repeats.after(maybe_done) {
                return Err(fault.after_sending(maybe_done));
            }
            if let Some(cluster) = self.origin.cluster() {
                match fault.redirect() {
                    Some(redirect) => {
                        redirections += 1;
                        match redirect.is_ask {
                            true => asked = Some(redirect.node),
                            false => cluster.follow(redirect.slot, &redirect.node),
                        }
                        if redirections <= REDIRECTIONS {
                            continue;
                        }
                    }
                    None => cluster.doubt(),
                }
            }
            tokio::select! {
                () = sleep(pause) => pause = (pause * 2).min(LAST_PAUSE),
                // The new primary can be reached at once.
                () = self.origin.moved(moves) => pause = FIRST_PAUSE,
            }
        }
    }

    /// One try. `is_asked` if the slot is being moved to this node, which serves it only behind
    /// `ASKING`. Sets `maybe_done` if the request may have been carried out although no answer
    /// came.
    async fn try_at(
        &self,
        node: Option<&Node>,
        request: Request<'_>,
        is_asked: bool,
        repeats: Repeats,
        until: Instant,
        maybe_done: &mut bool,
    ) -> Result<ServerReply, Fault> {
        let connection_slot = self.connection_slot(node);
        let connected = self.connection(&connection_slot, node, until).await;
        let connection = connected.map_err(|fault| fault.at_node(node))?;
        if repeats.asks_first() && connection.is_idle() {
            let alive = self.probe(&connection_slot, &connection, node, until).await;
            alive.map_err(|fault| fault.at_node(node))?;
        }
        let mut to = connection.inner.clone();
        let sent = Moment::now();
        let reply = pin!(async {
            let to = &mut to;
            match request {
                Request::One(cmd) if is_asked => ask(to, cmd).await,
                Request::One(cmd) | Request::At(_, cmd) => cmd.query_async(to).await,
                Request::Many(pipeline) => pipeline.query_async(to).await,
                #[cfg(feature = "worker")]
                Request::Each(pipeline, _) => pipeline.query_async(to).await,
                #[cfg(feature = "worker")]
                Request::Together(pipeline) => {
                    let told = match is_asked {
                        true => asking(pipeline).query_async(to).await,
                        false => pipeline.query_async(to).await,
                    };
                    told.and_then(|value| self.unless_elsewhere(node, value))
                }
            }
        });
        let limit = until.min(sent.instant + self.response_timeout);
        let fault = tokio::select! {
            biased;
            // A server that was replaced may hang, and the effect of its answer may be lost.
            () = self.origin.moved(connection.moves) => Fault::moved(&self.address()),
            replied = in_time(limit, reply) => match replied {
                Some(Ok(value)) => {
                    connection.has_answered();
                    return Ok(ServerReply {
                        value,
                        sent,
                        received: Instant::now(),
                    });
                }
                Some(Err(error)) => Fault::from_redis(error, &self.address_of(node)),
                None => Fault::timed_out(&self.address_of(node), limit - sent.instant),
            },
        };
        if fault.breaks_connection() {
            *maybe_done = true;
            connection_slot.drop_connection(connection.number);
        }
        Err(fault.at_node(node))
    }

    /// Pings a connection that was idle for a while: a request sent on a connection that the other
    /// side has closed meanwhile may have been carried out, as far as anybody can tell.
    async fn probe(
        &self,
        connection_slot: &ConnectionSlot,
        connection: &Connection,
        node: Option<&Node>,
        until: Instant,
    ) -> Result<(), Fault> {
        let (ping, mut to) = (redis::cmd("PING"), connection.inner.clone());
        let now = Instant::now();
        let limit = until.min(now + self.response_timeout);
        let reply = pin!(ping.query_async::<Value>(&mut to));
        let fault = tokio::select! {
            biased;
            () = self.origin.moved(connection.moves) => Fault::moved(&self.address()),
            replied = in_time(limit, reply) => match replied {
                Some(Ok(_)) => {
                    connection.has_answered();
                    return Ok(());
                }
                Some(Err(error)) => Fault::from_redis(error, &self.address_of(node)),
                None => Fault::timed_out(&self.address_of(node), limit - now),
            },
        };
        if !fault.breaks_connection() {
            // The connection works: the request itself will meet this fault.
            return Ok(());
        }
        connection_slot.drop_connection(connection.number);
        Err(fault)
    }

    /// The answer to several commands, unless one of them must be sent again, or to another node.
    #[cfg(feature = "worker")]
    fn unless_elsewhere(&self, node: Option<&Node>, value: Value) -> RedisResult<Value> {
        let (Value::Array(answers), Some(_)) = (&value, node) else {
            return Ok(value);
        };
        for answer in answers {
            if let Value::ServerError(error) = answer {
                let error = RedisError::from(error.clone());
                let fault = Fault::from_redis(error.clone(), &self.address_of(node));
                if fault.at_node(node).is_passing() {
                    return Err(error);
                }
            }
        }
        Ok(value)
    }

    /// True if a try that was given up at `until` says nothing of the server, because it had less
    /// than half of the usual time.
    #[cfg(feature = "worker")]
    fn is_hurried(&self, sent: Instant, until: Instant) -> bool {
        Instant::now() >= until && until - sent < self.response_timeout / 2
    }

    /// The slot that holds the connection to a node.
    fn connection_slot(&self, node: Option<&Node>) -> Arc<ConnectionSlot> {
        let mut connection_slots = self.connection_slots.lock().expect("no panic while held");
        connection_slots.entry(node.cloned()).or_default().clone()
    }

    /// The connection to a node. Opens one if there is none, or the server has moved; calls that
    /// come meanwhile wait for the same one.
    async fn connection(
        &self,
        connection_slot: &ConnectionSlot,
        node: Option<&Node>,
        until: Instant,
    ) -> Result<Connection, Fault> {
        if let Some(connection) = connection_slot.held(self.origin.moves()) {
            return Ok(connection);
        }
        // Boxed, since it is rare and large: else it is part of every call and its type.
        let open: BoxFuture<'_, _> = Box::pin(async {
            let _turn = connection_slot.opening.lock().await;
            if let Some(connection) = connection_slot.held(self.origin.moves()) {
                return Ok(connection);
            }
            let (moves, inner) = loop {
                let moves = self.origin.moves();
                tokio::select! {
                    biased;
                    // The server may hang, and the move may become known on the way.
                    () = self.origin.moved(moves) => {}
                    inner = self.open(node) => break (moves, inner?),
                }
            };
            let number = self.opened.fetch_add(1, Ordering::Relaxed) + 1;
            if !connection_slot.is_new() {
                counters::reconnected("commands");
            }
            let connection = Connection::new(number, moves, inner);
            connection_slot.hold(connection.clone());
            Ok(connection)
        });
        let opened = in_time(until, pin!(open)).await;
        opened.unwrap_or_else(|| Err(Fault::unreachable(&self.address_of(node))))
    }

    /// Opens a connection, and verifies the schema behind it. If there are several servers, it also
    /// verifies which one this is and tells it the changes that it has missed.
    async fn open(&self, node: Option<&Node>) -> Result<MultiplexedConnection, Fault> {
        let client = self.origin.client(node).await?;
        let open = pin!(client.get_multiplexed_async_connection_with_config(&self.config));
        let opened = in_time(Instant::now() + self.connect_timeout, open).await;
        let mut inner = opened
            .ok_or_else(|| Fault::unreachable(&self.address_of(node)))?
            .map_err(|error| self.not_connected(node, error))?;
        let address = self.address_of(node);
        if let Some(schema) = &self.schema {
            let check = pin!(schema.check(&mut inner, &address));
            let checked = in_time(Instant::now() + self.connect_timeout, check).await;
            checked.ok_or_else(|| Fault::unreachable(&address))??;
        }
        if let Some(membership) = &self.membership {
            let check = pin!(membership.check(&mut inner, &address));
            let checked = in_time(Instant::now() + self.connect_timeout, check).await;
            if checked.ok_or_else(|| Fault::unreachable(&address))?? {
                self.tell_missed().await?;
            }
        }
        Ok(inner)
    }

    /// The fault of a failed attempt to connect to a node.
    fn not_connected(&self, node: Option<&Node>, error: RedisError) -> Fault {
        let fault = Fault::from_connecting(error, &self.address_of(node));
        match self.opened() {
            0 => fault,
            _ => fault.after_success(),
        }
    }
}

/// The same commands, each behind `ASKING`, for the node that their slot is being moved to.
#[cfg(feature = "worker")]
fn asking(pipeline: &Pipeline) -> Pipeline {
    let mut both = redis::pipe();
    both.ignore_errors();
    for cmd in pipeline.cmd_iter() {
        both.cmd("ASKING").ignore().add_command(cmd.clone());
    }
    both
}

/// Sends a command to the node that its slot is being moved to.
async fn ask(to: &mut MultiplexedConnection, cmd: &Cmd) -> RedisResult<Value> {
    let mut both = redis::pipe();
    both.cmd("ASKING").ignore().add_command(cmd.clone());
    match both.ignore_errors().query_async(to).await? {
        Value::Array(mut answers) => answers.pop().unwrap_or(Value::Nil).extract_error(),
        other => other.extract_error(),
    }
}
