//! Many calls in one request, answered one by one.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::future::join_all;
use futures_util::{FutureExt, stream};
use keyfall::JobKey;
use serde::de::{DeserializeOwned, value::MapDeserializer};
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use utoipa::ToSchema;

use super::Api;
use super::actions::Deed;
use super::auth::Caller;
use super::body::{read, read_from};
use super::dead::{LetterIn, delete_one, requeue_one};
use super::jobs::{cancel_one, fire_one, postpone_one, schedule_one, update_one};
use super::lines::{Line, Lines};
use super::problem::Problem;
use super::rate::Who;
use super::restore::{RestoredAs, restore_one};
use crate::traces::Place;

/// A line: the call and its job, and beside them the fields of the call's body.
#[derive(Debug, Deserialize, ToSchema)]
pub(super) struct BatchIn {
    call: Verb,
    #[schema(example = "app1:trans:notice:42")]
    key: String,
}

/// A call on one job; `delete` deletes a dead letter.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Verb {
    Schedule,
    Cancel,
    Postpone,
    Fire,
    Payload,
    Requeue,
    Delete,
    Restore,
}

/// A line that can be read.
struct BatchLine {
    verb: Verb,
    key: JobKey,
    /// The whole line.
    text: Bytes,
}

/// The answer to one line.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct BatchOut {
    /// The number of the line, from 1. Empty lines count and are not answered.
    pub line: u64,
    /// The status that the call alone would have had.
    pub status: u16,
    /// The body that the call alone would have been answered with.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub result: Option<Box<RawValue>>,
    /// The error of the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<Problem>,
}

/// Many calls, one a line, in JSON: `call` is `schedule`, `cancel`, `postpone`, `fire`, `payload`,
/// `requeue`, `delete` (a dead letter) or `restore`, `key` names the job, and beside them stand the
/// fields of the call's body.
///
/// The answers come line by line and in order, while further lines are read. Lines about different
/// jobs are carried out at the same time, lines about the same job one after the other. A faulty
/// line does not affect the others. Each line counts as a request: under a rate limit, a batch is
/// read no faster. After a token was revoked, each further line is refused.
#[utoipa::path(post, path = "/v1/batch", tag = "batch",
    request_body(content = Option<BatchIn>, content_type = "application/x-ndjson",
        description = "One of these objects a line", example = json!({"call": "schedule", "key": "app1:trans:notice:42", "after": "15m"})),
    responses((status = 200, description = "One of these objects for each line",
        body = BatchOut, content_type = "application/x-ndjson")))]
pub(super) async fn batch(
    State(api): State<Arc<Api>>,
    caller: Caller,
    request: Request,
) -> Response {
    let settings = &api.settings;
    let lines = Lines::new(
        request.into_body(),
        settings.body_limit,
        settings.body_timeout,
    );
    // The lines are answered after this function has returned.
    let place = Place::current();
    let open = OpenBatch {
        lines,
        waiting: VecDeque::new(),
        is_first: true,
        last: 0,
        deeds: Deeds::default(),
    };
    let answers = stream::unfold(Some(open), move |open| {
        let (api, caller, place) = (api.clone(), caller.clone(), place.clone());
        async move {
            let mut open = open?;
            let some = tokio::select! {
                biased;
                () = api.stopping.cancelled() => {
                    open.deeds.log(&caller).await;
                    let answer = BatchOut::new(open.left()?, Err(Problem::stopping()));
                    return Some((written(&[answer]), None));
                }
                some = open.next(&api, caller.who()) => some,
            };
            let Some(some) = some else {
                open.deeds.log(&caller).await;
                return None;
            };
            open.last = some.last().map_or(open.last, |line| line.number);
            let answers = place.hold(carry_out(&caller, some, &open.deeds)).await;
            Some((written(&answers), Some(open)))
        }
    });
    let kind = (header::CONTENT_TYPE, "application/x-ndjson");
    ([kind], Body::from_stream(answers)).into_response()
}

/// A batch that is under way.
struct OpenBatch {
    lines: Lines,
    /// Lines whose turn has not come.
    waiting: VecDeque<Line>,
    /// The request counts as the first of them.
    is_first: bool,
    /// The number of the last line that was answered.
    last: u64,
    deeds: Deeds,
}

/// The actions of operators in a batch, by their name: on which jobs, and how many. They are logged
/// once, at its end; a client that goes away before leaves them unlogged.
#[derive(Default)]
struct Deeds(Mutex<BTreeMap<&'static str, (String, u64)>>);

impl Deeds {
    /// Notes an action on one job.
    fn note(&self, what: &'static str, key: &JobKey) {
        let mut all = self.0.lock().expect("no panic while held");
        let (on, count) = all.entry(what).or_insert_with(|| (key.to_string(), 0));
        *count += 1;
        // The beginning that all keys share.
        let same = on.char_indices().zip(key.as_str().chars());
        let differ = same.into_iter().find(|((_, one), other)| one != other);
        let end = differ.map_or(on.len().min(key.as_str().len()), |((at, _), _)| at);
        on.truncate(end);
    }

    async fn log(&self, caller: &Caller) {
        let all = std::mem::take(&mut *self.0.lock().expect("no panic while held"));
        for (what, (on, count)) in all {
            caller
                .did(
                    Deed::new(what, &on)
                        .count(count)
                        .note(super::notes::IN_A_BATCH),
                )
                .await;
        }
    }
}

impl OpenBatch {
    /// The lines whose turn has come, at least one: all that have arrived, or as many as the rate
    /// allows. `None` at the end. Cancel safe: a dropped call has lost no line.
    async fn next(&mut self, api: &Api, who: &Who) -> Option<Vec<Line>> {
        if self.waiting.is_empty() {
            self.waiting.extend(self.lines.next().await?);
        }
        let turns = match &api.rate {
            None => self.waiting.len(),
            Some(rate) => {
                if !std::mem::take(&mut self.is_first) {
                    rate.turn(who).await;
                }
                1 + rate.some(who, self.waiting.len() - 1)
            }
        };
        Some(self.waiting.drain(..turns).collect())
    }

    /// The number of the first line that is not answered yet; `None` if all have been answered.
    fn left(&mut self) -> Option<u64> {
        if self.waiting.is_empty()
            && let Some(arrived) = self.lines.next().now_or_never()
        {
            self.waiting.extend(arrived?);
        }
        // While the body goes on, the next line can still come.
        let next = self.waiting.front().map(|line| line.number);
        Some(next.unwrap_or(self.last + 1))
    }
}

fn written(answers: &[BatchOut]) -> Result<Bytes, Infallible> {
    let mut text = Vec::new();
    for answer in answers {
        serde_json::to_writer(&mut text, answer).expect("texts and numbers are JSON");
        text.push(b'\n');
    }
    Ok(text.into())
}

/// Carries out lines at the same time, so that they travel together; a line about the job of an
/// earlier line waits for that line.
async fn carry_out(caller: &Caller, lines: Vec<Line>, deeds: &Deeds) -> Vec<BatchOut> {
    let mut answers = Vec::with_capacity(lines.len());
    let (mut names, mut calls) = (HashSet::new(), Vec::new());
    for line in lines {
        let call = line.text.and_then(BatchLine::read);
        if let Ok(call) = &call
            && !names.insert(call.key.clone())
        {
            answers.extend(join_all(std::mem::take(&mut calls)).await);
            names = HashSet::from([call.key.clone()]);
        }
        calls.push(async move {
            let answered = match call {
                Ok(call) => call.carry_out(caller, deeds).await,
                Err(problem) => Err(problem),
            };
            BatchOut::new(line.number, answered)
        });
    }
    answers.extend(join_all(calls).await);
    answers
}

type Answered = (StatusCode, Option<Box<RawValue>>);

impl BatchLine {
    fn read(text: Bytes) -> Result<Self, Problem> {
        let head: BatchIn = read(&text)?;
        Ok(BatchLine {
            verb: head.call,
            key: JobKey::parse(&head.key)?,
            text,
        })
    }

    /// The fields beside `call` and `key`.
    fn rest<T: DeserializeOwned>(&self) -> Result<T, Problem> {
        let mut fields: BTreeMap<String, &RawValue> = serde_json::from_slice(&self.text)
            .map_err(|error| Problem::invalid("body", error.to_string()))?;
        fields.remove("call");
        fields.remove("key");
        let fields = fields.iter().map(|(name, value)| (name.as_str(), *value));
        read_from(MapDeserializer::new(fields))
    }

    async fn carry_out(self, caller: &Caller, deeds: &Deeds) -> Result<Answered, Problem> {
        /// The fields of a call that needs only its key.
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Nothing {}
        let key = &self.key;
        match self.verb {
            Verb::Schedule => {
                let (status, out) = schedule_one(caller, key, self.rest()?).await?;
                Ok((status, raw(&out)))
            }
            Verb::Cancel => {
                let out = cancel_one(caller, key, self.rest()?).await?;
                Ok((StatusCode::OK, raw(&out)))
            }
            Verb::Postpone => {
                let out = postpone_one(caller, key, self.rest()?).await?;
                Ok((StatusCode::OK, raw(&out)))
            }
            Verb::Fire => {
                let Nothing {} = self.rest()?;
                Ok((StatusCode::OK, raw(&fire_one(caller, key).await?)))
            }
            Verb::Payload => {
                let (status, out) = update_one(caller, key, self.rest()?).await?;
                Ok((status, out.as_ref().and_then(raw)))
            }
            Verb::Requeue => {
                let out = requeue_one(caller, key, self.rest()?).await?;
                deeds.note("requeue", key);
                Ok((StatusCode::OK, raw(&out)))
            }
            Verb::Restore => {
                let out = restore_one(caller, key, self.rest()?).await?;
                if !matches!(out.restored, RestoredAs::Present | RestoredAs::Running) {
                    deeds.note("restore", key);
                }
                Ok((StatusCode::OK, raw(&out)))
            }
            Verb::Delete => {
                let LetterIn { letter } = self.rest()?;
                let out = delete_one(caller, key, letter).await?;
                deeds.note("delete", key);
                Ok((StatusCode::OK, raw(&out)))
            }
        }
    }
}

fn raw(out: &impl Serialize) -> Option<Box<RawValue>> {
    Some(to_raw_value(out).expect("texts and numbers are JSON"))
}

impl BatchOut {
    fn new(line: u64, answered: Result<Answered, Problem>) -> Self {
        let (status, result, problem) = match answered {
            Ok((status, result)) => (status, result, None),
            Err(problem) => (problem.status(), None, Some(problem)),
        };
        BatchOut {
            line,
            status: status.as_u16(),
            result,
            problem,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::StreamExt;

    use super::*;

    fn open(body: Body) -> OpenBatch {
        OpenBatch {
            lines: Lines::new(body, 100, Duration::from_secs(10)),
            waiting: VecDeque::new(),
            is_first: true,
            last: 0,
            deeds: Deeds::default(),
        }
    }

    /// The number of the line that a stop answers, after this many lines were answered.
    async fn left_after(answered: usize, body: Body) -> Option<u64> {
        let mut open = open(body);
        if answered > 0 {
            open.waiting.extend(open.lines.next().await.unwrap());
            for line in open.waiting.drain(..answered) {
                open.last = line.number;
            }
        }
        open.left()
    }

    #[tokio::test]
    async fn a_stop_answers_no_line_that_does_not_exist() {
        let whole = || Body::from("one\n\ntwo\n");
        assert_eq!(left_after(0, whole()).await, Some(1));
        assert_eq!(left_after(1, whole()).await, Some(3), "the empty line");
        assert_eq!(left_after(2, whole()).await, None);
        assert_eq!(left_after(0, Body::empty()).await, None);
        let parts = stream::iter([Ok::<_, std::io::Error>("one\n")]);
        let unfinished = Body::from_stream(parts.chain(stream::pending()));
        assert_eq!(left_after(1, unfinished).await, Some(2));
    }
}
