//! Whether Redis still has what it handed over before.

use super::row::{LedgerMark, LedgerRow};

/// Marks of ledgers that have lost nothing.
#[derive(Debug, Clone, Copy)]
pub struct Judged<'a>(&'a [LedgerMark]);

impl<'a> Judged<'a> {
    pub(super) fn marks(self) -> &'a [LedgerMark] {
        self.0
    }
}

/// A ledger of Redis is older than its copy. Nothing must be stored, and the copy is what a rebuild
/// needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("shard {shard} of Redis is older than the copy: {lost}")]
pub struct RolledBack {
    /// The shard of the kind.
    pub shard: u16,
    /// What shows it.
    pub lost: Lost,
}

/// What a ledger has lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// A change of the number of shards.
    #[error("its epoch is {now}, and was {was}")]
    Epoch {
        /// Of Redis.
        now: u64,
        /// Of the copy.
        was: u64,
    },
    /// Acknowledged batches.
    #[error("it knows of {now} batches, and had acknowledged {was}")]
    Batches {
        /// Of Redis.
        now: u64,
        /// Of the copy. The last batch is not counted: Redis may not know of it yet.
        was: u64,
    },
    /// The last batch, which it has not acknowledged.
    #[error("the changes of its batch {number}, which was copied, are not there")]
    LastBatch {
        /// The number of the batch.
        number: u64,
    },
    /// Changes.
    #[error("its last change has the version {now}, and one with {was} was copied")]
    Changes {
        /// Of Redis.
        now: u64,
        /// Of the copy.
        was: u64,
    },
}

/// Compares ledgers with their rows. A ledger without a row is new, and one with a higher epoch begins
/// anew. Ledgers of a server that is away can be left out.
///
/// # Errors
/// The first ledger that is older than its copy.
pub(super) fn judge<'a>(
    rows: &[LedgerRow],
    marks: &'a [LedgerMark],
) -> Result<Judged<'a>, RolledBack> {
    for mark in marks {
        let row = rows.iter().find(|row| row.shard == mark.shard);
        if let Some(lost) = row.and_then(|row| lost(row, mark)) {
            let shard = mark.shard;
            return Err(RolledBack { shard, lost });
        }
    }
    Ok(Judged(marks))
}

fn lost(row: &LedgerRow, mark: &LedgerMark) -> Option<Lost> {
    let acknowledged = row.number.saturating_sub(1);
    match () {
        () if mark.epoch > row.epoch => None,
        () if mark.epoch < row.epoch => Some(Lost::Epoch {
            now: mark.epoch,
            was: row.epoch,
        }),
        () if mark.number < acknowledged => Some(Lost::Batches {
            now: mark.number,
            was: acknowledged,
        }),
        () if mark.version < row.through => Some(Lost::Changes {
            now: mark.version,
            was: row.through,
        }),
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    fn row(shard: u16) -> LedgerRow {
        LedgerRow {
            shard,
            epoch: 5,
            number: 10,
            through: 1_000,
            fence: 3,
            filled: true,
            clock_us: 2_000,
            looked_at: SystemTime::UNIX_EPOCH,
        }
    }

    fn mark(shard: u16) -> LedgerMark {
        LedgerMark {
            shard,
            epoch: 5,
            number: 10,
            version: 1_000,
            fence: 3,
            clock_us: 3_000,
        }
    }

    fn told(rows: &[LedgerRow], marks: &[LedgerMark]) -> Option<(u16, Lost)> {
        let judged = judge(rows, marks).map(|it| assert_eq!(it.marks(), marks));
        judged.err().map(|it| (it.shard, it.lost))
    }

    #[test]
    fn a_ledger_that_goes_on_is_believed() {
        let later = LedgerMark {
            number: 17,
            version: 5_000,
            ..mark(0)
        };
        // Its answer to the last batch was lost, or has not been sent.
        let unheard = LedgerMark {
            number: 9,
            ..mark(0)
        };
        for mark in [mark(0), later, unheard] {
            assert_eq!(told(&[row(0)], &[mark]), None, "{mark:?}");
        }
        assert_eq!(told(&[], &[mark(0)]), None, "it is new");
        assert_eq!(told(&[row(0)], &[mark(0), mark(1)]), None, "another is new");
        assert_eq!(told(&[row(0), row(1)], &[mark(1)]), None, "one is away");
    }

    #[test]
    fn a_ledger_that_is_older_is_not() {
        let batches = LedgerMark {
            number: 8,
            ..mark(1)
        };
        let lost = Lost::Batches { now: 8, was: 9 };
        let rows = [row(0), row(1)];
        assert_eq!(told(&rows, &[mark(0), batches]), Some((1, lost)));
        let changes = LedgerMark {
            version: 999,
            ..mark(1)
        };
        let (now, was) = (999, 1_000);
        let lost = Lost::Changes { now, was };
        assert_eq!(told(&rows, &[mark(0), changes]), Some((1, lost)));
        let empty = LedgerMark {
            number: 0,
            version: 0,
            ..mark(0)
        };
        let lost = Lost::Batches { now: 0, was: 9 };
        assert_eq!(told(&rows, &[empty, mark(1)]), Some((0, lost)));
        let gone = LedgerMark { epoch: 0, ..empty };
        let lost = Lost::Epoch { now: 0, was: 5 };
        assert_eq!(told(&rows, &[mark(1), gone]), Some((0, lost)));
    }

    #[test]
    fn an_epoch_begins_anew_and_does_not_fall() {
        let anew = LedgerMark {
            epoch: 6,
            number: 0,
            version: 0,
            ..mark(0)
        };
        assert_eq!(told(&[row(0)], &[anew]), None);
        let old = LedgerMark {
            epoch: 4,
            number: 99,
            version: 9_999,
            ..mark(0)
        };
        let lost = Lost::Epoch { now: 4, was: 5 };
        assert_eq!(told(&[row(0)], &[old]), Some((0, lost)));
    }

    #[test]
    fn the_message_says_what_was_compared() {
        let old = LedgerMark {
            number: 2,
            ..mark(0)
        };
        let told = judge(&[row(0)], &[old]).unwrap_err().to_string();
        assert_eq!(
            told,
            "shard 0 of Redis is older than the copy: it knows of 2 batches, and had \
             acknowledged 9"
        );
    }
}
