//! The lapsed leases of one ledger, for the log: each is logged once.

use std::collections::HashMap;

use crate::key::Kind;
use crate::line_limit::LineLimit;

/// The jobs whose lapsed leases were logged, until the leases are taken over.
pub(super) struct Lapses {
    /// By job id: the round in which the lapsed lease was last found.
    told: HashMap<String, u64>,
    /// How many times all lapsed leases were read, page by page.
    round: u64,
    /// Limits the number of lines in the log.
    lines: LineLimit,
}

impl Lapses {
    /// Nothing logged yet.
    pub(super) fn new() -> Self {
        Lapses {
            told: HashMap::new(),
            round: 0,
            lines: LineLimit::new(),
        }
    }

    /// Takes in a page of lapsed leases, and logs the new ones. While `may_revive`, their owners
    /// may still renew them, and new ones are not logged.
    pub(super) fn found(&mut self, kind: &Kind, page: &[String], may_revive: bool) {
        let beyond = "more leases have lapsed than are logged one by one";
        for id in page {
            if self.is_new(id, may_revive) && self.lines.allows(kind, beyond) {
                tracing::warn!(key = %format_args!("{kind}:{id}"), "its lease has lapsed");
            }
        }
    }

    /// Whether a lapsed lease has to be logged.
    fn is_new(&mut self, id: &str, may_revive: bool) -> bool {
        match self.told.get_mut(id) {
            Some(round) => *round = self.round,
            None if may_revive => {}
            None => {
                self.told.insert(id.to_owned(), self.round);
                return true;
            }
        }
        false
    }

    /// Ends a round in which all lapsed leases were read. A lease that was found neither in this
    /// round nor in the one before was taken over. One missing round is no proof: a page can skip a
    /// lease when others before it go.
    pub(super) fn end_round(&mut self) {
        self.told.retain(|_, round| *round + 1 >= self.round);
        self.round += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_new_again_only_after_two_rounds_of_absence() {
        let mut lapses = Lapses::new();
        let news = |lapses: &mut Lapses, ids: &[&str]| {
            let news = ids.iter().filter(|id| lapses.is_new(id, false)).count();
            lapses.end_round();
            news
        };
        assert_eq!(news(&mut lapses, &["a", "b"]), 2);
        assert_eq!(news(&mut lapses, &["b"]), 0);
        // It was passed over.
        assert_eq!(news(&mut lapses, &["a", "b"]), 0);
        for _ in 0..2 {
            assert_eq!(news(&mut lapses, &["b"]), 0);
        }
        assert_eq!(lapses.told.len(), 1, "it is forgotten");
        assert_eq!(news(&mut lapses, &["a", "b"]), 1);
    }

    #[test]
    fn a_lease_that_may_be_revived_is_reported_later() {
        let mut lapses = Lapses::new();
        assert!(!lapses.is_new("a", true));
        assert!(lapses.is_new("a", false));
        for _ in 0..3 {
            assert!(!lapses.is_new("a", true));
            lapses.end_round();
        }
        assert!(!lapses.is_new("a", false));
    }
}
