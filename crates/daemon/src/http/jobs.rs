//! Schedules, shows, changes and cancels one job.

use axum::Json;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use keyfall::{
    Cancelled, Client, Error, ErrorKind, IfAbsent, IfPresent, JobKey, MaxLateness, Placed,
    QuietHours, Rescheduled, RetryPolicy, Rule, Scheduled, Updated,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};

use super::Api;
use super::actions::Deed;
use super::auth::{Caller, Scope};
use super::body::{Body, Key, Params};
use super::durable::{DurableIn, ReachedOut};
use super::problem::Problem;
use super::warnings::WarningOut;
use super::wire::{HeaderMap, Job, Payloads, Span, Time, check_when, given, payload};

/// A new job.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewJobIn {
    /// Any JSON. It is kept as it was written.
    #[serde(
        default,
        deserialize_with = "given",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<serde_json::Value>)]
    pub payload: Option<Box<RawValue>>,
    /// Bytes that are not JSON, in Base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload_base64: Option<String>,
    /// Due this long after Redis receives the call. Due now, if neither this nor `at` is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Span>,
    /// Due at this time, by Redis' clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
    /// Gathers calls for this key: due when they have been silent for so long, with the last payload.
    /// Needs `at_most`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "30s")]
    pub debounce: Option<Span>,
    /// How long after the first call a gathered job is due at the latest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "5m")]
    pub at_most: Option<Span>,
    /// Spaces the jobs of this key: one is due at once, the next so long after that, with the last
    /// payload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "10m")]
    pub throttle: Option<Span>,
    /// Makes it recur: a cron expression, `every 90m`, or a table with `cron`, `every` or
    /// `after_end`. The times come from the rule, in place of `after` and `at`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub recurring: Option<Rule>,
    /// Hours and days on which it is not to be due: `22:00-08:00`, or a table with `hours`, `days` or
    /// `holidays`, `zone`, and `instead`: `later`, `earlier` or `skip`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>, example = "22:00-08:00")]
    pub quiet: Option<QuietHours>,
    /// Texts that travel with it.
    #[serde(default)]
    #[schema(inline)]
    pub headers: HeaderMap,
    /// Its own retry policy, such as `15s 3m 10m`, instead of the policy of its route.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub retry: Option<RetryPolicy>,
    /// Its own limit of attempts.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub attempts: Option<u32>,
    /// Its own timeout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Span>,
    /// How late it may start, and what becomes of it if it could start only later: a duration, and
    /// `run`, `skip`, `bury` or `spread` with the time over which late jobs are spread. Instead of
    /// the limit of its route.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "1h skip")]
    pub max_lateness: Option<MaxLateness>,
    /// Schedules only if there is no such job, or only if there is one.
    #[serde(rename = "if", skip_serializing_if = "Option::is_none")]
    pub condition: Option<Condition>,
    /// The number of replicas that must have it before the call is answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub durable: Option<u32>,
    /// Whether it must also be on the disk of the primary, and on the disks of as many replicas.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fsynced: bool,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Condition {
    Absent,
    Present,
}

/// The new due time of a job: either `after` or `at`.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PostponeIn {
    /// Due this long after Redis receives the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Span>,
    /// Due at this time, by Redis' clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
}

/// Another payload.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PayloadIn {
    /// Any JSON. It is kept as it was written.
    #[serde(
        default,
        deserialize_with = "given",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<serde_json::Value>)]
    pub payload: Option<Box<RawValue>>,
    /// Bytes that are not JSON, in Base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload_base64: Option<String>,
}

/// The form in which a job is shown.
#[derive(Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ShowIn {
    /// The form of its payload. Defaults to `json`.
    #[serde(default)]
    #[param(inline)]
    pub payloads: Payloads,
}

/// A job that was scheduled.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ScheduledOut {
    pub key: String,
    pub placed: PlacedOut,
    pub due: Time,
    /// `false` if the job has no trigger, and so starts some 20 ms late: a foreign value has its
    /// name in Redis.
    pub armed: bool,
    /// The replicas and disks that have it, if the call was durable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reached: Option<ReachedOut>,
    /// Possible mistakes, although the job is scheduled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<WarningOut>,
}

/// The effect on the job that was there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum PlacedOut {
    /// There was no such job.
    Created,
    /// A job was pending, and this one replaced it.
    Replaced,
    /// A job is running, and this one follows it.
    Succeeds,
    /// Nothing was stored: it would be due in quiet hours, which leave it out.
    #[serde(rename = "left_out")]
    LeftOut,
}

/// A job that was changed.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ChangedOut {
    pub key: String,
    /// Whether the job runs, and its successor was changed.
    pub successor: bool,
    pub due: Time,
}

/// A job that was cancelled.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct CancelledOut {
    pub key: String,
    /// Whether it runs: then it is not retried, and its consumer is told to stop.
    pub running: bool,
    /// The replicas and disks that have the cancel, if it was durable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reached: Option<ReachedOut>,
}

/// Creates a job, or replaces it.
#[utoipa::path(put, path = "/v1/jobs/{key}", operation_id = "schedule_job", tag = "jobs", request_body = Option<NewJobIn>,
    responses(
        (status = 200, description = "It replaced the pending job, or follows the running one", body = ScheduledOut),
        (status = 201, description = "It was created", body = ScheduledOut),
        (status = 404, description = "There is no such job, and the call requires one", body = Problem),
        (status = 409, description = "There is a job, and the call requires that there is none", body = Problem)))]
pub(super) async fn put(
    caller: Caller,
    Key(key): Key,
    Body(job): Body<NewJobIn>,
) -> Result<(StatusCode, Json<ScheduledOut>), Problem> {
    let (status, out) = schedule_one(&caller, &key, job).await?;
    Ok((status, Json(out)))
}

pub(super) async fn schedule_one(
    caller: &Caller,
    key: &JobKey,
    job: NewJobIn,
) -> Result<(StatusCode, ScheduledOut), Problem> {
    let api = caller.may_with(Scope::Schedule, key)?;
    let client = caller.scheduling();
    let scheduled = schedule(api, &client, key, job);
    let (scheduled, warnings) =
        tokio::try_join!(scheduled, async { Ok(warnings(api, key).await) })?;
    let (status, placed) = match scheduled.placed {
        Placed::Created => (StatusCode::CREATED, PlacedOut::Created),
        Placed::Replaced => (StatusCode::OK, PlacedOut::Replaced),
        Placed::LeftOut => (StatusCode::OK, PlacedOut::LeftOut),
        _ => (StatusCode::OK, PlacedOut::Succeeds),
    };
    let out = ScheduledOut {
        key: key.to_string(),
        placed,
        due: Time(scheduled.due),
        armed: scheduled.armed,
        reached: scheduled.reached.map(ReachedOut::from),
        warnings,
    };
    Ok((status, out))
}

/// Oddities of a job with this key.
async fn warnings(api: &Api, key: &JobKey) -> Vec<WarningOut> {
    if api.routes.serve(key) {
        return Vec::new();
    }
    let warning = api.live_routes.warning(&api.client, key).await;
    warning.into_iter().collect()
}

async fn schedule(
    api: &Api,
    client: &Client,
    key: &JobKey,
    job: NewJobIn,
) -> Result<Scheduled, Problem> {
    check_when(job.after, job.at)?;
    if job.recurring.is_some() && (job.after.is_some() || job.at.is_some()) {
        return Err(Problem::invalid(
            "recurring",
            "the times of a recurring job come from its rule: leave out `after` and `at`, and write \
             `from` in the rule if it is to begin later",
        ));
    }
    check_spacing(&job)?;
    let (after, attempts) = (job.after, job.attempts);
    let spacing = match (job.debounce, job.throttle) {
        (Some(_), _) => Some("debounce"),
        (_, Some(_)) => Some("throttle"),
        _ => None,
    };
    let refused = |error: Error| match (error.kind(), spacing) {
        (ErrorKind::InvalidTime, Some(field)) => Problem::from(error).field(field),
        (ErrorKind::InvalidSetting, _) if attempts == Some(0) => {
            Problem::from(error).field("attempts")
        }
        (ErrorKind::InvalidSetting, _) => Problem::from(error).field("timeout"),
        _ => Problem::of_time(error, after),
    };
    let payload = payload(job.payload, job.payload_base64)?;
    api.routes.check_payload(key, payload.len())?;
    let mut call = client.schedule_bytes(key, payload);
    if let Some(Span(delay)) = job.after {
        call = call.after(delay);
    }
    if let Some(Time(due)) = job.at {
        call = call.at(due);
    }
    if let (Some(Span(quiet)), Some(Span(at_most))) = (job.debounce, job.at_most) {
        call = call.debounce(quiet, at_most);
    }
    if let Some(Span(span)) = job.throttle {
        call = call.throttle(span);
    }
    if let Some(rule) = job.recurring {
        call = call.recurring(rule);
    }
    if let Some(quiet) = job.quiet {
        call = call.quiet(quiet);
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
    if let Some(MaxLateness { limit, then }) = job.max_lateness {
        call = call.max_lateness(limit, then);
    }
    let durable = DurableIn {
        durable: job.durable,
        fsynced: job.fsynced,
    };
    if let Some(durable) = durable.asked() {
        call = call.durable(durable);
    }
    match job.condition {
        None => call.await.map_err(refused),
        Some(Condition::Absent) => match call.if_absent().await.map_err(refused)? {
            IfAbsent::Scheduled(scheduled) => Ok(scheduled),
            IfAbsent::Present(view) => {
                let due = format!("it is due {}", Time(view.due()));
                Err(Problem::job_present(key.as_str(), &due))
            }
        },
        Some(Condition::Present) => match call.if_present().await.map_err(refused)? {
            IfPresent::Scheduled(scheduled) => Ok(scheduled),
            IfPresent::Absent => Err(Problem::job_absent(key.as_str())),
        },
    }
}

/// Checks that one thing alone decides when the job is due.
fn check_spacing(job: &NewJobIn) -> Result<(), Problem> {
    let (field, detail) = match (job.debounce, job.at_most, job.throttle) {
        (None, None, None) => return Ok(()),
        (Some(_), _, Some(_)) => ("throttle", "give `debounce` or `throttle`, not both"),
        (Some(_), None, _) => (
            "at_most",
            "say how long calls are gathered at most: `\"at_most\": \"5m\"`",
        ),
        (None, Some(_), _) => ("at_most", "this belongs to `debounce`: give it as well"),
        _ if job.after.is_some() || job.at.is_some() => (
            "after",
            "`debounce` and `throttle` decide when the job is due: leave out `after` and `at`",
        ),
        _ => return Ok(()),
    };
    Err(Problem::invalid(field, detail))
}

/// The job under this key, or its latest dead letter.
#[utoipa::path(get, path = "/v1/jobs/{key}", operation_id = "get_job", tag = "jobs", params(ShowIn),
    responses((status = 200, body = Job),
        (status = 404, description = "There is no such job", body = Problem)))]
pub(super) async fn show(
    caller: Caller,
    Key(key): Key,
    Params(ShowIn { payloads }): Params<ShowIn>,
) -> Result<Json<Job>, Problem> {
    let client = &caller.may_with(Scope::Read, &key)?.client;
    let view = client.get(&key).await?;
    let view = view.ok_or_else(|| Problem::job_absent(key.as_str()))?;
    Ok(Json(Job::of(&view, payloads)))
}

/// Cancels a pending job, or keeps a running one from being retried.
#[utoipa::path(delete, path = "/v1/jobs/{key}", operation_id = "cancel_job", tag = "jobs", params(DurableIn),
    responses((status = 200, body = CancelledOut),
        (status = 404, description = "There is no such job", body = Problem)))]
pub(super) async fn cancel(
    caller: Caller,
    Key(key): Key,
    Params(durable): Params<DurableIn>,
) -> Result<Json<CancelledOut>, Problem> {
    let cancelled = cancel_one(&caller, &key, durable).await?;
    caller.did_one(Deed::new("cancel", key.as_str())).await;
    Ok(Json(cancelled))
}

pub(super) async fn cancel_one(
    caller: &Caller,
    key: &JobKey,
    durable: DurableIn,
) -> Result<CancelledOut, Problem> {
    let client = &caller.may_with(Scope::Schedule, key)?.client;
    let call = client.cancel(key);
    let (cancelled, reached) = match durable.asked() {
        None => (call.await?, None),
        Some(durable) => {
            let (cancelled, reached) = call.durable(durable).await?;
            (cancelled, Some(reached.into()))
        }
    };
    let running = match cancelled {
        Cancelled::Cancelled => false,
        Cancelled::Running => true,
        Cancelled::Absent => return Err(Problem::job_absent(key.as_str())),
    };
    Ok(CancelledOut {
        key: key.to_string(),
        running,
        reached,
    })
}

/// Gives a pending job another due time.
#[utoipa::path(post, path = "/v1/jobs/{key}/postpone", operation_id = "postpone_job", tag = "jobs", request_body = PostponeIn,
    responses((status = 200, body = ChangedOut),
        (status = 404, description = "There is no such job", body = Problem),
        (status = 409, description = "It runs, and nothing is scheduled to follow it", body = Problem)))]
pub(super) async fn postpone(
    caller: Caller,
    Key(key): Key,
    Body(when): Body<PostponeIn>,
) -> Result<Json<ChangedOut>, Problem> {
    let changed = postpone_one(&caller, &key, when).await?;
    let deed = Deed::new("postpone", key.as_str());
    caller
        .did_one(deed.note(format!("due {}", changed.due)))
        .await;
    Ok(Json(changed))
}

pub(super) async fn postpone_one(
    caller: &Caller,
    key: &JobKey,
    when: PostponeIn,
) -> Result<ChangedOut, Problem> {
    check_when(when.after, when.at)?;
    let client = &caller.may_with(Scope::Schedule, key)?.client;
    let call = client.reschedule(key);
    let answer = match (when.after, when.at) {
        (Some(Span(delay)), _) => call.after(delay).await,
        (_, Some(Time(due))) => call.at(due).await,
        _ => {
            return Err(Problem::invalid(
                "after",
                "the new due time is missing: give `after` or `at`; `/fire` makes the job due now",
            ));
        }
    };
    moved(
        key,
        answer.map_err(|error| Problem::of_time(error, when.after))?,
    )
}

/// Makes a pending job due at once.
#[utoipa::path(post, path = "/v1/jobs/{key}/fire", operation_id = "fire_job", tag = "jobs",
    responses((status = 200, body = ChangedOut),
        (status = 404, description = "There is no such job", body = Problem),
        (status = 409, description = "It runs, and nothing is scheduled to follow it", body = Problem)))]
pub(super) async fn fire(caller: Caller, Key(key): Key) -> Result<Json<ChangedOut>, Problem> {
    let changed = fire_one(&caller, &key).await?;
    caller.did_one(Deed::new("fire", key.as_str())).await;
    Ok(Json(changed))
}

pub(super) async fn fire_one(caller: &Caller, key: &JobKey) -> Result<ChangedOut, Problem> {
    let client = &caller.may_with(Scope::Schedule, key)?.client;
    moved(key, client.fire_now(key).await?)
}

fn moved(key: &JobKey, answer: Rescheduled) -> Result<ChangedOut, Problem> {
    let (successor, due) = match answer {
        Rescheduled::Moved(due) => (false, due),
        Rescheduled::SuccessorMoved(due) => (true, due),
        Rescheduled::Running => return Err(Problem::job_running(key.as_str())),
        _ => return Err(Problem::job_absent(key.as_str())),
    };
    Ok(ChangedOut {
        key: key.to_string(),
        successor,
        due: Time(due),
    })
}

/// Gives a job another payload. A running job keeps the old one for this run.
#[utoipa::path(put, path = "/v1/jobs/{key}/payload", operation_id = "update_payload", tag = "jobs", request_body = PayloadIn,
    responses((status = 200, body = ChangedOut),
        (status = 202, description = "It is running, and carries the new payload if it runs again"),
        (status = 404, description = "There is no such job", body = Problem)))]
pub(super) async fn put_payload(
    caller: Caller,
    Key(key): Key,
    Body(new): Body<PayloadIn>,
) -> Result<Response, Problem> {
    let (status, changed) = update_one(&caller, &key, new).await?;
    caller.did_one(Deed::new("payload", key.as_str())).await;
    Ok(match changed {
        Some(out) => (status, Json(out)).into_response(),
        None => status.into_response(),
    })
}

pub(super) async fn update_one(
    caller: &Caller,
    key: &JobKey,
    new: PayloadIn,
) -> Result<(StatusCode, Option<ChangedOut>), Problem> {
    let api = caller.may_with(Scope::Schedule, key)?;
    if new.payload.is_none() && new.payload_base64.is_none() {
        let detail = "there is no payload: give `payload`, be it `null`, or `payload_base64`";
        return Err(Problem::invalid("payload", detail));
    }
    let new = payload(new.payload, new.payload_base64)?;
    api.routes.check_payload(key, new.len())?;
    let (successor, due) = match api.client.update_payload_bytes(key, new).await? {
        Updated::Updated(due) => (false, due),
        Updated::SuccessorUpdated(due) => (true, due),
        Updated::Running => return Ok((StatusCode::ACCEPTED, None)),
        _ => return Err(Problem::job_absent(key.as_str())),
    };
    let out = ChangedOut {
        key: key.to_string(),
        successor,
        due: Time(due),
    };
    Ok((StatusCode::OK, Some(out)))
}
