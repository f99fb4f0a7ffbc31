//! Lists jobs, page by page.

use axum::Json;
use keyfall::{Cursor, DamagedJob, JobState, ListJobs, Page};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::auth::{Caller, Scope};
use super::body::Params;
use super::problem::Problem;
use super::wire::{Job, Moment, Payloads, Span, State, Time, UnseenOut};

/// The default number of jobs of a page, and the largest.
const PAGE: usize = 100;
const LARGEST_PAGE: usize = 1000;

/// The listed jobs, and the form of the page.
#[derive(Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ListIn {
    /// The prefix of the job keys. Defaults to all jobs.
    #[param(example = "app1:trans:notice:")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// The state of the jobs. `pending` includes jobs that wait for a retry, `retrying` lists these
    /// alone; `held` lists the due jobs of kinds that have a limit. Defaults to `pending`.
    #[serde(default)]
    #[param(inline)]
    pub state: State,
    /// The most jobs of the page. Defaults to 100. Beyond some 4 MiB of payloads a page has fewer.
    #[param(minimum = 1, maximum = 1000)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// The start of the page: `next` of the page before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// The form of the payloads. Defaults to `json`.
    #[serde(default)]
    #[param(inline)]
    pub payloads: Payloads,
    /// Only jobs that are due before this time, or within this duration from now; dead letters by
    /// the time of death.
    #[param(value_type = Option<String>, example = "1h")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub due_before: Option<Moment>,
    /// Only jobs that are due at this time or later, or after this duration from now.
    #[param(value_type = Option<String>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub due_after: Option<Moment>,
    /// Only jobs of which more than this number of attempts have begun.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts_over: Option<u32>,
    /// Only jobs whose last error, or reason of death, contains this text, in upper or lower case.
    #[param(example = "timeout")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Only jobs whose last error, or reason of death, is this one when its numbers and ids are
    /// folded to `#`.
    #[param(example = "order # not found")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Only recurring jobs, if it is true.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub recurring: bool,
}

/// A page of jobs.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct PageOut {
    /// In order of due time, kind by kind; running jobs by the end of their lease, dead letters by
    /// the time of death.
    pub jobs: Vec<Job>,
    /// The jobs of the page that cannot be shown.
    pub damaged: Vec<DamagedOut>,
    /// The number of jobs that were looked at for the page. With `attempts_over`, `error`, `reason`
    /// or `recurring` these are many for a few that fit, some 10,000 at the most.
    #[serde(default)]
    pub scanned: u64,
    /// The start of the next page; missing on the last. A page can be short, and even empty, and
    /// have a next one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The parts that were not looked at, because one of several servers was away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unseen: Vec<UnseenOut>,
}

/// A job whose record or name Keyfall did not write, or which a newer version wrote.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct DamagedOut {
    /// Its kind and its id.
    pub name: String,
    /// The damage.
    pub error: String,
}

/// The jobs in one state, page by page.
#[utoipa::path(get, path = "/v1/jobs", operation_id = "list_jobs", tag = "jobs", params(ListIn),
    responses((status = 200, body = PageOut)))]
pub(super) async fn list(
    caller: Caller,
    Params(wanted): Params<ListIn>,
) -> Result<Json<PageOut>, Problem> {
    let prefix = wanted.prefix.as_deref().unwrap_or_default();
    let client = &caller.may(Scope::Read, prefix)?.client;
    let limit = wanted.limit.unwrap_or(PAGE);
    if !(1..=LARGEST_PAGE).contains(&limit) {
        let detail = format!("a page has from 1 to {LARGEST_PAGE} jobs, not {limit}");
        return Err(Problem::invalid("limit", detail));
    }
    let selection = match prefix {
        "" => client.everything(),
        text => client.prefix(text),
    };
    let list = selection.list(JobState::from(wanted.state));
    let mut call = wanted.narrow(list)?.limit(limit);
    // Scripts begin with an empty cursor.
    if let Some(text) = wanted.cursor.filter(|text| !text.is_empty()) {
        let cursor: Cursor = text
            .parse()
            .map_err(|error| Problem::from(error).field("cursor"))?;
        call = call.after(cursor);
    }
    let page = call.await.map_err(|error| match error.kind() {
        keyfall::ErrorKind::InvalidSetting => Problem::from(error).field("cursor"),
        _ => Problem::of_prefix(error),
    })?;
    Ok(Json(PageOut::new(page, wanted.payloads)))
}

impl ListIn {
    /// Adds the conditions.
    fn narrow<'a>(&self, mut list: ListJobs<'a>) -> Result<ListJobs<'a>, Problem> {
        list = match self.due_before {
            None => list,
            Some(Moment::At(Time(time))) => list.due_before(time),
            Some(Moment::FromNow(Span(delay))) => list.due_within(delay),
        };
        list = match self.due_after {
            None => list,
            Some(Moment::At(Time(time))) => list.due_after(time),
            Some(Moment::FromNow(Span(delay))) => list.due_beyond(delay),
        };
        if let Some(limit) = self.attempts_over {
            list = list.attempts_over(limit);
        }
        if let Some(part) = &self.error {
            if part.is_empty() {
                let rule = "it is empty: write a part of the error, or leave it out";
                return Err(Problem::invalid("error", rule));
            }
            list = list.error(part);
        }
        if let Some(folded) = &self.reason {
            list = list.reason(folded);
        }
        if self.recurring {
            list = list.recurring();
        }
        if self.state == State::Held {
            list = list.held();
        }
        Ok(list)
    }
}

impl PageOut {
    fn new(page: Page, payloads: Payloads) -> Self {
        let damaged = |DamagedJob { name, error, .. }| DamagedOut {
            name,
            error: error.to_string(),
        };
        PageOut {
            jobs: page.jobs.iter().map(|job| Job::of(job, payloads)).collect(),
            damaged: page.damaged.into_iter().map(damaged).collect(),
            scanned: page.scanned,
            next: page.next.map(|cursor| cursor.to_string()),
            unseen: UnseenOut::all(&page.unseen),
        }
    }
}
