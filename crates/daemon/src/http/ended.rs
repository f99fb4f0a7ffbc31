//! A job of the archive with its payload and terms, and the calls that schedule such jobs again.

use axum::Json;
use keyfall::{MaxLateness, RetryPolicy};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use utoipa::{IntoParams, ToSchema};

use super::actions::Deed;
use super::archive::EndedOut;
use super::auth::{Caller, Scope};
use super::body::{Body, Key, Params};
use super::bulk::Which;
use super::notes::FROM_THE_ARCHIVE;
use super::problem::Problem;
use super::wire::{Moment, Payloads, Span, Time, check_when, given, payload};

/// The jobs that one call looks at, unless the request says otherwise, and the most.
const AT_MOST: u64 = 1000;

/// One end of a job.
#[derive(Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct EndedIn {
    /// When the run ended, to the microsecond, as the search shows it. Defaults to the last run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Time>,
    /// The form of its payload. Defaults to `json`.
    #[serde(default)]
    #[param(inline)]
    pub payloads: Payloads,
}

/// A job that has ended, with its payload and the terms that it brought itself.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct EndedJobOut {
    pub run: EndedOut,
    /// Any JSON. Missing if the archive has no payload of it, or has bytes that are not JSON.
    #[serde(
        default,
        deserialize_with = "given",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<serde_json::Value>)]
    pub payload: Option<Box<RawValue>>,
    /// Bytes that are not JSON, in Base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload_base64: Option<String>,
    /// Its own retry policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub retry: Option<RetryPolicy>,
    /// Its own limit of attempts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// Its own timeout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Span>,
    /// Its own limit of lateness.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "1h skip")]
    pub max_lateness: Option<MaxLateness>,
}

impl EndedJobOut {
    /// Its payload, byte for byte, if it was shown [exactly](Payloads::Exact); `None` if the archive
    /// does not have it.
    ///
    /// # Errors
    /// If the answer has no payload that can be read.
    pub fn bytes(&self) -> Result<Option<Vec<u8>>, Problem> {
        if !self.run.has_payload {
            return Ok(None);
        }
        payload(self.payload.clone(), self.payload_base64.clone()).map(Some)
    }
}

/// The run whose job is scheduled again, and the new due time. The time of the end is required:
/// without it, a repeated call would take another run.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EndedRequeueIn {
    /// When the run ended, to the microsecond, as the search shows it.
    pub ended: Time,
    /// Due this long after Redis receives the call. Due now, if neither this nor `at` is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Span>,
    /// Due at this time, by Redis' clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
    /// A name of this call, 24 random hexadecimal digits: repeated with the same name within an hour,
    /// the call changes nothing more, even if the job has ended again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "5f0c1d2e3a4b596877869504")]
    pub call: Option<String>,
}

/// An ended job that is a job again.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct EndedRequeuedOut {
    #[schema(example = "app1:mail:send:42")]
    pub key: String,
    pub ended: Time,
    /// Missing if the job has begun to run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<Time>,
}

/// The ended jobs that are scheduled again: those whose last end fits.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ArchiveRequeueIn {
    /// The prefix of their keys. End it with a colon to mean one kind, module or app.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "app1:mail:send:")]
    pub prefix: Option<String>,
    /// All jobs, instead of a prefix.
    #[serde(default)]
    pub everything: bool,
    /// How they ended: `done`, `skipped`, `cancelled`, `replaced` or `buried`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "buried")]
    pub how: Option<String>,
    /// They ended at this time or later, or within this duration until now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, example = "1h")]
    pub since: Option<Moment>,
    /// They ended before this time, or longer ago than this duration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub until: Option<Moment>,
    /// Their error has all of these words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(example = "timeout")]
    pub error: Option<String>,
    /// The call looks at so many jobs, and `next` says where the next one goes on. Defaults to 1,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1, maximum = 1000)]
    pub at_most: Option<u64>,
    /// Where to go on: `next` of the call before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// A name of these calls, 24 random hexadecimal digits: a call that is repeated with the same name
    /// within an hour schedules no job twice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<String>,
    /// Changes nothing, and counts the jobs.
    #[serde(default)]
    pub dry_run: bool,
}

/// The outcome for the jobs that the call has looked at.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct ArchiveRequeueOut {
    /// The jobs whose last end fits. Not after a dry run, `done`, `skipped` and `without_payload` add
    /// up to it.
    pub matched: u64,
    /// The jobs that are scheduled again.
    pub done: u64,
    /// The jobs of whose name there is one, pending, running or as the dead letter of that end, and
    /// those that cannot be jobs, such as the plan of a series.
    pub skipped: u64,
    /// The jobs whose payload the archive does not have.
    pub without_payload: u64,
    pub dry_run: bool,
    /// Where the next call goes on; missing if there are no more jobs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A job that has ended, with payload and terms.
#[utoipa::path(get, path = "/v1/archive/{key}", operation_id = "get_ended_job", tag = "archive",
    params(EndedIn), responses(
        (status = 200, body = EndedJobOut),
        (status = 404, description = "The archive has no such run", body = Problem)))]
pub(super) async fn show(
    caller: Caller,
    Key(key): Key,
    Params(wanted): Params<EndedIn>,
) -> Result<Json<EndedJobOut>, Problem> {
    let api = caller.may_with(Scope::Read, &key)?;
    runs::find(api, &key, &wanted).await.map(Json)
}

/// Schedules a job that has ended again, with its payload, headers and terms and all attempts ahead,
/// if there is no job of its name.
#[utoipa::path(post, path = "/v1/archive/{key}/requeue", operation_id = "requeue_ended_job", tag = "archive",
    request_body = EndedRequeueIn, responses(
        (status = 200, body = EndedRequeuedOut),
        (status = 404, description = "The archive has no such run", body = Problem),
        (status = 409, description = "A job of this name is there, or the archive has no payload", body = Problem)))]
pub(super) async fn requeue(
    caller: Caller,
    Key(key): Key,
    Body(wanted): Body<EndedRequeueIn>,
) -> Result<Json<EndedRequeuedOut>, Problem> {
    check_when(wanted.after, wanted.at)?;
    let api = caller.may_with(Scope::Operate, &key)?;
    let requeued = runs::requeue(api, &caller.scheduling(), &key, &wanted).await?;
    let note = format!("from the archive: the run that ended {}", wanted.ended);
    let deed = Deed::new("requeue", key.as_str()).count(1).note(note);
    caller.did(deed).await;
    Ok(Json(requeued))
}

/// Schedules many jobs that have ended again: those whose last end fits, the newest first. A call
/// looks at a bounded number of them; repeat it with `next` as `cursor`.
#[utoipa::path(post, path = "/v1/archive/requeue", operation_id = "requeue_ended_jobs", tag = "archive",
    request_body = ArchiveRequeueIn, responses((status = 200, body = ArchiveRequeueOut),
        (status = 404, description = "The daemon has no database", body = Problem)))]
pub(super) async fn requeue_many(
    caller: Caller,
    Body(wanted): Body<ArchiveRequeueIn>,
) -> Result<Json<ArchiveRequeueOut>, Problem> {
    let at_most = wanted.at_most.unwrap_or(AT_MOST);
    if !(1..=AT_MOST).contains(&at_most) {
        let detail =
            format!("a call looks at 1 to {AT_MOST} jobs, not {at_most}: repeat it with `next`");
        return Err(Problem::invalid("at_most", detail));
    }
    let which = Which::of(wanted.prefix.clone(), wanted.everything)?;
    let api = caller.may(Scope::Operate, which.prefix())?;
    let mut out = ArchiveRequeueOut {
        dry_run: wanted.dry_run,
        ..ArchiveRequeueOut::default()
    };
    let call = runs::requeue_many(api, caller.scheduling(), &wanted, at_most, &mut out);
    let carried_out = caller.while_it_may(Scope::Operate, which.prefixes(), call);
    let carried_out = carried_out.await.unwrap_or_else(Err);
    if out.done > 0 {
        let deed = Deed::new("requeue", which.prefix()).count(out.done);
        caller.did(deed.note(FROM_THE_ARCHIVE)).await;
    }
    carried_out.map(|()| Json(out))
}

#[cfg(not(feature = "database"))]
mod runs {
    use keyfall::{Client, JobKey};

    use super::super::Api;
    use super::*;

    pub(super) async fn find(_: &Api, _: &JobKey, _: &EndedIn) -> Result<EndedJobOut, Problem> {
        Err(Problem::no_archive())
    }

    pub(super) async fn requeue(
        _: &Api,
        _: &Client,
        _: &JobKey,
        _: &EndedRequeueIn,
    ) -> Result<EndedRequeuedOut, Problem> {
        Err(Problem::no_archive())
    }

    pub(super) async fn requeue_many(
        _: &Api,
        _: Client,
        _: &ArchiveRequeueIn,
        _: u64,
        _: &mut ArchiveRequeueOut,
    ) -> Result<(), Problem> {
        Err(Problem::no_archive())
    }
}

#[cfg(feature = "database")]
mod runs {
    use std::fmt;
    use std::time::{Duration, SystemTime};

    use futures_util::{StreamExt, TryStreamExt, stream};
    use keyfall::{
        Client, JobKey, JobState, JobTerms, LaneId, NewJob, NumberedAnswer, NumberedCall,
    };
    use keyfall_database::{ArchiveQuery, ArchivedJob};
    use sha2::{Digest, Sha256};

    use super::super::Api;
    use super::super::archive::{ArchiveSearchIn, of_search, query_of};
    use super::*;

    /// The jobs that are read at once with their payloads, of up to 1 MiB each, and without them.
    const WITH_PAYLOADS: u64 = 50;
    const WITHOUT: u64 = 1000;

    /// The jobs that are scheduled at the same time.
    const AT_ONCE: usize = 16;

    /// What became of an ended job that was to be scheduled again.
    enum Fate {
        Done,
        Skipped,
        WithoutPayload,
    }

    pub(super) async fn find(
        api: &Api,
        key: &JobKey,
        wanted: &EndedIn,
    ) -> Result<EndedJobOut, Problem> {
        let run = read(api, key, wanted.ended).await?;
        let terms = terms(key, &run).unwrap_or_default();
        let shown = run.payload.as_deref().map(|it| wanted.payloads.show(it));
        let (payload, payload_base64) = shown.unwrap_or_default();
        Ok(EndedJobOut {
            payload,
            payload_base64,
            retry: terms.retry,
            max_attempts: terms.max_attempts,
            timeout: terms.timeout.map(Span),
            max_lateness: terms.max_lateness,
            run: EndedOut::from(run),
        })
    }

    pub(super) async fn requeue(
        api: &Api,
        client: &Client,
        key: &JobKey,
        wanted: &EndedRequeueIn,
    ) -> Result<EndedRequeuedOut, Problem> {
        let call = call(wanted.call.as_deref())?;
        let run = read(api, key, Some(wanted.ended)).await?;
        if let Some(letter) = run.letter
            && has_letter(client, key, letter).await?
        {
            return Err(Problem::letter_present(key.as_str(), letter));
        }
        let (ended, bytes) = (Time(run.ended), run.payload_bytes);
        let lane = lane(&call, format_args!("{ended} {key}"));
        let mut job =
            again(key, run)?.ok_or_else(|| Problem::payload_unarchived(key, ended, bytes))?;
        if let Some(Span(delay)) = wanted.after {
            job = job.after(delay);
        }
        if let Some(Time(due)) = wanted.at {
            job = job.at(due);
        }
        let answer = send(client, &lane, job).await;
        match answer.map_err(|error| Problem::of_time(error, wanted.after))? {
            NumberedAnswer::Nothing => {
                let detail = "it stays as it is, and the run stays in the archive";
                Err(Problem::job_present(key.as_str(), detail))
            }
            _ => {
                // The job is scheduled, also if this second call fails.
                let view = client.get(key).await.ok().flatten();
                let is_ahead = |state| matches!(state, JobState::Pending | JobState::Retrying);
                let pending = view.filter(|view| is_ahead(view.state()));
                Ok(EndedRequeuedOut {
                    key: key.to_string(),
                    ended,
                    due: pending.map(|view| Time(view.due())),
                })
            }
        }
    }

    pub(super) async fn requeue_many(
        api: &Api,
        client: Client,
        wanted: &ArchiveRequeueIn,
        at_most: u64,
        out: &mut ArchiveRequeueOut,
    ) -> Result<(), Problem> {
        let database = api.database.as_ref().ok_or_else(Problem::no_archive)?;
        let call = call(wanted.call.as_deref())?;
        let (begun, cursor) = place(wanted.cursor.as_deref())?;
        let mut search = ArchiveSearchIn {
            prefix: wanted.prefix.clone(),
            how: wanted.how.clone(),
            since: wanted.since,
            until: wanted.until,
            error: wanted.error.clone(),
            limit: None,
            cursor,
        };
        loop {
            let most = if wanted.dry_run {
                WITHOUT
            } else {
                WITH_PAYLOADS
            };
            let most = most.min(at_most - out.matched);
            let mut query = query_of(&search)?.last_of_key(begun);
            query = query.limit(usize::try_from(most).unwrap_or(usize::MAX));
            if !wanted.dry_run {
                query = query.with_payloads();
            }
            let page = database.archived(&query).await.map_err(of_search)?;
            out.matched += page.jobs.len() as u64;
            if wanted.dry_run {
                let lacking = page.jobs.iter().filter(|run| !run.has_payload);
                out.without_payload += lacking.count() as u64;
            } else {
                let runs = stream::iter(page.jobs.into_iter().map(Ok));
                let mut fates = runs
                    .map_ok(|run| requeue_one(&client, &call, run))
                    .try_buffer_unordered(AT_ONCE);
                while let Some(fate) = fates.next().await {
                    match fate? {
                        Fate::Done => out.done += 1,
                        Fate::Skipped => out.skipped += 1,
                        Fate::WithoutPayload => out.without_payload += 1,
                    }
                }
            }
            let Some(next) = page.next else {
                return Ok(());
            };
            if out.matched >= at_most {
                out.next = Some(format!("{}/{next}", micros(begun)));
                return Ok(());
            }
            search.cursor = Some(next);
        }
    }

    async fn requeue_one(
        client: &Client,
        call: &LaneId,
        run: ArchivedJob,
    ) -> Result<Fate, Problem> {
        let Ok(key) = JobKey::parse(&run.key) else {
            return Ok(Fate::Skipped);
        };
        if let Some(letter) = run.letter
            && has_letter(client, &key, letter).await?
        {
            return Ok(Fate::Skipped);
        }
        let lane = lane(call, &run.key);
        let job = match again(&key, run) {
            Ok(Some(job)) => job,
            Ok(None) => return Ok(Fate::WithoutPayload),
            Err(_) => return Ok(Fate::Skipped),
        };
        match send(client, &lane, job).await {
            Ok(NumberedAnswer::Nothing) => Ok(Fate::Skipped),
            Ok(_) => Ok(Fate::Done),
            Err(error) if error.is_refusal() => Ok(Fate::Skipped),
            Err(error) => Err(error.into()),
        }
    }

    /// The run of this name that ended at this time, or the last one.
    async fn read(api: &Api, key: &JobKey, ended: Option<Time>) -> Result<ArchivedJob, Problem> {
        let database = api.database.as_ref().ok_or_else(Problem::no_archive)?;
        let mut query = ArchiveQuery::new()
            .key(key.clone())
            .limit(1)
            .with_payloads();
        if let Some(Time(time)) = ended {
            query = query
                .ended_from(time)
                .ended_until(time + Duration::from_micros(1));
        }
        let page = database.archived(&query).await.map_err(of_search)?;
        let run = page.jobs.into_iter().next();
        run.ok_or_else(|| Problem::run_absent(key.as_str(), ended))
    }

    /// The terms of a run. A row that another program has written may have headers alone.
    fn terms(key: &JobKey, run: &ArchivedJob) -> keyfall::Result<JobTerms> {
        match &run.header {
            Some(header) => JobTerms::read(key, &header.to_string()),
            None => {
                let mut terms = JobTerms::default();
                for (name, value) in &run.headers {
                    terms.headers.insert(name, value);
                }
                Ok(terms)
            }
        }
    }

    /// The job that takes the place of an ended one; `None` if the archive has no payload of it.
    fn again(key: &JobKey, run: ArchivedJob) -> keyfall::Result<Option<NewJob>> {
        let terms = terms(key, &run)?;
        let job = |payload| NewJob::from_bytes(key, payload).terms(terms).if_absent();
        Ok(run.payload.map(job))
    }

    async fn send(client: &Client, lane: &LaneId, job: NewJob) -> keyfall::Result<NumberedAnswer> {
        let calls = vec![NumberedCall::schedule(job)];
        let mut answers = client.send_numbered(lane, 1, calls).await;
        answers.pop().expect("each call has an answer")
    }

    /// Whether the dead letter of this number is still there.
    async fn has_letter(client: &Client, key: &JobKey, letter: u64) -> keyfall::Result<bool> {
        let letters = client.dead_letters(key).await?;
        Ok(letters.iter().any(|it| it.letter() == Some(letter)))
    }

    /// The name of a call, a new one by default.
    fn call(name: Option<&str>) -> Result<LaneId, Problem> {
        let Some(name) = name else {
            return Ok(LaneId::new());
        };
        LaneId::parse(name).map_err(|_| {
            let detail =
                format!("{name:?} is no name of a call: write 24 hexadecimal digits, 0-9 and a-f");
            Problem::invalid("call", detail)
        })
    }

    /// The lane of a requeue: one for each call and `job`. The job is a run, by its end and its key, where the
    /// caller names the run. Otherwise it is the key alone: a repeated call finds the last run of the key,
    /// which the first call may have scheduled.
    fn lane(call: &LaneId, job: impl fmt::Display) -> LaneId {
        let hash = Sha256::digest(format!("{call} {job}"));
        let digits: String = hash[..12]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        LaneId::parse(&digits).expect("24 hexadecimal digits")
    }

    /// The time at which the first call of several began, and the place in the archive.
    fn place(cursor: Option<&str>) -> Result<(SystemTime, Option<String>), Problem> {
        let Some(text) = cursor.filter(|text| !text.is_empty()) else {
            return Ok((SystemTime::now(), None));
        };
        let parts = text.split_once('/');
        let read = parts.and_then(|(begun, rest)| Some((begun.parse().ok()?, rest)));
        let (begun, rest): (u64, &str) = read.ok_or_else(|| {
            let detail =
                format!("the cursor {text:?} is not one that a call has returned; leave it out");
            Problem::invalid("cursor", detail)
        })?;
        let begun = SystemTime::UNIX_EPOCH.checked_add(Duration::from_micros(begun));
        Ok((
            begun.unwrap_or(SystemTime::UNIX_EPOCH),
            Some(rest.to_owned()),
        ))
    }

    fn micros(time: SystemTime) -> u128 {
        let since = time.duration_since(SystemTime::UNIX_EPOCH);
        since.unwrap_or_default().as_micros()
    }
}
