//! Counts jobs.

use axum::Json;
use keyfall::{Counts, LateServer};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::auth::{Caller, Scope};
use super::body::Params;
use super::problem::Problem;
use super::wire::{Span, UnseenOut};

/// The counted jobs.
#[derive(Debug, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct CountIn {
    /// The prefix of the job keys. Defaults to all jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[param(example = "app1:trans:notice:")]
    pub prefix: Option<String>,
}

/// How many jobs are in each state.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct CountOut {
    /// Waiting to fall due, or to be retried.
    pub pending: u64,
    /// The pending jobs that are due.
    pub overdue: u64,
    pub running: u64,
    /// Claimed by a worker or consumer that has not been heard of since the lease ended.
    pub lapsed: u64,
    /// Dead letters.
    pub dead: u64,
    /// The servers with overdue jobs, or the nodes of a cluster, by address. Missing if there is
    /// none, or the prefix reaches into the id.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub late: Vec<LateServerOut>,
    /// The parts that were not looked at, because one of several servers was away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unseen: Vec<UnseenOut>,
}

/// A server with overdue jobs.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct LateServerOut {
    /// Its address, as in `GET /v1/servers`.
    #[schema(example = "10.0.0.7:6379")]
    pub address: String,
    /// The overdue jobs on it.
    pub overdue: u64,
    /// The lag: the time since the oldest of them fell due.
    pub overdue_for: Span,
}

/// How many jobs are in each state. If the prefix reaches into the id, each id is looked at.
#[utoipa::path(get, path = "/v1/jobs/count", operation_id = "count_jobs", tag = "jobs", params(CountIn),
    responses((status = 200, body = CountOut)))]
pub(super) async fn count(
    caller: Caller,
    Params(wanted): Params<CountIn>,
) -> Result<Json<CountOut>, Problem> {
    let prefix = wanted.prefix.as_deref().unwrap_or_default();
    let client = &caller.may(Scope::Read, prefix)?.client;
    let selection = match prefix {
        "" => client.everything(),
        text => client.prefix(text),
    };
    let prefixes = [prefix.to_owned()];
    let counted = caller.while_it_may(Scope::Read, &prefixes, selection.count());
    let counts = counted.await?.map_err(Problem::of_prefix)?;
    Ok(Json(counts.into()))
}

impl From<Counts> for CountOut {
    fn from(counts: Counts) -> Self {
        CountOut {
            pending: counts.pending,
            overdue: counts.overdue,
            running: counts.running,
            lapsed: counts.lapsed,
            dead: counts.dead,
            late: counts.late.into_iter().map(LateServerOut::from).collect(),
            unseen: UnseenOut::all(&counts.unseen),
        }
    }
}

impl From<LateServer> for LateServerOut {
    fn from(one: LateServer) -> Self {
        LateServerOut {
            address: one.address,
            overdue: one.overdue,
            overdue_for: Span(one.overdue_for),
        }
    }
}
