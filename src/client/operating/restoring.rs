//! Jobs and dead letters come back from a backup, with their story.

use std::borrow::Cow;
use std::fmt;
use std::slice;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;

use crate::client::due::at;
use crate::client::producing::new_job::check_payload;
use crate::client::{CallTarget, Client, JobState, JobView, out_of_place};
use crate::error::{Error, ErrorKind, Result};
use crate::headers::Headers;
use crate::key::{IntoJobKey, JobKey};
use crate::record::{Header, Step, Terms};
use crate::retry::RetryPolicy;
use crate::store::{BackupItem, KeptAs, When, Word};

/// How many steps a record keeps; `lua/lib/record.lua` has the same number.
const STEPS: usize = 8;

/// A job or a dead letter as it was, for [`Client::restore`]: made of a [`JobView`], or part by
/// part.
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
    max_attempts: Option<u32>,
}

/// What became of a [`Client::restore`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Restored {
    /// It is pending again, due at this time, be it long ago.
    Pending(SystemTime),
    /// The same, in the place of one that was pending.
    Replaced(SystemTime),
    /// It is a dead letter again, with this number, which is a new one.
    Dead(u64),
    /// A job of this name is pending, or a letter of it died at that very time: nothing was done.
    Present,
    /// A job of this name is running: nothing was done.
    Running,
}

impl KeptJob {
    /// One that waits for its due time, which may lie in the past.
    pub fn pending(key: impl IntoJobKey, due: SystemTime, payload: impl Into<Bytes>) -> Self {
        let what = KeptAs::Pending { replace: false };
        KeptJob::new(key, what, due, payload.into())
    }

    /// A dead letter.
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
            max_attempts: None,
        }
    }

    /// How many attempts have ended. Defaults to 0.
    pub fn attempts(mut self, ended: u32) -> Self {
        self.attempts = ended;
        self
    }

    /// How the last attempt failed, or why it was buried.
    pub fn error(mut self, error: impl Into<String>) -> Self {
        self.error = Some(error.into());
        self
    }

    /// When it was first scheduled. Defaults to when it is restored.
    pub fn first_scheduled_at(mut self, accepted: SystemTime) -> Self {
        self.accepted = Some(accepted);
        self
    }

    /// Something that happened to it; the oldest first. The last eight are kept.
    pub fn step(mut self, what: impl Into<String>, at: SystemTime) -> Self {
        self.steps.push((what.into(), at));
        self
    }

    /// A text that travels with it.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// Its own retry policy.
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.retry = Some(policy);
        self
    }

    /// Its own limit of attempts.
    pub fn max_attempts(mut self, limit: u32) -> Self {
        self.max_attempts = Some(limit);
        self
    }

    /// Its own timeout.
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }

    /// Takes the place of one that is pending, instead of leaving that as it is. Dead letters
    /// take nobody's place.
    pub fn replace(mut self) -> Self {
        if let KeptAs::Pending { replace } = &mut self.what {
            *replace = true;
        }
        self
    }

    fn into_kept(self, payload_limit: usize) -> Result<BackupItem> {
        let key = self.key?;
        check_payload(&key, &self.payload, payload_limit)?;
        self.headers.check(&key)?;
        let terms = Terms::new(&key, self.retry, self.timeout, self.max_attempts)?;
        let When::At(at) = at(self.at)? else {
            unreachable!("a time is a time")
        };
        let story = story(&key, self.accepted, &self.steps)?;
        let mut header = Header::told(self.headers, terms, self.attempts, self.error);
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

/// As the second line of a record has it.
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
            let message = format!("{key}: something happened to it before 1970");
            Error::new(ErrorKind::InvalidTime, message)
        })
    };
    // Rounded down: the microseconds stand in the header.
    let mut line = since(accepted)?.as_millis().to_string();
    for (what, at) in &steps[steps.len().saturating_sub(STEPS)..] {
        let is_word = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
        if what.is_empty() || what.len() > 32 || !what.bytes().all(is_word) {
            return Err(Error::new(
                ErrorKind::InvalidSetting,
                format!("{key}: {what:?} is no step: it is a word in lower case, such as `failed`"),
            ));
        }
        line += &format!(" {what}@{}", since(*at)?.as_millis());
    }
    Ok(line)
}

impl From<&JobView> for KeptJob {
    /// Of one that runs, as if that run had not begun.
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
        job.max_attempts = view.max_attempts();
        job
    }
}

impl Client {
    /// Brings back a job or a dead letter, with its attempts, its last error and its story; for
    /// backups. What is there already stays as it is, so the call may be repeated.
    ///
    /// # Errors
    /// If key, payload, headers, times, steps or terms are not valid, or Redis does not answer in
    /// time or is full.
    pub async fn restore(&self, job: KeptJob) -> Result<Restored> {
        let kept = job.into_kept(self.settings().payload_limit)?;
        let key = kept.key.clone();
        let of = match kept.what {
            KeptAs::Pending { .. } => CallTarget::Job,
            KeptAs::Dead => CallTarget::Letters,
        };
        let until = self.deadline();
        self.register(key.kind(), until).await?;
        let answered = self
            .ask(&key, of, kept, until, |shard_client| &shard_client.restores)
            .await?;
        self.register_again(key.kind(), slice::from_ref(&answered), until)
            .await?;
        match answered.answer {
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
    /// Without payload and headers, which may be private, and large.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeptJob")
            .field("key", &self.key)
            .field("what", &self.what)
            .field("at", &self.at)
            .field("attempts", &self.attempts)
            .finish_non_exhaustive()
    }
}
