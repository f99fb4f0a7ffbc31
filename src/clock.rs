//! The clock that handlers ask for the time, so that tests can set it.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

/// Tells a handler the time, so that the same handler runs in service and in a test.
///
/// In service it is the [system's](Self::system) clock; in a test it is the clock of a
/// [`ManualClock`](crate::testing::ManualClock), which moves only when the test moves it. Put it
/// into the router's state. Clones tell the same time, and cloning is cheap.
///
/// For the due time of a job and its lateness there are [`Job::due`](crate::Job::due) and
/// [`Job::lag`](crate::Job::lag), which go by the clock of Redis.
///
/// ```
/// use keyfall::{Clock, Outcome, Router, State};
/// use std::time::{Duration, SystemTime};
///
/// #[derive(Clone)]
/// struct Quota { clock: Clock, resets_at: SystemTime }
///
/// async fn notify(State(quota): State<Quota>) -> Outcome {
///     match quota.resets_at.duration_since(quota.clock.now()) {
///         Ok(wait) => Outcome::snooze(wait),
///         Err(_passed) => Outcome::Done,
///     }
/// }
///
/// let quota = Quota { clock: Clock::system(), resets_at: SystemTime::now() };
/// let app = Router::new().route("app1:trans:notice:{order}", notify).with_state(quota);
/// ```
#[derive(Clone, Default)]
pub struct Clock(Option<Arc<Mutex<SystemTime>>>);

impl Clock {
    /// The clock of the system that this process runs on.
    pub const fn system() -> Self {
        Clock(None)
    }

    /// A clock that shows the shared `time`, which its other holder moves.
    pub(crate) fn moved(time: Arc<Mutex<SystemTime>>) -> Self {
        Clock(Some(time))
    }

    /// The time that another holder moves; `None` for the clock of the system.
    pub(crate) fn shared(&self) -> Option<Arc<Mutex<SystemTime>>> {
        self.0.clone()
    }

    /// The time by this clock.
    pub fn now(&self) -> SystemTime {
        match &self.0 {
            None => SystemTime::now(),
            Some(time) => *time.lock().expect("no panic while held"),
        }
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Clock").field(&self.now()).finish()
    }
}
