//! A clock that a test moves by hand.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::client::Client;
use crate::clock::Clock;

/// 2030-01-01, 00:00 UTC, in seconds since the Unix epoch.
const START: u64 = 1_893_456_000;

/// A clock that moves only when the test moves it. Clones show and move the same time.
///
/// ```
/// use keyfall::testing::ManualClock;
/// use std::time::Duration;
///
/// let time = ManualClock::new();
/// let clock = time.clock(); // for the router's state
/// let start = clock.now();
/// time.advance(Duration::from_secs(60));
/// assert_eq!(clock.now(), start + Duration::from_secs(60));
/// ```
#[derive(Debug, Clone)]
pub struct ManualClock(Arc<Mutex<SystemTime>>);

impl ManualClock {
    /// A clock that starts at 2030-01-01, 00:00 UTC, the same in each run of a test.
    pub fn new() -> Self {
        ManualClock::starting_at(UNIX_EPOCH + Duration::from_secs(START))
    }

    /// A clock that starts at this time.
    pub fn starting_at(start: SystemTime) -> Self {
        ManualClock(Arc::new(Mutex::new(start)))
    }

    /// The clock for handlers, which ask it for the time.
    pub fn clock(&self) -> Clock {
        Clock::moved(self.0.clone())
    }

    /// A client whose jobs are in memory, by this clock, for the state of handlers that schedule,
    /// change or cancel jobs. [`Rehearsal::with_client`](super::Rehearsal::with_client) runs its
    /// jobs.
    ///
    /// It knows the calls on single jobs and on [series](Client::series). Any other call is refused
    /// with [`ErrorKind::Incompatible`](crate::ErrorKind::Incompatible): it needs a Redis.
    pub fn client(&self) -> Client {
        Client::in_memory(self.clock())
    }

    /// The manual clock of a client in memory.
    pub(super) fn of(clock: &Clock) -> Self {
        ManualClock(clock.shared().expect("it was made by a manual clock"))
    }

    /// The time by this clock.
    pub fn now(&self) -> SystemTime {
        *self.0.lock().expect("no panic while held")
    }

    /// Moves the clock on. This alone runs no job: in a [`Rehearsal`](super::Rehearsal), jobs that
    /// fall due meanwhile run late at its next [`advance`](super::Rehearsal::advance).
    ///
    /// # Panics
    /// If the new time is more than a [`SystemTime`] can hold.
    pub fn advance(&self, time: Duration) {
        *self.0.lock().expect("no panic while held") += time;
    }

    /// Moves the clock on to this time, unless it is there already or past it.
    pub(super) fn reach(&self, time: SystemTime) {
        let mut now = self.0.lock().expect("no panic while held");
        *now = time.max(*now);
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        ManualClock::new()
    }
}
