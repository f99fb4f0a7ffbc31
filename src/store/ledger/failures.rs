//! Log lines for failed attempts that are retried. The number of lines of a ledger is limited;
//! beyond the limit, one line says that there were more.

use crate::key::Kind;
use crate::line_limit::LineLimit;
use crate::record::Header;
use crate::store::ledger::reply::ReplyWord;
use crate::store::ledger::work::{Settlement, Verb};
use crate::time::Utc;

/// The text for the next attempt: its due time, or the reason why there is none. `None` if the
/// answer says that the attempt did not count.
fn next(answer: ReplyWord) -> Option<String> {
    match answer {
        ReplyWord::Later(due) => Some(Utc(due).to_string()),
        ReplyWord::Superseded => Some("none: another job took its place".to_owned()),
        ReplyWord::Cancelled => Some("none: it was cancelled meanwhile".to_owned()),
        _ => None,
    }
}

/// The limit of lines for one ledger.
#[derive(Debug)]
pub(in crate::store) struct Failures(LineLimit);

impl Failures {
    /// A limit with no line used.
    pub(in crate::store) fn new() -> Self {
        Failures(LineLimit::new())
    }

    /// Logs a failed attempt that was not the last one, with the answer to its settlement. The
    /// worker itself logs a job that becomes a dead letter.
    pub(in crate::store) fn tell(&self, kind: &Kind, settlement: &Settlement, answer: ReplyWord) {
        let Verb::Later { header, step, .. } = &settlement.verb else {
            return;
        };
        let Some(next) = next(answer) else { return };
        let beyond = "more attempts failed than are logged one by one";
        if *step != "failed" || !self.0.allows(kind, beyond) {
            return;
        }
        let (attempt, error) = Header::told_by(header).unwrap_or_default();
        tracing::warn!(key = %settlement.key, attempt, error, next, "an attempt failed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_attempt_is_reported_if_its_job_was_cancelled_meanwhile() {
        let told = next(ReplyWord::Cancelled).expect("it is told");
        assert!(told.contains("cancelled"), "{told}");
        assert_eq!(next(ReplyWord::Foreign), None);
    }
}
