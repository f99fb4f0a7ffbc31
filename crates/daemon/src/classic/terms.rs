//! The settings of the classic interface, and the route that follows from them.

use std::num::NonZeroU32;
use std::time::Duration;

use keyfall::target::Pull;
use keyfall::{Handler, RetryPolicy, Route};

use super::networks::Networks;

/// The settings of the interface.
#[derive(Debug, Clone)]
pub struct Terms {
    /// `app:module`, below which the topics are.
    pub prefix: String,
    /// The lease of a consumer, if the push does not name one.
    pub ttr: Duration,
    pub existing: Existing,
    /// The most deliveries of a job.
    pub deliveries: Option<NonZeroU32>,
    /// The clients that may use it, beside this machine.
    pub allow: Networks,
}

impl Terms {
    /// The pattern of the jobs that can be popped.
    pub fn pattern(&self) -> String {
        pattern(&self.prefix)
    }

    /// The route of the topics. Popped jobs are pulled from `pull`.
    pub fn route(&self, pull: &Pull) -> Route {
        pull.clone().lease(self.ttr).retry(self.retry())
    }

    /// A delivery that was not finished is followed by another one at once.
    pub fn retry(&self) -> RetryPolicy {
        let deliveries = self.deliveries.map_or(u32::MAX, NonZeroU32::get);
        let at_once = RetryPolicy::fixed(Duration::ZERO).expect("zero is no long delay");
        at_once.attempts(deliveries)
    }
}

/// The effect of a push with an existing id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// It takes the place of the job that is there.
    Replace,
    /// The push is refused.
    Refuse,
}

/// The pattern of the topics below a prefix.
pub fn pattern(prefix: &str) -> String {
    format!("{prefix}:*:*")
}
