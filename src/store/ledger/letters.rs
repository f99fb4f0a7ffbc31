//! The operations on dead letters: read, requeue and delete; and the restore of jobs and dead
//! letters from a backup.

use std::borrow::Cow;
use std::time::Instant;

use bytes::Bytes;

use crate::error::Result;
use crate::key::JobKey;
use crate::names::MARKER;
use crate::record::{Record, RecordFault};
use crate::store::ledger::produce::When;
use crate::store::ledger::reply::Answered;
use crate::store::ledger::script::{DISCARD, LETTERS, REQUEUE, RESTORE};
use crate::store::{Lane, Ledger};
use crate::time::UnixMs;

/// A stored dead letter. It never changes until it is removed.
#[derive(Debug)]
pub(crate) struct Letter {
    /// Its number, unique among the dead letters of a job.
    pub(crate) number: u64,
    /// The time at which the job ended.
    pub(crate) died: UnixMs,
    /// The record of the job, with the error in its header.
    pub(crate) record: Vec<u8>,
}

/// One dead letter that becomes pending again.
#[derive(Debug, Clone)]
pub(crate) struct Revival {
    /// The name of the job.
    pub(crate) key: JobKey,
    /// The number of the dead letter.
    pub(crate) letter: u64,
    /// The new due time.
    pub(crate) when: When,
    /// The new header of its record, with the attempts set back.
    pub(crate) header: Cow<'static, str>,
    /// The size of its record in bytes, which the script has to read.
    pub(crate) record_bytes: usize,
}

/// One dead letter to delete.
#[derive(Debug, Clone)]
pub(crate) struct Discard {
    pub(crate) key: JobKey,
    /// The number of the dead letter.
    pub(crate) letter: u64,
}

/// A job or a dead letter from a backup.
#[derive(Debug, Clone)]
pub(crate) struct BackupItem {
    pub(crate) key: JobKey,
    /// The state that it gets back.
    pub(crate) what: KeptAs,
    /// The due time, or the time of death.
    pub(crate) at: UnixMs,
    /// The header of its record, including attempts and error.
    pub(crate) header: Cow<'static, str>,
    /// The second line of its record; empty for a job that is accepted now.
    pub(crate) story: String,
    pub(crate) payload: Bytes,
}

/// The state that an item of a backup gets back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeptAs {
    /// A pending job.
    Pending {
        /// Whether it replaces a pending job of the same name.
        replace: bool,
    },
    /// A dead letter.
    Dead,
}

impl Revival {
    /// Prepares the requeue of a dead letter. Scripts do not read headers, and a dead letter does
    /// not change, so the new header is composed here.
    ///
    /// # Errors
    ///
    /// If the record cannot be read.
    pub(crate) fn of(key: JobKey, letter: &Letter, when: When) -> Result<Self, RecordFault> {
        let record = Record::parse(letter.record.clone())?;
        Ok(Revival {
            key,
            letter: letter.number,
            when,
            header: record.header.untried().with_recur(None).to_line(),
            record_bytes: letter.record.len(),
        })
    }
}

impl Ledger {
    /// Makes dead letters pending again, all or none; `lua/requeue.lua`. The answers:
    ///
    /// - `Requeued`: the job is pending, and the dead letter is gone.
    /// - `Present`: a job of this name is pending or running; the dead letter stays.
    /// - `Absent`: there is no such dead letter.
    /// - `Elsewhere`, `Stale`: another ledger has it now.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Full`](crate::error::ErrorKind::Full) while Redis is at its memory limit; then
    /// nothing was changed.
    pub(crate) async fn requeue(
        &self,
        lane: &mut Lane,
        items: &[Revival],
        until: Instant,
    ) -> Result<Vec<Answered>> {
        let n = &self.names;
        let keys: [&str; 9] = [
            &n.due, &n.shadow, &n.lease, &n.dead, &n.grave, &n.stats, &n.calls, &n.lanes,
            &n.history,
        ];
        let mut cmd = self.call(&REQUEUE, &keys, items.iter().map(|item| &item.key));
        self.address(&mut cmd, lane);
        cmd.arg(&self.wake).arg(&n.subject).arg(MARKER);
        for item in items {
            cmd.arg(item.key.id())
                .arg(item.letter)
                .arg(item.when.to_arg())
                .arg(&*item.header);
        }
        let mut answers = self.eval_items(&REQUEUE, &cmd, items.len(), until).await?;
        self.arm(items.iter().map(|item| &item.key), &mut answers)
            .await;
        Ok(answers)
    }

    /// Stores jobs and dead letters of a backup, all or none; `lua/restore.lua`. A repeat changes
    /// nothing while the restored items are there. The limits of dead letters are not applied here.
    /// The answers:
    ///
    /// - `Created`, `Replaced`: the job is pending, even if its due time is long past.
    /// - `Buried`: the dead letter is stored, with this number.
    /// - `Exists`: a job of this name is pending, or a dead letter of it died at the same time.
    /// - `Running`: a job of this name is running, and is left alone.
    /// - `Elsewhere`, `Stale`: another ledger has it now.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Full`](crate::error::ErrorKind::Full) while Redis is at its memory limit; then
    /// nothing was stored.
    pub(crate) async fn restore(
        &self,
        lane: &mut Lane,
        items: &[BackupItem],
        until: Instant,
    ) -> Result<Vec<Answered>> {
        let n = &self.names;
        let keys: [&str; 9] = [
            &n.due, &n.shadow, &n.lease, &n.dead, &n.grave, &n.stats, &n.calls, &n.lanes,
            &n.history,
        ];
        let mut cmd = self.call(&RESTORE, &keys, items.iter().map(|item| &item.key));
        self.address(&mut cmd, lane);
        cmd.arg(&self.wake).arg(&n.subject).arg(MARKER);
        for item in items {
            let (what, mode) = match item.what {
                KeptAs::Pending { replace: true } => ("pending", "set"),
                KeptAs::Pending { replace: false } => ("pending", "absent"),
                KeptAs::Dead => ("dead", "absent"),
            };
            cmd.arg(item.key.id())
                .arg(what)
                .arg(mode)
                .arg(item.at.to_string())
                .arg(&*item.header)
                .arg(&item.story)
                .arg(&item.payload[..]);
        }
        let mut answers = self.eval_items(&RESTORE, &cmd, items.len(), until).await?;
        self.arm(items.iter().map(|item| &item.key), &mut answers)
            .await;
        Ok(answers)
    }

    /// Deletes dead letters; `lua/discard.lua`. A pending or running job of the same name is not
    /// touched. It works while Redis is full. The answers are `Deleted`, `Absent` and `Stale` or
    /// `Elsewhere`.
    pub(crate) async fn discard(
        &self,
        lane: &mut Lane,
        items: &[Discard],
        until: Instant,
    ) -> Result<Vec<Answered>> {
        let n = &self.names;
        let keys: [&str; 6] = [&n.dead, &n.grave, &n.stats, &n.calls, &n.lanes, &n.history];
        let mut cmd = self.call(&DISCARD, &keys, [].into_iter());
        self.address(&mut cmd, lane);
        for item in items {
            cmd.arg(item.key.id()).arg(item.letter);
        }
        self.eval_items(&DISCARD, &cmd, items.len(), until).await
    }

    /// The last dead letters of one job, the newest first, up to `limit` of them and about 4 MiB;
    /// or the one with this number; `lua/letters.lua`. `None` if the ledger has another layout.
    ///
    /// The last sixteen dead letters of a job are found by its id, older ones only by their
    /// numbers.
    pub(crate) async fn letters(
        &self,
        id: &str,
        number: Option<u64>,
        limit: usize,
        until: Instant,
    ) -> Result<Option<Vec<Letter>>> {
        let n = &self.names;
        let keys: [&str; 3] = [&n.dead, &n.grave, &n.calls];
        let mut cmd = self.call(&LETTERS, &keys, [].into_iter());
        cmd.arg(id).arg(self.place().to_string());
        cmd.arg(limit).arg(number);
        let mut reply = self.eval(&LETTERS, &cmd, until).await?.reply;
        if self.is_stale(&mut reply)? {
            return Ok(None);
        }
        let mut letters = Vec::new();
        while !reply.is_exhausted() {
            letters.push(Letter {
                number: reply.number()?,
                died: UnixMs(reply.number()?),
                record: reply.bytes()?,
            });
        }
        Ok(Some(letters))
    }
}
