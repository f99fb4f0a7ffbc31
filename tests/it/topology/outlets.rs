//! Lists and streams of targets on a cluster: acknowledgements of consumers are seen on each node.

use std::collections::HashMap;
use std::time::Duration;

use keyfall::target::{list, stream};
use keyfall::{Client, Handler, RetryPolicy, Router, Worker};
use keyfall_testing::cluster::ClusterNode;
use redis::RedisResult;
use tokio::task::JoinHandle;

use super::clusters::Clustered;
use crate::runs::{Gate, eventually};
use crate::site::{Running, ms};

const LIST: &str = "{mails}";
const STREAM: &str = "{orders}:stream";
const KINDS: [&str; 2] = ["cluster-lists:it:job", "cluster-streams:it:job"];

type Entries = Vec<(String, Vec<(String, HashMap<String, String>)>)>;

/// The connections of a consumer to the nodes, which may come and go.
struct Consumer(Vec<redis::Client>);

impl Consumer {
    fn of(nodes: &[ClusterNode]) -> Self {
        let client = |node: &ClusterNode| redis::Client::open(node.server.url()).unwrap();
        Consumer(nodes.iter().map(client).collect())
    }

    /// Takes and acknowledges all jobs, until told to stop.
    fn start(self, stop: &Gate) -> JoinHandle<()> {
        let stop = stop.clone();
        tokio::spawn(async move {
            let passed = stop.passed();
            tokio::pin!(passed);
            while tokio::time::timeout(ms(5), &mut passed).await.is_err() {
                for client in &self.0 {
                    // A node that does not serve the key answers with an error.
                    let _: RedisResult<()> = consume(client).await;
                }
            }
        })
    }
}

async fn consume(client: &redis::Client) -> RedisResult<()> {
    let mut redis = client.get_multiplexed_async_connection().await?;
    let taken: RedisResult<Option<String>> =
        redis::cmd("LPOP").arg(LIST).query_async(&mut redis).await;
    if let Ok(Some(document)) = taken {
        let document: serde_json::Value = serde_json::from_str(&document).unwrap();
        let lease = document["lease"].as_str().unwrap();
        let mut done = redis::cmd("RPUSH");
        done.arg(format!("{LIST}:done")).arg(lease);
        let _: RedisResult<u64> = done.query_async(&mut redis).await;
    }
    let mut read = redis::cmd("XREADGROUP");
    read.arg(&[
        "GROUP", "closers", "one", "COUNT", "10", "STREAMS", STREAM, ">",
    ]);
    let read: Option<Entries> = read.query_async(&mut redis).await?;
    for (_, entries) in read.unwrap_or_default() {
        for (id, _) in entries {
            let mut ack = redis::cmd("XACK");
            ack.arg(STREAM).arg("closers").arg(id);
            let _: u64 = ack.query_async(&mut redis).await?;
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledgements_on_a_cluster_survive_moving_slots() {
    let them = Clustered::start().await;
    let (url, client) = (them.url(), Client::connect(&them.url()).await.unwrap());
    // Unacknowledged jobs come again, on a busy machine more often.
    let patient = RetryPolicy::fixed(ms(100)).unwrap().attempts(10_000);
    let lease = Duration::from_secs(5);
    let mails = list(&url, LIST).acknowledged().lease(lease);
    let orders = stream(&url, STREAM).acknowledged("closers").lease(lease);
    let router = Router::new()
        .route(
            &format!("{}:{{id}}", KINDS[0]),
            mails.retry(patient.clone()),
        )
        .route(&format!("{}:{{id}}", KINDS[1]), orders.retry(patient));
    let worker = Running::start(Worker::new(client.clone(), router));
    worker.ready().await;
    let stop = Gate::closed();
    let consumer = Consumer::of(&them.nodes).start(&stop);
    let mut all = 0;
    let mut hand_over = async |name: &str| {
        for number in 0..10 {
            for kind in KINDS {
                let key = format!("{kind}:{name}{number}");
                eventually("scheduled", async || client.schedule(&key, "").await.ok()).await;
            }
        }
        all += 10;
        for kind in KINDS {
            eventually("all are acknowledged", async || {
                let stats = client.stats(kind).await.ok()?;
                (stats.done >= all).then_some(())
            })
            .await;
        }
    };
    hand_over("first").await;
    for key in [LIST, STREAM] {
        let slot = them.slot_of(key, 0).await;
        let from = them.owner_of(slot, 0).await.unwrap();
        them.migrate(slot, from, (from + 1) % 3).await;
    }
    hand_over("moved").await;
    for key in [LIST, STREAM] {
        let slot = them.slot_of(key, 0).await;
        let from = them.owner_of(slot, 0).await.unwrap();
        // Both may be on the same primary, which a replica has replaced by now.
        if from < 3 {
            them.fail_over_to(from + 3, slot).await;
            them.is_well().await;
        }
    }
    hand_over("failed-over").await;
    for kind in KINDS {
        eventually("all ended", async || {
            let stats = client.stats(kind).await.ok()?;
            (stats.pending + stats.leased + stats.successors == 0).then_some(())
        })
        .await;
    }
    worker.stop().await;
    stop.open();
    consumer.await.unwrap();
    for kind in KINDS {
        let stats = client.stats(kind).await.unwrap();
        assert!(stats.is_balanced(), "{kind}: {stats:?}");
        assert_eq!(stats.dead, 0, "{kind}: {stats:?}");
    }
}

#[tokio::test]
async fn keys_of_one_target_must_share_a_hash_tag() {
    let url = "redis+cluster://127.0.0.1:1";
    let fault = |route: keyfall::Route<()>| {
        let routed = Router::<()>::new().try_route("app1:it:job:*", route);
        routed.err().map(|error| error.to_string())
    };
    let lease = Duration::from_secs(60);
    for (fault, names) in [
        (
            fault(list(url, "mails").acknowledged().lease(lease)),
            ["list `mails`", "`mails:done`", "`{mails}`"],
        ),
        (
            fault(stream(url, "orders").acknowledged("g").lease(lease)),
            ["stream `orders`", "`orders:g:settled`", "`{orders}`"],
        ),
    ] {
        let fault = fault.unwrap();
        assert!(names.iter().all(|name| fault.contains(name)), "{fault}");
    }
    // Without acknowledgements there is one key.
    for route in [
        list(url, "mails").lease(lease),
        stream(url, "orders").lease(lease),
        list(url, "{mails}").acknowledged().lease(lease),
        list(url, "shop:{mails}:all").acknowledged().lease(lease),
        stream(url, "{orders}").acknowledged("g").lease(lease),
        list("redis://127.0.0.1:1", "mails")
            .acknowledged()
            .lease(lease),
    ] {
        assert_eq!(fault(route), None);
    }
}
