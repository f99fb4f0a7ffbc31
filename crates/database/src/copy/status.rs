//! Which data set was copied, and how much of each kind.

use std::collections::BTreeMap;
use std::time::SystemTime;

use tokio_postgres::Row;
use tokio_postgres::types::Json;

use super::row::unsigned;
use crate::connection::Database;
use crate::error::{Error, Result};

/// What was copied.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CopyState {
    /// The id of the data set in Redis.
    pub data_set: String,
    /// Since when it is copied, by the clock of the database.
    pub since: SystemTime,
    /// Why copying was stopped, if it was.
    pub stopped: Option<String>,
    /// The rules of archives, copies and limits, as Redis stores them.
    pub rules: BTreeMap<String, String>,
}

/// The copy of a kind.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CopiedKind {
    /// The kind, `app:module:biz`.
    pub kind: String,
    /// How many jobs are pending in the copy.
    pub pending: u64,
    /// How many rows of the outbox were passed on, and are kept because the copy may not have their
    /// effect.
    pub kept: u64,
    /// Whether the copy has all jobs of all of its ledgers, and not only those that have changed.
    pub is_filled: bool,
    /// When the ledger that has waited longest was looked at, by the clock of the database; `None` if
    /// none was.
    pub looked_at: Option<SystemTime>,
    /// The clock of Redis then: the copy has what happened before, but for what still waits.
    pub clock: Option<SystemTime>,
}

impl Database {
    /// The data set that is copied; `None` if none ever was.
    ///
    /// # Errors
    /// Errors of the database.
    pub async fn copy_state(&self) -> Result<Option<CopyState>> {
        let read = "SELECT data_set, since, stopped, rules FROM keyfall_copy_state";
        let failed = Error::of("to read the state of the copy");
        self.in_time(async {
            let connection = self.connection().await?;
            let row = connection.query_opt(read, &[]).await.map_err(&failed)?;
            Ok(row.as_ref().map(state))
        })
        .await
    }

    /// Notes the data set of Redis, if none is noted, and returns the one that is: of several copiers
    /// the first one decides.
    ///
    /// # Errors
    /// Errors of the database.
    pub async fn begin_copy(&self, data_set: &str) -> Result<CopyState> {
        let note = "INSERT INTO keyfall_copy_state (data_set) VALUES ($1) ON CONFLICT DO NOTHING";
        let read = "SELECT data_set, since, stopped, rules FROM keyfall_copy_state";
        let failed = Error::of("to note the data set that is copied");
        self.in_time(async {
            let connection = self.connection().await?;
            let noted = connection.execute(note, &[&data_set]).await;
            noted.map_err(&failed)?;
            let row = connection.query_one(read, &[]).await.map_err(&failed)?;
            Ok(state(&row))
        })
        .await
    }

    /// Stops copying with a reason that people understand. The first reason stays.
    ///
    /// # Errors
    /// Errors of the database.
    pub async fn stop_copy(&self, why: &str) -> Result<()> {
        let stop = "UPDATE keyfall_copy_state SET stopped = $1 WHERE stopped IS NULL";
        self.write_state(stop, why).await
    }

    /// Goes on with another data set, or with the same one: after a rebuild.
    ///
    /// # Errors
    /// Errors of the database.
    pub async fn resume_copy(&self, data_set: &str) -> Result<()> {
        let resume = "INSERT INTO keyfall_copy_state (data_set) VALUES ($1)
            ON CONFLICT (one) DO UPDATE SET data_set = excluded.data_set,
                since = clock_timestamp(), stopped = NULL";
        self.write_state(resume, data_set).await
    }

    /// Notes the rules of the data set, unless the copy is stopped.
    ///
    /// # Errors
    /// Errors of the database.
    pub async fn note_rules(&self, rules: &BTreeMap<String, String>) -> Result<()> {
        let note = "UPDATE keyfall_copy_state SET rules = $1
            WHERE stopped IS NULL AND rules <> $1";
        let failed = Error::of("to write the state of the copy");
        self.in_time(async {
            let connection = self.connection().await?;
            let noted = connection.execute(note, &[&Json(rules)]).await;
            noted.map(drop).map_err(&failed)
        })
        .await
    }

    /// The kinds that are copied, with their counts.
    ///
    /// # Errors
    /// Errors of the database.
    pub async fn copied_kinds(&self) -> Result<Vec<CopiedKind>> {
        let read = "SELECT k.kind,
                (SELECT count(*) FROM keyfall_copy c WHERE c.kind = k.kind AND c.ended_at IS NULL),
                (SELECT count(*) FROM keyfall_outbox_kept o WHERE o.kind = k.kind),
                coalesce(bool_and(l.filled), false), min(l.looked_at), min(l.clock)
            FROM keyfall_copy_kinds k LEFT JOIN keyfall_copy_ledgers l ON l.kind = k.kind
            GROUP BY k.kind ORDER BY k.kind";
        let failed = Error::of("to count what is copied");
        self.in_time(async {
            let connection = self.connection().await?;
            let rows = connection.query(read, &[]).await.map_err(&failed)?;
            Ok(rows.iter().map(copied_kind).collect())
        })
        .await
    }

    async fn write_state(&self, sql: &str, value: &str) -> Result<()> {
        let failed = Error::of("to write the state of the copy");
        self.in_time(async {
            let connection = self.connection().await?;
            let written = connection.execute(sql, &[&value]).await;
            written.map(drop).map_err(&failed)
        })
        .await
    }
}

fn state(row: &Row) -> CopyState {
    CopyState {
        data_set: row.get(0),
        since: row.get(1),
        stopped: row.get(2),
        rules: row.get::<_, Json<BTreeMap<String, String>>>(3).0,
    }
}

fn copied_kind(row: &Row) -> CopiedKind {
    CopiedKind {
        kind: row.get(0),
        pending: unsigned(row.get(1)),
        kept: unsigned(row.get(2)),
        is_filled: row.get(3),
        looked_at: row.get(4),
        clock: row.get(5),
    }
}
