//! As what the answers of a ledger are counted.

use crate::store::ledger::reply::{Answered, ReplyWord};
#[cfg(feature = "worker")]
use crate::store::ledger::work::Verb;

/// How many jobs were scheduled.
pub(in crate::store) fn scheduled(answers: &[Answered]) -> u64 {
    let is_accepted = |answered: &&Answered| {
        matches!(
            answered.answer,
            ReplyWord::Created(_) | ReplyWord::Replaced(_) | ReplyWord::Succeeds(_)
        )
    };
    answers.iter().filter(is_accepted).count() as u64
}

/// How many jobs were there to be cancelled.
pub(in crate::store) fn cancelled(answers: &[Answered]) -> u64 {
    let is_found =
        |answered: &&Answered| matches!(answered.answer, ReplyWord::Cancelled | ReplyWord::Running);
    answers.iter().filter(is_found).count() as u64
}

/// What became of plain keys; nothing for a key that changed no job.
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

/// How a run ended that was settled with this verb, by the answer to it.
#[cfg(feature = "worker")]
pub(in crate::store) fn outcome(verb: &Verb, answer: ReplyWord) -> &'static str {
    match (answer, verb) {
        (ReplyWord::Gone | ReplyWord::Foreign, _) => "late",
        (ReplyWord::Superseded, Verb::Later { step: "failed", .. }) => "failed",
        (ReplyWord::Superseded, _) => "replaced",
        (ReplyWord::Cancelled, _) => "cancelled",
        (_, Verb::Done) => "done",
        (_, Verb::Bury { .. }) => "buried",
        (_, Verb::Later { step, .. }) => step,
    }
}
