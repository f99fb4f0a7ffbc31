//! The meter of a ledger, and the counters of the process, with the feature `metrics`.
//!
//! Handles of the recorder are kept between uses, since a look-up by name and labels costs more
//! than an increment. An idle handle is fetched again, because the recorder may have forgotten it.

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

/// How long an unused handle is taken for the handle that the recorder shows. A recorder may forget
/// a metric that was idle for an hour; an update through the old handle would then be invisible.
const ASKED_FOR: Duration = Duration::from_secs(900);

/// A handle of the recorder with the time of its last use. It is fetched at the first use, and
/// again after [`ASKED_FOR`] without use.
struct CachedHandle<T>(Mutex<Option<(T, Instant)>>);

impl<T> Default for CachedHandle<T> {
    fn default() -> Self {
        CachedHandle(Mutex::new(None))
    }
}

impl<T: Clone> CachedHandle<T> {
    /// The handle for one update now; `ask` fetches it from the recorder.
    fn get(&self, ask: impl FnOnce() -> T) -> T {
        let (mut asked, now) = (self.0.lock().expect("no panic while held"), Instant::now());
        let known = asked.take().filter(|(_, used)| now - *used < ASKED_FOR);
        let known = known.map_or_else(ask, |(known, _)| known);
        asked.insert((known, now)).0.clone()
    }
}

/// The metrics of one ledger, labelled with its kind. Shared by all tasks that use the ledger.
#[derive(Default)]
pub(crate) struct Meter {
    kind: String,
    scheduled: CachedHandle<Counter>,
    cancelled: CachedHandle<Counter>,
    #[cfg(feature = "worker")]
    work: Work,
}

/// The metrics that only workers update.
#[cfg(feature = "worker")]
#[derive(Default)]
struct Work {
    /// By source, in the order of [`SOURCES`].
    claimed: [CachedHandle<Counter>; SOURCES.len()],
    /// By outcome, in the order of [`OUTCOMES`].
    settled: [CachedHandle<Counter>; OUTCOMES.len()],
    retries: CachedHandle<Counter>,
    dead: CachedHandle<Counter>,
    /// Jobs in a claim that Redis did not give.
    lost: CachedHandle<Counter>,
    /// Jobs found due for which no room was left to note them.
    dropped: CachedHandle<Counter>,
    /// Triggers that the pacer touched.
    touches: CachedHandle<Counter>,
    /// By outcome, in the order of [`ADOPTED`].
    adopted: [CachedHandle<Counter>; ADOPTED.len()],
    lag: CachedHandle<Histogram>,
    handler: CachedHandle<Histogram>,
}

/// The values of the label `source` of `keyfall_claimed_total`.
#[cfg(feature = "worker")]
const SOURCES: [&str; 4] = ["event", "pacer", "reconciler", "backlog"];

/// The values of the label `outcome` of `keyfall_settled_total`.
#[cfg(feature = "worker")]
pub(crate) const OUTCOMES: [&str; 10] = [
    "done",
    "failed",
    "again",
    "snoozed",
    "returned",
    "buried",
    "skipped",
    "replaced",
    "cancelled",
    "late",
];

/// The values of the label `outcome` of `keyfall_adopted_total`.
#[cfg(feature = "worker")]
const ADOPTED: [&str; 5] = ["created", "replaced", "succeeds", "moved", "cancelled"];

impl Meter {
    /// A meter for the ledgers of this kind. It asks the recorder for nothing yet.
    pub(crate) fn new(kind: &Kind) -> Self {
        Meter {
            kind: kind.to_string(),
            ..Meter::default()
        }
    }

    /// Adds `number` to a counter whose only label is the kind. Adding 0 does not create it.
    fn count(&self, counter: &CachedHandle<Counter>, name: &'static str, number: u64) {
        if number > 0 {
            let counter = counter.get(|| counter!(name, "kind" => self.kind.clone()));
            counter.increment(number);
        }
    }

    /// Counts jobs that a schedule created, replaced, or placed behind a run.
    pub(crate) fn scheduled(&self, number: u64) {
        self.count(&self.scheduled, "keyfall_scheduled_total", number);
    }

    /// Counts cancels that found a job.
    pub(crate) fn cancelled(&self, number: u64) {
        self.count(&self.cancelled, "keyfall_cancelled_total", number);
    }
}

#[cfg(feature = "worker")]
impl Meter {
    /// Counts the start of a run: its source, its lag behind the due time, and, from the second
    /// attempt on, a retry.
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

    /// Records how long a handler ran.
    pub(crate) fn ran(&self, time: Duration) {
        let histogram = || histogram!("keyfall_handler_seconds", "kind" => self.kind.clone());
        self.work.handler.get(histogram).record(time);
    }

    /// Counts the outcomes of adopting plain keys, each a value of the label `outcome`.
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

    /// Counts the end of a run. `outcome` is a value of the label; `buried` also counts a dead
    /// letter.
    pub(crate) fn settled(&self, outcome: &'static str) {
        let Some(place) = place_of(outcome, &OUTCOMES) else {
            return;
        };
        let counter = || counter!("keyfall_settled_total", "kind" => self.kind.clone(), "outcome" => OUTCOMES[place]);
        self.work.settled[place].get(counter).increment(1);
        let is_dead = outcome == "buried";
        self.count(&self.work.dead, "keyfall_dead_total", is_dead.into());
    }

    /// Counts jobs that were asked for in a claim and not given: another worker has them, or they
    /// are gone.
    pub(crate) fn lost(&self, number: u64) {
        self.count(&self.work.lost, "keyfall_claims_lost_total", number);
    }

    /// Counts a job that was found due and could not be noted, for lack of room. A sweep finds it.
    pub(crate) fn dropped(&self) {
        self.count(&self.work.dropped, "keyfall_events_dropped_total", 1);
    }

    /// Counts triggers that the pacer touched at their due time.
    pub(crate) fn touched(&self, number: u64) {
        self.count(&self.work.touches, "keyfall_touches_total", number);
    }
}

/// The index of an outcome in the list of known labels. An unknown one panics in debug builds, and
/// is not counted in others.
#[cfg(feature = "worker")]
fn place_of(outcome: &str, known: &[&str]) -> Option<usize> {
    let place = known.iter().position(|known| *known == outcome);
    debug_assert!(place.is_some(), "{outcome} is no outcome");
    place
}

/// Counts an `expired` event whose key is the name of a job with a route in this process.
#[cfg(feature = "worker")]
pub(crate) fn event_is_heard() {
    static HEARD: OnceLock<Counter> = OnceLock::new();
    let counter = || counter!("keyfall_events_heard_total");
    HEARD.get_or_init(counter).increment(1);
}

/// Counts an `expired` event whose key is not the name of a job with a route in this process.
#[cfg(feature = "worker")]
pub(crate) fn event_is_foreign() {
    static FOREIGN: OnceLock<Counter> = OnceLock::new();
    let counter = || counter!("keyfall_events_foreign_total");
    FOREIGN.get_or_init(counter).increment(1);
}

/// Sets whether this server announces changes of plain keys that routes adopt: the gauge is 1 if it
/// does not. `server` is its address.
#[cfg(feature = "worker")]
pub(crate) fn changes_are_announced(server: &str, yes: bool) {
    let unannounced = f64::from(u8::from(!yes));
    gauge!("keyfall_unannounced", "server" => server.to_owned()).set(unannounced);
}

/// Sets the number of callback hosts that get no calls because they are down.
#[cfg(feature = "worker")]
pub(crate) fn breakers_are_open(number: usize) {
    gauge!("keyfall_breakers_open").set(number as f64);
}

/// Counts a new connection in place of a lost one. `connection` is its role: `commands`, `events`
/// or `changes`.
pub(crate) fn reconnected(connection: &'static str) {
    counter!("keyfall_reconnects_total", "connection" => connection).increment(1);
}

/// Records the time from sending a call of a script to its answer.
pub(crate) fn script_took(script: &'static str, time: Duration) {
    histogram!("keyfall_script_seconds", "script" => script).record(time);
}
