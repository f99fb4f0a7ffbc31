//! The argument of the hook for late starts: [`LateJob`], and [`Start`], from which the worker
//! makes it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::handler::Job;
use crate::key::JobKey;
use crate::time::UnixMs;

/// A job that starts later than its route allows: the argument of the hook that
/// [`Worker::on_late`](crate::Worker::on_late) sets.
///
/// A clone shares the job, and is cheap.
///
/// ```
/// use keyfall::LateJob;
///
/// fn report(late: &LateJob) -> String {
///     format!("{} starts {:?} late, {} others unreported", late.key(), late.lag(), late.untold())
/// }
/// ```
#[derive(Clone)]
pub struct LateJob {
    job: Job,
    limit: Duration,
    /// Late starts before this one for which no hook was called.
    untold: u64,
    /// This worker, as `host:process id`.
    instance: Arc<str>,
}

/// A late start, as the worker reports it to its hooks.
#[derive(Clone, Copy)]
pub(crate) struct Start<'a> {
    /// The job that starts now.
    pub(crate) job: &'a Job,
    /// The time after its due time within which it should have started.
    pub(crate) limit: Duration,
}

impl LateJob {
    /// `untold` is the number of late starts since the last call of the hook for which it was not
    /// called.
    pub(super) fn new(start: Start<'_>, untold: u64, instance: Arc<str>) -> Self {
        LateJob {
            job: start.job.clone(),
            limit: start.limit,
            untold,
            instance,
        }
    }

    /// The job, as its handler receives it.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// The name of the job, `app:module:biz:id`.
    pub fn key(&self) -> &JobKey {
        self.job.key()
    }

    /// The time from its due time to this start, by the clock of Redis.
    pub fn lag(&self) -> Duration {
        self.job.lag()
    }

    /// The latest start that its route allows, as a time after the due time:
    /// [`Handler::late_after`](crate::Handler::late_after), or else the default of the worker.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// The number of jobs of this worker that started late since the last call of the hook without
    /// a call of their own, because 256 calls were already running.
    pub fn untold(&self) -> u64 {
        self.untold
    }

    /// Idempotency key of this report: two reports of the same due time of the same job have the
    /// same key.
    ///
    /// It is [`Job::idempotency_key`](crate::Job::idempotency_key), a hyphen, and the due time in
    /// milliseconds since 1970.
    pub fn idempotency_key(&self) -> String {
        let due = UnixMs::from_system(self.job.due()).unwrap_or_default();
        format!("{}-{due}", self.job.idempotency_key())
    }

    /// The worker on which the job starts, as `host:process id`.
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
