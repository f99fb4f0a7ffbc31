//! Every setting, its default and the reason for it, in one place.

use std::ops::RangeInclusive;
#[cfg(any(feature = "tls", feature = "callbacks"))]
use std::path::PathBuf;
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
    /// Which certificates are believed, and which are shown. Defaults to believing what this
    /// system believes, and showing none.
    #[cfg(feature = "tls")]
    pub(crate) certificates: Certificates,
}

/// The certificates of connections that use TLS.
#[cfg(feature = "tls")]
#[derive(Debug, Clone, Default)]
pub(crate) struct Certificates {
    /// Of whom the server's certificate must be; instead of those whom the system trusts.
    pub(crate) ca: Option<Pem>,
    /// What a server is shown that asks who we are: a certificate, and its key.
    pub(crate) client: Option<(Pem, Pem)>,
}

/// Where a certificate or a key is.
#[cfg(any(feature = "tls", feature = "callbacks"))]
#[derive(Clone)]
pub(crate) enum Pem {
    Text(Vec<u8>),
    File(PathBuf),
}

/// It may hold a private key.
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
    /// With how many ledgers a kind starts; nothing for as many as fit the server.
    pub(crate) default_shards: Option<u16>,
    /// Whether a server is accepted that evicts ledgers when it is full. Defaults to no: it
    /// would drop jobs without a word.
    pub(crate) allow_eviction: bool,
    pub(crate) link: LinkSettings,
}

/// The largest payload where nobody says otherwise, in bytes.
pub(crate) const PAYLOAD_LIMIT: usize = 1024 * 1024;

/// The limits that can be told. Redis keeps no string above 512 MiB, and one call carries several.
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

/// The longest delay and the farthest due time: 10 years, with their leap days. Far beyond any reminder, and near
/// enough that a unit mistaken for another (µs for ms) is caught.
pub(crate) const MAX_DELAY: Duration = Duration::from_secs(3653 * 24 * 3600);

/// After how long a client that goes on scheduling jobs of a kind makes it known again, in case
/// somebody has emptied the database: only kinds that are known are found by patterns.
pub(crate) const KNOWN_FOR: Duration = Duration::from_secs(15);

/// How long a ledger may go on asking for its kind to be made known before that is done again.
pub(crate) const TOLD_AGAIN: Duration = Duration::from_secs(1);

/// How long a client that has seen something of a kind goes on believing that there is something.
pub(crate) const FOUND_FOR: Duration = Duration::from_secs(60);

/// After how long without a call a client forgets what it knows of a kind.
pub(crate) const IDLE: Duration = Duration::from_secs(300);

/// How often it looks for such kinds, and after how long a lane without a call ends.
pub(crate) const IDLE_LOOK: Duration = Duration::from_secs(60);

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

/// How a worker behaves; set through the methods of [`Worker`](crate::Worker).
#[cfg(feature = "worker")]
#[derive(Debug, Clone)]
pub(crate) struct WorkerSettings {
    /// How many jobs run at the same time, over all routes. Defaults to 256: handlers mostly
    /// wait for something, and a burst needs that many to keep Redis busy; a handler that
    /// works for its time wants a limit on its route.
    pub(crate) concurrency: usize,
    /// How long a job may be silent before another worker takes it over. Defaults to 15 s:
    /// longer than a restart of Redis takes, short enough for a payment notice.
    pub(crate) lease: LeaseLength,
    /// How long a graceful stop waits for handlers. Defaults to 25 s: what orchestrators
    /// allow a process (30 s), less the time to hand back the rest.
    pub(crate) grace: Duration,
    /// How long a run may take where its route does not say. Defaults to 5 minutes: a run
    /// that hangs must not hold its slot for ever.
    pub(crate) timeout: Duration,
    /// How many dead letters each ledger keeps. Defaults to 10,000.
    pub(crate) dead_count: u64,
    /// For how long. Defaults to 90 days.
    pub(crate) dead_age: Duration,
    /// How long jobs are overdue that no live instance has a route for, before they are buried.
    /// Defaults to never: whoever forgot the route should find the jobs.
    pub(crate) bury_unrouted: Option<Duration>,
    /// Whether routes may adopt plain keys where Redis does not announce what is done to them.
    /// Defaults to no: it would lose jobs without a word.
    pub(crate) allow_unannounced: bool,
    /// How late a job may start where its route does not say. Defaults to any time: how late is
    /// too late is for its owner to say.
    pub(crate) late_after: Option<Duration>,
    /// How long a hook may take for one job. Defaults to 10 s: long enough to repeat a call to
    /// another service, and a job that died does not occupy the worker for longer.
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

/// How long a lease may be. Shorter ones lapse while Redis is busy for a moment; longer ones
/// keep the jobs of a worker that died.
#[cfg(feature = "worker")]
pub(crate) const LEASES: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(24 * 3600);

/// How long a lease is, and what follows from that.
#[cfg(feature = "worker")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LeaseLength(pub(crate) Duration);

#[cfg(feature = "worker")]
impl LeaseLength {
    /// How often a lease is renewed: a third of it, so that two renewals may fail.
    pub(crate) fn renewal(self) -> Duration {
        self.0 / 3
    }

    /// Until when a run may go on, by our own clock, whatever Redis says.
    pub(crate) fn safe(self) -> Duration {
        self.0 - self.0 / 15
    }

    /// How long a handler may go on after its cancellation signal, before it is dropped.
    pub(crate) fn notice(self) -> Duration {
        (self.0 / 15).min(Duration::from_secs(1))
    }
}

/// How many late starts are told at the same time; those beyond are counted. After an outage all
/// that waited starts late, and a hook that is slow must not fill the memory.
#[cfg(feature = "worker")]
pub(crate) const LATE_HOOKS: usize = 256;

/// How long a job may be overdue before the reconciler looks for it. Well above what an
/// event takes, well below the half second in which a lost one is to be made good.
#[cfg(feature = "worker")]
pub(crate) const OVERDUE: Duration = Duration::from_millis(200);

/// How often the reconciler looks where nothing happens. Whatever was missed is found by
/// then.
#[cfg(feature = "worker")]
pub(crate) const SWEEP_IDLE: Duration = Duration::from_secs(30);

/// How often an instance looks for jobs that nobody has a route for, and for kinds whose
/// announcement was lost.
#[cfg(feature = "worker")]
pub(crate) const LOOKOUT: Duration = Duration::from_secs(20);

/// How often dead letters are looked for that have come of age, beside each burial.
#[cfg(feature = "worker")]
pub(crate) const TRIM: Duration = Duration::from_secs(300);

/// How often the reconciler looks while neither events nor wake-ups are heard: then it is all
/// that finds new jobs.
#[cfg(feature = "worker")]
pub(crate) const SWEEP_DEAF: Duration = Duration::from_millis(500);

/// How long after touching a trigger the pacer hands over a job that no event announced.
#[cfg(feature = "worker")]
pub(crate) const UNANNOUNCED: Duration = Duration::from_millis(20);

/// The longest that an actor sleeps without looking at Redis' clock again, as far as it is
/// known here: a clock that jumps delays nothing for longer.
#[cfg(feature = "worker")]
pub(crate) const LONGEST_SLEEP: Duration = Duration::from_millis(1500);

/// How often an instance says that it lives, and learns which others do. Shows that both of
/// its connections are alive, too.
#[cfg(feature = "worker")]
pub(crate) const BEAT: Duration = Duration::from_millis(800);

/// After which silence an instance counts as gone. With [`BEAT`] it bounds how long a ledger
/// is without a pacer: one beat to notice that something is late, and this.
#[cfg(feature = "worker")]
pub(crate) const SILENCE: Duration = Duration::from_millis(1250);

/// For how long an instance that is gone keeps the jobs that it had a route for from those that
/// take what nobody has a route for. Longer than a worker needs to be replaced by another.
#[cfg(feature = "worker")]
pub(crate) const LATELY: Duration = Duration::from_secs(10);

/// How long a subscription may be silent before it is asked whether it lives. Longer than
/// [`BEAT`], since it hears its own instance's beats.
#[cfg(feature = "worker")]
pub(crate) const SUBSCRIPTION_SILENCE: Duration = Duration::from_secs(2);

/// How long settling may gather. Nobody waits for it, and a call for each job would cost
/// Redis more than the job. A worker that dies meanwhile leaves that much more to be run again.
#[cfg(feature = "worker")]
pub(crate) const SETTLE_GATHER: Duration = Duration::from_millis(8);

/// How many settlements are enough to stop gathering: more in one call save next to nothing.
#[cfg(feature = "worker")]
pub(crate) const SETTLE_ENOUGH: usize = 64;

/// For how long a worker repeats a claim or a settlement: until it is dropped.
#[cfg(feature = "worker")]
pub(crate) const FOREVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
