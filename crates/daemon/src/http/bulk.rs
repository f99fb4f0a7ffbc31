//! Calls on many jobs at once, selected by the prefix of their keys.

use axum::Json;
use axum::http::StatusCode;
use keyfall::{BulkReport, Client, Selection};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::actions::Deed;
use super::auth::{Caller, Scope};
use super::body::Body;
use super::problem::Problem;
use super::wire::{Span, Time, UnseenOut};

/// The jobs of a call, and whether it is a dry run.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BulkIn {
    /// The prefix of their keys. End it with a colon to mean one kind, module or app.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "app1:trans:notice:")]
    pub prefix: Option<String>,
    /// All jobs, instead of a prefix.
    #[serde(default)]
    pub everything: bool,
    /// Changes nothing, and counts the jobs that the call would change.
    #[serde(default)]
    pub dry_run: bool,
}

/// The jobs, and their new due time: one of `after`, `at` and `by`.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BulkPostponeIn {
    /// The prefix of their keys. End it with a colon to mean one kind, module or app.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "app1:trans:notice:")]
    pub prefix: Option<String>,
    /// All jobs, instead of a prefix.
    #[serde(default)]
    pub everything: bool,
    /// Changes nothing, and counts the jobs that the call would change.
    #[serde(default)]
    pub dry_run: bool,
    /// All due this long after Redis receives the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Span>,
    /// All due at this time, by Redis' clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
    /// Postpones each job by this duration. Not to be repeated: it would be added twice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by: Option<Span>,
}

/// The outcome for the selected jobs.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct BulkOut {
    /// The selected jobs: `done`, `running` and `skipped` add up to it. After a dry run, these
    /// three are zero.
    pub matched: u64,
    /// The jobs that were changed.
    pub done: u64,
    /// The jobs that run and were told to stop; only of a cancel.
    pub running: u64,
    /// The jobs that were left as they are: they had changed their state, or are damaged; or, of a
    /// requeue, a job of the same name exists.
    pub skipped: u64,
    pub dry_run: bool,
    /// The call has ended at its `at_most`, and more jobs may be left.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
    /// The parts that the call did not reach, because one of several servers was away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unseen: Vec<UnseenOut>,
}

/// The selected jobs. No call selects all jobs by leaving a field out.
pub(super) struct Which([String; 1]);

impl Which {
    pub(super) fn of(prefix: Option<String>, everything: bool) -> Result<Self, Problem> {
        match (prefix, everything) {
            (Some(prefix), false) if !prefix.is_empty() => Ok(Which([prefix])),
            (None, true) => Ok(Which([String::new()])),
            _ => Err(Problem::invalid(
                "prefix",
                "say which jobs: either a `prefix` of their keys, which is not empty, or \
                 `\"everything\": true`",
            )),
        }
    }

    pub(super) fn prefixes(&self) -> &[String] {
        &self.0
    }

    /// The prefix, empty for all jobs.
    pub(super) fn prefix(&self) -> &str {
        let [prefix] = &self.0;
        prefix
    }

    /// Access to the selected jobs.
    pub(super) fn select<'a>(
        &self,
        caller: &'a Caller,
        scope: Scope,
    ) -> Result<Selection<'a>, Problem> {
        let [prefix] = &self.0;
        let client: &Client = &caller.may(scope, prefix)?.client;
        Ok(match prefix.as_str() {
            "" => client.everything(),
            prefix => client.prefix(prefix),
        })
    }
}

/// Carries out a bulk call, in earnest or not, as long as the caller may.
macro_rules! carry_out {
    ($caller:expr, $which:expr, $deed:expr, $call:expr, $dry_run:expr) => {{
        let (call, dry_run) = ($call, $dry_run);
        let call = if dry_run { call.dry_run() } else { call };
        super::bulk::carried_out(&$caller, &$which, $deed, call, dry_run).await
    }};
}
pub(super) use carry_out;

/// Makes a change as long as the caller may, and logs it as `deed`, which is `None` for a dry run:
/// also a change that was broken off, because a part of it stays.
pub(super) async fn logged<T>(
    caller: &Caller,
    prefixes: &[String],
    deed: Option<Deed<'_>>,
    call: impl IntoFuture<Output = keyfall::Result<T>>,
    of_error: impl FnOnce(keyfall::Error) -> Problem,
    count: impl FnOnce(&T) -> Option<u64>,
) -> Result<T, Problem> {
    let told = caller.while_it_may(Scope::Operate, prefixes, call).await;
    let told = told.and_then(|told| told.map_err(of_error));
    let deed = deed.and_then(|deed| match &told {
        Ok(told) => Some(match count(told) {
            Some(changed) => deed.count(changed),
            None => deed,
        }),
        // Nothing was changed.
        Err(problem) if problem.status() == StatusCode::BAD_REQUEST => None,
        Err(problem) => Some(deed.and_note(format!("broken off: {}", problem.detail))),
    });
    if let Some(deed) = deed {
        caller.did(deed).await;
    }
    told
}

/// Carries out a bulk call as long as the caller may, and logs it unless it is a dry run.
pub(super) async fn carried_out(
    caller: &Caller,
    which: &Which,
    deed: Deed<'_>,
    call: impl IntoFuture<Output = keyfall::Result<BulkReport>>,
    dry_run: bool,
) -> Result<Json<BulkOut>, Problem> {
    let deed = Some(deed).filter(|_| !dry_run);
    let changed = |report: &BulkReport| Some(report.done + report.running);
    let prefixes = which.prefixes();
    let report = logged(caller, prefixes, deed, call, Problem::of_prefix, changed).await?;
    Ok(Json(BulkOut::new(report, dry_run)))
}

/// Cancels many jobs: pending jobs never start, running jobs are told to stop.
#[utoipa::path(post, path = "/v1/jobs/cancel", operation_id = "cancel_jobs", tag = "bulk", request_body = BulkIn,
    responses((status = 200, body = BulkOut)))]
pub(super) async fn cancel(
    caller: Caller,
    Body(call): Body<BulkIn>,
) -> Result<Json<BulkOut>, Problem> {
    let which = Which::of(call.prefix, call.everything)?;
    let selection = which.select(&caller, Scope::Operate)?;
    let deed = Deed::new("cancel", which.prefix());
    carry_out!(caller, which, deed, selection.cancel(), call.dry_run)
}

/// Gives many pending jobs another due time.
#[utoipa::path(post, path = "/v1/jobs/postpone", operation_id = "postpone_jobs", tag = "bulk", request_body = BulkPostponeIn,
    responses((status = 200, body = BulkOut)))]
pub(super) async fn postpone(
    caller: Caller,
    Body(call): Body<BulkPostponeIn>,
) -> Result<Json<BulkOut>, Problem> {
    let which = Which::of(call.prefix, call.everything)?;
    let selection = which.select(&caller, Scope::Operate)?.postpone();
    let (selection, to) = match (call.after, call.at, call.by) {
        (Some(after), None, None) => (selection.after(after.0), format!("after {after}")),
        (None, Some(at), None) => (selection.at(at.0), format!("at {at}")),
        (None, None, Some(by)) => (selection.by(by.0), format!("by {by}")),
        _ => {
            let detail = "the new due time is missing: give `after`, `at` or `by`; \
                          `/v1/jobs/fire` makes the jobs due now";
            return Err(Problem::invalid("after", detail));
        }
    };
    let deed = Deed::new("postpone", which.prefix()).note(to);
    carry_out!(caller, which, deed, selection, call.dry_run)
}

/// Makes many pending jobs due at once.
#[utoipa::path(post, path = "/v1/jobs/fire", operation_id = "fire_jobs", tag = "bulk", request_body = BulkIn,
    responses((status = 200, body = BulkOut)))]
pub(super) async fn fire(
    caller: Caller,
    Body(call): Body<BulkIn>,
) -> Result<Json<BulkOut>, Problem> {
    let which = Which::of(call.prefix, call.everything)?;
    let selection = which.select(&caller, Scope::Operate)?;
    let deed = Deed::new("fire", which.prefix());
    carry_out!(caller, which, deed, selection.fire_now(), call.dry_run)
}

impl BulkOut {
    pub(super) fn new(report: BulkReport, dry_run: bool) -> Self {
        BulkOut {
            matched: report.matched,
            done: report.done,
            running: report.running,
            skipped: report.skipped,
            dry_run,
            more: report.is_cut,
            unseen: UnseenOut::all(&report.unseen),
        }
    }
}
