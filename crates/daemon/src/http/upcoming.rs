//! How many jobs fall due in each minute, hour or day to come.

use std::time::Duration;

use axum::Json;
use keyfall::Upcoming;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::auth::{Caller, Scope};
use super::body::Params;
use super::problem::Problem;
use super::wire::{Span, Time, UnseenOut};

/// The default length of a bar.
const MINUTE: Duration = Duration::from_secs(60);

/// The default number of bars, and the largest.
const BARS: usize = 60;
const MOST_BARS: usize = 100;

/// The wanted bars.
#[derive(Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct UpcomingIn {
    /// The prefix of the kinds. Defaults to all kinds.
    #[param(example = "app1:")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// The length of a bar, such as `1m`, `1h` or `1d`; from 1 second to 366 days. Defaults to 1
    /// minute.
    #[param(example = "1h", value_type = Option<String>)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<Span>,
    /// The number of bars. Defaults to 60.
    #[param(minimum = 1, maximum = 100)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<usize>,
    /// The beginning of the first bar. Defaults to the last multiple of the step, in UTC.
    #[param(value_type = Option<String>)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<Time>,
}

/// The number of pending jobs that fall due in each bar. `overdue`, `earlier`, `bars` and `later`
/// add up to all pending jobs.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct UpcomingOut {
    /// The time of the answer, by Redis' clock.
    pub at: Time,
    /// The beginning of the first bar.
    pub from: Time,
    /// The length of each bar.
    pub step: Span,
    /// Jobs that are due by now; they are in no bar.
    pub overdue: u64,
    /// Other jobs that fall due before the first bar.
    pub earlier: u64,
    /// The number of jobs in each bar. A bar has its beginning, and lacks its end.
    pub bars: Vec<u64>,
    /// Jobs that fall due after the last bar.
    pub later: u64,
    /// The parts that were not looked at, because one of several servers was away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unseen: Vec<UnseenOut>,
}

/// How many pending jobs fall due in each minute, hour or day to come, over all kinds with a
/// prefix. The cost does not depend on the number of jobs.
#[utoipa::path(get, path = "/v1/upcoming", operation_id = "count_upcoming", tag = "kinds", params(UpcomingIn),
    responses((status = 200, body = UpcomingOut)))]
pub(super) async fn upcoming(
    caller: Caller,
    Params(wanted): Params<UpcomingIn>,
) -> Result<Json<UpcomingOut>, Problem> {
    let prefix = wanted.prefix.unwrap_or_default();
    let client = &caller.may(Scope::Read, &prefix)?.client;
    let step = wanted.step.map_or(MINUTE, |Span(step)| step);
    let count = wanted.count.unwrap_or(BARS);
    if !(1..=MOST_BARS).contains(&count) {
        let rule = format!("there are from 1 to {MOST_BARS} bars, not {count}");
        return Err(Problem::invalid("count", rule));
    }
    let selection = match prefix.as_str() {
        "" => client.everything(),
        text => client.prefix(text),
    };
    let mut call = selection.upcoming(step).spans(count);
    if let Some(Time(from)) = wanted.from {
        call = call.from(from);
    }
    let counted = caller.while_it_may(Scope::Read, std::slice::from_ref(&prefix), call);
    let due = counted.await?.map_err(|error| match error.kind() {
        keyfall::ErrorKind::InvalidSetting => Problem::from(error).field("step"),
        _ => Problem::of_prefix(error),
    })?;
    Ok(Json(due.into()))
}

impl From<Upcoming> for UpcomingOut {
    fn from(due: Upcoming) -> Self {
        UpcomingOut {
            at: Time(due.at),
            from: Time(due.from),
            step: Span(due.step),
            overdue: due.overdue,
            earlier: due.earlier,
            bars: due.spans,
            later: due.later,
            unseen: UnseenOut::all(&due.unseen),
        }
    }
}
