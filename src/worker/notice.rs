//! Notices: events that the owner of a worker should know. The worker logs each of them, and calls
//! the hook that [`Worker::on_notice`](crate::Worker::on_notice) has set.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::key::{JobKey, Kind};
use crate::store::{Health, HealthReport};

/// An event that the owner of a worker should know; see
/// [`Worker::on_notice`](crate::Worker::on_notice). More variants may be added.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// Jobs of this kind wait, and no live instance has a route for them. One of the instances
    /// sends this notice, once for each such period.
    Unrouted {
        /// Kind of the jobs.
        kind: Kind,
        /// Number of waiting jobs, over all shards of the kind.
        jobs: u64,
    },
    /// An instance has a route again for the jobs of a kind that was reported as
    /// [`Unrouted`](Self::Unrouted), or none of them waits any more.
    Routed {
        /// Kind of the jobs.
        kind: Kind,
    },
    /// A job ended as a dead letter.
    Buried {
        /// Key of the job.
        key: JobKey,
        /// Number of the dead letter within its kind.
        letter: u64,
        /// Reason: the error of the last attempt, or why there was none.
        reason: String,
    },
    /// Redis dropped dead letters of this kind, because they exceeded the limits of number and age
    /// of [`Worker::dead_letters`](crate::Worker::dead_letters).
    Trimmed {
        /// Kind of the letters.
        kind: Kind,
        /// Number of letters that were dropped this time; at least 1.
        letters: u64,
    },
    /// Redis does not serve: it is unreachable, loads its data, refuses the login or takes no
    /// writes. Each of these is reported at most once until [`Back`](Self::Back). The worker
    /// continues as soon as Redis serves again.
    Away {
        /// The error, with a remedy if there is one.
        error: String,
        /// Address of the server, without credentials.
        server: String,
    },
    /// Redis serves again.
    Back {
        /// Length of the outage.
        after: Duration,
        /// Address of the server, without credentials.
        server: String,
    },
}

/// The function that [`Worker::on_notice`](crate::Worker::on_notice) takes.
type Hook = dyn Fn(&Notice) + Send + Sync;

/// Sends notices to the log, and to the hook if one is set. Cheap to clone; clones share the hook.
#[derive(Clone, Default)]
pub(crate) struct Notices(Option<Arc<Hook>>);

impl Notices {
    /// Sends notices to this hook, as well as to the log.
    pub(crate) fn to(hook: impl Fn(&Notice) + Send + Sync + 'static) -> Self {
        Notices(Some(Arc::new(hook)))
    }

    /// Logs a notice, and calls the hook on the current thread.
    pub(crate) fn tell(&self, notice: &Notice) {
        match notice {
            Notice::Unrouted { kind, jobs } => tracing::warn!(
                %kind,
                jobs,
                "no live instance has a route for these jobs"
            ),
            Notice::Routed { kind } => tracing::info!(
                %kind,
                "all jobs of this kind have a route again"
            ),
            Notice::Buried {
                key,
                letter,
                reason,
            } => tracing::warn!(%key, letter, reason, "a job ended as a dead letter"),
            Notice::Trimmed { kind, letters } => {
                tracing::warn!(
                    %kind, letters,
                    "old dead letters were deleted, because they exceeded their limits"
                );
            }
            Notice::Away { error, .. } => tracing::warn!(error, "Redis is unavailable"),
            Notice::Back { after, server } => {
                tracing::info!(?after, server, "Redis is available again");
            }
        }
        if let Some(hook) = &self.0 {
            hook(notice);
        }
    }

    /// The observer that turns outages of the server with this address into notices.
    pub(crate) fn health(self, server: String) -> Health {
        Health::new(move |report| {
            let server = server.clone();
            self.tell(&match report {
                HealthReport::Away { error } => Notice::Away { error, server },
                HealthReport::Back { after } => Notice::Back { after, server },
            });
        })
    }

    /// Reports that this many letters of a kind were trimmed; 0 is not reported.
    pub(crate) fn trimmed(&self, kind: &Kind, letters: u64) {
        if letters > 0 {
            let kind = kind.clone();
            self.tell(&Notice::Trimmed { kind, letters });
        }
    }
}

impl fmt::Debug for Notices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() {
            "Notices(hook)"
        } else {
            "Notices"
        })
    }
}
