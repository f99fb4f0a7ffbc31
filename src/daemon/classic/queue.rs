//! What the calls mean to jobs. Ids are unique over topics here, and each topic is a ledger of its
//! own, which no single step in Redis spans.
//!
//! Of the jobs of one id, the one that was pushed last stays: whoever pushes looks afterwards which
//! that is, and cancels the others. All come to the same, whoever looks, so two who push at the same
//! time leave one job, and it is the later one. In one daemon, pushes of one id take turns besides.
//! Over several, a third push can come between the look and the cancel of another daemon, and be
//! cancelled in place of the older one that was seen; and two pushes at the same time that are to
//! be refused where the id exists can both be accepted, in different topics.

use std::time::{Duration, SystemTime};

use futures_util::stream::{self, StreamExt, TryStreamExt};
use keyfall::{
    Cancelled, Client, IfAbsent, JobKey, JobState, JobView, Kind, Lease, Outcome, Result, Settled,
};

use super::handed::Handed;
use super::names::Names;
use super::terms::Existing;
use super::turns::Turns;

/// The header of a job that says for how many seconds a consumer has it.
pub(crate) const TTR: &str = "ttr";

/// How many topics are asked at the same time.
const AT_ONCE: usize = 32;

pub(super) struct Queue {
    client: Client,
    names: Names,
    existing: Existing,
    turns: Turns,
    handed: Handed,
}

/// What became of a push.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Pushed {
    Pushed,
    /// Nothing was done: this topic has the id.
    Exists(String),
}

/// What became of a finish.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Finished,
    /// Nothing was done: it waits to be delivered.
    Waits,
    Absent,
}

impl Queue {
    pub(super) fn new(client: Client, prefix: &str, existing: Existing) -> Self {
        Queue {
            client,
            names: Names::new(prefix),
            existing,
            turns: Turns::new(),
            handed: Handed::default(),
        }
    }

    pub(super) fn kind(&self, topic: &str) -> Result<Kind> {
        self.names.kind(topic)
    }

    /// Schedules a job. `ttr` is kept with it.
    pub(super) async fn push(
        &self,
        key: &JobKey,
        delay: Duration,
        ttr: Option<Duration>,
        body: String,
    ) -> Result<Pushed> {
        let _turn = self.turns.of(key.id()).await;
        let mut job = self.client.schedule_bytes(key, body).after(delay);
        if let Some(ttr) = ttr {
            job = job.header(TTR, ttr.as_secs().to_string());
        }
        match self.existing {
            Existing::Replace => {
                job.await?;
                self.keep_latest(key).await?;
                Ok(Pushed::Pushed)
            }
            Existing::Refuse => {
                if let Some(other) = self.find(key.id()).await?.first() {
                    return Ok(Pushed::Exists(Names::topic(other.key())));
                }
                Ok(match job.if_absent().await? {
                    IfAbsent::Scheduled(_) => Pushed::Pushed,
                    IfAbsent::Present(_) => Pushed::Exists(Names::topic(key)),
                })
            }
        }
    }

    /// Of all jobs with this id, leaves the one that was pushed last.
    async fn keep_latest(&self, key: &JobKey) -> Result<()> {
        let mut topics = self.topics().await?;
        topics.retain(|kind| kind.as_str() != key.kind());
        if self.find_in(topics, key.id()).await?.is_empty() {
            return Ok(());
        }
        let mut all = self.find(key.id()).await?;
        all.sort_by_key(|job| (pushed_at(job), job.key().kind().to_owned()));
        all.pop();
        for older in all {
            self.client.cancel(older.key()).await?;
        }
        Ok(())
    }

    /// A job is in the hands of a consumer from now on.
    pub(super) fn handed_out(&self, lease: Lease, ttr: Duration) {
        self.handed.remember(lease, ttr);
    }

    /// Ends the delivery of this id that is out now. `id` is that of a key.
    pub(super) async fn finish(&self, id: &str) -> Result<Ended> {
        if let Some(lease) = self.handed.take(id)
            && self.ends(&lease).await?
        {
            return Ok(Ended::Finished);
        }
        let found = self.find(id).await?;
        let mut finished = Ended::Absent;
        for job in &found {
            match job.lease() {
                Some(lease) if self.ends(lease).await? => finished = Ended::Finished,
                None if finished == Ended::Absent => finished = Ended::Waits,
                _ => {}
            }
        }
        Ok(finished)
    }

    /// Whether the lease was there, and has ended now.
    async fn ends(&self, lease: &Lease) -> Result<bool> {
        let settled = self.client.settle(lease, Outcome::Done).await?;
        Ok(!matches!(settled, Settled::Gone | Settled::Taken))
    }

    /// Cancels the job, whatever its topic and state. Whether there was one.
    pub(super) async fn delete(&self, id: &str) -> Result<bool> {
        let _turn = self.turns.of(id).await;
        let cancels = stream::iter(self.topics().await?)
            .map(async |kind| self.client.cancel(kind.key(id)?).await)
            .buffer_unordered(AT_ONCE);
        cancels
            .try_fold(false, async |any, cancelled| {
                Ok(any || cancelled != Cancelled::Absent)
            })
            .await
    }

    /// The job with this id, as whoever pushed it would know it.
    pub(super) async fn get(&self, id: &str) -> Result<Option<JobView>> {
        let found = self.find(id).await?.into_iter();
        Ok(found.max_by_key(pushed_at).map(latest))
    }

    /// All jobs with this id that are to be delivered yet, or again: one, as a rule.
    async fn find(&self, id: &str) -> Result<Vec<JobView>> {
        self.find_in(self.topics().await?, id).await
    }

    async fn find_in(&self, topics: Vec<Kind>, id: &str) -> Result<Vec<JobView>> {
        let found = stream::iter(topics)
            .map(async |kind| self.client.get(kind.key(id)?).await)
            .buffered(AT_ONCE);
        found
            .try_filter_map(async |job| Ok(job.filter(is_alive)))
            .try_collect()
            .await
    }

    async fn topics(&self) -> Result<Vec<Kind>> {
        let mut kinds = self.client.kinds().await?.kinds;
        kinds.retain(|kind| self.names.have(kind));
        Ok(kinds)
    }
}

fn is_alive(job: &JobView) -> bool {
    let has_ended = job.is_cancelled() && job.successor_due().is_none();
    job.state() != JobState::Dead && !has_ended
}

fn pushed_at(job: &JobView) -> SystemTime {
    job.successor()
        .map_or(job.first_scheduled_at(), |next| next.first_scheduled_at())
}

/// What follows the run in progress, if something does.
fn latest(job: JobView) -> JobView {
    job.successor().unwrap_or(job)
}
