//! Calls on the dead letters of one job: list, requeue, delete.

use std::future::IntoFuture;
use std::time::{Duration, Instant, SystemTime};

use crate::client::producing::new_job::{NOW, after, at};
use crate::client::{Client, JobView, Pending, out_of_place};
use crate::error::{Error, ErrorKind, Result};
use crate::key::{IntoJobKey, JobKey};
use crate::store::{Discard, Found, Letter, Revival, When, Word};

/// The number of dead letters that can be found by the key of their job; the same as in
/// `lua/lib/dead.lua`.
const FOUND_BY_NAME: usize = 16;

/// A call to [`Client::requeue`]; sent when it is awaited. Answers [`Requeued`].
#[must_use = "nothing is requeued until it is awaited"]
pub struct Requeue<'a> {
    client: &'a Client,
    key: Result<JobKey>,
    letter: Option<u64>,
    when: Result<When>,
}

/// A call to [`Client::delete_dead_letter`]; sent when it is awaited. Answers whether there was
/// such a letter.
#[must_use = "nothing is deleted until it is awaited"]
pub struct DeleteDeadLetter<'a> {
    client: &'a Client,
    key: Result<JobKey>,
    letter: Option<u64>,
}

/// The answer of [`Client::requeue`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Requeued {
    /// The dead letter is a pending job again, due at this time by Redis' clock.
    Requeued(SystemTime),
    /// A job with this key is pending or running. Nothing was done, neither to the job nor to a
    /// dead letter.
    Present,
    /// There is no such dead letter. If the call gave no letter number, there is no job with this
    /// key either.
    Absent,
}

impl Client {
    /// The dead letters of one job, the latest first: the last sixteen, or fewer if their payloads
    /// are large. Each has a [number](JobView::letter).
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

    /// Makes the latest dead letter of a job pending again, with its attempts counted anew.
    /// Payload, headers, policy, story and the time of its first schedule stay. The job is due now,
    /// unless [`after`](Requeue::after) or [`at`](Requeue::at) set another time.
    ///
    /// A repeat after an error of unknown outcome takes the letter that is the latest by then,
    /// which may be an older one. To make repeats safe, give the number of the letter with
    /// `letter`.
    ///
    /// # Errors
    /// When it is awaited: if key or time are not valid, the letter is damaged, Redis does not
    /// answer in time, or Redis is full.
    pub fn requeue(&self, key: impl IntoJobKey) -> Requeue<'_> {
        Requeue {
            client: self,
            key: key.into_job_key(),
            letter: None,
            when: Ok(NOW),
        }
    }

    /// Deletes the latest dead letter of a job for good. Answers whether there was one. A pending
    /// or running job with this key is not touched.
    ///
    /// A repeat after an error of unknown outcome takes the letter that is the latest by then,
    /// which may be an older one. To make repeats safe, give the number of the letter with
    /// `letter`.
    ///
    /// # Errors
    /// When it is awaited: if the key is not valid, or Redis does not answer in time.
    pub fn delete_dead_letter(&self, key: impl IntoJobKey) -> DeleteDeadLetter<'_> {
        DeleteDeadLetter {
            client: self,
            key: key.into_job_key(),
            letter: None,
        }
    }
}

impl Requeue<'_> {
    /// Selects the dead letter with this [number](JobView::letter), instead of the latest.
    pub fn letter(mut self, number: u64) -> Self {
        self.letter = Some(number);
        self
    }

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

impl DeleteDeadLetter<'_> {
    /// Selects the dead letter with this [number](JobView::letter), instead of the latest.
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
                // The job may have been requeued by another call.
                let is_there = self.letter.is_none() && is_there(self.client, &key, until).await?;
                return Ok(if is_there {
                    Requeued::Present
                } else {
                    Requeued::Absent
                });
            };
            let revival = Revival::of(key.clone(), &letter, when)
                .map_err(|fault| Error::new(ErrorKind::Damaged, format!("{key}: {fault}")))?;
            match self.client.ask(revival, until).await?.answer {
                Word::Requeued(due) => Ok(Requeued::Requeued(due.to_system())),
                Word::Present => Ok(Requeued::Present),
                // Another call took the letter. The letter before it was not meant.
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
            match self
                .client
                .ask(Discard { key, letter }, until)
                .await?
                .answer
            {
                Word::Deleted => Ok(true),
                // Another call took the letter. The letter before it was not meant.
                Word::Absent => Ok(false),
                other => Err(out_of_place(other)),
            }
        })
    }
}

/// Whether a job with this key is pending or running.
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
