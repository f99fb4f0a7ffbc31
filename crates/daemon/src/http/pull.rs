//! Hands out jobs to consumers that wait for them, and takes back their leases.

use std::time::Duration;

use axum::response::Response;
use axum::{Extension, Json};
use futures_util::future::join_all;
use keyfall::target::Pulled;
use keyfall::{Client, Extended, Kind, Lease, Outcome, Settled};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::auth::{Caller, Scope};
use super::body::Body;
use super::connections::Sent;
use super::handing_over::handed_over;
use super::problem::Problem;
use super::routes::Routes;
use super::wire::{HeaderMap, PayloadOut, Span, Time, headers};

/// The longest that a pull holds its connection. Proxies cut longer connections.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(180);

/// The most jobs of one pull, and the most leases of one call.
const MOST: usize = 1000;

/// The most kinds and prefixes of one pull: with each job that falls due they are all compared.
const MOST_PREFIXES: usize = 256;

/// The jobs that a consumer asks for.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PullIn {
    /// Jobs of these kinds.
    #[serde(default)]
    #[schema(example = json!(["app1:trans:notice"]))]
    kinds: Vec<String>,
    /// Jobs of the kinds with these prefixes. Without prefixes and kinds, jobs of any kind. Kinds and
    /// prefixes are 256 at the most.
    #[serde(default)]
    #[schema(example = json!(["app1:"]))]
    prefixes: Vec<String>,
    /// The most jobs, from 1 to 1000. Defaults to 1.
    #[serde(default = "one")]
    #[schema(minimum = 1, maximum = 1000)]
    max: usize,
    /// How long to wait for the first job, 180 s at the most. Defaults to 30 s.
    #[serde(default = "half_a_minute")]
    wait: Span,
}

fn one() -> usize {
    1
}

fn half_a_minute() -> Span {
    Span(Duration::from_secs(30))
}

/// The jobs that the consumer has got. Empty if none fell due in time.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct PulledOut {
    jobs: Vec<PulledJobOut>,
}

/// A job that belongs to the consumer until its lease ends.
#[derive(Debug, Serialize, ToSchema)]
struct PulledJobOut {
    #[schema(example = "app1:trans:notice:42")]
    key: String,
    /// The lease, with which the consumer finishes, extends or fails the job.
    lease: String,
    /// The length of the lease.
    lease_ms: u64,
    #[serde(flatten)]
    payload: PayloadOut,
    #[schema(inline)]
    headers: HeaderMap,
    /// The number of this attempt, from 1.
    attempt: u32,
    /// The most attempts of the job.
    max_attempts: u32,
    /// The same for all attempts of this job, and for no other job: a consumer that remembers it
    /// does no work twice.
    idempotency_key: String,
    due: Time,
    /// The time from the due time to the claim.
    lag_ms: u64,
    first_scheduled_at: Time,
    /// The fencing value. For one key it only grows: a store that remembers the largest value can
    /// refuse lower ones.
    fence: u64,
}

/// Leases, as they were handed out.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FinishIn {
    #[schema(min_items = 1, max_items = 1000)]
    leases: Vec<String>,
}

/// Leases, and their length from now on.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ExtendIn {
    #[schema(min_items = 1, max_items = 1000)]
    leases: Vec<String>,
    /// The new length from now on, from 1 s to 1 day.
    by: Span,
}

/// Leases of attempts that failed, and the next step for their jobs: their policy decides, unless
/// `after` or `bury` does.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FailIn {
    #[schema(min_items = 1, max_items = 1000)]
    leases: Vec<String>,
    /// The reason of the failure. Kept as the last error.
    error: String,
    /// Try again after this time, if the policy allows another attempt.
    after: Option<Span>,
    /// Make it a dead letter at once.
    #[serde(default)]
    bury: bool,
}

/// Leases of jobs that run later, as if these runs had not taken place.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SnoozeIn {
    #[schema(min_items = 1, max_items = 1000)]
    leases: Vec<String>,
    /// Run after this time. Due at once, if it is not given.
    after: Option<Span>,
}

/// The outcome for each lease, in their order.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct LeasesOut {
    results: Vec<LeaseOut>,
}

/// The outcome for a lease.
#[derive(Debug, Serialize, ToSchema)]
struct LeaseOut {
    lease: String,
    /// `done`, `pending` (it runs again), `replaced`, `cancelled`, `buried`, `extended`; `gone` (it
    /// was settled before), `taken` (it lapsed, and another consumer has the job), or `failed`.
    result: &'static str,
    /// The time of the next run.
    #[serde(skip_serializing_if = "Option::is_none")]
    due: Option<Time>,
    /// The number of the dead letter.
    #[serde(skip_serializing_if = "Option::is_none")]
    letter: Option<u64>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<Problem>,
}

/// Waits for jobs to fall due, and hands them out.
#[utoipa::path(post, path = "/v1/pull", tag = "consume", request_body = Option<PullIn>,
    responses((status = 200, body = PulledOut)))]
pub(super) async fn pull(
    caller: Caller,
    Extension(sent): Extension<Sent>,
    Body(wanted): Body<PullIn>,
) -> Result<Response, Problem> {
    let PullIn {
        kinds,
        mut prefixes,
        max,
        wait: Span(wait),
    } = wanted;
    if !(1..=MOST).contains(&max) {
        return Err(Problem::invalid(
            "max",
            format!("max is {max}, and must be from 1 to {MOST}"),
        ));
    }
    if wait > LONGEST_WAIT {
        let detail = format!(
            "wait is {wait:?}, and must be {LONGEST_WAIT:?} at the most: pull \
                              again after it"
        );
        return Err(Problem::invalid("wait", detail));
    }
    let named = kinds.len() + prefixes.len();
    if named > MOST_PREFIXES {
        let detail = format!(
            "there are {named} kinds and prefixes, and {MOST_PREFIXES} are allowed: give wider prefixes, \
             or pull several times"
        );
        return Err(Problem::invalid("prefixes", detail));
    }
    for kind in kinds {
        let parsed = Kind::parse(&kind).map_err(|error| Problem::from(error).field("kinds"))?;
        prefixes.push(format!("{parsed}:"));
    }
    let api = caller.may_with_each(Scope::Consume, &prefixes)?;
    let max = match &api.rate {
        Some(rate) => max.min(rate.at_once()),
        None => max,
    };
    let waiting = api.pull.pull(&prefixes, max, wait);
    let pulled = tokio::select! {
        pulled = caller.while_it_may(Scope::Consume, &prefixes, waiting) => {
            pulled?.map_err(|error| Problem::from(error).field("prefixes"))?
        }
        () = api.stopping.cancelled() => Vec::new(),
    };
    // The request counted as the first job, before the number of jobs was known.
    if let Some(rate) = &api.rate {
        rate.afterwards(caller.who(), pulled.len().saturating_sub(1));
    }
    // A consumer that has lost the right to the jobs drops them, and they go back.
    caller.may_with_each(Scope::Consume, &prefixes)?;
    let out = PulledOut {
        jobs: pulled.iter().map(PulledJobOut::from).collect(),
    };
    let text = serde_json::to_vec(&out).expect("texts and numbers are JSON");
    // If a job goes back in this instant, its consumer will find it gone.
    let accept = |one: Pulled| drop(one.accept());
    let may = move || caller.may_with_each(Scope::Consume, &prefixes).is_ok();
    Ok(handed_over(text, pulled, sent, may, accept))
}

impl From<&Pulled> for PulledJobOut {
    fn from(pulled: &Pulled) -> Self {
        let job = pulled.job();
        let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        PulledJobOut {
            key: job.key().to_string(),
            lease: pulled.lease().to_string(),
            lease_ms: ms(pulled.lease_length()),
            payload: PayloadOut::of(job.payload()),
            headers: headers(job.headers()),
            attempt: job.attempt(),
            max_attempts: job.max_attempts(),
            idempotency_key: job.idempotency_key(),
            due: Time(job.due()),
            lag_ms: ms(job.lag()),
            first_scheduled_at: Time(job.first_scheduled_at()),
            fence: job.fence(),
        }
    }
}

/// Ends leases: their jobs are done.
#[utoipa::path(post, path = "/v1/leases/finish", operation_id = "finish_leases", tag = "consume", request_body = FinishIn,
    responses((status = 200, body = LeasesOut)))]
pub(super) async fn finish(
    caller: Caller,
    Body(FinishIn { leases }): Body<FinishIn>,
) -> Result<Json<LeasesOut>, Problem> {
    each(&caller, leases, |way, lease| {
        settle(way, lease, Outcome::Done)
    })
    .await
}

/// Ends leases: their attempts failed.
#[utoipa::path(post, path = "/v1/leases/fail", operation_id = "fail_leases", tag = "consume", request_body = FailIn,
    responses((status = 200, body = LeasesOut)))]
pub(super) async fn fail(
    caller: Caller,
    Body(failed): Body<FailIn>,
) -> Result<Json<LeasesOut>, Problem> {
    if failed.bury && failed.after.is_some() {
        let detail = "a job is buried or tried again: leave out `after` or `bury`";
        return Err(Problem::invalid("after", detail));
    }
    let (error, bury, after) = (failed.error, failed.bury, failed.after);
    let outcome = || {
        let error = error.as_str();
        match (bury, after) {
            (true, _) => Outcome::bury(error),
            (_, Some(Span(after))) => Outcome::retry_after(after, error),
            (_, None) => Outcome::retry(error),
        }
    };
    each(&caller, failed.leases, |way, lease| {
        settle(way, lease, outcome())
    })
    .await
}

/// Ends leases: their jobs run later, and these attempts do not count. A consumer that stops gives its
/// jobs back with it.
#[utoipa::path(post, path = "/v1/leases/snooze", operation_id = "snooze_leases", tag = "consume", request_body = SnoozeIn,
    responses((status = 200, body = LeasesOut)))]
pub(super) async fn snooze(
    caller: Caller,
    Body(SnoozeIn { leases, after }): Body<SnoozeIn>,
) -> Result<Json<LeasesOut>, Problem> {
    let after = after.map_or(Duration::ZERO, |Span(after)| after);
    each(&caller, leases, |way, lease| {
        settle(way, lease, Outcome::snooze(after))
    })
    .await
}

/// Extends leases. No lease gets shorter.
#[utoipa::path(post, path = "/v1/leases/extend", operation_id = "extend_leases", tag = "consume", request_body = ExtendIn,
    responses((status = 200, body = LeasesOut)))]
pub(super) async fn extend(
    caller: Caller,
    Body(ExtendIn {
        leases,
        by: Span(length),
    }): Body<ExtendIn>,
) -> Result<Json<LeasesOut>, Problem> {
    each(&caller, leases, |way, lease| extend_one(way, lease, length)).await
}

async fn extend_one(way: Way, lease: Lease, length: Duration) -> Result<Became, Problem> {
    let extended = way.client.extend(&lease, length).await?;
    Ok(match extended {
        Extended::Extended => ("extended", None, None),
        Extended::Cancelled => ("cancelled", None, None),
        Extended::Taken => ("taken", None, None),
        _ => ("gone", None, None),
    })
}

type Became = (&'static str, Option<Time>, Option<u64>);

/// Access to the job of a lease, and to the settings and counters of its route.
struct Way {
    client: Client,
    routes: Routes,
}

async fn settle(way: Way, lease: Lease, outcome: Outcome) -> Result<Became, Problem> {
    let policy = way.routes.retry(lease.key());
    let call = way.client.settle(&lease, outcome).retry(policy);
    let settled = match way.routes.durable(lease.key()) {
        None => call.await?,
        Some(replicas) => call.durable(replicas).await?.0,
    };
    Ok(match settled {
        Settled::Done => ("done", None, None),
        Settled::Pending(due) => ("pending", Some(Time(due)), None),
        Settled::Replaced => ("replaced", None, None),
        Settled::Cancelled => ("cancelled", None, None),
        Settled::Buried(letter) => ("buried", None, Some(letter)),
        Settled::Taken => ("taken", None, None),
        _ => ("gone", None, None),
    })
}

/// Applies a call to all leases at the same time.
async fn each<F>(
    caller: &Caller,
    leases: Vec<String>,
    call: impl Fn(Way, Lease) -> F,
) -> Result<Json<LeasesOut>, Problem>
where
    F: Future<Output = Result<Became, Problem>>,
{
    if !(1..=MOST).contains(&leases.len()) {
        let detail = format!("there are {} leases; give from 1 to {MOST}", leases.len());
        return Err(Problem::invalid("leases", detail));
    }
    let calls = leases.into_iter().map(|lease| {
        let called = held(caller, &lease).map(|(way, lease)| call(way, lease));
        async move {
            let became = match called {
                Ok(called) => called.await,
                Err(problem) => Err(problem),
            };
            LeaseOut::new(lease, became)
        }
    });
    let results = join_all(calls).await;
    Ok(Json(LeasesOut { results }))
}

fn held(caller: &Caller, lease: &str) -> Result<(Way, Lease), Problem> {
    let lease: Lease = lease
        .parse()
        .map_err(|error| Problem::from(error).field("leases"))?;
    let api = caller.may_with(Scope::Consume, lease.key())?;
    let way = Way {
        client: api.client.clone(),
        routes: api.routes.clone(),
    };
    Ok((way, lease))
}

impl LeaseOut {
    fn new(lease: String, became: Result<Became, Problem>) -> Self {
        let (result, due, letter, problem) = match became {
            Ok((result, due, letter)) => (result, due, letter, None),
            Err(problem) => ("failed", None, None, Some(problem)),
        };
        LeaseOut {
            lease,
            result,
            due,
            letter,
            problem,
        }
    }
}
