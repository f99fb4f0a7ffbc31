//! Push, pop, finish, delete and get.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use axum::Extension;
use axum::extract::{FromRequest, Request, State};
use axum::response::{IntoResponse, Response};
use keyfall::target::Pulled;
use keyfall::{Headers, JobKey, Kind};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::Classic;
use super::answer::{Answer, Code};
use super::names::Names;
use super::queue::{Ended, Pushed, TTR};
use crate::http::{self, LONGEST_WAIT, Sent, handed_over, received};

/// The longest delay and ttr that such clients know, in seconds.
const LONGEST_DELAY: i64 = i32::MAX as i64;
const LONGEST_TTR: i64 = 24 * 3600;

/// The most topics that one consumer can wait for.
const MOST_TOPICS: usize = 100;

type Shared = State<Arc<Classic>>;

/// A body in JSON. Unknown fields are ignored.
pub(super) struct Body<T>(T);

impl<T: DeserializeOwned> FromRequest<Arc<Classic>> for Body<T> {
    type Rejection = Answer;

    async fn from_request(request: Request, classic: &Arc<Classic>) -> Result<Self, Answer> {
        Ok(Body(received(request, &classic.settings).await?))
    }
}

#[derive(Deserialize)]
#[serde(expecting = "a JSON object")]
pub(super) struct PushIn {
    topic: Option<String>,
    id: Option<String>,
    /// In seconds.
    delay: Option<i64>,
    /// In seconds.
    ttr: Option<i64>,
    body: Option<String>,
}

#[derive(Deserialize)]
#[serde(expecting = "a JSON object")]
pub(super) struct PopIn {
    topic: Option<String>,
}

#[derive(Deserialize)]
#[serde(expecting = "a JSON object")]
pub(super) struct IdIn {
    id: Option<String>,
}

/// A job that a consumer has got.
#[derive(Serialize)]
struct PoppedOut {
    id: String,
    body: String,
}

/// The view of a job.
#[derive(Serialize)]
pub(super) struct JobOut {
    topic: String,
    id: String,
    /// When it is due, in seconds since 1970.
    delay: u64,
    ttr: u64,
    body: String,
}

/// Schedules a job.
pub(super) async fn push(
    State(classic): Shared,
    Body(pushed): Body<PushIn>,
) -> Result<Answer, Answer> {
    let kind = kind(&classic, &given("topic", pushed.topic)?)?;
    let key = key(&kind, &given("id", pushed.id)?)?;
    let delay = match pushed.delay {
        None => {
            return Err(Answer::invalid(
                "delay",
                "it is missing: give seconds, from 0",
            ));
        }
        Some(delay) => seconds("delay", delay, LONGEST_DELAY)?,
    };
    let ttr = seconds("ttr", pushed.ttr.unwrap_or(0), LONGEST_TTR)?;
    let ttr = Some(ttr).filter(|ttr| !ttr.is_zero());
    let body = pushed.body.unwrap_or_default();
    Ok(match classic.queue.push(&key, delay, ttr, body).await? {
        Pushed::Stored => Answer::done("pushed"),
        Pushed::Exists(topic) => {
            let message = format!("id: it exists, in the topic {topic:?}; delete it first");
            Answer::new(Code::Exists, message)
        }
        Pushed::Crowded => {
            let message = "id: other clients push it again and again at this moment; push it again";
            Answer::new(Code::Unavailable, message)
        }
    })
}

/// Waits for a job of one of the topics.
pub(super) async fn pop(
    State(classic): Shared,
    Extension(sent): Extension<Sent>,
    Body(PopIn { topic }): Body<PopIn>,
) -> Result<Response, Answer> {
    let topics = given("topic", topic)?;
    let topics = topics.split(',').map(str::trim);
    let topics: Vec<&str> = topics.filter(|topic| !topic.is_empty()).collect();
    if !(1..=MOST_TOPICS).contains(&topics.len()) {
        let fault = format!("there are {}; name from 1 to {MOST_TOPICS}", topics.len());
        return Err(Answer::invalid("topic", &fault));
    }
    let kinds = topics.into_iter().map(|topic| {
        let kind = kind(&classic, topic)?;
        // With the colon, it is not the beginning of another topic.
        Ok(format!("{kind}:"))
    });
    let kinds = kinds.collect::<Result<Vec<_>, Answer>>()?;
    let pulled = tokio::select! {
        pulled = classic.pull.pull(&kinds, 1, LONGEST_WAIT) => pulled?,
        () = classic.stopping.cancelled() => Vec::new(),
    };
    let Some(job) = pulled.first().map(Pulled::job) else {
        return Ok(Answer::<PoppedOut>::with(None, "nothing came").into_response());
    };
    let out = PoppedOut {
        id: Names::id(job.key()),
        body: text(job.payload()),
    };
    let out = Answer::with(Some(out), "popped");
    let out = serde_json::to_vec(&out).expect("texts and numbers are JSON");
    let accept = move |one: Pulled| {
        let ttr = ttr_of(one.job().headers(), classic.ttr);
        if let Some((_, lease)) = one.accept_for(ttr) {
            classic.queue.handed_out(lease, ttr);
        }
    };
    let mut answer = handed_over(out, pulled, sent, || true, accept);
    answer.extensions_mut().insert(http::Code(0));
    Ok(answer)
}

/// Ends a delivery: the job is done.
pub(super) async fn finish(
    State(classic): Shared,
    Body(IdIn { id }): Body<IdIn>,
) -> Result<Answer, Answer> {
    let id = id_of(&classic, id)?;
    Ok(match classic.queue.finish(&id).await? {
        Ended::Finished => Answer::done("finished"),
        Ended::Absent => Answer::done("there is no job of this id: it has ended before"),
        Ended::Waits => {
            let message = "id: no consumer has this job: it waits to be delivered; pop it first, \
                           or delete it";
            Answer::new(Code::Waits, message)
        }
    })
}

/// Cancels a job.
pub(super) async fn delete(
    State(classic): Shared,
    Body(IdIn { id }): Body<IdIn>,
) -> Result<Answer, Answer> {
    let id = id_of(&classic, id)?;
    Ok(if classic.queue.delete(&id).await? {
        Answer::done("deleted")
    } else {
        Answer::done("there is no job of this id")
    })
}

/// Shows a job.
pub(super) async fn get(
    State(classic): Shared,
    Body(IdIn { id }): Body<IdIn>,
) -> Result<Answer<JobOut>, Answer> {
    let id = id_of(&classic, id)?;
    let Some(job) = classic.queue.get(&id).await? else {
        return Ok(Answer::with(None, "there is no job of this id"));
    };
    let due = job.due().duration_since(UNIX_EPOCH).unwrap_or_default();
    let out = JobOut {
        topic: Names::topic(job.key()),
        id: Names::id(job.key()),
        delay: due.as_secs(),
        ttr: ttr_of(job.headers(), classic.ttr).as_secs(),
        body: text(job.payload()),
    };
    Ok(Answer::with(Some(out), "found"))
}

/// A required text. White space around it does not belong to a name.
fn given(field: &str, text: Option<String>) -> Result<String, Answer> {
    let text = text.as_deref().map(str::trim).unwrap_or_default();
    if text.is_empty() {
        return Err(Answer::invalid(field, "it is missing"));
    }
    Ok(text.to_owned())
}

fn kind(classic: &Classic, topic: &str) -> Result<Kind, Answer> {
    let kind = classic.queue.kind(topic);
    kind.map_err(|error| Answer::invalid("topic", &error.to_string()))
}

fn key(kind: &Kind, id: &str) -> Result<JobKey, Answer> {
    Names::key(kind, id).map_err(|error| Answer::invalid("id", &error.to_string()))
}

/// An id in the form that it has in the keys of all topics.
fn id_of(classic: &Classic, id: Option<String>) -> Result<String, Answer> {
    let id = given("id", id)?;
    // The id has the same form in each topic.
    let key = key(&kind(classic, "any")?, &id)?;
    Ok(key.id().to_owned())
}

fn seconds(field: &str, seconds: i64, longest: i64) -> Result<Duration, Answer> {
    let fault = || format!("{seconds} is out of range: give seconds, from 0 to {longest}");
    match u64::try_from(seconds) {
        Ok(number) if seconds <= longest => Ok(Duration::from_secs(number)),
        _ => Err(Answer::invalid(field, &fault())),
    }
}

/// The lease of a consumer. Jobs that were not pushed here can have any header: 0 or no number
/// counts as missing, and too large a number as the largest.
fn ttr_of(headers: &Headers, default: Duration) -> Duration {
    let said = headers.get(TTR).and_then(|seconds| seconds.parse().ok());
    match said {
        None | Some(0) => default,
        Some(seconds) => Duration::from_secs(seconds.min(LONGEST_TTR.unsigned_abs())),
    }
}

/// Only another interface can have stored a payload that is not text.
fn text(payload: &[u8]) -> String {
    String::from_utf8_lossy(payload).into_owned()
}
