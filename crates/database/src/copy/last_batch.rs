//! Whether Redis still has the last batch of a ledger, if it has not acknowledged it: the copier that
//! stored the batch may have been killed before it said so, or an older state of Redis is back, and has
//! changed since.

use std::time::Duration;

use keyfall::{Client, CopiedShard, JobKey, Kind, Shards};
use tokio::time::sleep;

use super::judge::{Lost, RolledBack};
use super::lock::KindLock;
use super::row::{LedgerRow, signed};
use crate::connection::Database;
use crate::error::{Error, Result};

/// How long another copier has to tell Redis of a batch that it has just stored.
const ACKNOWLEDGED: Duration = Duration::from_millis(200);

/// How many pending and how many ended jobs of a ledger are compared.
const COMPARED: i64 = 64;

/// The jobs of a ledger that the copy has changed last. Ended jobs are found by the time of the last
/// look.
const LAST: &str = "(SELECT key, true FROM keyfall_copy
        WHERE kind = $1 AND shard = $2 AND epoch = $3 AND ended_at IS NULL
        ORDER BY version DESC LIMIT $4)
    UNION ALL
    (SELECT key, false FROM keyfall_copy
        WHERE kind = $1 AND shard = $2 AND epoch = $3 AND ended_at > $5::timestamptz - interval '1 minute'
        ORDER BY ended_at DESC LIMIT $4)";

/// The ledgers whose last batch Redis has not acknowledged. A ledger that notes no changes is left out:
/// it is copied anew.
pub(super) fn unacknowledged<'a>(lock: &'a KindLock, shards: &[CopiedShard]) -> Vec<&'a LedgerRow> {
    let is_due = |row: &&LedgerRow| {
        shards.iter().any(|it| {
            let is_it = it.shard == row.shard && it.epoch == row.epoch;
            is_it && it.is_noting && it.number < row.number
        })
    };
    lock.ledgers().iter().filter(is_due).collect()
}

/// The first of these ledgers whose last batch is not in Redis.
///
/// # Errors
/// If Redis or the database does not answer.
pub(super) async fn lost(
    client: &Client,
    lock: &KindLock,
    kind: &Kind,
    suspects: &[&LedgerRow],
) -> Result<Option<RolledBack>> {
    sleep(ACKNOWLEDGED).await;
    let changes = client.changes(kind, Shards::Present, 0).await?;
    let still = unacknowledged(lock, &changes.shards);
    for row in suspects.iter().filter(|row| still.contains(row)) {
        let last = lock.database.last_changed(kind.as_str(), row).await?;
        let prefix = format!("{kind}:");
        let jobs = last.iter().filter_map(|(key, is_pending)| {
            let id = key.strip_prefix(&prefix)?;
            Some((kind.key(id).ok()?, *is_pending))
        });
        let (keys, pending): (Vec<JobKey>, Vec<bool>) = jobs.unzip();
        let there = client.as_they_are(&keys).await?;
        // Without a change that waits for the copy, Redis has what the copy has.
        let differs = there
            .iter()
            .zip(pending)
            .any(|(is, was_pending)| is.version == 0 && is.job.is_some() != was_pending);
        // Otherwise changes were not noted meanwhile.
        let changes = client.changes(kind, Shards::Present, 0).await?;
        if differs && unacknowledged(lock, &changes.shards).contains(row) {
            let (shard, number) = (row.shard, row.number);
            return Ok(Some(RolledBack {
                shard,
                lost: Lost::LastBatch { number },
            }));
        }
    }
    Ok(None)
}

impl Database {
    /// The jobs of the last changes of a ledger, and whether each is pending.
    async fn last_changed(&self, kind: &str, row: &LedgerRow) -> Result<Vec<(String, bool)>> {
        let failed = Error::of("to read the copy");
        self.in_time(async {
            let connection = self.connection().await?;
            let read = connection.prepare_cached(LAST).await.map_err(&failed)?;
            let (shard, epoch) = (row.shard.cast_signed(), signed(row.epoch));
            let rows = connection
                .query(&read, &[&kind, &shard, &epoch, &COMPARED, &row.looked_at])
                .await;
            let rows = rows.map_err(&failed)?;
            Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
        })
        .await
    }
}
