//! The changes of jobs, for a copy of the jobs that are to run.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::future::join_all;

use super::partial::PartialView;
use super::restoring::KeptJob;
use crate::client::{Client, Unseen};
use crate::error::{Error, ErrorKind, Result};
use crate::keeping::CopyTerms;
use crate::key::{IntoJobKey, JobKey, Kind};
use crate::record::Record;
use crate::shards::{Layout, MAX_SHARDS};
use crate::store::{ChangesPage, JobAsIs, Ledger, Noted};
use crate::time::UnixMs;

/// The jobs of a kind that have changed and are not copied yet; from [`Client::changes`].
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Changes {
    /// The jobs, in each shard those first that changed longest ago.
    pub jobs: Vec<ChangedJob>,
    /// How far each shard was copied.
    pub shards: Vec<CopiedShard>,
    /// The shards that could not be read, because one of several servers was away.
    pub unseen: Vec<Unseen>,
}

/// A job that has changed, as it is, or would be after its lease has lapsed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChangedJob {
    /// The key of the job.
    pub key: JobKey,
    /// The shard that has it.
    pub shard: u16,
    /// The epoch of the layout of the kind, which grows with each reshard. Of two changes of a job
    /// the one with the higher epoch is newer, and within an epoch the one with the higher version.
    pub epoch: u64,
    /// The version of the change; 0 if no change waits for the copy.
    pub version: u64,
    /// The job, if it is to run; `None` if it has ended, or become a dead letter.
    pub job: Option<CopiedJob>,
}

/// A job that is to run, as Redis stores it; [`KeptJob::copied`] reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopiedJob {
    /// Its due time.
    pub due: SystemTime,
    /// Its stored record: header, steps and payload.
    pub record: Bytes,
}

/// How far a shard was copied; from [`Client::changes`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CopiedShard {
    /// The shard.
    pub shard: u16,
    /// The epoch of the layout of the kind, as the shard knows it.
    pub epoch: u64,
    /// The time of the look, by the clock of its Redis, Unix microseconds.
    pub read_at: u64,
    /// The terms of its copy; `None` if it is not copied.
    pub terms: Option<CopyTerms>,
    /// Whether the terms [were removed](crate::Selection::stop_copy). A shard that has lost them has
    /// neither.
    pub is_off: bool,
    /// Whether it notes its changes: a copy [has begun](Client::begin_copy), and not too many have
    /// waited since.
    pub is_noting: bool,
    /// The version of its last change; 0 before a copy has begun.
    pub version: u64,
    /// How many batches of changes were [copied](Client::forget_changes).
    pub number: u64,
    /// The largest fencing value that it has given out.
    pub fence: u64,
    /// How many changed jobs wait, these included.
    pub waiting: u64,
}

/// A step of [`Client::begin_copy`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CopyStep {
    /// Where the next step goes on; `None` after the last step.
    pub cursor: Option<String>,
    /// The version of the changes that this step has noted.
    pub version: u64,
    /// How many jobs it has noted as changed.
    pub noted: u64,
}

/// What a copy knows of a shard, for [`Client::begin_copy`]. All are 0 for a new copy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CopyMark {
    /// The highest version that it has.
    pub version: u64,
    /// How many batches it has stored.
    pub number: u64,
    /// The shard gives out fencing values above this one.
    pub fence: u64,
}

/// Which shards of a kind to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shards {
    /// The shards of its layout, and while it is resharded those that jobs are leaving.
    Present,
    /// All that a kind can have. Shards that a reshard has left may still hold something.
    All,
}

impl Shards {
    /// The number of shards, from 0.
    pub(super) fn of(self, layout: Layout) -> u16 {
        match self {
            Shards::Present => layout.ledgers(),
            Shards::All if layout == Layout::FIRST => 1,
            Shards::All => MAX_SHARDS,
        }
    }
}

impl Client {
    /// The jobs of a kind that changed longest ago, up to `limit` and about 1 MiB for each shard, as
    /// they are now. It changes nothing. Once they are stored elsewhere,
    /// [`forget_changes`](Self::forget_changes) forgets them.
    ///
    /// # Errors
    /// If Redis does not answer in time.
    pub async fn changes(&self, kind: &Kind, shards: Shards, limit: usize) -> Result<Changes> {
        let (store, until) = (self.store(), self.deadline());
        let layout = store.look_up(kind, until).await?;
        let ledgers = (0..shards.of(layout)).map(|shard| store.ledger(kind, layout.place(shard)));
        let ledgers: Vec<_> = ledgers.collect();
        let reads = ledgers.iter().map(|it| it.changes(limit, &[], until));
        let mut view = PartialView::now(store);
        let mut changes = Changes::default();
        for (ledger, page) in ledgers.iter().zip(join_all(reads).await) {
            if let Some(page) = view.take(ledger, page)? {
                changes.add(kind, ledger, page)?;
            }
        }
        changes.unseen = view.unseen();
        Ok(changes)
    }

    /// Forgets the changes of a shard that [`changes`](Self::changes) has returned, unless the jobs
    /// have changed again, and notes the number of the batch that had them. May be repeated, and be
    /// late. Works while Redis is full.
    ///
    /// # Errors
    /// If Redis does not answer in time. Repeat the call, or read the changes again.
    pub async fn forget_changes(
        &self,
        kind: &Kind,
        shard: u16,
        number: u64,
        jobs: &[ChangedJob],
    ) -> Result<()> {
        let ledger = self.copied_ledger(kind, shard).await?;
        let here = jobs.iter().filter(|job| job.shard == shard);
        let here = here.map(|job| (job.key.id(), job.version));
        ledger.copied(number, here, self.deadline()).await
    }

    /// Has a shard note its changes from now on, and notes the jobs that are there as changed, some
    /// thousand with each step. The first step has no cursor. After the last one the copy has all
    /// jobs of the shard, once the noted ones are copied.
    ///
    /// # Errors
    /// If Redis does not answer in time, or is full.
    pub async fn begin_copy(
        &self,
        kind: &Kind,
        shard: u16,
        terms: CopyTerms,
        mark: CopyMark,
        cursor: Option<&str>,
    ) -> Result<CopyStep> {
        let ledger = self.copied_ledger(kind, shard).await?;
        let last = (mark.version, mark.number);
        let step = ledger.copy(terms, last, mark.fence, cursor, self.deadline());
        let step = step.await?;
        Ok(CopyStep {
            cursor: step.cursor,
            version: step.version,
            noted: step.noted,
        })
    }

    async fn copied_ledger(&self, kind: &Kind, shard: u16) -> Result<Arc<Ledger>> {
        let layout = self.store().look_up(kind, self.deadline()).await?;
        Ok(self.store().ledger(kind, layout.place(shard)))
    }

    /// These jobs as they are, and whether a change of theirs waits for the copy, in order.
    ///
    /// # Errors
    /// If the keys are of several kinds, or Redis does not answer in time.
    pub async fn as_they_are(&self, keys: &[JobKey]) -> Result<Vec<ChangedJob>> {
        let Some(first) = keys.first() else {
            return Ok(Vec::new());
        };
        let kind = Kind::parse(first.kind())?;
        if let Some(other) = keys.iter().find(|key| key.kind() != first.kind()) {
            let message =
                format!("{first} and {other} are of two kinds: ask for one kind at a time");
            return Err(Error::new(ErrorKind::InvalidKey, message));
        }
        let layout = self.store().look_up(&kind, self.deadline()).await?;
        let mut found: Vec<Option<ChangedJob>> = vec![None; keys.len()];
        // While the kind is resharded, a job may still be in its old place.
        for is_old in [false, true] {
            for shard in 0..layout.ledgers() {
                let place = |key: &JobKey| match is_old {
                    false => Some(layout.place_of(key.id())),
                    true => layout.old_place_of(key.id()),
                };
                let is_wanted = |at: usize| found[at].as_ref().is_none_or(|it| it.job.is_none());
                let is_here = |key: &JobKey| place(key).is_some_and(|it| it.shard == shard);
                let here = (0..keys.len()).filter(|at| is_here(&keys[*at]) && is_wanted(*at));
                let places: Vec<usize> = here.collect();
                let ids: Vec<&str> = places.iter().map(|at| keys[*at].id()).collect();
                let jobs = self.jobs_as_they_are(&kind, layout, shard, &ids).await?;
                for (at, job) in places.into_iter().zip(jobs) {
                    if job.job.is_some() || found[at].is_none() {
                        found[at] = Some(job);
                    }
                }
            }
        }
        Ok(found.into_iter().flatten().collect())
    }

    async fn jobs_as_they_are(
        &self,
        kind: &Kind,
        layout: Layout,
        shard: u16,
        ids: &[&str],
    ) -> Result<Vec<ChangedJob>> {
        let ledger = self.store().ledger(kind, layout.place(shard));
        let mut jobs = Vec::with_capacity(ids.len());
        // A page ends early if its jobs are large.
        while jobs.len() < ids.len() {
            let page = ledger
                .changes(0, &ids[jobs.len()..], self.deadline())
                .await?;
            for job in page.jobs {
                jobs.push(changed(kind, shard, page.epoch, job)?);
            }
        }
        Ok(jobs)
    }

    /// Waits until the last change of a job is in the copy. Returns whether it is; `false` if that
    /// takes longer, or nobody copies the kind.
    ///
    /// # Errors
    /// If the key is not valid, or Redis does not answer in time.
    pub async fn until_copied(&self, key: impl IntoJobKey, patience: Duration) -> Result<bool> {
        /// How long a look waits for the next.
        const PAUSE: Duration = Duration::from_millis(20);
        let key = key.into_job_key()?;
        let kind = Kind::parse(key.kind())?;
        let end = tokio::time::Instant::now() + patience;
        loop {
            let layout = self.store().look_up(&kind, self.deadline()).await?;
            let ledger = self.store().ledger(&kind, layout.place_of(key.id()));
            let page = ledger.changes(0, &[key.id()], self.deadline()).await?;
            let is_noting = page.noted.is_some_and(|noted| noted.is_on);
            if is_noting && page.jobs.iter().all(|job| job.version == 0) {
                return Ok(true);
            }
            if tokio::time::Instant::now() + PAUSE >= end {
                return Ok(false);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// The id of the data set of each server, by its address; `None` for a server that has none,
    /// because nothing was copied yet, or it has lost its data.
    ///
    /// # Errors
    /// If a server does not answer in time.
    pub async fn data_sets(&self) -> Result<Vec<(String, Option<String>)>> {
        self.store().data_sets(self.deadline()).await
    }

    /// Gives the data set of each server this id; with `replace` also those that have another.
    ///
    /// # Errors
    /// If a server does not answer in time. Repeat the call.
    pub async fn name_data_set(&self, id: &str, replace: bool) -> Result<()> {
        let store = self.store();
        store.set_data_set(id, replace, self.deadline()).await
    }

    /// Notes for the doctor that a copier has compared the data sets just now, and why it copies
    /// nothing, if it does not.
    ///
    /// # Errors
    /// If Redis does not answer in time, or is full.
    pub async fn note_copier(&self, stopped: Option<&str>) -> Result<()> {
        let store = self.store();
        store.note_copier(stopped, self.deadline()).await
    }
}

impl Changes {
    fn add(&mut self, kind: &Kind, ledger: &Ledger, page: ChangesPage) -> Result<()> {
        let shard = ledger.place().shard;
        let noted = page.noted.unwrap_or(Noted {
            is_on: false,
            version: 0,
            number: 0,
        });
        self.shards.push(CopiedShard {
            shard,
            epoch: page.epoch,
            read_at: page.at.0,
            terms: page.terms,
            is_off: page.is_off,
            is_noting: noted.is_on,
            version: noted.version,
            number: noted.number,
            fence: page.fence,
            waiting: page.waiting,
        });
        for job in page.jobs {
            self.jobs.push(changed(kind, shard, page.epoch, job)?);
        }
        Ok(())
    }
}

fn changed(kind: &Kind, shard: u16, epoch: u64, job: JobAsIs) -> Result<ChangedJob> {
    let of_job = |(due, record): (UnixMs, Bytes)| CopiedJob {
        due: due.to_system(),
        record,
    };
    Ok(ChangedJob {
        key: kind.key(&job.id)?,
        shard,
        epoch,
        version: job.version,
        job: job.job.map(of_job),
    })
}

impl KeptJob {
    /// A job from a copy, for [`Client::restore`].
    ///
    /// # Errors
    /// [`ErrorKind::Damaged`] if this version cannot read the record.
    pub fn copied(key: impl IntoJobKey, job: &CopiedJob) -> Result<Self> {
        let key = key.into_job_key()?;
        let record = Record::parse(job.record.clone()).map_err(|fault| {
            let message = format!("{}: it stays in the copy", fault.of(&key));
            Error::new(ErrorKind::Damaged, message)
        })?;
        Ok(KeptJob::of_record(key, job.due, record))
    }
}
