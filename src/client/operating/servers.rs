//! The servers: which there are, which are away, and which live instances pace the ledgers on them.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use futures_util::future::join_all;

use crate::client::Client;
use crate::error::{Error, Result};
use crate::instance::Pacers;
use crate::settings::SILENCE;
use crate::shards::subject;
use crate::store::{Alive, Info, Server, ServerNode};

/// The number of kinds that are ranked before other tasks get a turn: each of their shards costs
/// some hundred checksums.
const AT_ONCE: usize = 64;

/// One Redis server; from [`Client::servers`]. Of a cluster, one of its primaries.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RedisServer {
    /// Its address, without credentials.
    pub address: String,
    /// Its number among several independent servers, from 0; `None` if there is a single server or
    /// a cluster.
    pub number: Option<usize>,
    /// How clients find it.
    pub topology: Topology,
    /// The product and its version, such as `Redis 7.0.15` or `Valkey 8.1.1`. `None` if the server
    /// is away, or this user may not see it.
    pub version: Option<String>,
    /// The number of replicas that are attached to it. `None` if it cannot be seen.
    pub replicas: Option<u64>,
    /// The time from the question to the answer, here and now. `None` if the server is away.
    pub round_trip: Option<Duration>,
    /// Why the server is away; `None` if it answers.
    pub away: Option<String>,
    /// The number of ledgers that it has: one for each kind, or for each shard of a kind.
    pub ledgers: u64,
    /// The live instances that pace ledgers on it, or stand by; in the order of their ids. By the
    /// rules by which the instances agree on it, so for a second after an instance has come or gone
    /// they may see it differently.
    pub pacers: Vec<PacerShare>,
}

/// How clients find a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Topology {
    /// By an address that does not change.
    Single,
    /// Sentinels name the primary.
    Sentinel,
    /// It is a node of a cluster.
    Cluster,
}

/// The ledgers on one server that an instance paces.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PacerShare {
    /// The [id](crate::Instance::id) of the instance.
    pub instance: String,
    /// The number of ledgers that it paces.
    pub paces: u64,
    /// The number of ledgers that it would pace if their pacer were gone.
    pub stands_by: u64,
}

impl Topology {
    fn of(server: &Server) -> Self {
        if server.is_cluster() {
            Topology::Cluster
        } else if server.has_sentinels() {
            Topology::Sentinel
        } else {
            Topology::Single
        }
    }

    /// The name in lower case: `single`, `sentinel`, `cluster`.
    pub fn as_str(self) -> &'static str {
        match self {
            Topology::Single => "single",
            Topology::Sentinel => "sentinel",
            Topology::Cluster => "cluster",
        }
    }
}

impl Client {
    /// The servers that have the jobs: the single server; each of several servers, in the order of
    /// their URLs; or the primaries of a cluster. Some of them may be away.
    ///
    /// It asks each server twice, and then ranks the live instances for each ledger, which takes
    /// some 10 µs for each shard of kinds with several.
    ///
    /// # Errors
    /// If no server answers in time.
    pub async fn servers(&self) -> Result<Vec<RedisServer>> {
        let until = self.deadline();
        let store = self.store();
        let kinds = store.kinds(until).await?;
        let live = store.instances(SILENCE, until).await?;
        let looks = store.servers().iter().map(|server| look(server, until));
        let mut all: Vec<Seen> = join_all(looks).await.into_iter().flatten().collect();
        if all.iter().all(|one| one.error.is_some()) {
            let error = all.into_iter().find_map(|one| one.error);
            return Err(error.expect("there is a server"));
        }
        let pacers = Pacers::new(live.iter().map(Alive::row));
        let places: HashMap<(usize, ServerNode), usize> = { all.iter().enumerate() }
            .map(|(at, one)| ((one.place, one.node.clone()), at))
            .collect();
        let mut shares: Vec<BTreeMap<&str, PacerShare>> =
            all.iter().map(|_| BTreeMap::new()).collect();
        for (at, kind) in kinds.iter().enumerate() {
            if at % AT_ONCE == AT_ONCE - 1 {
                tokio::task::yield_now().await;
            }
            let of_kind = pacers.of_kind(kind.as_str());
            for shard in 0..store.layout_of(kind.as_str()).ledgers() {
                let ledger = subject(kind, shard);
                let place = (store.place_of(kind, shard), store.node_of_ledger(&ledger));
                // A slot may have no node, or one that is no primary any more.
                let Some(&at) = places.get(&place) else {
                    continue;
                };
                all[at].server.ledgers += 1;
                let [paces, stands_by] = of_kind.first_two(&ledger);
                let shares = &mut shares[at];
                if let Some(id) = paces {
                    shares
                        .entry(id)
                        .or_insert_with(|| PacerShare::none(id))
                        .paces += 1;
                }
                if let Some(id) = stands_by {
                    shares
                        .entry(id)
                        .or_insert_with(|| PacerShare::none(id))
                        .stands_by += 1;
                }
            }
        }
        let with_pacers = all
            .into_iter()
            .zip(shares)
            .map(|(one, shares)| RedisServer {
                pacers: shares.into_values().collect(),
                ..one.server
            });
        Ok(with_pacers.collect())
    }
}

/// A server, or a node of a cluster, that was asked.
struct Seen {
    place: usize,
    node: ServerNode,
    server: RedisServer,
    error: Option<Error>,
}

/// Asks a server, or each primary of a cluster.
async fn look(server: &Server, until: Instant) -> Vec<Seen> {
    match server.data_nodes(until).await {
        Ok(nodes) => {
            let looks = nodes.into_iter().map(|node| look_at(server, node, until));
            join_all(looks).await
        }
        Err(error) => vec![Seen::away(server, None, error)],
    }
}

async fn look_at(server: &Server, node: ServerNode, until: Instant) -> Seen {
    let begun = Instant::now();
    let vitals = match server.vitals(&node, &[], until).await {
        Ok(vitals) => vitals,
        Err(error) => return Seen::away(server, node, error),
    };
    let round_trip = begun.elapsed();
    let mut seen = Seen::new(server, node);
    seen.server.round_trip = Some(round_trip);
    if let Ok(info) = &vitals.info {
        seen.server.version = Some(version(info));
        seen.server.replicas = info.text("connected_slaves").parse().ok();
    }
    seen
}

/// The product and its version. Valkey also reports the version of Redis that it forked from.
fn version(info: &Info) -> String {
    match info.text("valkey_version") {
        "" => format!("Redis {}", info.text("redis_version")),
        valkey => format!("Valkey {valkey}"),
    }
}

impl Seen {
    fn new(server: &Server, node: ServerNode) -> Self {
        let address = match &node {
            Some(_) => server.address_of(&node),
            None => server.address(),
        };
        Seen {
            place: server.place(),
            server: RedisServer {
                address,
                number: server.is_member().then(|| server.place()),
                topology: Topology::of(server),
                version: None,
                replicas: None,
                round_trip: None,
                away: None,
                ledgers: 0,
                pacers: Vec::new(),
            },
            node,
            error: None,
        }
    }

    fn away(server: &Server, node: ServerNode, error: Error) -> Self {
        let mut seen = Seen::new(server, node);
        seen.server.away = Some(error.to_string());
        seen.error = Some(error);
        seen
    }
}

impl PacerShare {
    fn none(id: &str) -> Self {
        PacerShare {
            instance: id.to_owned(),
            paces: 0,
            stands_by: 0,
        }
    }
}
