//! Sample jobs, for tests of handlers and extractors without Redis.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use serde::Serialize;

use super::CancelSignal;
use super::job::{Job, JobParts, names};
use crate::headers::Headers;
use crate::key::IntoJobKey;
use crate::lease::Lease;
use crate::recurrence::Occurrence;
use crate::retry::RetryPolicy;
use crate::routing::Pattern;
use crate::settings::WorkerSettings;
use crate::source::Source;

/// Builds a job for tests; made by [`Job::sample`]. Unless the methods change it, the job is
/// attempt 1 of 10, scheduled and due now, with an empty payload, no headers, and the default
/// timeout of a worker.
///
/// ```
/// use keyfall::{Job, Json, Outcome, Router};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// async fn greet(Json(name): Json<String>) -> Result<(), String> {
///     if name.is_empty() { Err("nobody to greet".into()) } else { Ok(()) }
/// }
///
/// let app = Router::new().route("app1:mail:greeting:{user}", greet);
/// let job = Job::sample("app1:mail:greeting:7").payload(&"Ada").attempt(2).build();
/// assert_eq!(app.call(job).await, Some(Outcome::Done));
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "call `build` to get the job"]
pub struct SampleJob(Job);

impl SampleJob {
    /// The defaults; panics at the caller's line if `key` is no job key.
    #[track_caller]
    pub(super) fn new(key: impl IntoJobKey) -> Self {
        let key = match key.into_job_key() {
            Ok(key) => key,
            Err(error) => panic!("{error}"),
        };
        let now = SystemTime::now();
        SampleJob(Job::new(JobParts {
            lease: Lease::new(key.clone(), "sample".into()),
            key,
            payload: Bytes::new(),
            due: now,
            lag: Duration::ZERO,
            attempt: 1,
            max_attempts: RetryPolicy::default().max_attempts(),
            policy: RetryPolicy::default(),
            limit: WorkerSettings::default().timeout,
            usual_limit: WorkerSettings::default().timeout,
            first_scheduled_at: now,
            occurrence: None,
            fence: 1,
            source: Source::Event,
            headers: Headers::new(),
            names: [].into(),
            cancellation: CancelSignal::new(),
        }))
    }

    /// Sets the payload, written as JSON.
    ///
    /// # Panics
    /// If it cannot be serialised.
    #[track_caller]
    pub fn payload(self, payload: &impl Serialize) -> Self {
        match serde_json::to_vec(payload) {
            Ok(json) => self.raw_payload(json),
            Err(error) => panic!("the payload of the sample job cannot be serialised: {error}"),
        }
    }

    /// Sets the payload, byte for byte.
    pub fn raw_payload(self, payload: impl Into<Bytes>) -> Self {
        self.with(|job| job.payload = payload.into())
    }

    /// Sets the number of the attempt; the first is 1.
    pub fn attempt(self, attempt: u32) -> Self {
        self.with(|job| job.attempt = attempt)
    }

    /// Sets the number of attempts that the job has.
    pub fn max_attempts(self, limit: u32) -> Self {
        self.with(|job| job.max_attempts = limit)
    }

    /// Sets the retry policy, and takes the number of attempts from it.
    pub fn retry(self, policy: RetryPolicy) -> Self {
        self.with(|job| {
            job.max_attempts = policy.max_attempts();
            job.policy = policy;
        })
    }

    /// Sets [`Job::timeout`]. Only the handler reads it: [`Router::call`](crate::Router::call) does
    /// not end a run that takes longer.
    pub fn timeout(self, limit: Duration) -> Self {
        self.with(|job| (job.limit, job.usual_limit) = (limit, limit))
    }

    /// Adds a header, or replaces the header of this name.
    pub fn header(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.with(|job| {
            job.headers.insert(name, value);
        })
    }

    /// Sets the time at which the run was due.
    pub fn due(self, due: SystemTime) -> Self {
        self.with(|job| job.due = due)
    }

    /// Sets how late the run started.
    pub fn lag(self, lag: Duration) -> Self {
        self.with(|job| job.lag = lag)
    }

    /// Makes it an occurrence of a recurring job.
    pub fn occurrence(self, occurrence: Occurrence) -> Self {
        self.with(|job| job.occurrence = Some(occurrence))
    }

    /// Sets the time at which the job was scheduled.
    pub fn first_scheduled_at(self, at: SystemTime) -> Self {
        self.with(|job| job.first_scheduled_at = at)
    }

    /// Sets the fencing value; 1 by default.
    pub fn fence(self, fence: u64) -> Self {
        self.with(|job| job.fence = fence)
    }

    /// Sets how the job was found to be due; [`Source::Event`] by default.
    pub fn source(self, source: Source) -> Self {
        self.with(|job| job.source = source)
    }

    /// Sets the pattern of the job's route, which names its segments: for the test of an extractor
    /// that is called by itself. A router that is called with the job uses its own route instead.
    ///
    /// ```
    /// use keyfall::{FromJob, Job, Segments};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() {
    /// let job = Job::sample("app1:trans:notice:42").route("app1:trans:notice:{order}").build();
    /// let Segments(order) = Segments::<u64>::from_job(&job, &()).await.unwrap();
    /// assert_eq!(order, 42);
    /// # }
    /// ```
    ///
    /// # Panics
    /// If `pattern` is malformed.
    #[track_caller]
    pub fn route(self, pattern: &str) -> Self {
        match Pattern::parse(pattern) {
            Ok(pattern) => self.with(|job| job.names = names(&pattern)),
            Err(error) => panic!("{error}"),
        }
    }

    /// Sets the cancellation signal, so that the test can raise it.
    pub fn cancellation(self, signal: CancelSignal) -> Self {
        self.with(|job| job.cancellation = signal)
    }

    /// Returns the job.
    pub fn build(self) -> Job {
        self.0
    }

    /// The same builder with the fields of its job changed.
    fn with(self, change: impl FnOnce(&mut JobParts)) -> Self {
        SampleJob(self.0.changed(change))
    }
}
