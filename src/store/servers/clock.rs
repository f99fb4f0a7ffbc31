//! The clock of Redis, as this process estimates it.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::time::UnixUs;

/// How far two clocks may drift apart, as a fraction of the time between them: NTP corrects by
/// 500 ppm at most.
const DRIFT: f64 = 0.001;

/// An estimate of Redis' clock, from the replies that carry its time. It only sets the length of
/// sleeps: scripts decide by Redis' own clock which jobs are due.
#[derive(Debug, Default)]
pub(crate) struct RedisClock {
    /// The best sample so far.
    best: Mutex<Option<ClockSample>>,
}

/// One reading of the clock.
#[derive(Debug, Clone, Copy)]
struct ClockSample {
    /// The middle between the sending of a call and the receipt of its reply.
    at: Instant,
    /// The time in the reply.
    server: UnixUs,
    /// The largest error of the sample: half the round trip.
    error: Duration,
}

impl RedisClock {
    /// Takes in one reply. A sample less exact than the present one is kept only if it contradicts
    /// that: then the server's clock has jumped.
    pub(crate) fn observe(&self, sent: Instant, received: Instant, server: UnixUs) {
        let error = received.duration_since(sent) / 2;
        let new = ClockSample {
            at: sent + error,
            server,
            error,
        };
        let mut best = self.best.lock().expect("no panic while held");
        if best.is_none_or(|old| new.is_better_than(&old) || new.contradicts(&old)) {
            *best = Some(new);
        }
    }

    /// The server's time now, as estimated; `None` before the first reply.
    pub(crate) fn now(&self) -> Option<UnixUs> {
        let best = self.best.lock().expect("no panic while held");
        best.map(|sample| sample.server_at(Instant::now()))
    }

    /// The earliest and the latest time that the server's clock may show now; `None` before the
    /// first reply.
    #[cfg(feature = "worker")]
    pub(crate) fn bounds(&self) -> Option<[UnixUs; 2]> {
        let (best, at) = (
            *self.best.lock().expect("no panic while held"),
            Instant::now(),
        );
        best.map(|sample| {
            let (now, error) = (sample.server_at(at), sample.error_at(at));
            [now.minus(error), now.plus(error)]
        })
    }

    /// How long until the server's clock shows `time`; zero if it does already, or before the first
    /// reply.
    #[cfg(feature = "worker")]
    pub(crate) fn until(&self, time: crate::time::UnixMs) -> Duration {
        let now = self.now().map_or(u64::MAX, |now| now.0);
        Duration::from_micros(time.0.saturating_mul(1000).saturating_sub(now))
    }
}

impl ClockSample {
    /// The server's time at this instant.
    fn server_at(&self, at: Instant) -> UnixUs {
        self.server.plus(at.saturating_duration_since(self.at))
    }

    /// The largest error of that time; it grows with the distance to the sample.
    fn error_at(&self, at: Instant) -> Duration {
        self.error + at.saturating_duration_since(self.at).mul_f64(DRIFT)
    }

    /// True if this sample is at least as exact as the old one is by now.
    fn is_better_than(&self, old: &ClockSample) -> bool {
        self.error <= old.error_at(self.at)
    }

    /// True if no clock without a jump gives both samples.
    fn contradicts(&self, old: &ClockSample) -> bool {
        let apart = self.server.0.abs_diff(old.server_at(self.at).0);
        Duration::from_micros(apart) > self.error + old.error_at(self.at)
    }
}

#[cfg(all(test, feature = "worker"))]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const EPOCH: u64 = 1_763_000_000_000_000;

    #[test]
    fn a_precise_sample_replaces_a_vague_one_but_not_the_reverse() {
        let clock = RedisClock::default();
        let start = Instant::now();
        clock.observe(start, start + 100 * MS, UnixUs(EPOCH + 90_000));
        clock.observe(start + 100 * MS, start + 102 * MS, UnixUs(EPOCH + 101_000));
        clock.observe(start + 102 * MS, start + 202 * MS, UnixUs(EPOCH + 190_000));
        let best = clock.best.lock().unwrap().unwrap();
        assert_eq!(best.server, UnixUs(EPOCH + 101_000));
    }

    #[test]
    fn the_uncertainty_of_a_sample_is_its_round_trip() {
        let clock = RedisClock::default();
        assert_eq!(clock.bounds(), None);
        let start = Instant::now() - 2000 * MS;
        // The answer was on its way all the time: it is 2 s later by now.
        clock.observe(start, start + 2000 * MS, UnixUs(EPOCH));
        let [earliest, latest] = clock.bounds().unwrap();
        assert!(earliest <= UnixUs(EPOCH) && latest >= UnixUs(EPOCH + 2_000_000));
    }

    #[test]
    fn a_jump_of_the_server_is_believed_even_from_a_vague_sample() {
        let clock = RedisClock::default();
        let start = Instant::now();
        clock.observe(start, start + MS, UnixUs(EPOCH));
        clock.observe(start + MS, start + 50 * MS, UnixUs(EPOCH - 3_600_000_000));
        assert!(clock.now().unwrap() < UnixUs(EPOCH - 3_000_000_000));
    }
}
