//! Writes what Redis has handed over.

use std::collections::BTreeMap;
use std::time::SystemTime;

use tokio_postgres::types::ToSql;

use super::judge::Judged;
use super::lock::KindLock;
use super::row::{Change, LedgerMark, LedgerRow, signed, time_of_ms, time_of_us};
use crate::error::{Error, Result};

/// The most changes of one statement, and the most bytes of their records beside the first.
const MOST: (usize, usize) = (1_000, 8 << 20);

/// `$3` to `$8` are columns.
const UPSERT: &str = "INSERT INTO keyfall_copy AS c (kind, look, changed_at, key, shard, epoch,
        version, due_at, record, ended_at)
    SELECT $1, $2, now(), n.*, CASE WHEN n.record IS NULL THEN now() END
    FROM unnest($3::text[], $4::smallint[], $5::bigint[], $6::bigint[], $7::timestamptz[],
        $8::bytea[]) AS n
        (key, shard, epoch, version, due_at, record)
    ON CONFLICT (key) DO UPDATE SET look = excluded.look, changed_at = excluded.changed_at,
        shard = excluded.shard, epoch = excluded.epoch, version = excluded.version,
        due_at = excluded.due_at, record = excluded.record,
        ended_at = excluded.ended_at
    WHERE (c.epoch, c.version) < (excluded.epoch, excluded.version)";

const NOTE: &str = "INSERT INTO keyfall_copy_ledgers AS l
        (kind, looked_at, shard, epoch, number, through, fence, clock)
    SELECT $1, now(), n.* FROM unnest($2::smallint[], $3::bigint[], $4::bigint[], $5::bigint[],
        $6::bigint[], $7::timestamptz[]) AS n
    ON CONFLICT (kind, shard) DO UPDATE SET looked_at = excluded.looked_at,
        epoch = excluded.epoch, number = excluded.number, through = excluded.through,
        fence = excluded.fence, clock = excluded.clock";

const FILLED: &str = "UPDATE keyfall_copy SET ended_at = now(), changed_at = now(), look = $5,
        due_at = NULL, record = NULL
    WHERE kind = $1 AND shard = $2 AND ended_at IS NULL AND (epoch, version) < ($3, $4)";

const GIVEN_UP: &str = "WITH gone AS (
        DELETE FROM keyfall_copy_ledgers WHERE kind = $1 AND shard >= $2 RETURNING fence
    ) UPDATE keyfall_copy_ledgers SET fence = greatest(fence, (SELECT max(fence) FROM gone))
    WHERE kind = $1 AND shard < $2 AND EXISTS (SELECT FROM gone)";

impl KindLock {
    /// Stores changes, and what Redis said of the ledgers in the same step. Of one key the newest
    /// version wins, whichever comes first. Without changes it notes that the ledgers were looked at.
    ///
    /// # Errors
    /// Errors of the database; then nothing can be committed.
    pub async fn store(&self, changes: &[Change], judged: Judged<'_>) -> Result<()> {
        let mut newest: BTreeMap<&str, &Change> = BTreeMap::new();
        for change in changes {
            let version = |it: &Change| (it.epoch, it.version);
            let known = newest.entry(&change.key).or_insert(change);
            if version(known) < version(change) {
                *known = change;
            }
        }
        let mut left = newest.into_values().peekable();
        let (mut chunk, mut bytes) = (Vec::new(), 0);
        while let Some(change) = left.next() {
            bytes += change.job.as_ref().map_or(0, |job| job.record.len());
            chunk.push(change);
            if chunk.len() == MOST.0 || bytes >= MOST.1 || left.peek().is_none() {
                self.upsert(&chunk).await?;
                (chunk, bytes) = (Vec::new(), 0);
            }
        }
        self.note(changes, judged.marks()).await
    }

    /// Notes that all jobs of a ledger were handed over since its version was `since`: those that the
    /// copy has and that were not among them have ended. Returns how many. It belongs behind a look at
    /// all ledgers of the kind that left nothing to copy, so that no job is between two ledgers.
    ///
    /// # Errors
    /// Errors of the database.
    pub async fn filled(&self, shard: u16, epoch: u64, since: u64) -> Result<u64> {
        let (shard, epoch, since) = (shard.cast_signed(), signed(epoch), signed(since));
        let values: [&(dyn ToSql + Sync); 5] = [&self.kind, &shard, &epoch, &since, &self.look];
        let ended = self.execute(FILLED, &values).await?;
        let note = "UPDATE keyfall_copy_ledgers SET filled = true WHERE kind = $1 AND shard = $2";
        self.execute(note, &[&self.kind, &shard]).await?;
        Ok(ended)
    }

    /// Notes that a ledger has changes that it did not note, so that its copy is not whole until it is
    /// [filled](Self::filled) again.
    ///
    /// # Errors
    /// Errors of the database.
    pub async fn begins_anew(&self, shard: u16) -> Result<()> {
        let note = "UPDATE keyfall_copy_ledgers SET filled = false WHERE kind = $1 AND shard = $2";
        self.execute(note, &[&self.kind, &shard.cast_signed()])
            .await?;
        Ok(())
    }

    /// Forgets the rows of shards that the kind has never had: none of them is in `used`, and none was
    /// ever copied.
    ///
    /// # Errors
    /// Errors of the database.
    pub async fn forget_unused(&self, used: impl Iterator<Item = u16>) -> Result<()> {
        let used: Vec<i16> = used.map(u16::cast_signed).collect();
        let delete = "DELETE FROM keyfall_copy_ledgers WHERE kind = $1 AND NOT shard = ANY($2)
            AND NOT filled AND number = 0 AND through = 0 AND fence = 0";
        self.execute(delete, &[&self.kind, &used]).await?;
        Ok(())
    }

    /// Notes that this look has left nothing to copy in any ledger of the kind: the copy has the effect
    /// of all rows of the outbox that were passed on before, and they are no longer kept. Returns how
    /// many they were.
    ///
    /// # Errors
    /// Errors of the database.
    pub async fn drained(&self) -> Result<u64> {
        let delete = "DELETE FROM keyfall_outbox_kept WHERE kind = $1 AND number < $2";
        self.execute(delete, &[&self.kind, &self.look]).await
    }

    /// Forgets how far the ledgers were copied, and the order of all versions so far: Redis begins anew.
    /// The jobs stay.
    ///
    /// # Errors
    /// Errors of the database.
    pub async fn restart(&mut self) -> Result<()> {
        for change in [
            "UPDATE keyfall_copy SET epoch = 0, version = 0
                WHERE kind = $1 AND (epoch, version) <> (0, 0)",
            "DELETE FROM keyfall_copy_ledgers WHERE kind = $1",
        ] {
            self.execute(change, &[&self.kind]).await?;
        }
        self.ledgers.clear();
        Ok(())
    }

    /// Notes that the kind has only so many shards: the others were given up. Their fencing values
    /// still count.
    ///
    /// # Errors
    /// Errors of the database.
    pub async fn has_shards(&self, shards: u16) -> Result<()> {
        let shards = shards.cast_signed();
        self.execute(GIVEN_UP, &[&self.kind, &shards]).await?;
        Ok(())
    }

    async fn upsert(&self, changes: &[&Change]) -> Result<()> {
        fn column<'a, T>(changes: &[&'a Change], of: impl Fn(&'a Change) -> T) -> Vec<T> {
            changes.iter().map(|change| of(change)).collect()
        }
        self.execute(
            UPSERT,
            &[
                &self.kind,
                &self.look,
                &column(changes, |it| it.key.as_str()),
                &column(changes, |it| it.shard.cast_signed()),
                &column(changes, |it| signed(it.epoch)),
                &column(changes, |it| signed(it.version)),
                &column(changes, |it| {
                    it.job.as_ref().map(|job| time_of_ms(job.due_ms))
                }),
                &column(changes, |it| it.job.as_ref().map(|job| &job.record[..])),
            ],
        )
        .await?;
        Ok(())
    }

    async fn note(&self, changes: &[Change], marks: &[LedgerMark]) -> Result<()> {
        let notes = marks.iter().map(|mark| {
            let last = self.ledgers.iter().find(|row| row.shard == mark.shard);
            let of_ledger = changes.iter().filter(|it| it.shard == mark.shard);
            Note::of(last, mark, of_ledger.map(|it| it.version).max())
        });
        let notes: Vec<Note> = notes.collect();
        let shards: Vec<i16> = marks.iter().map(|it| it.shard.cast_signed()).collect();
        let epochs: Vec<i64> = marks.iter().map(|it| signed(it.epoch)).collect();
        let clocks: Vec<SystemTime> = marks.iter().map(|it| time_of_us(it.clock_us)).collect();
        let numbers =
            |of: fn(&Note) -> u64| -> Vec<i64> { notes.iter().map(|it| signed(of(it))).collect() };
        self.execute(
            NOTE,
            &[
                &self.kind,
                &shards,
                &epochs,
                &numbers(|it| it.number),
                &numbers(|it| it.through),
                &numbers(|it| it.fence),
                &clocks,
            ],
        )
        .await?;
        Ok(())
    }

    pub(super) async fn execute(&self, sql: &str, values: &[&(dyn ToSql + Sync)]) -> Result<u64> {
        let failed = Error::of("to write the copy");
        let executing = async {
            let statement = self.connection().prepare_cached(sql).await;
            let statement = statement.map_err(&failed)?;
            let done = self.connection().execute(&statement, values).await;
            done.map_err(&failed)
        };
        self.database.in_time(executing).await
    }
}

/// What a look changes in the row of a ledger.
struct Note {
    number: u64,
    through: u64,
    fence: u64,
}

impl Note {
    /// `last` is the highest version that the look has brought.
    fn of(row: Option<&LedgerRow>, mark: &LedgerMark, last: Option<u64>) -> Self {
        let same_epoch = row.filter(|row| row.epoch == mark.epoch);
        // Redis counts a batch when it is told that it was stored.
        let number = mark.number + u64::from(last.is_some());
        Note {
            number: same_epoch.map_or(number, |row| row.number.max(number)),
            through: same_epoch
                .map_or(0, |row| row.through)
                .max(last.unwrap_or(0)),
            fence: row.map_or(0, |row| row.fence).max(mark.fence),
        }
    }
}
