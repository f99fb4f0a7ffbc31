//! The servers, and the kinds with several shards.

use axum::Json;
use keyfall::{PacerShare, RedisServer, ShardPlace, Topology};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::auth::{Caller, Scope};
use super::body::Pairs;
use super::kind_page::KindPage;
use super::problem::Problem;
use super::wire::{Span, UnseenOut};

/// The most shards of a page, unless its first kind alone has more: each costs a call.
const MOST_SHARDS: usize = 1024;

/// The servers.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ServersOut {
    /// The single server; each of several servers, in the order of their URLs; or the primaries of
    /// a cluster.
    pub servers: Vec<ServerOut>,
}

/// A Redis server; of a cluster, a primary.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ServerOut {
    /// Its address, without credentials.
    #[schema(example = "10.0.0.7:6379")]
    pub address: String,
    /// Its number among several independent servers, from 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub number: Option<usize>,
    pub topology: TopologyOut,
    /// Product and version. Missing if the server is away, or the daemon's user may not see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "Redis 7.0.15")]
    pub version: Option<String>,
    /// The number of attached replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<u64>,
    /// The time from the question of the daemon to the answer, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round_trip_us: Option<u64>,
    /// Why the server is away; missing if it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub away: Option<String>,
    /// The number of ledgers that it has: one for each kind, or for each shard of a kind.
    pub ledgers: u64,
    /// The live instances that pace ledgers on it, or stand by.
    pub pacers: Vec<PacerOut>,
}

/// How clients find a server: `single` by a fixed address, `sentinel` through sentinels, `cluster`
/// as a node of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum TopologyOut {
    Single,
    Sentinel,
    Cluster,
}

/// The ledgers of a server that an instance paces.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct PacerOut {
    /// The id of the instance, as in `GET /v1/instances`.
    pub instance: String,
    /// The number of ledgers that it paces.
    pub paces: u64,
    /// The number of ledgers that it would pace if their pacer were gone.
    pub stands_by: u64,
}

/// The wanted kinds.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ShardsIn {
    /// The prefix of the kinds. Defaults to all kinds.
    #[param(example = "app1:")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// These kinds as well, whichever page they are on, if they have several shards; can be given
    /// several times, 256 times at the most.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kind: Vec<String>,
    /// The most kinds of the page. Defaults to 256. A page with more than 1,024 shards has fewer.
    #[param(minimum = 1, maximum = 256)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// The start of the page: `next` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// A page of kinds with several shards.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ShardsOut {
    /// The number of kinds with the prefix and more than one shard.
    pub total: u64,
    /// The kinds of the page, in order.
    pub kinds: Vec<KindShardsOut>,
    /// The start of the next page; missing on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The parts that were not looked at, because one of several servers was away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unseen: Vec<UnseenOut>,
}

/// A kind and its shards.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct KindShardsOut {
    #[schema(example = "app1:trans:notice")]
    pub kind: String,
    /// The number of its shards before, while it is being resharded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<u16>,
    pub shards: Vec<ShardOut>,
}

/// A shard.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ShardOut {
    /// Its number, from 0.
    pub shard: u16,
    /// The name of its ledger, which is the hash tag of its keys.
    #[schema(example = "app1:trans:notice/3.17")]
    pub ledger: String,
    /// The address of the server, or of the node of a cluster, that has it.
    #[schema(example = "10.0.0.7:6379")]
    pub server: String,
    /// Whether a reshard empties it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub emptied: bool,
    /// The numbers of its jobs; missing if its server is away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jobs: Option<ShardJobsOut>,
    /// The lag: the time since its oldest overdue job fell due. Missing if none is overdue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overdue_for: Option<Span>,
    /// The id of the live instance that paces it. Missing if no live instance takes its jobs, or the
    /// token is not for all jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pacer: Option<String>,
    /// The id of the live instance that paces it when the pacer is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standby: Option<String>,
}

/// The numbers of jobs of a shard.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ShardJobsOut {
    /// Waiting to fall due, or to be retried.
    pub pending: u64,
    /// The pending jobs that are due.
    pub overdue: u64,
    /// Running, or claimed by a worker that has since disappeared.
    pub leased: u64,
    /// Dead letters.
    pub dead: u64,
}

/// The servers that have the jobs: which are away, their versions, and the instances that pace the
/// ledgers on them.
#[utoipa::path(get, path = "/v1/servers", operation_id = "list_servers", tag = "instances",
    responses((status = 200, body = ServersOut)))]
pub(super) async fn servers(caller: Caller) -> Result<Json<ServersOut>, Problem> {
    let client = &caller.may(Scope::Read, "")?.client;
    let servers = client.servers().await?;
    Ok(Json(ServersOut {
        servers: servers.into_iter().map(ServerOut::from).collect(),
    }))
}

/// The kinds with more than one shard, page by page: where their shards are, how many jobs these
/// have, and which instances pace them. The cost does not depend on the number of kinds, except for
/// the list of their names.
#[utoipa::path(get, path = "/v1/shards", operation_id = "list_shards", tag = "kinds", params(ShardsIn),
    responses((status = 200, body = ShardsOut)))]
pub(super) async fn shards(caller: Caller, pairs: Pairs) -> Result<Json<ShardsOut>, Problem> {
    let known = "`prefix`, `kind`, `limit` and `cursor`";
    let wanted = KindPage::of(pairs, known, |_, _| Ok(false))?;
    let prefix = std::slice::from_ref(&wanted.prefix);
    let client = &caller.may_with_each(Scope::Read, prefix)?.client;
    wanted.check(client)?;
    let layouts = client.layouts().await?;
    let mut several = layouts.kinds;
    several.retain(|one| one.shards > 1 || one.from.is_some());
    let counts: Vec<usize> = several
        .iter()
        .map(|one| usize::from(one.shards.max(one.from.unwrap_or(0))))
        .collect();
    let count = |kind: &keyfall::Kind| {
        let at = several.binary_search_by(|one| one.kind.cmp(kind));
        at.map_or(1, |at| counts[at])
    };
    let all = several.iter().map(|one| one.kind.clone()).collect();
    let picked = wanted.pick_within(all, MOST_SHARDS, count);
    let places = client.shard_places(&picked.kinds);
    let places = caller.while_it_may(Scope::Read, prefix, places).await??;
    let sees_all = caller.can(Scope::Read, "");
    let mut kinds: Vec<KindShardsOut> = Vec::new();
    for place in places.shards {
        let at = several.binary_search_by(|one| one.kind.cmp(&place.kind));
        let from = at.ok().and_then(|at| several[at].from);
        let kind = place.kind.to_string();
        let mut shard = ShardOut::from(place);
        if !sees_all {
            (shard.pacer, shard.standby) = (None, None);
        }
        match kinds.last_mut().filter(|last| last.kind == kind) {
            Some(last) => last.shards.push(shard),
            None => kinds.push(KindShardsOut {
                kind,
                from,
                shards: vec![shard],
            }),
        }
    }
    let mut unseen = UnseenOut::all(&places.unseen);
    UnseenOut::merge(&mut unseen, UnseenOut::all(&layouts.unseen));
    Ok(Json(ShardsOut {
        total: picked.total,
        kinds,
        next: picked.next,
        unseen,
    }))
}

impl From<RedisServer> for ServerOut {
    fn from(one: RedisServer) -> Self {
        let micros =
            |time: std::time::Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        ServerOut {
            address: one.address,
            number: one.number,
            topology: one.topology.into(),
            version: one.version,
            replicas: one.replicas,
            round_trip_us: one.round_trip.map(micros),
            away: one.away,
            ledgers: one.ledgers,
            pacers: one.pacers.into_iter().map(PacerOut::from).collect(),
        }
    }
}

impl From<Topology> for TopologyOut {
    fn from(topology: Topology) -> Self {
        match topology {
            Topology::Sentinel => TopologyOut::Sentinel,
            Topology::Cluster => TopologyOut::Cluster,
            _ => TopologyOut::Single,
        }
    }
}

impl From<PacerShare> for PacerOut {
    fn from(one: PacerShare) -> Self {
        PacerOut {
            instance: one.instance,
            paces: one.paces,
            stands_by: one.stands_by,
        }
    }
}

impl From<ShardPlace> for ShardOut {
    fn from(one: ShardPlace) -> Self {
        let stats = one.stats.as_ref();
        ShardOut {
            jobs: stats.map(|it| ShardJobsOut {
                pending: it.pending,
                overdue: it.overdue,
                leased: it.leased,
                dead: it.dead,
            }),
            overdue_for: stats
                .filter(|it| it.overdue > 0)
                .map(|it| Span(it.overdue_for)),
            shard: one.shard,
            ledger: one.ledger,
            server: one.server,
            emptied: one.is_emptied,
            pacer: one.pacer,
            standby: one.standby,
        }
    }
}
