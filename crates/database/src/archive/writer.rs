//! Stores rows, each once however often it is handed in: a copy into a temporary table, and from
//! there into the archive.

use std::pin::pin;

use deadpool_postgres::{Object, Transaction};
use tokio_postgres::binary_copy::BinaryCopyInWriter;
use tokio_postgres::types::Type;

use super::row::{Row, text, time};
use crate::connection::Database;
use crate::error::{Error, Result};

/// The columns, in the order of [`copy`].
const COLUMNS: [(&str, Type); 20] = [
    ("ended_at", Type::TIMESTAMPTZ),
    ("key", Type::TEXT),
    ("kind", Type::TEXT),
    ("how", Type::TEXT),
    ("keep_months", Type::INT2),
    ("accepted_at", Type::TIMESTAMPTZ),
    ("due_at", Type::TIMESTAMPTZ),
    ("begun_at", Type::TIMESTAMPTZ),
    ("attempts", Type::INT4),
    ("lag_ms", Type::INT8),
    ("duration_ms", Type::INT8),
    ("worker", Type::TEXT),
    ("error", Type::TEXT),
    ("headers", Type::JSONB),
    ("payload", Type::BYTEA),
    ("payload_bytes", Type::INT4),
    ("fence", Type::INT8),
    ("letter", Type::INT8),
    ("occurrence_at", Type::TIMESTAMPTZ),
    ("header", Type::JSONB),
];

/// Stores rows, and returns how many are new. When it returns, all of them are committed. After an
/// error they can be handed in again, also if the commit has happened; several programs may hand in
/// the same rows at the same time.
///
/// # Errors
/// [`Error::Unreachable`], [`Error::ReadOnly`] and [`Error::Refused`]. A batch that takes too long
/// is smaller next time.
pub async fn store(database: &Database, rows: &[Row]) -> Result<u64> {
    if rows.is_empty() {
        return Ok(0);
    }
    database
        .in_time(async {
            let mut connection = database.connection().await?;
            prepare_partitions(&connection, rows).await?;
            let change = connection.transaction().await;
            let change = change.map_err(Error::of("a transaction"))?;
            copy(&change, rows).await?;
            let new = insert(&change).await?;
            change.commit().await.map_err(Error::of("to commit"))?;
            Ok(new)
        })
        .await
}

/// Makes the partitions of the rows, in a transaction of its own: its lock is held for a moment.
async fn prepare_partitions(connection: &Object, rows: &[Row]) -> Result<()> {
    let failed = Error::of("to make partitions of the archive");
    let mut wanted: Vec<(i16, i64)> = rows.iter().map(|it| (it.months(), it.day())).collect();
    wanted.sort_unstable();
    wanted.dedup();
    let (months, days): (Vec<i16>, Vec<_>) = wanted
        .into_iter()
        .map(|(months, day)| (months, time(day)))
        .unzip();
    let prepare = connection.prepare_cached("SELECT keyfall_archive_prepare($1, $2)");
    let prepare = prepare.await.map_err(&failed)?;
    let prepared = connection.execute(&prepare, &[&months, &days]).await;
    prepared.map(drop).map_err(&failed)
}

/// Copies rows into the temporary table, which lives as long as the connection: making it for each
/// batch would fill the catalogue of the database.
async fn copy(change: &Transaction<'_>, rows: &[Row]) -> Result<()> {
    let failed = Error::of("to copy rows for the archive");
    let there = "SELECT to_regclass('pg_temp.keyfall_archive_staging') IS NOT NULL";
    let there = change.prepare_cached(there).await.map_err(&failed)?;
    let there = change.query_one(&there, &[]).await.map_err(&failed)?;
    if !there.get::<_, bool>(0) {
        let make = "CREATE TEMPORARY TABLE keyfall_archive_staging (LIKE keyfall_archive)
            ON COMMIT DELETE ROWS";
        change.batch_execute(make).await.map_err(&failed)?;
    }
    let columns = COLUMNS.map(|(name, _)| name).join(", ");
    let copy =
        format!("COPY pg_temp.keyfall_archive_staging ({columns}) FROM STDIN (FORMAT binary)");
    let sink = change.copy_in(&copy).await.map_err(&failed)?;
    let types = COLUMNS.map(|(_, kind)| kind);
    let mut sink = pin!(BinaryCopyInWriter::new(sink, &types));
    for row in rows {
        sink.as_mut()
            .write(&[
                &time(row.ended_us),
                &row.key.as_str(),
                &row.key.kind(),
                &row.how.as_str(),
                &row.months(),
                &time(row.accepted_us),
                &row.due_us.map(time),
                &row.begun_us.map(time),
                &i32::try_from(row.attempts).unwrap_or(i32::MAX),
                &row.lag_ms(),
                &row.duration_ms(),
                &row.worker.as_deref().map(text),
                &row.error(),
                &row.headers(),
                &row.payload.as_deref(),
                &i32::try_from(row.payload_bytes).unwrap_or(i32::MAX),
                &row.fence.map(u64::cast_signed),
                &row.letter.map(u64::cast_signed),
                &row.occurrence_us.map(time),
                &row.header(),
            ])
            .await
            .map_err(&failed)?;
    }
    sink.as_mut().finish().await.map_err(&failed)?;
    Ok(())
}

/// Moves the copied rows on. All writers insert in one order, so that none waits for another in a
/// circle.
async fn insert(change: &Transaction<'_>) -> Result<u64> {
    let failed = Error::of("to write the archive");
    let kinds = "INSERT INTO keyfall_archive_kinds (kind, how)
        SELECT kind, how FROM pg_temp.keyfall_archive_staging GROUP BY kind, how
        ORDER BY kind, how ON CONFLICT DO NOTHING";
    let kinds = change.prepare_cached(kinds).await.map_err(&failed)?;
    change.execute(&kinds, &[]).await.map_err(&failed)?;
    let columns = COLUMNS.map(|(name, _)| name).join(", ");
    let rows = format!(
        "INSERT INTO keyfall_archive ({columns})
            SELECT {columns} FROM pg_temp.keyfall_archive_staging
            ORDER BY key, ended_at, accepted_at, keep_months ON CONFLICT DO NOTHING"
    );
    let rows = change.prepare_cached(&rows).await.map_err(&failed)?;
    change.execute(&rows, &[]).await.map_err(&failed)
}
