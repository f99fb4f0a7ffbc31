//! The calls on the dead letters of one job.

use std::future::IntoFuture;
use std::slice;
use std::time::{Duration, Instant, SystemTime};

use crate::client::due::{NOW, after, at};
use crate::client::{CallTarget, Client, JobView, Pending, out_of_place};
use crate::error::{Error, ErrorKind, Result};
use crate::key::{IntoJobKey, JobKey};
use crate::store::{Discard, Found, Letter, Revival, When, Word};

/// How many letters are found by the name of their job; `lua/lib/dead.lua` keeps so many.
const FOUND_BY_NAME: usize = 16;

/// A call to [`Client::requeue`]; sent when it is awaited.
#[must_use = "nothing is requeued until it is awaited"]
pub struct Requeue<'a> {
    client: &'a Client,
    key: Result<JobKey>,
    letter: Option<u64>,
    when: Result<When>,
}

/// A call to [`Client::delete_dead_letter`]; sent when it is awaited.
#[must_use = "nothing is deleted until it is awaited"]
pub struct DeleteDeadLetter<'a> {
    client: &'a Client,
    key: Result<JobKey>,
    letter: Option<u64>,
}

/// What became of a [`Client::requeue`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Requeued {
    /// The dead letter is a job again, pending and due at this time.
    Requeued(SystemTime),
    /// A job of this name is pending or running, so nothing was done: neither to the job nor,
    /// if there is one, to the dead letter.
    Present,
    /// There is no such dead letter; and, unless it was asked for by its number, no job of this
    /// name either.
    Absent,
}

impl Client {
    /// The dead letters of one job, the latest first: the last sixteen, or fewer if their
    /// payloads are large. Each says its [number](JobView::letter).
    ///
    /// # Errors
    /// If the key is not valid, Redis does not answer in time, or a record is damaged.
    pub async fn dead_letters(&self, key: impl IntoJobKey) -> Result<Vec<JobView>> {
        let key = key.into_job_key()?;
        let until = self.deadline();
        let letters = self.letters(&key, None, FOUND_BY_NAME, until).await?;
        letters
            .into_iter()
            .map(|letter| JobView::of_letter(key.clone(), letter))
            .collect()
    }

    /// Makes the latest dead letter of a job pending again, with all its attempts ahead;
    /// payload, headers, policy, story and the time of its first schedule stay. Due now,
    /// unless [`after`](Requeue::after) or [`at`](Requeue::at) say otherwise.
    ///
    /// Repeated, after an error that leaves the outcome open, it takes the letter that is the
    /// latest by then, which may be an older one. To repeat it safely, say which
    /// [letter](Requeue::letter).
    ///
    /// # Errors
    /// When it is awaited: if key or time are not valid, the letter is damaged, or Redis does not
    /// answer in time or is full.
    pub fn requeue(&self, key: impl IntoJobKey) -> Requeue<'_> {
        Requeue {
            client: self,
            key: key.into_job_key(),
            letter: None,
            when: Ok(NOW),
        }
    }

    /// Deletes the latest dead letter of a job for good. Answers whether there was one. A job
    /// of the same name, pending or running, is not touched.
    ///
    /// Repeated, after an error that leaves the outcome open, it takes the letter that is the
    /// latest by then, which may be an older one. To repeat it safely, say which
    /// [letter](DeleteDeadLetter::letter).
    ///
    /// # Errors
    /// When it is awaited: if the key is not valid or Redis does not answer in time.
    pub fn delete_dead_letter(&self, key: impl IntoJobKey) -> DeleteDeadLetter<'_> {
        DeleteDeadLetter {
            client: self,
            key: key.into_job_key(),
            letter: None,
        }
    }
}

impl Requeue<'_> {
    /// The dead letter with this [number](JobView::letter), instead of the latest.
    pub fn letter(mut self, number: u64) -> Self {
        self.letter = Some(number);
        self
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

impl DeleteDeadLetter<'_> {
    /// The dead letter with this [number](JobView::letter), instead of the latest.
    pub fn letter(mut self, number: u64) -> Self {
        self.letter = Some(number);
        self
    }
}

impl<'a> IntoFuture for Requeue<'a> {
    type Output = Result<Requeued>;
    type IntoFuture = Pending<'a, Requeued>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let (key, when) = (self.key?, self.when?);
            let until = self.client.deadline();
            let Some(letter) = find(self.client, &key, self.letter, until).await? else {
                // What is there already was perhaps requeued by somebody else.
                let is_there = self.letter.is_none() && is_there(self.client, &key, until).await?;
                return Ok(if is_there {
                    Requeued::Present
                } else {
                    Requeued::Absent
                });
            };
            let revival = Revival::of(key.clone(), &letter, when)
                .map_err(|fault| Error::new(ErrorKind::Damaged, format!("{key}: {fault}")))?;
            let answered = self
                .client
                .ask(&key, CallTarget::Job, revival, until, |shard_client| {
                    &shard_client.requeues
                })
                .await?;
            if let Word::Requeued(_) = answered.answer {
                let answered = slice::from_ref(&answered);
                self.client
                    .register_again(key.kind(), answered, until)
                    .await?;
            }
            match answered.answer {
                Word::Requeued(due) => Ok(Requeued::Requeued(due.to_system())),
                Word::Present => Ok(Requeued::Present),
                // Somebody else took it. The one before it was not meant.
                Word::Absent => Ok(Requeued::Absent),
                other => Err(out_of_place(other)),
            }
        })
    }
}

impl<'a> IntoFuture for DeleteDeadLetter<'a> {
    type Output = Result<bool>;
    type IntoFuture = Pending<'a, bool>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let key = self.key?;
            let until = self.client.deadline();
            let letter = match self.letter {
                Some(number) => number,
                None => match find(self.client, &key, None, until).await? {
                    Some(letter) => letter.number,
                    None => return Ok(false),
                },
            };
            let discard = Discard {
                key: key.clone(),
                letter,
            };
            let answered = self
                .client
                .ask(&key, CallTarget::Letters, discard, until, |shard_client| {
                    &shard_client.discards
                })
                .await?;
            match answered.answer {
                Word::Deleted => Ok(true),
                // Somebody else took it. The one before it was not meant.
                Word::Absent => Ok(false),
                other => Err(out_of_place(other)),
            }
        })
    }
}

/// Whether a job of this name is pending or running.
async fn is_there(client: &Client, key: &JobKey, until: Instant) -> Result<bool> {
    let found = client.find(key, until).await?;
    Ok(matches!(
        found,
        Found::Pending { .. } | Found::Leased { .. }
    ))
}

/// The letter with this number, or the latest.
async fn find(
    client: &Client,
    key: &JobKey,
    number: Option<u64>,
    until: Instant,
) -> Result<Option<Letter>> {
    let letters = client.letters(key, number, 1, until).await?;
    Ok(letters.into_iter().next())
}
