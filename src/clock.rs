//! What time it is, for handlers.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

/// Tells a handler the time, so that the same handler runs in service and in a test.
///
/// In service it is the [system's](Self::system) clock; in a test, that of a
/// [`ManualClock`](crate::testing::ManualClock), which only moves when told. Put it into the
/// router's state. Clones tell the same time, and cloning is cheap.
///
/// When a job was due, and how late it is, is told by the job itself and by the clock of Redis:
/// see [`Job::due`](crate::Job::due) and [`Job::lag`](crate::Job::lag).
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

    /// A clock that somebody else moves.
    pub(crate) fn moved(time: Arc<Mutex<SystemTime>>) -> Self {
        Clock(Some(time))
    }

    /// What time it is.
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
