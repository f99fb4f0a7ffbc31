//! Restoring jobs and dead letters from a backup, with their story.

use std::borrow::Cow;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde::Deserialize;

use crate::client::producing::new_job::{at, check_payload};
use crate::client::{Client, JobState, JobView, out_of_place};
use crate::error::{Error, ErrorKind, Result};
use crate::headers::Headers;
use crate::key::{IntoJobKey, JobKey};
use crate::lateness::{Late, MaxLateness};
use crate::record::{Header, Record, Step, Terms};
use crate::recurrence::{Occurrence, Plan, Recurring, Shift};
use crate::retry::RetryPolicy;
use crate::store::{BackupItem, KeptAs, When, Word};

/// The number of steps that a record keeps; the same as in `lua/lib/record.lua`.
const STEPS: usize = 8;

/// A job or dead letter from a backup, for [`Client::restore`]: made from a [`JobView`], or part by
/// part. Invalid values are reported by `restore`.
///
/// ```
/// use keyfall::KeptJob;
/// use std::time::{Duration, SystemTime, UNIX_EPOCH};
///
/// let due = SystemTime::now() + Duration::from_secs(900);
/// let job = KeptJob::pending("app1:trans:notice:42", due, "{}").attempts(2).error("503");
/// # drop(job);
/// ```
#[must_use = "hand it to `restore`"]
pub struct KeptJob {
    key: Result<JobKey>,
    what: KeptAs,
    at: SystemTime,
    payload: Bytes,
    attempts: u32,
    error: Option<String>,
    accepted: Option<SystemTime>,
    steps: Vec<(String, SystemTime)>,
    headers: Headers,
    retry: Option<RetryPolicy>,
    timeout: Option<Duration>,
    max_lateness: Option<MaxLateness>,
    max_attempts: Option<u32>,
    /// The occurrence of a recurring job.
    recurring: Option<Recurring>,
    /// The plan of a series.
    plan: Option<Plan>,
    shift: Option<Box<Shift>>,
}

/// The answer of [`Client::restore`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Restored {
    /// The job is pending again, due at this time, which may be long past.
    Pending(SystemTime),
    /// The job is pending again, due at this time, and has replaced a pending one.
    Replaced(SystemTime),
    /// The dead letter is back, with this new number.
    Dead(u64),
    /// Nothing was done: a job with this key is pending, or a dead letter of it died at the same
    /// time.
    Present,
    /// Nothing was done: a job with this key is running.
    Running,
}

impl KeptJob {
    /// A job that waits for its due time, which may be past. `payload` is stored unchanged.
    pub fn pending(key: impl IntoJobKey, due: SystemTime, payload: impl Into<Bytes>) -> Self {
        let what = KeptAs::Pending { replace: false };
        KeptJob::new(key, what, due, payload.into())
    }

    /// A dead letter with the time of its death. `payload` is stored unchanged.
    pub fn dead(key: impl IntoJobKey, died: SystemTime, payload: impl Into<Bytes>) -> Self {
        KeptJob::new(key, KeptAs::Dead, died, payload.into())
    }

    fn new(key: impl IntoJobKey, what: KeptAs, at: SystemTime, payload: Bytes) -> Self {
        KeptJob {
            key: key.into_job_key(),
            what,
            at,
            payload,
            attempts: 0,
            error: None,
            accepted: None,
            steps: Vec::new(),
            headers: Headers::new(),
            retry: None,
            timeout: None,
            max_lateness: None,
            max_attempts: None,
            recurring: None,
            plan: None,
            shift: None,
        }
    }

    /// The number of attempts that have ended. Defaults to 0.
    pub fn attempts(mut self, ended: u32) -> Self {
        self.attempts = ended;
        self
    }

    /// The error of the last failed attempt, or the reason of the dead letter. Defaults to none.
    pub fn error(mut self, error: impl Into<String>) -> Self {
        self.error = Some(error.into());
        self
    }

    /// The time at which the job was first scheduled. Defaults to the time of the restore.
    pub fn first_scheduled_at(mut self, accepted: SystemTime) -> Self {
        self.accepted = Some(accepted);
        self
    }

    /// Adds a step to the story, the oldest first. `what` is a word in lower case, such as
    /// `failed`, of up to 32 letters and `_`. The last eight steps are kept; without
    /// [`first_scheduled_at`](Self::first_scheduled_at), none.
    pub fn step(mut self, what: impl Into<String>, at: SystemTime) -> Self {
        self.steps.push((what.into(), at));
        self
    }

    /// Adds a header: a text that travels beside the payload.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// The retry policy of the job. Defaults to the policy of its route.
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.retry = Some(policy);
        self
    }

    /// The limit of attempts of the job, including the first run. Defaults to the limit of its
    /// policy.
    pub fn max_attempts(mut self, limit: u32) -> Self {
        self.max_attempts = Some(limit);
        self
    }

    /// The timeout of a run of the job. Defaults to the timeout of its route.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }

    /// How late a run of the job may start, and what becomes of it if it could start only later.
    /// Defaults to the limit of its route.
    pub fn max_lateness(mut self, limit: Duration, then: Late) -> Self {
        self.max_lateness = Some(MaxLateness { limit, then });
        self
    }

    /// The occurrence of a recurring job, whose rule goes on after it. Defaults to none.
    pub fn occurrence(mut self, occurrence: Occurrence) -> Self {
        self.recurring = Some(occurrence.into());
        self
    }

    /// The plan of a series, as [`JobView::series_plan`] has it. Defaults to none.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRule`] if it cannot be read.
    pub fn series_plan(mut self, plan: &serde_json::Value) -> Result<Self> {
        let read = Plan::deserialize(plan);
        self.plan = Some(read.map_err(|error| {
            let message = format!("it is no plan of a series: {error}");
            Error::new(ErrorKind::InvalidRule, message)
        })?);
        Ok(self)
    }

    /// Replaces a pending job with this key, instead of leaving it. For a dead letter, this has no
    /// effect.
    pub fn replace(mut self) -> Self {
        if let KeptAs::Pending { replace } = &mut self.what {
            *replace = true;
        }
        self
    }

    /// The item that is sent to the ledger.
    ///
    /// # Errors
    /// For the first value that is not valid.
    fn into_kept(self, payload_limit: usize) -> Result<BackupItem> {
        let key = self.key?;
        check_payload(&key, &self.payload, payload_limit)?;
        self.headers.check(&key)?;
        let terms = Terms::new(&key, self.retry, self.timeout, self.max_attempts)?;
        let terms = terms.max_lateness(&key, self.max_lateness)?;
        let at = match self.recurring.as_ref().filter(|it| it.is_paused()) {
            // Its due time is beyond the limit.
            Some(paused) if self.at >= paused.due().to_system() => paused.due(),
            _ => match at(self.at)? {
                When::At(at) => at,
                _ => unreachable!("a time is a time"),
            },
        };
        let story = story(&key, self.accepted, &self.steps)?;
        let header = Header::told(self.headers, terms, self.attempts, self.error);
        let mut header = match self.plan {
            Some(plan) => header.with_plan(Some(plan)),
            None => header.with_recur(self.recurring),
        };
        header.shift = self.shift;
        if let Some(since) = self
            .accepted
            .and_then(|it| it.duration_since(UNIX_EPOCH).ok())
        {
            header.us = since.subsec_micros() % 1000;
        }
        let header = header.to_line();
        Ok(BackupItem {
            what: self.what,
            at,
            header: Cow::Owned(header.into_owned()),
            story,
            payload: self.payload,
            key,
        })
    }
}

/// The story as the second line of a record.
fn story(
    key: &JobKey,
    accepted: Option<SystemTime>,
    steps: &[(String, SystemTime)],
) -> Result<String> {
    let Some(accepted) = accepted else {
        return Ok(String::new());
    };
    let since = |time: SystemTime| {
        time.duration_since(UNIX_EPOCH).map_err(|_| {
            let message = format!("{key}: one of its times is before 1970");
            Error::new(ErrorKind::InvalidTime, message)
        })
    };
    // Rounded down: the header has the microseconds.
    let mut line = since(accepted)?.as_millis().to_string();
    for (what, at) in &steps[steps.len().saturating_sub(STEPS)..] {
        let is_word = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
        if what.is_empty() || what.len() > 32 || !what.bytes().all(is_word) {
            return Err(Error::new(
                ErrorKind::InvalidSetting,
                format!(
                    "{key}: {what:?} is not a step: a step is a word in lower case, such as \
                         `failed`"
                ),
            ));
        }
        line += &format!(" {what}@{}", since(*at)?.as_millis());
    }
    Ok(line)
}

impl KeptJob {
    /// A pending job with this record.
    pub(super) fn of_record(key: JobKey, due: SystemTime, record: Record) -> Self {
        let accepted = record.first_scheduled_at();
        let mut job = KeptJob::pending(key, due, record.payload);
        job.accepted = Some(accepted);
        job.steps = record
            .steps
            .into_iter()
            .map(|step| (step.what, step.at))
            .collect();
        let header = record.header;
        job.recurring = header.recur().cloned();
        job.plan = header.plan().cloned();
        job.attempts = header.attempts;
        job.error = header.error;
        job.headers = header.headers;
        job.timeout = header.terms.timeout();
        job.retry = header.terms.retry;
        job.max_attempts = header.terms.max_attempts;
        job.max_lateness = header.terms.max_lateness;
        job.shift = header.shift;
        job
    }
}

impl From<&JobView> for KeptJob {
    /// A copy of the job. A running job is taken as if its run had not begun.
    fn from(view: &JobView) -> Self {
        let is_dead = view.state() == JobState::Dead;
        let mut job = if is_dead {
            KeptJob::dead(view.key(), view.due(), view.payload().clone())
        } else {
            KeptJob::pending(view.key(), view.due(), view.payload().clone())
        };
        let runs = matches!(view.state(), JobState::Running | JobState::Lapsed);
        job.attempts = view.attempts() - u32::from(runs).min(view.attempts());
        job.error = view.last_error().map(Into::into);
        job.accepted = Some(view.first_scheduled_at());
        let step = |step: &Step| (step.what.clone(), step.at);
        job.steps = view.steps().iter().map(step).collect();
        job.headers = view.headers().clone();
        job.retry = view.retry().cloned();
        job.timeout = view.timeout();
        job.max_lateness = view.max_lateness();
        job.max_attempts = view.max_attempts();
        job.recurring = view.record.header.recur().cloned();
        job.plan = view.record.header.plan().cloned();
        job.shift = view.record.header.shift.clone();
        job
    }
}

impl Client {
    /// Restores a job or a dead letter from a backup, with its attempts, its last error and its
    /// story. An existing job stays as it is, so the call may be repeated.
    ///
    /// # Errors
    /// If key, payload, headers, times, steps or terms are not valid, Redis does not answer in
    /// time, or Redis is full.
    pub async fn restore(&self, job: KeptJob) -> Result<Restored> {
        let kept = job.into_kept(self.settings().payload_limit)?;
        match self.ask(kept, self.deadline()).await?.answer {
            Word::Created(due) => Ok(Restored::Pending(due.to_system())),
            Word::Replaced(due) => Ok(Restored::Replaced(due.to_system())),
            Word::Buried(number) => Ok(Restored::Dead(number)),
            Word::Exists => Ok(Restored::Present),
            Word::Running => Ok(Restored::Running),
            other => Err(out_of_place(other)),
        }
    }
}

impl fmt::Debug for KeptJob {
    /// Leaves out payload and headers, which may be private, and large.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeptJob")
            .field("key", &self.key)
            .field("what", &self.what)
            .field("at", &self.at)
            .field("attempts", &self.attempts)
            .finish_non_exhaustive()
    }
}
