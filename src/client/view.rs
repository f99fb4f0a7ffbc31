//! One job, looked at.

use std::fmt;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use serde::de::DeserializeOwned;

use crate::error::{Error, ErrorKind, Result};
use crate::headers::Headers;
use crate::key::JobKey;
#[cfg(feature = "worker")]
use crate::lease::Lease;
use crate::record::{Record, Step};
use crate::retry::RetryPolicy;
use crate::store::{Found, Letter};
use crate::time::{UnixMs, Utc};

/// What a job is waiting for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum JobState {
    /// Its due time, for the first attempt.
    Pending,
    /// Its due time, for another attempt.
    Retrying,
    /// A worker runs it.
    Running,
    /// A worker ran it and has not been heard of since its lease ended: another one is about
    /// to take over.
    Lapsed,
    /// Somebody who requeues or deletes it: it is a dead letter.
    Dead,
}

/// A job as it was at one instant; from [`Client::get`](crate::Client::get).
#[derive(Clone)]
pub struct JobView {
    key: JobKey,
    state: JobState,
    due: UnixMs,
    attempts: u32,
    successor: Option<Successor>,
    letter: Option<u64>,
    cancelled: bool,
    #[cfg(feature = "worker")]
    lease: Option<Lease>,
    /// When the lease ends, where that was read.
    lease_ends: Option<UnixMs>,
    pub(super) record: Record,
}

/// What was scheduled while a job runs: when it is due, and its record, where that was read.
#[derive(Clone)]
struct Successor {
    due: UnixMs,
    record: Option<Record>,
}

impl JobView {
    pub(super) fn from_found(key: JobKey, found: Found) -> Result<Option<Self>> {
        let (record, state, due) = match found {
            Found::Absent | Found::Elsewhere => return Ok(None),
            Found::Pending { due, record } => (record, JobState::Pending, due),
            Found::Dead {
                died,
                number,
                record,
            } => {
                let letter = Letter {
                    number,
                    died,
                    record,
                };
                return JobView::of_letter(key, letter).map(Some);
            }
            Found::Leased {
                now,
                deadline,
                lease,
                record,
                successor,
            } => {
                let state = if deadline > now.floor_ms() {
                    JobState::Running
                } else {
                    JobState::Lapsed
                };
                let mut view = JobView::new(key, state, UnixMs(0), record)?;
                view.read_lease(&lease, &successor)?;
                view.lease_ends = Some(deadline);
                return Ok(Some(view));
            }
        };
        let mut view = JobView::new(key, state, due, record)?;
        if view.state == JobState::Pending && view.attempts > 0 {
            view.state = JobState::Retrying;
        }
        Ok(Some(view))
    }

    pub(super) fn of_letter(key: JobKey, letter: Letter) -> Result<Self> {
        let mut view = JobView::new(key, JobState::Dead, letter.died, letter.record)?;
        view.letter = Some(letter.number);
        Ok(view)
    }

    fn new(key: JobKey, state: JobState, due: UnixMs, record: Vec<u8>) -> Result<Self> {
        let record = Record::parse(record).map_err(|fault| fault.of(&key))?;
        Ok(JobView {
            key,
            state,
            due,
            attempts: record.header.attempts,
            successor: None,
            letter: None,
            cancelled: false,
            #[cfg(feature = "worker")]
            lease: None,
            lease_ends: None,
            record,
        })
    }

    /// Takes what only the lease knows, `token claims fence due flag`, and when the
    /// successor, `due record`, is due.
    fn read_lease(&mut self, lease: &str, successor: &[u8]) -> Result<()> {
        let damaged = || {
            Error::new(
                ErrorKind::Damaged,
                format!("{}: its lease is damaged", self.key),
            )
        };
        let fields: Vec<&str> = lease.split(' ').collect();
        let [_token, claims, _, due, flag] = fields[..] else {
            return Err(damaged());
        };
        #[cfg(feature = "worker")]
        {
            self.lease = Some(Lease::new(self.key.clone(), _token));
        }
        let claims: u32 = claims.parse().map_err(|_| damaged())?;
        let due = due.parse().map_err(|_| damaged())?;
        let mut next = successor.splitn(2, |byte| *byte == b' ');
        let next_due = next.next();
        let next_due = next_due.and_then(|due| std::str::from_utf8(due).ok()?.parse().ok());
        let next_record = next.next().map(<[u8]>::to_vec);
        self.attempts = self.attempts.saturating_add(claims);
        self.cancelled = flag == "cancelled";
        self.due = UnixMs(due);
        self.successor = next_due.map(|due| Successor {
            due: UnixMs(due),
            record: next_record.and_then(|record| Record::parse(record).ok()),
        });
        Ok(())
    }

    /// Its name.
    pub fn key(&self) -> &JobKey {
        &self.key
    }

    /// What it is waiting for.
    pub fn state(&self) -> JobState {
        self.state
    }

    /// When it is due, or was when it was claimed; for a dead letter, when it died. By Redis'
    /// clock.
    pub fn due(&self) -> SystemTime {
        self.due.to_system()
    }

    /// How many attempts were begun, the one in progress included.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// When `schedule` accepted it, by Redis' clock.
    pub fn first_scheduled_at(&self) -> SystemTime {
        self.record.first_scheduled_at()
    }

    /// How the last attempt failed, or why it was buried.
    pub fn last_error(&self) -> Option<&str> {
        self.record.header.error.as_deref()
    }

    /// Why its last run [put it off](crate::Outcome::SnoozeBecause), if it waits because of that.
    #[cfg(feature = "worker")]
    pub fn put_off(&self) -> Option<&str> {
        let last = self.record.steps.last()?;
        // A version that knows nothing of it leaves it in the header.
        let reason = self.record.header.put_off.as_deref();
        reason.filter(|_| last.what == "snoozed")
    }

    /// What happened to it since it was scheduled, the last eight things at the most, the
    /// oldest first.
    pub fn steps(&self) -> &[Step] {
        &self.record.steps
    }

    /// What travels with it beside its payload.
    pub fn headers(&self) -> &Headers {
        &self.record.header.headers
    }

    /// Its payload, byte for byte.
    pub fn payload(&self) -> &Bytes {
        &self.record.payload
    }

    /// Its payload, read as JSON.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidPayload`] if it is not JSON, or not of this shape.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_slice(self.payload()).map_err(|error| {
            Error::new(
                ErrorKind::InvalidPayload,
                format!("the payload of {} does not decode: {error}", self.key),
            )
        })
    }

    /// The retry policy that it was given for itself, instead of that of its route.
    pub fn retry(&self) -> Option<&RetryPolicy> {
        self.record.header.terms.retry.as_ref()
    }

    /// How many attempts it was given for itself, the first run included, instead of those of
    /// its policy.
    pub fn max_attempts(&self) -> Option<u32> {
        self.record.header.terms.max_attempts
    }

    /// How long a run of it may take, instead of what its route says.
    pub fn timeout(&self) -> Option<Duration> {
        self.record.header.terms.timeout()
    }

    /// The number of the dead letter, if it is one. The same name can have several;
    /// [`Client::get`](crate::Client::get) shows the latest.
    pub fn letter(&self) -> Option<u64> {
        self.letter
    }

    /// When the job that will follow the run in progress is due, if one was scheduled.
    pub fn successor_due(&self) -> Option<SystemTime> {
        self.successor.as_ref().map(|next| next.due.to_system())
    }

    /// The job that will follow the run in progress, if one was scheduled:
    /// [`Client::get`](crate::Client::get) reads it, lists do not.
    pub fn successor(&self) -> Option<JobView> {
        let Successor { due, record } = self.successor.as_ref()?;
        let record = record.clone()?;
        Some(JobView {
            key: self.key.clone(),
            state: JobState::Pending,
            due: *due,
            attempts: record.header.attempts,
            successor: None,
            letter: None,
            cancelled: false,
            #[cfg(feature = "worker")]
            lease: None,
            lease_ends: None,
            record,
        })
    }

    /// The lease that it has, if it runs or has lapsed: whoever knows that the run has ended can
    /// [settle](crate::Client::settle) it.
    #[cfg(feature = "worker")]
    pub fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    /// When its lease ends unless it is renewed, or ended, if it runs or has lapsed;
    /// [`Client::get`](crate::Client::get) tells, lists do not.
    pub fn lease_ends(&self) -> Option<SystemTime> {
        self.lease_ends.map(UnixMs::to_system)
    }

    /// Whether it was made of a plain key, which a route [adopts](crate::Handler::adopt).
    pub fn is_adopted(&self) -> bool {
        self.record.header.is_adopted()
    }

    /// Whether it was cancelled while it runs, and so will not be retried.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled
    }
}

impl fmt::Debug for JobView {
    /// Without payload and headers, which may be private, and large.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut view = f.debug_struct("JobView");
        view.field("key", &format_args!("{}", self.key))
            .field("state", &self.state)
            .field("due", &format_args!("{}", Utc(self.due)))
            .field("attempts", &self.attempts);
        if let Some(number) = self.letter {
            view.field("letter", &number);
        }
        if let Some(error) = self.last_error() {
            view.field("last_error", &error);
        }
        if let Some(next) = &self.successor {
            view.field("successor_due", &format_args!("{}", Utc(next.due)));
        }
        if self.cancelled {
            view.field("cancelled", &true);
        }
        let steps = self.steps().iter().map(|step| step.what.as_str());
        view.field("steps", &steps.collect::<Vec<_>>())
            .field("payload_bytes", &self.payload().len())
            .finish_non_exhaustive()
    }
}
