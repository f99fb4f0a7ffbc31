//! The live instances with their routes, and the jobs without a route.

use std::collections::BTreeMap;

use axum::Json;
use keyfall::{ErrorKind, Instance, Unrouted};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::actions::Deed;
use super::auth::{Caller, Scope};
use super::body::Body;
use super::problem::Problem;
use super::wire::{Time, UnseenOut};

/// The routes of the live instances, and the jobs for which no instance has one.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct RoutesOut {
    /// The routes, in the order of their patterns.
    pub routes: Vec<RouteOut>,
    /// The kinds with jobs for which no live instance has a route. They stay pending.
    pub unrouted: Vec<UnroutedOut>,
    /// The parts that were not looked at, because one of several servers was away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unseen: Vec<UnseenOut>,
}

/// A route.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct RouteOut {
    #[schema(example = "app1:trans:notice:*")]
    pub pattern: String,
    /// The number of live instances that have the route.
    pub instances: u64,
    /// The number of these instances that had no room for another job at that moment.
    pub saturated: u64,
    /// The number of jobs that these instances together can run at the same time; 0 if another
    /// limit decides, such as a rate or the clients that pull.
    #[serde(default)]
    pub slots: u64,
    /// The number of further jobs for which these instances had free slots at that moment.
    #[serde(default)]
    pub free: u64,
}

/// Jobs that no instance runs.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct UnroutedOut {
    #[schema(example = "app1:trans:notice")]
    pub kind: String,
    /// The number of waiting jobs. If some jobs of the kind have a route and others have none, only
    /// jobs among the oldest 256 overdue ones count.
    pub jobs: u64,
}

/// The instances that live, in the order in which they started.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct InstancesOut {
    pub instances: Vec<InstanceOut>,
    /// The parts that were not looked at, because one of several servers was away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unseen: Vec<UnseenOut>,
}

/// A worker that lives, as it describes itself to the others.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct InstanceOut {
    /// Its name, unique for ever.
    pub id: String,
    pub host: String,
    pub pid: u32,
    /// The version of Keyfall that it runs.
    pub version: String,
    /// By the clock of its host.
    pub started: Time,
    /// The time since its last heartbeat.
    pub seen_ms: u64,
    /// The patterns of its routes.
    pub routes: Vec<String>,
    /// The routes that had no room for another job at that moment.
    pub saturated: Vec<String>,
    /// The number of jobs that each of its routes can run at the same time, in the order of
    /// `routes`; 0 where another limit decides. Missing if its version does not say.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slots: Vec<usize>,
    /// The number of further jobs of each of these routes for which slots were free at that moment;
    /// 0 where `slots` is 0. Routes share the slots of their instance. Missing if its version does
    /// not say.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub free: Vec<usize>,
    /// Whether it takes jobs that no instance has a route for.
    pub has_fallback: bool,
    /// Whether it hears events. An instance without events finds its jobs by sweeping.
    pub hears_events: bool,
    /// The routes that adopt plain keys.
    #[serde(default)]
    pub adopts: Vec<String>,
    /// The adopting routes for which a missing key cancels the job.
    #[serde(default)]
    pub cancels_missing: Vec<String>,
    /// Hosts of callbacks that it leaves alone because they are down; the first 32 of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub open_breakers: Vec<String>,
}

/// A host of callbacks.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BreakerIn {
    /// The host, with its port unless that is the default of the scheme.
    #[schema(example = "hooks.example.org:8443")]
    pub host: String,
}

/// The state of the breaker.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct BreakerOut {
    pub host: String,
    /// The number of live instances that have paused their calls to it.
    pub instances: u64,
}

/// The routes of all live instances, and the jobs that match none of them.
#[utoipa::path(get, path = "/v1/routes", operation_id = "list_routes", tag = "instances", responses((status = 200, body = RoutesOut)))]
pub(super) async fn routes(caller: Caller) -> Result<Json<RoutesOut>, Problem> {
    let client = &caller.may(Scope::Read, "")?.client;
    let instances = client.instances().await?;
    let unrouted = client.unrouted().await?;
    let mut routes: BTreeMap<&str, RouteOut> = BTreeMap::new();
    for instance in instances.iter() {
        for (place, pattern) in instance.routes.iter().enumerate() {
            let route = routes.entry(pattern).or_insert_with(|| RouteOut {
                pattern: pattern.clone(),
                instances: 0,
                saturated: 0,
                slots: 0,
                free: 0,
            });
            route.instances += 1;
            route.slots += instance.slots.get(place).copied().unwrap_or(0) as u64;
            route.free += instance.free.get(place).copied().unwrap_or(0) as u64;
            route.saturated += u64::from(instance.saturated.contains(pattern));
        }
    }
    Ok(Json(RoutesOut {
        routes: routes.into_values().collect(),
        unseen: UnseenOut::all(&unrouted.unseen),
        unrouted: unrouted.into_iter().map(UnroutedOut::from).collect(),
    }))
}

/// The instances that live.
#[utoipa::path(get, path = "/v1/instances", operation_id = "list_instances", tag = "instances", responses((status = 200, body = InstancesOut)))]
pub(super) async fn list(caller: Caller) -> Result<Json<InstancesOut>, Problem> {
    let live = caller.may(Scope::Read, "")?.client.instances().await?;
    let unseen = UnseenOut::all(&live.unseen);
    let instances = live.into_iter().map(InstanceOut::from).collect();
    Ok(Json(InstancesOut { instances, unseen }))
}

/// Makes workers call a host again that they leave alone because it is down.
#[utoipa::path(post, path = "/v1/breakers/close", operation_id = "close_breaker", tag = "instances", request_body = BreakerIn,
    responses((status = 200, body = BreakerOut)))]
pub(super) async fn close_breaker(
    caller: Caller,
    Body(BreakerIn { host }): Body<BreakerIn>,
) -> Result<Json<BreakerOut>, Problem> {
    let client = &caller.may(Scope::Operate, "")?.client;
    let closed = client.close_breaker(&host).await;
    let instances = closed.map_err(|error| match error.kind() {
        ErrorKind::InvalidSetting => Problem::invalid("host", error.to_string()),
        _ => error.into(),
    })?;
    let instances = instances as u64;
    caller
        .did(Deed::new("close-breaker", "").note(&*host))
        .await;
    Ok(Json(BreakerOut { host, instances }))
}

impl From<Unrouted> for UnroutedOut {
    fn from(unrouted: Unrouted) -> Self {
        UnroutedOut {
            kind: unrouted.kind.to_string(),
            jobs: unrouted.jobs,
        }
    }
}

impl From<Instance> for InstanceOut {
    fn from(one: Instance) -> Self {
        InstanceOut {
            id: one.id,
            host: one.host,
            pid: one.pid,
            version: one.version,
            started: Time(one.started),
            seen_ms: u64::try_from(one.seen.as_millis()).unwrap_or(u64::MAX),
            routes: one.routes,
            saturated: one.saturated,
            slots: one.slots,
            free: one.free,
            has_fallback: one.has_fallback,
            hears_events: one.hears_events,
            adopts: one.adopts,
            cancels_missing: one.cancels_missing,
            open_breakers: one.open_breakers,
        }
    }
}
