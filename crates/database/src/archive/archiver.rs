//! The archiver: stores the records of ended jobs, and removes them from Redis after the commit.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use keyfall::{Client, EndedJob, EndedJobs, JobEnd, Kind, Shards};

use super::how::How;
use super::row::Row;
use super::writer::store;
use crate::connection::Database;
use crate::rounds::{Outcome, Work, log, rounds};

/// The most records of each list that one batch has, and the least that it may be cut to.
const BATCH: (usize, usize) = (50, 2_000);

/// How often all kinds are told their terms again, in case a server has missed them.
const AGAIN: Duration = Duration::from_secs(60);

/// How often months whose time is over are dropped.
const RETENTION: Duration = Duration::from_secs(3_600);

/// Moves the records of ended jobs from Redis to the archive, each at least once, and stored once.
/// Any number of archivers share the work.
///
/// It works on the kinds that [leave records](keyfall::Selection::archive), and drops the months of
/// the archive whose time is over. While Redis or the database is away, records wait in Redis, up to
/// the bound of their kind.
pub struct Archiver {
    client: Client,
    database: Database,
}

/// What is known of a kind between two batches.
#[derive(Debug, Clone)]
pub(crate) struct Progress {
    /// The size of the next batch: a database that does not store one in time gets smaller ones.
    batch: usize,
    waiting: Waiting,
}

impl Default for Progress {
    fn default() -> Self {
        Progress {
            batch: BATCH.1,
            waiting: Waiting::default(),
        }
    }
}

/// What waits of a kind, for the metrics.
#[derive(Debug, Clone, Copy, Default)]
struct Waiting {
    records: u64,
    bytes: u64,
    dropped: u64,
    /// When the oldest record that waits was written.
    oldest: Option<SystemTime>,
}

impl Archiver {
    /// An archiver from the Redis of the client to this database.
    pub fn new(client: Client, database: Database) -> Self {
        metrics::describe_counter!(
            "keyfall_archive_stored_total",
            "Records of ended jobs that were stored"
        );
        metrics::describe_gauge!(
            "keyfall_archive_waiting",
            "Records of ended jobs that wait in Redis"
        );
        metrics::describe_gauge!(
            "keyfall_archive_waiting_bytes",
            "The size of the records that wait in Redis"
        );
        metrics::describe_gauge!(
            "keyfall_archive_dropped",
            "Records that were dropped because too many waited"
        );
        metrics::describe_gauge!(
            "keyfall_archive_lag_seconds",
            "How long the oldest record has waited"
        );
        Archiver { client, database }
    }

    /// Works until `stopped`. A batch that is on its way by then is handed in again by the next
    /// archiver, and stored once.
    pub async fn run_until(self, stopped: impl Future<Output = ()>) {
        metrics::counter!("keyfall_archive_stored_total").increment(0);
        let this = Arc::new(self);
        tokio::select! {
            () = stopped => {}
            () = rounds(Arc::clone(&this)) => unreachable!("it works for ever"),
            () = this.drop_expired() => unreachable!("it works for ever"),
            () = this.tell_again() => unreachable!("it works for ever"),
        }
    }

    /// Tells each kind its terms again, now and then.
    async fn tell_again(&self) {
        loop {
            tokio::time::sleep(AGAIN).await;
            for kind in self.client.archived_kinds().await.unwrap_or_default() {
                if let Err(error) = self.client.archive_again(&kind).await {
                    tracing::debug!(%kind, %error, "the archive of a kind was not set again");
                }
            }
        }
    }

    async fn store(&self, kind: &Kind, ended: &EndedJobs) -> Result<Outcome, (String, bool)> {
        for record in &ended.unreadable {
            let record = record.escape_ascii().to_string();
            let shown: String = record.chars().take(500).collect();
            tracing::error!(%kind, record = shown, "the record of an ended job cannot be read");
        }
        if let Some(record) = ended.newer.first() {
            let record = record.escape_ascii().to_string();
            let shown: String = record.chars().take(500).collect();
            let why = format!(
                "a record of a newer version waits, and those behind it: run a daemon of that version. \
                 It begins with {shown}"
            );
            if ended.jobs.is_empty() {
                return Err((why, false));
            }
            tracing::warn!(%kind, "{why}");
        }
        let read = ended.jobs.len() + ended.unreadable.len();
        if read == 0 {
            return Ok(Outcome::Empty);
        }
        let rows: Vec<Row> = ended.jobs.iter().map(Row::from).collect();
        let new = store(&self.database, &rows).await;
        let new = new.map_err(|error| (error.to_string(), error.may_pass()))?;
        metrics::counter!("keyfall_archive_stored_total").increment(new);
        let forgotten = self.client.forget_ended(kind, ended).await;
        forgotten.map_err(|error| (error.to_string(), error.is_retryable()))?;
        Ok(match () {
            () if new == 0 => Outcome::Elsewhere,
            () if (read as u64) < ended.waiting => Outcome::More,
            () => Outcome::Done,
        })
    }

    /// Drops the months whose time is over, now and then.
    async fn drop_expired(&self) {
        let mut told = None;
        loop {
            match self.database.drop_expired().await {
                Ok(_) => told = None,
                Err(error) => log::<Self>(&mut told, &error.to_string(), false),
            }
            tokio::time::sleep(RETENTION).await;
        }
    }
}

impl Work for Archiver {
    type Memory = Progress;

    const WHAT: &'static str = "records of ended jobs";
    const AT_ONCE: usize = 8;

    async fn kinds(&self) -> keyfall::Result<BTreeSet<Kind>> {
        Ok(self.client.archived_kinds().await?.into_iter().collect())
    }

    /// Moves one batch of a kind.
    async fn step(&self, kind: &Kind, shards: Shards, progress: &mut Progress) -> Outcome {
        let ended = match self.client.ended(kind, shards, progress.batch).await {
            Ok(ended) => ended,
            Err(error) => return Outcome::Failed(error.to_string(), error.is_retryable()),
        };
        progress.waiting = Waiting::of(&ended);
        match self.store(kind, &ended).await {
            Ok(outcome) => {
                progress.waiting.take(&ended);
                progress.batch = (2 * progress.batch).min(BATCH.1);
                outcome
            }
            Err((message, may_pass)) => {
                progress.batch = (progress.batch / 2).max(BATCH.0);
                Outcome::Failed(message, may_pass)
            }
        }
    }

    fn tell<'a>(&self, kinds: impl Iterator<Item = &'a Progress>) {
        let kinds: Vec<&Waiting> = kinds.map(|it| &it.waiting).collect();
        let sum = |part: fn(&Waiting) -> u64| kinds.iter().map(|it| part(it)).sum::<u64>();
        metrics::gauge!("keyfall_archive_waiting").set(sum(|it| it.records) as f64);
        metrics::gauge!("keyfall_archive_waiting_bytes").set(sum(|it| it.bytes) as f64);
        metrics::gauge!("keyfall_archive_dropped").set(sum(|it| it.dropped) as f64);
        let oldest = kinds.iter().filter_map(|it| it.oldest).min();
        let lag = oldest.and_then(|oldest| oldest.elapsed().ok());
        metrics::gauge!("keyfall_archive_lag_seconds").set(lag.unwrap_or_default().as_secs_f64());
    }
}

impl Waiting {
    fn of(ended: &EndedJobs) -> Self {
        Waiting {
            records: ended.waiting,
            bytes: ended.waiting_bytes,
            dropped: ended.dropped,
            oldest: ended.jobs.iter().map(|job| job.ended_at).min(),
        }
    }

    /// Without the records that were stored.
    fn take(&mut self, ended: &EndedJobs) {
        let read = (ended.jobs.len() + ended.unreadable.len()) as u64;
        let left = self.records.saturating_sub(read);
        // Records of a kind are about alike.
        let bytes = u128::from(self.bytes) * u128::from(left) / u128::from(self.records.max(1));
        self.bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.records = left;
        if left == 0 {
            self.oldest = None;
        }
    }
}

impl From<&EndedJob> for Row {
    fn from(job: &EndedJob) -> Self {
        Row {
            ended_us: micros(job.ended_at),
            key: job.key.clone(),
            accepted_us: micros(job.accepted_at),
            how: match job.end {
                JobEnd::Skipped => How::Skipped,
                JobEnd::Cancelled => How::Cancelled,
                JobEnd::Replaced => How::Replaced,
                JobEnd::Buried => How::Buried,
                _ => How::Done,
            },
            keep_months: job.keep_months,
            due_us: job.due_at.map(micros),
            begun_us: job.begun_at.map(micros),
            attempts: job.attempts,
            worker: Some(job.by.clone()),
            error: job.error.clone(),
            headers: job
                .headers
                .iter()
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
            header: Some(job.header.clone()),
            payload: job.payload.clone(),
            payload_bytes: job.payload_bytes,
            fence: job.fence,
            letter: job.letter,
            occurrence_us: job.occurrence_at.map(micros),
        }
    }
}

/// µs since 1970.
fn micros(time: SystemTime) -> i64 {
    let since = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}
