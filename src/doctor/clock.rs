//! Checks of the clocks of all primaries, and of the round trips to them.

use std::time::{Duration, SystemTime};

use super::checks::{CLOCK_OFFSET, ROUND_TRIP};
use super::finding::Finding;
use crate::phrase::Phrase;
use crate::store::{ClockReading, Observed};
use crate::time::UnixMs;

/// From this difference of two clocks on, the finding is a warning.
const OFF: Duration = Duration::from_millis(500);
/// From this difference of two clocks on, the finding is an error.
const FAR_OFF: Duration = Duration::from_secs(60);

/// From this round trip on, the finding is a warning: the pacer waits this long before it hands
/// over a job that no event announced.
const SLOW: Duration = Duration::from_millis(20);
/// From this round trip on, the finding is an error: a job may be overdue for this long before the
/// reconciler looks for it.
const TOO_SLOW: Duration = Duration::from_millis(200);

/// Several readings of the clock of one server.
pub(super) struct ServerClock {
    /// Without credentials.
    pub(super) address: String,
    /// At least one reading.
    pub(super) ticks: Vec<ClockReading>,
}

/// Adds the findings about clock offset and round trip, each for the worst of the servers.
pub(super) fn look(clocks: &Observed<Vec<ServerClock>>, found: &mut Vec<Finding>) {
    let clocks = match clocks {
        Ok(clocks) => clocks,
        Err(why) => {
            found.push(Finding::unseen(&CLOCK_OFFSET, why));
            found.push(Finding::unseen(&ROUND_TRIP, why));
            return;
        }
    };
    for judge in [offset, round_trip] {
        let of_clock = |clock: &ServerClock| {
            let quickest = clock.ticks.iter().min_by_key(|tick| tick.took)?;
            let finding = judge(quickest);
            Some(match clocks.len() {
                1 => finding,
                _ => finding.at(&clock.address),
            })
        };
        let findings = clocks.iter().filter_map(of_clock);
        // Of equally bad servers, the first one.
        found.extend(
            findings.reduce(|worst, next| match next.severity > worst.severity {
                true => next,
                false => worst,
            }),
        );
    }
}

/// The finding about the quickest round trip to a server: a warning from [`SLOW`] on, an error from
/// [`TOO_SLOW`] on.
fn round_trip(tick: &ClockReading) -> Finding {
    let shown = format!("{:.1} ms", tick.took.as_secs_f64() * 1000.0);
    let remedy = Phrase::new(
        "remedy.nearer",
        "run the workers nearer to Redis, or find slow commands with SLOWLOG GET",
        [],
    );
    match tick.took {
        took if took >= TOO_SLOW => Finding::error(&ROUND_TRIP, shown, remedy),
        took if took >= SLOW => Finding::warning(&ROUND_TRIP, shown, remedy),
        _ => Finding::fine(&ROUND_TRIP, shown),
    }
}

/// The finding about the difference between the clock of Redis and the clock of this machine. Redis
/// reads its clock at an unknown moment of the round trip; the finding gives the smallest possible
/// difference.
fn offset(tick: &ClockReading) -> Finding {
    let server: SystemTime = UnixMs(tick.server.0 / 1000).to_system();
    let half = tick.took / 2;
    let (apart, is_ahead) = match server.duration_since(tick.asked + half) {
        Ok(ahead) => (ahead, true),
        Err(behind) => (behind.duration(), false),
    };
    let apart = apart.saturating_sub(half);
    let ms = [apart.as_millis().into()];
    let shown = match (apart < Duration::from_millis(2), is_ahead) {
        (true, _) => Phrase::new("found.same-clock", "no measurable difference", []),
        (false, true) => Phrase::new("found.ahead", "Redis is {} ms ahead", ms),
        (false, false) => Phrase::new("found.behind", "Redis is {} ms behind", ms),
    };
    let remedy = Phrase::new(
        "remedy.ntp",
        "synchronise both machines by NTP: `timedatectl set-ntp true`",
        [],
    );
    match apart {
        apart if apart >= FAR_OFF => Finding::error(&CLOCK_OFFSET, shown, remedy),
        apart if apart >= OFF => Finding::warning(&CLOCK_OFFSET, shown, remedy),
        _ => Finding::fine(&CLOCK_OFFSET, shown),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Severity;
    use crate::time::UnixUs;

    /// A server whose clock is `ahead` of ours, with a round trip that `took` this long.
    fn clock(address: &str, ahead: Duration, took: Duration) -> ServerClock {
        let asked = SystemTime::now();
        let server = asked + ahead + took / 2;
        let since = server.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let tick = ClockReading {
            server: UnixUs(since.as_micros() as u64),
            asked,
            took,
        };
        ServerClock {
            address: address.to_owned(),
            ticks: vec![tick],
        }
    }

    #[test]
    fn the_finding_names_the_server_with_the_worst_clock() {
        let (none, quick) = (Duration::ZERO, Duration::from_millis(1));
        let judge = |clocks: Vec<ServerClock>| {
            let mut found = Vec::new();
            look(&Ok(clocks), &mut found);
            found
                .into_iter()
                .map(|it| (it.severity, it.found.to_string()))
        };
        let slow = Duration::from_millis(40);
        let ahead = Duration::from_secs(5);
        let clocks = [
            ("a:1", none, quick),
            ("b:2", ahead, quick),
            ("c:3", none, slow),
        ];
        let three = clocks.map(|(address, ahead, took)| clock(address, ahead, took));
        let found: Vec<_> = judge(three.into()).collect();
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].0, Severity::Warning);
        assert!(found[0].1.starts_with("b:2: Redis is 49"), "{found:?}");
        assert_eq!(found[1], (Severity::Warning, "c:3: 40.0 ms".to_owned()));

        let found: Vec<_> = judge(vec![clock("a:1", none, quick)]).collect();
        assert_eq!(
            found[0],
            (Severity::Ok, "no measurable difference".to_owned())
        );
        assert_eq!(found[1], (Severity::Ok, "1.0 ms".to_owned()));
        assert_eq!(judge(Vec::new()).count(), 0);
    }
}
