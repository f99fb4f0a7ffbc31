//! [`CopyTerms`]: how the changes of jobs wait for a copy.

use super::{KindTerms, checked};
use crate::error::Result;

/// The least and the most changed jobs that may wait.
const WAITING: (u64, u64) = (1_000, 100_000_000);

/// How the pending jobs of a kind are copied to a database, such as PostgreSQL. See
/// [`Selection::copy`](crate::Selection::copy).
///
/// ```
/// use keyfall::CopyTerms;
///
/// let terms = CopyTerms::new().waiting(200_000);
/// # let _ = terms;
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyTerms {
    waiting: u64,
}

impl Default for CopyTerms {
    fn default() -> Self {
        CopyTerms::new()
    }
}

impl CopyTerms {
    /// Up to 1,000,000 changed jobs wait.
    pub const fn new() -> Self {
        CopyTerms { waiting: 1_000_000 }
    }

    /// How many changed jobs may wait in each ledger of the kind while the copy is away, from 1,000 to
    /// 100 million; each takes some 100 bytes of Redis. Beyond that no change is noted, and all jobs
    /// of the ledger are copied again once the copy is back. Defaults to 1,000,000.
    pub const fn waiting(mut self, jobs: u64) -> Self {
        self.waiting = jobs;
        self
    }

    /// How many changed jobs may wait in each ledger.
    pub fn get_waiting(&self) -> u64 {
        self.waiting
    }

    /// The same terms, if they can be kept. Setting them checks them as well.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidSetting`](crate::ErrorKind::InvalidSetting), naming the setting, the rule
    /// and the remedy.
    pub fn check(self) -> Result<Self> {
        let (least, most) = WAITING;
        let is_right = (least..=most).contains(&self.waiting);
        let fault = format!(
            "`waiting` is {} jobs, and bounds what Redis holds while the copy is away: write {least} \
             to {most}",
            self.waiting
        );
        checked(self, (!is_right).then_some(fault))
    }
}

impl KindTerms for CopyTerms {
    const FIELD: &'static str = "copy";
    const DONE: &'static str = "copied";

    fn rule_text(&self) -> String {
        self.waiting.to_string()
    }

    fn of_rule(text: &str) -> Option<(Self, &str)> {
        let (waiting, rest) = text.split_once(' ')?;
        let waiting = waiting.parse().ok()?;
        Some((CopyTerms { waiting }, rest))
    }

    fn check(self) -> Result<Self> {
        CopyTerms::check(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_read_as_it_was_written() {
        let terms = CopyTerms::new().waiting(7_000);
        let text = format!("{} 99 anna", terms.rule_text());
        assert_eq!(CopyTerms::of_rule(&text), Some((terms, "99 anna")));
        for damaged in ["", "1", "x 99 anna", "-1 99 anna"] {
            assert_eq!(CopyTerms::of_rule(damaged), None, "{damaged}");
        }
    }

    #[test]
    fn terms_out_of_range_are_refused_by_name() {
        for waiting in [0, 999, 100_000_001] {
            let error = CopyTerms::new().waiting(waiting).check().unwrap_err();
            assert!(error.to_string().contains("`waiting`"), "{error}");
        }
        assert!(CopyTerms::new().check().is_ok());
    }
}
