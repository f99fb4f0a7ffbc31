//! The log of actions: who did what to which jobs, and when.

use std::borrow::Cow;
use std::time::Duration;

use axum::Json;
use keyfall::{Action, Kind};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;
use utoipa::{IntoParams, ToSchema};

use super::auth::{Caller, Scope};
use super::body::Params;
use super::notes;
use super::problem::Problem;
use super::said::SaidOut;
use super::wire::Time;

/// The default number of actions of an answer, and the largest.
const LAST: usize = 100;
const MOST: usize = 1000;

/// How long an answer waits for the log.
const PATIENCE: Duration = Duration::from_secs(1);

/// An action that was carried out.
pub(super) struct Deed<'a> {
    what: &'a str,
    on: &'a str,
    count: Option<u64>,
    note: Option<String>,
}

impl<'a> Deed<'a> {
    /// An action on the jobs with this key or prefix; empty for all jobs.
    pub(super) fn new(what: &'a str, on: &'a str) -> Self {
        Deed {
            what,
            on,
            count: None,
            note: None,
        }
    }

    /// The number of changed jobs, dead letters or kinds.
    pub(super) fn count(mut self, changed: u64) -> Self {
        self.count = Some(changed);
        self
    }

    /// Adds this note to the present one.
    pub(super) fn and_note(mut self, note: String) -> Self {
        self.note = Some(match self.note {
            Some(before) => format!("{before}; {note}"),
            None => note,
        });
        self
    }

    /// Details.
    pub(super) fn note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }
}

impl Caller {
    /// Logs an action of this caller. The action is done, so a failure here fails no call.
    pub(super) async fn did(&self, deed: Deed<'_>) {
        let mut call = self.logging().log_action(deed.what, deed.on);
        if let Some(operator) = self.operator() {
            call = call.who(operator);
        }
        if let Some(changed) = deed.count {
            call = call.count(changed);
        }
        if let Some(note) = deed.note {
            call = call.note(note);
        }
        let error = match timeout(PATIENCE, call.into_future()).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "Redis does not answer".to_owned(),
        };
        tracing::warn!(what = deed.what, on = deed.on, who = self.operator(), %error, "an action was not logged");
    }

    /// Logs an action on a single job, if the caller is a program for people. Services make such
    /// calls all the time.
    pub(super) async fn did_one(&self, deed: Deed<'_>) {
        if self.is_operating() {
            self.did(deed.count(1)).await;
        }
    }
}

/// The wanted actions.
#[derive(Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ActionsIn {
    /// Actions on jobs whose keys begin with this. Defaults to the actions that the token can see.
    #[param(example = "app1:")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// The most actions. Defaults to 100.
    #[param(minimum = 1, maximum = 1000)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<usize>,
}

/// The last actions, the newest first.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ActionsOut {
    pub actions: Vec<ActionOut>,
}

/// An action of an operator.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ActionOut {
    pub at: Time,
    /// The action: `cancel`, `postpone`, `fire`, `payload`, `rule`, `pause-rule`, `resume-rule` (of
    /// a recurring job), `restore`, `requeue`, `delete` (of dead letters), `drop`, `pause`, `resume`,
    /// `limit`, `unlimit`, `history`, `repair`, `close-breaker`, `fix` (of settings of Redis, by the
    /// doctor).
    #[schema(example = "pause")]
    pub what: String,
    /// The key, the kind or the prefix of the jobs; empty for all jobs.
    #[schema(example = "app1:trans:")]
    pub on: String,
    /// The id of the token and its note; without tokens the address of the caller, or the process
    /// if that is a command on the same Redis.
    #[schema(example = "3f9a1c20 (billing)")]
    pub who: String,
    /// The process that carried it out.
    #[schema(example = "web-1:812")]
    pub by: String,
    /// The number of jobs, dead letters or kinds that were changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Details, such as the new due time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The same, for programs that say it in another language.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note_said: Option<SaidOut>,
}

/// Who did what to which jobs, and when: the last actions, the newest first. With a token, the
/// actions on jobs that it can see.
#[utoipa::path(get, path = "/v1/actions", operation_id = "list_actions", tag = "kinds", params(ActionsIn),
    responses((status = 200, body = ActionsOut)))]
pub(super) async fn list(
    caller: Caller,
    Params(wanted): Params<ActionsIn>,
) -> Result<Json<ActionsOut>, Problem> {
    let last = wanted.last.unwrap_or(LAST);
    if !(1..=MOST).contains(&last) {
        let rule = format!("there are from 1 to {MOST} actions in an answer, not {last}");
        return Err(Problem::invalid("last", rule));
    }
    let prefix = wanted.prefix.unwrap_or_default();
    let api = match prefix.as_str() {
        "" => caller.sees_its_own()?,
        prefix => caller.may(Scope::Read, prefix)?,
    };
    if !prefix.is_empty() {
        // This makes no call: it only checks that a key can begin with the prefix.
        let checked = api.client.tail().prefix(&prefix);
        checked.map_err(Problem::of_prefix)?;
    }
    let is_wanted = |action: &Action| {
        // An action on all kinds of an app is also one on each of them.
        let reach = reach(&action.on);
        let is_on = reach.starts_with(&prefix) || prefix.starts_with(&*reach);
        is_on && caller.can(Scope::Read, &reach)
    };
    let actions = api.client.actions(last, is_wanted).await?;
    Ok(Json(ActionsOut {
        actions: actions.into_iter().map(ActionOut::from).collect(),
    }))
}

/// The prefix of the jobs that an action was on. An action on a kind has its name, without the colon.
fn reach(on: &str) -> Cow<'_, str> {
    match Kind::parse(on) {
        Ok(_) => format!("{on}:").into(),
        Err(_) => on.into(),
    }
}

impl From<Action> for ActionOut {
    fn from(action: Action) -> Self {
        let note = action.note.as_deref();
        ActionOut {
            at: Time(action.at),
            note_said: note.and_then(|note| notes::said(&action.what, note)),
            what: action.what,
            on: action.on,
            who: action.who,
            by: action.by,
            count: action.count,
            note: action.note,
        }
    }
}
