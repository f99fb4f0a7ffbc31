//! Settlements in batches. Settlements of a worker are collected for a while; settlements of a
//! caller leave at once.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::batcher::BatchOperation;
use crate::error::Result;
use crate::key::Kind;
use crate::store::{Answered, DeadLimits, Lane, Ledger, Next, Settlement, Verb};

/// Callback with a kind and the number of its dead letters that the limits removed.
pub(crate) type OnTrimmed = Arc<dyn Fn(&Kind, u64) + Send + Sync>;

/// The terms that all settlements of a batcher share.
#[derive(Clone)]
pub(crate) struct SettleTerms {
    /// The limits of dead letters by number and age.
    pub(crate) dead: DeadLimits,
    /// How long a lane collects settlements, and the number at which it stops waiting.
    pub(crate) gather: (Duration, usize),
    /// Called when the limits remove dead letters.
    pub(crate) on_trimmed: Option<OnTrimmed>,
}

impl SettleTerms {
    /// Terms for callers that wait for the answer: nothing is collected.
    pub(crate) fn at_once(dead: DeadLimits) -> Self {
        SettleTerms {
            dead,
            gather: (Duration::ZERO, 0),
            on_trimmed: None,
        }
    }

    /// Tells the owner of the batcher that the limits removed dead letters, if they did.
    fn tell_trimmed(&self, kind: &Kind, trimmed: u64) {
        if let Some(told) = &self.on_trimmed
            && trimmed > 0
        {
            told(kind, trimmed);
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
        terms.tell_trimmed(ledger.kind(), trimmed);
        Ok(answers)
    }

    fn bytes(&self) -> usize {
        let next = match &self.next {
            Next::Unknown | Next::Nothing => 0,
            Next::At(_, header) => header.len() + self.payload_bytes,
        };
        let verb = match &self.verb {
            Verb::Done | Verb::Skip { .. } => 0,
            Verb::Later { header, .. } | Verb::Bury { header } => header.len() + self.payload_bytes,
        };
        next + verb
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::time::UnixMs;

    fn settlement(verb: Verb) -> Settlement {
        Settlement {
            key: "a:b:c:1".parse().unwrap(),
            token: "token-1".into(),
            verb,
            next: Next::Unknown,
            payload_bytes: 1000,
        }
    }

    #[test]
    fn a_worker_collects_settlements_for_a_while() {
        let gather = (Duration::from_millis(3), 16);
        let terms = SettleTerms {
            gather,
            ..SettleTerms::at_once(DeadLimits::default())
        };
        assert_eq!(Settlement::gather(&terms), gather);
        let at_once = SettleTerms::at_once(DeadLimits::default());
        assert_eq!(Settlement::gather(&at_once), (Duration::ZERO, 0));
    }

    #[test]
    fn the_owner_hears_how_many_dead_letters_were_dropped() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let hear = told.clone();
        let terms = SettleTerms {
            on_trimmed: Some(Arc::new(move |kind: &Kind, letters| {
                hear.lock().unwrap().push((kind.to_string(), letters));
            })),
            ..SettleTerms::at_once(DeadLimits::default())
        };
        let kind = Kind::parse("a:b:c").unwrap();
        for letters in [0, 1, 0, 250] {
            terms.tell_trimmed(&kind, letters);
        }
        let expected = [1, 250].map(|letters| ("a:b:c".to_owned(), letters));
        assert_eq!(*told.lock().unwrap(), expected);
    }

    #[test]
    fn a_settlement_has_the_bytes_that_redis_moves_for_it() {
        let header = "{\"v\":1}".to_owned();
        let bury = Verb::Bury {
            header: header.clone(),
        };
        assert_eq!(settlement(bury.clone()).bytes(), header.len() + 1000);
        assert_eq!(settlement(Verb::Done).bytes(), 0);
        // The job goes on, as its next occurrence.
        let goes_on = |verb| Settlement {
            next: Next::At(UnixMs(1), header.clone()),
            ..settlement(verb)
        };
        assert_eq!(goes_on(Verb::Done).bytes(), header.len() + 1000);
        assert_eq!(goes_on(bury).bytes(), 2 * (header.len() + 1000));
    }
}
