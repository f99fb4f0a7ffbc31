//! One step of a relay on a kind: what was passed on is removed, and the next rows are noted as a
//! batch, in one transaction.

use deadpool_postgres::Transaction;
use keyfall::{LaneId, MAX_NUMBERED_CALLS};

use super::row::{COLUMNS, OutboxRow};
use crate::connection::Database;
use crate::error::{Error, Result};

/// How long other relays leave a kind alone. Each step renews it.
const TAKEN: &str = "10 seconds";

/// The most bytes of payloads and terms in a batch, beside its first row.
const MOST_BYTES: i64 = 16 << 20;

/// Rows of one kind that are on their way under a number.
pub(super) struct Batch {
    pub(super) lane: LaneId,
    pub(super) number: u64,
    pub(super) rows: Vec<OutboxRow>,
}

/// A batch that was passed on.
pub(super) struct Passed {
    pub(super) number: u64,
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
struct Lane {
    id: LaneId,
    number: i64,
    batch: Vec<i64>,
    is_taken: bool,
}

impl Database {
    /// The kinds that have rows, whoever works on them.
    pub(super) async fn kinds_with_rows(&self) -> Result<Vec<String>> {
        // Jumps from kind to kind in the index, and does not walk over the rows.
        let kinds = "WITH RECURSIVE kinds AS (
                (SELECT kind FROM keyfall_outbox ORDER BY kind LIMIT 1)
                UNION ALL
                SELECT (SELECT kind FROM keyfall_outbox o WHERE o.kind > kinds.kind
                    ORDER BY kind LIMIT 1)
                FROM kinds WHERE kinds.kind IS NOT NULL
            ) SELECT kind FROM kinds WHERE kind IS NOT NULL";
        let connection = self.connection().await?;
        let kinds = connection.prepare_cached(kinds).await;
        let kinds = kinds.map_err(Error::of("to read the outbox"))?;
        let rows = connection.query(&kinds, &[]).await;
        let rows = rows.map_err(Error::of("to read the outbox"))?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Removes the rows of a batch that was passed on, and notes the next one. A batch that another
    /// relay has begun is taken over as it is.
    pub(super) async fn step(
        &self,
        kind: &str,
        relay: &str,
        passed: Option<Passed>,
    ) -> Result<Step> {
        let mut connection = self.connection().await?;
        let change = connection.transaction().await;
        let change = change.map_err(Error::of("a transaction"))?;
        let Some(mut lane) = lane_of(&change, kind, relay).await? else {
            return Ok(Step::Taken);
        };
        if lane.is_taken {
            return Ok(Step::Taken);
        }
        if let Some(passed) = passed
            && i64::try_from(passed.number) == Ok(lane.number)
        {
            remove(&change, &lane.batch, passed.refused).await?;
            lane.batch = Vec::new();
        }
        let mut rows = match lane.batch.is_empty() {
            true => Vec::new(),
            false => noted_rows(&change, &lane.batch).await?,
        };
        if rows.len() < lane.batch.len() {
            tracing::warn!(
                kind,
                "rows of the outbox were removed while they were passed on; the others of their \
                 batch may be passed on twice"
            );
        }
        if rows.is_empty() || rows.len() < lane.batch.len() {
            if rows.is_empty() {
                rows = next_rows(&change, kind).await?;
            }
            lane.number += 1;
        }
        let ids: Vec<i64> = rows.iter().map(|row| row.id).collect();
        write_lane(&change, kind, relay, &lane, &ids).await?;
        change.commit().await.map_err(Error::of("to commit"))?;
        Ok(match rows.is_empty() {
            true => Step::Over,
            false => Step::Next(Batch {
                lane: lane.id,
                number: u64::try_from(lane.number).unwrap_or(0),
                rows,
            }),
        })
    }
}

/// Locks the note of a kind, which is made if there is none; `None` while another relay has it locked.
async fn lane_of(change: &Transaction<'_>, kind: &str, relay: &str) -> Result<Option<Lane>> {
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
        let make = "INSERT INTO keyfall_outbox_lanes (kind, lane) VALUES ($1, $2)
            ON CONFLICT DO NOTHING";
        let lane = LaneId::new().to_string();
        change
            .execute(make, &[&kind, &lane])
            .await
            .map_err(&failed)?;
        found = change.query_opt(&read, &[&kind, &relay]).await;
    }
    let Some(row) = found.map_err(&failed)? else {
        return Ok(None);
    };
    let lane: &str = row.get(0);
    let id = LaneId::parse(lane)
        .map_err(|error| Error::Schema(format!("keyfall_outbox_lanes, kind {kind}: {error}")))?;
    Ok(Some(Lane {
        id,
        number: row.get(1),
        batch: row.get(2),
        is_taken: row.get(3),
    }))
}

async fn write_lane(
    change: &Transaction<'_>,
    kind: &str,
    relay: &str,
    lane: &Lane,
    batch: &[i64],
) -> Result<()> {
    let write = format!(
        "UPDATE keyfall_outbox_lanes SET number = $2, batch = $3::bigint[],
            relay = CASE WHEN cardinality($3::bigint[]) > 0 THEN $4 END,
            taken_until = clock_timestamp() + interval '{TAKEN}'
        WHERE kind = $1"
    );
    let failed = Error::of("to write keyfall_outbox_lanes");
    let write = change.prepare_cached(&write).await.map_err(&failed)?;
    change
        .execute(&write, &[&kind, &lane.number, &batch, &relay])
        .await
        .map_err(&failed)?;
    Ok(())
}

/// Removes rows; those with a reason are kept among the refused ones.
async fn remove(
    change: &Transaction<'_>,
    batch: &[i64],
    refused: Vec<(i64, String)>,
) -> Result<()> {
    let failed = Error::of("to remove rows of the outbox");
    if !refused.is_empty() {
        let (ids, reasons): (Vec<i64>, Vec<String>) = refused.into_iter().unzip();
        let keep = "INSERT INTO keyfall_outbox_refused
                (id, op, key, due, delay, payload, terms, inserted_at, reason)
            SELECT o.id, op, key, due, delay, payload, terms, inserted_at, r.reason
            FROM keyfall_outbox o
            JOIN unnest($1::bigint[], $2::text[]) AS r(id, reason) ON r.id = o.id
            ON CONFLICT (id) DO UPDATE SET reason = excluded.reason";
        let kept = change.execute(keep, &[&ids, &reasons]).await;
        kept.map_err(&failed)?;
    }
    let delete = change
        .prepare_cached("DELETE FROM keyfall_outbox WHERE id = ANY($1)")
        .await
        .map_err(&failed)?;
    change.execute(&delete, &[&batch]).await.map_err(&failed)?;
    Ok(())
}

/// The rows of a batch that was noted before, in its order.
async fn noted_rows(change: &Transaction<'_>, batch: &[i64]) -> Result<Vec<OutboxRow>> {
    let read = format!("SELECT {COLUMNS} FROM keyfall_outbox WHERE id = ANY($1) ORDER BY id");
    let rows = change.query(&read, &[&batch]).await;
    let rows = rows.map_err(Error::of("to read the outbox"))?;
    Ok(rows.iter().map(OutboxRow::read).collect())
}

/// The oldest rows of a kind: as many as a batch may have, and no more than [`MOST_BYTES`].
async fn next_rows(change: &Transaction<'_>, kind: &str) -> Result<Vec<OutboxRow>> {
    let read = format!(
        "SELECT {COLUMNS} FROM (
            SELECT *, sum(coalesce(octet_length(payload), 0)) OVER (ORDER BY id) AS bytes
            FROM (SELECT * FROM keyfall_outbox WHERE kind = $1 ORDER BY id
                LIMIT {MAX_NUMBERED_CALLS}) oldest
        ) counted
        WHERE bytes - coalesce(octet_length(payload), 0) <= {MOST_BYTES} ORDER BY id"
    );
    let failed = Error::of("to read the outbox");
    let read = change.prepare_cached(&read).await.map_err(&failed)?;
    let rows = change.query(&read, &[&kind]).await.map_err(&failed)?;
    Ok(rows.iter().map(OutboxRow::read).collect())
}
