//! Calls on one job: each goes to the shard that has the job.
//!
//! While a kind is being resharded, a job can be in its old or its new shard. [`Client::ask`] finds
//! the right one, and repeats a call that a ledger refused because of its layout.

use std::time::Instant;

use futures_util::future::BoxFuture;

use super::batcher::{BatchOperation, Batcher, MisplacedJob};
#[cfg(feature = "worker")]
use super::in_memory::{InMemory, MemoryJobs};
use super::{Client, Durably, KindShards, ShardClient};
use crate::durable::Reached;
use crate::error::{Error, ErrorKind, Result};
use crate::key::JobKey;
#[cfg(feature = "worker")]
use crate::store::no_redis;
use crate::store::{
    Amendment, Answered, BackupItem, CancelIf, Change, Discard, Found, KeptAs, Letter, Placement,
    Revival, SeriesCall, Update, Word, is_of_absence,
};

/// A call on one job.
pub(super) trait JobCall: BatchOperation<Answer: JobVerdict> + Clone {
    /// Whether the call can store a job. The answer to such a call tells whether the kind is
    /// listed.
    const STORES: bool = false;

    /// The name of the job.
    fn key(&self) -> &JobKey;

    /// Where to look for the job.
    fn target(&self) -> CallTarget {
        CallTarget::Job
    }

    /// Whether the call can create a job of a kind that has none.
    fn creates(&self) -> bool {
        false
    }

    /// The queue of such calls on a ledger.
    fn batcher(shard_client: &ShardClient) -> &Batcher<Self>;

    /// The answer of jobs in memory; `None` if the call needs a Redis.
    #[cfg(feature = "worker")]
    fn answer_in_memory(&self, jobs: &mut MemoryJobs) -> Option<Self::Answer>;
}

/// The target of a call: the live job, or its dead letters. It decides where to look while a kind
/// is being resharded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum CallTarget {
    /// The job that is pending or runs. A running job stays in its old shard until the run ends.
    Job,
    /// Its dead letters. They are moved to the new shard at once.
    Letters,
}

impl Client {
    /// Sends a call to the shard that has its job, and returns the answer. A call that the ledger
    /// refused because of its layout is repeated until the deadline.
    pub(super) async fn ask<Call: JobCall>(
        &self,
        call: Call,
        until: Instant,
    ) -> Result<Call::Answer> {
        #[cfg(feature = "worker")]
        if let Some(ledger) = self.memory() {
            let answer = ledger.with(|jobs| call.answer_in_memory(jobs));
            return answer.ok_or_else(no_redis);
        }
        let (key, creates) = (call.key(), call.creates());
        let found = self.kind_shards_for(key.kind(), creates, until).await?;
        let Some(mut kind_shards) = found else {
            return Ok(Call::Answer::absent());
        };
        loop {
            if let Some(shard_client) = self.place(&kind_shards, key, call.target(), until).await? {
                let answer = Call::batcher(shard_client).send(call.clone(), until).await;
                let answer = answer.inspect_err(|error| self.suspect(&kind_shards, error))?;
                let answered = answer.answered();
                match answered.answer {
                    Word::Stale => {
                        self.catch_up(&kind_shards, until).await?;
                        if creates && self.is_gone(&kind_shards) {
                            self.make_known(&kind_shards, until).await?;
                        }
                    }
                    // The run ended between the two calls.
                    Word::Elsewhere => {}
                    Word::Absent => return Ok(answer),
                    word => {
                        kind_shards.note_jobs();
                        if Call::STORES && word != Word::Present {
                            let unlisted = answered.unlisted;
                            self.register_again(&kind_shards, unlisted, until).await?;
                        }
                        return Ok(answer);
                    }
                }
            }
            in_time(key, until)?;
            kind_shards = self.kind_shards(key.kind())?;
        }
    }

    /// Reads a job from the shard that has it.
    pub(super) async fn find(&self, key: &JobKey, until: Instant) -> Result<Found> {
        #[cfg(feature = "worker")]
        if let Some(ledger) = self.memory() {
            return Ok(ledger.with(|jobs| jobs.find(key)));
        }
        loop {
            let kind_shards = self.kind_shards_to_look(key.kind())?;
            if let Some(shard_client) = self
                .place(&kind_shards, key, CallTarget::Job, until)
                .await?
            {
                let found = shard_client.ledger.get(key.id(), until).await;
                match found.inspect_err(|error| self.suspect(&kind_shards, error))? {
                    Found::Elsewhere => self.catch_up(&kind_shards, until).await?,
                    found => return Ok(found),
                }
            }
            in_time(key, until)?;
        }
    }

    /// Reads up to `limit` dead letters of a job, the newest first, or only the one with this
    /// number.
    pub(super) async fn letters(
        &self,
        key: &JobKey,
        number: Option<u64>,
        limit: usize,
        until: Instant,
    ) -> Result<Vec<Letter>> {
        loop {
            let kind_shards = self.kind_shards_to_look(key.kind())?;
            if let Some(shard_client) = self
                .place(&kind_shards, key, CallTarget::Letters, until)
                .await?
            {
                let letters = shard_client.ledger.letters(key.id(), number, limit, until);
                match letters.await? {
                    Some(letters) => return Ok(letters),
                    None => self.catch_up(&kind_shards, until).await?,
                }
            }
            in_time(key, until)?;
        }
    }

    /// The shard that has the job. A job in an old shard is moved to its new one first, unless it
    /// runs. `None` if the kind has another layout by now; the caller then starts again with the
    /// new one.
    async fn place<'a>(
        &self,
        kind_shards: &'a KindShards,
        key: &JobKey,
        of: CallTarget,
        until: Instant,
    ) -> Result<Option<&'a ShardClient>> {
        let shard_client = kind_shards.shard_client(key.id());
        let Some(old) = kind_shards.old_shard_client(key.id()) else {
            return Ok(Some(shard_client));
        };
        let moving: BoxFuture<'_, _> =
            Box::pin(old.moves.send(MisplacedJob(key.id().to_owned()), until));
        let moved = moving.await?;
        Ok(match moved.answer {
            Word::Leased if of == CallTarget::Job => Some(old),
            Word::Leased | Word::Taken | Word::Absent => Some(shard_client),
            Word::NotYet => None,
            _ => {
                self.catch_up(kind_shards, until).await?;
                None
            }
        })
    }

    /// Whether the kind has another layout than this entry. If so, the store knows the new layout
    /// afterwards.
    pub(super) async fn is_outdated(
        &self,
        kind_shards: &KindShards,
        until: Instant,
    ) -> Result<bool> {
        Ok(self.store().look_up(&kind_shards.kind, until).await? != kind_shards.layout)
    }

    /// Reads the layout again in the background, after one of several servers did not answer: the
    /// job may be on another server by now. This call has failed; the next one knows the layout.
    fn suspect(&self, kind_shards: &KindShards, error: &Error) {
        if !self.store().is_several() || !is_of_absence(error) {
            return;
        }
        let (client, kind) = (self.clone(), kind_shards.kind.clone());
        tokio::spawn(async move {
            if let Err(error) = client.store().look_up(&kind, client.deadline()).await {
                tracing::debug!(%kind, %error, "its layout could not be looked up");
            }
        });
    }

    /// Learns the present layout of a kind, after a ledger refused this one. One call does it for
    /// all calls that were refused meanwhile.
    ///
    /// Rare; boxed, so that it does not enlarge the future of every call.
    pub(super) fn catch_up<'a>(
        &'a self,
        kind_shards: &'a KindShards,
        until: Instant,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let store = self.store();
            if store.is_several()
                && store.layout_of(kind_shards.kind.as_str()) != kind_shards.layout
            {
                // The ledger has reported its layout. One of the servers may be away: that must not
                // delay a call that does not need it.
                let (store, kind) = (store.clone(), kind_shards.kind.clone());
                tokio::spawn(async move {
                    if let Err(error) = store.agree(&kind, until).await {
                        tracing::debug!(%kind, %error, "not all know the layout");
                    }
                });
                return Ok(());
            }
            let refused = Instant::now();
            let mut agreed = kind_shards.agreed.lock().await;
            if agreed.is_none_or(|at| at < refused) {
                let began = Instant::now();
                self.store().agree(&kind_shards.kind, until).await?;
                if self.is_gone(kind_shards) {
                    kind_shards.unregister();
                }
                *agreed = Some(began);
            }
            Ok(())
        })
    }
}

/// An answer that tells the result for a job.
pub(super) trait JobVerdict {
    /// The answer of the script.
    fn answered(&self) -> Answered;

    /// The answer for a kind that has no jobs: there is no such job.
    fn absent() -> Self;
}

impl JobVerdict for Answered {
    fn answered(&self) -> Answered {
        *self
    }

    fn absent() -> Self {
        Answered::of(Word::Absent)
    }
}

/// The answer of a durable call, with its durability.
impl JobVerdict for (Answered, Result<Reached>) {
    fn answered(&self) -> Answered {
        self.0
    }

    /// Nothing was written, so no replica has to have it.
    fn absent() -> Self {
        (Answered::absent(), Ok(Reached::NOTHING))
    }
}

/// Ends the repeats of a call at its deadline.
///
/// # Errors
/// [`ErrorKind::Unavailable`] after `until`.
fn in_time(key: &JobKey, until: Instant) -> Result<()> {
    if Instant::now() < until {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Unavailable,
        format!(
            "{} is being resharded, and {key} was not found in time: try again",
            key.kind()
        ),
    ))
}

/// Implements [`JobCall`]. Each line names the queue and the job key of a call. The line of a call
/// that can store a job also tells whether the call can create one. A line without a target stands
/// for a call on the live job.
macro_rules! job_calls {
    ($($call:ty: $queue:ident, $key:expr $(, stores, creates $creates:expr)?
        $(, target $target:expr)?;)*) => {$(
        impl JobCall for $call {
            $(
                const STORES: bool = true;

                fn creates(&self) -> bool {
                    let creates: fn(&Self) -> bool = $creates;
                    creates(self)
                }
            )?

            fn key(&self) -> &JobKey {
                let key: fn(&Self) -> &JobKey = $key;
                key(self)
            }

            $(
                fn target(&self) -> CallTarget {
                    let target: fn(&Self) -> CallTarget = $target;
                    target(self)
                }
            )?

            fn batcher(shard_client: &ShardClient) -> &Batcher<Self> {
                &shard_client.$queue
            }

            #[cfg(feature = "worker")]
            fn answer_in_memory(&self, jobs: &mut MemoryJobs) -> Option<Self::Answer> {
                self.carry_out(jobs)
            }
        }
    )*};
}

job_calls! {
    Placement: schedules, |it| &it.key, stores, creates Placement::creates;
    Durably<Placement>: durable_schedules, |it| &it.item.key, stores, creates |it| it.item.creates();
    Change: changes, |it| &it.key;
    Update: updates, |it| &it.key;
    Amendment: amendments, |it| &it.key;
    SeriesCall: series, |it| &it.key, stores, creates SeriesCall::creates;
    JobKey: cancels, |it| it;
    Durably<JobKey>: durable_cancels, |it| &it.item;
    CancelIf: conditional_cancels, |it| &it.key;
    Revival: requeues, |it| &it.key, stores, creates |_| false;
    Discard: discards, |it| &it.key, target |_| CallTarget::Letters;
    BackupItem: restores, |it| &it.key, stores, creates |_| true, target |it| match it.what {
        KeptAs::Pending { .. } => CallTarget::Job,
        KeptAs::Dead => CallTarget::Letters,
    };
}
