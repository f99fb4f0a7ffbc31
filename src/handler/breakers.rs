//! The circuit breakers of a target.

use std::fmt::Debug;

/// The hosts that a target leaves alone for a while because they are down.
pub(crate) trait Breakers: Debug + Send + Sync {
    /// Which these are.
    fn open(&self) -> Vec<String>;

    /// Calls this host again from now on. Returns whether it was left alone.
    fn close(&self, host: &str) -> bool;
}
