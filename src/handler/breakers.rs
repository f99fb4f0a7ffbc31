//! The circuit breakers of a target, as routes and workers see them.

use std::fmt::Debug;

/// Circuit breakers of a target: hosts that it does not call for a while because they are down.
pub(crate) trait Breakers: Debug + Send + Sync {
    /// The names of the hosts whose breakers are open.
    fn open(&self) -> Vec<String>;

    /// Closes the breaker of this host, so that the target calls it again. Returns whether it was
    /// open.
    fn close(&self, host: &str) -> bool;
}
