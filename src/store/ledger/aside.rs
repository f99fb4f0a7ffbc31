//! Due jobs that wait for the turn of their group, as `lua/lib/waiting.lua` marks them in `due`.

#[cfg(feature = "worker")]
use std::time::Instant;

#[cfg(feature = "worker")]
use crate::error::Result;
#[cfg(feature = "worker")]
use crate::store::{Ledger, from_value};
use crate::time::UnixMs;

/// What the score of a due job is higher by while it waits for the turn of its group.
pub(super) const ASIDE: u64 = 4_000_000_000_000_000;

/// The due time of a score in `due`.
pub(super) fn due_of(score: u64) -> UnixMs {
    UnixMs(score.checked_sub(ASIDE).unwrap_or(score))
}

#[cfg(feature = "worker")]
impl Ledger {
    /// Whether this job waits for the turn of its group.
    pub(crate) async fn is_aside(&self, id: &str, until: Instant) -> Result<bool> {
        let mut score = redis::cmd("ZSCORE");
        score.arg(&self.names.due).arg(id);
        let score: Option<f64> = from_value(self.server.command(&score, until).await?)?;
        Ok(score.is_some_and(|score| score >= ASIDE as f64 && score.is_finite()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_due_time_of_a_job_aside_is_that_of_its_schedule() {
        let script = include_str!("../../../lua/lib/waiting.lua");
        assert!(script.contains(&format!("local ASIDE = {ASIDE}\n")));
        assert_eq!(due_of(1_795_000_000_000), UnixMs(1_795_000_000_000));
        assert_eq!(due_of(ASIDE + 1_795_000_000_000), UnixMs(1_795_000_000_000));
    }
}
