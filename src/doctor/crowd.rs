//! The check of foreign keys with a TTL: their number, and how late Redis alone would notice a due
//! key because of them. Keyfall touches its own keys, so its jobs are not late for it.

use std::time::Duration;

use super::checks::EXPIRY_CROWD;
use super::finding::Finding;
use crate::phrase::Phrase;
use crate::store::Info;

/// How many keys with a TTL Redis samples in each round of its search, in each database, as long as
/// few of them are expired.
const EACH_ROUND: u64 = 20;

/// Adds the finding. `ours` is the number of triggers in the database, as far as they were counted.
pub(super) fn look(info: &Info, database: i64, ours: u64, found: &mut Vec<Finding>) {
    let expiring = expiring(info, database);
    let hz = info.text("hz").parse().unwrap_or(10_u64).max(1);
    let foreign = expiring.saturating_sub(ours);
    let late = late(expiring, hz);
    found.push(if foreign == 0 {
        let none = Phrase::new("found.no-crowd", "no foreign keys with a TTL", []);
        Finding::fine(&EXPIRY_CROWD, none)
    } else {
        let shown = Phrase::new(
            "found.crowd",
            "{} foreign keys with a TTL beside some {} keys of Keyfall; Redis alone would notice \
             expired keys {} late on average",
            [
                foreign.into(),
                (expiring - foreign).into(),
                rough(late).into(),
            ],
        );
        Finding::info(&EXPIRY_CROWD, shown)
    });
}

/// The number of keys with a TTL in a database, from a line of `INFO` such as
/// `db0:keys=1,expires=1,avg_ttl=0`.
fn expiring(info: &Info, database: i64) -> u64 {
    let text = info.text(&format!("db{database}"));
    let mut fields = text.split(',');
    let count = fields.find_map(|field| field.strip_prefix("expires="));
    count.and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// The average delay until Redis notices an expired key: its search goes through all keys with a
/// TTL in turn, so a key waits for half a turn.
fn late(expiring: u64, hz: u64) -> Duration {
    Duration::from_millis(expiring * 1000 / (EACH_ROUND * hz) / 2)
}

/// A time in one unit: milliseconds, seconds or minutes.
fn rough(time: Duration) -> String {
    match time.as_secs() {
        0 => format!("{} ms", time.as_millis()),
        seconds @ 1..120 => format!("{seconds} s"),
        seconds => format!("{} min", seconds / 60),
    }
}
