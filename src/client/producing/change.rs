//! Calls on one existing job: another due time, another payload, cancel.

use std::future::IntoFuture;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use serde::Serialize;

use super::new_job::{NOW, after, at, check_payload, to_json};
use crate::client::{Client, Durably, Pending, out_of_place};
use crate::durable::{Durable, Reached};
use crate::error::Result;
use crate::key::{IntoJobKey, JobKey};
use crate::store::{Answered, Change, Update, When, Word};

/// A call to [`Client::reschedule`]; sent when it is awaited. Answers [`Rescheduled`].
#[must_use = "nothing is rescheduled until it is awaited"]
pub struct Reschedule<'a> {
    client: &'a Client,
    key: Result<JobKey>,
    when: Result<When>,
}

/// The answer of [`Client::reschedule`] and [`Client::fire_now`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rescheduled {
    /// The job is pending, due at this time by Redis' clock.
    Moved(SystemTime),
    /// The job is running; its successor is due at this time by Redis' clock.
    SuccessorMoved(SystemTime),
    /// The job is running and has no successor: nothing was changed.
    Running,
    /// No job with this key is pending or running.
    Absent,
}

/// The answer of [`Client::update_payload`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Updated {
    /// The job is pending, due at this time, and carries the new payload.
    Updated(SystemTime),
    /// The job is running; its successor, due at this time, carries the new payload.
    SuccessorUpdated(SystemTime),
    /// The job is running with the old payload. If it runs again, it carries the new one.
    Running,
    /// No job with this key is pending or running.
    Absent,
}

/// A call to [`Client::cancel`]; sent when it is awaited. Answers [`Cancelled`].
#[must_use = "nothing is cancelled until it is awaited"]
pub struct Cancel<'a> {
    client: &'a Client,
    key: Result<JobKey>,
}

/// A call to [`Cancel::durable`]; sent when it is awaited. Answers [`Cancelled`], and the
/// durability that was reached.
#[must_use = "nothing is cancelled until it is awaited"]
pub struct CancelDurably<'a> {
    call: Cancel<'a>,
    durable: Durable,
}

/// The answer of [`Client::cancel`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cancelled {
    /// The job is gone and will never start.
    Cancelled,
    /// The job is running. Its handler's cancellation signal is raised, the job is not retried, and
    /// its successor is gone.
    Running,
    /// No job with this key was pending or running.
    Absent,
}

impl Client {
    /// Gives a pending job another due time; its payload, attempts and headers stay. The job is due
    /// now, unless [`after`](Reschedule::after) or [`at`](Reschedule::at) set another time. If the
    /// job is running, its successor is moved.
    ///
    /// # Errors
    /// When it is awaited: if key or time are not valid, Redis does not answer in time, or Redis is
    /// full.
    pub fn reschedule(&self, key: impl IntoJobKey) -> Reschedule<'_> {
        Reschedule {
            client: self,
            key: key.into_job_key(),
            when: Ok(NOW),
        }
    }

    /// Makes a pending job due now; an overdue job keeps its place. The
    /// [story](crate::client::JobView::steps) of the job gets the step `fired`;
    /// [`reschedule`](Self::reschedule) leaves `postponed`.
    ///
    /// # Errors
    /// If the key is not valid, Redis does not answer in time, or Redis is full.
    pub async fn fire_now(&self, key: impl IntoJobKey) -> Result<Rescheduled> {
        self.change(key.into_job_key()?, NOW, "fired").await
    }

    /// Gives a job another payload, stored as JSON. All else stays, including the due time. A run
    /// in progress keeps the payload that it started with.
    ///
    /// # Errors
    /// If key or payload are not valid, Redis does not answer in time, or Redis is full.
    pub async fn update_payload(
        &self,
        key: impl IntoJobKey,
        payload: &(impl Serialize + ?Sized),
    ) -> Result<Updated> {
        let (key, payload) = (key.into_job_key(), to_json(payload));
        self.update(key?, payload?).await
    }

    /// As [`update_payload`](Self::update_payload), with a payload of any bytes, stored unchanged.
    ///
    /// # Errors
    /// If key or payload are not valid, Redis does not answer in time, or Redis is full.
    pub async fn update_payload_bytes(
        &self,
        key: impl IntoJobKey,
        payload: impl Into<Bytes>,
    ) -> Result<Updated> {
        self.update(key.into_job_key()?, payload.into()).await
    }

    /// Cancels a job. A pending job never starts; the handler of a running job is told to stop, and
    /// the job is not retried. Dead letters stay.
    ///
    /// # Errors
    /// When it is awaited: if the key is not valid, or Redis does not answer in time.
    pub fn cancel(&self, key: impl IntoJobKey) -> Cancel<'_> {
        Cancel {
            client: self,
            key: key.into_job_key(),
        }
    }

    /// Moves the due time of a job; `step` is the word for its story.
    async fn change(&self, key: JobKey, when: When, step: &'static str) -> Result<Rescheduled> {
        let answered = self
            .ask(Change { key, when, step }, self.deadline())
            .await?;
        Ok(match answered.answer {
            Word::Moved(due) => Rescheduled::Moved(due.to_system()),
            Word::SuccessorMoved(due) => Rescheduled::SuccessorMoved(due.to_system()),
            Word::Running => Rescheduled::Running,
            Word::Absent => Rescheduled::Absent,
            other => return Err(out_of_place(other)),
        })
    }

    /// Replaces the payload of a job.
    async fn update(&self, key: JobKey, payload: Bytes) -> Result<Updated> {
        check_payload(&key, &payload, self.settings().payload_limit)?;
        let answered = self.ask(Update { key, payload }, self.deadline()).await?;
        Ok(match answered.answer {
            Word::Updated(due) => Updated::Updated(due.to_system()),
            Word::SuccessorMoved(due) => Updated::SuccessorUpdated(due.to_system()),
            Word::Running => Updated::Running,
            Word::Absent => Updated::Absent,
            other => return Err(out_of_place(other)),
        })
    }
}

impl Reschedule<'_> {
    /// Makes the job due this long after Redis receives the call. Zero means now; 10 years is the
    /// limit.
    pub fn after(mut self, delay: Duration) -> Self {
        self.when = after(delay);
        self
    }

    /// Makes the job due at this time by Redis' clock. The past means now; 10 years ahead is the
    /// limit.
    pub fn at(mut self, due: SystemTime) -> Self {
        self.when = at(due);
        self
    }
}

impl<'a> IntoFuture for Reschedule<'a> {
    type Output = Result<Rescheduled>;
    type IntoFuture = Pending<'a, Rescheduled>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.client.change(self.key?, self.when?, "postponed").await })
    }
}

impl<'a> Cancel<'a> {
    /// The durability that the answer waits for, such as `1` for one replica. The answer tells the
    /// durability that was reached.
    pub fn durable(self, how: impl Into<Durable>) -> CancelDurably<'a> {
        CancelDurably {
            call: self,
            durable: how.into(),
        }
    }
}

impl<'a> IntoFuture for Cancel<'a> {
    type Output = Result<Cancelled>;
    type IntoFuture = Pending<'a, Cancelled>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let answered = self.client.ask(self.key?, self.client.deadline()).await?;
            Cancelled::from_answer(answered)
        })
    }
}

impl<'a> IntoFuture for CancelDurably<'a> {
    type Output = Result<(Cancelled, Reached)>;
    type IntoFuture = Pending<'a, (Cancelled, Reached)>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let (client, durable) = (self.call.client, self.durable);
            durable.check()?;
            let item = self.call.key?;
            let until = client.deadline_for(Some(durable));
            let (answered, reached) = client.ask(Durably { item, durable }, until).await?;
            Ok((Cancelled::from_answer(answered)?, reached?))
        })
    }
}

impl Cancelled {
    /// Reads the answer of the script.
    pub(super) fn from_answer(answered: Answered) -> Result<Self> {
        match answered.answer {
            Word::Cancelled => Ok(Cancelled::Cancelled),
            Word::Running => Ok(Cancelled::Running),
            Word::Absent => Ok(Cancelled::Absent),
            other => Err(out_of_place(other)),
        }
    }
}
