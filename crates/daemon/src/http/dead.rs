//! Lists, requeues and deletes dead letters.

use axum::Json;
use keyfall::{JobKey, Requeued};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::actions::Deed;
use super::auth::{Caller, Scope};
use super::body::{Body, Key, Params};
use super::bulk::{BulkIn, BulkOut, Which, carry_out};
use super::jobs::ShowIn;
use super::problem::Problem;
use super::wire::{Job, Span, Time, check_when};

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
#[utoipa::path(post, path = "/v1/dead/requeue", operation_id = "requeue_dead_letters", tag = "dead letters", request_body = BulkIn,
    responses((status = 200, body = BulkOut)))]
pub(super) async fn requeue_many(
    caller: Caller,
    Body(call): Body<BulkIn>,
) -> Result<Json<BulkOut>, Problem> {
    let which = Which::of(call.prefix, call.everything)?;
    let selection = which.select(&caller, Scope::Operate)?;
    let deed = Deed::new("requeue", which.prefix());
    carry_out!(caller, which, deed, selection.requeue(), call.dry_run)
}

/// Deletes many dead letters for good.
#[utoipa::path(post, path = "/v1/dead/delete", operation_id = "delete_dead_letters", tag = "dead letters", request_body = BulkIn,
    responses((status = 200, body = BulkOut)))]
pub(super) async fn delete_many(
    caller: Caller,
    Body(call): Body<BulkIn>,
) -> Result<Json<BulkOut>, Problem> {
    let which = Which::of(call.prefix, call.everything)?;
    let selection = which.select(&caller, Scope::Operate)?;
    let deed = Deed::new("delete", which.prefix());
    carry_out!(
        caller,
        which,
        deed,
        selection.delete_dead_letters(),
        call.dry_run
    )
}
