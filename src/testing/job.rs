//! The jobs of a rehearsal, as a test schedules and sees them.

use std::time::{Duration, SystemTime};

use crate::client::{MemoryJob, MemoryLedger, MemoryStage};
use crate::key::JobKey;
use crate::record::Terms;
use crate::recurrence::{Occurrence, Recurring, Rule};
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
    /// The job ended without a run, because it was due in [quiet hours](crate::Handler::quiet) of
    /// its route that leave it out.
    Skipped,
    /// The job was cancelled before it ran, or between two runs.
    Cancelled,
    /// The job is a dead letter.
    Dead,
    /// The job was [handed over](crate::Outcome::HandedOver). It stays so, because a rehearsal has
    /// no holder that settles it.
    HandedOver,
}

/// A job of a [`Rehearsal`](super::Rehearsal) as it is when it is looked at. A job that has ended is
/// kept until another is scheduled under its name.
#[derive(Debug, Clone)]
pub struct JobView {
    key: JobKey,
    job: MemoryJob,
}

/// A job that was just scheduled, for further settings; due now by default. See
/// [`Rehearsal::schedule`](super::Rehearsal::schedule).
pub struct Schedule<'a> {
    pub(super) ledger: &'a MemoryLedger,
    pub(super) key: JobKey,
}

impl JobView {
    pub(super) fn new(key: JobKey, job: MemoryJob) -> Self {
        JobView { key, job }
    }

    /// The name of the job.
    pub fn key(&self) -> &JobKey {
        &self.key
    }

    /// The state of the job.
    pub fn state(&self) -> JobState {
        match self.job.stage {
            MemoryStage::Waiting if self.attempts() > 0 => JobState::Retrying,
            MemoryStage::Waiting => JobState::Pending,
            MemoryStage::Done => JobState::Done,
            MemoryStage::Skipped => JobState::Skipped,
            MemoryStage::Cancelled => JobState::Cancelled,
            MemoryStage::Dead(_) => JobState::Dead,
            MemoryStage::HandedOver => JobState::HandedOver,
        }
    }

    /// The time at which the job is due; for an ended job, the time at which its last run was due.
    pub fn due(&self) -> SystemTime {
        self.job.due.to_system()
    }

    /// The number of attempts that have ended and count.
    pub fn attempts(&self) -> u32 {
        self.job.header.attempts
    }

    /// The reason why the last attempt failed, or why the job is a dead letter.
    pub fn last_error(&self) -> Option<&str> {
        self.job.error.as_deref()
    }

    /// The occurrence, if the job recurs.
    pub fn occurrence(&self) -> Option<Occurrence> {
        self.job.header.recur().map(Recurring::view)
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
        self.with(|job| job.due = UnixMs(job.accepted.plus(delay).0.div_ceil(1000)))
    }

    /// Makes the job due at this time. The past means now.
    ///
    /// # Panics
    /// If that is more than 10 years ahead.
    #[track_caller]
    pub fn at(self, due: SystemTime) -> Self {
        let now = self.ledger.clock().now();
        self.after(due.duration_since(now).unwrap_or_default())
    }

    /// Makes the job recur by this rule; it is due at the first time that the rule names. The last
    /// error stays until a run ends well.
    ///
    /// # Panics
    /// If the rule names no time after the time of the rehearsal.
    #[track_caller]
    pub fn recurring(self, rule: &Rule) -> Self {
        let now = UnixMs::from_system(self.ledger.clock().now()).unwrap_or_default();
        let Some(first) = Recurring::first(rule, now, 0.0) else {
            panic!("the rule names no time any more: {rule}");
        };
        self.with(|job| {
            job.due = first.due();
            job.header = std::mem::take(&mut job.header).with_recur(Some(first));
        })
    }

    /// Adds a header, or replaces the header of this name. Unlike a client, it does not check the
    /// limits.
    pub fn header(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.with(|job| drop(job.header.headers.insert(name, value)))
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
        let key = self.key.clone();
        let mut refused = None;
        let schedule = self.with(|job| {
            let old = std::mem::take(&mut job.header.terms);
            let (timeout, attempts) = (timeout.or(old.timeout()), attempts.or(old.max_attempts));
            match Terms::new(&key, retry.or(old.retry), timeout, attempts) {
                Ok(terms) => job.header.terms = terms,
                Err(error) => refused = Some(error),
            }
        });
        match refused {
            None => schedule,
            Some(error) => panic!("{error}"),
        }
    }

    /// Changes the job, which was just stored.
    fn with(self, change: impl FnOnce(&mut MemoryJob)) -> Self {
        self.ledger.with(|jobs| jobs.get_mut(&self.key).map(change));
        self
    }
}

impl std::fmt::Debug for Schedule<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Schedule").field(&self.key).finish()
    }
}
