//! One step of a relay on a kind: what was passed on is removed, and the next rows are noted as a
//! batch, in one transaction.

use std::sync::Mutex;

use deadpool_postgres::Transaction;
use keyfall::{LaneId, MAX_BATCH_NUMBER, MAX_NUMBERED_CALLS};

use super::kept::remove_passed;
use super::row::{COLUMNS, OutboxRow};
use crate::connection::Database;
use crate::error::{Error, Result};

/// How long other relays leave a kind alone. Each step renews it.
const TAKEN: &str = "10 seconds";

/// The lowest id that a row can have.
const FIRST: i64 = i64::MIN;

/// The most bytes of payloads and terms in a batch, beside its first row.
const MOST_BYTES: i64 = 4 << 20;

/// The highest number of a batch.
const LAST: i64 = MAX_BATCH_NUMBER as i64;

/// The name of a batch: a lane of the relay that has begun it, and a number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BatchName {
    pub(super) lane: String,
    pub(super) number: i64,
}

/// The names of new batches, of any kind: the numbers of a lane, then those of another lane. They come
/// from the process, and not from the database: a database that has lost its last changes, by a
/// fail-over, would give out a number for other rows.
pub(super) struct BatchNames(Mutex<BatchName>);

impl BatchNames {
    /// Names that nobody has used.
    pub(super) fn new() -> Self {
        let lane = LaneId::new().to_string();
        BatchNames(Mutex::new(BatchName { lane, number: 0 }))
    }

    /// A name that this process has never used.
    pub(super) fn next(&self) -> BatchName {
        let mut last = self.0.lock().expect("no panic while held");
        if last.number >= LAST {
            let lane = LaneId::new().to_string();
            *last = BatchName { lane, number: 0 };
        }
        last.number += 1;
        last.clone()
    }
}

/// Rows of one kind that are on their way.
pub(super) struct Batch {
    pub(super) name: BatchName,
    pub(super) rows: Vec<OutboxRow>,
}

/// A batch that was passed on.
pub(super) struct Passed {
    pub(super) name: BatchName,
    /// The rows that cannot be passed on, and why.
    pub(super) refused: Vec<(i64, String)>,
}

/// What a step has found.
pub(super) enum Step {
    /// These rows are to be sent.
    Next(Batch),
    /// There are no more rows.
    Over,
    /// Another relay works on the kind.
    Taken,
}

/// The note of a kind in `keyfall_outbox_lanes`.
struct Note {
    name: BatchName,
    batch: Vec<i64>,
    is_taken: bool,
}

impl Database {
    /// The kinds that have rows, whichever relay works on them. Notes in the metrics how long the
    /// oldest row has waited.
    pub(super) async fn kinds_with_rows(&self) -> Result<Vec<String>> {
        // Jumps from kind to kind in the index, and does not walk over the rows.
        let kinds = "WITH RECURSIVE kinds AS (
                (SELECT kind FROM keyfall_outbox ORDER BY kind LIMIT 1)
                UNION ALL
                SELECT (SELECT kind FROM keyfall_outbox o WHERE o.kind > kinds.kind
                    ORDER BY kind LIMIT 1)
                FROM kinds WHERE kinds.kind IS NOT NULL
            ) SELECT kind FROM kinds WHERE kind IS NOT NULL";
        self.in_time(async {
            let connection = self.connection().await?;
            let kinds = connection.prepare_cached(kinds).await;
            let kinds = kinds.map_err(Error::of("to read the outbox"))?;
            let rows = connection.query(&kinds, &[]).await;
            let rows = rows.map_err(Error::of("to read the outbox"))?;
            let oldest = "SELECT (extract(epoch FROM clock_timestamp() - inserted_at))::float8
            FROM keyfall_outbox ORDER BY id LIMIT 1";
            let oldest = connection.query_opt(oldest, &[]).await;
            let oldest = oldest.map_err(Error::of("to read the outbox"))?;
            let lag = oldest.map_or(0.0, |row| row.get(0));
            metrics::gauge!("keyfall_outbox_lag_seconds").set(lag);
            Ok(rows.iter().map(|row| row.get(0)).collect())
        })
        .await
    }

    /// Removes the rows of a batch that was passed on, and notes the next one, as `new`. A batch that
    /// another relay has begun is taken over as it is, unless its number is too high to be sent.
    pub(super) async fn step(
        &self,
        kind: &str,
        relay: &str,
        new: BatchName,
        passed: Option<&Passed>,
    ) -> Result<Step> {
        let mut connection = self.connection().await?;
        let change = connection.transaction().await;
        let change = change.map_err(Error::of("a transaction"))?;
        let Some(Note {
            name: noted,
            mut batch,
            is_taken,
        }) = note_of(&change, kind, relay, &new).await?
        else {
            return Ok(Step::Taken);
        };
        if is_taken {
            return Ok(Step::Taken);
        }
        if let Some(passed) = passed.filter(|it| it.name == noted) {
            remove(&change, &batch, &passed.refused).await?;
            batch = Vec::new();
        }
        let mut name = noted;
        let mut rows = match batch.is_empty() {
            true => Vec::new(),
            false => noted_rows(&change, &batch).await?,
        };
        if rows.len() < batch.len() {
            tracing::warn!(
                kind,
                "rows of the outbox were removed while they were passed on; the others of their \
                 batch may be passed on twice"
            );
            name = new.clone();
        }
        if name.number > LAST {
            name = new.clone();
        }
        if rows.is_empty() {
            rows = next_rows(&change, kind).await?;
            name = new;
        }
        let ids: Vec<i64> = rows.iter().map(|row| row.id).collect();
        write_note(&change, kind, relay, &name, &ids).await?;
        change.commit().await.map_err(Error::of("to commit"))?;
        Ok(match rows.is_empty() {
            true => Step::Over,
            false => Step::Next(Batch { name, rows }),
        })
    }

    /// Leaves all kinds of a relay to the others.
    pub(super) async fn leave(&self, relay: &str) -> Result<()> {
        let leave = "UPDATE keyfall_outbox_lanes SET relay = NULL WHERE relay = $1";
        let connection = self.connection().await?;
        let left = connection.execute(leave, &[&relay]).await;
        left.map(drop)
            .map_err(Error::of("to write keyfall_outbox_lanes"))
    }
}

/// Locks the note of a kind, which is made if there is none; `None` while another relay has it locked.
async fn note_of(
    change: &Transaction<'_>,
    kind: &str,
    relay: &str,
    new: &BatchName,
) -> Result<Option<Note>> {
    let failed = Error::of("to read keyfall_outbox_lanes");
    let read = change
        .prepare_cached(
            "SELECT lane, number, batch,
                relay IS NOT NULL AND relay <> $2 AND taken_until > clock_timestamp()
            FROM keyfall_outbox_lanes WHERE kind = $1 FOR UPDATE SKIP LOCKED",
        )
        .await
        .map_err(&failed)?;
    let mut found = change.query_opt(&read, &[&kind, &relay]).await;
    if matches!(found, Ok(None)) {
        let make = "INSERT INTO keyfall_outbox_lanes (kind, lane, number) VALUES ($1, $2, $3)
            ON CONFLICT DO NOTHING";
        change
            .execute(make, &[&kind, &new.lane, &new.number])
            .await
            .map_err(&failed)?;
        found = change.query_opt(&read, &[&kind, &relay]).await;
    }
    let Some(row) = found.map_err(&failed)? else {
        return Ok(None);
    };
    Ok(Some(Note {
        name: BatchName {
            lane: row.get(0),
            number: row.get(1),
        },
        batch: row.get(2),
        is_taken: row.get(3),
    }))
}

async fn write_note(
    change: &Transaction<'_>,
    kind: &str,
    relay: &str,
    name: &BatchName,
    batch: &[i64],
) -> Result<()> {
    let write = format!(
        "UPDATE keyfall_outbox_lanes SET lane = $2, number = $3, batch = $4::bigint[],
            relay = CASE WHEN cardinality($4::bigint[]) > 0 THEN $5 END,
            taken_until = clock_timestamp() + interval '{TAKEN}'
        WHERE kind = $1"
    );
    let failed = Error::of("to write keyfall_outbox_lanes");
    let write = change.prepare_cached(&write).await.map_err(&failed)?;
    change
        .execute(&write, &[&kind, &name.lane, &name.number, &batch, &relay])
        .await
        .map_err(&failed)?;
    Ok(())
}

/// Removes rows; those with a reason are kept among the refused ones.
async fn remove(change: &Transaction<'_>, batch: &[i64], refused: &[(i64, String)]) -> Result<()> {
    let (ids, reasons): (Vec<i64>, Vec<&str>) =
        refused.iter().map(|(id, why)| (*id, why.as_str())).unzip();
    if !refused.is_empty() {
        let keep = "INSERT INTO keyfall_outbox_refused
                (id, op, key, due, delay, payload, terms, inserted_at, reason)
            SELECT o.id, op, key, due, delay, payload, terms, inserted_at, r.reason
            FROM keyfall_outbox o
            JOIN unnest($1::bigint[], $2::text[]) AS r(id, reason) ON r.id = o.id
            ON CONFLICT (id) DO UPDATE SET op = excluded.op, key = excluded.key,
                due = excluded.due, delay = excluded.delay, payload = excluded.payload,
                terms = excluded.terms, inserted_at = excluded.inserted_at,
                refused_at = excluded.refused_at, reason = excluded.reason";
        let kept = change.execute(keep, &[&ids, &reasons]).await;
        kept.map_err(Error::of("to remove rows of the outbox"))?;
    }
    remove_passed(change, batch, &ids).await
}

/// The rows of a batch that was noted before, in its order.
async fn noted_rows(change: &Transaction<'_>, batch: &[i64]) -> Result<Vec<OutboxRow>> {
    let read = format!("SELECT {COLUMNS} FROM keyfall_outbox WHERE id = ANY($1) ORDER BY id");
    let rows = change.query(&read, &[&batch]).await;
    let rows = rows.map_err(Error::of("to read the outbox"))?;
    Ok(rows.iter().map(OutboxRow::read).collect())
}

/// The oldest rows of a kind: as many as a batch may have, and no more than [`MOST_BYTES`].
///
/// The bounds say "of this kind" in a form that makes PostgreSQL walk along the index of kinds and ids,
/// and stop at the limit. With `kind = $1` and no statistics of a table that has just been filled, it
/// expects few rows, and reads and sorts all rows of the kind for each batch.
async fn next_rows(change: &Transaction<'_>, kind: &str) -> Result<Vec<OutboxRow>> {
    let read = format!(
        "SELECT {COLUMNS} FROM (
            SELECT *, sum(bytes) OVER (ORDER BY id) AS total
            FROM (SELECT *, coalesce(octet_length(payload), 0) + coalesce(pg_column_size(terms), 0)
                    + octet_length(key) AS bytes
                FROM keyfall_outbox WHERE (kind, id) >= ($1, {FIRST}) AND kind <= $1
                ORDER BY kind, id LIMIT {MAX_NUMBERED_CALLS}) oldest
        ) counted
        WHERE total - bytes <= {MOST_BYTES} ORDER BY id"
    );
    let failed = Error::of("to read the outbox");
    let read = change.prepare_cached(&read).await.map_err(&failed)?;
    let rows = change.query(&read, &[&kind]).await.map_err(&failed)?;
    Ok(rows.iter().map(OutboxRow::read).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_number_of_a_lane_is_followed_by_the_first_of_another() {
        let names = BatchNames::new();
        let first = names.next();
        assert_eq!(first.number, 1);
        names.0.lock().unwrap().number = LAST - 1;
        let last = names.next();
        assert_eq!((&last.lane, last.number), (&first.lane, LAST));
        let after = names.next();
        assert_ne!(after.lane, first.lane);
        assert_eq!(after.number, 1);
    }
}
