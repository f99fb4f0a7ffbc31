//! The payload of a job: its version, and the way in which its runs are to end.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::journal::Version;

/// The reason that handlers and consumers give for a job that they bury.
pub(crate) const NO_MORE: &str = "no more";

/// The payload of a job.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) version: Version,
    pub(crate) plan: Plan,
}

/// The act of the handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Plan {
    Done,
    /// Is done after so many ms, even if the lease is over.
    Slow(u64),
    /// Fails in its first attempt.
    Retry,
    /// Asks for another run in its first attempt.
    Again,
    /// Snoozes, with a probability of one half.
    Snooze,
    Bury,
    /// Does not end by itself.
    Hang,
    Panic,
    /// Holds a thread of the runtime for so many ms.
    Block(u64),
    /// Kills its process.
    Kill,
}

impl Plan {
    /// Whether it can only end as a dead letter.
    pub(crate) fn is_deadly(self) -> bool {
        matches!(self, Plan::Bury | Plan::Hang | Plan::Panic | Plan::Kill)
    }

    /// The number of its attempts, where it differs from the route's.
    pub(crate) fn attempts(self) -> Option<u32> {
        matches!(self, Plan::Hang | Plan::Panic | Plan::Kill).then_some(2)
    }

    pub(crate) fn timeout(self) -> Option<Duration> {
        (self == Plan::Hang).then_some(Duration::from_millis(500))
    }
}
