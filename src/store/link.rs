//! A connection for commands that is rebuilt when it breaks or hangs.
//!
//! The client library reconnects after a clean break only; a peer that stops answering
//! would be waited for again and again. So a connection that timed out is dropped, and the
//! next call opens another. Whether a call that got no answer was carried out is unknown,
//! which is why every call of this crate may be repeated.

use std::pin::pin;
#[cfg(feature = "worker")]
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redis::Pipeline;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, RedisError, Value};
use tokio::time::sleep;

use super::fault::Fault;
#[cfg(feature = "worker")]
use super::health::Health;
use super::in_time::in_time;
use super::origin::Origin;
use crate::error::Result;
use crate::metrics;
use crate::settings::LinkSettings;

/// The first pause between two tries; it doubles up to [`LAST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LAST_PAUSE: Duration = Duration::from_millis(500);

/// One server, reached through one connection at a time.
pub(crate) struct Link {
    origin: Origin,
    config: AsyncConnectionConfig,
    /// The longest that opening a connection may take.
    connect_timeout: Duration,
    /// The longest that a single try may take, from sending to the reply.
    response_timeout: Duration,
    current: Mutex<Option<Connection>>,
    /// Held while a connection is opened, so that one is opened and not a hundred.
    opening: tokio::sync::Mutex<()>,
    opened: AtomicU64,
    /// Told of what the server ails from.
    #[cfg(feature = "worker")]
    health: Option<Arc<Health>>,
}

#[derive(Clone)]
struct Connection {
    number: u64,
    /// How often the server had moved when it was opened.
    moves: u64,
    inner: MultiplexedConnection,
}

/// What a server answered, and when.
pub(crate) struct Answer {
    pub(crate) value: Value,
    pub(crate) sent: Instant,
    pub(crate) received: Instant,
}

/// A command, or several that are sent together and answered as one array.
pub(crate) enum Request<'a> {
    One(&'a Cmd),
    Many(&'a Pipeline),
}

impl Link {
    pub(crate) fn new(origin: Origin, settings: &LinkSettings) -> Self {
        Link {
            origin,
            config: AsyncConnectionConfig::new()
                // They are seen to here.
                .set_connection_timeout(None)
                .set_response_timeout(None),
            connect_timeout: settings.connect_timeout,
            response_timeout: settings.response_timeout,
            current: Mutex::new(None),
            opening: tokio::sync::Mutex::new(()),
            opened: AtomicU64::new(0),
            #[cfg(feature = "worker")]
            health: None,
        }
    }

    /// Another link to the same server.
    #[cfg(feature = "worker")]
    pub(crate) fn another(&self, settings: &LinkSettings) -> Self {
        Link::new(self.origin.clone(), settings)
    }

    /// A link to the same server for another runtime, which tells `health` of what it meets.
    #[cfg(feature = "worker")]
    pub(crate) fn watched(&self, settings: &LinkSettings, health: Arc<Health>) -> Self {
        Link {
            health: Some(health),
            ..Link::new(self.origin.apart(), settings)
        }
    }

    /// Where the server is; without credentials.
    pub(crate) fn address(&self) -> String {
        self.origin.address()
    }

    #[cfg(feature = "worker")]
    pub(crate) fn origin(&self) -> &Origin {
        &self.origin
    }

    /// How many connections were opened so far. A change tells that there was a gap.
    pub(crate) fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    /// Sends a request until it is answered or `until` has passed. Repeats it after faults of
    /// the connection and while the server is loading or busy; an answer that repeating does
    /// not change comes back at once, as an error.
    pub(crate) async fn send(&self, request: Request<'_>, until: Instant) -> Result<Answer, Fault> {
        self.keep_sending(request, until, |_| true).await
    }

    /// The same, and repeats nothing that may have been carried out.
    #[cfg(feature = "worker")]
    pub(crate) async fn send_once(
        &self,
        request: Request<'_>,
        until: Instant,
    ) -> Result<Answer, Fault> {
        self.keep_sending(request, until, |maybe_done| !maybe_done)
            .await
    }

    /// `repeats` is told whether the request may have been carried out.
    async fn keep_sending(
        &self,
        request: Request<'_>,
        until: Instant,
        repeats: impl Fn(bool) -> bool,
    ) -> Result<Answer, Fault> {
        let mut pause = FIRST_PAUSE;
        let mut maybe_done = false;
        loop {
            #[cfg(feature = "worker")]
            let sent = Instant::now();
            let fault = match self.try_once(&request, until, &mut maybe_done).await {
                Ok(answer) => return Ok(answer),
                Err(fault) => fault,
            };
            #[cfg(feature = "worker")]
            if let (Some(health), Some(ailment)) = (&self.health, fault.ailment())
                && !self.is_hurried(sent, until)
            {
                health.fails(ailment, sent, fault.error());
            }
            let again = Instant::now() + pause;
            let passes = fault.is_passing() || fault.is_demoted() && self.origin.can_move();
            if !passes || again >= until || !repeats(maybe_done) {
                return Err(fault.after_sending(maybe_done));
            }
            sleep(pause).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

    async fn try_once(
        &self,
        request: &Request<'_>,
        until: Instant,
        maybe_done: &mut bool,
    ) -> Result<Answer, Fault> {
        let mut connection = self.connection(until).await?;
        let sent = Instant::now();
        let reply = pin!(async {
            match request {
                Request::One(cmd) => cmd.query_async(&mut connection.inner).await,
                Request::Many(pipeline) => pipeline.query_async(&mut connection.inner).await,
            }
        });
        let limit = until.min(sent + self.response_timeout);
        let fault = match in_time(limit, reply).await {
            Some(Ok(_)) if connection.moves != self.origin.moves() => {
                // It may be forgotten with the server that said so.
                Fault::moved(&self.address())
            }
            Some(Ok(value)) => {
                return Ok(Answer {
                    value,
                    sent,
                    received: Instant::now(),
                });
            }
            Some(Err(error)) => Fault::from_redis(error, &self.address()),
            None => Fault::timed_out(&self.address(), limit - sent),
        };
        if fault.breaks_connection() {
            *maybe_done = true;
            self.drop_connection(connection.number);
        }
        Err(fault)
    }

    /// Whether a try that was given up at `until` would say nothing of the server, because it
    /// had too little time.
    #[cfg(feature = "worker")]
    fn is_hurried(&self, sent: Instant, until: Instant) -> bool {
        Instant::now() >= until && until - sent < self.response_timeout / 2
    }

    async fn connection(&self, until: Instant) -> Result<Connection, Fault> {
        if let Some(connection) = self.held() {
            return Ok(connection);
        }
        // Rare and large, and so not a part of every call.
        let open = Box::pin(async {
            let _turn = self.opening.lock().await;
            if let Some(connection) = self.held() {
                return Ok(connection);
            }
            let moves = self.origin.moves();
            let client = self.origin.client().await?;
            let open = pin!(client.get_multiplexed_async_connection_with_config(&self.config));
            let opened = in_time(Instant::now() + self.connect_timeout, open).await;
            let inner = opened
                .ok_or_else(|| self.unreachable())?
                .map_err(|error| self.not_connected(error))?;
            let number = self.opened.fetch_add(1, Ordering::Relaxed) + 1;
            if number > 1 {
                metrics::reconnected("commands");
            }
            let connection = Connection {
                number,
                moves,
                inner,
            };
            *self.current.lock().expect("no panic while held") = Some(connection.clone());
            Ok(connection)
        });
        let opened = in_time(until, pin!(open)).await;
        opened.unwrap_or_else(|| Err(self.unreachable()))
    }

    fn unreachable(&self) -> Fault {
        Fault::unreachable(&self.address())
    }

    fn not_connected(&self, error: RedisError) -> Fault {
        Fault::from_connecting(error, &self.address())
    }

    fn held(&self) -> Option<Connection> {
        let held = self.current.lock().expect("no panic while held").clone();
        held.filter(|held| held.moves == self.origin.moves())
    }

    fn drop_connection(&self, number: u64) {
        let mut current = self.current.lock().expect("no panic while held");
        if current.as_ref().is_some_and(|held| held.number == number) {
            *current = None;
        }
    }
}
