//! Slots on their way from one node of a cluster to another, a step at a time.

use keyfall::{Client, JobState, Outcome, Router, Worker};

use super::clusters::{Clustered, ledger_of};
use crate::runs::{eventually, recorder};
use crate::site::{HOUR, Running};

/// The number of times that the nodes told clients to try again, because the keys were on two
/// nodes.
async fn told_to_try_again(them: &Clustered) -> u64 {
    let mut times = 0;
    for node in &them.nodes {
        let errors: String = node.ask("INFO errorstats").await;
        let lines = errors.lines();
        let counts = lines.filter_map(|line| line.strip_prefix("errorstat_TRYAGAIN:count="));
        times += counts
            .map(|count| count.parse::<u64>().unwrap())
            .sum::<u64>();
    }
    times
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_moving_ledger_is_served_before_its_first_and_after_its_last_key() {
    let them = Clustered::start().await;
    let client = Client::builder(&them.url()).default_shards(1);
    let client = client.connect().await.unwrap();
    let kind = them.kinds("handover").await.remove(0);
    let slot = them.slot_of(&ledger_of(&kind), 0).await;
    let (log, mut runs) = recorder();
    let handler = log.then(|job| match job.key().id().starts_with("dies") {
        true => Outcome::bury("asked for"),
        false => Outcome::Done,
    });
    let router = Router::new().route(&format!("{kind}:{{id}}"), handler);
    let worker = Running::start(Worker::new(client.clone(), router));
    worker.ready().await;
    // The first job makes the ledger known. Its keys are nearly empty.
    client.schedule(format!("{kind}:first"), "").await.unwrap();
    assert_eq!(runs.next().await.key().id(), "first");
    eventually("all keys are there", async || {
        let count = format!("CLUSTER COUNTKEYSINSLOT {slot}");
        let keys: u64 = them.nodes[0].ask(&count).await;
        (keys >= 13).then_some(())
    })
    .await;

    for step in ["opened", "handed-over", "closed"] {
        match step {
            "opened" => them.open_to_move(slot, 0, 1).await,
            "handed-over" => them.hand_keys_over(slot, 0, 1).await,
            _ => them.close_moved(slot, 0, 1).await,
        }
        let before = told_to_try_again(&them).await;
        let key = |name: &str| format!("{kind}:{name}-{step}");
        client.schedule(key("waits"), "").after(HOUR).await.unwrap();
        assert!(client.get(key("waits")).await.unwrap().is_some());
        client.cancel(key("waits")).await.unwrap();
        for name in ["runs", "dies"] {
            client.schedule(key(name), "").await.unwrap();
            assert_eq!(runs.next().await.key().as_str(), key(name));
        }
        eventually("it is dead", async || {
            let letter = client.get(key("dies")).await.unwrap()?;
            (letter.state() == JobState::Dead).then_some(())
        })
        .await;
        assert_eq!(told_to_try_again(&them).await - before, 0, "{step}");
    }
    worker.stop().await;
    assert!(client.stats(&kind).await.unwrap().is_balanced());
}
