//! Attempts that failed, as the log tells of them: each in a line, and of many some.

use crate::key::Kind;
use crate::line_limit::LineLimit;
use crate::record::Header;
use crate::store::ledger::reply::ReplyWord;
use crate::store::ledger::work::{Settlement, Verb};
use crate::time::Utc;

/// When the next attempt is due, or why there is none; nothing if the answer says that the attempt
/// did not count.
fn next(answer: ReplyWord) -> Option<String> {
    match answer {
        ReplyWord::Later(due) => Some(Utc(due).to_string()),
        ReplyWord::Superseded => Some("none: it was scheduled anew meanwhile".to_owned()),
        ReplyWord::Cancelled => Some("none: it was cancelled meanwhile".to_owned()),
        _ => None,
    }
}

/// What was told of one ledger lately.
#[derive(Debug)]
pub(in crate::store) struct Failures(LineLimit);

impl Failures {
    pub(in crate::store) fn new() -> Self {
        Failures(LineLimit::new())
    }

    /// Tells of an attempt whose settlement was answered so, if it has failed and was not the last:
    /// whoever buries a job tells of that.
    pub(in crate::store) fn tell(&self, kind: &Kind, settlement: &Settlement, answer: ReplyWord) {
        let Verb::Later { header, step, .. } = &settlement.verb else {
            return;
        };
        let Some(next) = next(answer) else { return };
        let beyond = "more attempts failed than are told one by one";
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
    fn an_attempt_that_failed_is_told_of_if_its_job_was_cancelled_meanwhile() {
        let told = next(ReplyWord::Cancelled).expect("it is told");
        assert!(told.contains("cancelled"), "{told}");
        assert_eq!(next(ReplyWord::Foreign), None);
    }
}
