//! A cluster of three primaries and three replicas: real processes.

use std::time::{Duration, Instant};

use keyfall::embedded::Embedded;
use keyfall_testing::cluster::{ClusterNode, SLOTS};
use redis::RedisResult;

use crate::runs::eventually;

/// The time after which a silent node counts as failed, in milliseconds.
const NODE_TIMEOUT: &str = "1500";

/// Slightly more than the time after which a requested fail-over is given up.
const GIVEN_UP: Duration = Duration::from_secs(7);

/// The time after which nodes that have not met are introduced again: on a busy machine they give
/// up.
const ONCE_MORE: Duration = Duration::from_secs(5);

/// Three primaries, each with a replica three places behind it.
pub(super) struct Clustered {
    pub(super) nodes: Vec<ClusterNode>,
}

/// A node with these arguments, which configure its port.
pub(super) async fn node(listens: impl Fn(u16) -> Vec<String>) -> ClusterNode {
    let options = Embedded::options().args(["--cluster-node-timeout", NODE_TIMEOUT]);
    ClusterNode::start(&options, listens).await.unwrap()
}

/// Waits until the replica of this node has all acknowledged writes. `key` is in a slot of the
/// node.
pub(super) async fn is_copied(node: &ClusterNode, key: &str) {
    eventually("its replica has all", async || {
        let mut redis = node.connection().await.ok()?;
        // `WAIT` covers the writes of its own connection.
        let both = redis::pipe()
            .cmd("SET")
            .arg(key)
            .arg("")
            .ignore()
            .cmd("WAIT")
            .arg(1)
            .arg(100)
            .query_async(&mut redis)
            .await;
        let (replicas,): (u64,) = both.ok()?;
        (replicas > 0).then_some(())
    })
    .await;
}

impl Clustered {
    pub(super) async fn start() -> Self {
        Clustered::with(&[]).await
    }

    /// A cluster in which a replica takes over only on request: so no write is lost, however long a
    /// busy machine holds a primary up.
    pub(super) async fn steady(args: &[&str]) -> Self {
        Clustered::with(&[&["--cluster-replica-no-failover", "yes"], args].concat()).await
    }

    async fn with(args: &[&str]) -> Self {
        let mut nodes = Vec::new();
        for _ in 0..6 {
            let args = |port: u16| {
                let port = ["--port".to_owned(), port.to_string()].into_iter();
                port.chain(args.iter().map(|it| (*it).to_owned())).collect()
            };
            nodes.push(node(args).await);
        }
        Clustered::of(nodes).await
    }

    /// Makes a cluster of six nodes that do not know each other yet.
    pub(super) async fn of(nodes: Vec<ClusterNode>) -> Self {
        for (place, node) in nodes.iter().enumerate() {
            let epoch = place + 1;
            let _: () = node.ask(&format!("CLUSTER SET-CONFIG-EPOCH {epoch}")).await;
            if place > 0 {
                node.meet(&nodes[0]).await.unwrap();
            }
        }
        for (place, primary) in nodes[..3].iter().enumerate() {
            let slots = place * SLOTS / 3..(place + 1) * SLOTS / 3;
            let slots: Vec<String> = slots.map(|slot| slot.to_string()).collect();
            let _: () = primary
                .ask(&format!("CLUSTER ADDSLOTS {}", slots.join(" ")))
                .await;
        }
        let it = Clustered { nodes };
        it.all_meet().await;
        for (primary, replica) in it.nodes[..3].iter().zip(&it.nodes[3..]) {
            eventually("a replica", async || {
                let replicate = format!("CLUSTER REPLICATE {}", primary.id);
                replica.try_ask::<()>(&replicate).await.ok()
            })
            .await;
        }
        it.is_well().await;
        it
    }

    /// Waits until all nodes know each other.
    async fn all_meet(&self) {
        let line = format!("cluster_known_nodes:{}", self.nodes.len());
        let mut introduced = Instant::now();
        eventually("the nodes know each other", async || {
            let mut all = true;
            for node in &self.nodes {
                all &= node.says("CLUSTER INFO", &line).await;
            }
            if !all && introduced.elapsed() > ONCE_MORE {
                for node in &self.nodes[1..] {
                    node.meet(&self.nodes[0]).await.unwrap();
                }
                introduced = Instant::now();
            }
            all.then_some(())
        })
        .await;
    }

    /// Waits until each node knows this number of nodes.
    pub(super) async fn all_know(&self, count: usize) {
        let line = format!("cluster_known_nodes:{count}");
        for node in &self.nodes {
            eventually("the nodes know each other", async || {
                node.says("CLUSTER INFO", &line).await.then_some(())
            })
            .await;
        }
    }

    /// Waits until all slots are served, and each replica has all the data.
    pub(super) async fn is_well(&self) {
        for node in self.nodes.iter().filter(|node| node.server.pid().is_some()) {
            eventually("the cluster is well", async || {
                let is_whole = node.says("CLUSTER INFO", "cluster_state:ok").await;
                let is_told = node.says("CLUSTER INFO", "cluster_slots_ok:16384").await;
                let has_data = node.says("INFO replication", "role:master").await
                    || node.says("INFO replication", "master_link_status:up").await;
                (is_whole && is_told && has_data).then_some(())
            })
            .await;
        }
    }

    /// The URL for clients.
    pub(super) fn url(&self) -> String {
        let seeds = self
            .nodes
            .iter()
            .map(|node| format!("127.0.0.1:{}", node.port));
        let seeds: Vec<String> = seeds.collect();
        format!("redis+cluster://{}", seeds.join(","))
    }

    /// The index in `nodes` of the primary that serves a slot, according to the node at `asked`.
    pub(super) async fn owner_of(&self, slot: u16, asked: usize) -> Option<usize> {
        let port = self.nodes[asked].primary_of(slot).await?;
        self.nodes.iter().position(|node| node.port == port)
    }

    /// Asks a replica to take over from the primary of this slot, and asks again if the replica
    /// gives up on a busy machine.
    pub(super) async fn fail_over_to(&self, replica: usize, slot: u16) {
        let mut asked: Option<Instant> = None;
        eventually("the replica has taken over", async || {
            if self.owner_of(slot, 1).await == Some(replica) {
                return Some(());
            }
            if asked.is_none_or(|asked| asked.elapsed() > GIVEN_UP) {
                // The call is refused while a fail-over is under way.
                let _: RedisResult<()> = self.nodes[replica].try_ask("CLUSTER FAILOVER").await;
                asked = Some(Instant::now());
            }
            None
        })
        .await;
    }

    /// Moves a slot to another primary, key by key, as `redis-cli --cluster reshard` does.
    pub(super) async fn migrate(&self, slot: u16, from: usize, to: usize) {
        self.open_to_move(slot, from, to).await;
        self.hand_keys_over(slot, from, to).await;
        self.close_moved(slot, from, to).await;
    }

    /// Marks a slot as migrating on both nodes; no key has left yet.
    pub(super) async fn open_to_move(&self, slot: u16, from: usize, to: usize) {
        let (from, to) = (&self.nodes[from], &self.nodes[to]);
        from.open_to_move(slot, to).await.unwrap();
    }

    /// Moves all keys of the slot.
    pub(super) async fn hand_keys_over(&self, slot: u16, from: usize, to: usize) {
        let (from, to) = (&self.nodes[from], &self.nodes[to]);
        loop {
            let count = format!("CLUSTER GETKEYSINSLOT {slot} 10");
            let keys: Vec<String> = from.ask(&count).await;
            if keys.is_empty() {
                break;
            }
            let mut migrate = format!("MIGRATE 127.0.0.1 {}", to.port);
            // An empty word stands for the keys at the end.
            migrate.push_str(" {empty} 0 20000 KEYS ");
            migrate.push_str(&keys.join(" "));
            let _: String = from.ask(&migrate).await;
        }
    }

    /// Assigns the slot to the node with its keys.
    pub(super) async fn close_moved(&self, slot: u16, from: usize, to: usize) {
        let (from, to) = (&self.nodes[from], &self.nodes[to]);
        from.close_moved(slot, to).await.unwrap();
    }

    /// The slot of a key.
    pub(super) async fn slot_of(&self, key: &str, asked: usize) -> u16 {
        self.nodes[asked]
            .ask(&format!("CLUSTER KEYSLOT {key}"))
            .await
    }

    /// This number of kinds of the app, with ledgers on different primaries, the first on the
    /// primary at index 0.
    pub(super) async fn kinds(&self, app: &str) -> Vec<String> {
        let mut kinds = vec![None; 3];
        for number in 0.. {
            let kind = format!("{app}:it:job{number}");
            let slot = self.slot_of(&ledger_of(&kind), 0).await;
            let owner = usize::from(slot) * 3 / SLOTS;
            kinds[owner].get_or_insert(kind);
            if kinds.iter().all(Option::is_some) {
                break;
            }
        }
        kinds.into_iter().flatten().collect()
    }
}

/// A name in the slot of a ledger.
pub(super) fn ledger_of(kind: &str) -> String {
    format!("{{{kind}/0}}")
}
