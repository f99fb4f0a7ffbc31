//! Rows that were passed on, of kinds that are copied: kept until the copy has their effect, and passed
//! on again if Redis is lost before.

use deadpool_postgres::Transaction;

use crate::connection::Database;
use crate::error::{Error, Result};

/// The columns that a row brings along.
const COLUMNS: &str = "id, op, key, due, delay, payload, terms, inserted_at";

impl Database {
    /// Puts the kept rows of a kind back into the outbox whose effect the copy may not have, and
    /// returns how many. They get their old ids, so that they are passed on in the old order, in front
    /// of those that wait. Rows that are on their way to Redis in this moment are passed on once more,
    /// behind them.
    ///
    /// # Errors
    /// Errors of the database.
    pub async fn kept_again(&self, kind: &str) -> Result<u64> {
        let failed = Error::of("to put rows back into the outbox");
        // The relay finds its batch changed, and begins a new one with the oldest rows.
        let stop = "UPDATE keyfall_outbox_lanes SET batch = '{}' WHERE kind = $1";
        let again = format!(
            "WITH again AS (
                DELETE FROM keyfall_outbox_kept o
                WHERE kind = $1 AND NOT EXISTS
                    (SELECT FROM keyfall_copy c WHERE c.key = o.key AND c.look > o.number)
                RETURNING {COLUMNS}
            ) INSERT INTO keyfall_outbox ({COLUMNS}) OVERRIDING SYSTEM VALUE
            SELECT {COLUMNS} FROM again"
        );
        self.in_time(async {
            let mut connection = self.connection().await?;
            let change = connection.transaction().await.map_err(&failed)?;
            change.execute(stop, &[&kind]).await.map_err(&failed)?;
            let put = change.execute(&again, &[&kind]).await.map_err(&failed)?;
            change.commit().await.map_err(Error::of("to commit"))?;
            Ok(put)
        })
        .await
    }
}

/// Removes rows that were passed on, and keeps those of kinds that are copied, beside the refused ones.
pub(super) async fn remove_passed(
    change: &Transaction<'_>,
    batch: &[i64],
    refused: &[i64],
) -> Result<()> {
    let failed = Error::of("to remove rows of the outbox");
    let remove = format!(
        "WITH gone AS (DELETE FROM keyfall_outbox WHERE id = ANY($1) RETURNING *)
        INSERT INTO keyfall_outbox_kept ({COLUMNS}, kind)
        SELECT {COLUMNS}, kind FROM gone WHERE id <> ALL($2)
            AND EXISTS (SELECT FROM keyfall_copy_kinds k WHERE k.kind = gone.kind)"
    );
    let remove = change.prepare_cached(&remove).await.map_err(&failed)?;
    let removed = change.execute(&remove, &[&batch, &refused]).await;
    removed.map(drop).map_err(&failed)
}
