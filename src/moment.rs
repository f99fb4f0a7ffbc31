//! Points in time for counting leases, by a clock that goes on while the machine sleeps.
//!
//! Redis counts a lease while the machine of its holder sleeps, and so must the holder. [`Instant`]
//! stands still in that time on Linux and on Apple's systems.

use std::time::Instant;
#[cfg(feature = "worker")]
use std::time::{Duration, SystemTime};

/// A point in time, read from several clocks at once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    /// The clock that counts sleep, where the system has one.
    #[cfg(feature = "worker")]
    counted: Option<Duration>,
    /// The wall clock, which may be set.
    #[cfg(feature = "worker")]
    wall: SystemTime,
    /// The clock of timers, which may stand still in sleep.
    pub(crate) instant: Instant,
}

impl Moment {
    /// This moment, by all clocks.
    pub(crate) fn now() -> Self {
        Moment {
            #[cfg(feature = "worker")]
            counted: counting_sleep(),
            #[cfg(feature = "worker")]
            wall: SystemTime::now(),
            instant: Instant::now(),
        }
    }
}

#[cfg(feature = "worker")]
impl Moment {
    /// The time since `earlier`, the sleep of the machine included; zero if `earlier` is later.
    /// Where no clock counts sleep, the longest time that any clock shows.
    pub(crate) fn since(&self, earlier: &Moment) -> Duration {
        let counted = self.counted_since(earlier);
        counted.unwrap_or_else(|| self.longest_since(earlier))
    }

    /// The time since `earlier` by the clock that shows most: enough to raise a doubt about a
    /// lease. No clock counts the time for which a virtual machine was paused, but its wall clock
    /// is set right some time later.
    pub(crate) fn longest_since(&self, earlier: &Moment) -> Duration {
        let by_timers = self.instant.saturating_duration_since(earlier.instant);
        let by_wall = self.wall.duration_since(earlier.wall).unwrap_or_default();
        let counted = self.counted_since(earlier).unwrap_or_default();
        counted.max(by_wall).max(by_timers)
    }

    /// The time since `earlier` by the clock that counts sleep.
    fn counted_since(&self, earlier: &Moment) -> Option<Duration> {
        Some(self.counted?.saturating_sub(earlier.counted?))
    }
}

/// Reads the clock that counts sleep. `None` on systems without one.
#[cfg(feature = "worker")]
fn counting_sleep() -> Option<Duration> {
    #[cfg(any(target_os = "linux", target_os = "android", target_os = "openbsd"))]
    let clock = Some(rustix::time::ClockId::Boottime);
    // `Instant` uses `CLOCK_UPTIME_RAW` there, which does not count sleep.
    #[cfg(target_vendor = "apple")]
    let clock = Some(rustix::time::ClockId::Monotonic);
    #[cfg(any(
        target_os = "linux",
        target_os = "android",
        target_os = "openbsd",
        target_vendor = "apple"
    ))]
    return clock.and_then(|clock| rustix::time::clock_gettime(clock).try_into().ok());
    #[cfg(not(any(
        target_os = "linux",
        target_os = "android",
        target_os = "openbsd",
        target_vendor = "apple"
    )))]
    None
}

#[cfg(all(test, feature = "worker"))]
impl Moment {
    /// A moment this much later by all clocks.
    pub(crate) fn plus(self, time: Duration) -> Self {
        Moment {
            counted: self.counted.map(|counted| counted + time),
            wall: self.wall + time,
            instant: self.instant + time,
        }
    }

    /// A moment this much earlier by the wall clock alone, which is enough to raise a doubt.
    pub(crate) fn minus(self, time: Duration) -> Self {
        Moment {
            wall: self.wall - time,
            ..self
        }
    }
}

#[cfg(all(test, feature = "worker"))]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn the_time_that_the_machine_sleeps_counts() {
        let before = Moment::now();
        let after = Moment {
            instant: before.instant,
            ..before.plus(HOUR)
        };
        assert_eq!(after.since(&before), HOUR);
        assert_eq!(after.longest_since(&before), HOUR);
    }

    #[test]
    fn the_wall_clock_decides_only_where_no_other_clock_counts_sleep() {
        let before = Moment::now();
        let wall = before.wall + HOUR;
        let after = Moment { wall, ..before };
        assert_eq!(after.longest_since(&before), HOUR);
        if before.counted.is_some() {
            assert_eq!(after.since(&before), Duration::ZERO);
        }
        let without = |moment: Moment| Moment {
            counted: None,
            ..moment
        };
        assert_eq!(without(after).since(&without(before)), HOUR);
        // A wall clock that was set back counts as zero.
        assert_eq!(before.longest_since(&after), Duration::ZERO);
    }
}
