//! The call that schedules a job, as a builder that is awaited.

use std::future::IntoFuture;
use std::slice;
use std::time::{Instant, SystemTime};

use super::new_job::job_options;
use crate::client::{
    CallTarget, Client, Durably, JobState, JobView, NewJob, Pending, out_of_place,
};
use crate::durable::{Durable, Reached};
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Answered, Mode, Placement, Word};

/// A call to [`Client::schedule`]; sent when it is awaited.
#[must_use = "nothing is scheduled until it is awaited"]
pub struct Schedule<'a> {
    client: &'a Client,
    pub(super) job: NewJob,
}

/// A call to [`Schedule::if_absent`]; sent when it is awaited.
#[must_use = "nothing is scheduled until it is awaited"]
pub struct ScheduleIfAbsent<'a>(Schedule<'a>);

/// A call to [`Schedule::if_present`]; sent when it is awaited.
#[must_use = "nothing is scheduled until it is awaited"]
pub struct ScheduleIfPresent<'a>(Schedule<'a>);

/// Where `schedule` put a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Scheduled {
    /// What it meant for the job that was there before.
    pub placed: Placed,
    /// When it is due, by Redis' clock.
    pub due: SystemTime,
    /// `false` if the job runs without a trigger, some 20 ms late: a foreign value holds its
    /// name in Redis, which is left alone, or the ACL of this user does not cover the name.
    pub armed: bool,
    /// How far it got, if it was to be [durable](Schedule::durable).
    pub reached: Option<Reached>,
}

/// What a schedule meant for the job that was there before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Placed {
    /// There was none.
    Created,
    /// One was pending, and this one took its place.
    Replaced,
    /// One is running, and this one follows when that run has ended, instead of its retries. A
    /// handler that schedules its own name so, and then fails, is not tried again: the failure is
    /// counted and in the story of `Client::story`, and there is no dead letter. See "What does a
    /// successor supersede?" in `docs/states.md`.
    Succeeds,
}

/// What [`Schedule::if_absent`] found.
#[derive(Debug, Clone)]
pub enum IfAbsent {
    /// Nothing: the job was scheduled.
    Scheduled(Scheduled),
    /// This job, which was left as it is.
    Present(Box<JobView>),
}

/// What [`Schedule::if_present`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfPresent {
    /// A job: this one took its place, or follows its run.
    Scheduled(Scheduled),
    /// None: nothing was done.
    Absent,
}

impl<'a> Schedule<'a> {
    pub(crate) fn new(client: &'a Client, job: NewJob) -> Self {
        Schedule { client, job }
    }

    job_options!(.job);

    /// Only if there is no such job; otherwise answers with the job that is there, whatever
    /// its state. Dead letters do not count as a job.
    pub fn if_absent(mut self) -> ScheduleIfAbsent<'a> {
        self.job.mode = Mode::Absent;
        ScheduleIfAbsent(self)
    }

    /// Only if there is such a job, pending or running, which this one takes the place of or
    /// follows. Dead letters do not count as a job.
    pub fn if_present(mut self) -> ScheduleIfPresent<'a> {
        self.job.mode = Mode::Present;
        ScheduleIfPresent(self)
    }

    pub(super) async fn send(self) -> Result<(Answered, Option<Reached>)> {
        let durable = self.job.durable;
        let until = self.client.deadline_for(durable);
        let limit = self.client.settings().payload_limit;
        self.client
            .place_job(self.job.into_placement(limit)?, durable, until)
            .await
    }
}

impl Client {
    pub(super) async fn place_job(
        &self,
        placement: Placement,
        durable: Option<Durable>,
        until: Instant,
    ) -> Result<(Answered, Option<Reached>)> {
        let key = placement.key.clone();
        if placement.creates() {
            self.register(key.kind(), until).await?;
        }
        let (answered, reached) = match durable {
            None => {
                let asked = self.ask(&key, CallTarget::Job, placement, until, |shard_client| {
                    &shard_client.schedules
                });
                (asked.await?, None)
            }
            Some(durable) => {
                let item = placement;
                let durably = Durably { item, durable };
                let (answered, reached) = self
                    .ask(&key, CallTarget::Job, durably, until, |shard_client| {
                        &shard_client.durable_schedules
                    })
                    .await?;
                (answered, Some(reached?))
            }
        };
        if answered.answer != Word::Absent {
            self.register_again(key.kind(), slice::from_ref(&answered), until)
                .await?;
        }
        if answered.unarmed {
            tracing::warn!(
                %key,
                "the job runs without a trigger: its name holds a foreign value, which is left \
                 alone, or this user may not write it"
            );
        }
        Ok((answered, reached))
    }
}

impl<'a> IntoFuture for Schedule<'a> {
    type Output = Result<Scheduled>;
    type IntoFuture = Pending<'a, Scheduled>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let (answered, reached) = self.send().await?;
            Scheduled::from_answer(answered, reached)
        })
    }
}

impl<'a> IntoFuture for ScheduleIfAbsent<'a> {
    type Output = Result<IfAbsent>;
    type IntoFuture = Pending<'a, IfAbsent>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Schedule { client, job } = self.0;
            let durable = job.durable;
            let placement = job.into_placement(client.settings().payload_limit)?;
            let key = placement.key.clone();
            let until = client.deadline_for(durable);
            loop {
                let placed = client.place_job(placement.clone(), durable, until);
                let (answered, reached) = placed.await?;
                if answered.answer != Word::Exists {
                    return Scheduled::from_answer(answered, reached).map(IfAbsent::Scheduled);
                }
                match client.view(key.clone(), until).await? {
                    Some(job) if job.state() != JobState::Dead => {
                        return Ok(IfAbsent::Present(Box::new(job)));
                    }
                    // It ended between the two calls, so the place is free after all.
                    _ if Instant::now() < until => {}
                    _ => {
                        return Err(Error::new(
                            ErrorKind::Unavailable,
                            format!("{key} came and went for as long as the call may take"),
                        ));
                    }
                }
            }
        })
    }
}

impl<'a> IntoFuture for ScheduleIfPresent<'a> {
    type Output = Result<IfPresent>;
    type IntoFuture = Pending<'a, IfPresent>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let (answered, reached) = self.0.send().await?;
            if answered.answer == Word::Absent {
                return Ok(IfPresent::Absent);
            }
            Scheduled::from_answer(answered, reached).map(IfPresent::Scheduled)
        })
    }
}

impl Scheduled {
    pub(crate) fn from_answer(answered: Answered, reached: Option<Reached>) -> Result<Self> {
        let (placed, due) = match answered.answer {
            Word::Created(due) => (Placed::Created, due),
            Word::Replaced(due) => (Placed::Replaced, due),
            Word::Succeeds(due) => (Placed::Succeeds, due),
            other => return Err(out_of_place(other)),
        };
        Ok(Scheduled {
            placed,
            due: due.to_system(),
            armed: !answered.unarmed,
            reached,
        })
    }
}
