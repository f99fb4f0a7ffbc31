//! The calls that set a due time, as builders that are awaited.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;

use super::{Client, JobView};
use crate::error::{Error, ErrorKind, Result};
use crate::headers::Headers;
use crate::key::JobKey;
use crate::record::Header;
use crate::settings::MAX_DELAY;
use crate::store::{Answered, Change, Mode, Placement, When, Word};
use crate::time::UnixMs;

type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T>> + Send + 'a>>;

/// A call to [`Client::schedule`]; sent when it is awaited.
#[must_use = "nothing is scheduled until it is awaited"]
pub struct Schedule<'a> {
    client: &'a Client,
    key: Result<JobKey>,
    payload: Result<Bytes>,
    when: Result<When>,
    headers: Headers,
}

/// A call to [`Schedule::if_absent`]; sent when it is awaited.
#[must_use = "nothing is scheduled until it is awaited"]
pub struct ScheduleIfAbsent<'a>(Schedule<'a>);

/// A call to [`Client::reschedule`]; sent when it is awaited.
#[must_use = "nothing is rescheduled until it is awaited"]
pub struct Reschedule<'a> {
    client: &'a Client,
    key: Result<JobKey>,
    when: Result<When>,
}

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
}

/// What a schedule meant for the job that was there before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Placed {
    /// There was none.
    Created,
    /// One was pending, and this one took its place.
    Replaced,
    /// One is running, and this one follows when that run has ended, instead of its retries.
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

/// What became of a [`Client::reschedule`].
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

/// What became of a [`Client::cancel`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cancelled {
    /// The job is gone and will never start.
    Cancelled,
    /// The job is running. Its handler's cancellation signal is raised, it will not be
    /// retried, and what was to follow it is gone.
    Running,
    /// There was no such job.
    Absent,
}

impl<'a> Schedule<'a> {
    pub(super) fn new(client: &'a Client, key: Result<JobKey>, payload: Result<Bytes>) -> Self {
        Schedule {
            client,
            key,
            payload,
            when: Ok(When::After(Duration::ZERO)),
            headers: Headers::new(),
        }
    }

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

    /// A text that travels with the job beside its payload, for its handler to read.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// Only if there is no such job; otherwise answers with the job that is there, whatever
    /// its state. Dead letters do not count as a job.
    pub fn if_absent(self) -> ScheduleIfAbsent<'a> {
        ScheduleIfAbsent(self)
    }

    async fn send(self, mode: Mode, until: Instant) -> Result<(JobKey, Answered)> {
        let key = self.key?;
        let payload = self.payload?;
        let limit = self.client.settings().payload_limit;
        if payload.len() > limit {
            return Err(Error::new(
                ErrorKind::InvalidPayload,
                format!(
                    "the payload of {key} has {} bytes, and the limit is {limit}: store it \
                     elsewhere and schedule a reference to it, or raise `payload_limit`",
                    payload.len()
                ),
            ));
        }
        let placement = Placement {
            key: key.clone(),
            mode,
            when: self.when?,
            header: Header::new(self.headers).to_line(),
            payload,
        };
        let book = self.client.book(&key)?;
        self.client.register(&book, until).await?;
        let answered = book.schedules.send(placement, until).await?;
        self.client.register_again(&book);
        if answered.unarmed {
            tracing::warn!(
                %key,
                "the job runs without a trigger: its name holds a foreign value, which is left \
                 alone, or this user may not write it"
            );
        }
        Ok((key, answered))
    }
}

impl<'a> IntoFuture for Schedule<'a> {
    type Output = Result<Scheduled>;
    type IntoFuture = Pending<'a, Scheduled>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let until = self.client.deadline();
            let (_, answered) = self.send(Mode::Set, until).await?;
            Scheduled::from_answer(answered)
        })
    }
}

impl<'a> IntoFuture for ScheduleIfAbsent<'a> {
    type Output = Result<IfAbsent>;
    type IntoFuture = Pending<'a, IfAbsent>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Schedule {
                client, headers, ..
            } = self.0;
            let (key, payload, when) = (self.0.key?, self.0.payload?, self.0.when?);
            let until = client.deadline();
            loop {
                let call = Schedule {
                    client,
                    key: Ok(key.clone()),
                    payload: Ok(payload.clone()),
                    when: Ok(when),
                    headers: headers.clone(),
                };
                let (_, answered) = call.send(Mode::Absent, until).await?;
                if answered.answer != Word::Exists {
                    return Scheduled::from_answer(answered).map(IfAbsent::Scheduled);
                }
                match client.get(&key).await? {
                    Some(job) if job.state() != super::JobState::Dead => {
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

impl<'a> Reschedule<'a> {
    pub(super) fn new(client: &'a Client, key: Result<JobKey>) -> Self {
        Reschedule {
            client,
            key,
            when: Ok(When::After(Duration::ZERO)),
        }
    }

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
        Box::pin(async move {
            let change = Change {
                key: self.key?,
                when: self.when?,
                step: "postponed",
            };
            let book = self.client.book(&change.key)?;
            let answered = book.changes.send(change, self.client.deadline()).await?;
            Ok(match answered.answer {
                Word::Moved(due) => Rescheduled::Moved(due.to_system()),
                Word::SuccessorMoved(due) => Rescheduled::SuccessorMoved(due.to_system()),
                Word::Running => Rescheduled::Running,
                Word::Absent => Rescheduled::Absent,
                other => return Err(out_of_place(other)),
            })
        })
    }
}

impl Scheduled {
    fn from_answer(answered: Answered) -> Result<Self> {
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

fn out_of_place(answer: Word) -> Error {
    Error::new(
        ErrorKind::Damaged,
        format!("a script answered {answer:?} to a call that has no such answer"),
    )
}

fn after(delay: Duration) -> Result<When> {
    if delay > MAX_DELAY {
        return Err(too_far(format!("the delay {delay:?} is")));
    }
    Ok(When::After(delay))
}

fn at(due: SystemTime) -> Result<When> {
    // This process's clock is only good enough to catch a unit mistaken for another.
    let now = SystemTime::now();
    if due.duration_since(now).is_ok_and(|ahead| ahead > MAX_DELAY) {
        return Err(too_far("the due time is".into()));
    }
    UnixMs::from_system(due).map(When::At).ok_or_else(|| {
        Error::new(
            ErrorKind::InvalidTime,
            "the due time lies before 1970: give a time since the Unix epoch",
        )
    })
}

fn too_far(what: String) -> Error {
    Error::new(
        ErrorKind::InvalidTime,
        format!("{what} more than 10 years ahead, which is the limit: is the unit right?"),
    )
}
