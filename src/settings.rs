//! The settings of clients and workers, with their defaults and the reasons for them.
//!
//! The structs hold settings that builders change; the constants are limits of settings, and the
//! fixed times and sizes that several modules share.

use std::ops::RangeInclusive;
#[cfg(any(feature = "tls", feature = "callbacks"))]
use std::path::PathBuf;
use std::time::Duration;

/// The settings of a connection to Redis.
#[derive(Debug, Clone)]
pub(crate) struct LinkSettings {
    /// The longest time to open a connection. Defaults to 2 s: several round trips across a
    /// continent, TLS included.
    pub(crate) connect_timeout: Duration,
    /// The longest time until Redis answers; then the connection counts as hung and is replaced.
    /// Defaults to 2 s: Redis answers in microseconds, and a fork or a slow disk may hold it up for
    /// a second.
    pub(crate) response_timeout: Duration,
    /// The trusted CA certificates and the client certificate. Defaults to the CAs that this system
    /// trusts, and to no client certificate.
    #[cfg(feature = "tls")]
    pub(crate) certificates: Certificates,
}

/// The certificates of connections that use TLS.
#[cfg(feature = "tls")]
#[derive(Debug, Clone, Default)]
pub(crate) struct Certificates {
    /// The CAs that must have signed the server's certificate, instead of the CAs that the system
    /// trusts.
    pub(crate) ca: Option<Pem>,
    /// The client certificate and its private key, for servers that ask for one.
    pub(crate) client: Option<(Pem, Pem)>,
}

/// A certificate or a key, in the PEM format.
#[cfg(any(feature = "tls", feature = "callbacks"))]
#[derive(Clone)]
pub(crate) enum Pem {
    /// The text itself.
    Text(Vec<u8>),
    /// The path of a file that holds it.
    File(PathBuf),
}

/// Leaves out the text, which may hold a private key.
#[cfg(any(feature = "tls", feature = "callbacks"))]
impl std::fmt::Debug for Pem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Pem::Text(_) => f.write_str("Text(…)"),
            Pem::File(path) => write!(f, "File({path:?})"),
        }
    }
}

impl Default for LinkSettings {
    fn default() -> Self {
        LinkSettings {
            connect_timeout: Duration::from_secs(2),
            response_timeout: Duration::from_secs(2),
            #[cfg(feature = "tls")]
            certificates: Certificates::default(),
        }
    }
}

/// The settings of a client; set through [`ClientBuilder`](crate::ClientBuilder).
#[derive(Debug, Clone)]
pub(crate) struct ClientSettings {
    /// The prefix of all keys but the triggers. Defaults to `keyfall`.
    pub(crate) namespace: String,
    /// The largest payload, in bytes. Defaults to 1 MiB: a reminder carries a reference or a
    /// small document, and Redis keeps it in memory until it is due.
    pub(crate) payload_limit: usize,
    /// The time after which a call gives up, its repeats included. Defaults to 10 s: longer than a
    /// restart of Redis or a fail-over, shorter than the patience of a service's caller.
    pub(crate) call_timeout: Duration,
    /// The number of shards with which a new kind starts. `None`, the default, fits it to the
    /// servers.
    pub(crate) default_shards: Option<u16>,
    /// Whether to accept a server that evicts ledgers when it is full. Defaults to no: such a
    /// server would drop jobs silently.
    pub(crate) allow_eviction: bool,
    /// The settings of its connections.
    pub(crate) link: LinkSettings,
}

/// The default of the largest payload, in bytes.
pub(crate) const PAYLOAD_LIMIT: usize = 1024 * 1024;

/// The range for the limit of payloads, in bytes. Redis keeps no string above 512 MiB, and one call
/// carries several.
pub(crate) const PAYLOAD_LIMITS: RangeInclusive<usize> = 1..=256 * 1024 * 1024;

impl Default for ClientSettings {
    fn default() -> Self {
        ClientSettings {
            namespace: "keyfall".into(),
            payload_limit: PAYLOAD_LIMIT,
            call_timeout: Duration::from_secs(10),
            default_shards: None,
            allow_eviction: false,
            link: LinkSettings::default(),
        }
    }
}

/// The longest delay and the farthest due time: 10 years, with their leap days. Far beyond any
/// reminder, and near enough to catch a wrong unit (µs for ms).
pub(crate) const MAX_DELAY: Duration = Duration::from_secs(3653 * 24 * 3600);

/// The interval at which a client that goes on scheduling jobs of a kind lists the kind again, in
/// case the database was emptied: workers with wildcards find only listed kinds.
pub(crate) const KNOWN_FOR: Duration = Duration::from_secs(15);

/// The shortest interval between two listings of a kind whose ledger goes on asking for it.
pub(crate) const TOLD_AGAIN: Duration = Duration::from_secs(1);

/// The time for which a client that has seen data of a kind assumes that the kind still has data.
pub(crate) const FOUND_FOR: Duration = Duration::from_secs(60);

/// The time without a call after which a client forgets its knowledge of a kind.
pub(crate) const IDLE: Duration = Duration::from_secs(300);

/// The interval at which a client looks for such kinds, and the time without a call after which the
/// task of a queue ends.
pub(crate) const IDLE_LOOK: Duration = Duration::from_secs(60);

/// The number of batches of one operation on one ledger that a client keeps in flight. Measured:
/// one leaves Redis idle between batches, more than four gain nothing.
pub(crate) const LANES: usize = 4;

/// The largest number of items in one call to a script. It bounds the time for which a script holds
/// Redis up (about a millisecond), and is far below the limit of Lua's `unpack`.
pub(crate) const BATCH: usize = 256;

/// The number of calls that may wait for a lane; callers of `schedule` and of similar calls wait
/// beyond it.
pub(crate) const QUEUE: usize = 4 * BATCH;

/// The approximate largest size of one call to a script, in bytes, unless a single item is larger.
/// It bounds the buffers of Redis and of this process.
pub(crate) const BATCH_BYTES: usize = 1024 * 1024;

/// The settings of a worker; set through the methods of [`Worker`](crate::Worker).
#[cfg(feature = "worker")]
#[derive(Debug, Clone)]
pub(crate) struct WorkerSettings {
    /// The number of jobs that run at the same time, over all routes. Defaults to 256: handlers
    /// mostly wait, and a burst needs that many to keep Redis busy; a handler that computes wants a
    /// limit on its route.
    pub(crate) concurrency: usize,
    /// The time of silence after which another worker takes a job over. Defaults to 15 s: longer
    /// than a restart of Redis takes, short enough for a payment notice.
    pub(crate) lease: LeaseLength,
    /// The time that a graceful stop waits for handlers. Defaults to 25 s: the time that
    /// orchestrators give a process (30 s), less the time to hand back the rest.
    pub(crate) grace: Duration,
    /// The limit of a run where its route sets none. Defaults to 5 minutes: a run that hangs must
    /// not hold its slot for ever.
    pub(crate) timeout: Duration,
    /// The number of dead letters that each ledger keeps. Defaults to 10,000.
    pub(crate) dead_count: u64,
    /// The time for which a dead letter is kept. Defaults to 90 days.
    pub(crate) dead_age: Duration,
    /// How long jobs without a route on any live instance are overdue before they are buried.
    /// Defaults to never: an operator who forgot a route should find the jobs.
    pub(crate) bury_unrouted: Option<Duration>,
    /// Whether routes may adopt plain keys although Redis does not announce changes of keys.
    /// Defaults to no: jobs would be lost silently.
    pub(crate) allow_unannounced: bool,
    /// The lateness at which a start is reported where the route sets none. Defaults to never: only
    /// the owner knows how late is too late.
    pub(crate) late_after: Option<Duration>,
    /// The limit of a hook for one job. Defaults to 10 s: long enough to repeat a call to another
    /// service, short enough that a dead job does not occupy the worker.
    pub(crate) hook_timeout: Duration,
}

#[cfg(feature = "worker")]
impl Default for WorkerSettings {
    fn default() -> Self {
        WorkerSettings {
            concurrency: 256,
            lease: LeaseLength(Duration::from_secs(15)),
            grace: Duration::from_secs(25),
            timeout: Duration::from_secs(300),
            dead_count: 10_000,
            dead_age: Duration::from_secs(90 * 24 * 3600),
            bury_unrouted: None,
            allow_unannounced: false,
            late_after: None,
            hook_timeout: Duration::from_secs(10),
        }
    }
}

/// The range for the length of a lease, 1 s to 1 day. Shorter ones would lapse while Redis is busy
/// for a moment; longer ones would keep the jobs of a worker that died.
#[cfg(feature = "worker")]
pub(crate) const LEASES: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(24 * 3600);

/// The length of a lease, and the times that follow from it.
#[cfg(feature = "worker")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LeaseLength(pub(crate) Duration);

#[cfg(feature = "worker")]
impl LeaseLength {
    /// The interval of renewals: a third of the lease, so that two renewals may fail.
    pub(crate) fn renewal(self) -> Duration {
        self.0 / 3
    }

    /// The time after the last renewal for which a run may go on, by our own clock, without an
    /// answer from Redis: 14/15 of the lease.
    pub(crate) fn safe(self) -> Duration {
        self.0 - self.0 / 15
    }

    /// The time that a handler has after its cancellation signal before it is dropped: 1/15 of the
    /// lease, at most a second.
    pub(crate) fn notice(self) -> Duration {
        (self.0 / 15).min(Duration::from_secs(1))
    }
}

/// The number of late starts that are reported at the same time; further late starts are counted.
/// After an outage all waiting jobs start late, and a slow hook must not fill the memory.
#[cfg(feature = "worker")]
pub(crate) const LATE_HOOKS: usize = 256;

/// The lateness at which the reconciler looks for a job. Well above the time that an event takes,
/// and well below the half second in which a lost event is to be made good.
#[cfg(feature = "worker")]
pub(crate) const OVERDUE: Duration = Duration::from_millis(200);

/// The interval of the reconciler's sweeps where nothing happens. The next sweep finds every job
/// that was missed.
#[cfg(feature = "worker")]
pub(crate) const SWEEP_IDLE: Duration = Duration::from_secs(30);

/// The interval at which an instance looks for jobs without a route on any instance, and for kinds
/// whose announcement was lost.
#[cfg(feature = "worker")]
pub(crate) const LOOKOUT: Duration = Duration::from_secs(20);

/// The interval at which dead letters past their age are removed, beside each burial.
#[cfg(feature = "worker")]
pub(crate) const TRIM: Duration = Duration::from_secs(300);

/// The interval of the reconciler's sweeps while neither events nor wake-ups arrive: then nothing
/// else finds new jobs.
#[cfg(feature = "worker")]
pub(crate) const SWEEP_DEAF: Duration = Duration::from_millis(500);

/// The time after touching a trigger at which the pacer hands over a job that no event announced.
#[cfg(feature = "worker")]
pub(crate) const UNANNOUNCED: Duration = Duration::from_millis(20);

/// The longest sleep of an actor before it reads its estimate of Redis' clock again: a clock that
/// jumps delays nothing for longer.
#[cfg(feature = "worker")]
pub(crate) const LONGEST_SLEEP: Duration = Duration::from_millis(1500);

/// The interval of an instance's heartbeats, with which it also learns which others live. A beat
/// that arrives also shows that both of its connections are alive.
#[cfg(feature = "worker")]
pub(crate) const BEAT: Duration = Duration::from_millis(800);

/// The silence after which an instance counts as gone. With [`BEAT`] it bounds the time that a
/// ledger is without a pacer: one beat to notice that something is late, and this.
#[cfg(feature = "worker")]
pub(crate) const SILENCE: Duration = Duration::from_millis(1250);

/// The time for which the jobs of an instance that is gone are kept for it, and not given to
/// fallbacks of other instances. Longer than the replacement of a worker takes.
#[cfg(feature = "worker")]
pub(crate) const LATELY: Duration = Duration::from_secs(10);

/// The silence after which a subscription is probed. Longer than [`BEAT`], since a subscription
/// hears the beats of its own instance.
#[cfg(feature = "worker")]
pub(crate) const SUBSCRIPTION_SILENCE: Duration = Duration::from_secs(2);

/// The time for which settlements gather into one call. No caller waits for them, and a call for
/// each job would cost Redis more than the job. If the worker dies in this time, the jobs of these
/// settlements run again.
#[cfg(feature = "worker")]
pub(crate) const SETTLE_GATHER: Duration = Duration::from_millis(8);

/// The number of settlements that ends the gathering: more in one call save next to nothing.
#[cfg(feature = "worker")]
pub(crate) const SETTLE_ENOUGH: usize = 64;

/// The deadline of a worker's claims and settlements, which are repeated until the worker is
/// dropped: ten years.
#[cfg(feature = "worker")]
pub(crate) const FOREVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
