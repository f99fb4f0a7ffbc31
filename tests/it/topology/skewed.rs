//! Nodes with different clocks, and the effect on triggers: they expire too early, too late, or at
//! once. Jobs follow the clock of their ledger.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use keyfall::{Client, Job, Router, Source, Worker};
use tokio::sync::mpsc;

use super::clusters::Clustered;
use crate::site::{Running, ms};

const DELAY: Duration = Duration::from_millis(2_500);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trigger_on_a_skewed_clock_makes_its_job_neither_early_nor_late() {
    let them = Clustered::start().await;
    let client = Client::connect(&them.url()).await.unwrap();
    let (tell, mut told) = mpsc::unbounded_channel();
    let handler = move |job: Job| {
        let tell = tell.clone();
        async move {
            let ran = (job.key().id().to_owned(), job.source(), Instant::now());
            let _ = tell.send(ran);
        }
    };
    let kind = "cluster-skewed:it:job";
    let router = Router::new().route(&format!("{kind}:{{id}}"), handler);
    let worker = Running::start(Worker::new(client.clone(), router));
    worker.ready().await;
    let mut begun = HashMap::new();
    for number in 0..12 {
        for skew in ["ahead", "behind", "far-ahead"] {
            let (id, before) = (format!("{skew}{number}"), Instant::now());
            let key = format!("{kind}:{id}");
            client.schedule(&key, "").after(DELAY).await.unwrap();
            begun.insert(id, before);
            let slot = them.slot_of(&key, 0).await;
            let node = &them.nodes[them.owner_of(slot, 0).await.unwrap()];
            let change = match skew {
                "ahead" => format!("PEXPIRE {key} 100"),
                "behind" => format!("PEXPIRE {key} 3600000"),
                _ => format!("DEL {key}"),
            };
            let _: u64 = node.ask(&change).await;
        }
    }
    let all = begun.len();
    for _ in 0..all {
        let ran = tokio::time::timeout(ms(60_000), told.recv()).await;
        let (id, source, at) = ran.expect("none waits for its trigger").unwrap();
        let before = begun.remove(&id).expect("once");
        assert!(at - before >= DELAY, "{id} after {:?}", at - before);
        if !id.starts_with("ahead") {
            assert_ne!(source, Source::Event, "{id}");
        }
    }
    worker.stop().await;
    let stats = client.stats(kind).await.unwrap();
    assert_eq!(
        (stats.done, stats.is_balanced()),
        (all as u64, true),
        "{stats:?}"
    );
}
