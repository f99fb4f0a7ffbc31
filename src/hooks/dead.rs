//! The argument of the hook for dead letters: [`DeadJob`].
//!
//! It is made from the record and the header of the coming dead letter, so a hook sees the same
//! reason. A record that cannot be read leaves its fields empty: the hook is called all the same.

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

/// A job that is about to become a dead letter: the argument of the hook that
/// [`Worker::on_dead`](crate::Worker::on_dead) sets.
///
/// A clone shares its contents, and is cheap.
///
/// ```
/// use keyfall::DeadJob;
///
/// fn report(job: &DeadJob) -> String {
///     format!("{} failed {} times: {}", job.key(), job.attempts(), job.reason())
/// }
/// ```
#[derive(Clone)]
pub struct DeadJob(Arc<Parts>);

/// The fields of a [`DeadJob`], shared by its clones.
struct Parts {
    key: JobKey,
    /// The header of the dead letter; empty if it cannot be parsed.
    header: Header,
    /// When the last run was due.
    due: UnixMs,
    /// From `due` to the start of the last run, if it started in this process.
    lag: Option<Duration>,
    /// `None` without a readable record.
    first_scheduled: Option<SystemTime>,
    payload: Bytes,
    /// This worker, as `host:process id`.
    instance: Arc<str>,
}

impl DeadJob {
    /// Copies the facts for the hook out of `letter`. The payload is shared, not copied.
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

    /// The name of the job, `app:module:biz:id`.
    pub fn key(&self) -> &JobKey {
        &self.0.key
    }

    /// Why the job dies: its last error, or the reason that further attempts are pointless. Empty
    /// if no reason is recorded.
    pub fn reason(&self) -> &str {
        self.0.header.error.as_deref().unwrap_or_default()
    }

    /// How many attempts the job had, the last one included; 0 if it never ran.
    pub fn attempts(&self) -> u32 {
        self.0.header.attempts
    }

    /// The due time of the last run; for a job that never ran, the due time of its first run.
    pub fn due(&self) -> SystemTime {
        self.0.due.to_system()
    }

    /// The time from [`due`](Self::due) to the start of the last run, by the clock of Redis.
    ///
    /// `None` if this process does not know it: the job never ran, or it was handed over and a
    /// consumer ran it.
    pub fn lag(&self) -> Option<Duration> {
        self.0.lag
    }

    /// When the job was first scheduled. `None` if its record cannot be read.
    pub fn first_scheduled_at(&self) -> Option<SystemTime> {
        self.0.first_scheduled
    }

    /// The headers that the job was scheduled with. Empty if they cannot be read.
    pub fn headers(&self) -> &Headers {
        &self.0.header.headers
    }

    /// The payload of the job, as it was scheduled. Empty if the record cannot be read.
    pub fn payload(&self) -> &Bytes {
        &self.0.payload
    }

    /// Idempotency key of this report: two calls of the hook for the same end of the same job have
    /// the same key. A job that is requeued and dies again has a new due time, and so a new key.
    ///
    /// The key is [`Job::idempotency_key`](crate::Job::idempotency_key), a hyphen, and the due time
    /// of the last run in milliseconds since 1970:
    /// `app1:trans:notice:42@1763712345678901-1763712400000`. The number of attempts is no part of
    /// it: a job that another worker takes over meanwhile has one attempt more, and the same key.
    pub fn idempotency_key(&self) -> String {
        let first = self.0.first_scheduled.unwrap_or(SystemTime::UNIX_EPOCH);
        format!("{}-{}", idempotency_key(&self.0.key, first), self.0.due.0)
    }

    /// The worker that buries the job, as `host:process id`.
    pub fn instance(&self) -> &str {
        &self.0.instance
    }
}

impl fmt::Debug for DeadJob {
    /// Leaves out payload and headers, which may be private, and large.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeadJob")
            .field("key", &self.0.key)
            .field("reason", &self.reason())
            .field("attempts", &self.attempts())
            .finish_non_exhaustive()
    }
}
