//! A Redis Cluster of three primaries, each with a replica: real processes.

use std::path::PathBuf;
use std::time::Duration;

use keyfall::embedded::{Embedded, Options};
use keyfall_testing::cluster::{ClusterNode, SLOTS};
use keyfall_testing::journals::{Micros, now};
use keyfall_testing::patience::within;
use keyfall_testing::server::{signal_to, socket_of};
use redis::{FromRedisValue, RedisResult};
use rustix::process::Signal;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::deployment::PROBE;
use crate::wires::{Peer, Wires};

/// How long a silent node still counts as alive. Then its replica takes over, if it may, and it may
/// only while a scenario waits for a fail-over: on a busy machine, healthy nodes may be silent for
/// as long.
const NODE_TIMEOUT: &str = "2000";

/// The default of Redis.
const DEFAULT_NODE_TIMEOUT: &str = "15000";

/// A little more than the time after which Redis gives up a fail-over that was asked for.
const GIVEN_UP: Duration = Duration::from_secs(7);

/// The limit of every wait here.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a slot that moves is on two nodes, after each few keys.
const HALF_WAY: Duration = Duration::from_millis(30);

const PRIMARIES: usize = 3;

/// A node, by its place among all.
pub(crate) type Number = usize;

pub(crate) struct Cluster {
    nodes: Vec<ClusterNode>,
    /// The primaries, each with its replica.
    pairs: Vec<(Number, Number)>,
    /// The options of all nodes but the first.
    options: Options,
    /// The network between the nodes, if there is one.
    wires: Option<Wires>,
}

impl Cluster {
    /// Starts the nodes. The first, a primary, may have further options.
    pub(crate) async fn start(
        first: Options,
        others: Options,
        wires: Option<Wires>,
    ) -> Result<Self, String> {
        let mut it = Cluster {
            nodes: Vec::new(),
            pairs: (0..PRIMARIES)
                .map(|place| (place, place + PRIMARIES))
                .collect(),
            options: others.clone(),
            wires,
        };
        for place in 0..2 * PRIMARIES {
            let options = if place == 0 { &first } else { &others };
            it.start_node(options).await?;
            it.tell(place, &format!("CLUSTER SET-CONFIG-EPOCH {}", place + 1))
                .await?;
        }
        for place in 0..PRIMARIES {
            let slots = place * SLOTS / PRIMARIES..(place + 1) * SLOTS / PRIMARIES;
            let slots: Vec<String> = slots.map(|slot| slot.to_string()).collect();
            it.tell(place, &format!("CLUSTER ADDSLOTS {}", slots.join(" ")))
                .await?;
        }
        for place in 1..2 * PRIMARIES {
            it.meet(place).await?;
        }
        for (primary, replica) in it.pairs.clone() {
            it.replicates(replica, primary).await?;
        }
        it.is_well().await?;
        Ok(it)
    }

    async fn start_node(&mut self, options: &Options) -> Result<(), String> {
        let place: Peer = (self.nodes.len() + 1).try_into().expect("they are few");
        let mut options = options
            .clone()
            .args(["--cluster-node-timeout", NODE_TIMEOUT])
            .args(["--cluster-replica-no-failover", "yes"]);
        if self.wires.is_some() {
            options = options.args(Wires::source(place));
        }
        let listens = |port: u16| vec!["--port".to_owned(), port.to_string()];
        let mut node = ClusterNode::start(&options, listens).await?;
        if let Some(wires) = &self.wires {
            node.port = wires.to(place, node.port).await?;
            node.bus = wires.to(place, node.bus).await?;
        }
        let (port, bus) = (node.port, node.bus);
        self.nodes.push(node);
        let last = self.nodes.len() - 1;
        if self.wires.is_some() {
            for (what, is) in [("ip", "127.0.0.1"), ("port", &port.to_string())]
                .into_iter()
                .chain([("bus-port", &*bus.to_string())])
            {
                self.tell(last, &format!("CONFIG SET cluster-announce-{what} {is}"))
                    .await?;
            }
        }
        Ok(())
    }

    /// The URL for clients.
    pub(crate) fn url(&self) -> String {
        let seeds = self.nodes.iter().map(|it| format!("127.0.0.1:{}", it.port));
        format!("redis+cluster://{}", seeds.collect::<Vec<_>>().join(","))
    }

    /// The primaries, as of the last change.
    pub(crate) fn primaries(&self) -> impl Iterator<Item = Number> {
        self.pairs.iter().map(|(primary, _)| *primary)
    }

    /// The sockets of the servers that have all the data now: each primary.
    pub(crate) fn sockets(&self) -> Vec<PathBuf> {
        let servers = self.primaries().map(|place| &self.nodes[place].server);
        servers.map(socket_of).collect()
    }

    /// The primary that serves this slot, according to the primaries.
    pub(crate) async fn owner_of(&self, slot: u16) -> Result<Number, String> {
        let of_all = self.until("a slot has one owner", async || {
            let mut owner = None;
            for asked in self.primaries() {
                let told = self.owner_by(slot, asked).await?;
                if *owner.get_or_insert(told) != told {
                    return None;
                }
            }
            owner
        });
        of_all.await
    }

    async fn owner_by(&self, slot: u16, asked: Number) -> Option<Number> {
        let port = self.nodes[asked].primary_of(slot).await?;
        self.nodes.iter().position(|node| node.port == port)
    }

    /// The ledgers of these kinds on a node, as their hash tags: `app:module:biz/3.17`.
    pub(crate) async fn ledgers_on(
        &self,
        place: Number,
        kinds: &str,
    ) -> Result<Vec<String>, String> {
        let keys: Vec<String> = self
            .ask(place, &format!("KEYS keyfall:{{{kinds}/*}}:*"))
            .await?;
        let name = |key: &String| {
            let (tag, _) = key.strip_prefix("keyfall:{")?.split_once('}')?;
            Some(tag.to_owned())
        };
        let mut names: Vec<String> = keys.iter().filter_map(name).collect();
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// The slots that a node serves, by its own answer.
    pub(crate) async fn slots_of(&self, place: Number) -> Result<Vec<u16>, String> {
        let told: String = self.ask(place, "CLUSTER NODES").await?;
        let own = told.lines().find(|line| line.contains("myself"));
        let words = own.unwrap_or_default().split(' ').skip(8);
        let ranges = words.filter_map(|word| {
            let (first, last) = word.split_once('-').unwrap_or((word, word));
            Some(first.parse::<u16>().ok()?..=last.parse().ok()?)
        });
        Ok(ranges.flatten().collect())
    }

    pub(crate) async fn slot_of(&self, key: &str) -> Result<u16, String> {
        self.ask(0, &format!("CLUSTER KEYSLOT {key}")).await
    }

    // Faults, and changes of the cluster.

    /// Restores the default timeout: a node may be silent for as long as Redis allows by default.
    pub(crate) async fn is_patient(&self) -> Result<(), String> {
        for place in 0..self.nodes.len() {
            let set = format!("CONFIG SET cluster-node-timeout {DEFAULT_NODE_TIMEOUT}");
            self.tell(place, &set).await?;
        }
        Ok(())
    }

    pub(crate) fn server(&mut self, place: Number) -> &mut Embedded {
        &mut self.nodes[place].server
    }

    pub(crate) fn signal(&self, place: Number, signal: Signal) {
        signal_to(&self.nodes[place].server, signal);
    }

    /// Cuts a node off from all others. Clients still reach it.
    pub(crate) fn cut_off(&self, place: Number) -> Result<(), &'static str> {
        let wires = self.wires.as_ref().ok_or("there is nothing to cut")?;
        let of = |place: Number| Peer::try_from(place + 1).expect("they are few");
        let others = (0..self.nodes.len()).filter(|other| *other != place);
        wires.cut(of(place), others.map(of));
        Ok(())
    }

    pub(crate) fn join(&self) {
        if let Some(wires) = &self.wires {
            wires.join();
        }
    }

    /// Whether the replica of this primary may take over when the primary is gone.
    pub(crate) async fn may_be_replaced(&self, primary: Number, may: bool) -> Result<(), String> {
        let no = if may { "no" } else { "yes" };
        let set = format!("CONFIG SET cluster-replica-no-failover {no}");
        self.tell(self.replica_of(primary), &set).await
    }

    fn replica_of(&self, primary: Number) -> Number {
        let pair = self.pairs.iter().find(|(one, _)| *one == primary);
        pair.expect("it is a primary").1
    }

    /// Asks the replica of a primary to take over. The replica gives up when the machine is too
    /// busy, and is asked again.
    pub(crate) async fn fail_over(&mut self, primary: Number) -> Result<(Number, Micros), String> {
        let replica = self.replica_of(primary);
        let probe = self.probe_on(replica).await?;
        let mut asked: Option<Instant> = None;
        let has_taken_over = async || {
            if self.takes_writes(replica, &probe).await {
                return Some(now());
            }
            if asked.is_none_or(|asked| asked.elapsed() > GIVEN_UP) {
                // Refused while a fail-over is under way.
                let _: RedisResult<()> = self.try_ask(replica, "CLUSTER FAILOVER").await;
                asked = Some(Instant::now());
            }
            None
        };
        let since = self
            .until("the replica has taken over", has_taken_over)
            .await?;
        Ok((self.swap(primary), since))
    }

    /// Waits until the replica of a primary has taken over by itself. Returns the replica, and the
    /// time from which it takes writes.
    pub(crate) async fn follow(&mut self, primary: Number) -> Result<(Number, Micros), String> {
        let replica = self.replica_of(primary);
        let probe = self.probe_on(replica).await?;
        let since = self
            .until("there is another primary", async || {
                let serves = self.takes_writes(replica, &probe).await;
                serves.then(now)
            })
            .await?;
        Ok((self.swap(primary), since))
    }

    /// A key in a slot that this node serves, or whose primary it follows.
    async fn probe_on(&self, place: Number) -> Result<String, String> {
        let tags = self.ledgers_on(place, "*").await?;
        let tag = tags.first().ok_or("it has no ledger")?;
        Ok(format!("{{{tag}}}{PROBE}"))
    }

    async fn takes_writes(&self, place: Number, key: &str) -> bool {
        let set = format!("SET {key} {{empty}}");
        self.try_ask::<()>(place, &set).await.is_ok()
    }

    fn swap(&mut self, primary: Number) -> Number {
        let pair = self.pairs.iter_mut().find(|(one, _)| *one == primary);
        let pair = pair.expect("it is a primary");
        *pair = (pair.1, pair.0);
        pair.0
    }

    /// Moves a slot to another primary, key by key, as `redis-cli --cluster reshard` does.
    pub(crate) async fn migrate(&self, slot: u16, from: Number, to: Number) -> Result<(), String> {
        self.open_to_move(slot, from, to).await?;
        loop {
            let some = format!("CLUSTER GETKEYSINSLOT {slot} 4");
            let keys: Vec<String> = self.ask(from, &some).await?;
            if keys.is_empty() {
                break;
            }
            // A word without a letter stands for the keys at the end.
            let to = format!(
                "MIGRATE 127.0.0.1 {} {{empty}} 0 20000 REPLACE KEYS ",
                self.nodes[to].port
            );
            self.tell(from, &(to + &keys.join(" "))).await?;
            // Others take as long for thousands of keys.
            sleep(HALF_WAY).await;
        }
        let closed = self.nodes[from].close_moved(slot, &self.nodes[to]).await;
        closed.map_err(|error| format!("slot {slot} is not closed: {error}"))
    }

    async fn open_to_move(&self, slot: u16, from: Number, to: Number) -> Result<(), String> {
        let opened = self.nodes[from].open_to_move(slot, &self.nodes[to]).await;
        opened.map_err(|error| format!("slot {slot} is not opened: {error}"))
    }

    /// Begins to move a ledger's slot to another primary, and stops after so many of its keys.
    /// Returns the slot.
    pub(crate) async fn tear(
        &self,
        tag: &str,
        from: Number,
        to: Number,
        keys: usize,
    ) -> Result<u16, String> {
        let slot = self.slot_of(&format!("{{{tag}}}")).await?;
        self.open_to_move(slot, from, to).await?;
        let all: Vec<String> = self.ask(from, &format!("KEYS keyfall:{{{tag}}}:*")).await?;
        let port = self.nodes[to].port;
        for key in all.iter().take(keys) {
            let migrate = format!("MIGRATE 127.0.0.1 {port} {{empty}} 0 20000 REPLACE KEYS {key}");
            self.tell(from, &migrate).await?;
        }
        Ok(slot)
    }

    /// Begins to send all keys of a ledger that are left to another primary.
    pub(crate) async fn send_rest(
        &self,
        tag: &str,
        from: Number,
        to: Number,
    ) -> Result<JoinHandle<()>, String> {
        let left: Vec<String> = self.ask(from, &format!("KEYS keyfall:{{{tag}}}:*")).await?;
        let redis = self.connection(from).await;
        let mut redis = redis.map_err(|error| error.to_string())?;
        let mut migrate = redis::cmd("MIGRATE");
        let port = self.nodes[to].port;
        migrate
            .arg("127.0.0.1")
            .arg(port)
            .arg("")
            .arg(0)
            .arg(20_000);
        migrate.arg("REPLACE").arg("KEYS").arg(left);
        Ok(tokio::spawn(async move {
            // Its node is killed meanwhile.
            let _: RedisResult<redis::Value> = migrate.query_async(&mut redis).await;
        }))
    }

    /// Makes a node that took over forget a slot that is on its way: Redis behaves so by itself.
    /// Valkey 8 and later tell replicas of such slots.
    pub(crate) async fn forget_move(&self, place: Number, slot: u16) -> Result<(), String> {
        self.tell(place, &format!("CLUSTER SETSLOT {slot} STABLE"))
            .await
    }

    /// Waits until the replica of a primary has all its writes so far.
    pub(crate) async fn is_copied(&self, primary: Number, mark: &str) -> Result<(), String> {
        self.until("a replica has all", async || {
            let mut redis = self.connection(primary).await.ok()?;
            // The wait covers the writes of its own connection.
            let mut both = redis::pipe();
            both.cmd("SET").arg(mark).arg(now()).ignore();
            both.cmd("WAIT").arg(1).arg(1000);
            let (replicas,): (u64,) = both.query_async(&mut redis).await.ok()?;
            (replicas > 0).then_some(())
        })
        .await
    }

    /// Waits until a primary that was replaced is a replica. If it was killed while a slot moved,
    /// Redis 7.0 can take all slots from it and let it stay a primary; then it is made a replica as
    /// an operator would do it.
    pub(crate) async fn rejoin(&self, old: Number, new: Number) -> Result<(), String> {
        let replicate = format!("CLUSTER REPLICATE {}", self.nodes[new].id);
        self.until("the old primary is a replica", async || {
            if self.says(old, "INFO replication", "role:slave").await {
                return Some(());
            }
            if self.slots_of(old).await.ok()?.is_empty() {
                // Another node serves its keys now, and only an empty node may become a replica.
                self.tell(old, "FLUSHALL").await.ok()?;
                self.tell(old, &replicate).await.ok()?;
            }
            None
        })
        .await
    }

    /// Adds a primary without slots. Returns it.
    pub(crate) async fn add(&mut self) -> Result<Number, String> {
        self.start_node(&self.options.clone()).await?;
        let place = self.nodes.len() - 1;
        self.meet(place).await?;
        Ok(place)
    }

    /// Removes the primary that was added last; it has no slots any more.
    pub(crate) async fn remove_last(&mut self) -> Result<(), String> {
        let gone = self.nodes.pop().ok_or("there is none")?;
        for place in 0..self.nodes.len() {
            self.until("it is forgotten", async || {
                let forget = format!("CLUSTER FORGET {}", gone.id);
                self.try_ask::<()>(place, &forget).await.ok()
            })
            .await?;
        }
        Ok(())
    }

    /// Makes a node known to the others, and waits until each of them knows all.
    async fn meet(&self, place: Number) -> Result<(), String> {
        let met = self.nodes[place].meet(&self.nodes[0]).await;
        met.map_err(|error| error.to_string())
    }

    async fn replicates(&self, replica: Number, primary: Number) -> Result<(), String> {
        let replicate = format!("CLUSTER REPLICATE {}", self.nodes[primary].id);
        self.until("a node is a replica", async || {
            self.try_ask::<()>(replica, &replicate).await.ok()
        })
        .await
    }

    /// Waits until all nodes know each other, all slots are served, and each replica has all the
    /// data; then no node may be replaced any more.
    pub(crate) async fn is_well(&self) -> Result<(), String> {
        let known = format!("cluster_known_nodes:{}", self.nodes.len());
        let of_all = [
            ("CLUSTER INFO", &*known),
            ("CLUSTER INFO", "cluster_state:ok"),
            ("CLUSTER INFO", "cluster_slots_ok:16384"),
            ("INFO persistence", "aof_rewrite_in_progress:0"),
            ("INFO persistence", "aof_rewrite_scheduled:0"),
        ];
        let of_primary = [("INFO replication", "role:master")];
        let of_replica = [
            ("INFO replication", "role:slave"),
            ("INFO replication", "master_link_status:up"),
        ];
        for place in 0..self.nodes.len() {
            let is_replica = self.pairs.iter().any(|(_, replica)| *replica == place);
            let role = if is_replica {
                &of_replica[..]
            } else {
                &of_primary
            };
            let mut lacks = "";
            let well = self.until("the cluster is well", async || {
                for (question, line) in of_all.iter().chain(role) {
                    if !self.says(place, question, line).await {
                        lacks = line;
                        return None;
                    }
                }
                Some(())
            });
            if let Err(never) = well.await {
                let nodes: String = self.ask(place, "CLUSTER NODES").await?;
                return Err(format!("{never}: node {place} lacks {lacks}:\n{nodes}"));
            }
        }
        for (primary, _) in &self.pairs {
            self.may_be_replaced(*primary, false).await?;
        }
        Ok(())
    }

    // Questions.

    async fn says(&self, place: Number, question: &str, line: &str) -> bool {
        self.nodes[place].says(question, line).await
    }

    async fn tell(&self, place: Number, text: &str) -> Result<(), String> {
        self.ask::<redis::Value>(place, text).await.map(drop)
    }

    /// A command, its words separated by blanks; `{empty}` is a word without a letter.
    pub(crate) async fn ask<T: FromRedisValue>(
        &self,
        place: Number,
        text: &str,
    ) -> Result<T, String> {
        let asked = self.try_ask(place, text).await;
        asked.map_err(|error| format!("{:.60}: {error}", text))
    }

    async fn try_ask<T: FromRedisValue>(&self, place: Number, text: &str) -> RedisResult<T> {
        let asked = self.nodes[place].try_ask(text);
        // No stopped node is asked, so only a failure takes that long.
        let answer = timeout(PATIENCE, asked).await;
        answer.unwrap_or_else(|_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()))
    }

    /// A direct connection to a node, past the network between the nodes.
    pub(crate) async fn connection(
        &self,
        place: Number,
    ) -> RedisResult<redis::aio::MultiplexedConnection> {
        self.nodes[place].connection().await
    }

    async fn until<T>(
        &self,
        what: &str,
        probe: impl AsyncFnMut() -> Option<T>,
    ) -> Result<T, String> {
        within(PATIENCE, what, probe).await
    }
}
