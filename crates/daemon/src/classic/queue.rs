//! The effects of calls on jobs. Ids are unique over topics here, and each topic has a ledger of
//! its own; no single step in Redis spans several ledgers.
//!
//! Of the jobs of one id, the job of the last push stays. Order numbers, which Redis gives out,
//! tell which push is the last: a push takes a number, stores its job under it, and then cancels
//! the jobs of other topics that have a lower one. Each of these steps is carried out only if the
//! present job has no higher number. So a late call changes nothing, and the job with the highest
//! number is never cancelled. `docs/classic.md` says why that is enough. In one daemon, pushes of
//! one id also take turns.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use keyfall::{
    Cancelled, Client, IfAbsent, JobKey, JobState, JobView, Kind, Lease, Ordered, Outcome, Result,
    Schedule, Settled,
};

use super::handed::Handed;
use super::names::Names;
use super::terms::Existing;
use super::turns::Turns;

/// The header with the lease of a consumer, in seconds.
pub const TTR: &str = "ttr";

/// The most topics that are asked at the same time.
const AT_ONCE: usize = 32;

/// The most numbers that one push takes: it takes another one each time that a push through another
/// daemon came in between.
const TRIES: u32 = 32;

/// The first pause before it takes another number, approximately.
const PAUSE: Duration = Duration::from_millis(2);

pub(super) struct Queue {
    client: Client,
    names: Names,
    existing: Existing,
    turns: Turns,
    handed: Handed,
}

/// The outcome of a push.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Pushed {
    Stored,
    /// Nothing changed: this topic has the id.
    Exists(String),
    /// The job is stored, but other clients push the id again and again, and any of their jobs may
    /// be the last.
    Crowded,
}

/// The outcome of a finish.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Finished,
    /// Nothing changed: the job waits for its delivery.
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
        let body = Bytes::from(body);
        let job = || {
            let job = self.client.schedule_bytes(key, body.clone());
            match ttr {
                Some(ttr) => job.header(TTR, ttr.as_secs().to_string()),
                None => job,
            }
        };
        match self.existing {
            Existing::Replace => self.replace(key, delay, job).await,
            Existing::Refuse => {
                if let Some(other) = self.find(key.id()).await?.first() {
                    return Ok(Pushed::Exists(Names::topic(other.key())));
                }
                Ok(match job().after(delay).if_absent().await? {
                    IfAbsent::Scheduled(_) => Pushed::Stored,
                    IfAbsent::Present(_) => Pushed::Exists(Names::topic(key)),
                })
            }
        }
    }

    /// Stores a job as the latest of its id, and cancels the older ones.
    ///
    /// If it meets a higher number, another push came in between, or a fail-over has set the
    /// counter back: then it takes a number that is higher still. It never gives up, so it never
    /// cancels the job that it has stored; and a push in between does the same.
    async fn replace<'a>(
        &self,
        key: &JobKey,
        delay: Duration,
        job: impl Fn() -> Schedule<'a>,
    ) -> Result<Pushed> {
        let (mut number, mut met, mut due) = (0, 0, None);
        for try_ in 0..TRIES {
            number = self.next_order(key.id(), number, met).await?;
            let job = match due {
                None => job().after(delay),
                Some(due) => job().at(due),
            };
            match job.ordered(number).await? {
                Ordered::Done(scheduled) => {
                    due = Some(scheduled.due);
                    match self.cancel_older(key, number).await? {
                        None => return Ok(Pushed::Stored),
                        Some(newer) if self.waits_as(key, number).await? => met = newer,
                        // It was delivered, or a newer push has taken its place or cancelled it. To
                        // end its run here as well could cross with another push, and then no job
                        // would be left.
                        Some(_) => return Ok(Pushed::Stored),
                    }
                }
                Ordered::Overtaken(newer) => met = newer,
            }
            // Two pushes that overtake each other again and again must not stay in step.
            tokio::time::sleep(PAUSE.mul_f64(f64::from(try_) * rand::random::<f64>())).await;
        }
        Ok(Pushed::Crowded)
    }

    /// Cancels the jobs of this id in other topics that have a lower number. Returns the highest one
    /// that is not lower, if there is any.
    async fn cancel_older(&self, key: &JobKey, number: u64) -> Result<Option<u64>> {
        // Listed after the job was stored: of two pushes into new topics, one sees the topic of the
        // other.
        let mut topics = self.topics().await?;
        topics.retain(|kind| kind.as_str() != key.kind());
        let mut newest = None;
        for other in self.find_in(topics, key.id()).await? {
            let found = order_of(&other);
            newest = newest.max(if found < number {
                match self.client.cancel_outdated(other.key(), number).await? {
                    Ordered::Overtaken(newer) => Some(newer),
                    Ordered::Done(_) => None,
                }
            } else {
                Some(found)
            });
        }
        Ok(newest)
    }

    /// Whether a job with this number still waits for its first delivery, or follows a run.
    async fn waits_as(&self, key: &JobKey, number: u64) -> Result<bool> {
        let job = self.client.get(key).await?.filter(is_alive);
        Ok(job.is_some_and(|job| {
            let is_out = job.lease().is_some() && job.successor_due().is_none();
            !is_out && order_of(&job) == number
        }))
    }

    async fn next_order(&self, id: &str, last: u64, met: u64) -> Result<u64> {
        let set = self.names.prefix();
        self.client.next_order(set, id, last, met).await
    }

    /// Records that a consumer holds the job from now on.
    pub(super) fn handed_out(&self, lease: Lease, ttr: Duration) {
        self.handed.remember(lease, ttr);
    }

    /// Ends a delivery of this id: one, since each consumer finishes its own. `id` is the id of its
    /// key.
    ///
    /// Several deliveries can be out if topics share the id. The first choice is a delivery whose
    /// job a later push has cancelled: if the consumer has finished another delivery, the later job
    /// is delivered again, and not lost.
    pub(super) async fn finish(&self, id: &str) -> Result<Ended> {
        let handed = self.handed.get(id);
        let mut topics = self.topics().await?;
        if let Some(lease) = &handed {
            topics.retain(|kind| kind.as_str() != lease.key().kind());
        }
        let others = self.look_in(topics, id).await?;
        let is_outdated = |job: &&JobView| job.state() == JobState::Running && !is_alive(job);
        for job in others.iter().filter(is_outdated) {
            if let Some(lease) = job.lease()
                && self.ends(lease).await?
            {
                return Ok(Ended::Finished);
            }
        }
        if let Some(lease) = handed {
            self.handed.forget(&lease);
            if self.ends(&lease).await? {
                return Ok(Ended::Finished);
            }
        }
        let mut found = self.find(id).await?;
        found.sort_by_key(JobView::order);
        for lease in found.iter().filter_map(JobView::lease) {
            if self.ends(lease).await? {
                return Ok(Ended::Finished);
            }
        }
        let waits = found.iter().any(|job| job.lease().is_none());
        Ok(if waits { Ended::Waits } else { Ended::Absent })
    }

    /// Ends the lease. Returns whether it was held.
    async fn ends(&self, lease: &Lease) -> Result<bool> {
        let settled = self.client.settle(lease, Outcome::Done).await?;
        Ok(!matches!(settled, Settled::Gone | Settled::Taken))
    }

    /// Cancels the job, in any topic and state. Returns whether there was one.
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

    /// The job with this id, in the view of the client that pushed it.
    pub(super) async fn get(&self, id: &str) -> Result<Option<JobView>> {
        let found = self.find(id).await?.into_iter();
        // Jobs without a number were not pushed here, or by an old version.
        let found = found.max_by_key(|job| (order_of(job), pushed_at(job)));
        Ok(found.map(latest))
    }

    /// All jobs with this id that are to be delivered yet, or again: one, as a rule.
    async fn find(&self, id: &str) -> Result<Vec<JobView>> {
        self.find_in(self.topics().await?, id).await
    }

    async fn find_in(&self, topics: Vec<Kind>, id: &str) -> Result<Vec<JobView>> {
        let mut found = self.look_in(topics, id).await?;
        found.retain(is_alive);
        Ok(found)
    }

    /// All jobs with this id in these topics, in any state.
    async fn look_in(&self, topics: Vec<Kind>, id: &str) -> Result<Vec<JobView>> {
        let found = stream::iter(topics)
            .map(async |kind| self.client.get(kind.key(id)?).await)
            .buffered(AT_ONCE);
        found
            .try_filter_map(async |job| Ok(job))
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

/// The order number of the push that made the job, or its successor; 0 if no push did.
fn order_of(job: &JobView) -> u64 {
    job.successor().map_or(job.order(), |next| next.order())
}

fn pushed_at(job: &JobView) -> SystemTime {
    job.successor()
        .map_or(job.first_scheduled_at(), |next| next.first_scheduled_at())
}

/// The successor of the run in progress, if there is one; else the job itself.
fn latest(job: JobView) -> JobView {
    job.successor().unwrap_or(job)
}
