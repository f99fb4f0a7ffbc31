//! The jobs of a rehearsal, as a test schedules and sees them.

use std::time::{Duration, SystemTime};

use bytes::Bytes;

use crate::ending::Ending;
use crate::headers::Headers;
use crate::key::JobKey;
use crate::outcome::Failure;
use crate::record::Terms;
use crate::recurrence::{Occurrence, Recurring, Rule, RunEnd};
use crate::retry::RetryPolicy;
use crate::settings::MAX_DELAY;
use crate::time::UnixMs;

/// The state of a job in a rehearsal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum JobState {
    /// The job waits for its due time, and has not run yet; or it snoozed.
    Pending,
    /// The job waits for another attempt.
    Retrying,
    /// The job has done its work.
    Done,
    /// The job was cancelled before it ran, or between two runs.
    Cancelled,
    /// The job is a dead letter.
    Dead,
    /// The job was [handed over](crate::Outcome::HandedOver). It stays so, because a rehearsal has
    /// no holder that settles it.
    HandedOver,
}

/// A job of a [`Rehearsal`](super::Rehearsal) in its present state. A job that has ended is kept
/// until another is scheduled under its name.
#[derive(Debug, Clone)]
pub struct JobView {
    pub(super) key: JobKey,
    pub(super) payload: Bytes,
    pub(super) headers: Headers,
    pub(super) terms: Terms,
    /// In whole milliseconds, like the due times in Redis.
    pub(super) due: SystemTime,
    pub(super) first_scheduled_at: SystemTime,
    /// Whether a route or the fallback takes it.
    pub(super) routed: bool,
    /// The occurrence, if the job recurs.
    pub(super) recurring: Option<Recurring>,
    state: JobState,
    attempts: u32,
    error: Option<Failure>,
}

/// A job that was just scheduled, for further settings; due now by default. See
/// [`Rehearsal::schedule`](super::Rehearsal::schedule).
#[derive(Debug)]
pub struct Schedule<'a> {
    pub(super) job: &'a mut JobView,
}

impl JobView {
    /// A pending job, due at `now`.
    pub(super) fn new(key: JobKey, payload: Bytes, now: SystemTime, routed: bool) -> Self {
        JobView {
            key,
            payload,
            headers: Headers::new(),
            terms: Terms::default(),
            due: in_ms(now),
            first_scheduled_at: now,
            routed,
            recurring: None,
            state: JobState::Pending,
            attempts: 0,
            error: None,
        }
    }

    /// The name of the job.
    pub fn key(&self) -> &JobKey {
        &self.key
    }

    /// The state of the job.
    pub fn state(&self) -> JobState {
        self.state
    }

    /// The time at which the job is due; for an ended job, the time at which its last run was due.
    pub fn due(&self) -> SystemTime {
        self.due
    }

    /// The number of attempts that have ended and count.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// The reason why the last attempt failed, or why the job is a dead letter.
    pub fn last_error(&self) -> Option<&str> {
        self.error.as_ref().map(Failure::as_str)
    }

    /// The occurrence, if the job recurs.
    pub fn occurrence(&self) -> Option<Occurrence> {
        self.recurring.as_ref().map(Recurring::view)
    }

    /// Begins the next occurrence of a recurring job whose run began at `began` and has ended at
    /// `now`. `jitter` is from 0 up to 1.
    pub(super) fn recur(&mut self, began: SystemTime, now: SystemTime, jitter: f64) {
        let Some(recurring) = &self.recurring else {
            return;
        };
        let unix = |time| UnixMs::from_system(time).unwrap_or_default();
        let end = RunEnd {
            now: unix(now),
            claimed: unix(began),
            due: unix(self.due),
            random: jitter,
        };
        if let (JobState::Done | JobState::Dead, Some(next)) = (self.state, recurring.next(end)) {
            self.due = next.due().to_system();
            self.first_scheduled_at = now;
            self.recurring = Some(next);
            self.attempts = 0;
            self.state = JobState::Pending;
        }
    }

    /// Whether the job is still to run.
    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.state, JobState::Pending | JobState::Retrying)
    }

    /// Marks the job as cancelled.
    pub(super) fn cancel(&mut self) {
        self.state = JobState::Cancelled;
    }

    /// Applies the consequence of a run that was number `attempt` and ended at `now`.
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
    /// Makes the job due this long after it was scheduled. Rounded up to whole milliseconds.
    ///
    /// # Panics
    /// If `delay` is more than 10 years.
    #[track_caller]
    pub fn after(self, delay: Duration) -> Self {
        assert!(
            delay <= MAX_DELAY,
            "the delay {delay:?} is more than 10 years, which is the limit: is the unit right?"
        );
        self.job.due = in_ms(self.job.first_scheduled_at + delay);
        self
    }

    /// Makes the job due at this time. The past means now.
    ///
    /// # Panics
    /// If that is more than 10 years ahead.
    #[track_caller]
    pub fn at(self, due: SystemTime) -> Self {
        let now = self.job.first_scheduled_at;
        self.after(due.duration_since(now).unwrap_or_default())
    }

    /// Makes the job recur by this rule; it is due at the first time that the rule names. The last
    /// error stays until a run ends well.
    ///
    /// # Panics
    /// If the rule names no time after the time of the rehearsal.
    #[track_caller]
    pub fn recurring(self, rule: &Rule) -> Self {
        let now = UnixMs::from_system(self.job.first_scheduled_at).unwrap_or_default();
        let Some(first) = Recurring::first(rule, now, 0.0) else {
            panic!("the rule names no time any more: {rule}");
        };
        self.job.due = first.due().to_system();
        self.job.recurring = Some(first);
        self
    }

    /// Adds a header, or replaces the header of this name. Unlike a client, it does not check the
    /// limits.
    pub fn header(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.job.headers.insert(name, value);
        self
    }

    /// Sets a retry policy for this job, which takes precedence over its route's.
    pub fn retry(self, policy: RetryPolicy) -> Self {
        self.on_terms(Some(policy), None, None)
    }

    /// Sets the number of attempts of this job, the first run included, under its own policy or its
    /// route's.
    ///
    /// # Panics
    /// If `limit` is 0.
    #[track_caller]
    pub fn attempts(self, limit: u32) -> Self {
        self.on_terms(None, None, Some(limit))
    }

    /// Sets the timeout of this job, which takes precedence over its route's; in real time, or in
    /// the time of tokio's paused clock.
    ///
    /// # Panics
    /// If `limit` is not from 1 ms to 10 years.
    #[track_caller]
    pub fn timeout(self, limit: Duration) -> Self {
        self.on_terms(None, Some(limit), None)
    }

    /// Sets the terms that are given and keeps the others.
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

/// The time in whole milliseconds, rounded up so that nothing is early, as in a ledger.
fn in_ms(time: SystemTime) -> SystemTime {
    UnixMs::from_system(time).map_or(time, UnixMs::to_system)
}
