//! Removes what is needed no more.

use std::time::Duration;

use tokio_postgres::types::ToSql;

use super::lock::KindLock;
use crate::connection::Database;
use crate::error::{Error, Result};

/// The most rows of one statement.
const BATCH: u64 = 10_000;

impl Database {
    /// Removes tombstones of jobs that ended so long ago, by the clock of the database, and returns how
    /// many. A tombstone stays as long as a row of the outbox with its key is kept: it shows that the
    /// row was carried out.
    ///
    /// # Errors
    /// Errors of the database. What was removed by then stays removed.
    pub async fn sweep_tombstones(&self, older_than: Duration) -> Result<u64> {
        let sweep = format!(
            "DELETE FROM keyfall_copy WHERE key IN (
                SELECT key FROM keyfall_copy c
                WHERE ended_at < clock_timestamp() - $1 * interval '1 second'
                    AND NOT EXISTS (SELECT FROM keyfall_outbox_kept o WHERE o.key = c.key)
                ORDER BY ended_at LIMIT {BATCH} FOR UPDATE SKIP LOCKED
            )"
        );
        let (failed, seconds) = (Error::of("to remove tombstones"), older_than.as_secs_f64());
        let mut removed = 0;
        loop {
            let batch = async {
                let connection = self.connection().await?;
                let sweep = connection.prepare_cached(&sweep).await.map_err(&failed)?;
                let swept = connection.execute(&sweep, &[&seconds]).await;
                swept.map_err(&failed)
            };
            let batch = self.in_time(batch).await?;
            removed += batch;
            if batch < BATCH {
                return Ok(removed);
            }
        }
    }

    /// Forgets the copy of a kind that is copied no more, in one transaction. Returns whether it has:
    /// not while a copier works on the kind. Repeat it then.
    ///
    /// # Errors
    /// Errors of the database.
    pub async fn forget_copy(&self, kind: &str) -> Result<bool> {
        let Some(lock) = KindLock::take(self, kind).await? else {
            return Ok(false);
        };
        let failed = Error::of("to forget the copy of a kind");
        // Each batch begins behind the last one, and not with what is left of the rows that are gone.
        let rows = format!(
            "WITH batch AS (
                SELECT key FROM keyfall_copy WHERE key > $1 AND key < $2 ORDER BY key LIMIT {BATCH}
            ), gone AS (DELETE FROM keyfall_copy WHERE key IN (SELECT key FROM batch))
            SELECT max(key) FROM batch"
        );
        // `;` follows `:`.
        let (mut after, end) = (Some(format!("{kind}:")), format!("{kind};"));
        while let Some(last) = after {
            let values: [&(dyn ToSql + Sync); 2] = [&last, &end];
            let batch = async { lock.query(&rows, &values).await.map_err(&failed) };
            after = self.in_time(batch).await?[0].get(0);
        }
        for rest in [
            "DELETE FROM keyfall_outbox_kept WHERE kind = $1",
            "DELETE FROM keyfall_copy_ledgers WHERE kind = $1",
            "DELETE FROM keyfall_copy_kinds WHERE kind = $1",
        ] {
            lock.execute(rest, &[&kind]).await?;
        }
        lock.commit().await?;
        Ok(true)
    }
}
