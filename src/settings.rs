//! Every setting, its default and the reason for it, in one place.

use std::time::Duration;

/// How a connection to Redis behaves.
#[derive(Debug, Clone)]
pub(crate) struct LinkSettings {
    /// The longest that opening a connection may take. Defaults to 2 s: several round trips
    /// across a continent, TLS included.
    pub(crate) connect_timeout: Duration,
    /// The longest that Redis may take to answer before the connection counts as hung and is
    /// replaced. Defaults to 2 s: Redis answers in microseconds, and a fork or a slow disk
    /// may hold it up for a second.
    pub(crate) response_timeout: Duration,
}

impl Default for LinkSettings {
    fn default() -> Self {
        LinkSettings {
            connect_timeout: Duration::from_secs(2),
            response_timeout: Duration::from_secs(2),
        }
    }
}

/// How a client behaves; set through [`ClientBuilder`](crate::ClientBuilder).
#[derive(Debug, Clone)]
pub(crate) struct ClientSettings {
    /// The prefix of all keys but the triggers. Defaults to `keyfall`.
    pub(crate) namespace: String,
    /// The largest payload, in bytes. Defaults to 1 MiB: a reminder carries a reference or a
    /// small document, and Redis keeps it in memory until it is due.
    pub(crate) payload_limit: usize,
    /// After how long a call gives up, its repeats included. Defaults to 10 s: longer than a
    /// restart of Redis or a fail-over, shorter than what a caller of a service waits.
    pub(crate) call_timeout: Duration,
    pub(crate) link: LinkSettings,
}

impl Default for ClientSettings {
    fn default() -> Self {
        ClientSettings {
            namespace: "keyfall".into(),
            payload_limit: 1024 * 1024,
            call_timeout: Duration::from_secs(10),
            link: LinkSettings::default(),
        }
    }
}

/// The longest delay and the farthest due time: 10 years. Far beyond any reminder, and near
/// enough that a unit mistaken for another (µs for ms) is caught.
pub(crate) const MAX_DELAY: Duration = Duration::from_secs(10 * 366 * 24 * 3600);

/// How many batches of one operation on one ledger a client keeps in flight. Measured: one
/// leaves Redis idle between batches, more than four gain nothing.
pub(crate) const LANES: usize = 4;

/// How many items one call to a script carries at the most. Bounds the time for which a
/// script holds Redis up (about a millisecond), and keeps far from what Lua's `unpack` takes.
pub(crate) const BATCH: usize = 256;

/// How many calls may wait for a lane before `schedule` and its like make the caller wait.
pub(crate) const QUEUE: usize = 4 * BATCH;

/// About how many bytes one call to a script carries at the most, unless a single item is
/// larger. Bounds what Redis and this process buffer for it.
pub(crate) const BATCH_BYTES: usize = 1024 * 1024;
