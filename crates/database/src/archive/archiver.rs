//! The archiver: stores the records of ended jobs, and removes them from Redis after the commit.

use std::collections::{BTreeSet, HashMap};
use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use keyfall::{Client, EndedJob, EndedJobs, JobEnd, Kind, Shards};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::how::How;
use super::row::Row;
use super::writer::store;
use crate::connection::Database;
use crate::error::Error;

/// The most records of each list that one batch has, and the least that it may be cut to.
const BATCH: (usize, usize) = (50, 2_000);

/// How often the kinds and their rules are read.
const REFRESH: Duration = Duration::from_secs(5);

/// How often all kinds are told their terms again, in case a server has missed them, and shards that a
/// reshard has left are read.
const AGAIN: Duration = Duration::from_secs(60);

/// How often months whose time is over are dropped.
const RETENTION: Duration = Duration::from_secs(3_600);

/// The pauses of a kind without records: from the first, doubled each time, to the last.
const IDLE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// The pauses after a failure.
const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// How many kinds are worked on at the same time; the others follow.
const MOST_KINDS: usize = 8;

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

/// A kind that leaves records.
struct Progress {
    next: Instant,
    pause: Duration,
    is_busy: bool,
    /// The size of the next batch: a database that does not store one in time gets smaller ones.
    batch: usize,
    /// When the shards that a reshard has left are read next.
    all: Instant,
    state: Waiting,
    /// The failure that was logged.
    told: Option<String>,
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

/// What became of a batch.
struct Step {
    state: Waiting,
    outcome: Outcome,
}

enum Outcome {
    /// There was nothing to store.
    Empty,
    /// All records were in the archive already: another archiver works on the kind.
    Known,
    /// Records were stored, and more wait.
    More,
    /// Records were stored, and none is left.
    Stored,
    /// Redis or the database refuses; what that is, and whether it can pass by itself.
    Failed(String, bool),
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
        let this = Arc::new(self);
        tokio::select! {
            () = stopped => {}
            () = this.archive() => unreachable!("it works for ever"),
            () = this.drop_expired() => unreachable!("it works for ever"),
            () = this.tell_again() => unreachable!("it works for ever"),
        }
    }

    /// Works on the kinds in turn, those first that have waited longest.
    async fn archive(self: &Arc<Self>) {
        let mut kinds: HashMap<Kind, Progress> = HashMap::new();
        let mut tasks: JoinSet<(Kind, Step)> = JoinSet::new();
        let (mut refresh, mut told) = (Instant::now(), None);
        loop {
            if refresh <= Instant::now() {
                refresh = Instant::now() + REFRESH;
                match self.kinds().await {
                    Ok(found) => {
                        told = None;
                        note(&mut kinds, &found);
                    }
                    Err(error) => log(&mut told, &error.to_string(), false),
                }
            }
            self.begin(&mut kinds, &mut tasks);
            tell(&kinds);
            let next = kinds.values().filter(|it| !it.is_busy).map(|it| it.next);
            let next = match tasks.len() < MOST_KINDS {
                true => next.min().unwrap_or(refresh).min(refresh),
                false => refresh,
            };
            tokio::select! {
                ended = join_next(&mut tasks) => {
                    let (kind, step) = ended;
                    if let Some(progress) = kinds.get_mut(&kind) {
                        progress.end(step);
                    }
                }
                () = sleep_until(next) => {}
            }
        }
    }

    /// The kinds that leave records, or once did.
    async fn kinds(&self) -> keyfall::Result<BTreeSet<Kind>> {
        Ok(self.client.archived_kinds().await?.into_iter().collect())
    }

    /// Tells each kind its terms again, now and then.
    async fn tell_again(&self) {
        loop {
            tokio::time::sleep(AGAIN).await;
            for kind in self.kinds().await.unwrap_or_default() {
                if let Err(error) = self.client.archive_again(&kind).await {
                    tracing::debug!(%kind, %error, "the archive of a kind was not set again");
                }
            }
        }
    }

    /// Begins the work on kinds whose time has come.
    fn begin(
        self: &Arc<Self>,
        kinds: &mut HashMap<Kind, Progress>,
        tasks: &mut JoinSet<(Kind, Step)>,
    ) {
        let now = Instant::now();
        let due = kinds.iter().filter(|(_, it)| !it.is_busy && it.next <= now);
        let due: BTreeSet<(Instant, Kind)> = due
            .map(|(kind, progress)| (progress.next, kind.clone()))
            .collect();
        for (_, kind) in due.into_iter().take(MOST_KINDS - tasks.len()) {
            let progress = kinds.get_mut(&kind).expect("it is one of them");
            progress.is_busy = true;
            let (this, batch) = (Arc::clone(self), progress.batch);
            let shards = match progress.all <= now {
                true => Shards::All,
                false => Shards::Present,
            };
            if shards == Shards::All {
                progress.all = now + AGAIN;
            }
            tasks.spawn(async move {
                let step = this.step(&kind, shards, batch).await;
                (kind, step)
            });
        }
    }

    /// Moves one batch of a kind.
    async fn step(&self, kind: &Kind, shards: Shards, batch: usize) -> Step {
        let ended = match self.client.ended(kind, shards, batch).await {
            Ok(ended) => ended,
            Err(error) => {
                return Step {
                    state: Waiting::default(),
                    outcome: Outcome::Failed(error.to_string(), error.is_retryable()),
                };
            }
        };
        let mut state = Waiting::of(&ended);
        let outcome = match self.store(kind, &ended).await {
            Ok(outcome) => {
                state.take(&ended);
                outcome
            }
            Err((message, may_pass)) => Outcome::Failed(message, may_pass),
        };
        Step { state, outcome }
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
        let new =
            new.map_err(|error| (error.to_string(), matches!(error, Error::Unreachable(_))))?;
        metrics::counter!("keyfall_archive_stored_total").increment(new);
        let forgotten = self.client.forget_ended(kind, ended).await;
        forgotten.map_err(|error| (error.to_string(), error.is_retryable()))?;
        Ok(match () {
            () if new == 0 => Outcome::Known,
            () if (read as u64) < ended.waiting => Outcome::More,
            () => Outcome::Stored,
        })
    }

    /// Drops the months whose time is over, now and then.
    async fn drop_expired(&self) {
        let mut told = None;
        loop {
            match self.database.drop_expired().await {
                Ok(_) => told = None,
                Err(error) => log(&mut told, &error.to_string(), false),
            }
            tokio::time::sleep(RETENTION).await;
        }
    }
}

impl Progress {
    /// Notes the end of a step.
    fn end(&mut self, step: Step) {
        self.is_busy = false;
        let now = Instant::now();
        let pause = match step.outcome {
            Outcome::Failed(message, may_pass) => {
                log(&mut self.told, &message, may_pass);
                // What waits was not read if Redis has failed.
                if step.state.records > 0 {
                    self.state = step.state;
                }
                let pause = self.pause.max(PAUSES.0);
                self.next = now + pause;
                self.pause = (2 * pause).min(PAUSES.1);
                self.batch = (self.batch / 2).max(BATCH.0);
                return;
            }
            Outcome::Empty => self.pause.max(IDLE.0),
            // The other archiver has its turn.
            Outcome::Known => IDLE.1,
            Outcome::Stored => IDLE.0,
            Outcome::More => Duration::ZERO,
        };
        self.batch = (2 * self.batch).min(BATCH.1);
        if self.told.take().is_some() {
            tracing::info!("records of ended jobs are stored again");
        }
        self.state = step.state;
        self.next = now + pause;
        self.pause = (2 * pause).clamp(IDLE.0, IDLE.1);
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

/// Takes over the kinds that were found.
fn note(kinds: &mut HashMap<Kind, Progress>, found: &BTreeSet<Kind>) {
    kinds.retain(|kind, progress| progress.is_busy || found.contains(kind));
    for kind in found {
        kinds.entry(kind.clone()).or_insert_with(|| Progress {
            next: Instant::now(),
            pause: IDLE.0,
            is_busy: false,
            batch: BATCH.1,
            all: Instant::now(),
            state: Waiting::default(),
            told: None,
        });
    }
}

/// Sets the gauges.
fn tell(kinds: &HashMap<Kind, Progress>) {
    let sum = |part: fn(&Waiting) -> u64| kinds.values().map(|it| part(&it.state)).sum::<u64>();
    metrics::gauge!("keyfall_archive_waiting").set(sum(|it| it.records) as f64);
    metrics::gauge!("keyfall_archive_waiting_bytes").set(sum(|it| it.bytes) as f64);
    metrics::gauge!("keyfall_archive_dropped").set(sum(|it| it.dropped) as f64);
    let oldest = kinds.values().filter_map(|it| it.state.oldest).min();
    let lag = oldest.and_then(|oldest| oldest.elapsed().ok());
    metrics::gauge!("keyfall_archive_lag_seconds").set(lag.unwrap_or_default().as_secs_f64());
}

/// Logs a failure once, until it is another one.
fn log(told: &mut Option<String>, message: &str, may_pass: bool) {
    if told.as_deref() == Some(message) {
        return;
    }
    match may_pass {
        true => tracing::warn!(error = message, "records of ended jobs wait in Redis"),
        false => tracing::error!(error = message, "records of ended jobs are not stored"),
    }
    *told = Some(message.to_owned());
}

async fn join_next(tasks: &mut JoinSet<(Kind, Step)>) -> (Kind, Step) {
    match tasks.join_next().await {
        Some(Ok(ended)) => ended,
        Some(Err(error)) => std::panic::resume_unwind(error.into_panic()),
        None => pending().await,
    }
}

/// µs since 1970.
fn micros(time: SystemTime) -> i64 {
    let since = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}
