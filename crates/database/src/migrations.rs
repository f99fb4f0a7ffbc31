//! The tables: made and brought up to date by numbered steps, forward only.
//!
//! A step never takes away what the last version uses, so that relays of both run side by side. A
//! database that a newer version has brought up to date can be used as well.

use deadpool_postgres::Transaction;

use crate::connection::Database;
use crate::error::{Error, Result};

/// The steps: each has a number, by its place, from 1.
const STEPS: [(&str, &str); 3] = [
    ("outbox", include_str!("../migrations/0001_outbox.sql")),
    ("archive", include_str!("../migrations/0002_archive.sql")),
    ("copy", include_str!("../migrations/0003_copy.sql")),
];

/// Held while the tables are changed, so that of several programs one does it.
const LOCK: i64 = 0x006b_6579_6661_6c6c;

/// The columns that this version uses, with their types as `information_schema` names them.
const COLUMNS: [(&str, &str, &str); 83] = [
    ("keyfall_outbox", "id", "bigint"),
    ("keyfall_outbox", "op", "text"),
    ("keyfall_outbox", "key", "text"),
    ("keyfall_outbox", "due", "timestamp with time zone"),
    ("keyfall_outbox", "delay", "interval"),
    ("keyfall_outbox", "payload", "bytea"),
    ("keyfall_outbox", "terms", "jsonb"),
    ("keyfall_outbox", "inserted_at", "timestamp with time zone"),
    ("keyfall_outbox", "kind", "text"),
    ("keyfall_outbox_lanes", "kind", "text"),
    ("keyfall_outbox_lanes", "lane", "text"),
    ("keyfall_outbox_lanes", "number", "bigint"),
    ("keyfall_outbox_lanes", "batch", "ARRAY"),
    ("keyfall_outbox_lanes", "relay", "text"),
    (
        "keyfall_outbox_lanes",
        "taken_until",
        "timestamp with time zone",
    ),
    ("keyfall_outbox_refused", "id", "bigint"),
    ("keyfall_outbox_refused", "op", "text"),
    ("keyfall_outbox_refused", "key", "text"),
    ("keyfall_outbox_refused", "due", "timestamp with time zone"),
    ("keyfall_outbox_refused", "delay", "interval"),
    ("keyfall_outbox_refused", "payload", "bytea"),
    ("keyfall_outbox_refused", "terms", "jsonb"),
    (
        "keyfall_outbox_refused",
        "inserted_at",
        "timestamp with time zone",
    ),
    (
        "keyfall_outbox_refused",
        "refused_at",
        "timestamp with time zone",
    ),
    ("keyfall_outbox_refused", "reason", "text"),
    ("keyfall_archive", "ended_at", "timestamp with time zone"),
    ("keyfall_archive", "key", "text"),
    ("keyfall_archive", "kind", "text"),
    ("keyfall_archive", "how", "text"),
    ("keyfall_archive", "keep_months", "smallint"),
    ("keyfall_archive", "accepted_at", "timestamp with time zone"),
    ("keyfall_archive", "due_at", "timestamp with time zone"),
    ("keyfall_archive", "begun_at", "timestamp with time zone"),
    ("keyfall_archive", "attempts", "integer"),
    ("keyfall_archive", "lag_ms", "bigint"),
    ("keyfall_archive", "duration_ms", "bigint"),
    ("keyfall_archive", "worker", "text"),
    ("keyfall_archive", "error", "text"),
    ("keyfall_archive", "headers", "jsonb"),
    ("keyfall_archive", "payload", "bytea"),
    ("keyfall_archive", "payload_bytes", "integer"),
    ("keyfall_archive", "fence", "bigint"),
    ("keyfall_archive", "letter", "bigint"),
    (
        "keyfall_archive",
        "occurrence_at",
        "timestamp with time zone",
    ),
    ("keyfall_archive", "header", "jsonb"),
    ("keyfall_archive_kinds", "kind", "text"),
    ("keyfall_archive_kinds", "how", "text"),
    ("keyfall_copy", "key", "text"),
    ("keyfall_copy", "kind", "text"),
    ("keyfall_copy", "shard", "smallint"),
    ("keyfall_copy", "epoch", "bigint"),
    ("keyfall_copy", "version", "bigint"),
    ("keyfall_copy", "due_at", "timestamp with time zone"),
    ("keyfall_copy", "record", "bytea"),
    ("keyfall_copy", "look", "bigint"),
    ("keyfall_copy", "changed_at", "timestamp with time zone"),
    ("keyfall_copy", "ended_at", "timestamp with time zone"),
    ("keyfall_copy_ledgers", "kind", "text"),
    ("keyfall_copy_ledgers", "shard", "smallint"),
    ("keyfall_copy_ledgers", "epoch", "bigint"),
    ("keyfall_copy_ledgers", "number", "bigint"),
    ("keyfall_copy_ledgers", "through", "bigint"),
    ("keyfall_copy_ledgers", "fence", "bigint"),
    ("keyfall_copy_ledgers", "filled", "boolean"),
    ("keyfall_copy_ledgers", "clock", "timestamp with time zone"),
    (
        "keyfall_copy_ledgers",
        "looked_at",
        "timestamp with time zone",
    ),
    ("keyfall_copy_kinds", "kind", "text"),
    ("keyfall_copy_state", "one", "boolean"),
    ("keyfall_copy_state", "data_set", "text"),
    ("keyfall_copy_state", "since", "timestamp with time zone"),
    ("keyfall_copy_state", "stopped", "text"),
    ("keyfall_copy_state", "rules", "jsonb"),
    ("keyfall_outbox_kept", "id", "bigint"),
    ("keyfall_outbox_kept", "op", "text"),
    ("keyfall_outbox_kept", "key", "text"),
    ("keyfall_outbox_kept", "due", "timestamp with time zone"),
    ("keyfall_outbox_kept", "delay", "interval"),
    ("keyfall_outbox_kept", "payload", "bytea"),
    ("keyfall_outbox_kept", "terms", "jsonb"),
    (
        "keyfall_outbox_kept",
        "inserted_at",
        "timestamp with time zone",
    ),
    ("keyfall_outbox_kept", "kind", "text"),
    ("keyfall_outbox_kept", "number", "bigint"),
    (
        "keyfall_outbox_kept",
        "passed_at",
        "timestamp with time zone",
    ),
];

impl Database {
    /// Makes the tables, or brings them up to date, in the first schema of the search path, and
    /// [checks](Self::check) them. Does nothing if they are up to date. Several programs may do it
    /// at the same time. Returns the number of steps that were missing.
    ///
    /// # Errors
    /// [`Error::Unreachable`]; [`Error::ReadOnly`]; [`Error::Refused`] if this role may not;
    /// [`Error::Schema`] if the tables are not those of Keyfall.
    pub async fn migrate(&self) -> Result<usize> {
        self.evict_read_only(self.make_tables().await)
    }

    async fn make_tables(&self) -> Result<usize> {
        let mut connection = self.connection().await?;
        let change = connection.transaction().await;
        let change = change.map_err(Error::of("a transaction"))?;
        let mut missing = 0;
        if steps_done(&change).await? < STEPS.len() {
            let failed = Error::of("to make the tables");
            let lock = "SELECT pg_advisory_xact_lock($1)";
            change.execute(lock, &[&LOCK]).await.map_err(&failed)?;
            let table = "CREATE TABLE IF NOT EXISTS keyfall_migrations (
                number integer PRIMARY KEY,
                name text NOT NULL,
                applied_at timestamptz NOT NULL DEFAULT now()
            )";
            change.batch_execute(table).await.map_err(&failed)?;
            // Another program may have been faster.
            let done = steps_done(&change).await?;
            missing = STEPS.len().saturating_sub(done);
            for (at, (name, step)) in STEPS.iter().enumerate().skip(done) {
                change.batch_execute(step).await.map_err(&failed)?;
                let note = "INSERT INTO keyfall_migrations (number, name) VALUES ($1, $2)";
                let number = i32::try_from(at + 1).expect("few steps");
                let noted = change.execute(note, &[&number, name]).await;
                noted.map_err(&failed)?;
                tracing::info!(
                    number,
                    name,
                    "the tables in PostgreSQL were brought up to date"
                );
            }
        }
        check(&change).await?;
        change.commit().await.map_err(Error::of("to commit"))?;
        Ok(missing)
    }

    /// Checks that the tables have all that this version uses.
    ///
    /// # Errors
    /// [`Error::Schema`] with the first table or column that is missing or has another type.
    pub async fn check(&self) -> Result<()> {
        let mut connection = self.connection().await?;
        let reading = connection.transaction().await;
        check(&reading.map_err(Error::of("a transaction"))?).await
    }
}

/// How many steps were done.
async fn steps_done(change: &Transaction<'_>) -> Result<usize> {
    let failed = Error::of("to read keyfall_migrations");
    let known = "SELECT to_regclass('keyfall_migrations') IS NOT NULL";
    let known = change.query_one(known, &[]).await.map_err(&failed)?;
    if !known.get::<_, bool>(0) {
        return Ok(0);
    }
    let last = "SELECT coalesce(max(number), 0) FROM keyfall_migrations";
    let last = change.query_one(last, &[]).await.map_err(&failed)?;
    Ok(usize::try_from(last.get::<_, i32>(0)).unwrap_or(0))
}

async fn check(reading: &Transaction<'_>) -> Result<()> {
    // With the rights of any role: `information_schema` shows only what it may use.
    let there = "SELECT t.name, a.attname, CASE WHEN a.attndims > 0 THEN 'ARRAY'
            ELSE format_type(a.atttypid, NULL) END
        FROM unnest($1::text[]) AS t(name)
        JOIN pg_attribute a ON a.attrelid = to_regclass(t.name)
        WHERE a.attnum > 0 AND NOT a.attisdropped";
    let mut tables: Vec<&str> = COLUMNS.iter().map(|(table, ..)| *table).collect();
    tables.dedup();
    let rows = reading.query(there, &[&tables]).await;
    let rows = rows.map_err(Error::of("to read its catalogue"))?;
    let found: Vec<(&str, &str, &str)> = rows
        .iter()
        .map(|row| (row.get(0), row.get(1), row.get(2)))
        .collect();
    for (table, column, wanted) in COLUMNS {
        let is = |it: &&(&str, &str, &str)| it.0 == table && it.1 == column;
        let why = match found.iter().find(is) {
            Some((_, _, kind)) if *kind == wanted => continue,
            Some((_, _, kind)) => format!("its column {column} is a {kind}, not a {wanted}"),
            None if found.iter().any(|it| it.0 == table) => {
                format!("it has no column {column}")
            }
            None => "it does not exist, or is not in the search path".to_owned(),
        };
        let done = steps_done(reading).await?;
        let remedy = match done > STEPS.len() {
            true => format!(
                "a newer version has brought the tables to step {done}, and this version, {}, \
                 knows {}: use the newer version",
                env!("CARGO_PKG_VERSION"),
                STEPS.len()
            ),
            false => "run `keyfall database migrate`, or undo the change of the table".to_owned(),
        };
        return Err(Error::Schema(format!(
            "the table {table} is not the one that Keyfall uses: {why}; {remedy}"
        )));
    }
    Ok(())
}
