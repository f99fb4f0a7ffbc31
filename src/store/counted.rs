//! As what the answers of a ledger are counted.

use super::reply::{Answer, Answered};
#[cfg(feature = "worker")]
use super::work::Verb;

/// How many jobs were scheduled.
pub(super) fn scheduled(answers: &[Answered]) -> u64 {
    let is_accepted = |answered: &&Answered| {
        matches!(
            answered.answer,
            Answer::Created(_) | Answer::Replaced(_) | Answer::Succeeds(_)
        )
    };
    answers.iter().filter(is_accepted).count() as u64
}

/// How many jobs were there to be cancelled.
pub(super) fn cancelled(answers: &[Answered]) -> u64 {
    let is_found =
        |answered: &&Answered| matches!(answered.answer, Answer::Cancelled | Answer::Running);
    answers.iter().filter(is_found).count() as u64
}

/// What became of plain keys; nothing for a key that changed no job.
#[cfg(feature = "worker")]
pub(super) fn adopted(answers: &[Answered]) -> impl Iterator<Item = &'static str> {
    answers.iter().filter_map(|answered| match answered.answer {
        Answer::Created(_) => Some("created"),
        Answer::Replaced(_) => Some("replaced"),
        Answer::Succeeds(_) => Some("succeeds"),
        Answer::Moved(_) | Answer::SuccessorMoved(_) => Some("moved"),
        Answer::Cancelled => Some("cancelled"),
        _ => None,
    })
}

/// How a run ended that was settled with this verb, by the answer to it.
#[cfg(feature = "worker")]
pub(super) fn outcome(verb: &Verb, answer: Answer) -> &'static str {
    match (answer, verb) {
        (Answer::Gone | Answer::Foreign, _) => "late",
        (Answer::Superseded, Verb::Later { step: "failed", .. }) => "failed",
        (Answer::Superseded, _) => "replaced",
        (Answer::Cancelled, _) => "cancelled",
        (_, Verb::Done) => "done",
        (_, Verb::Bury { .. }) => "buried",
        (_, Verb::Later { step, .. }) => step,
    }
}
