//! A connection to one server, opened when it is needed, and anew when it is not to be used any
//! more.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;

/// Where one connection at a time stands.
#[derive(Default)]
pub(in crate::store) struct ConnectionSlot {
    current: Mutex<Option<Connection>>,
    /// Held while a connection is opened, so that one is opened and not a hundred.
    pub(in crate::store) opening: tokio::sync::Mutex<()>,
    was_taken: AtomicBool,
}

#[derive(Clone)]
pub(in crate::store) struct Connection {
    pub(in crate::store) number: u64,
    /// How often the server had moved when it was opened.
    pub(in crate::store) moves: u64,
    pub(in crate::store) inner: MultiplexedConnection,
    opened: Instant,
    /// How many milliseconds after that something was last answered.
    answered: Arc<AtomicU64>,
}

/// After so long without an answer nobody knows whether a connection is still one.
const IDLE: Duration = Duration::from_millis(10);

impl Connection {
    pub(in crate::store) fn new(number: u64, moves: u64, inner: MultiplexedConnection) -> Self {
        Connection {
            number,
            moves,
            inner,
            opened: Instant::now(),
            answered: Arc::default(),
        }
    }

    pub(in crate::store) fn has_answered(&self) {
        let since = self.opened.elapsed().as_millis() as u64;
        self.answered.fetch_max(since, Ordering::Relaxed);
    }

    /// Whether nothing was answered for a while.
    pub(in crate::store) fn is_idle(&self) -> bool {
        let answered = Duration::from_millis(self.answered.load(Ordering::Relaxed));
        self.opened.elapsed() > answered + IDLE
    }
}

impl ConnectionSlot {
    /// The connection, if there is one; `moves` is how often the server has moved by now.
    pub(in crate::store) fn held(&self, moves: u64) -> Option<Connection> {
        let held = self.current.lock().expect("no panic while held").clone();
        held.filter(|held| held.moves == moves)
    }

    /// Whether this is the first time that somebody asks.
    pub(in crate::store) fn is_new(&self) -> bool {
        !self.was_taken.swap(true, Ordering::Relaxed)
    }

    pub(in crate::store) fn hold(&self, connection: Connection) {
        *self.current.lock().expect("no panic while held") = Some(connection);
    }

    /// Drops the connection of this number, and no later one.
    pub(in crate::store) fn drop_connection(&self, number: u64) {
        let mut current = self.current.lock().expect("no panic while held");
        if current.as_ref().is_some_and(|held| held.number == number) {
            *current = None;
        }
    }
}
