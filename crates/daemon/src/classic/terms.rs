//! What is said of the classic interface, and the route that follows from it.

use std::num::NonZeroU32;
use std::time::Duration;

use keyfall::target::Pull;
use keyfall::{Handler, RetryPolicy, Route};

use super::networks::Networks;

/// What the configuration says of it.
#[derive(Debug, Clone)]
pub struct Terms {
    /// `app:module`, below which the topics are.
    pub prefix: String,
    /// How long a consumer has a job whose push does not say.
    pub ttr: Duration,
    pub existing: Existing,
    /// How often a job is delivered at the most.
    pub deliveries: Option<NonZeroU32>,
    /// Who may use it, beside this machine.
    pub allow: Networks,
}

impl Terms {
    /// Which jobs can be popped.
    pub fn pattern(&self) -> String {
        pattern(&self.prefix)
    }

    /// Their route. What is popped is pulled from `pull`.
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

/// What becomes of a push whose id exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// It takes the place of the job that is there.
    Replace,
    /// Nothing is done.
    Refuse,
}

/// The pattern of the topics below a prefix.
pub fn pattern(prefix: &str) -> String {
    format!("{prefix}:*:*")
}
