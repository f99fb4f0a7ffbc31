//! Durable calls: their answer waits until the change is durable.
//!
//! [`Durably`] wraps an item of a batcher. After a batch is sent, its lane waits for replicas or
//! the append-only file. If a fail-over lost the batch meanwhile, the batch is sent again.

use std::time::Instant;

use super::asking::JobVerdict;
use super::batcher::BatchOperation;
use crate::durable::{Durable, Reached};
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Lane, Ledger, Word};

/// The pause before a batch that a fail-over lost is sent again.
const AGAIN: std::time::Duration = std::time::Duration::from_millis(50);

/// An item of a batch whose answer waits until its change is durable.
#[derive(Clone)]
pub(crate) struct Durably<Op> {
    pub(crate) item: Op,
    pub(crate) durable: Durable,
}

impl<Op: BatchOperation<Answer: JobVerdict> + Clone> BatchOperation for Durably<Op> {
    type Terms = Op::Terms;
    /// The answer of the item, and how durable its change is or why that is unknown.
    type Answer = (Op::Answer, Result<Reached>);

    fn gather(terms: &Self::Terms) -> (std::time::Duration, usize) {
        Op::gather(terms)
    }

    async fn send(
        ledger: &Ledger,
        lane: &mut Lane,
        terms: &Self::Terms,
        items: &[Self],
        until: Instant,
    ) -> Result<Vec<Self::Answer>> {
        let wanted: Vec<_> = items.iter().map(|item| Some(item.durable)).collect();
        let items: Vec<Op> = items.iter().map(|it| it.item.clone()).collect();
        let answers = send_durably(ledger, lane, terms, &items, &wanted, until).await?;
        let answers = answers.into_iter();
        Ok(answers
            .map(|(answer, reached)| (answer, reached.expect("each of them waits")))
            .collect())
    }

    fn bytes(&self) -> usize {
        self.item.bytes()
    }
}

/// Sends one batch and waits until each item with an entry in `wanted` is durable. If a fail-over
/// lost the batch meanwhile, sends it again.
///
/// # Errors
/// If the batch cannot be sent; [`ErrorKind::OutcomeUnknown`] if it was lost and no time is left
/// for a repeat.
pub(super) async fn send_durably<Op: BatchOperation<Answer: JobVerdict>>(
    ledger: &Ledger,
    lane: &mut Lane,
    terms: &Op::Terms,
    items: &[Op],
    wanted: &[Option<Durable>],
    until: Instant,
) -> Result<Vec<(Op::Answer, Option<Result<Reached>>)>> {
    loop {
        let answers = Op::send(ledger, lane, terms, items, until).await?;
        if answers.iter().any(|it| it.answered().answer == Word::Stale) {
            // The ledger has another layout and did nothing: there is nothing to wait for.
            let nothing = wanted.iter().map(|it| it.map(|_| Err(was_refused())));
            return Ok(answers.into_iter().zip(nothing).collect());
        }
        let Some(reached) = reach(ledger, lane, wanted, until).await else {
            if Instant::now() + AGAIN < until {
                tokio::time::sleep(AGAIN).await;
                continue;
            }
            return Err(Error::new(
                ErrorKind::OutcomeUnknown,
                "a fail-over forgot the call, and there was no time to make it again; it may be \
                 repeated",
            ));
        };
        return Ok(answers.into_iter().zip(reached).collect());
    }
}

/// The error for an item whose ledger refused it because of another layout.
fn was_refused() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the kind is being resharded, and the call was refused: try again",
    )
}

/// How durable the last call of a lane has become, for each entry of `wanted`; `None` if a
/// fail-over lost the call. Equal requirements are waited for once.
async fn reach(
    ledger: &Ledger,
    lane: &Lane,
    wanted: &[Option<Durable>],
    until: Instant,
) -> Option<Vec<Option<Result<Reached>>>> {
    let mut alike: Vec<Durable> = Vec::new();
    for durable in wanted.iter().flatten() {
        if !alike.contains(durable) {
            alike.push(*durable);
        }
    }
    let waits = alike
        .iter()
        .map(|durable| ledger.reached(lane, *durable, until));
    let mut told = Vec::with_capacity(alike.len());
    for reached in futures_util::future::join_all(waits).await {
        told.push(reached.transpose()?);
    }
    let of = |durable: &Durable| {
        let at = alike.iter().position(|known| known == durable)?;
        Some(match &told[at] {
            Ok(reached) => Ok(*reached),
            Err(error) => Err(error.duplicate()),
        })
    };
    Some(wanted.iter().map(|it| of(it.as_ref()?)).collect())
}
