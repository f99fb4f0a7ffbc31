//! How settlements travel: those of a worker gather for a while, those of a caller do not.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::batcher::BatchOperation;
use crate::error::Result;
use crate::key::Kind;
use crate::store::{Answered, DeadLimits, Lane, Ledger, Settlement, Verb};

/// Told of a kind and of how many of its dead letters fell to their limits.
pub(crate) type OnTrimmed = Arc<dyn Fn(&Kind, u64) + Send + Sync>;

/// What all settlements of an outbox have in common.
#[derive(Clone)]
pub(crate) struct SettleTerms {
    pub(crate) dead: DeadLimits,
    /// How long settlements gather, and how many are enough.
    pub(crate) gather: (Duration, usize),
    pub(crate) on_trimmed: Option<OnTrimmed>,
}

impl SettleTerms {
    /// For those who wait for the answer.
    pub(crate) fn at_once(dead: DeadLimits) -> Self {
        SettleTerms {
            dead,
            gather: (Duration::ZERO, 0),
            on_trimmed: None,
        }
    }
}

impl BatchOperation for Settlement {
    type Terms = SettleTerms;
    type Answer = Answered;

    fn gather(terms: &SettleTerms) -> (Duration, usize) {
        terms.gather
    }

    async fn send(
        ledger: &Ledger,
        lane: &mut Lane,
        terms: &SettleTerms,
        items: &[Self],
        until: Instant,
    ) -> Result<Vec<Answered>> {
        let (answers, trimmed) = ledger.settle(lane, items, terms.dead, until).await?;
        if let Some(told) = &terms.on_trimmed
            && trimmed > 0
        {
            told(ledger.kind(), trimmed);
        }
        Ok(answers)
    }

    fn bytes(&self) -> usize {
        match &self.verb {
            Verb::Done => 0,
            Verb::Later { header, .. } | Verb::Bury { header } => header.len() + self.payload_bytes,
        }
    }
}
