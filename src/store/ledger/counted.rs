//! Maps the answers of a ledger to the counters and metrics of this process.

use crate::store::ledger::reply::{Answered, ReplyWord};
#[cfg(feature = "worker")]
use crate::store::ledger::work::Verb;

/// The number of jobs that were created or replaced, or stored as successors.
pub(in crate::store) fn scheduled(answers: &[Answered]) -> u64 {
    let is_accepted = |answered: &&Answered| {
        matches!(
            answered.answer,
            ReplyWord::Created(_) | ReplyWord::Replaced(_) | ReplyWord::Succeeds(_)
        )
    };
    answers.iter().filter(is_accepted).count() as u64
}

/// The number of jobs that a cancel has found, running ones included.
pub(in crate::store) fn cancelled(answers: &[Answered]) -> u64 {
    let is_found =
        |answered: &&Answered| matches!(answered.answer, ReplyWord::Cancelled | ReplyWord::Running);
    answers.iter().filter(is_found).count() as u64
}

/// For each plain key that changed a job, the label of the change.
#[cfg(feature = "worker")]
pub(in crate::store) fn adopted(answers: &[Answered]) -> impl Iterator<Item = &'static str> {
    answers.iter().filter_map(|answered| match answered.answer {
        ReplyWord::Created(_) => Some("created"),
        ReplyWord::Replaced(_) => Some("replaced"),
        ReplyWord::Succeeds(_) => Some("succeeds"),
        ReplyWord::Moved(_) | ReplyWord::SuccessorMoved(_) => Some("moved"),
        ReplyWord::Cancelled => Some("cancelled"),
        _ => None,
    })
}

/// The label of the end of a run, by the verb of its settlement and the answer. `late` means that
/// the lease was lost before.
#[cfg(feature = "worker")]
pub(in crate::store) fn outcome(verb: &Verb, answer: ReplyWord) -> &'static str {
    match (answer, verb) {
        (ReplyWord::Gone | ReplyWord::Foreign, _) => "late",
        (ReplyWord::Superseded, Verb::Later { step: "failed", .. }) => "failed",
        (ReplyWord::Superseded, _) => "replaced",
        (ReplyWord::Cancelled, _) => "cancelled",
        (_, Verb::Done) => "done",
        (_, Verb::Skip { .. }) => "skipped",
        (_, Verb::Bury { .. }) => "buried",
        (_, Verb::Later { step, .. }) => step,
    }
}
