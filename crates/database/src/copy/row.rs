//! Plain types of the copy.

use std::time::{Duration, SystemTime};

use bytes::Bytes;

/// A ledger as Redis describes it, in the same step in which it hands over changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerMark {
    /// The shard of the kind.
    pub shard: u16,
    /// The epoch of the layout. It rises when the kind gets another number of shards.
    pub epoch: u64,
    /// How many batches of this ledger were acknowledged.
    pub number: u64,
    /// The version of its last change.
    pub version: u64,
    /// A fencing value that none given out exceeds.
    pub fence: u64,
    /// The time by the clock of Redis, in µs.
    pub clock_us: u64,
}

/// A job that has changed, in its present state.
///
/// Versions of one key rise with `(epoch, version)`, also when the job moves to another ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Its name, `app:module:biz:id`.
    pub key: String,
    /// The shard that has it.
    pub shard: u16,
    /// The epoch of the layout.
    pub epoch: u64,
    /// A time in µs that only grows in a ledger.
    pub version: u64,
    /// `None` if it has ended.
    pub job: Option<Stored>,
}

/// What Redis stores of a pending job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// When it is due, in ms since 1970.
    pub due_ms: u64,
    /// Its record.
    pub record: Bytes,
}

/// A ledger as the copy knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LedgerRow {
    /// The shard of the kind.
    pub shard: u16,
    /// The epoch of the layout when it was looked at last.
    pub epoch: u64,
    /// The number of batches that Redis has acknowledged, or is about to.
    pub number: u64,
    /// The highest version that was copied.
    pub through: u64,
    /// A fencing value that none given out before the last look exceeds.
    pub fence: u64,
    /// Whether the copy has all of its jobs, and not only those that have changed since it began.
    pub filled: bool,
    /// The clock of Redis at the last look, in µs.
    pub clock_us: u64,
    /// The clock of the database at the last look.
    pub looked_at: SystemTime,
}

/// A pending job as the copy has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopiedRow {
    /// Its name, `app:module:biz:id`.
    pub key: String,
    /// The shard that had it.
    pub shard: u16,
    /// The epoch of the layout then.
    pub epoch: u64,
    /// Its version.
    pub version: u64,
    /// The job.
    pub job: Stored,
}

/// The end of the times that PostgreSQL can represent, less than 294,276 years.
const LAST_US: u64 = 9_000_000_000_000_000_000;

/// A time in ms since 1970 as PostgreSQL stores it.
pub(super) fn time_of_ms(ms: u64) -> SystemTime {
    time_of_us(ms.saturating_mul(1_000))
}

/// A time in µs since 1970 as PostgreSQL stores it.
pub(super) fn time_of_us(us: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(us.min(LAST_US))
}

/// A time that PostgreSQL has stored, in µs since 1970.
pub(super) fn us_of(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    u64::try_from(since.unwrap_or_default().as_micros()).unwrap_or(u64::MAX)
}

/// PostgreSQL has no unsigned integers; numbers that are too large become the largest.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
