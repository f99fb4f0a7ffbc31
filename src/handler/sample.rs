//! Jobs for tests.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use serde::Serialize;

use super::CancelSignal;
use super::job::{Job, JobParts, names};
use crate::headers::Headers;
use crate::key::IntoJobKey;
use crate::lease::Lease;
use crate::retry::RetryPolicy;
use crate::routing::Pattern;
use crate::settings::WorkerSettings;
use crate::source::Source;

/// A job for tests, made by [`Job::sample`]: attempt 1 of 10, due and scheduled now, with an empty
/// payload and no headers, unless told otherwise.
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
    #[track_caller]
    pub(super) fn new(key: impl IntoJobKey) -> Self {
        let key = match key.into_job_key() {
            Ok(key) => key,
            Err(error) => panic!("{error}"),
        };
        let now = SystemTime::now();
        SampleJob(Job::new(JobParts {
            lease: Lease::new(key.clone(), "sample"),
            key,
            payload: Bytes::new(),
            due: now,
            lag: Duration::ZERO,
            attempt: 1,
            max_attempts: RetryPolicy::default().max_attempts(),
            policy: RetryPolicy::default(),
            limit: WorkerSettings::default().timeout,
            first_scheduled_at: now,
            fence: 1,
            source: Source::Event,
            headers: Headers::new(),
            names: [].into(),
            cancellation: CancelSignal::new(),
        }))
    }

    /// The payload, as JSON.
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

    /// The payload, byte for byte.
    pub fn raw_payload(self, payload: impl Into<Bytes>) -> Self {
        self.with(|job| job.payload = payload.into())
    }

    /// The number of the attempt.
    pub fn attempt(self, attempt: u32) -> Self {
        self.with(|job| job.attempt = attempt)
    }

    /// How many attempts the job has.
    pub fn max_attempts(self, limit: u32) -> Self {
        self.with(|job| job.max_attempts = limit)
    }

    /// Its retry policy, and as many attempts as that has.
    pub fn retry(self, policy: RetryPolicy) -> Self {
        self.with(|job| {
            job.max_attempts = policy.max_attempts();
            job.policy = policy;
        })
    }

    /// How long the run may take: what the handler reads, and nobody else keeps to.
    pub fn timeout(self, limit: Duration) -> Self {
        self.with(|job| job.limit = limit)
    }

    /// One more header.
    pub fn header(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.with(|job| {
            job.headers.insert(name, value);
        })
    }

    /// When the run was due.
    pub fn due(self, due: SystemTime) -> Self {
        self.with(|job| job.due = due)
    }

    /// How late the run started.
    pub fn lag(self, lag: Duration) -> Self {
        self.with(|job| job.lag = lag)
    }

    /// When the job was first scheduled.
    pub fn first_scheduled_at(self, at: SystemTime) -> Self {
        self.with(|job| job.first_scheduled_at = at)
    }

    /// The fencing value.
    pub fn fence(self, fence: u64) -> Self {
        self.with(|job| job.fence = fence)
    }

    /// How it was found to be due.
    pub fn source(self, source: Source) -> Self {
        self.with(|job| job.source = source)
    }

    /// The route that it comes by, which names its segments: for the test of an extractor. A
    /// router that is called with the job puts it on a route of its own.
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

    /// A signal that the test can raise.
    pub fn cancellation(self, signal: CancelSignal) -> Self {
        self.with(|job| job.cancellation = signal)
    }

    /// The job.
    pub fn build(self) -> Job {
        self.0
    }

    fn with(self, change: impl FnOnce(&mut JobParts)) -> Self {
        SampleJob(self.0.changed(change))
    }
}
