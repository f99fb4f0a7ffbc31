//! `touch.lua`, and its purpose: a wait for replicas covers a write that is there.

use std::time::Duration;

use super::support::{Bench, HOUR, State, after, soon};
use crate::durable::Durable;
use crate::embedded::Embedded;
use crate::store::Lane;

async fn scheduled(bench: &Bench) -> Lane {
    let mut lane = Lane::new();
    let items = [bench.placement("job", after(HOUR))];
    let sent = bench.ledger.schedule(&mut lane, &items, soon());
    sent.await.unwrap();
    lane
}

#[tokio::test]
async fn a_remembered_call_is_written_again_and_changes_nothing() {
    let server = Embedded::start().await.unwrap();
    let bench = Bench::on(&server).await;
    let lane = scheduled(&bench).await;
    let stored = bench.snapshot().await;
    let changes = async || {
        let info: String = bench.ask(&["INFO", "persistence"]).await;
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix("rdb_changes_since_last_save:"));
        line.unwrap().parse::<u64>().unwrap()
    };
    let before = changes().await;
    let reached = bench.ledger.reached(&lane, 0.into(), soon()).await.unwrap();
    assert!(reached.unwrap().is_met);
    assert_eq!(bench.snapshot().await, stored);
    assert!(changes().await > before, "it has something to replicate");
    bench.balanced().await;
}

#[tokio::test]
async fn a_forgotten_or_overtaken_call_is_absent() {
    let bench = Bench::new().await;
    let mut lane = scheduled(&bench).await;
    let first = lane.rewound(2);
    bench
        .ledger
        .cancel(&mut lane, &[bench.key("nobody")], soon())
        .await
        .unwrap();
    let stored = bench.snapshot().await;
    for absent in [Lane::new(), first] {
        let reached = bench.ledger.reached(&absent, 0.into(), soon()).await;
        assert_eq!(reached.unwrap(), None);
    }
    assert_eq!(bench.snapshot().await, stored);
    bench.balanced().await;
}

#[tokio::test]
async fn the_wait_for_a_missing_replica_ends_at_its_limit() {
    let bench = Bench::new().await;
    let lane = scheduled(&bench).await;
    let wanted = Durable::replicas(1).within(Duration::from_millis(10));
    let reached = bench.ledger.reached(&lane, wanted, soon()).await;
    let reached = reached.unwrap().unwrap();
    assert_eq!((reached.is_met, reached.replicas), (false, 0));
    assert_eq!(bench.state("job").await, State::Pending);
    bench.balanced().await;
}
