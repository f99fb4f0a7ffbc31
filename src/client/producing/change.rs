//! The calls that change a job that is there: another due time, another payload, its end.

use std::future::IntoFuture;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use serde::Serialize;

use super::new_job::{check_payload, to_json};
use crate::client::due::{NOW, after, at};
use crate::client::{CallTarget, Client, Durably, Pending, out_of_place};
use crate::durable::{Durable, Reached};
use crate::error::Result;
use crate::key::{IntoJobKey, JobKey};
use crate::store::{Answered, Change, Update, When, Word};

/// A call to [`Client::reschedule`]; sent when it is awaited.
#[must_use = "nothing is rescheduled until it is awaited"]
pub struct Reschedule<'a> {
    client: &'a Client,
    key: Result<JobKey>,
    when: Result<When>,
}

/// What became of a [`Client::reschedule`] or [`Client::fire_now`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rescheduled {
    /// The job is pending and due at this time.
    Moved(SystemTime),
    /// The job is running; what will follow the run is due at this time.
    SuccessorMoved(SystemTime),
    /// The job is running, and nothing was changed.
    Running,
    /// There is no such job.
    Absent,
}

/// What became of a [`Client::update_payload`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Updated {
    /// The job is pending, due at this time, and carries the new payload.
    Updated(SystemTime),
    /// The job is running; what will follow the run, due at this time, carries the new payload.
    SuccessorUpdated(SystemTime),
    /// The job is running, with the old payload; if it runs again, it is with the new one.
    Running,
    /// There is no such job.
    Absent,
}

/// A call to [`Client::cancel`]; sent when it is awaited.
#[must_use = "nothing is cancelled until it is awaited"]
pub struct Cancel<'a> {
    client: &'a Client,
    key: Result<JobKey>,
}

/// A call to [`Cancel::durable`]; sent when it is awaited.
#[must_use = "nothing is cancelled until it is awaited"]
pub struct CancelDurably<'a> {
    call: Cancel<'a>,
    durable: Durable,
}

/// What became of a [`Client::cancel`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cancelled {
    /// The job is gone and will never start.
    Cancelled,
    /// The job is running. Its handler's cancellation signal is raised, it will not be
    /// retried, and what was to follow it is gone.
    Running,
    /// There was no such job.
    Absent,
}

impl Client {
    /// Gives a pending job another due time; its payload, attempts and headers stay. Due now,
    /// unless [`after`](Reschedule::after) or [`at`](Reschedule::at) say otherwise. If the job is
    /// running, what was scheduled to follow it is moved.
    ///
    /// # Errors
    /// When it is awaited: if key or time are not valid, or Redis does not answer in time or is
    /// full.
    pub fn reschedule(&self, key: impl IntoJobKey) -> Reschedule<'_> {
        Reschedule {
            client: self,
            key: key.into_job_key(),
            when: Ok(NOW),
        }
    }

    /// Makes a pending job due at once; what is overdue keeps its place. Its
    /// [story](crate::client::JobView::steps) says `fired`, where [`reschedule`](Self::reschedule) leaves
    /// `postponed`.
    ///
    /// # Errors
    /// If the key is not valid, or Redis does not answer in time or is full.
    pub async fn fire_now(&self, key: impl IntoJobKey) -> Result<Rescheduled> {
        self.change(key.into_job_key()?, NOW, "fired").await
    }

    /// Gives a job another payload, stored as JSON; all else stays, its due time too. A run
    /// that is in progress keeps the payload that it was started with.
    ///
    /// # Errors
    /// If key or payload are not valid, or Redis does not answer in time or is full.
    pub async fn update_payload(
        &self,
        key: impl IntoJobKey,
        payload: &(impl Serialize + ?Sized),
    ) -> Result<Updated> {
        let (key, payload) = (key.into_job_key(), to_json(payload));
        self.update(key?, payload?).await
    }

    /// As [`update_payload`](Self::update_payload), with a payload that is stored as it is.
    ///
    /// # Errors
    /// If key or payload are not valid, or Redis does not answer in time or is full.
    pub async fn update_payload_bytes(
        &self,
        key: impl IntoJobKey,
        payload: impl Into<Bytes>,
    ) -> Result<Updated> {
        self.update(key.into_job_key()?, payload.into()).await
    }

    /// Cancels a job, so that it never starts; one that runs is told to stop, and is not
    /// retried. Dead letters stay.
    ///
    /// # Errors
    /// When it is awaited: if the key is not valid or Redis does not answer in time.
    pub fn cancel(&self, key: impl IntoJobKey) -> Cancel<'_> {
        Cancel {
            client: self,
            key: key.into_job_key(),
        }
    }

    async fn change(&self, key: JobKey, when: When, step: &'static str) -> Result<Rescheduled> {
        let until = self.deadline();
        let change = Change {
            key: key.clone(),
            when,
            step,
        };
        let answered = self
            .ask(&key, CallTarget::Job, change, until, |shard_client| {
                &shard_client.changes
            })
            .await?;
        Ok(match answered.answer {
            Word::Moved(due) => Rescheduled::Moved(due.to_system()),
            Word::SuccessorMoved(due) => Rescheduled::SuccessorMoved(due.to_system()),
            Word::Running => Rescheduled::Running,
            Word::Absent => Rescheduled::Absent,
            other => return Err(out_of_place(other)),
        })
    }

    async fn update(&self, key: JobKey, payload: Bytes) -> Result<Updated> {
        check_payload(&key, &payload, self.settings().payload_limit)?;
        let until = self.deadline();
        let update = Update {
            key: key.clone(),
            payload,
        };
        let answered = self
            .ask(&key, CallTarget::Job, update, until, |shard_client| {
                &shard_client.updates
            })
            .await?;
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
    /// Due so long after Redis receives the call. Zero means now; 10 years is the limit.
    pub fn after(mut self, delay: Duration) -> Self {
        self.when = after(delay);
        self
    }

    /// Due at this time by Redis' clock. The past means now; 10 years ahead is the limit.
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
    /// How far the cancel is to get before it is answered, such as `1`, on one replica; the
    /// answer says how far it got.
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
            let (client, key) = (self.client, self.key?);
            let until = client.deadline();
            let answered = client
                .ask(&key, CallTarget::Job, key.clone(), until, |shard_client| {
                    &shard_client.cancels
                })
                .await?;
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
            let key = self.call.key?;
            let until = client.deadline_for(Some(durable));
            let item = key.clone();
            let durably = Durably { item, durable };
            let (answered, reached) = client
                .ask(&key, CallTarget::Job, durably, until, |shard_client| {
                    &shard_client.durable_cancels
                })
                .await?;
            Ok((Cancelled::from_answer(answered)?, reached?))
        })
    }
}

impl Cancelled {
    pub(super) fn from_answer(answered: Answered) -> Result<Self> {
        match answered.answer {
            Word::Cancelled => Ok(Cancelled::Cancelled),
            Word::Running => Ok(Cancelled::Running),
            Word::Absent => Ok(Cancelled::Absent),
            other => Err(out_of_place(other)),
        }
    }
}
