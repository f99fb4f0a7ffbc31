//! A job that is about to become a dead letter, as a hook is told of it.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use crate::client::DyingJob;
use crate::handler::idempotency_key;
use crate::headers::Headers;
use crate::key::JobKey;
use crate::record::{Header, Record};
use crate::time::UnixMs;

/// A job that is about to become a dead letter; see [`Worker::on_dead`](crate::Worker::on_dead).
/// Cloning it is cheap.
#[derive(Clone)]
pub struct DeadJob(Arc<Parts>);

struct Parts {
    key: JobKey,
    header: Header,
    due: UnixMs,
    lag: Option<Duration>,
    first_scheduled: Option<SystemTime>,
    payload: Bytes,
    instance: Arc<str>,
}

impl DeadJob {
    pub(super) fn new(letter: DyingJob<'_>, instance: Arc<str>) -> Self {
        DeadJob(Arc::new(Parts {
            key: letter.key.clone(),
            header: Header::parse(letter.header.as_bytes()).unwrap_or_default(),
            due: letter.due,
            lag: letter.lag,
            first_scheduled: letter.record.map(Record::first_scheduled_at),
            payload: letter
                .record
                .map_or_else(Bytes::new, |record| record.payload.clone()),
            instance,
        }))
    }

    /// Its name, `app:module:biz:id`.
    pub fn key(&self) -> &JobKey {
        &self.0.key
    }

    /// Why: the last error, or what made further attempts pointless.
    pub fn reason(&self) -> &str {
        self.0.header.error.as_deref().unwrap_or_default()
    }

    /// How many attempts it had.
    pub fn attempts(&self) -> u32 {
        self.0.header.attempts
    }

    /// When its last run was due; of one that never ran, when it was to.
    pub fn due(&self) -> SystemTime {
        self.0.due.to_system()
    }

    /// How long after [`due`](Self::due) its last run started, by the clock of Redis. `None`
    /// where that is not known: it never ran, or who ran it was handed the job.
    pub fn lag(&self) -> Option<Duration> {
        self.0.lag
    }

    /// When it was first scheduled. `None` if its record cannot be read.
    pub fn first_scheduled_at(&self) -> Option<SystemTime> {
        self.0.first_scheduled
    }

    /// The headers it was scheduled with. None if its record cannot be read.
    pub fn headers(&self) -> &Headers {
        &self.0.header.headers
    }

    /// The payload. Empty if its record cannot be read.
    pub fn payload(&self) -> &Bytes {
        &self.0.payload
    }

    /// By what to tell that it was told twice: the same for the same end of the same job. One
    /// that was requeued and dies again is due anew, and has another.
    ///
    /// It begins with [`Job::idempotency_key`](crate::Job::idempotency_key), and says when its last
    /// run was due: a job that is taken over meanwhile has one attempt more, and the same.
    pub fn idempotency_key(&self) -> String {
        let first = self.0.first_scheduled.unwrap_or(SystemTime::UNIX_EPOCH);
        format!("{}-{}", idempotency_key(&self.0.key, first), self.0.due.0)
    }

    /// Where it was buried, `host:process`.
    pub fn instance(&self) -> &str {
        &self.0.instance
    }
}

impl fmt::Debug for DeadJob {
    /// Without payload and headers, which may be private, and large.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadJob")
            .field("key", &self.0.key)
            .field("reason", &self.reason())
            .field("attempts", &self.attempts())
            .finish_non_exhaustive()
    }
}
