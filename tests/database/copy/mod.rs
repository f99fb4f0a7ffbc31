//! The copy on a real PostgreSQL. The Redis of these tests is made of plain values.
//!
//! | module | contents |
//! |---|---|
//! | [`store`] | the newest version of each key wins, whatever it holds |
//! | [`lock`] | one copier works on a kind at a time, and PostgreSQL is killed meanwhile |
//! | [`ledgers`] | what is known of each ledger, and how one that was rolled back is noticed |
//! | [`kept`] | the outbox keeps rows until the copy has their effect, and passes them on again |
//! | [`pages`] | an index serves each page |
//! | [`status`] | counts, the data set, and what is removed |
//! | [`rights`] | the rights that a role needs |
//! | [`rates`] | how fast changes are stored, and jobs are read |

mod kept;
mod ledgers;
mod lock;
mod pages;
mod rates;
mod rights;
mod status;
mod store;

use keyfall_database::internals::{Change, CopiedRow, KindLock, LedgerMark, LedgerRow, Stored};
use keyfall_database::{Database, Settings};

use crate::site::Site;

const KIND: &str = "app:m:job";

/// The first shard, after a hundred batches.
const MARK: LedgerMark = LedgerMark {
    shard: 0,
    epoch: 1,
    number: 100,
    version: u64::MAX >> 1,
    fence: 7,
    clock_us: 1_795_780_800_000_000,
};

/// A pending job.
fn pending(id: impl std::fmt::Display, version: u64) -> Change {
    Change {
        job: Some(Stored {
            due_ms: 1_795_780_800_123,
            record: format!("record {id} {version}").into(),
        }),
        ..ended(id, version)
    }
}

fn ended(id: impl std::fmt::Display, version: u64) -> Change {
    Change {
        key: format!("{KIND}:{id}"),
        shard: 0,
        epoch: 1,
        version,
        job: None,
    }
}

fn open(url: &str) -> Database {
    Database::open(&Settings::new(url)).unwrap()
}

/// The lock of the kind. Commit it before you take it again: PostgreSQL frees a lock that was dropped a
/// little later.
async fn take(database: &Database) -> KindLock {
    let lock = KindLock::take(database, KIND).await.unwrap();
    lock.expect("no other copier works on the kind")
}

/// What is known of each ledger of the kind.
async fn ledgers(database: &Database) -> Vec<LedgerRow> {
    let lock = take(database).await;
    let rows = lock.ledgers().to_vec();
    lock.commit().await.unwrap();
    rows
}

/// One look at Redis.
async fn copy(database: &Database, changes: &[Change]) {
    let lock = take(database).await;
    let marks = [MARK];
    let judged = lock.judge(&marks).unwrap();
    lock.store(changes, judged).await.unwrap();
    lock.commit().await.unwrap();
}

impl Site {
    /// All pending jobs of the copy.
    async fn copied(&self) -> Vec<CopiedRow> {
        let page = self.database().copied_pending(KIND, None, 10_000).await;
        page.unwrap()
    }

    /// The ids and versions of all jobs of the copy, in order; those that have ended with a `-`.
    async fn versions(&self) -> Vec<String> {
        let read = "SELECT substring(key, 11) || CASE WHEN ended_at IS NULL THEN ' ' ELSE ' -' END
                || version
            FROM keyfall_copy ORDER BY key";
        let rows = self.sql.query(read, &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }
}
