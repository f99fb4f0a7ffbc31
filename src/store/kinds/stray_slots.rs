//! Stray keys: keys on primaries of a cluster that do not serve the slots of these keys.
//!
//! They are left behind when the source of a slot dies while the slot moves. The replica that takes
//! over does not know that some of the keys have left, and the node that has them does not serve
//! the slot. This file finds such keys, and the primaries that hold them; `slot_repair.rs` brings
//! them back. See `docs/topology.md`.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
#[cfg(feature = "worker")]
use redis::Pipeline;
use redis::{Cmd, Value};
use tokio::sync::Mutex;
use tokio::time::timeout_at;

use crate::store::Server;
#[cfg(feature = "worker")]
use crate::store::connections::cluster::SLOTS;
use crate::store::connections::cluster::{Node, slot_of};
use crate::store::connections::fault::Fault;
use crate::store::connections::link::Request;

/// The time limit of one question to one node.
const PATIENCE: Duration = Duration::from_secs(2);

/// The wait before another node is asked.
const PAUSE: Duration = Duration::from_millis(100);

/// How long a list of the primaries is valid. Each call on an unused name needs the list, and a new
/// list takes one command for each primary. The list is dangerous only if a new node holds the keys
/// of a slot that another node has come to serve since. For that the node would have to join the
/// cluster, receive all the keys, and see their source fail and be replaced within this time, and
/// the replacement alone takes longer.
const BELIEVED_FOR: Duration = Duration::from_secs(1);

/// How many slots one pipeline counts.
#[cfg(feature = "worker")]
const AT_ONCE: usize = 2048;

/// How many names of one slot are read. As a rule these are all: otherwise other keys of the slot
/// could hide the keys of a ledger. A node then sends tens of megabytes at the most.
const NAMES: usize = 1_000_000;

/// A node that may serve slots, as it describes itself in `CLUSTER NODES`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Primary {
    /// The node id of the cluster.
    pub(in crate::store) id: String,
    /// The address by which clients reach the node.
    pub(in crate::store) node: Node,
    /// The configuration epoch. If two nodes claim a slot, the larger epoch wins.
    epoch: u64,
    /// The ranges of slots that it serves.
    slots: Vec<RangeInclusive<u16>>,
    /// Slots that leave it or come to it, as `[100->-id]` and `[100-<-id]`.
    pub(in crate::store) open: Vec<String>,
}

/// The last list of primaries and the time at which it was read; see [`BELIEVED_FOR`].
#[derive(Default)]
pub(in crate::store) struct Primaries(Mutex<Option<(Instant, Arc<[Primary]>)>>);

/// The keys of one slot on a primary that does not serve it.
#[cfg(feature = "worker")]
#[derive(Debug, Clone)]
pub(crate) struct Stray {
    /// The slot, 0 to 16383.
    pub(crate) slot: u16,
    /// The primary that has the keys.
    pub(crate) holder: Primary,
    /// The primary that serves the slot, if one does.
    pub(crate) owner: Option<Primary>,
    /// The names of the keys, [`NAMES`] of them at the most.
    pub(crate) keys: Vec<Vec<u8>>,
}

#[cfg(feature = "worker")]
impl Stray {
    /// Whether both nodes know that the slot is moving from the owner to the holder. Such keys are
    /// not stray: the move in progress takes care of them.
    pub(crate) fn is_under_way(&self) -> bool {
        self.owner.as_ref().is_some_and(|owner| {
            let leaves = format!("[{}->-{}]", self.slot, self.holder.id);
            let comes = format!("[{}-<-{}]", self.slot, owner.id);
            owner.open.contains(&leaves) && self.holder.open.contains(&comes)
        })
    }
}

impl fmt::Display for Primary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.node.fmt(f)
    }
}

impl Primary {
    /// Whether the node serves this slot, by its own description.
    pub(in crate::store) fn serves(&self, slot: u16) -> bool {
        self.slots.iter().any(|range| range.contains(&slot))
    }

    /// Parses a line of `CLUSTER NODES`. `None` for a replica, and for a node that has failed or
    /// has no address. A node with several names gets the name that is in `known`. `told_by` is the
    /// node that sent the line. See <https://redis.io/docs/latest/commands/cluster-nodes/>.
    fn parse(line: &str, told_by: &Node, known: &[Node]) -> Option<Self> {
        let words: Vec<&str> = line.split(' ').collect();
        let [id, places, flags, _, _, _, epoch, _, ref slots @ ..] = words[..] else {
            return None;
        };
        let mut flags = flags.split(',');
        let is_there = |flag: &str| !matches!(flag, "fail" | "noaddr" | "handshake");
        if !flags.clone().any(|flag| flag == "master") || !flags.all(is_there) {
            return None;
        }
        let mut places = places.split(',');
        let (address, _bus) = places.next()?.rsplit_once('@')?;
        let (_, port) = address.rsplit_once(':')?;
        let by_host = places.next().map(|host| Node::of(host, port));
        let (open, slots): (Vec<&str>, Vec<&str>) =
            slots.iter().partition(|word| word.starts_with('['));
        let slots = slots.into_iter().filter_map(|word| {
            let (first, last) = word.split_once('-').unwrap_or((word, word));
            Some(first.parse().ok()?..=last.parse().ok()?)
        });
        Some(Primary {
            id: id.to_owned(),
            node: by_host
                .filter(|node| known.contains(node))
                .unwrap_or_else(|| told_by.named_by(address)),
            epoch: epoch.parse().ok()?,
            slots: slots.collect(),
            open: open.into_iter().map(Into::into).collect(),
        })
    }
}

impl Server {
    /// All primaries of the cluster that have not failed, including those without slots; empty if
    /// the server is not a cluster.
    ///
    /// Each primary is asked for its own slots, because the target of a moving slot does not notice
    /// when another node takes over from the source.
    ///
    /// # Errors
    ///
    /// If one of the primaries does not answer.
    pub(in crate::store) async fn primaries(&self, until: Instant) -> Result<Vec<Primary>, Fault> {
        let Some(cluster) = self.link.origin().cluster() else {
            return Ok(Vec::new());
        };
        let mut nodes = redis::cmd("CLUSTER");
        nodes.arg("NODES");
        let (asked, told) = loop {
            let Some(asked) = self.link.home_of(&nodes, until).await? else {
                return Ok(Vec::new());
            };
            match self.ask_node(&asked, &nodes, until).await {
                Ok(told) => break (asked, told),
                // Another node may still take a dead one for a primary.
                Err(fault) if fault.is_passing() && Instant::now() + PAUSE < until => {
                    cluster.doubt();
                    tokio::time::sleep(PAUSE).await;
                }
                Err(fault) => return Err(fault),
            }
        };
        let known = cluster.nodes().0;
        let told: String = redis::from_redis_value(told).unwrap_or_default();
        let lines = told.lines();
        let all: Vec<Primary> = lines
            .filter_map(|line| Primary::parse(line, &asked, &known))
            .collect();
        let own = all.into_iter().map(|it| async {
            let told = self.ask_node(&it.node, &nodes, until).await?;
            let told: String = redis::from_redis_value(told).unwrap_or_default();
            let own = told.lines().find(|line| line.contains("myself"));
            let own = own.and_then(|line| Primary::parse(line, &it.node, &known));
            Ok(own.map(|own| Primary {
                node: it.node,
                ..own
            }))
        });
        join_all(own)
            .await
            .into_iter()
            .filter_map(Result::transpose)
            .collect()
    }

    /// The primaries that do not serve `slot` and have keys of it that begin with `start`.
    ///
    /// # Errors
    ///
    /// If a primary does not answer, or if a slot has more than [`NAMES`] keys and none of the
    /// names read begins with `start`.
    pub(in crate::store) async fn holders(
        &self,
        slot: u16,
        start: &str,
        until: Instant,
    ) -> Result<Vec<Primary>, Fault> {
        let all = self.primaries_of_late(until).await?;
        let others = all.iter().filter(|it| !it.serves(slot));
        let asked = others.map(async |holder| {
            let mut keys = self.names_on(&holder.node, slot, until).await?;
            let are_all = keys.len() < NAMES;
            keys.retain(|key| key.starts_with(start.as_bytes()));
            if keys.is_empty() && !are_all {
                return Err(Fault::crowded(slot, &holder.node, NAMES));
            }
            Ok((!keys.is_empty()).then(|| holder.clone()))
        });
        let told = join_all(asked).await.into_iter();
        let told = told.filter_map(Result::transpose).collect();
        if matches!(&told, Err(fault) if fault.is_passing()) {
            // One of the nodes may have stopped being a primary, so the list is read anew.
            self.primaries.0.lock().await.take();
        }
        told
    }

    /// The primaries, at most [`BELIEVED_FOR`] old. Concurrent calls share one question to the
    /// cluster.
    async fn primaries_of_late(&self, until: Instant) -> Result<Arc<[Primary]>, Fault> {
        let waited = timeout_at(until.into(), self.primaries.0.lock()).await;
        let Ok(mut known) = waited else {
            return Err(Fault::unreachable(&self.address()));
        };
        if let Some((read, all)) = &*known
            && read.elapsed() < BELIEVED_FOR
        {
            return Ok(all.clone());
        }
        let read = Instant::now();
        let all: Arc<[Primary]> = self.primaries(until).await?.into();
        *known = Some((read, all.clone()));
        Ok(all)
    }

    /// All stray keys of the cluster, slot by slot. Each primary counts the keys of all slots that
    /// it does not serve, 2,048 slots in one pipeline.
    ///
    /// # Errors
    ///
    /// If one of the primaries does not answer.
    #[cfg(feature = "worker")]
    pub(crate) async fn strays(&self, until: Instant) -> crate::error::Result<Vec<Stray>> {
        let all = self.primaries(until).await?;
        let mut found = Vec::new();
        for holder in &all {
            let others: Vec<u16> = (0..SLOTS).filter(|slot| !holder.serves(*slot)).collect();
            for slots in others.chunks(AT_ONCE) {
                let mut counts = Pipeline::new();
                for slot in slots {
                    counts.cmd("CLUSTER").arg("COUNTKEYSINSLOT").arg(*slot);
                }
                let request = Request::Many(&counts);
                let limit = until.min(Instant::now() + PATIENCE);
                let told = self.link.try_at_once(&holder.node, request, limit).await?;
                let told: Vec<u64> = redis::from_redis_value(told.value).unwrap_or_default();
                for (slot, _) in slots.iter().zip(told).filter(|(_, count)| *count > 0) {
                    let keys = self.names_on(&holder.node, *slot, until).await?;
                    found.push(stray(*slot, holder, &all, keys));
                }
            }
        }
        Ok(found)
    }

    /// The names of the keys that `node` has in `slot`, [`NAMES`] at the most.
    ///
    /// # Errors
    ///
    /// If the node does not answer within [`PATIENCE`].
    async fn names_on(
        &self,
        node: &Node,
        slot: u16,
        until: Instant,
    ) -> Result<Vec<Vec<u8>>, Fault> {
        let mut names = redis::cmd("CLUSTER");
        names.arg("GETKEYSINSLOT").arg(slot).arg(NAMES);
        let told = self.ask_node(node, &names, until).await?;
        Ok(redis::from_redis_value(told).unwrap_or_default())
    }

    /// Sends a command to one node, once, within [`PATIENCE`]; redirects are not followed.
    pub(in crate::store) async fn ask_node(
        &self,
        node: &Node,
        cmd: &Cmd,
        until: Instant,
    ) -> Result<Value, Fault> {
        let limit = until.min(Instant::now() + PATIENCE);
        let asked = self.link.try_at_once(node, Request::One(cmd), limit).await;
        Ok(asked?.value)
    }
}

/// Describes stray keys; the owner is the primary with the largest epoch that claims the slot.
#[cfg(feature = "worker")]
fn stray(slot: u16, holder: &Primary, all: &[Primary], keys: Vec<Vec<u8>>) -> Stray {
    Stray {
        slot,
        holder: holder.clone(),
        owner: all
            .iter()
            .filter(|it| it.serves(slot))
            .max_by_key(|it| it.epoch)
            .cloned(),
        keys,
    }
}

/// The slot of a ledger. `subject` is the name of the ledger in wake-ups, which is also the hash
/// tag of its keys.
pub(in crate::store) fn slot_of_ledger(subject: &str) -> u16 {
    slot_of(subject.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn primaries_are_recognised_and_named_as_clients_know_them() {
        let told = "\
            aa 10.0.0.1:1@10001 myself,master - 0 0 1 connected 0-99 200 [300->-bb]\n\
            bb :2@10002,b.example master - 0 0 2 connected 100-199\n\
            cc 10.0.0.3:3@10003,c.example,shard-id=x master,fail? - 0 0 3 connected\n\
            dd 10.0.0.4:4@10004 slave aa 0 0 1 connected\n\
            ee 10.0.0.5:5@10005 master,fail - 0 0 5 disconnected 400\n\
            ff :0@0 master,noaddr - 0 0 6 disconnected 500\n\
            gg fd00::7:7@10007 master - 0 0 7 connected\n";
        let known = [Node::new("c.example:3")];
        let parse = |line| Primary::parse(line, &Node::new("seed:9"), &known);
        let all: Vec<Primary> = told.lines().filter_map(parse).collect();
        let names = all.iter().map(|it| (it.id.as_str(), it.node.as_str()));
        let expected = [
            ("aa", "10.0.0.1:1"),
            ("bb", "seed:2"),
            ("cc", "c.example:3"),
            ("gg", "[fd00::7]:7"),
        ];
        assert_eq!(names.collect::<Vec<_>>(), expected);
        assert!(all[0].serves(99) && all[0].serves(200));
        assert!(!all[0].serves(100) && !all[0].serves(300));
        assert!(all[1].serves(199) && !all[2].serves(0));
        assert_eq!(
            (&*all[0].open, all[2].epoch),
            (&["[300->-bb]".to_owned()][..], 3)
        );
    }
}
