//! The copier: takes the changes of jobs from Redis, stores them, and tells Redis after the commit.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use keyfall::{ChangedJob, Changes, Client, CopiedShard, CopyMark, CopyTerms, Kind, Shards};
use tokio::time::{Instant, sleep};

use super::guard::{self, Stopped};
use super::last_batch::{self, unacknowledged};
use super::lock::KindLock;
use super::row::{Change, LedgerMark, LedgerRow, Stored, us_of};
use crate::connection::Database;
use crate::error::Result;
use crate::rounds::{Outcome, Work, log, rounds};

/// The most changes of a shard that one batch has.
const BATCH: usize = 2_000;

/// How many noted jobs may wait before more of those that are there are noted.
const AHEAD: u64 = 2 * BATCH as u64;

/// How often the copy of a kind that does not change is confirmed in the database.
const LOOK: Duration = Duration::from_secs(10);

/// How often the data sets are compared.
const COMPARE: Duration = Duration::from_secs(2);

/// How often the doctor is told that somebody copies.
const NOTE: Duration = Duration::from_secs(10);

/// How often all kinds are told their terms again, in case a server has missed them.
const AGAIN: Duration = Duration::from_secs(60);

/// How long a job that has ended is remembered.
const TOMBSTONES: Duration = Duration::from_secs(86_400);

/// Keeps the copy of the jobs that are to run, of the kinds that
/// [are copied](keyfall::Selection::copy). Any number of copiers share the work.
///
/// If Redis does not have the data set that was copied, or an older state of it, the copy is stopped,
/// and stays as it is for a [`Rebuild`](super::Rebuild).
pub struct Copier {
    client: Client,
    database: Database,
    /// Why nothing is copied; it is unknown at first.
    stopped: Mutex<Option<String>>,
}

/// What is known of a kind between two batches.
#[derive(Debug, Clone, Default)]
pub(crate) struct Progress {
    /// The shards whose jobs are noted as changed, one after the other.
    filling: BTreeMap<u16, Filling>,
    /// The shards whose last batch was looked for in Redis, with its number.
    compared: BTreeMap<u16, u64>,
    /// When the database was told of the kind.
    looked: Option<Instant>,
    /// Whether the kind is copied no more, and its copy is gone.
    is_forgotten: bool,
    /// How many changes wait, and when the oldest was made, µs.
    waiting: u64,
    oldest: Option<u64>,
}

/// A shard whose copy begins.
#[derive(Debug, Clone)]
struct Filling {
    /// The epoch of the shard: after a reshard all its jobs are noted once more, because those from
    /// before would count as older ones.
    epoch: u64,
    /// The version of the first jobs that were noted.
    since: u64,
    /// Where the next step goes on; `None` at the end.
    cursor: Option<String>,
}

impl Copier {
    /// A copier from the Redis of the client to this database.
    pub fn new(client: Client, database: Database) -> Self {
        metrics::describe_counter!(
            "keyfall_copy_stored_total",
            "Changes of jobs that were copied"
        );
        metrics::describe_gauge!(
            "keyfall_copy_waiting",
            "Changed jobs that wait for the copy"
        );
        metrics::describe_gauge!(
            "keyfall_copy_lag_seconds",
            "How long the oldest change has waited for the copy"
        );
        metrics::describe_gauge!(
            "keyfall_copy_stopped",
            "1 if the copy is stopped, because Redis has lost what was copied"
        );
        Copier {
            client,
            database,
            stopped: Mutex::new(Some(String::new())),
        }
    }

    /// Works until `stopped`. A batch that is on its way by then is copied again by the next copier.
    pub async fn run_until(self, stopped: impl Future<Output = ()>) {
        metrics::counter!("keyfall_copy_stored_total").increment(0);
        let this = Arc::new(self);
        tokio::select! {
            () = stopped => {}
            () = rounds(Arc::clone(&this)) => unreachable!("it works for ever"),
            () = this.compare() => unreachable!("it works for ever"),
            () = this.tell_again() => unreachable!("it works for ever"),
        }
    }

    /// Compares the data sets, now and then.
    async fn compare(&self) {
        let (mut told, mut said): (_, Option<String>) = (None, None);
        let mut noted: Option<Instant> = None;
        loop {
            match self.learn().await {
                Ok(compared) => {
                    told = None;
                    let stopped = compared.clone().flatten();
                    let is_new = said != stopped || noted.is_none_or(|it| it.elapsed() >= NOTE);
                    if compared.is_some() && is_new {
                        noted = self.note(stopped.as_deref()).await;
                    }
                    if let Some(why) = stopped.as_ref().filter(|why| said.as_ref() != Some(*why)) {
                        tracing::error!(
                            %why,
                            "the copy is stopped: look with `keyfall rebuild`, which brings back what \
                             is missing"
                        );
                    }
                    let is_stopped = u8::from(stopped.is_some());
                    metrics::gauge!("keyfall_copy_stopped").set(is_stopped);
                    said = stopped;
                }
                Err(error) => log::<Self>(&mut told, &error.to_string(), error.may_pass()),
            }
            sleep(COMPARE).await;
        }
    }

    /// Tells the doctor what was found. Returns when it did; `None` if Redis has refused it.
    async fn note(&self, stopped: Option<&str>) -> Option<Instant> {
        match self.client.note_copier(stopped).await {
            Ok(()) => Some(Instant::now()),
            Err(error) => {
                tracing::debug!(%error, "the doctor was not told of the copy");
                None
            }
        }
    }

    /// Compares the data set of Redis with the one that was copied, and stops the copy if they differ.
    /// Returns why it is stopped; `None` if it goes on, or nothing is copied.
    ///
    /// # Errors
    /// If Redis or the database does not answer.
    pub async fn compare_once(client: &Client, database: &Database) -> Result<Option<String>> {
        Ok(guard::compare_copied(client, database).await?.flatten())
    }

    /// Compares the data sets. Returns `None` if nothing is copied.
    async fn learn(&self) -> Result<Option<Stopped>> {
        // Read before the data sets are compared, so that they belong to the one that was copied.
        let rules = self.client.stored_rules().await?;
        let compared = guard::compare_copied(&self.client, &self.database).await?;
        let stopped = compared.clone().flatten();
        if stopped.is_none() {
            self.database.note_rules(&rules).await?;
        }
        *self.stopped.lock().expect("no panic") = stopped;
        Ok(compared)
    }

    /// Tells each kind its terms again, and removes old tombstones, now and then.
    async fn tell_again(&self) {
        let mut told = None;
        loop {
            sleep(AGAIN).await;
            for kind in self.client.copied_kinds().await.unwrap_or_default() {
                if let Err(error) = self.client.copy_again(&kind).await {
                    tracing::debug!(%kind, %error, "the copy of a kind was not set again");
                }
            }
            match self.tidy().await {
                Ok(()) => told = None,
                Err(error) => log::<Self>(&mut told, &error.to_string(), error.may_pass()),
            }
        }
    }

    /// Removes old tombstones, and what is left of kinds that were dropped.
    async fn tidy(&self) -> Result<()> {
        self.database.sweep_tombstones(TOMBSTONES).await?;
        let there = self.client.copied_kinds().await?;
        for copied in self.database.copied_kinds().await? {
            let is_there = there.iter().any(|kind| kind.as_str() == copied.kind);
            if !is_there && copied.pending + copied.kept == 0 {
                self.database.forget_copy(&copied.kind).await?;
            }
        }
        Ok(())
    }

    async fn copy(&self, kind: &Kind, shards: Shards, progress: &mut Progress) -> Result<Outcome> {
        if self.stopped.lock().expect("no panic").is_some() {
            return Ok(Outcome::Empty);
        }
        let changes = self.client.changes(kind, shards, 0).await?;
        progress.note(&changes);
        if changes.shards.iter().all(|it| it.terms.is_none()) {
            progress.filling.clear();
            // A Redis that was emptied has no terms either.
            let is_off = changes.shards.iter().all(|it| it.is_off);
            if is_off && !progress.is_forgotten {
                self.forget(kind).await?;
                progress.is_forgotten = true;
            }
            return Ok(Outcome::Empty);
        }
        progress.is_forgotten = false;
        let is_quiet = progress.waiting == 0 && changes.shards.iter().all(|it| it.is_noting);
        let is_fresh = progress.looked.is_some_and(|it| it.elapsed() < LOOK);
        if is_quiet && is_fresh && progress.filling.is_empty() {
            return Ok(Outcome::Empty);
        }
        let Some(lock) = KindLock::take(&self.database, kind.as_str()).await? else {
            return Ok(Outcome::Elsewhere);
        };
        // Under the lock, what Redis says is not older than what another copier has stored.
        let changes = self.client.changes(kind, shards, BATCH).await?;
        progress.note(&changes);
        progress.filling.retain(|at, it| {
            let shard = changes.shards.iter().find(|shard| shard.shard == *at);
            shard.is_none_or(|shard| shard.epoch == it.epoch)
        });
        // Shards that the kind has never had are left out.
        let used = changes.shards.iter().filter(|it| {
            let has_copied = |row: &LedgerRow| row.shard == it.shard && row.through > 0;
            it.terms.is_some() || it.version > 0 || lock.ledgers().iter().any(has_copied)
        });
        let used: Vec<&CopiedShard> = used.collect();
        let marks: Vec<LedgerMark> = used.iter().map(|it| LedgerMark::from(*it)).collect();
        let judged = match lock.judge(&marks) {
            Ok(judged) => judged,
            Err(lost) => {
                drop(lock);
                return self.stop(kind, &lost.to_string()).await;
            }
        };
        let suspects = unacknowledged(&lock, &changes.shards);
        let suspects: Vec<&LedgerRow> = suspects
            .into_iter()
            .filter(|row| progress.compared.get(&row.shard) != Some(&row.number))
            .collect();
        if !suspects.is_empty() {
            let numbers = suspects.iter().map(|row| (row.shard, row.number));
            let compared: Vec<(u16, u64)> = numbers.collect();
            if let Some(lost) = last_batch::lost(&self.client, &lock, kind, &suspects).await? {
                drop(lock);
                return self.stop(kind, &lost.to_string()).await;
            }
            progress.compared.extend(compared);
        }
        let rows: Vec<Change> = changes.jobs.iter().map(Change::from).collect();
        lock.store(&rows, judged).await?;
        // Stored before the ledger notes changes again: if this copier is killed between the two, the
        // next one notes all jobs.
        for shard in used.iter().filter(|it| !it.is_noting) {
            lock.begins_anew(shard.shard).await?;
        }
        if shards == Shards::All {
            lock.forget_unused(used.iter().map(|it| it.shard)).await?;
        }
        // All that had changed by the time of this look is stored with it. A shard that notes nothing,
        // or not all of its jobs yet, may have changes that nobody sees.
        let is_drained = rows.len() as u64 == progress.waiting
            && changes.unseen.is_empty()
            && used.iter().all(|it| {
                it.is_noting
                    && match progress.filling.get(&it.shard) {
                        Some(filling) => filling.cursor.is_none(),
                        None => lock
                            .ledgers()
                            .iter()
                            .any(|row| row.shard == it.shard && row.filled),
                    }
            });
        let mut ledgers = lock.ledgers().to_vec();
        if is_drained {
            lock.drained().await?;
            for mark in &marks {
                if let Some(filling) = progress.filled(mark.shard) {
                    lock.filled(mark.shard, mark.epoch, filling.since).await?;
                    let mut rows = ledgers.iter_mut();
                    if let Some(row) = rows.find(|row| row.shard == mark.shard) {
                        row.filled = true;
                    }
                }
            }
        }
        lock.commit().await?;
        progress.looked = Some(Instant::now());
        metrics::counter!("keyfall_copy_stored_total").increment(rows.len() as u64);
        self.forget_changes(kind, &changes).await?;
        let begun = self.fill(kind, &changes, &ledgers, progress).await?;
        Ok(match () {
            () if begun => Outcome::More,
            () if rows.is_empty() => Outcome::Empty,
            () if (rows.len() as u64) < progress.waiting => Outcome::More,
            () => Outcome::Done,
        })
    }

    async fn forget_changes(&self, kind: &Kind, changes: &Changes) -> Result<()> {
        for shard in &changes.shards {
            let here = changes.jobs.iter().filter(|job| job.shard == shard.shard);
            let here: Vec<ChangedJob> = here.cloned().collect();
            if !here.is_empty() {
                let (at, number) = (shard.shard, shard.number + 1);
                self.client.forget_changes(kind, at, number, &here).await?;
            }
        }
        Ok(())
    }

    /// Notes some jobs of the shards whose copy begins as changed. Returns whether it did.
    async fn fill(
        &self,
        kind: &Kind,
        changes: &Changes,
        ledgers: &[LedgerRow],
        progress: &mut Progress,
    ) -> Result<bool> {
        let mut begun = false;
        for shard in &changes.shards {
            let row = ledgers.iter().find(|row| row.shard == shard.shard);
            let is_filled = row.is_some_and(|row| row.filled) && shard.is_noting;
            let known = progress
                .filling
                .get(&shard.shard)
                .filter(|_| shard.is_noting);
            let cursor = match known {
                None if is_filled => continue,
                None => None,
                Some(Filling { cursor: None, .. }) => continue,
                Some(Filling { cursor, .. }) => cursor.clone(),
            };
            // The other half of the bound is for changes.
            let has_room = |terms: &CopyTerms| shard.waiting < AHEAD.min(terms.get_waiting() / 2);
            let Some(terms) = shard.terms.filter(has_room) else {
                continue;
            };
            let mark = CopyMark {
                version: row.map_or(0, |row| row.through),
                number: row.map_or(0, |row| row.number),
                fence: 0,
            };
            // A ledger that was never copied says nothing of a Redis that was emptied.
            if row.is_none() && self.learn().await?.flatten().is_some() {
                return Ok(false);
            }
            let step = self
                .client
                .begin_copy(kind, shard.shard, terms, mark, cursor.as_deref());
            let step = step.await?;
            let since = match (cursor, known) {
                (Some(_), Some(known)) => known.since,
                _ => step.version,
            };
            let filling = Filling {
                epoch: shard.epoch,
                since,
                cursor: step.cursor,
            };
            progress.filling.insert(shard.shard, filling);
            begun = true;
        }
        Ok(begun)
    }

    /// Forgets the copy of a kind that is copied no more.
    async fn forget(&self, kind: &Kind) -> Result<()> {
        let copied = self.database.copied_kinds().await?;
        if copied.iter().any(|it| it.kind == kind.as_str()) {
            self.database.forget_copy(kind.as_str()).await?;
        }
        Ok(())
    }

    /// Stops the copy, unless it has nothing of the kind that could have been lost: the kind was
    /// dropped, and has come again.
    async fn stop(&self, kind: &Kind, why: &str) -> Result<Outcome> {
        let copied = self.database.copied_kinds().await?;
        let copied = copied.iter().find(|it| it.kind == kind.as_str());
        if copied.is_none_or(|it| it.pending + it.kept == 0) {
            self.database.forget_copy(kind.as_str()).await?;
            return Ok(Outcome::More);
        }
        self.database.stop_copy(&format!("{kind}: {why}")).await?;
        self.learn().await?;
        Ok(Outcome::Empty)
    }
}

impl Work for Copier {
    type Memory = Progress;

    const WHAT: &'static str = "changes for the copy";
    /// Each holds a connection to the database while Redis is asked.
    const AT_ONCE: usize = 2;

    async fn kinds(&self) -> keyfall::Result<BTreeSet<Kind>> {
        Ok(self.client.copied_kinds().await?.into_iter().collect())
    }

    async fn step(&self, kind: &Kind, shards: Shards, progress: &mut Progress) -> Outcome {
        match self.copy(kind, shards, progress).await {
            Ok(outcome) => outcome,
            Err(error) => Outcome::Failed(error.to_string(), error.may_pass()),
        }
    }

    fn tell<'a>(&self, kinds: impl Iterator<Item = &'a Progress>) {
        let kinds: Vec<&Progress> = kinds.collect();
        let waiting: u64 = kinds.iter().map(|it| it.waiting).sum();
        metrics::gauge!("keyfall_copy_waiting").set(waiting as f64);
        let oldest = kinds.iter().filter_map(|it| it.oldest).min();
        let since = oldest.map(|oldest| SystemTime::UNIX_EPOCH + Duration::from_micros(oldest));
        let lag = since.and_then(|since| since.elapsed().ok());
        metrics::gauge!("keyfall_copy_lag_seconds").set(lag.unwrap_or_default().as_secs_f64());
    }
}

impl Progress {
    fn note(&mut self, changes: &Changes) {
        self.waiting = changes.shards.iter().map(|it| it.waiting).sum();
        let versions = changes.jobs.iter().map(|job| job.version);
        self.oldest = match self.waiting {
            0 => None,
            _ => versions.min().or(self.oldest),
        };
    }

    /// A shard all of whose jobs were noted, and copied.
    fn filled(&mut self, shard: u16) -> Option<Filling> {
        let filling = self.filling.get(&shard)?;
        match filling.cursor {
            None => self.filling.remove(&shard),
            Some(_) => None,
        }
    }
}

impl From<&CopiedShard> for LedgerMark {
    fn from(it: &CopiedShard) -> Self {
        LedgerMark {
            shard: it.shard,
            epoch: it.epoch,
            number: it.number,
            version: it.version,
            fence: it.fence,
            clock_us: it.read_at,
        }
    }
}

impl From<&ChangedJob> for Change {
    fn from(it: &ChangedJob) -> Self {
        let stored = it.job.as_ref().map(|job| Stored {
            due_ms: us_of(job.due) / 1_000,
            record: job.record.clone(),
        });
        Change {
            key: it.key.to_string(),
            shard: it.shard,
            epoch: it.epoch,
            version: it.version,
            job: stored,
        }
    }
}
