//! Order numbers, which say which of several pushes was the last.

use super::support::{Bench, soon};

const SET: &str = "app:queue";

#[tokio::test]
async fn a_number_is_higher_than_all_that_were_given_out_or_met() {
    let bench = Bench::new().await;
    let store = &bench.ledger.store;
    let next = async |last, met| store.next_order(SET, "1", last, met, soon()).await.unwrap();
    let first = next(0, 0).await;
    let second = next(first, 0).await;
    assert!(first > 0 && second > first);
    assert_eq!(next(second, 50).await, 51);
    assert_eq!(next(51, 50).await, 52);
    // A server that came back with older data has given the last numbers before.
    for (_, key) in store.orders(SET) {
        let _: u64 = bench.ask(&["DEL", &key]).await;
    }
    let behind = next(0, 0).await;
    assert!(behind < 52);
    assert!(next(behind, 52).await > 52);
    bench.balanced().await;
}
