//! Dead letters: kept by id and number, within limits, and none goes uncounted.

use std::time::Duration;

use super::support::{Bench, HOUR, KEPT, State, bury, soon, words};
use crate::store::ledger::work::DeadLimits;
use crate::store::{Answered, Found, Lane, Word};

/// Runs jobs, and buries all of them in one call.
async fn die(bench: &Bench, ids: &[&str], limits: DeadLimits) -> Vec<Answered> {
    let mut items = Vec::new();
    for id in ids {
        let job = bench.run(id, HOUR).await;
        items.push(bench.settlement(id, &job.token, bury()));
    }
    let mut lane = Lane::new();
    bench
        .ledger
        .settle(&mut lane, &items, limits, soon())
        .await
        .unwrap()
        .0
}

/// The stored letters, the oldest first; fails if one has no record.
async fn letters(bench: &Bench) -> Vec<String> {
    let names = bench.names();
    let letters: Vec<String> = bench.ask(&["ZRANGE", &names.dead, "0", "-1"]).await;
    for letter in &letters {
        assert!(
            bench.field(&names.grave, letter).await.is_some(),
            "{letter}"
        );
    }
    letters
}

/// The numbers that are stored under the plain id of a job.
async fn numbers(bench: &Bench, id: &str) -> Option<String> {
    let numbers = bench.field(&bench.names().grave, id).await?;
    Some(String::from_utf8(numbers).unwrap())
}

#[tokio::test]
async fn letters_are_numbered_and_the_same_name_can_die_twice() {
    let bench = Bench::new().await;
    let answers = die(&bench, &["a", "b"], KEPT).await;
    let numbered: Vec<Word> = answers.iter().map(|answered| answered.answer).collect();
    assert_eq!(numbered, [Word::Buried(1), Word::Buried(2)]);
    assert_eq!(die(&bench, &["a"], KEPT).await[0].answer, Word::Buried(3));
    let mut kept = letters(&bench).await;
    kept.sort_unstable();
    assert_eq!(kept, ["a:1", "a:3", "b:2"]);
    assert_eq!(numbers(&bench, "a").await.as_deref(), Some("1 3"));
    let found = bench.ledger.get("a", soon()).await.unwrap();
    assert!(matches!(found, Found::Dead { number: 3, .. }), "{found:?}");
    assert_eq!(bench.balanced().await.dead, 3);
}

#[tokio::test]
async fn the_last_sixteen_letters_of_an_id_are_indexed() {
    let bench = Bench::new().await;
    for _ in 0..18 {
        die(&bench, &["often"], KEPT).await;
    }
    let last: Vec<String> = (3..=18).map(|number: u32| number.to_string()).collect();
    assert_eq!(numbers(&bench, "often").await, Some(last.join(" ")));
    assert_eq!(letters(&bench).await.len(), 18);
    assert_eq!(bench.balanced().await.dead, 18);
}

#[tokio::test]
async fn letters_beyond_the_limit_are_trimmed_oldest_first_and_counted() {
    let bench = Bench::new().await;
    let three = DeadLimits { count: 3, ..KEPT };
    for id in ["a", "b", "a", "c", "d"] {
        die(&bench, &[id], three).await;
        // Letters of the same millisecond would be ordered by their names.
        bench.past(bench.now().await).await;
    }
    assert_eq!(letters(&bench).await, ["a:3", "c:4", "d:5"]);
    assert_eq!(numbers(&bench, "a").await.as_deref(), Some("3"));
    assert_eq!(numbers(&bench, "b").await, None);
    assert_eq!(bench.state("b").await, State::Absent);
    let stats = bench.balanced().await;
    assert_eq!((stats.dead, stats.buried, stats.trimmed), (3, 5, 2));
}

#[tokio::test]
async fn old_letters_are_trimmed_and_counted() {
    let bench = Bench::new().await;
    die(&bench, &["old", "older", "recent"], KEPT).await;
    let now = bench.now().await;
    for (letter, age) in [
        ("old:1", 3_700_000),
        ("older:2", 7_200_000),
        ("recent:3", 3_000_000),
    ] {
        let died = (now - age).to_string();
        let _: u64 = bench
            .ask(&["ZADD", &bench.names().dead, &died, letter])
            .await;
    }
    die(&bench, &["new"], KEPT).await;
    assert_eq!(letters(&bench).await, ["recent:3", "new:4"]);
    assert_eq!(numbers(&bench, "old").await, None);
    let stats = bench.balanced().await;
    assert_eq!((stats.dead, stats.trimmed), (2, 2));
}

#[tokio::test]
async fn a_limit_of_zero_keeps_no_letter() {
    for limits in [
        DeadLimits { count: 0, ..KEPT },
        DeadLimits {
            age: Duration::ZERO,
            ..KEPT
        },
    ] {
        let bench = Bench::new().await;
        assert_eq!(
            words(&die(&bench, &["a", "b"], limits).await),
            ["buried", "buried"]
        );
        assert!(letters(&bench).await.is_empty());
        assert_eq!(bench.balanced().await.trimmed, 2);
    }
}

#[tokio::test]
async fn letters_can_be_kept_without_a_limit() {
    let bench = Bench::new().await;
    let limits = DeadLimits {
        count: u64::MAX,
        age: Duration::MAX,
    };
    die(&bench, &["a", "b"], limits).await;
    assert_eq!(letters(&bench).await.len(), 2);
    assert_eq!(bench.balanced().await.trimmed, 0);
}

#[tokio::test]
async fn whole_batches_of_burials_stay_within_the_limit() {
    let bench = Bench::new().await;
    let ten = DeadLimits { count: 10, ..KEPT };
    let many: Vec<String> = (0..100).map(|i| format!("job-{i}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    for _ in 0..2 {
        die(&bench, &many, ten).await;
        assert_eq!(letters(&bench).await.len(), 10);
    }
    assert_eq!(bench.balanced().await.trimmed, 190);
}

#[tokio::test]
async fn a_lowered_limit_is_reached_in_steps() {
    let bench = Bench::new().await;
    let many: Vec<String> = (0..60).map(|i| format!("job-{i}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    die(&bench, &many, KEPT).await;
    let ten = DeadLimits { count: 10, ..KEPT };
    for left in [44, 28, 12, 10, 10] {
        die(&bench, &["last"], ten).await;
        assert_eq!(letters(&bench).await.len(), left);
    }
    bench.balanced().await;
}

#[tokio::test]
async fn letters_are_trimmed_without_a_burial_too() {
    let bench = Bench::new().await;
    let ids: Vec<String> = (0..60).map(|number| format!("job{number:02}")).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    die(&bench, &ids, KEPT).await;
    let trim = async |count, age| {
        let limits = DeadLimits { count, age };
        bench.ledger.trim(limits, 10, soon()).await.unwrap()
    };
    assert_eq!(trim(1000, HOUR).await, 0);
    let first = trim(20, HOUR).await;
    assert!((10..40).contains(&first), "{first}");
    assert_eq!(first + trim(20, HOUR).await, 40);
    assert_eq!(letters(&bench).await.len(), 20);
    bench.past(bench.now().await + 2).await;
    assert_eq!(trim(1000, Duration::from_millis(1)).await, 20);
    assert_eq!(bench.counted("trimmed").await, 60);
    assert_eq!(bench.balanced().await.dead, 0);
}
