//! Lists, requeues and deletes dead letters.

use axum::Json;
use keyfall::{Bulk, Cursor, DeadGroup, JobKey, Requeued, Selection};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::actions::Deed;
use super::auth::{Caller, Scope};
use super::body::{Body, Key, Params};
use super::bulk::{BulkOut, Which, carry_out};
use super::jobs::ShowIn;
use super::problem::Problem;
use super::wire::{Job, Span, Time, UnseenOut, check_when};

/// The dead letters of one job.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct LettersOut {
    /// The latest first: the last sixteen, or fewer if their payloads are large.
    pub letters: Vec<Job>,
}

/// The dead letter, and its new due time. The number is required: without it, a repeated call would
/// take another letter.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RequeueIn {
    /// The number of the dead letter.
    pub letter: u64,
    /// Due this long after Redis receives the call. Due now, if neither this nor `at` is given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Span>,
    /// Due at this time, by Redis' clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
}

/// The dead letter to delete.
#[derive(Debug, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct LetterIn {
    /// The number of the dead letter.
    pub letter: u64,
}

/// A dead letter that is a job again.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct RequeuedOut {
    #[schema(example = "app1:trans:notice:42")]
    pub key: String,
    pub letter: u64,
    pub due: Time,
}

/// A dead letter that is gone.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct DeletedOut {
    #[schema(example = "app1:trans:notice:42")]
    pub key: String,
    pub letter: u64,
}

/// The dead letters of a call, and whether it is a dry run.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DeadBulkIn {
    /// The prefix of their keys. End it with a colon to mean one kind, module or app.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "app1:trans:notice:")]
    pub prefix: Option<String>,
    /// All dead letters, instead of a prefix.
    #[serde(default)]
    pub everything: bool,
    /// Only letters with this reason, when its numbers and ids are folded to `#`; as a group of
    /// `GET /v1/dead/groups` has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "order # not found")]
    pub reason: Option<String>,
    /// Ends the call when about this number of letters was changed; `more` then says that some may
    /// be left. A client that repeats the call can show its progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub at_most: Option<u64>,
    /// Changes nothing, and counts the letters that the call would change.
    #[serde(default)]
    pub dry_run: bool,
}

/// The letters to sort into groups.
#[derive(Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct GroupsIn {
    /// The prefix of the job keys. Defaults to all jobs.
    #[param(example = "app1:")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// Where to go on: `next` of the answer before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// The groups of some dead letters.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct GroupsOut {
    /// The largest first.
    pub groups: Vec<GroupOut>,
    /// Letters that cannot be read; they are in no group.
    pub damaged: u64,
    /// The number of letters that were read.
    pub scanned: u64,
    /// Where the next call goes on; missing if all letters were read. Add up the groups of all
    /// answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The parts that were not looked at, because one of several servers was away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unseen: Vec<UnseenOut>,
}

/// Dead letters of one kind with the same reason.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct GroupOut {
    #[schema(example = "app1:trans:notice")]
    pub kind: String,
    /// The reason, with numbers and ids folded to `#`.
    #[schema(example = "order # not found")]
    pub reason: String,
    pub count: u64,
    /// The time of the first death.
    pub first: Time,
    /// The time of the last death.
    pub last: Time,
    /// The job that died last.
    #[schema(example = "app1:trans:notice:42")]
    pub example: String,
    /// The number of its dead letter.
    pub letter: u64,
}

/// The dead letters of one job. None, if it has none.
#[utoipa::path(get, path = "/v1/dead/{key}", operation_id = "get_dead_letters", tag = "dead letters", params(ShowIn),
    responses((status = 200, body = LettersOut)))]
pub(super) async fn show(
    caller: Caller,
    Key(key): Key,
    Params(ShowIn { payloads }): Params<ShowIn>,
) -> Result<Json<LettersOut>, Problem> {
    let client = &caller.may_with(Scope::Read, &key)?.client;
    let letters = client.dead_letters(&key).await?;
    let letters = letters.iter().map(|letter| Job::of(letter, payloads));
    Ok(Json(LettersOut {
        letters: letters.collect(),
    }))
}

/// Makes a dead letter a job again, with all its attempts ahead.
#[utoipa::path(post, path = "/v1/dead/{key}/requeue", operation_id = "requeue_dead_letter", tag = "dead letters", request_body = RequeueIn,
    responses((status = 200, body = RequeuedOut),
        (status = 404, description = "There is no such letter", body = Problem),
        (status = 409, description = "A job of this name is there", body = Problem)))]
pub(super) async fn requeue(
    caller: Caller,
    Key(key): Key,
    Body(wanted): Body<RequeueIn>,
) -> Result<Json<RequeuedOut>, Problem> {
    let requeued = requeue_one(&caller, &key, wanted).await?;
    let note = format!("letter {}, due {}", requeued.letter, requeued.due);
    let deed = Deed::new("requeue", key.as_str()).count(1).note(note);
    caller.did(deed).await;
    Ok(Json(requeued))
}

pub(super) async fn requeue_one(
    caller: &Caller,
    key: &JobKey,
    wanted: RequeueIn,
) -> Result<RequeuedOut, Problem> {
    check_when(wanted.after, wanted.at)?;
    let client = &caller.may_with(Scope::Operate, key)?.client;
    let mut call = client.requeue(key).letter(wanted.letter);
    if let Some(Span(delay)) = wanted.after {
        call = call.after(delay);
    }
    if let Some(Time(due)) = wanted.at {
        call = call.at(due);
    }
    let answer = call.await;
    match answer.map_err(|error| Problem::of_time(error, wanted.after))? {
        Requeued::Requeued(due) => Ok(RequeuedOut {
            key: key.to_string(),
            letter: wanted.letter,
            due: Time(due),
        }),
        Requeued::Present => Err(Problem::job_present(key.as_str(), "the letter stays dead")),
        _ => Err(Problem::letter_absent(key.as_str(), wanted.letter)),
    }
}

/// Deletes a dead letter for good.
#[utoipa::path(delete, path = "/v1/dead/{key}", operation_id = "delete_dead_letter", tag = "dead letters", params(LetterIn),
    responses((status = 200, body = DeletedOut),
        (status = 404, description = "There is no such letter", body = Problem)))]
pub(super) async fn delete(
    caller: Caller,
    Key(key): Key,
    Params(LetterIn { letter }): Params<LetterIn>,
) -> Result<Json<DeletedOut>, Problem> {
    let deleted = delete_one(&caller, &key, letter).await?;
    let deed = Deed::new("delete", key.as_str())
        .count(1)
        .note(format!("letter {letter}"));
    caller.did(deed).await;
    Ok(Json(deleted))
}

pub(super) async fn delete_one(
    caller: &Caller,
    key: &JobKey,
    letter: u64,
) -> Result<DeletedOut, Problem> {
    let client = &caller.may_with(Scope::Operate, key)?.client;
    if !client.delete_dead_letter(key).letter(letter).await? {
        return Err(Problem::letter_absent(key.as_str(), letter));
    }
    Ok(DeletedOut {
        key: key.to_string(),
        letter,
    })
}

/// Makes many dead letters jobs again: of several letters of one name, the latest.
#[utoipa::path(post, path = "/v1/dead/requeue", operation_id = "requeue_dead_letters", tag = "dead letters", request_body = DeadBulkIn,
    responses((status = 200, body = BulkOut)))]
pub(super) async fn requeue_many(
    caller: Caller,
    Body(call): Body<DeadBulkIn>,
) -> Result<Json<BulkOut>, Problem> {
    carry_out_dead(&caller, call, "requeue", |letters| letters.requeue()).await
}

/// Deletes many dead letters for good.
#[utoipa::path(post, path = "/v1/dead/delete", operation_id = "delete_dead_letters", tag = "dead letters", request_body = DeadBulkIn,
    responses((status = 200, body = BulkOut)))]
pub(super) async fn delete_many(
    caller: Caller,
    Body(call): Body<DeadBulkIn>,
) -> Result<Json<BulkOut>, Problem> {
    carry_out_dead(&caller, call, "delete", |letters| {
        letters.delete_dead_letters()
    })
    .await
}

/// Requeues or deletes many dead letters, and logs it.
async fn carry_out_dead(
    caller: &Caller,
    wanted: DeadBulkIn,
    what: &str,
    call: fn(Selection<'_>) -> Bulk<'_>,
) -> Result<Json<BulkOut>, Problem> {
    if wanted.at_most == Some(0) {
        let rule = "it is 0, and the call would change nothing: write 1 or more, or leave it out";
        return Err(Problem::invalid("at_most", rule));
    }
    let which = Which::of(wanted.prefix, wanted.everything)?;
    let mut call = call(which.select(caller, Scope::Operate)?);
    let mut deed = Deed::new(what, which.prefix());
    if let Some(reason) = &wanted.reason {
        call = call.reason(reason);
        deed = deed.note(format!("reason: {reason}"));
    }
    if let Some(most) = wanted.at_most {
        call = call.at_most(most);
    }
    carry_out!(*caller, which, deed, call, wanted.dry_run)
}

/// Dead letters by kind and reason, with numbers and ids in the reasons folded. An answer has some
/// 10,000 letters at the most, and `next` to go on.
#[utoipa::path(get, path = "/v1/dead/groups", operation_id = "group_dead_letters", tag = "dead letters", params(GroupsIn),
    responses((status = 200, body = GroupsOut)))]
pub(super) async fn groups(
    caller: Caller,
    Params(wanted): Params<GroupsIn>,
) -> Result<Json<GroupsOut>, Problem> {
    let prefix = wanted.prefix.unwrap_or_default();
    let client = &caller.may(Scope::Read, &prefix)?.client;
    let selection = match prefix.as_str() {
        "" => client.everything(),
        text => client.prefix(text),
    };
    let mut call = selection.dead_groups();
    // A script begins with an empty cursor.
    if let Some(text) = wanted.cursor.filter(|text| !text.is_empty()) {
        let cursor = text.parse::<Cursor>();
        call = call.after(cursor.map_err(|error| Problem::from(error).field("cursor"))?);
    }
    let found = call.await.map_err(|error| match error.kind() {
        keyfall::ErrorKind::InvalidSetting => Problem::from(error).field("cursor"),
        _ => Problem::of_prefix(error),
    })?;
    Ok(Json(GroupsOut {
        groups: found.groups.into_iter().map(GroupOut::from).collect(),
        damaged: found.damaged,
        scanned: found.scanned,
        next: found.next.map(|cursor| cursor.to_string()),
        unseen: UnseenOut::all(&found.unseen),
    }))
}

impl From<DeadGroup> for GroupOut {
    fn from(group: DeadGroup) -> Self {
        GroupOut {
            kind: group.kind.to_string(),
            reason: group.reason,
            count: group.count,
            first: Time(group.first),
            last: Time(group.last),
            example: group.example.to_string(),
            letter: group.letter,
        }
    }
}
