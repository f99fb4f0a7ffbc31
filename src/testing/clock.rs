//! The clock of a test.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::clock::Clock;

/// 2030-01-01, 00:00 UTC, in seconds since the Unix epoch.
const START: u64 = 1_893_456_000;

/// A clock that only moves when told. Clones are one clock.
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
    /// Starts at 2030-01-01, 00:00 UTC, in each run of a test.
    pub fn new() -> Self {
        ManualClock::starting_at(UNIX_EPOCH + Duration::from_secs(START))
    }

    /// Starts at this time.
    pub fn starting_at(start: SystemTime) -> Self {
        ManualClock(Arc::new(Mutex::new(start)))
    }

    /// What handlers are given, to be asked what time it is.
    pub fn clock(&self) -> Clock {
        Clock::moved(self.0.clone())
    }

    /// What time it is.
    pub fn now(&self) -> SystemTime {
        *self.0.lock().expect("no panic while held")
    }

    /// Moves it on. No job runs for that: in a [`Rehearsal`](super::Rehearsal), jobs that fall
    /// due meanwhile are late when they run.
    ///
    /// # Panics
    /// If that is more than a [`SystemTime`] can hold.
    pub fn advance(&self, time: Duration) {
        *self.0.lock().expect("no panic while held") += time;
    }

    /// Moves it on to this time, unless it is there already.
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
