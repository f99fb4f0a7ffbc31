//! Restores jobs and dead letters from a backup.

use axum::Json;
use keyfall::{ErrorKind, JobKey, KeptJob, MaxLateness, Restored, RetryPolicy};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::actions::Deed;
use super::auth::{Caller, Scope};
use super::body::{Body, Key};
use super::problem::Problem;
use super::wire::{HeaderMap, Job, OccurrenceOut, Span, State, Step, Time, given, payload};

/// A job or a dead letter as it was, in the fields with which `GET /v1/jobs/{key}` shows it.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RestoreIn {
    /// `pending` and `retrying` are the same here. A running job is restored as `pending`.
    state: State,
    /// The due time, which may be long past; of a dead letter, the time of death.
    due: Time,
    /// The number of ended attempts.
    #[serde(default)]
    attempts: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_scheduled_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_error: Option<String>,
    #[serde(default)]
    steps: Vec<Step>,
    #[serde(default)]
    #[schema(inline)]
    headers: HeaderMap,
    /// Any JSON. It is kept as it was written.
    #[serde(
        default,
        deserialize_with = "given",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<Box<RawValue>>,
    /// Bytes that are not JSON, in Base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    retry: Option<RetryPolicy>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_attempts: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout: Option<Span>,
    /// How late it may start, and what becomes of it if it could start only later: a duration, and
    /// `run`, `skip`, `bury` or `spread` with the time over which late jobs are spread. Instead of
    /// the limit of its route.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "1h skip")]
    max_lateness: Option<MaxLateness>,
    /// Its occurrence, if it recurs.
    #[serde(skip_serializing_if = "Option::is_none")]
    occurrence: Option<OccurrenceOut>,
    /// The plan, if it is the plan of a series.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    series: Option<serde_json::Value>,
    /// Replaces a pending job of the same name, instead of keeping it.
    #[serde(default)]
    pub replace: bool,
}

/// The outcome.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct RestoredOut {
    #[schema(example = "app1:trans:notice:42")]
    key: String,
    pub restored: RestoredAs,
    /// The number of the dead letter, which is a new one.
    #[serde(skip_serializing_if = "Option::is_none")]
    letter: Option<u64>,
}

/// The restored state, or the reason why nothing was restored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum RestoredAs {
    /// It is pending again.
    Pending,
    /// It is pending again, and has replaced a pending job.
    Replaced,
    /// It is a dead letter again.
    Dead,
    /// Nothing was restored: a job of this name is pending, or it has a letter from that very time.
    Present,
    /// Nothing was restored: a job of this name is running.
    Running,
}

/// Restores a job or a dead letter, with its attempts, its last error and its story. A present job
/// or letter stays as it is.
#[utoipa::path(post, path = "/v1/jobs/{key}/restore", operation_id = "restore_job", tag = "jobs", request_body = RestoreIn,
    responses((status = 200, body = RestoredOut)))]
pub(super) async fn restore(
    caller: Caller,
    Key(key): Key,
    Body(kept): Body<RestoreIn>,
) -> Result<Json<RestoredOut>, Problem> {
    let restored = restore_one(&caller, &key, kept).await?;
    caller.did_one(Deed::new("restore", key.as_str())).await;
    Ok(Json(restored))
}

pub(super) async fn restore_one(
    caller: &Caller,
    key: &JobKey,
    kept: RestoreIn,
) -> Result<RestoredOut, Problem> {
    caller.may_with(Scope::Operate, key)?;
    let restored = caller.scheduling().restore(kept.into_job(key)?).await;
    let restored = restored.map_err(|error| match error.kind() {
        ErrorKind::InvalidTime => Problem::from(error).field("due"),
        _ => Problem::from(error),
    })?;
    let (restored, letter) = match restored {
        Restored::Pending(_) => (RestoredAs::Pending, None),
        Restored::Replaced(_) => (RestoredAs::Replaced, None),
        Restored::Dead(number) => (RestoredAs::Dead, Some(number)),
        Restored::Running => (RestoredAs::Running, None),
        _ => (RestoredAs::Present, None),
    };
    Ok(RestoredOut {
        key: key.to_string(),
        restored,
        letter,
    })
}

impl RestoreIn {
    fn into_job(self, key: &JobKey) -> Result<KeptJob, Problem> {
        let payload = payload(self.payload, self.payload_base64)?;
        let mut job = match self.state {
            State::Pending | State::Retrying | State::Held => {
                KeptJob::pending(key, self.due.0, payload)
            }
            State::Dead => KeptJob::dead(key, self.due.0, payload),
            State::Running | State::Lapsed => {
                let detail = "no job is restored as running: write `pending`, if it is to run \
                              again";
                return Err(Problem::invalid("state", detail));
            }
        };
        job = job.attempts(self.attempts);
        if let Some(error) = self.last_error {
            job = job.error(error);
        }
        if let Some(Time(accepted)) = self.first_scheduled_at {
            job = job.first_scheduled_at(accepted);
        }
        for Step { what, at } in self.steps {
            job = job.step(what, at.0);
        }
        for (name, value) in self.headers {
            job = job.header(name, value);
        }
        if let Some(policy) = self.retry {
            job = job.retry(policy);
        }
        if let Some(limit) = self.max_attempts {
            job = job.max_attempts(limit);
        }
        if let Some(Span(limit)) = self.timeout {
            job = job.timeout(limit);
        }
        if let Some(MaxLateness { limit, then }) = self.max_lateness {
            job = job.max_lateness(limit, then);
        }
        if let Some(occurrence) = self.occurrence {
            job = job.occurrence(occurrence.restored()?);
        }
        if let Some(plan) = &self.series {
            let planned = job.series_plan(plan);
            job = planned.map_err(|error| Problem::from(error).field("series"))?;
        }
        Ok(if self.replace { job.replace() } else { job })
    }
}

impl From<Job> for RestoreIn {
    fn from(job: Job) -> Self {
        RestoreIn {
            state: job.state,
            due: job.due,
            attempts: job.attempts,
            first_scheduled_at: job.first_scheduled_at,
            last_error: job.last_error,
            steps: job.steps,
            headers: job.headers,
            payload: job.payload,
            payload_base64: job.payload_base64,
            retry: job.retry,
            max_attempts: job.max_attempts,
            timeout: job.timeout,
            max_lateness: job.max_lateness,
            occurrence: job.occurrence,
            series: job.series,
            replace: false,
        }
    }
}
