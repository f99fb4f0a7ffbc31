//! Jobs of several kinds that mean the same, of which the latest is to stay.

use super::change::Cancelled;
use super::schedule::{Schedule, Scheduled};
use crate::client::{CallTarget, Client, JobView};
use crate::error::Result;
use crate::key::IntoJobKey;
use crate::store::{Mode, Outdated, Word};

/// What became of a call that is not to touch a later job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ordered<T> {
    /// It was carried out.
    Done(T),
    /// Nothing was done: the job that is there has this order number.
    Overtaken(u64),
}

impl Client {
    /// The next order number of an id in a set of jobs, `app:module`: for jobs of several kinds of
    /// which the latest is to stay, as the classic interface has them. Redis counts, no clock is
    /// asked, and a number is higher than all that were given out before for this id.
    ///
    /// Give 0 and 0 at first. Whoever is overtaken asks again, with the number that it got last and
    /// the one that it met: after a fail-over that forgot numbers, that may take several calls.
    ///
    /// # Errors
    /// If Redis does not answer in time or is full.
    pub async fn next_order(&self, set: &str, id: &str, last: u64, met: u64) -> Result<u64> {
        let until = self.deadline();
        self.store().next_order(set, id, last, met, until).await
    }

    /// Cancels a job as [`cancel`](Self::cancel) does, if its order number is lower; one that was
    /// given none has 0. Of a run that something is to follow, the number of what follows counts.
    ///
    /// # Errors
    /// If the key is not valid or Redis does not answer in time.
    pub async fn cancel_outdated(
        &self,
        key: impl IntoJobKey,
        below: u64,
    ) -> Result<Ordered<Cancelled>> {
        let (key, until) = (key.into_job_key()?, self.deadline());
        let item = Outdated {
            key: key.clone(),
            below,
        };
        let asked = self.ask(&key, CallTarget::Job, item, until, |shard_client| {
            &shard_client.outdated
        });
        let answered = asked.await?;
        match answered.answer {
            Word::Overtaken(number) => Ok(Ordered::Overtaken(number)),
            _ => Cancelled::from_answer(answered).map(Ordered::Done),
        }
    }
}

impl Schedule<'_> {
    /// Schedules the job under this [order number](Client::next_order), unless the job that is
    /// there, or what is to follow its run, has a higher one.
    ///
    /// # Errors
    /// As those of [`Client::schedule`].
    pub async fn ordered(mut self, number: u64) -> Result<Ordered<Scheduled>> {
        self.job.mode = Mode::Ordered;
        self.job.order = Some(number);
        let (answered, reached) = self.send().await?;
        match answered.answer {
            Word::Overtaken(number) => Ok(Ordered::Overtaken(number)),
            _ => Scheduled::from_answer(answered, reached).map(Ordered::Done),
        }
    }
}

impl JobView {
    /// Its [order number](Client::next_order); 0 if it was given none.
    pub fn order(&self) -> u64 {
        self.record.header.order.unwrap_or(0)
    }
}
