//! Reads pending jobs page by page.

use std::time::SystemTime;

use bytes::Bytes;
use tokio_postgres::Row;

use super::row::{CopiedRow, Stored, unsigned, us_of};
use crate::connection::Database;
use crate::error::{Error, Result};

/// The most bytes of the records of a page, beside its first row.
const MOST_BYTES: i64 = 16 << 20;

impl Database {
    /// The pending jobs of a kind in the order of their keys, behind `after`: at most `limit`, and
    /// fewer if they are large. The page behind the last one is empty.
    ///
    /// # Errors
    /// Errors of the database.
    pub async fn copied_pending(
        &self,
        kind: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<CopiedRow>> {
        let read = format!(
            "SELECT key, shard, epoch, version, due_at, record FROM (
                SELECT *, sum(bytes) OVER (ORDER BY key) AS total FROM (
                    SELECT *, octet_length(record) AS bytes
                    FROM keyfall_copy WHERE kind = $1 AND key > $2 AND ended_at IS NULL
                    ORDER BY key LIMIT $3
                ) page
            ) counted WHERE total - bytes <= {MOST_BYTES} ORDER BY key"
        );
        let failed = Error::of("to read the copy");
        let limit = i64::try_from(limit.max(1)).unwrap_or(i64::MAX);
        self.in_time(async {
            let connection = self.connection().await?;
            let read = connection.prepare_cached(&read).await.map_err(&failed)?;
            let values: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
                [&kind, &after.unwrap_or(""), &limit];
            let rows = connection.query(&read, &values).await.map_err(&failed)?;
            Ok(rows.iter().map(copied).collect())
        })
        .await
    }
}

fn copied(row: &Row) -> CopiedRow {
    let due_ms = |at: SystemTime| us_of(at) / 1_000;
    let bytes = |at: &str| row.get::<_, Option<Vec<u8>>>(at).map(Bytes::from);
    CopiedRow {
        key: row.get("key"),
        shard: row.get::<_, i16>("shard").cast_unsigned(),
        epoch: unsigned(row.get("epoch")),
        version: unsigned(row.get("version")),
        job: Stored {
            due_ms: due_ms(row.get("due_at")),
            record: bytes("record").unwrap_or_default(),
        },
    }
}
