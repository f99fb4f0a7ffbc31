//! A job to import, from any source.

use keyfall::JobKey;
use serde::Serialize;

use keyfall_daemon::shapes::{Condition, Job, NewJobIn, RestoreIn, State, Time};

pub(super) struct Entry {
    pub(super) key: JobKey,
    job: Job,
}

/// A line of a batch.
#[derive(Serialize)]
struct BatchCall<'a, T> {
    call: &'static str,
    key: &'a str,
    #[serde(flatten)]
    body: T,
}

impl Entry {
    /// Reads a line of an export.
    ///
    /// # Errors
    /// The fault of the line, and the remedy.
    pub(super) fn parse(line: &[u8]) -> Result<Self, String> {
        let job: Job = serde_json::from_slice(line).map_err(|error| error.to_string())?;
        let key = JobKey::parse(&job.key).map_err(|error| error.to_string())?;
        if matches!(job.state, State::Running | State::Lapsed) {
            return Err(format!(
                "{key} was {} when it was written, and may have ended since: leave it out, or \
                 write `pending`",
                job.state.word()
            ));
        }
        Ok(Entry { key, job })
    }

    /// A job without a story.
    pub(super) fn new(key: JobKey, due: Time, payload: &[u8]) -> Self {
        let job = Job::new(key.as_str(), due, payload);
        Entry { key, job }
    }

    /// The same job with one more header.
    pub(super) fn header(mut self, name: &str, value: String) -> Self {
        self.job.headers.insert(name.to_owned(), value);
        self
    }

    pub(super) fn due(&self) -> Time {
        self.job.due
    }

    pub(super) fn is_dead(&self) -> bool {
        self.job.state == State::Dead
    }

    /// The call that restores the job, as a line of a batch.
    pub(super) fn restored(self, replace: bool) -> Result<Vec<u8>, String> {
        let mut body = RestoreIn::from(self.job);
        body.replace = replace;
        line("restore", &self.key, body)
    }

    /// The call that schedules a dead letter as a job that is due now and has not been tried.
    pub(super) fn requeued(self, replace: bool) -> Result<Vec<u8>, String> {
        let job = self.job;
        let body = NewJobIn {
            payload: job.payload,
            payload_base64: job.payload_base64,
            after: None,
            at: None,
            debounce: None,
            at_most: None,
            throttle: None,
            recurring: None,
            quiet: None,
            headers: job.headers,
            retry: job.retry,
            attempts: job.max_attempts,
            timeout: job.timeout,
            max_lateness: job.max_lateness,
            condition: (!replace).then_some(Condition::Absent),
            durable: None,
            fsynced: false,
        };
        line("schedule", &self.key, body)
    }
}

fn line(call: &'static str, key: &JobKey, body: impl Serialize) -> Result<Vec<u8>, String> {
    let key = key.as_str();
    let mut line = serde_json::to_vec(&BatchCall { call, key, body }).map_err(|e| e.to_string())?;
    line.push(b'\n');
    Ok(line)
}
