//! What the owner of a worker should know: logged, and told to whoever asked to be told.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::key::{JobKey, Kind};
use crate::store::{Health, HealthReport};

/// Something that the owner of a worker should know; see
/// [`Worker::on_notice`](crate::Worker::on_notice).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// Jobs of this kind wait, and no live instance has a route for them. Told by one of the
    /// instances, once.
    Unrouted {
        /// Their kind.
        kind: Kind,
        /// How many of them wait.
        jobs: u64,
    },
    /// An instance has a route again for the jobs of a kind that was told as
    /// [`Unrouted`](Self::Unrouted), or none of them waits any more.
    Routed {
        /// Their kind.
        kind: Kind,
    },
    /// A job ended as a dead letter.
    Buried {
        /// Its name.
        key: JobKey,
        /// The number of the letter.
        letter: u64,
        /// Why.
        reason: String,
    },
    /// Dead letters of this kind fell to the limits of their number and age, and are lost.
    Trimmed {
        /// Their kind.
        kind: Kind,
        /// How many fell this time.
        letters: u64,
    },
    /// Redis does not serve: it cannot be reached, is loading, lets nobody in or takes no
    /// writes. Each of these is told once at the most until it is [`Back`](Self::Back). The
    /// worker goes on as soon as it can.
    Away {
        /// What is wrong, and what can be done.
        error: String,
        /// Which Redis it is, of several; without credentials.
        server: String,
    },
    /// Redis serves again.
    Back {
        /// For how long it did not.
        after: Duration,
        /// Which Redis it is, of several; without credentials.
        server: String,
    },
}

type Hook = dyn Fn(&Notice) + Send + Sync;

/// Tells notices.
#[derive(Clone, Default)]
pub(crate) struct Notices(Option<Arc<Hook>>);

impl Notices {
    pub(crate) fn to(hook: impl Fn(&Notice) + Send + Sync + 'static) -> Self {
        Notices(Some(Arc::new(hook)))
    }

    pub(crate) fn tell(&self, notice: &Notice) {
        match notice {
            Notice::Unrouted { kind, jobs } => tracing::warn!(
                %kind,
                jobs,
                "no live instance has a route for these jobs"
            ),
            Notice::Routed { kind } => tracing::info!(%kind, "no job is without a route any more"),
            Notice::Buried {
                key,
                letter,
                reason,
            } => tracing::warn!(%key, letter, reason, "a job ended as a dead letter"),
            Notice::Trimmed { kind, letters } => {
                tracing::warn!(%kind, letters, "old dead letters fell to their limits");
            }
            Notice::Away { error, .. } => tracing::warn!(error, "Redis does not serve"),
            Notice::Back { after, server } => {
                tracing::info!(?after, server, "Redis serves again");
            }
        }
        if let Some(hook) = &self.0 {
            hook(notice);
        }
    }

    /// What there is to tell about the Redis at this address.
    pub(crate) fn health(self, server: String) -> Health {
        Health::new(move |report| {
            let server = server.clone();
            self.tell(&match report {
                HealthReport::Away { error } => Notice::Away { error, server },
                HealthReport::Back { after } => Notice::Back { after, server },
            });
        })
    }

    /// So many letters of a kind were trimmed, if any.
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
