//! Scheduling one job: a builder that is sent when it is awaited, and its answers.

use std::future::IntoFuture;
use std::time::{Instant, SystemTime};

use super::new_job::{Placing, job_options};
use crate::client::{Client, Durably, JobState, JobView, NewJob, Pending, out_of_place};
use crate::durable::{Durable, Reached};
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Answered, Mode, Placement, Word};
use crate::time::UnixMs;

/// A call to [`Client::schedule`]; sent when it is awaited. Answers [`Scheduled`].
#[must_use = "nothing is scheduled until it is awaited"]
pub struct Schedule<'a> {
    client: &'a Client,
    pub(super) job: NewJob,
}

/// A call to [`Schedule::if_absent`]; sent when it is awaited. Answers [`IfAbsent`].
#[must_use = "nothing is scheduled until it is awaited"]
pub struct ScheduleIfAbsent<'a>(Schedule<'a>);

/// A call to [`Schedule::if_present`]; sent when it is awaited. Answers [`IfPresent`].
#[must_use = "nothing is scheduled until it is awaited"]
pub struct ScheduleIfPresent<'a>(Schedule<'a>);

/// The answer of [`Client::schedule`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Scheduled {
    /// The effect on the job that had this key before.
    pub placed: Placed,
    /// The due time, by Redis' clock.
    pub due: SystemTime,
    /// `false` if the job has no trigger and so runs some 20 ms late: its key holds a foreign
    /// value, which is left alone, or the ACL of this user does not cover the key.
    pub armed: bool,
    /// The durability that was reached, if the call was [durable](Schedule::durable).
    pub reached: Option<Reached>,
}

/// The effect of a schedule on the job that had this key before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Placed {
    /// There was no job with this key.
    Created,
    /// The new job took the place of a pending one.
    Replaced,
    /// A job with this key is running; the new job follows when that run has ended, instead of its
    /// retries. If a handler schedules its own key in this way and then fails, it is not retried:
    /// the failure is counted and recorded in the story of `Client::story`, and there is no dead
    /// letter. See "What does a successor supersede?" in `docs/states.md`.
    Succeeds,
    /// Nothing was done: the job would be due in [quiet hours](crate::QuietHours) that leave it out.
    LeftOut,
}

/// The answer of [`Schedule::if_absent`].
#[derive(Debug, Clone)]
pub enum IfAbsent {
    /// There was no such job: the new one was scheduled.
    Scheduled(Scheduled),
    /// This job exists and was left as it is.
    Present(Box<JobView>),
}

/// The answer of [`Schedule::if_present`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfPresent {
    /// There was such a job: the new one took its place, or follows its run.
    Scheduled(Scheduled),
    /// There was no such job: nothing was done.
    Absent,
}

impl<'a> Schedule<'a> {
    pub(crate) fn new(client: &'a Client, job: NewJob) -> Self {
        Schedule { client, job }
    }

    job_options!(.job);

    /// Schedules the job only if no job with this key is pending or running; otherwise the answer
    /// holds the existing job, in whatever state. Dead letters do not count as jobs.
    pub fn if_absent(mut self) -> ScheduleIfAbsent<'a> {
        self.job.mode = Mode::Absent;
        ScheduleIfAbsent(self)
    }

    /// Schedules the job only if a job with this key is pending or running; it replaces the pending
    /// job, or follows the run. Dead letters do not count as jobs.
    pub fn if_present(mut self) -> ScheduleIfPresent<'a> {
        self.job.mode = Mode::Present;
        ScheduleIfPresent(self)
    }

    /// Sends the call; returns the answer of the script and the durability that was reached.
    pub(super) async fn send(self) -> Result<Sent> {
        let durable = self.job.durable;
        let until = self.client.deadline_for(durable);
        let limit = self.client.settings().payload_limit;
        match self.job.into_placing(limit, self.client.now())? {
            Placing::LeftOut(due) => Ok(Sent::LeftOut(due)),
            Placing::Send(placement) => {
                let placed = self.client.place_job(placement, durable, until).await?;
                Ok(Sent::Placed(placed.0, placed.1))
            }
        }
    }
}

/// What became of a call.
pub(super) enum Sent {
    Placed(Answered, Option<Reached>),
    /// Nothing was sent: quiet hours leave out a job that is due then.
    LeftOut(UnixMs),
}

impl Sent {
    pub(super) fn scheduled(self) -> Result<Scheduled> {
        match self {
            Sent::Placed(answered, reached) => Scheduled::from_answer(answered, reached),
            Sent::LeftOut(due) => Ok(Scheduled::left_out(due)),
        }
    }
}

impl Client {
    /// Sends one job to its ledger. Logs a warning if the job has no trigger.
    pub(super) async fn place_job(
        &self,
        placement: Placement,
        durable: Option<Durable>,
        until: Instant,
    ) -> Result<(Answered, Option<Reached>)> {
        let key = placement.key.clone();
        let (answered, reached) = match durable {
            None => (self.ask(placement, until).await?, None),
            Some(durable) => {
                let item = placement;
                let (answered, reached) = self.ask(Durably { item, durable }, until).await?;
                (answered, Some(reached?))
            }
        };
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
        Box::pin(async move { self.send().await?.scheduled() })
    }
}

impl<'a> IntoFuture for ScheduleIfAbsent<'a> {
    type Output = Result<IfAbsent>;
    type IntoFuture = Pending<'a, IfAbsent>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Schedule { client, job } = self.0;
            let durable = job.durable;
            let limit = client.settings().payload_limit;
            let placement = match job.into_placing(limit, client.now())? {
                Placing::Send(placement) => placement,
                Placing::LeftOut(due) => return Ok(IfAbsent::Scheduled(Scheduled::left_out(due))),
            };
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
                    // The job ended between the two calls: the key is free after all.
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
            let sent = self.0.send().await?;
            if matches!(&sent, Sent::Placed(answered, _) if answered.answer == Word::Absent) {
                return Ok(IfPresent::Absent);
            }
            sent.scheduled().map(IfPresent::Scheduled)
        })
    }
}

impl Scheduled {
    fn left_out(due: UnixMs) -> Self {
        Scheduled {
            placed: Placed::LeftOut,
            due: due.to_system(),
            armed: true,
            reached: None,
        }
    }

    /// Reads the answer of the script.
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
