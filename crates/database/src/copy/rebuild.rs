//! Brings back the jobs that Redis has lost.

use std::pin::pin;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::{StreamExt, TryStreamExt, stream};
use keyfall::{Client, CopiedJob, CopyMark, CopyTerms, JobKey, KeptJob, Kind, Restored, Shards};
use tokio::time::sleep;

use super::guard::new_id;
use super::lock::KindLock;
use super::row::{CopiedRow, us_of};
use crate::connection::Database;
use crate::error::{Error, Result};

/// The most jobs of a page.
const PAGE: usize = 1_000;

/// How many jobs of a page are restored at the same time: the client sends them together.
const AT_ONCE: usize = 256;

/// The names of jobs that are shown of a kind.
const SHOWN: usize = 3;

/// Compares the copy with Redis, and brings back the jobs that Redis has lost.
///
/// Only jobs that are absent are brought back, with their due times, attempts, headers and terms, and
/// with fencing values above all that were given out before. Their kinds are paused first, and stay so
/// until an operator resumes them: overdue jobs then start as after any pause. It may be repeated.
pub struct Rebuild {
    client: Client,
    database: Database,
    by: String,
    leaves_unreadable: bool,
}

/// What Redis lacks of a kind; from [`Rebuild::missing`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Missing {
    /// The kind, `app:module:biz`.
    pub kind: String,
    /// How many jobs the copy has.
    pub copied: u64,
    /// How many of them Redis lacks.
    pub missing: u64,
    /// How many of those are overdue, by the clock of this machine.
    pub overdue: u64,
    /// The first of them by name.
    pub first: Vec<String>,
    /// How many rows of the outbox were passed on, and may be lost: they are passed on again.
    pub kept: u64,
    /// When the copy was up to date last, by the clock of Redis. What happened later is unknown to it:
    /// jobs that were scheduled are missing, cancelled ones come back, finished ones run again.
    pub until: Option<SystemTime>,
}

/// What was brought back of a kind; from [`Rebuild::run`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rebuilt {
    /// The kind, `app:module:biz`. It is paused.
    pub kind: String,
    /// How many jobs were brought back.
    pub restored: u64,
    /// How many of the copy were there.
    pub present: u64,
    /// Jobs that cannot be read, or are refused, with the reason; they stay in the copy.
    pub refused: Vec<String>,
    /// How many rows went back to the outbox.
    pub kept: u64,
}

/// What became of one job.
enum Fate {
    Restored,
    Present,
    Refused(String),
}

impl Rebuild {
    /// A rebuild of the Redis of the client from this database.
    pub fn new(client: Client, database: Database) -> Self {
        Rebuild {
            client,
            database,
            by: "keyfall rebuild".to_owned(),
            leaves_unreadable: false,
        }
    }

    /// The operator, for the pauses. Defaults to `keyfall rebuild`.
    pub fn by(mut self, who: impl Into<String>) -> Self {
        self.by = who.into();
        self
    }

    /// Ends also if some jobs cannot be brought back, and gives them up. Without it they stay in the
    /// copy, and the copy stays stopped.
    pub fn leave_unreadable(mut self) -> Self {
        self.leaves_unreadable = true;
        self
    }

    /// Compares the copy with Redis, and changes nothing.
    ///
    /// # Errors
    /// If Redis or the database does not answer.
    pub async fn missing(&self) -> Result<Vec<Missing>> {
        let mut kinds = Vec::new();
        for copied in self.database.copied_kinds().await? {
            let mut it = Missing {
                kind: copied.kind,
                kept: copied.kept,
                until: copied.clock,
                ..Missing::default()
            };
            let (kind, mut after) = (Kind::parse(&it.kind)?, None);
            loop {
                let page = self
                    .database
                    .copied_pending(&it.kind, after.as_deref(), PAGE)
                    .await?;
                let Some(last) = page.last() else {
                    break;
                };
                after = Some(last.key.clone());
                it.copied += page.len() as u64;
                it.note(self.absent(&kind, page).await?);
            }
            kinds.push(it);
        }
        Ok(kinds)
    }

    /// Brings back what is missing. The copy is stopped meanwhile, and goes on afterwards, with a new
    /// id for the data set.
    ///
    /// # Errors
    /// If Redis or the database does not answer, or some jobs cannot be
    /// [brought back](Self::leave_unreadable). Repeat it: what was done stays done.
    pub async fn run(&self) -> Result<Vec<Rebuilt>> {
        self.database
            .stop_copy("a rebuild has begun, and has not ended")
            .await?;
        if let Some(state) = self.database.copy_state().await? {
            self.client.restore_rules(&state.rules).await?;
        }
        let mut rebuilt = Vec::new();
        for copied in self.database.copied_kinds().await? {
            rebuilt.push(self.kind(copied.kind).await?);
        }
        let refused = rebuilt.iter().flat_map(|it| &it.refused);
        let refused: Vec<&String> = refused.collect();
        if !refused.is_empty() && !self.leaves_unreadable {
            return Err(Error::Rebuild {
                jobs: refused.len(),
                first: refused[0].clone(),
            });
        }
        let id = new_id();
        self.client.name_data_set(&id, true).await?;
        self.database.resume_copy(&id).await?;
        Ok(rebuilt)
    }

    async fn kind(&self, name: String) -> Result<Rebuilt> {
        let kind = Kind::parse(&name)?;
        let prefix = format!("{kind}:");
        self.client.prefix(&prefix).pause().by(&self.by).await?;
        let mut lock = loop {
            match KindLock::take(&self.database, &name).await? {
                Some(lock) => break lock,
                // A copier that has not heard of the stop.
                None => sleep(Duration::from_millis(50)).await,
            }
        };
        let mark = mark(&lock);
        lock.restart().await?;
        lock.commit().await?;
        let mut it = Rebuilt {
            kind: name,
            ..Rebuilt::default()
        };
        let mut after: Option<String> = None;
        loop {
            let page = self
                .database
                .copied_pending(&it.kind, after.as_deref(), PAGE)
                .await?;
            let Some(last) = page.last() else {
                break;
            };
            after = Some(last.key.clone());
            let all = page.len();
            let absent = self.absent(&kind, page).await?;
            it.present += (all - absent.len()) as u64;
            self.restore(absent, &mut it).await?;
        }
        self.client.follow_rules(&kind).await?;
        self.raise(&kind, mark).await?;
        it.kept = self.database.kept_again(&it.kind).await?;
        Ok(it)
    }

    /// Those of a page that Redis lacks, and that have not ended since.
    async fn absent(&self, kind: &Kind, page: Vec<CopiedRow>) -> Result<Vec<(JobKey, CopiedRow)>> {
        let keyed = page.into_iter().filter_map(|row| {
            let id = row.key.strip_prefix(kind.as_str())?.strip_prefix(':')?;
            Some((kind.key(id).ok()?, row))
        });
        let keyed: Vec<(JobKey, CopiedRow)> = keyed.collect();
        let keys: Vec<JobKey> = keyed.iter().map(|(key, _)| key.clone()).collect();
        let there = self.client.as_they_are(&keys).await?;
        let absent = keyed.into_iter().zip(there);
        let absent = absent.filter(|(_, is)| is.job.is_none() && is.version == 0);
        Ok(absent.map(|(row, _)| row).collect())
    }

    async fn restore(&self, jobs: Vec<(JobKey, CopiedRow)>, it: &mut Rebuilt) -> Result<()> {
        let fates = jobs
            .into_iter()
            .map(|(key, row)| self.restore_one(key, row));
        let mut fates = pin!(stream::iter(fates).buffer_unordered(AT_ONCE));
        while let Some(fate) = fates.try_next().await? {
            match fate {
                Fate::Restored => it.restored += 1,
                Fate::Present => it.present += 1,
                Fate::Refused(why) => it.refused.push(why),
            }
        }
        Ok(())
    }

    async fn restore_one(&self, key: JobKey, row: CopiedRow) -> Result<Fate> {
        let job = CopiedJob {
            due: UNIX_EPOCH + Duration::from_millis(row.job.due_ms),
            record: row.job.record,
        };
        let restored = match KeptJob::copied(&key, &job) {
            Ok(kept) => self.client.restore(kept).await,
            Err(error) => Err(error),
        };
        match restored {
            Ok(Restored::Pending(_)) => Ok(Fate::Restored),
            Ok(_) => Ok(Fate::Present),
            Err(error) if error.is_retryable() => Err(error.into()),
            Err(error) => Ok(Fate::Refused(format!("{key}: {error}"))),
        }
    }

    /// Has each shard of the kind give out fencing values above all that were given out before, and
    /// versions above all that were copied.
    async fn raise(&self, kind: &Kind, mark: CopyMark) -> Result<()> {
        let changes = self.client.changes(kind, Shards::Present, 0).await?;
        for shard in &changes.shards {
            let terms = shard.terms.unwrap_or_else(CopyTerms::new);
            let raised = self.client.begin_copy(kind, shard.shard, terms, mark, None);
            raised.await?;
        }
        Ok(())
    }
}

impl Missing {
    fn note(&mut self, absent: Vec<(JobKey, CopiedRow)>) {
        let now_ms = us_of(SystemTime::now()) / 1_000;
        self.missing += absent.len() as u64;
        let overdue = absent.iter().filter(|(_, row)| row.job.due_ms < now_ms);
        self.overdue += overdue.count() as u64;
        let left = SHOWN - self.first.len();
        let names = absent.iter().map(|(key, _)| key.to_string());
        self.first.extend(names.take(left));
    }
}

/// What the copy knows of all shards of a kind. Fencing values follow the clock of Redis: none that
/// was given out since the last look is higher than that clock can have come.
fn mark(lock: &KindLock) -> CopyMark {
    /// For clocks that do not agree.
    const MARGIN: Duration = Duration::from_secs(60);
    let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let fences = lock.ledgers().iter().map(|row| {
        let since = row.looked_at.elapsed().unwrap_or_default() + MARGIN;
        row.fence.max(row.clock_us.saturating_add(micros(since)))
    });
    CopyMark {
        version: lock
            .ledgers()
            .iter()
            .map(|row| row.through)
            .max()
            .unwrap_or(0),
        number: 0,
        fence: fences.max().unwrap_or(0),
    }
}
