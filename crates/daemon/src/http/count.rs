//! Counts jobs.

use axum::Json;
use keyfall::Counts;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::auth::{Caller, Scope};
use super::body::Params;
use super::problem::Problem;
use super::wire::UnseenOut;

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
    /// The parts that were not looked at, because one of several servers was away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unseen: Vec<UnseenOut>,
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
            unseen: UnseenOut::all(&counts.unseen),
        }
    }
}
