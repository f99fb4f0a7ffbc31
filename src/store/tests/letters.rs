//! `letters.lua`: the dead letters of one job.

use super::support::{Bench, HOUR, after, bury, soon};
use crate::record::Record;
use crate::store::Found;

async fn numbers(bench: &Bench, number: Option<u64>, limit: usize) -> Vec<u64> {
    let letters = bench.ledger.letters("job", number, limit, soon()).await;
    letters
        .unwrap()
        .unwrap()
        .iter()
        .map(|letter| letter.number)
        .collect()
}

#[tokio::test]
async fn the_last_letters_are_found_by_id_and_any_by_number() {
    let bench = Bench::new().await;
    assert!(numbers(&bench, None, 16).await.is_empty());
    for _ in 0..18 {
        bench.die("job").await;
    }
    bench.die("other").await;
    let last: Vec<u64> = (3..=18).rev().collect();
    assert_eq!(numbers(&bench, None, 99).await, last);
    assert_eq!(numbers(&bench, None, 2).await, [18, 17]);
    assert_eq!(numbers(&bench, Some(1), 1).await, [1]);
    let shown = bench.ledger.get("job", soon()).await.unwrap();
    assert!(matches!(shown, Found::Dead { number: 18, .. }), "{shown:?}");
    assert!(
        numbers(&bench, Some(19), 1).await.is_empty(),
        "it is another's"
    );
    bench.balanced().await;
}

#[tokio::test]
async fn each_letter_has_its_record_and_its_time_of_death() {
    let bench = Bench::new().await;
    let before = bench.now().await;
    bench.die("job").await;
    let letters = bench
        .ledger
        .letters("job", None, 1, soon())
        .await
        .unwrap()
        .unwrap();
    assert!((before..=bench.now().await).contains(&letters[0].died.0));
    let record = Record::parse(letters[0].record.clone()).unwrap();
    assert_eq!(record.header.error.as_deref(), Some("no"));
    assert_eq!(&record.payload[..], b"job");
    bench.balanced().await;
}

#[tokio::test]
async fn large_letters_are_returned_up_to_the_limit_of_a_reply() {
    let bench = Bench::new().await;
    for _ in 0..4 {
        let large = vec![7; 3 * 1024 * 1024];
        let item = bench.carrying("job", after(HOUR), &large);
        bench.place(&[item]).await;
        bench
            .reschedule("job", after(std::time::Duration::ZERO))
            .await;
        let token = bench.claim(&["job"], 0).await.jobs.remove(0).token;
        bench.settle("job", &token, bury()).await;
    }
    assert_eq!(numbers(&bench, None, 16).await, [4, 3]);
    bench.balanced().await;
}
