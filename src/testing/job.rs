//! The jobs of a rehearsal.

use std::time::{Duration, SystemTime};

use bytes::Bytes;

use crate::ending::Ending;
use crate::headers::Headers;
use crate::key::JobKey;
use crate::outcome::Failure;
use crate::record::Terms;
use crate::retry::RetryPolicy;
use crate::settings::MAX_DELAY;
use crate::time::UnixMs;

/// What has become of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum JobState {
    /// It waits for its due time, and has not run yet; or it snoozed.
    Pending,
    /// It waits for its due time, for another attempt.
    Retrying,
    /// It has done what it was for.
    Done,
    /// It was cancelled before it ran, or between two runs.
    Cancelled,
    /// It is a dead letter.
    Dead,
    /// It was [handed over](crate::Outcome::HandedOver), and nobody here ends it.
    HandedOver,
}

/// A job of a [`Rehearsal`](super::Rehearsal), as it is now. Jobs that have ended are
/// remembered, until another takes their name.
#[derive(Debug, Clone)]
pub struct JobView {
    pub(super) key: JobKey,
    pub(super) payload: Bytes,
    pub(super) headers: Headers,
    pub(super) terms: Terms,
    pub(super) due: SystemTime,
    pub(super) first_scheduled_at: SystemTime,
    /// Whether a route takes it, or the fallback.
    pub(super) routed: bool,
    state: JobState,
    attempts: u32,
    error: Option<Failure>,
}

/// A job that was just scheduled, and is due now unless it is told otherwise. See
/// [`Rehearsal::schedule`](super::Rehearsal::schedule).
#[derive(Debug)]
pub struct Schedule<'a> {
    pub(super) job: &'a mut JobView,
}

impl JobView {
    pub(super) fn new(key: JobKey, payload: Bytes, now: SystemTime, routed: bool) -> Self {
        JobView {
            key,
            payload,
            headers: Headers::new(),
            terms: Terms::default(),
            due: in_ms(now),
            first_scheduled_at: now,
            routed,
            state: JobState::Pending,
            attempts: 0,
            error: None,
        }
    }

    /// Its name.
    pub fn key(&self) -> &JobKey {
        &self.key
    }

    /// What has become of it.
    pub fn state(&self) -> JobState {
        self.state
    }

    /// When it is due; when its last run was, if it has ended.
    pub fn due(&self) -> SystemTime {
        self.due
    }

    /// How many attempts have ended and count.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// How the last attempt failed, or why the job is a dead letter.
    pub fn last_error(&self) -> Option<&str> {
        self.error.as_ref().map(Failure::as_str)
    }

    /// Whether it is still to run.
    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.state, JobState::Pending | JobState::Retrying)
    }

    pub(super) fn cancel(&mut self) {
        self.state = JobState::Cancelled;
    }

    /// What a run at this time, with this number, leads to.
    pub(super) fn end(&mut self, attempt: u32, now: SystemTime, ending: Ending) {
        match ending {
            Ending::Done => {
                self.attempts = attempt;
                self.error = None;
                self.state = JobState::Done;
            }
            Ending::Again { after, error } => {
                self.attempts = attempt;
                self.error = error;
                self.due = in_ms(now + after);
                self.state = JobState::Retrying;
            }
            Ending::Snooze { after, .. } => self.due = in_ms(now + after),
            Ending::Bury { reason } => {
                self.attempts = attempt;
                self.error = Some(reason);
                self.state = JobState::Dead;
            }
            Ending::HandedOver => self.state = JobState::HandedOver,
        }
    }
}

impl Schedule<'_> {
    /// Due so long after now.
    ///
    /// # Panics
    /// If that is more than 10 years.
    #[track_caller]
    pub fn after(self, delay: Duration) -> Self {
        assert!(
            delay <= MAX_DELAY,
            "the delay {delay:?} is more than 10 years, which is the limit: is the unit right?"
        );
        self.job.due = in_ms(self.job.first_scheduled_at + delay);
        self
    }

    /// Due at this time. The past means now.
    ///
    /// # Panics
    /// If that is more than 10 years ahead.
    #[track_caller]
    pub fn at(self, due: SystemTime) -> Self {
        let now = self.job.first_scheduled_at;
        self.after(due.duration_since(now).unwrap_or_default())
    }

    /// One more header.
    pub fn header(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.job.headers.insert(name, value);
        self
    }

    /// When this job runs again if it fails, whatever its route says.
    pub fn retry(self, policy: RetryPolicy) -> Self {
        self.on_terms(Some(policy), None, None)
    }

    /// How many attempts this job has, the first run included, by the policy of its own or of
    /// its route.
    ///
    /// # Panics
    /// If it is 0.
    #[track_caller]
    pub fn attempts(self, limit: u32) -> Self {
        self.on_terms(None, None, Some(limit))
    }

    /// How long a run of this job may take, whatever its route says; in real time, or in that
    /// of tokio's paused clock.
    ///
    /// # Panics
    /// If it is not from 1 ms to 10 years.
    #[track_caller]
    pub fn timeout(self, limit: Duration) -> Self {
        self.on_terms(None, Some(limit), None)
    }

    #[track_caller]
    fn on_terms(
        self,
        retry: Option<RetryPolicy>,
        timeout: Option<Duration>,
        attempts: Option<u32>,
    ) -> Self {
        let old = std::mem::take(&mut self.job.terms);
        let (timeout, attempts) = (timeout.or(old.timeout()), attempts.or(old.max_attempts));
        match Terms::new(&self.job.key, retry.or(old.retry), timeout, attempts) {
            Ok(terms) => self.job.terms = terms,
            Err(error) => panic!("{error}"),
        }
        self
    }
}

/// A due time is a whole millisecond, rounded up so that nothing is early, as in a ledger.
fn in_ms(time: SystemTime) -> SystemTime {
    UnixMs::from_system(time).map_or(time, UnixMs::to_system)
}
