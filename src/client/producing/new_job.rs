//! A job that is yet to be scheduled: what it is called, what it carries, and its terms.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;

use crate::client::due::NOW;
use crate::durable::Durable;
use crate::error::{Error, ErrorKind, Result};
use crate::headers::Headers;
use crate::key::{IntoJobKey, JobKey};
use crate::record::{Header, Terms};
use crate::retry::RetryPolicy;
use crate::store::{Mode, Placement, When};
use crate::traces;

/// A job for [`Client::schedule_many`](crate::client::Client::schedule_many).
///
/// ```
/// use keyfall::NewJob;
/// use std::time::Duration;
///
/// let jobs = (1..=3).map(|order| {
///     NewJob::new(format!("app1:order:expire:{order}"), &order)
///         .after(Duration::from_secs(1800))
///         .if_absent()
/// });
/// # drop(jobs);
/// ```
#[must_use = "hand it to `schedule_many`"]
pub struct NewJob {
    pub(crate) key: Result<JobKey>,
    pub(crate) payload: Result<Bytes>,
    pub(crate) when: Result<When>,
    pub(crate) headers: Headers,
    pub(crate) retry: Option<RetryPolicy>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) attempts: Option<u32>,
    pub(crate) mode: Mode,
    /// Its number among jobs that mean the same.
    pub(crate) order: Option<u64>,
    pub(crate) durable: Option<Durable>,
}

/// What can be said of a job before it is scheduled, for whatever holds one at `self$at`.
macro_rules! job_options {
    ($($at:tt)*) => {
        /// Due so long after Redis receives the call. Zero means now; 10 years is the limit.
        pub fn after(mut self, delay: std::time::Duration) -> Self {
            self $($at)* .when = $crate::client::due::after(delay);
            self
        }

        /// Due at this time by Redis' clock. The past means now; 10 years ahead is the limit.
        pub fn at(mut self, due: std::time::SystemTime) -> Self {
            self $($at)* .when = $crate::client::due::at(due);
            self
        }

        /// A text that travels with the job beside its payload, for its handler to read. A job
        /// has up to [`MAX_HEADERS`](crate::MAX_HEADERS) of them, with
        /// [`MAX_HEADERS_BYTES`](crate::MAX_HEADERS_BYTES) in all.
        pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
            self $($at)* .headers.insert(name, value);
            self
        }

        /// When this job runs again if it fails, whatever its route says.
        /// Defaults to the policy of the route.
        pub fn retry(mut self, policy: $crate::RetryPolicy) -> Self {
            self $($at)* .retry = Some(policy);
            self
        }

        /// How many attempts this job has, the first run included, by the policy of its own or
        /// of its route; see [`RetryPolicy::attempts`](crate::RetryPolicy::attempts). At least
        /// 1. Defaults to what the policy says.
        pub fn attempts(mut self, limit: u32) -> Self {
            self $($at)* .attempts = Some(limit);
            self
        }

        /// How far the job is to get before the call is answered, such as `1`, on one replica;
        /// the answer says [how far it got](crate::Scheduled::reached). Defaults to no further
        /// than the memory of the server.
        pub fn durable(mut self, how: impl Into<crate::Durable>) -> Self {
            self $($at)* .durable = Some(how.into());
            self
        }

        /// How long a run of this job may take, whatever its route says: from 1 ms to 10
        /// years. Defaults to the timeout of the route.
        pub fn timeout(mut self, limit: std::time::Duration) -> Self {
            self $($at)* .timeout = Some(limit);
            self
        }
    };
}
pub(crate) use job_options;

impl NewJob {
    /// A job with a payload that is stored as JSON. Due now, unless [`after`](Self::after) or
    /// [`at`](Self::at) say otherwise. What is not valid is told when the job is scheduled.
    pub fn new(key: impl IntoJobKey, payload: &(impl Serialize + ?Sized)) -> Self {
        NewJob::carrying(key, to_json(payload))
    }

    /// A job with a payload that is stored as it is, whatever bytes it holds.
    pub fn from_bytes(key: impl IntoJobKey, payload: impl Into<Bytes>) -> Self {
        NewJob::carrying(key, Ok(payload.into()))
    }

    fn carrying(key: impl IntoJobKey, payload: Result<Bytes>) -> Self {
        NewJob {
            key: key.into_job_key(),
            payload,
            when: Ok(NOW),
            headers: Headers::new(),
            retry: None,
            timeout: None,
            attempts: None,
            mode: Mode::Set,
            order: None,
            durable: None,
        }
    }

    job_options!();

    /// Only if there is no such job. Dead letters do not count as a job.
    pub fn if_absent(mut self) -> Self {
        self.mode = Mode::Absent;
        self
    }

    /// Only if there is such a job, pending or running, which this one takes the place of or
    /// follows. Dead letters do not count as a job.
    pub fn if_present(mut self) -> Self {
        self.mode = Mode::Present;
        self
    }

    /// What is sent of it, if all of it is valid.
    pub(crate) fn into_placement(mut self, payload_limit: usize) -> Result<Placement> {
        let key = self.key?;
        let payload = self.payload?;
        check_payload(&key, &payload, payload_limit)?;
        let when = self.when?;
        self.durable.map_or(Ok(()), |durable| durable.check())?;
        traces::carry(&mut self.headers);
        self.headers.check(&key)?;
        let terms = Terms::new(&key, self.retry, self.timeout, self.attempts)?;
        let mut header = Header::new(self.headers, terms);
        header.order = self.order;
        Ok(Placement {
            mode: self.mode,
            when,
            header: header.to_line(),
            key,
            payload,
        })
    }
}

pub(crate) fn to_json(payload: &(impl Serialize + ?Sized)) -> Result<Bytes> {
    serde_json::to_vec(payload).map(Bytes::from).map_err(|e| {
        Error::new(
            ErrorKind::InvalidPayload,
            format!("the payload cannot be written as JSON: {e}"),
        )
    })
}

pub(crate) fn check_payload(key: &JobKey, payload: &Bytes, limit: usize) -> Result<()> {
    if payload.len() <= limit {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidPayload,
        format!(
            "the payload of {key} has {} bytes, and the limit is {limit}: store it elsewhere and \
             schedule a reference to it, or raise `payload_limit`",
            payload.len()
        ),
    ))
}

impl fmt::Debug for NewJob {
    /// Without payload and headers, which may be private, and large.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewJob")
            .field("key", &self.key)
            .field("when", &self.when)
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}
