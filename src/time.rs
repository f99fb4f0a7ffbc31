//! Points in time in the units that Redis and the records use.
//!
//! All of them are by the clock of the Redis server. The type names the unit, so that milliseconds
//! and microseconds cannot be mixed up.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Milliseconds since the Unix epoch by the Redis server's clock: the unit of due times and lease
/// deadlines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct UnixMs(pub(crate) u64);

/// Microseconds since the Unix epoch by the Redis server's clock: the unit of the times in replies
/// of scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub(crate) struct UnixUs(pub(crate) u64);

impl UnixMs {
    /// Rounded up, so that a job due at this time is never early. `None` before the epoch.
    pub(crate) fn from_system(time: SystemTime) -> Option<Self> {
        let since = time.duration_since(UNIX_EPOCH).ok()?;
        u64::try_from(since.as_nanos().div_ceil(1_000_000))
            .ok()
            .map(UnixMs)
    }

    /// The time by the clock of this machine, for want of another.
    pub(crate) fn now() -> Self {
        UnixMs::from_system(SystemTime::now()).unwrap_or_default()
    }

    /// The time since `earlier`; zero if that is later.
    pub(crate) fn since(self, earlier: UnixMs) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    /// This much later, in whole milliseconds, rounded down.
    pub(crate) fn plus(self, elapsed: Duration) -> Self {
        let ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        UnixMs(self.0.saturating_add(ms))
    }

    /// The same time as a [`SystemTime`].
    ///
    /// # Panics
    /// If it is later than that type can hold.
    pub(crate) fn to_system(self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.0)
    }
}

impl UnixUs {
    /// The millisecond that contains this instant.
    pub(crate) fn floor_ms(self) -> UnixMs {
        UnixMs(self.0 / 1000)
    }

    /// The time since `earlier`; zero if that is later.
    pub(crate) fn since(self, earlier: UnixMs) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0.saturating_mul(1000)))
    }

    /// This much later.
    pub(crate) fn plus(self, elapsed: Duration) -> Self {
        let micros = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
        UnixUs(self.0.saturating_add(micros))
    }

    /// This much earlier, the epoch at the least.
    #[cfg(feature = "worker")]
    pub(crate) fn minus(self, elapsed: Duration) -> Self {
        let micros = u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX);
        UnixUs(self.0.saturating_sub(micros))
    }
}

impl fmt::Display for UnixMs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A time as people write it, `2025-11-21T08:05:45.678Z`.
pub(crate) struct Utc(pub(crate) UnixMs);

impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let written = i64::try_from(self.0.0).ok();
        match written.and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok()) {
            Some(time) => time.fmt(f),
            // The year is beyond the calendar's last.
            None => write!(f, "{} ms", self.0),
        }
    }
}
