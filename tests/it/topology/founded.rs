//! Ledgers on a cluster whose keys Keyfall itself removes, by audits and drops: they do not count
//! as torn.

use std::time::Duration;

use keyfall::{Cancelled, Client, Dropped, shard_of};
use keyfall_testing::server::signal_to;
use rustix::process::Signal;

use super::clusters::{Clustered, ledger_of};
use crate::runs::eventually;
use crate::site::{HOUR, command};

/// The keys of a ledger.
const PARTS: [&str; 13] = [
    "due", "leased", "dead", "lanes", "adopted", "shadow", "lease", "next", "grave", "stats",
    "calls", "leaving", "history",
];

/// A kind with one ledger, on the primary at index 0.
struct Founded {
    them: Clustered,
    client: Client,
    kind: String,
}

impl Founded {
    async fn new(app: &str) -> Self {
        let them = Clustered::start().await;
        let client = Client::builder(&them.url()).default_shards(1);
        let client = client.call_timeout(Duration::from_secs(30)).connect();
        let client = client.await.unwrap();
        let kind = them.kinds(app).await.remove(0);
        Founded { them, client, kind }
    }

    fn name(&self, part: &str) -> String {
        format!("keyfall:{}:{part}", ledger_of(&self.kind))
    }

    async fn ask<T: redis::FromRedisValue>(&self, text: &str) -> T {
        self.them.nodes[0].ask(text).await
    }

    /// The number of existing keys of the ledger.
    async fn keys(&self) -> usize {
        let names = PARTS.map(|part| self.name(part));
        self.ask(&format!("EXISTS {}", names.join(" "))).await
    }

    async fn schedule(&self, id: &str) {
        let key = format!("{}:{id}", self.kind);
        self.client.schedule(key, "x").after(HOUR).await.unwrap();
        eventually("all keys are there", async || {
            (self.keys().await == PARTS.len()).then_some(())
        })
        .await;
    }

    async fn is_whole(&self) {
        let slots = self.client.mend_slots().await.unwrap();
        assert!(slots.is_whole(), "{slots:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_that_an_audit_moves_aside_tear_no_ledger() {
    let it = Founded::new("founded-aside").await;
    it.schedule("first").await;
    for part in ["due", "grave", "leaving", "calls", "history"] {
        let name = it.name(part);
        let _: u64 = it.ask(&format!("DEL {name}")).await;
        let _: () = it.ask(&format!("SET {name} foreign")).await;
        let audit = it.client.audit(&it.kind).repair().await.unwrap();
        assert!(!audit.is_clean(), "{part}: {audit:?}");
        assert_eq!(it.keys().await, PARTS.len(), "{part}");
        it.is_whole().await;
        it.schedule(part).await;
    }
    // The due time of the first job is lost, so it is a dead letter now.
    let stats = it.client.stats(&it.kind).await.unwrap();
    assert_eq!((stats.pending, stats.dead), (5, 1), "{stats:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dropped_kind_can_be_founded_again() {
    let it = Founded::new("founded-anew").await;
    let key = format!("{}:first", it.kind);
    for _ in 0..2 {
        it.schedule("first").await;
        assert_eq!(it.client.cancel(&*key).await.unwrap(), Cancelled::Cancelled);
        let dropped = it.client.drop_kind(&it.kind).await.unwrap();
        assert_eq!(dropped, Dropped::Dropped);
        // The ledger remembers its recent calls.
        let calls: u64 = it.ask(&format!("EXISTS {}", it.name("calls"))).await;
        assert_eq!((calls, it.keys().await < PARTS.len()), (1, true));
        it.is_whole().await;
        assert!(it.client.get(&*key).await.unwrap().is_none());
        assert_eq!(it.client.cancel(&*key).await.unwrap(), Cancelled::Absent);
    }
    it.schedule("first").await;
    assert!(it.client.get(&*key).await.unwrap().is_some());
    it.is_whole().await;
}

/// A client was killed while it founded a kind with several shards: its first ledger has the layout.
/// The primary at place 1 has the list of kinds, and the one at place 2 the pause rules.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kind_that_is_half_founded_takes_no_job_while_its_list_or_the_pause_rules_are_away() {
    let them = Clustered::steady(&[]).await;
    let client = Client::builder(&them.url()).default_shards(4);
    let client = client.call_timeout(Duration::from_secs(4)).connect();
    let client = client.await.unwrap();
    client.prefix("founded-half").pause().await.unwrap();
    let mut redis = Vec::new();
    for node in &them.nodes[..2] {
        redis.push(node.connection().await.unwrap());
    }
    for (app, hung) in [("founded-half1", 1), ("founded-half2", 2)] {
        let kind = them.kinds(app).await.remove(0);
        let name = |part: &str| format!("keyfall:{}:{part}", ledger_of(&kind));
        let calls = name("calls");
        let start = ["HSET", &calls, "layout", "4 1", "founding", "1"];
        let _: u64 = command(&mut redis[0], &start).await;
        if hung == 2 {
            let _: u64 = command(&mut redis[1], &["HSET", "keyfall:kinds", &kind, "4 1"]).await;
        }
        let mut ids = (0..).map(|id: u32| id.to_string());
        let id = ids.find(|id| shard_of(id, 4) == 0).unwrap();
        let key = format!("{kind}:{id}");
        signal_to(&them.nodes[hung].server, Signal::STOP);
        let refused = client.schedule(&*key, "").after(HOUR).await.unwrap_err();
        assert!(refused.is_retryable(), "{refused}");
        let due: Option<f64> = command(&mut redis[0], &["ZSCORE", &name("due"), &id]).await;
        assert_eq!(due, None, "{app}");
        signal_to(&them.nodes[hung].server, Signal::CONT);
        eventually("it is stored", async || {
            client.schedule(&*key, "").after(HOUR).await.ok()
        })
        .await;
        let listed: String = command(&mut redis[1], &["HGET", "keyfall:kinds", &kind]).await;
        assert_eq!(listed, "4 1");
        let fields: [Option<String>; 2] =
            command(&mut redis[0], &["HMGET", &calls, "founding", "paused"]).await;
        assert!(matches!(&fields, [None, Some(_)]), "{app}: {fields:?}");
    }
}

/// The number of calls of a `CLUSTER` subcommand, such as `nodes`, on all nodes; `None` if the
/// server does not count it separately.
async fn asked(them: &Clustered, what: &str) -> Option<u64> {
    let mut sum = None;
    let start = format!("cmdstat_cluster|{what}:calls=");
    for node in &them.nodes {
        let told: String = node.ask("INFO commandstats").await;
        let calls = told.lines().find_map(|line| line.strip_prefix(&start));
        let calls = calls.and_then(|rest| rest.split(',').next()?.parse::<u64>().ok());
        sum = calls.map_or(sum, |calls| Some(sum.unwrap_or(0) + calls));
    }
    sum
}

/// For each unknown kind, clients ask the other nodes for its keys; they do not read the list of
/// nodes again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_list_of_nodes_is_not_requested_for_each_unknown_name() {
    const NAMES: u64 = 300;
    let them = Clustered::steady(&[]).await;
    let client = Client::connect(&them.url()).await.unwrap();
    let key = |number| format!("founded-cost:it:never{number}:1");
    client.cancel(key(NAMES)).await.unwrap();
    let before = [
        asked(&them, "nodes").await,
        asked(&them, "getkeysinslot").await,
    ];
    let began = std::time::Instant::now();
    for number in 0..NAMES {
        let none = client.cancel(key(number)).await.unwrap();
        assert_eq!(none, Cancelled::Absent);
    }
    let seconds = began.elapsed().as_secs();
    let after = [
        asked(&them, "nodes").await,
        asked(&them, "getkeysinslot").await,
    ];
    let [nodes, keys] = [0, 1].map(|it| Some(after[it]? - before[it].unwrap_or(0)));
    println!(
        "{NAMES} unknown names in {seconds} s: CLUSTER NODES {nodes:?}, GETKEYSINSLOT {keys:?}"
    );
    // One node lists the nodes, and each of three primaries its keys in the slot, once a second.
    if let (Some(nodes), Some(keys)) = (nodes, keys) {
        assert!(nodes <= 4 * (seconds + 2), "{nodes} in {seconds} s");
        // Each primary except the one that serves the slot; on a busy machine one of them once
        // more.
        assert!((2 * NAMES..3 * NAMES).contains(&keys), "{keys}");
    }
}
