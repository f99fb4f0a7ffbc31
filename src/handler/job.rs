//! The job that a handler runs: key, payload, attempt, lease and the rest.
//!
//! [`Job`] is the public, shared view; `JobParts` holds the fields, which workers and rehearsals
//! fill in from a record and a claim.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;

use super::{CancelSignal, SampleJob};
use crate::headers::Headers;
use crate::key::{IntoJobKey, JobKey};
use crate::lease::Lease;
use crate::recurrence::Occurrence;
use crate::retry::RetryPolicy;
use crate::routing::Pattern;
use crate::source::Source;

/// The named segments of a route, in the order of the pattern: the name, and the index (0 to 3) of
/// its segment in the key.
pub(crate) type SegmentNames = Arc<[(Box<str>, usize)]>;

/// Reads the named segments of a pattern.
pub(crate) fn names(pattern: &Pattern) -> SegmentNames {
    pattern
        .names()
        .map(|(name, at)| (name.into(), at))
        .collect()
}

/// One run of one job. Clones share the job, so cloning is cheap.
///
/// A handler takes it as an argument, beside or instead of extractors:
///
/// ```
/// use keyfall::{Job, Outcome};
///
/// async fn notify(job: Job) -> Outcome {
///     println!("{}, attempt {}, {:?} late", job.key(), job.attempt(), job.lag());
///     Outcome::Done
/// }
/// ```
#[derive(Clone)]
pub struct Job(Arc<JobParts>);

/// The fields of a [`Job`]; its methods describe them.
#[derive(Clone)]
pub(crate) struct JobParts {
    pub(crate) key: JobKey,
    pub(crate) payload: Bytes,
    pub(crate) due: SystemTime,
    pub(crate) lag: Duration,
    pub(crate) attempt: u32,
    pub(crate) max_attempts: u32,
    /// The policy of the job, or else of its route.
    pub(crate) policy: RetryPolicy,
    /// The timeout of this run: of the job, its route, or the worker.
    pub(crate) limit: Duration,
    /// The timeout of a run without a reason for less time: of its route, or the worker.
    #[cfg_attr(
        not(feature = "callbacks"),
        allow(dead_code, reason = "only callbacks compare the two")
    )]
    pub(crate) usual_limit: Duration,
    pub(crate) first_scheduled_at: SystemTime,
    /// The occurrence of a recurring job.
    pub(crate) occurrence: Option<Occurrence>,
    pub(crate) fence: u64,
    pub(crate) source: Source,
    pub(crate) headers: Headers,
    pub(crate) names: SegmentNames,
    pub(crate) cancellation: CancelSignal,
    pub(crate) lease: Lease,
}

impl Job {
    /// Wraps the fields, to be shared by clones.
    pub(crate) fn new(parts: JobParts) -> Self {
        Job(Arc::new(parts))
    }

    /// Starts a job for the tests of a handler or router, which need no Redis. See [`SampleJob`].
    ///
    /// # Panics
    /// If `key` is no job key.
    #[track_caller]
    pub fn sample(key: impl IntoJobKey) -> SampleJob {
        SampleJob::new(key)
    }

    /// The name of the job, `app:module:biz:id`.
    pub fn key(&self) -> &JobKey {
        &self.0.key
    }

    /// The payload, byte for byte as it was scheduled.
    pub fn payload(&self) -> &Bytes {
        &self.0.payload
    }

    /// The time at which this run was due, a whole millisecond by the clock of Redis. For a retry
    /// it is the time of the retry, not of the first run.
    pub fn due(&self) -> SystemTime {
        self.0.due
    }

    /// The time from [`due`](Self::due) to the start of this run, by the clock of Redis.
    pub fn lag(&self) -> Duration {
        self.0.lag
    }

    /// The number of this attempt; the first is 1. Attempts whose worker died count too.
    pub fn attempt(&self) -> u32 {
        self.0.attempt
    }

    /// The number of attempts that the job has, by its own policy or by its route's. If the attempt
    /// with this number fails, the job becomes a dead letter.
    pub fn max_attempts(&self) -> u32 {
        self.0.max_attempts
    }

    /// The policy that sets the next attempt if this run fails: the job's own, or its route's.
    pub fn retry_policy(&self) -> &RetryPolicy {
        &self.0.policy
    }

    /// The limit of this run's time: the job's own timeout, or its route's, or the worker's.
    pub fn timeout(&self) -> Duration {
        self.0.limit
    }

    /// Whether this run has less time than its route gives: the job has a shorter timeout of its own,
    /// or its next occurrence replaces it sooner.
    #[cfg(feature = "callbacks")]
    pub(crate) fn is_hurried(&self) -> bool {
        self.0.limit < self.0.usual_limit
    }

    /// The time at which the job was scheduled, by the clock of Redis, to the microsecond. Retries
    /// do not change it.
    pub fn first_scheduled_at(&self) -> SystemTime {
        self.0.first_scheduled_at
    }

    /// The occurrence, if the job [recurs](crate::client::Schedule::recurring): its number, and the
    /// time that the rule names.
    pub fn occurrence(&self) -> Option<&Occurrence> {
        self.0.occurrence.as_ref()
    }

    /// Whether this run makes up for a time that was missed: when it began, a later time of its rule
    /// had passed, because no worker was there, or a run took too long. `false` for a job that does
    /// not recur.
    pub fn is_catch_up(&self) -> bool {
        let began = self.0.due + self.0.lag;
        let occurrence = self.0.occurrence.as_ref();
        occurrence.is_some_and(|it| it.is_outlasted_by(began))
    }

    /// The fencing value of this run. For one key it only grows, so a store that remembers the
    /// highest value it has seen, and refuses lower ones, is safe from a run that was held up and
    /// goes on after its lease has ended.
    ///
    /// ```
    /// use keyfall::Job;
    /// # struct Account { fence: u64, balance: i64 }
    ///
    /// fn book(account: &mut Account, amount: i64, job: &Job) -> Result<(), &'static str> {
    ///     if job.fence() < account.fence {
    ///         return Err("a later run has written already");
    ///     }
    ///     account.fence = job.fence();
    ///     account.balance += amount;
    ///     Ok(())
    /// }
    /// ```
    pub fn fence(&self) -> u64 {
        self.0.fence
    }

    /// Idempotency key of this job, for receivers: a receiver that remembers it does nothing twice.
    ///
    /// All attempts of a job have the same key, in every worker and shard, also after the job was
    /// moved to another time, given another payload, or requeued as a dead letter. A job that is
    /// scheduled anew under the same name has another key, whether it follows a running job or
    /// replaces a waiting one.
    ///
    /// The text is `key@microseconds`: the job key, and the time at which the job was
    /// [scheduled](Self::first_scheduled_at), in microseconds since the Unix epoch.
    /// [`attempt`](Self::attempt) tells the attempts apart.
    ///
    /// ```
    /// use keyfall::Job;
    /// use std::time::{Duration, UNIX_EPOCH};
    ///
    /// let scheduled = UNIX_EPOCH + Duration::from_micros(1_763_712_345_678_901);
    /// let job = Job::sample("app1:trans:notice:42").first_scheduled_at(scheduled).build();
    /// assert_eq!(job.idempotency_key(), "app1:trans:notice:42@1763712345678901");
    /// ```
    pub fn idempotency_key(&self) -> String {
        idempotency_key(&self.0.key, self.first_scheduled_at())
    }

    /// The right to run this job, with which it is [settled](crate::Client::settle). A program that
    /// is given the lease can go on with the job; the handler then returns
    /// [`Outcome::HandedOver`](crate::Outcome::HandedOver).
    pub fn lease(&self) -> &Lease {
        &self.0.lease
    }

    /// How the worker found that the job was due.
    pub fn source(&self) -> Source {
        self.0.source
    }

    /// The headers that the job was scheduled with.
    pub fn headers(&self) -> &Headers {
        &self.0.headers
    }

    /// The part of the key that the route names: `segment("order")` for a route
    /// `app1:trans:notice:{order}`. `None` if the route has no such name.
    ///
    /// ```
    /// use keyfall::Job;
    ///
    /// let job = Job::sample("app1:trans:notice:42").route("app1:trans:notice:{order}").build();
    /// assert_eq!(job.segment("order"), Some("42"));
    /// assert_eq!(job.segment("user"), None);
    /// ```
    pub fn segment(&self, name: &str) -> Option<&str> {
        self.named_segments()
            .find_map(|(known, text)| (known == name).then_some(text))
    }

    /// The signal that tells the running handler to stop.
    pub fn cancellation(&self) -> &CancelSignal {
        &self.0.cancellation
    }

    /// The named segments and their texts in this key, in the order of the route.
    pub(crate) fn named_segments(&self) -> impl Iterator<Item = (&str, &str)> {
        let segments = self.0.key.segments();
        self.0
            .names
            .iter()
            .filter_map(move |(name, at)| Some((&**name, *segments.get(*at)?)))
    }

    /// The same job with some parts changed; other clones keep theirs.
    pub(super) fn changed(mut self, change: impl FnOnce(&mut JobParts)) -> Self {
        change(Arc::make_mut(&mut self.0));
        self
    }

    /// The same job with the segment names of another route.
    pub(crate) fn on_route(self, names: SegmentNames) -> Self {
        self.changed(|job| job.names = names)
    }
}

/// Idempotency key of the job with this key that was accepted at `scheduled`: see
/// [`Job::idempotency_key`].
pub(crate) fn idempotency_key(key: &JobKey, scheduled: SystemTime) -> String {
    let since = scheduled.duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{key}@{}", since.as_micros())
}

impl fmt::Debug for Job {
    /// Leaves out payload and headers, which may be private, and large.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("key", &self.0.key)
            .field("attempt", &self.0.attempt)
            .field("fence", &self.0.fence)
            .field("payload_bytes", &self.0.payload.len())
            .finish_non_exhaustive()
    }
}
