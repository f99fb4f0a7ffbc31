//! What a handler is called with.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;

use super::{CancelSignal, SampleJob};
use crate::headers::Headers;
use crate::key::{IntoJobKey, JobKey};
use crate::lease::Lease;
use crate::retry::RetryPolicy;
use crate::routing::Pattern;
use crate::source::Source;

/// The named segments of a route: name, and index into the key's segments.
pub(crate) type SegmentNames = Arc<[(Box<str>, usize)]>;

/// What a route names.
pub(crate) fn names(pattern: &Pattern) -> SegmentNames {
    pattern
        .names()
        .map(|(name, at)| (name.into(), at))
        .collect()
}

/// One run of one job. Clones share it, so cloning is cheap.
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

/// What a job is made of.
#[derive(Clone)]
pub(crate) struct JobParts {
    pub(crate) key: JobKey,
    pub(crate) payload: Bytes,
    pub(crate) due: SystemTime,
    pub(crate) lag: Duration,
    pub(crate) attempt: u32,
    pub(crate) max_attempts: u32,
    /// When it runs again if it fails.
    pub(crate) policy: RetryPolicy,
    /// How long this run may take.
    pub(crate) limit: Duration,
    pub(crate) first_scheduled_at: SystemTime,
    pub(crate) fence: u64,
    pub(crate) source: Source,
    pub(crate) headers: Headers,
    pub(crate) names: SegmentNames,
    pub(crate) cancellation: CancelSignal,
    pub(crate) lease: Lease,
}

impl Job {
    pub(crate) fn new(parts: JobParts) -> Self {
        Job(Arc::new(parts))
    }

    /// A job for the tests of a handler or router, which need no Redis. See [`SampleJob`].
    ///
    /// # Panics
    /// If `key` is no job key.
    #[track_caller]
    pub fn sample(key: impl IntoJobKey) -> SampleJob {
        SampleJob::new(key)
    }

    /// Its name, `app:module:biz:id`.
    pub fn key(&self) -> &JobKey {
        &self.0.key
    }

    /// The payload as it was scheduled.
    pub fn payload(&self) -> &Bytes {
        &self.0.payload
    }

    /// When this run was due; for a retry, when the retry was.
    pub fn due(&self) -> SystemTime {
        self.0.due
    }

    /// How long after [`due`](Self::due) this run started, by the clock of Redis.
    pub fn lag(&self) -> Duration {
        self.0.lag
    }

    /// The number of this attempt; the first is 1.
    pub fn attempt(&self) -> u32 {
        self.0.attempt
    }

    /// How many attempts the job has, by its own policy or that of its route. If the one with
    /// this number fails, the job becomes a dead letter.
    pub fn max_attempts(&self) -> u32 {
        self.0.max_attempts
    }

    /// When it runs again if this run fails, by its own policy or that of its route.
    pub fn retry_policy(&self) -> &RetryPolicy {
        &self.0.policy
    }

    /// How long this run may take, by the job's own timeout, that of its route, or that of the
    /// worker.
    pub fn timeout(&self) -> Duration {
        self.0.limit
    }

    /// When the job was scheduled, by the clock of Redis, to the microsecond. Retries do not change it.
    pub fn first_scheduled_at(&self) -> SystemTime {
        self.0.first_scheduled_at
    }

    /// The fencing value of this run. It only grows for a key, so a store that remembers
    /// the highest one it has seen, and refuses a lower one, is safe from a run that was
    /// held up and goes on after its lease has ended.
    pub fn fence(&self) -> u64 {
        self.0.fence
    }

    /// Idempotency key of this job, for receivers: whoever remembers it does nothing twice. All
    /// attempts have the same, in whichever worker and shard, also after the job was moved to another
    /// time, given another payload, or requeued as a dead letter; a job that is scheduled anew under
    /// its name has another one, be it as a successor or in the place of one that waits.
    ///
    /// It is the key and the time at which the job was [scheduled](Self::first_scheduled_at), to the
    /// microsecond. [`attempt`](Self::attempt) tells the attempts apart.
    pub fn idempotency_key(&self) -> String {
        idempotency_key(&self.0.key, self.first_scheduled_at())
    }

    /// The right to run it, by which it is [settled](crate::Client::settle). Whoever is given it
    /// can go on with the job; the handler then ends with
    /// [`Outcome::HandedOver`](crate::Outcome::HandedOver).
    pub fn lease(&self) -> &Lease {
        &self.0.lease
    }

    /// How it was found to be due.
    pub fn source(&self) -> Source {
        self.0.source
    }

    /// The headers it was scheduled with.
    pub fn headers(&self) -> &Headers {
        &self.0.headers
    }

    /// The part of the key that the route names: `segment("order")` for a route
    /// `app1:trans:notice:{order}`. `None` if the route has no such name.
    pub fn segment(&self, name: &str) -> Option<&str> {
        self.named_segments()
            .find_map(|(known, text)| (known == name).then_some(text))
    }

    /// Tells a running handler to stop.
    pub fn cancellation(&self) -> &CancelSignal {
        &self.0.cancellation
    }

    /// The route's names and what they stand for, in the order of the route.
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

    /// The same job, on a route with these names.
    pub(crate) fn on_route(self, names: SegmentNames) -> Self {
        self.changed(|job| job.names = names)
    }
}

/// That of the job of this name that was scheduled then.
pub(crate) fn idempotency_key(key: &JobKey, scheduled: SystemTime) -> String {
    let since = scheduled.duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{key}@{}", since.as_micros())
}

impl fmt::Debug for Job {
    /// Without payload and headers, which may be private, and large.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("key", &self.0.key)
            .field("attempt", &self.0.attempt)
            .field("fence", &self.0.fence)
            .field("payload_bytes", &self.0.payload.len())
            .finish_non_exhaustive()
    }
}
