//! The clock of the server, and how far away it is.

use std::time::{Duration, SystemTime};

use super::checks::{CLOCK_OFFSET, ROUND_TRIP};
use super::finding::Finding;
use crate::store::{Glimpse, Tick};
use crate::time::UnixMs;

/// How far apart two clocks may be.
const OFF: Duration = Duration::from_millis(500);
const FAR_OFF: Duration = Duration::from_secs(60);

/// As long as the pacer waits before it hands over a job that no event announced.
const SLOW: Duration = Duration::from_millis(20);
/// As long as a job may be overdue before the reconciler looks for it.
const TOO_SLOW: Duration = Duration::from_millis(200);

/// Judges by the quickest of these.
pub(super) fn look(ticks: &Glimpse<Vec<Tick>>, found: &mut Vec<Finding>) {
    let ticks = match ticks {
        Ok(ticks) => ticks,
        Err(why) => {
            found.push(Finding::unseen(&CLOCK_OFFSET, why));
            found.push(Finding::unseen(&ROUND_TRIP, why));
            return;
        }
    };
    let Some(tick) = ticks.iter().min_by_key(|tick| tick.took) else {
        return;
    };
    found.push(offset(tick));
    let shown = format!("{:.1} ms", tick.took.as_secs_f64() * 1000.0);
    let remedy = "run the workers nearer to Redis, or look what holds it up with SLOWLOG GET";
    found.push(match tick.took {
        took if took >= TOO_SLOW => Finding::error(&ROUND_TRIP, shown, remedy),
        took if took >= SLOW => Finding::warning(&ROUND_TRIP, shown, remedy),
        _ => Finding::fine(&ROUND_TRIP, shown),
    });
}

/// How far the clocks are apart at the least: the answer was on its way for some of the time.
fn offset(tick: &Tick) -> Finding {
    let server: SystemTime = UnixMs(tick.server.0 / 1000).to_system();
    let half = tick.took / 2;
    let (apart, way) = match server.duration_since(tick.asked + half) {
        Ok(ahead) => (ahead, "ahead"),
        Err(behind) => (behind.duration(), "behind"),
    };
    let apart = apart.saturating_sub(half);
    let shown = if apart < Duration::from_millis(2) {
        "none that could be seen".to_owned()
    } else {
        format!("Redis is {} ms {way}", apart.as_millis())
    };
    let remedy = "keep both machines on NTP: `timedatectl set-ntp true`";
    match apart {
        apart if apart >= FAR_OFF => Finding::error(&CLOCK_OFFSET, shown, remedy),
        apart if apart >= OFF => Finding::warning(&CLOCK_OFFSET, shown, remedy),
        _ => Finding::fine(&CLOCK_OFFSET, shown),
    }
}
