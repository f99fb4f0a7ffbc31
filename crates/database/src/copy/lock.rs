//! The lock of a kind: one copier works on a kind at a time, in one transaction of the database.

use deadpool_postgres::Object;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::judge::{Judged, RolledBack, judge};
use super::row::{LedgerMark, LedgerRow, unsigned, us_of};
use crate::connection::Database;
use crate::error::{Error, Result};

/// A transaction that has locked the row of a kind. It lasts while Redis is asked, and nobody waits
/// for it: other copiers pass the kind by. Dropped without a [commit](Self::commit), it has done
/// nothing.
pub struct KindLock {
    pub(super) database: Database,
    pub(super) kind: String,
    /// The number of this look at Redis.
    pub(super) look: i64,
    pub(super) ledgers: Vec<LedgerRow>,
    connection: Option<Object>,
}

impl KindLock {
    /// Locks a kind, which is copied from now on; `None` if another copier works on it.
    ///
    /// # Errors
    /// Errors of the database.
    pub async fn take(database: &Database, kind: &str) -> Result<Option<Self>> {
        database.in_time(begin(database, kind)).await
    }

    /// The ledgers of the kind at the last look.
    pub fn ledgers(&self) -> &[LedgerRow] {
        &self.ledgers
    }

    /// Compares what Redis says of ledgers with the last look.
    ///
    /// # Errors
    /// The first ledger that has lost something since.
    pub fn judge<'a>(&self, marks: &'a [LedgerMark]) -> Result<Judged<'a>, RolledBack> {
        judge(&self.ledgers, marks)
    }

    /// Commits. Afterwards Redis may forget what was stored.
    ///
    /// # Errors
    /// [`Error::Unreachable`] also if it is not known whether it was committed.
    pub async fn commit(mut self) -> Result<()> {
        let database = self.database.clone();
        let committed = self.connection().batch_execute("COMMIT");
        let committed = async { committed.await.map_err(Error::of("to commit")) };
        database.in_time(committed).await?;
        // The connection goes back to the pool.
        self.connection = None;
        Ok(())
    }

    pub(super) fn connection(&self) -> &Object {
        self.connection.as_ref().expect("it is there until the end")
    }

    pub(super) async fn query(
        &self,
        sql: &str,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        let statement = self.connection().prepare_cached(sql).await?;
        self.connection().query(&statement, values).await
    }
}

impl Drop for KindLock {
    /// Closes the connection of a transaction that was not committed, so that it is undone.
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            drop(Object::take(connection));
        }
    }
}

async fn begin(database: &Database, kind: &str) -> Result<Option<KindLock>> {
    let failed = Error::of("to lock a kind that is copied");
    let connection = database.connection().await?;
    // Committed by itself: within the transaction, others would wait for its end.
    let make = "INSERT INTO keyfall_copy_kinds (kind) VALUES ($1) ON CONFLICT DO NOTHING";
    let make = connection.prepare_cached(make).await.map_err(&failed)?;
    connection.execute(&make, &[&kind]).await.map_err(&failed)?;
    let mut lock = KindLock {
        database: database.clone(),
        kind: kind.to_owned(),
        look: 0,
        ledgers: Vec::new(),
        connection: Some(connection),
    };
    let begun = lock.connection().batch_execute("BEGIN").await;
    begun.map_err(&failed)?;
    let take = "SELECT nextval('keyfall_copy_looks')
        FROM (SELECT FROM keyfall_copy_kinds WHERE kind = $1 FOR UPDATE SKIP LOCKED) locked";
    let taken = lock.query(take, &[&kind]).await.map_err(&failed)?;
    let Some(row) = taken.first() else {
        lock.commit().await?;
        return Ok(None);
    };
    lock.look = row.get(0);
    let read = "SELECT shard, epoch, number, through, fence, filled, clock, looked_at
        FROM keyfall_copy_ledgers WHERE kind = $1 ORDER BY shard";
    let rows = lock.query(read, &[&kind]).await.map_err(&failed)?;
    lock.ledgers = rows.iter().map(ledger).collect();
    Ok(Some(lock))
}

fn ledger(row: &Row) -> LedgerRow {
    LedgerRow {
        shard: row.get::<_, i16>(0).cast_unsigned(),
        epoch: unsigned(row.get(1)),
        number: unsigned(row.get(2)),
        through: unsigned(row.get(3)),
        fence: unsigned(row.get(4)),
        filled: row.get(5),
        clock_us: us_of(row.get(6)),
        looked_at: row.get(7),
    }
}
