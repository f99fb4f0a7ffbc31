//! Calls on the rule of one recurring job: another rule, pause and resume.
//!
//! Each reads the job, computes its next occurrence, and writes it if the job is still as it was
//! read; otherwise it begins anew.

use std::time::{Instant, SystemTime};

use crate::client::{Client, out_of_place};
use crate::error::{Error, ErrorKind, Result};
use crate::key::{IntoJobKey, JobKey};
use crate::record::{Header, Record};
use crate::recurrence::{Recurring, Rule};
use crate::store::{Amendment, Found, JobVersion, VersionState, When, Word};
use crate::time::UnixMs;

/// The answer of [`Client::change_rule`], [`Client::pause_rule`] and [`Client::resume_rule`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RuleChange {
    /// The next occurrence is due at this time, by Redis' clock; with a paused rule the time has no
    /// meaning.
    Changed(SystemTime),
    /// The job is running. From the end of the run on it recurs by what was asked for: the next
    /// occurrence is due at this time, by Redis' clock. If the run fails, it is not retried.
    AfterRun(SystemTime),
    /// Nothing was done: the rule is that rule already, or is paused, or is not.
    Unchanged,
    /// Nothing was done: the job is pending or running, and has no rule.
    NotRecurring,
    /// No job with this key is pending or running, or its run was cancelled, so that the rule has
    /// ended.
    Absent,
}

/// A recurring job as it was read.
pub(super) struct Present {
    seen: JobVersion,
    pub(super) header: Header,
    pub(super) due: UnixMs,
    #[cfg(feature = "worker")]
    pub(super) payload: bytes::Bytes,
    /// The occurrence that is to be changed, before the change.
    pub(super) occurrence: Recurring,
}

/// The job of a rule that a call looks for.
pub(super) enum Sought {
    Recurring(Box<Present>),
    NotRecurring,
    Absent,
}

impl Client {
    /// Gives a recurring job another rule. Numbers, payload, headers and terms stay, and a rule that
    /// is paused stays paused. The next occurrence is due at the next time of the new rule; an
    /// occurrence that waits for a retry keeps its time, and the one after it follows the new rule.
    /// If the job is running, the new rule applies from the end of the run on.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRule`] if the rule names no time any more, or allows fewer runs than the
    /// job has had; or if the key is not valid, the record is damaged, Redis does not answer in
    /// time, or Redis is full.
    pub async fn change_rule(&self, key: impl IntoJobKey, rule: &Rule) -> Result<RuleChange> {
        let key = key.into_job_key()?;
        self.amend_rule(&key, |present, now| {
            if present.occurrence.has_rule(rule) {
                return Ok(None);
            }
            present.by_rule(rule, now).map(Some).ok_or_else(|| {
                invalid(&key, "the rule names no time any more, or allows fewer runs than it has had: cancel the job to end it")
            })
        })
        .await
    }

    /// Pauses the rule of a recurring job: no occurrence is due until
    /// [`resume_rule`](Self::resume_rule). [`fire_now`](Self::fire_now) still runs the job once. If
    /// the job is running, its run goes on. An occurrence that waits for a retry waits on.
    ///
    /// # Errors
    /// If the key is not valid, the record is damaged, Redis does not answer in time, or Redis is
    /// full.
    pub async fn pause_rule(&self, key: impl IntoJobKey) -> Result<RuleChange> {
        let key = key.into_job_key()?;
        self.amend_rule(&key, |present, now| Ok(present.occurrence.paused(now)))
            .await
    }

    /// Resumes a rule that [`pause_rule`](Self::pause_rule) has paused. The next occurrence is due
    /// at the next time of the rule; times that passed during the pause are left out, and not
    /// counted. An occurrence that waited for a retry is due at once.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRule`] if the rule names no time any more; otherwise as
    /// [`pause_rule`](Self::pause_rule).
    pub async fn resume_rule(&self, key: impl IntoJobKey) -> Result<RuleChange> {
        let key = key.into_job_key()?;
        self.amend_rule(&key, |present, now| {
            if !present.occurrence.is_paused() {
                return Ok(None);
            }
            let resumed = match present.is_retrying() {
                true => Some(present.occurrence.with_own_time()),
                false => present.occurrence.resumed(now, rand::random()),
            };
            resumed.map(Some).ok_or_else(|| {
                invalid(&key, "its rule names no time any more: cancel the job to end it, or give it another rule first")
            })
        })
        .await
    }

    /// Changes the occurrence of a recurring job. `change` gets the job as it is, and may be asked
    /// again if the job changes meanwhile; it answers `None` if there is nothing to do.
    async fn amend_rule(
        &self,
        key: &JobKey,
        change: impl Fn(&Present, UnixMs) -> Result<Option<Recurring>>,
    ) -> Result<RuleChange> {
        let until = self.deadline();
        loop {
            let present = match Sought::read(key, self.find(key, until).await?)? {
                Sought::Recurring(present) => present,
                Sought::NotRecurring => return Ok(RuleChange::NotRecurring),
                Sought::Absent => return Ok(RuleChange::Absent),
            };
            let now = self.now();
            let Some(occurrence) = change(&present, now)? else {
                return Ok(RuleChange::Unchanged);
            };
            let amendment = present.amendment(key.clone(), occurrence, now);
            let answered = self.ask(amendment, until).await?;
            match answered.answer {
                Word::Moved(due) => return Ok(RuleChange::Changed(due.to_system())),
                Word::SuccessorMoved(due) | Word::Succeeds(due) => {
                    return Ok(RuleChange::AfterRun(due.to_system()));
                }
                Word::Absent => return Ok(RuleChange::Absent),
                Word::Changed if Instant::now() < until => {}
                Word::Changed => {
                    return Err(Error::new(
                        ErrorKind::Unavailable,
                        format!("{key} changed for as long as the call may take: try again"),
                    ));
                }
                other => return Err(out_of_place(other)),
            }
        }
    }
}

impl Sought {
    /// # Errors
    /// [`ErrorKind::Damaged`] if the record cannot be read.
    pub(super) fn read(key: &JobKey, found: Found) -> Result<Self> {
        let Some(seen) = JobVersion::of(&found) else {
            return Ok(Sought::Absent);
        };
        let (due, record) = match found {
            Found::Pending { due, record } => (due, record),
            Found::Leased {
                record, successor, ..
            } => match successor.iter().position(|byte| *byte == b' ') {
                Some(at) => {
                    let due = std::str::from_utf8(&successor[..at]).ok();
                    let due = due.and_then(|due| due.parse().ok()).unwrap_or_default();
                    (UnixMs(due), successor[at + 1..].to_vec())
                }
                None => (UnixMs(0), record),
            },
            _ => return Ok(Sought::Absent),
        };
        let record = Record::parse(record).map_err(|fault| fault.of(key))?;
        let Some(recurring) = record.header.recur() else {
            return Ok(Sought::NotRecurring);
        };
        let occurrence = match seen.state {
            // What is changed is the occurrence that follows the run.
            VersionState::Leased => recurring.following(),
            VersionState::Pending | VersionState::Successor => recurring.clone(),
        };
        Ok(Sought::Recurring(Box::new(Present {
            seen,
            due,
            occurrence,
            #[cfg(feature = "worker")]
            payload: record.payload,
            header: record.header,
        })))
    }
}

impl Present {
    /// Whether the occurrence waits for a retry.
    fn is_retrying(&self) -> bool {
        self.seen.state == VersionState::Pending && self.header.attempts > 0
    }

    #[cfg(feature = "worker")]
    pub(super) fn state(&self) -> VersionState {
        self.seen.state
    }

    #[cfg(feature = "worker")]
    pub(super) fn seen(&self) -> JobVersion {
        self.seen.clone()
    }

    /// The occurrence by another rule; `None` if that rule allows no further run.
    pub(super) fn by_rule(&self, rule: &Rule, now: UnixMs) -> Option<Recurring> {
        match self.is_retrying() {
            true => self.occurrence.with_rule(rule),
            false => self.occurrence.by_rule(rule, now, rand::random()),
        }
    }

    /// The call that stores this occurrence in place of the present one.
    pub(super) fn amendment(
        self: Box<Self>,
        key: JobKey,
        occurrence: Recurring,
        now: UnixMs,
    ) -> Amendment {
        let when = match (self.is_retrying(), occurrence.is_paused()) {
            (true, false) if self.occurrence.is_paused() => now,
            (true, false) => self.due,
            _ => occurrence.due(),
        };
        let header = match self.seen.state {
            VersionState::Leased => {
                let mut header = self.header.untried();
                header.us = 0;
                header
            }
            VersionState::Pending | VersionState::Successor => self.header,
        };
        Amendment {
            key,
            seen: self.seen,
            when: When::At(when),
            header: header.with_recur(Some(occurrence)).to_line(),
            payload: None,
        }
    }
}

fn invalid(key: &JobKey, fault: &str) -> Error {
    Error::new(ErrorKind::InvalidRule, format!("{key}: {fault}"))
}
