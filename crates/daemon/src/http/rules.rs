//! Changes, pauses and resumes the rule of a recurring job, and shows a rule before it is stored.

use std::time::SystemTime;

use axum::Json;
use keyfall::{Error, JobKey, Result, Rule, RuleChange};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::actions::Deed;
use super::auth::{Caller, Scope};
use super::body::{Body, Key};
use super::problem::Problem;
use super::wire::Time;

/// The number of times that a preview has.
const TIMES: usize = 5;

/// A rule.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RuleIn {
    /// A cron expression, `every 90m`, or a table with `cron`, `every` or `after_end`.
    #[schema(value_type = serde_json::Value, example = "0 9 * * MON-FRI")]
    pub rule: Rule,
}

/// What became of the rule of a job.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct RuleOut {
    pub key: String,
    /// Whether something was changed: a pause of a rule that is paused changes nothing.
    pub changed: bool,
    /// Whether the job runs: the change applies from the end of the run on.
    pub after_run: bool,
    /// The time at which the next occurrence is due; missing while the rule is paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<Time>,
}

/// A rule in words.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct PreviewOut {
    #[schema(
        example = "At 09:00, on Monday, Tuesday, Wednesday, Thursday, and Friday, in Europe/Berlin"
    )]
    pub words: String,
    /// The rule as a table.
    #[schema(value_type = serde_json::Value)]
    pub rule: serde_json::Value,
    /// The next five times, or fewer if the rule ends before.
    pub times: Vec<Time>,
}

impl PreviewOut {
    /// The same, of a rule that was stored: all of its times may have passed. `None` if it cannot be
    /// read here.
    pub fn of_table(table: &serde_json::Value) -> Option<Self> {
        Rule::from_table(table)
            .ok()
            .map(|rule| PreviewOut::of(&rule))
    }

    /// The words and the next times of a rule.
    pub fn of(rule: &Rule) -> Self {
        let times = rule.upcoming(SystemTime::now(), TIMES);
        PreviewOut {
            words: rule.to_string(),
            rule: serde_json::to_value(rule).expect("a rule is a table of texts"),
            times: times.into_iter().map(Time).collect(),
        }
    }
}

/// Gives a recurring job another rule. Its number, payload and headers stay. If it runs, the rule
/// applies from the end of the run on.
#[utoipa::path(put, path = "/v1/jobs/{key}/rule", operation_id = "change_rule", tag = "jobs", request_body = RuleIn,
    responses((status = 200, body = RuleOut),
        (status = 404, description = "There is no such job", body = Problem),
        (status = 409, description = "It does not recur", body = Problem)))]
pub(super) async fn change(
    caller: Caller,
    Key(key): Key,
    Body(RuleIn { rule }): Body<RuleIn>,
) -> Result<Json<RuleOut>, Problem> {
    let client = &caller.may_with(Scope::Schedule, &key)?.client;
    let changed = client.change_rule(&key, &rule).await;
    let deed = Deed::new("rule", key.as_str()).note(rule.to_string());
    tell(&caller, &key, changed, false, deed).await
}

/// Pauses the rule of a recurring job: nothing is due until it is resumed. A run goes on.
#[utoipa::path(post, path = "/v1/jobs/{key}/rule/pause", operation_id = "pause_rule", tag = "jobs",
    responses((status = 200, body = RuleOut),
        (status = 404, description = "There is no such job", body = Problem),
        (status = 409, description = "It does not recur", body = Problem)))]
pub(super) async fn pause(caller: Caller, Key(key): Key) -> Result<Json<RuleOut>, Problem> {
    let client = &caller.may_with(Scope::Schedule, &key)?.client;
    let paused = client.pause_rule(&key).await;
    let deed = Deed::new("pause-rule", key.as_str());
    tell(&caller, &key, paused, true, deed).await
}

/// Resumes a rule that was paused, with its next time.
#[utoipa::path(post, path = "/v1/jobs/{key}/rule/resume", operation_id = "resume_rule", tag = "jobs",
    responses((status = 200, body = RuleOut),
        (status = 404, description = "There is no such job", body = Problem),
        (status = 409, description = "It does not recur", body = Problem)))]
pub(super) async fn resume(caller: Caller, Key(key): Key) -> Result<Json<RuleOut>, Problem> {
    let client = &caller.may_with(Scope::Schedule, &key)?.client;
    let resumed = client.resume_rule(&key).await;
    let deed = Deed::new("resume-rule", key.as_str());
    tell(&caller, &key, resumed, false, deed).await
}

/// A rule in words, with its next five times. Nothing is stored.
#[utoipa::path(post, path = "/v1/rules/preview", operation_id = "preview_rule", tag = "jobs", request_body = RuleIn,
    responses((status = 200, body = PreviewOut)))]
pub(super) async fn preview(
    caller: Caller,
    Body(RuleIn { rule }): Body<RuleIn>,
) -> Result<Json<PreviewOut>, Problem> {
    caller.sees_its_own()?;
    Ok(Json(PreviewOut::of(&rule)))
}

/// The answer; a change is written to the log of actions.
async fn tell(
    caller: &Caller,
    key: &JobKey,
    answer: Result<RuleChange, Error>,
    is_paused: bool,
    deed: Deed<'_>,
) -> Result<Json<RuleOut>, Problem> {
    let (changed, after_run, due) = match answer? {
        RuleChange::Changed(due) => (true, false, Some(due)),
        RuleChange::AfterRun(due) => (true, true, Some(due)),
        RuleChange::Unchanged => (false, false, None),
        RuleChange::NotRecurring => return Err(Problem::job_not_recurring(key.as_str())),
        _ => return Err(Problem::job_absent(key.as_str())),
    };
    if changed {
        caller.did_one(deed).await;
    }
    Ok(Json(RuleOut {
        key: key.to_string(),
        changed,
        after_run,
        due: due.filter(|_| !is_paused).map(Time),
    }))
}
