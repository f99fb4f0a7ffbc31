//! Order numbers: of several jobs with one meaning, in several kinds, only the latest stays.
//!
//! The classic interface uses them. [`Client::next_order`] gives out the numbers; a call with a
//! lower number than the stored job does nothing.

use super::change::Cancelled;
use super::schedule::{Schedule, Scheduled, Sent};
use crate::client::{Client, JobView};
use crate::error::Result;
use crate::key::IntoJobKey;
use crate::store::{CancelIf, Condition, Mode, Word};

/// The answer of a call that leaves later jobs alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ordered<T> {
    /// The call was carried out, with this answer.
    Done(T),
    /// Nothing was done: the existing job has this order number, which is not lower.
    Overtaken(u64),
}

impl Client {
    /// Returns the next order number of an id in a set, `app:module`: for jobs of several kinds of
    /// which only the latest is to stay, as in the classic interface. Redis counts; no clock is
    /// involved. The number is higher than all numbers that this id got before.
    ///
    /// Start with `last` 0 and `met` 0. If a call answers [`Overtaken`](Ordered::Overtaken), ask
    /// again, with the last number that you got and the number that you met. After a fail-over that
    /// lost numbers, this may take several calls.
    ///
    /// # Errors
    /// If Redis does not answer in time, or Redis is full.
    pub async fn next_order(&self, set: &str, id: &str, last: u64, met: u64) -> Result<u64> {
        let until = self.deadline();
        self.store().next_order(set, id, last, met, until).await
    }

    /// Cancels a job as [`cancel`](Self::cancel) does, if its order number is lower than `below`. A
    /// job without a number counts as 0. If a running job has a successor, the number of the
    /// successor counts.
    ///
    /// # Errors
    /// If the key is not valid, or Redis does not answer in time.
    pub async fn cancel_outdated(
        &self,
        key: impl IntoJobKey,
        below: u64,
    ) -> Result<Ordered<Cancelled>> {
        let key = key.into_job_key()?;
        let condition = Condition::OrderBelow(below);
        let item = CancelIf { key, condition };
        let answered = self.ask(item, self.deadline()).await?;
        match answered.answer {
            Word::Overtaken(number) => Ok(Ordered::Overtaken(number)),
            _ => Cancelled::from_answer(answered).map(Ordered::Done),
        }
    }
}

impl Schedule<'_> {
    /// Schedules the job with this [order number](Client::next_order), unless the existing job, or
    /// the successor of its run, has a higher one.
    ///
    /// # Errors
    /// As [`Client::schedule`].
    pub async fn ordered(mut self, number: u64) -> Result<Ordered<Scheduled>> {
        self.job.mode = Mode::Ordered;
        self.job.order = Some(number);
        let sent = self.send().await?;
        if let Sent::Placed(answered, _) = &sent
            && let Word::Overtaken(number) = answered.answer
        {
            return Ok(Ordered::Overtaken(number));
        }
        sent.scheduled().map(Ordered::Done)
    }
}

impl JobView {
    /// The [order number](Client::next_order) of the job; 0 if it has none.
    pub fn order(&self) -> u64 {
        self.record.header.order.unwrap_or(0)
    }
}
