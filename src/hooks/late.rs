//! A job that starts late, as a hook is told of it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::handler::Job;
use crate::key::JobKey;
use crate::time::UnixMs;

/// A job that starts later than its route allows; see
/// [`Worker::on_late`](crate::Worker::on_late). Cloning it is cheap.
#[derive(Clone)]
pub struct LateJob {
    job: Job,
    limit: Duration,
    untold: u64,
    instance: Arc<str>,
}

/// A start that is late.
#[derive(Clone, Copy)]
pub(crate) struct Start<'a> {
    pub(crate) job: &'a Job,
    pub(crate) limit: Duration,
}

impl LateJob {
    pub(super) fn new(start: Start<'_>, untold: u64, instance: Arc<str>) -> Self {
        LateJob {
            job: start.job.clone(),
            limit: start.limit,
            untold,
            instance,
        }
    }

    /// The job, as its handler has it.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// Its name, `app:module:biz:id`.
    pub fn key(&self) -> &JobKey {
        self.job.key()
    }

    /// How long after it was due it starts, by the clock of Redis.
    pub fn lag(&self) -> Duration {
        self.job.lag()
    }

    /// How late it may be, [`Handler::late_after`](crate::Handler::late_after).
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// How many other jobs of this worker started late, since the last one that was told, and
    /// were not told because too many hooks ran at that time.
    pub fn untold(&self) -> u64 {
        self.untold
    }

    /// By what to tell that it was told twice: the same for the same due time of the same job. It
    /// begins with [`Job::idempotency_key`](crate::Job::idempotency_key).
    pub fn idempotency_key(&self) -> String {
        let due = UnixMs::from_system(self.job.due()).unwrap_or_default();
        format!("{}-{due}", self.job.idempotency_key())
    }

    /// Where it starts, `host:process`.
    pub fn instance(&self) -> &str {
        &self.instance
    }
}

impl fmt::Debug for LateJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LateJob")
            .field("job", &self.job)
            .field("lag", &self.lag())
            .finish_non_exhaustive()
    }
}
