//! One connection to one server, and the slot that holds it: the slot is filled when a connection
//! is needed, and emptied when the connection breaks or the server moves.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;

/// A place for one connection at a time.
#[derive(Default)]
pub(in crate::store) struct ConnectionSlot {
    /// The connection; nothing before the first, and after a break.
    current: Mutex<Option<Connection>>,
    /// Held while a connection is opened, so that calls made together open one and not a hundred.
    pub(in crate::store) opening: tokio::sync::Mutex<()>,
    /// True after the first call of [`is_new`](Self::is_new).
    was_taken: AtomicBool,
}

/// An open connection. Clones share it.
#[derive(Clone)]
pub(in crate::store) struct Connection {
    /// Number among the connections of its link, from 1.
    pub(in crate::store) number: u64,
    /// How many times the server had moved when it was opened.
    pub(in crate::store) moves: u64,
    /// Carries many commands at the same time.
    pub(in crate::store) inner: MultiplexedConnection,
    opened: Instant,
    /// Milliseconds from `opened` to the latest answer.
    answered: Arc<AtomicU64>,
}

/// After this long without an answer, the connection may have been closed by the other side. No
/// server starts again in less: of 15 starts without data, Redis 6.2 took 2.5 ms at the least.
const IDLE: Duration = Duration::from_millis(1);

impl Connection {
    /// A connection that was opened just now.
    pub(in crate::store) fn new(number: u64, moves: u64, inner: MultiplexedConnection) -> Self {
        Connection {
            number,
            moves,
            inner,
            opened: Instant::now(),
            answered: Arc::default(),
        }
    }

    /// Notes that an answer came now.
    pub(in crate::store) fn has_answered(&self) {
        let since = self.opened.elapsed().as_millis() as u64;
        self.answered.fetch_max(since, Ordering::Relaxed);
    }

    /// True if no answer came for more than [`IDLE`].
    pub(in crate::store) fn is_idle(&self) -> bool {
        let answered = Duration::from_millis(self.answered.load(Ordering::Relaxed));
        self.opened.elapsed() > answered + IDLE
    }
}

impl ConnectionSlot {
    /// The connection, if there is one that was opened when the server had moved `moves` times.
    pub(in crate::store) fn held(&self, moves: u64) -> Option<Connection> {
        let held = self.current.lock().expect("no panic while held").clone();
        held.filter(|held| held.moves == moves)
    }

    /// True at the first call, and never again.
    pub(in crate::store) fn is_new(&self) -> bool {
        !self.was_taken.swap(true, Ordering::Relaxed)
    }

    /// Puts a connection in, in place of the one before.
    pub(in crate::store) fn hold(&self, connection: Connection) {
        *self.current.lock().expect("no panic while held") = Some(connection);
    }

    /// Drops the connection with this number, and no later one.
    pub(in crate::store) fn drop_connection(&self, number: u64) {
        let mut current = self.current.lock().expect("no panic while held");
        if current.as_ref().is_some_and(|held| held.number == number) {
            *current = None;
        }
    }
}
