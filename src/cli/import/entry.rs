//! A job that is to be imported, wherever it comes from.

use std::time::{Duration, SystemTime};

use keyfall::{Headers, JobKey, NewJob, RetryPolicy};

use crate::cli::job::{JobLine, State};
use crate::duration;

pub(super) struct Entry {
    pub(super) key: JobKey,
    pub(super) due: SystemTime,
    pub(super) is_dead: bool,
    pub(super) payload: Vec<u8>,
    pub(super) headers: Headers,
    pub(super) retry: Option<RetryPolicy>,
    pub(super) max_attempts: Option<u32>,
    pub(super) timeout: Option<Duration>,
}

impl Entry {
    /// As an export has it.
    ///
    /// # Errors
    /// What is wrong with it, and the remedy.
    pub(super) fn parse(line: &[u8]) -> Result<Self, String> {
        let line: JobLine = serde_json::from_slice(line).map_err(|error| error.to_string())?;
        let key = JobKey::parse(&line.key).map_err(|error| error.to_string())?;
        let is_dead = match line.state {
            State::Pending | State::Retrying => false,
            State::Dead => true,
            State::Running | State::Lapsed => {
                return Err(format!(
                    "{key} was {} when it was written, and may have ended since: leave it out, or \
                     write `pending`",
                    line.state.word()
                ));
            }
        };
        let timeout = line.timeout.as_deref().map(duration::parse).transpose();
        Ok(Entry {
            payload: line.payload()?,
            key,
            due: line.due.into(),
            is_dead,
            timeout: timeout.map_err(|fault| format!("`timeout`: {fault}"))?,
            headers: line.headers,
            retry: line.retry,
            max_attempts: line.max_attempts,
        })
    }

    /// Without what a new job cannot have: attempts, errors and a story of its own. A dead letter
    /// is due now.
    pub(super) fn into_job(self) -> NewJob {
        let mut job = NewJob::from_bytes(self.key, self.payload);
        if !self.is_dead {
            job = job.at(self.due);
        }
        for (name, text) in self.headers.iter() {
            job = job.header(name, text);
        }
        if let Some(policy) = self.retry {
            job = job.retry(policy);
        }
        if let Some(limit) = self.max_attempts {
            job = job.attempts(limit);
        }
        if let Some(limit) = self.timeout {
            job = job.timeout(limit);
        }
        job
    }
}
