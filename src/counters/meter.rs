//! What is counted of one ledger, and of the process.

use std::sync::Mutex;
#[cfg(feature = "worker")]
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use ::metrics::{Counter, counter, histogram};
#[cfg(feature = "worker")]
use ::metrics::{Histogram, gauge};

use crate::key::Kind;
#[cfg(feature = "worker")]
use crate::source::Source;

/// How long a counter that was not needed meanwhile is taken for the one that the recorder shows: it
/// may forget what has stood still for an hour.
const ASKED_FOR: Duration = Duration::from_secs(900);

/// What is asked of the recorder when it is needed, and again if it was not needed for a while.
struct CachedHandle<T>(Mutex<Option<(T, Instant)>>);

impl<T> Default for CachedHandle<T> {
    fn default() -> Self {
        CachedHandle(Mutex::new(None))
    }
}

impl<T: Clone> CachedHandle<T> {
    fn get(&self, ask: impl FnOnce() -> T) -> T {
        let (mut asked, now) = (self.0.lock().expect("no panic while held"), Instant::now());
        let known = asked.take().filter(|(_, used)| now - *used < ASKED_FOR);
        let known = known.map_or_else(ask, |(known, _)| known);
        asked.insert((known, now)).0.clone()
    }
}

/// What is counted of one ledger.
#[derive(Default)]
pub(crate) struct Meter {
    kind: String,
    scheduled: CachedHandle<Counter>,
    cancelled: CachedHandle<Counter>,
    #[cfg(feature = "worker")]
    work: Work,
}

/// What workers count.
#[cfg(feature = "worker")]
#[derive(Default)]
struct Work {
    claimed: [CachedHandle<Counter>; SOURCES.len()],
    settled: [CachedHandle<Counter>; OUTCOMES.len()],
    retries: CachedHandle<Counter>,
    dead: CachedHandle<Counter>,
    lost: CachedHandle<Counter>,
    dropped: CachedHandle<Counter>,
    touches: CachedHandle<Counter>,
    adopted: [CachedHandle<Counter>; ADOPTED.len()],
    lag: CachedHandle<Histogram>,
    handler: CachedHandle<Histogram>,
}

/// The values of the label `source`.
#[cfg(feature = "worker")]
const SOURCES: [&str; 4] = ["event", "pacer", "reconciler", "backlog"];

/// The values of the label `outcome`.
#[cfg(feature = "worker")]
pub(crate) const OUTCOMES: [&str; 9] = [
    "done",
    "failed",
    "again",
    "snoozed",
    "returned",
    "buried",
    "replaced",
    "cancelled",
    "late",
];

/// The values of the label `outcome` of what became of a key.
#[cfg(feature = "worker")]
const ADOPTED: [&str; 5] = ["created", "replaced", "succeeds", "moved", "cancelled"];

impl Meter {
    pub(crate) fn new(kind: &Kind) -> Self {
        Meter {
            kind: kind.to_string(),
            ..Meter::default()
        }
    }

    fn count(&self, counter: &CachedHandle<Counter>, name: &'static str, number: u64) {
        if number > 0 {
            let counter = counter.get(|| counter!(name, "kind" => self.kind.clone()));
            counter.increment(number);
        }
    }

    /// So many jobs were scheduled.
    pub(crate) fn scheduled(&self, number: u64) {
        self.count(&self.scheduled, "keyfall_scheduled_total", number);
    }

    /// So many jobs were cancelled.
    pub(crate) fn cancelled(&self, number: u64) {
        self.count(&self.cancelled, "keyfall_cancelled_total", number);
    }
}

#[cfg(feature = "worker")]
impl Meter {
    /// A run begins.
    pub(crate) fn begun(&self, source: Source, lag: Duration, attempt: u32) {
        let place = match source {
            Source::Event => 0,
            Source::Pacer => 1,
            Source::Reconciler => 2,
            Source::Backlog => 3,
        };
        let counter = || counter!("keyfall_claimed_total", "kind" => self.kind.clone(), "source" => SOURCES[place]);
        self.work.claimed[place].get(counter).increment(1);
        self.count(
            &self.work.retries,
            "keyfall_retries_total",
            (attempt > 1).into(),
        );
        let histogram = || histogram!("keyfall_lag_seconds", "kind" => self.kind.clone());
        self.work.lag.get(histogram).record(lag);
    }

    /// A handler ran for so long.
    pub(crate) fn ran(&self, time: Duration) {
        let histogram = || histogram!("keyfall_handler_seconds", "kind" => self.kind.clone());
        self.work.handler.get(histogram).record(time);
    }

    /// Plain keys were looked at, and this became of them.
    pub(crate) fn adopted(&self, outcomes: impl Iterator<Item = &'static str>) {
        let mut numbers = [0; ADOPTED.len()];
        for outcome in outcomes {
            if let Some(place) = place_of(outcome, &ADOPTED) {
                numbers[place] += 1;
            }
        }
        for (place, number) in numbers.into_iter().enumerate().filter(|(_, it)| *it > 0) {
            let counter = || counter!("keyfall_adopted_total", "kind" => self.kind.clone(), "outcome" => ADOPTED[place]);
            self.work.adopted[place].get(counter).increment(number);
        }
    }

    /// A run ended so.
    pub(crate) fn settled(&self, outcome: &'static str) {
        let Some(place) = place_of(outcome, &OUTCOMES) else {
            return;
        };
        let counter = || counter!("keyfall_settled_total", "kind" => self.kind.clone(), "outcome" => OUTCOMES[place]);
        self.work.settled[place].get(counter).increment(1);
        let is_dead = outcome == "buried";
        self.count(&self.work.dead, "keyfall_dead_total", is_dead.into());
    }

    /// Somebody else has these, or nobody any more.
    pub(crate) fn lost(&self, number: u64) {
        self.count(&self.work.lost, "keyfall_claims_lost_total", number);
    }

    /// A job was found due, and not noted.
    pub(crate) fn dropped(&self) {
        self.count(&self.work.dropped, "keyfall_events_dropped_total", 1);
    }

    pub(crate) fn touched(&self, number: u64) {
        self.count(&self.work.touches, "keyfall_touches_total", number);
    }
}

/// The place of an outcome among those that its counter knows.
#[cfg(feature = "worker")]
fn place_of(outcome: &str, known: &[&str]) -> Option<usize> {
    let place = known.iter().position(|known| *known == outcome);
    debug_assert!(place.is_some(), "{outcome} is no outcome");
    place
}

/// A key expired that is a job served here.
#[cfg(feature = "worker")]
pub(crate) fn event_is_heard() {
    static HEARD: OnceLock<Counter> = OnceLock::new();
    let counter = || counter!("keyfall_events_heard_total");
    HEARD.get_or_init(counter).increment(1);
}

/// A key expired that is none.
#[cfg(feature = "worker")]
pub(crate) fn event_is_foreign() {
    static FOREIGN: OnceLock<Counter> = OnceLock::new();
    let counter = || counter!("keyfall_events_foreign_total");
    FOREIGN.get_or_init(counter).increment(1);
}

/// Whether this server announces what is done to keys that are adopted.
#[cfg(feature = "worker")]
pub(crate) fn changes_are_announced(server: &str, yes: bool) {
    let unannounced = f64::from(u8::from(!yes));
    gauge!("keyfall_unannounced", "server" => server.to_owned()).set(unannounced);
}

/// So many hosts of callbacks are left alone because they are down.
#[cfg(feature = "worker")]
pub(crate) fn breakers_are_open(number: usize) {
    gauge!("keyfall_breakers_open").set(number as f64);
}

/// A connection was opened in place of one that was lost.
pub(crate) fn reconnected(connection: &'static str) {
    counter!("keyfall_reconnects_total", "connection" => connection).increment(1);
}

/// A call of a script was answered after this time.
pub(crate) fn script_took(script: &'static str, time: Duration) {
    histogram!("keyfall_script_seconds", "script" => script).record(time);
}
