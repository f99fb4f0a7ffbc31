//! `activity.lua`: the rings of the last hour and the last day.

use super::support::{Bench, soon};
use crate::activity::{Activity, Minutes};
use crate::store::ActivityShape;
use crate::time::UnixMs;

/// The activity with these counts.
fn activity(text: &str) -> Activity {
    Activity::parse(text.split(' '))
}

impl Bench {
    async fn add(&self, minutes: &[(u64, &str)]) {
        let minutes = minutes.iter();
        let minutes = minutes.map(|(minute, text)| (*minute, activity(text)));
        let minutes: Minutes = minutes.collect();
        let kind = self.ledger.kind();
        let added = self.ledger.store.add_activity(kind, &minutes, soon());
        added.await.unwrap();
    }

    /// The steps up to this minute that are not empty, by their age.
    async fn activity(&self, shape: ActivityShape, minute: u64) -> Vec<(u64, String)> {
        let kinds = [self.ledger.kind().clone()];
        let now = UnixMs(minute * 60_000 + 59_999);
        let read = self.ledger.store.activity(&kinds, shape, now, soon());
        let (read, away) = read.await.unwrap();
        assert!(away.is_empty());
        assert_eq!(read[0].len() as u64, shape.steps);
        let steps = read[0].iter().rev().zip(0..);
        let steps = steps.filter(|(step, _)| !step.is_empty());
        steps.map(|(step, age)| (age, step.to_string())).collect()
    }
}

fn told(steps: &[(u64, &str)]) -> Vec<(u64, String)> {
    steps
        .iter()
        .map(|(age, text)| (*age, (*text).to_owned()))
        .collect()
}

#[tokio::test]
async fn counts_of_the_same_minute_are_added() {
    let bench = Bench::new().await;
    // The end of a quarter of an hour.
    let minute = bench.now().await / 60_000 / 15 * 15 - 1;
    bench
        .add(&[(minute - 1, "5 1 0 70 0 0 6"), (minute, "1 0 2 9 3")])
        .await;
    bench.add(&[(minute, "2 0 0 300 0 0 0 1")]).await;
    let hour = [(0, "3 0 2 300 3 0 0 1"), (1, "5 1 0 70 0 0 6")];
    assert_eq!(
        bench.activity(ActivityShape::HOUR, minute).await,
        told(&hour)
    );
    let day = [(0, "8 1 2 300 3 0 6 1")];
    assert_eq!(bench.activity(ActivityShape::DAY, minute).await, told(&day));
    // As time passes, they become older and vanish.
    let later = [(59, "3 0 2 300 3 0 0 1")];
    assert_eq!(
        bench.activity(ActivityShape::HOUR, minute + 59).await,
        told(&later)
    );
    assert_eq!(bench.activity(ActivityShape::HOUR, minute + 61).await, []);
    let later = [(95, "8 1 2 300 3 0 6 1")];
    assert_eq!(
        bench.activity(ActivityShape::DAY, minute + 95 * 15).await,
        told(&later)
    );
    bench.balanced().await;
}

#[tokio::test]
async fn rings_stay_small_and_expire() {
    let bench = Bench::new().await;
    let minute = bench.now().await / 60_000;
    for age in (0..3000).rev().step_by(7) {
        bench.add(&[(minute - age, "1 0 0 1 1")]).await;
    }
    let n = bench.names();
    for (key, size, hours) in [(&n.minutes, 60, 1), (&n.quarters, 96, 24)] {
        let fields: u64 = bench.ask(&["HLEN", key]).await;
        assert_eq!(fields, size, "{key}");
        let left: u64 = bench.ask(&["PTTL", key]).await;
        assert!(
            left > hours * 3_600_000 && left < (hours + 1) * 3_600_000,
            "{left}"
        );
    }
    // Of the minutes in a ring, those of earlier rounds do not count.
    let hour = bench.activity(ActivityShape::HOUR, minute).await;
    assert!((8..=9).contains(&hour.len()), "{hour:?}");
    // A count that comes late is not added to another minute.
    bench.add(&[(minute - 60, "9 9 9 9 9")]).await;
    assert_eq!(bench.activity(ActivityShape::HOUR, minute).await, hour);
    bench.balanced().await;
}

#[tokio::test]
async fn foreign_values_and_times_to_come_are_replaced() {
    let bench = Bench::new().await;
    let minute = bench.now().await / 60_000;
    let field = (minute % 60).to_string();
    for foreign in ["theirs", "", "99999999999 7 7 7 7", "1e300 5"] {
        let _: u64 = bench
            .ask(&["HSET", &bench.names().minutes, &field, foreign])
            .await;
        bench.add(&[(minute, "1 0 0 1 1")]).await;
        let hour = bench.activity(ActivityShape::HOUR, minute).await;
        assert_eq!(hour, told(&[(0, "1 0 0 1 1")]), "{foreign}");
    }
    bench.balanced().await;
}
