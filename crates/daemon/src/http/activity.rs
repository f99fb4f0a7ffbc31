//! The starts and ends of runs over the last hour or day, for charts.

use std::time::Duration;

use axum::Json;
use keyfall::{Activity, ActivitySpan, Client, Kind};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::auth::{Caller, Scope};
use super::body::Pairs;
use super::kind_page::KindPage;
use super::problem::Problem;
use super::wire::{Span, Time, UnseenOut};

/// The kinds that are read at once for a sum.
const AT_ONCE: usize = 256;

/// The wanted kinds, and how far back.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ActivityIn {
    /// The last hour in steps of a minute, or the last day in steps of a quarter of an hour.
    /// Defaults to `hour`.
    #[param(inline)]
    #[serde(default)]
    pub span: SpanIn,
    /// The prefix of the kinds. Defaults to all kinds.
    #[param(example = "app1:")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// These kinds as well, whichever page they are on; can be given several times, 256 times at the
    /// most.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kind: Vec<String>,
    /// The most kinds of the page. Defaults to 256.
    #[param(minimum = 1, maximum = 256)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// The start of the page: `next` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// `sum` adds up all kinds with the prefix, and not those of this page alone: each is read.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub whole: bool,
}

/// How far the activity reaches back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum SpanIn {
    #[default]
    Hour,
    Day,
}

/// The activity of a page of kinds.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ActivityOut {
    /// The time of the answer, by Redis' clock. The last step is not over yet.
    pub at: Time,
    /// The beginning of the first step.
    pub from: Time,
    /// The length of each step.
    pub step: Span,
    /// The number of kinds with the prefix.
    pub total: u64,
    /// All kinds of this answer together; with `whole`, all kinds with the prefix.
    pub sum: StepsOut,
    /// The kinds of the page that had any activity, in order, and the named kinds.
    pub kinds: Vec<KindActivityOut>,
    /// The start of the next page; missing on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The parts that were not looked at, because one of several servers was away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unseen: Vec<UnseenOut>,
}

/// The activity of a kind.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct KindActivityOut {
    #[schema(example = "app1:trans:notice")]
    pub kind: String,
    #[serde(flatten)]
    pub steps: StepsOut,
}

/// A number for each step, the oldest first.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct StepsOut {
    /// Runs that began.
    pub started: Vec<u64>,
    /// Runs that ended well.
    pub done: Vec<u64>,
    /// Attempts that failed, without those that left a dead letter.
    pub failed: Vec<u64>,
    /// Runs after which the job was a dead letter.
    pub buried: Vec<u64>,
    /// Runs that began more than a second after their due time.
    pub late: Vec<u64>,
    /// The median of the lags, in milliseconds: an estimate from a histogram. `null` if no run
    /// began.
    pub lag_p50_ms: Vec<Option<f64>>,
    /// The lag that 99 in 100 runs did not exceed, as an estimate.
    pub lag_p99_ms: Vec<Option<f64>>,
    /// The longest lag.
    pub lag_max_ms: Vec<Option<f64>>,
}

/// How many runs began and ended in each minute of the last hour, or in each quarter of an hour of
/// the last day, and how late they began.
#[utoipa::path(get, path = "/v1/series", operation_id = "get_activity", tag = "kinds", params(ActivityIn),
    responses((status = 200, body = ActivityOut)))]
pub(super) async fn activity(caller: Caller, pairs: Pairs) -> Result<Json<ActivityOut>, Problem> {
    let mut span = ActivitySpan::Hour;
    let mut whole = false;
    let known = "`span`, `prefix`, `kind`, `limit`, `cursor` and `whole`";
    let page = KindPage::of(pairs, known, |name, value| {
        span = match (name, value) {
            ("whole", "true" | "false") => {
                whole = value == "true";
                return Ok(true);
            }
            ("whole", _) => {
                let rule = format!("{value:?} is neither `true` nor `false`");
                return Err(Problem::invalid("whole", rule));
            }
            ("span", "hour") => ActivitySpan::Hour,
            ("span", "day") => ActivitySpan::Day,
            ("span", _) => {
                let rule = format!("{value:?} is not a span: write `hour` or `day`");
                return Err(Problem::invalid("span", rule));
            }
            _ => return Ok(false),
        };
        Ok(true)
    })?;
    let prefix = std::slice::from_ref(&page.prefix);
    let client = &caller.may_with_each(Scope::Read, prefix)?.client;
    page.check(client)?;
    let read = caller.while_it_may(Scope::Read, prefix, read(client, &page, span, whole));
    read.await?.map(Json)
}

async fn read(
    client: &Client,
    page: &KindPage,
    span: ActivitySpan,
    whole: bool,
) -> Result<ActivityOut, Problem> {
    let known = client.kinds().await?;
    let mut unseen = UnseenOut::all(&known.unseen);
    let all = page.all_of(known.kinds);
    let picked = page.pick(all.clone());
    let chart = client.activity(&picked.kinds, span).await?;
    UnseenOut::merge(&mut unseen, UnseenOut::all(&chart.unseen));
    let steps = chart.kinds.first().map_or(0, |(_, steps)| steps.len());
    let mut sum = vec![Activity::default(); steps];
    add(&mut sum, &chart.kinds);
    if whole {
        let others = all.into_iter().filter(|kind| !picked.kinds.contains(kind));
        let others: Vec<Kind> = others.collect();
        for some in others.chunks(AT_ONCE) {
            let chart = client.activity(some, span).await?;
            UnseenOut::merge(&mut unseen, UnseenOut::all(&chart.unseen));
            add(&mut sum, &chart.kinds);
        }
    }
    let active = chart.kinds.iter();
    let active = active.filter(|(_, steps)| !steps.iter().all(Activity::is_empty));
    let kinds = active.map(|(kind, steps)| KindActivityOut {
        kind: kind.to_string(),
        steps: StepsOut::of(steps),
    });
    Ok(ActivityOut {
        at: Time(chart.at),
        from: Time(chart.from),
        step: Span(chart.step),
        total: picked.total,
        sum: StepsOut::of(&sum),
        kinds: kinds.collect(),
        next: picked.next,
        unseen,
    })
}

/// Adds up the steps of these kinds.
fn add(sum: &mut [Activity], kinds: &[(Kind, Vec<Activity>)]) {
    for (_, steps) in kinds {
        for (sum, step) in sum.iter_mut().zip(steps) {
            sum.add(step);
        }
    }
}

impl StepsOut {
    fn of(steps: &[Activity]) -> Self {
        let counts = |count: fn(&Activity) -> u64| steps.iter().map(count).collect();
        let lags = |lag: fn(&Activity) -> Option<Duration>| {
            // To the microsecond.
            let ms = |lag: Duration| lag.as_micros() as f64 / 1000.0;
            steps.iter().map(|step| lag(step).map(ms)).collect()
        };
        StepsOut {
            started: counts(Activity::started),
            done: counts(|step| step.done),
            failed: counts(|step| step.failed),
            buried: counts(|step| step.buried),
            late: counts(Activity::late),
            lag_p50_ms: lags(|step| step.lag(0.5)),
            lag_p99_ms: lags(|step| step.lag(0.99)),
            lag_max_ms: lags(Activity::longest_lag),
        }
    }
}
