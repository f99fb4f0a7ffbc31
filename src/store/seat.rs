//! A connection to one server, opened when it is needed, and anew when it is not to be used any
//! more.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use redis::aio::MultiplexedConnection;

/// Where one connection at a time stands.
#[derive(Default)]
pub(super) struct Seat {
    current: Mutex<Option<Connection>>,
    /// Held while a connection is opened, so that one is opened and not a hundred.
    pub(super) opening: tokio::sync::Mutex<()>,
    was_taken: AtomicBool,
}

#[derive(Clone)]
pub(super) struct Connection {
    pub(super) number: u64,
    /// How often the server had moved when it was opened.
    pub(super) moves: u64,
    pub(super) inner: MultiplexedConnection,
}

impl Seat {
    /// The connection, if there is one; `moves` is how often the server has moved by now.
    pub(super) fn held(&self, moves: u64) -> Option<Connection> {
        let held = self.current.lock().expect("no panic while held").clone();
        held.filter(|held| held.moves == moves)
    }

    /// Whether this is the first time that somebody asks.
    pub(super) fn is_new(&self) -> bool {
        !self.was_taken.swap(true, Ordering::Relaxed)
    }

    pub(super) fn hold(&self, connection: Connection) {
        *self.current.lock().expect("no panic while held") = Some(connection);
    }

    /// Drops the connection of this number, and no later one.
    pub(super) fn drop_connection(&self, number: u64) {
        let mut current = self.current.lock().expect("no panic while held");
        if current.as_ref().is_some_and(|held| held.number == number) {
            *current = None;
        }
    }
}
