//! One job: schedule, look at, change, cancel.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use keyfall::{
    Cancelled, Client, IfAbsent, IfPresent, JobKey, Placed, Rescheduled, RetryPolicy, Scheduled,
    Updated,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use super::Shared;
use super::body::{Body, Key};
use super::problem::Problem;
use super::wire::{HeaderMap, JobOut, Span, Time, payload};

/// What a job is scheduled with.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct NewJobIn {
    /// Any JSON. It is kept as it was written.
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<Box<RawValue>>,
    /// Bytes that are no JSON, in Base64.
    payload_base64: Option<String>,
    /// Due so long after Redis receives the call. Due now, if neither this nor `at` is given.
    after: Option<Span>,
    /// Due at this time, by Redis' clock.
    at: Option<Time>,
    /// Texts that travel with it.
    #[serde(default)]
    headers: HeaderMap,
    /// Its own retry policy, such as `15s 3m 10m`, instead of that of its route.
    #[schema(value_type = Option<String>)]
    retry: Option<RetryPolicy>,
    /// Its own limit of attempts.
    attempts: Option<u32>,
    /// Its own timeout.
    timeout: Option<Span>,
    /// Only if there is no such job, or only if there is one.
    #[serde(rename = "if")]
    condition: Option<Condition>,
}

#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Condition {
    Absent,
    Present,
}

/// Until when a job is postponed: one of the two.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PostponeIn {
    /// Due so long after Redis receives the call.
    after: Option<Span>,
    /// Due at this time, by Redis' clock.
    at: Option<Time>,
}

/// Another payload.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PayloadIn {
    /// Any JSON. It is kept as it was written.
    #[schema(value_type = Option<serde_json::Value>)]
    payload: Option<Box<RawValue>>,
    /// Bytes that are no JSON, in Base64.
    payload_base64: Option<String>,
}

/// A job that was scheduled.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ScheduledOut {
    key: String,
    /// `created`, `replaced`, or `succeeds`: the job is running, and this follows it.
    placed: &'static str,
    due: Time,
}

/// A job that was changed.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ChangedOut {
    key: String,
    /// Whether it runs, and what will follow the run was changed.
    successor: bool,
    due: Time,
}

/// A job that was cancelled.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CancelledOut {
    key: String,
    /// Whether it runs: then it is not retried, and its consumer is told to stop.
    running: bool,
}

fn check_when(after: Option<Span>, at: Option<Time>) -> Result<(), Problem> {
    if after.is_some() && at.is_some() {
        return Err(Problem::invalid(
            "at",
            "a job is due `after` a while or `at` a time: leave out one of them",
        ));
    }
    Ok(())
}

/// Creates a job, or replaces it.
#[utoipa::path(put, path = "/v1/jobs/{key}", tag = "jobs",
    request_body = NewJobIn,
    responses(
        (status = 200, description = "It replaced the job that was pending, or follows the one that runs", body = ScheduledOut),
        (status = 201, description = "It was created", body = ScheduledOut),
        (status = 400, body = Problem), (status = 404, body = Problem), (status = 409, body = Problem),
        (status = 413, body = Problem), (status = 503, body = Problem)))]
pub(super) async fn put(
    State(api): Shared,
    Key(key): Key,
    Body(job): Body<NewJobIn>,
) -> Result<(StatusCode, Json<ScheduledOut>), Problem> {
    let scheduled = schedule(&api.client, &key, job).await?;
    let (status, placed) = match scheduled.placed {
        Placed::Created => (StatusCode::CREATED, "created"),
        Placed::Replaced => (StatusCode::OK, "replaced"),
        _ => (StatusCode::OK, "succeeds"),
    };
    let out = ScheduledOut {
        key: key.to_string(),
        placed,
        due: Time(scheduled.due),
    };
    Ok((status, Json(out)))
}

async fn schedule(client: &Client, key: &JobKey, job: NewJobIn) -> Result<Scheduled, Problem> {
    check_when(job.after, job.at)?;
    let mut call = client.schedule_bytes(key, payload(job.payload, job.payload_base64)?);
    if let Some(Span(delay)) = job.after {
        call = call.after(delay);
    }
    if let Some(Time(due)) = job.at {
        call = call.at(due);
    }
    for (name, value) in job.headers {
        call = call.header(name, value);
    }
    if let Some(policy) = job.retry {
        call = call.retry(policy);
    }
    if let Some(limit) = job.attempts {
        call = call.attempts(limit);
    }
    if let Some(Span(limit)) = job.timeout {
        call = call.timeout(limit);
    }
    match job.condition {
        None => Ok(call.await?),
        Some(Condition::Absent) => match call.if_absent().await? {
            IfAbsent::Scheduled(scheduled) => Ok(scheduled),
            IfAbsent::Present(view) => {
                let detail = format!("{key} is there, and due {:?}", view.due());
                let title = "The job is there";
                Err(Problem::new(
                    StatusCode::CONFLICT,
                    "job_present",
                    title,
                    detail,
                ))
            }
        },
        Some(Condition::Present) => match call.if_present().await? {
            IfPresent::Scheduled(scheduled) => Ok(scheduled),
            IfPresent::Absent => Err(Problem::job_absent(key.as_str())),
        },
    }
}

/// The job under this key, or its latest dead letter.
#[utoipa::path(get, path = "/v1/jobs/{key}", tag = "jobs",
    responses((status = 200, body = JobOut), (status = 400, body = Problem),
        (status = 404, body = Problem), (status = 500, body = Problem), (status = 503, body = Problem)))]
pub(super) async fn show(State(api): Shared, Key(key): Key) -> Result<Json<JobOut>, Problem> {
    let view = api.client.get(&key).await?;
    let view = view.ok_or_else(|| Problem::job_absent(key.as_str()))?;
    Ok(Json(JobOut::from(&view)))
}

/// Takes a job back, or keeps one that runs from being retried.
#[utoipa::path(delete, path = "/v1/jobs/{key}", tag = "jobs",
    responses((status = 200, body = CancelledOut), (status = 400, body = Problem),
        (status = 404, body = Problem), (status = 503, body = Problem)))]
pub(super) async fn cancel(
    State(api): Shared,
    Key(key): Key,
) -> Result<Json<CancelledOut>, Problem> {
    let running = match api.client.cancel(&key).await? {
        Cancelled::Cancelled => false,
        Cancelled::Running => true,
        Cancelled::Absent => return Err(Problem::job_absent(key.as_str())),
    };
    Ok(Json(CancelledOut {
        key: key.to_string(),
        running,
    }))
}

/// Gives a pending job another due time.
#[utoipa::path(post, path = "/v1/jobs/{key}/postpone", tag = "jobs",
    request_body = PostponeIn,
    responses((status = 200, body = ChangedOut), (status = 400, body = Problem),
        (status = 404, body = Problem), (status = 409, body = Problem), (status = 503, body = Problem)))]
pub(super) async fn postpone(
    State(api): Shared,
    Key(key): Key,
    Body(when): Body<PostponeIn>,
) -> Result<Json<ChangedOut>, Problem> {
    check_when(when.after, when.at)?;
    let call = api.client.reschedule(&key);
    let answer = match (when.after, when.at) {
        (Some(Span(delay)), _) => call.after(delay).await?,
        (_, Some(Time(due))) => call.at(due).await?,
        _ => {
            return Err(Problem::invalid(
                "after",
                "until when is not said: give `after` or `at`; `/fire` makes it due now",
            ));
        }
    };
    moved(&key, answer)
}

/// Makes a pending job due at once.
#[utoipa::path(post, path = "/v1/jobs/{key}/fire", tag = "jobs",
    responses((status = 200, body = ChangedOut), (status = 400, body = Problem),
        (status = 404, body = Problem), (status = 409, body = Problem), (status = 503, body = Problem)))]
pub(super) async fn fire(State(api): Shared, Key(key): Key) -> Result<Json<ChangedOut>, Problem> {
    let answer = api.client.fire_now(&key).await?;
    moved(&key, answer)
}

fn moved(key: &JobKey, answer: Rescheduled) -> Result<Json<ChangedOut>, Problem> {
    let (successor, due) = match answer {
        Rescheduled::Moved(due) => (false, due),
        Rescheduled::SuccessorMoved(due) => (true, due),
        Rescheduled::Running => return Err(Problem::job_running(key.as_str())),
        _ => return Err(Problem::job_absent(key.as_str())),
    };
    Ok(Json(ChangedOut {
        key: key.to_string(),
        successor,
        due: Time(due),
    }))
}

/// Gives a job another payload. One that runs keeps the old one for this run.
#[utoipa::path(put, path = "/v1/jobs/{key}/payload", tag = "jobs",
    request_body = PayloadIn,
    responses((status = 200, body = ChangedOut), (status = 202, description = "It is running, and carries the new payload if it runs again"),
        (status = 400, body = Problem), (status = 404, body = Problem), (status = 413, body = Problem),
        (status = 503, body = Problem)))]
pub(super) async fn put_payload(
    State(api): Shared,
    Key(key): Key,
    Body(new): Body<PayloadIn>,
) -> Result<(StatusCode, Json<Option<ChangedOut>>), Problem> {
    let answer = api
        .client
        .update_payload_bytes(&key, payload(new.payload, new.payload_base64)?)
        .await?;
    let (successor, due) = match answer {
        Updated::Updated(due) => (false, due),
        Updated::SuccessorUpdated(due) => (true, due),
        Updated::Running => return Ok((StatusCode::ACCEPTED, Json(None))),
        _ => return Err(Problem::job_absent(key.as_str())),
    };
    let out = ChangedOut {
        key: key.to_string(),
        successor,
        due: Time(due),
    };
    Ok((StatusCode::OK, Json(Some(out))))
}
