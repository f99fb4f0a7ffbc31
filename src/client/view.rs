//! A job as read from Redis: [`JobView`] and [`JobState`], built from the records of the store.

use std::fmt;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use serde::de::DeserializeOwned;

use crate::error::{Error, ErrorKind, Result};
use crate::headers::Headers;
use crate::key::JobKey;
use crate::lateness::MaxLateness;
#[cfg(feature = "worker")]
use crate::lease::Lease;
use crate::record::{Record, Step};
use crate::recurrence::{Occurrence, Recurring};
use crate::retry::RetryPolicy;
use crate::store::{Found, Letter};
use crate::time::{UnixMs, Utc};

/// The state of a job or dead letter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum JobState {
    /// Pending: waits for its due time. No attempt has begun.
    Pending,
    /// Pending again: waits for its due time after at least one attempt.
    Retrying,
    /// Leased to a worker that runs it.
    Running,
    /// Its lease has ended, and its worker has neither settled nor renewed it: another worker is
    /// about to take over.
    Lapsed,
    /// A dead letter: waits for an operator to requeue or delete it.
    Dead,
}

/// A job or dead letter as it was at one instant; from [`Client::get`](crate::Client::get) and the
/// lists. It does not change when the job does.
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
    /// The end of the lease, if it was read.
    lease_ends: Option<UnixMs>,
    pub(super) record: Record,
}

/// The job that was scheduled during a run: its due time, and its record if it was read.
#[derive(Clone)]
struct Successor {
    due: UnixMs,
    record: Option<Record>,
}

impl JobView {
    /// A view of a lookup's answer; `None` if there is no such job.
    ///
    /// # Errors
    /// [`ErrorKind::Damaged`] if record or lease cannot be read.
    pub(in crate::client) fn from_found(key: JobKey, found: Found) -> Result<Option<Self>> {
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

    /// A view of a dead letter.
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

    /// Reads the fields of the lease, `token claims fence due flag`, and the due time of the
    /// successor, `due record`.
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
            self.lease = Some(Lease::new(self.key.clone(), _token.into()));
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

    /// The key of the job.
    pub fn key(&self) -> &JobKey {
        &self.key
    }

    /// The state of the job.
    pub fn state(&self) -> JobState {
        self.state
    }

    /// The due time, by Redis' clock. Of a running job, the due time at which it was claimed; of a
    /// dead letter, the time of its death.
    pub fn due(&self) -> SystemTime {
        self.due.to_system()
    }

    /// The number of attempts that have begun, including the attempt in progress.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// The time at which Redis accepted the job first, by Redis' clock.
    pub fn first_scheduled_at(&self) -> SystemTime {
        self.record.first_scheduled_at()
    }

    /// The occurrence, if the job [recurs](crate::NewJob::recurring). Of a dead letter, the
    /// occurrence that died.
    pub fn occurrence(&self) -> Option<Occurrence> {
        self.record.header.recur().map(Recurring::view)
    }

    /// The rule and the number of its occurrence, if the job recurs.
    #[cfg(feature = "worker")]
    pub(crate) fn recur(&self) -> Option<&Recurring> {
        self.record.header.recur()
    }

    /// The plan as a table in JSON, if the job is the plan of a [series](crate::Client::series).
    pub fn series_plan(&self) -> Option<serde_json::Value> {
        let plan = self.record.header.plan()?;
        Some(serde_json::to_value(plan).expect("a table of texts and numbers is JSON"))
    }

    /// The time that was asked for, and the reason why the job is due at another one, such as quiet
    /// hours. `None` if it is due as asked, or was moved since.
    pub fn shift(&self) -> Option<(SystemTime, &str)> {
        let header = &self.record.header;
        let own = header.shift.as_deref();
        let shift = own.or(header.recur().and_then(Recurring::shift))?;
        let is_so = self.due == UnixMs(shift.to);
        is_so.then(|| (UnixMs(shift.from).to_system(), &*shift.why))
    }

    /// The error of the last failed attempt, or the reason of the dead letter; `None` if no attempt
    /// failed.
    pub fn last_error(&self) -> Option<&str> {
        self.record.header.error.as_deref()
    }

    /// The reason for which its last run [put the job off](crate::Outcome::SnoozeBecause); `None`
    /// unless the job waits because of that.
    #[cfg(feature = "worker")]
    pub fn put_off(&self) -> Option<&str> {
        let last = self.record.steps.last()?;
        // An older version leaves the reason in the header.
        let reason = self.record.header.put_off.as_deref();
        reason.filter(|_| last.what == "snoozed")
    }

    /// The last eight steps of the job since it was scheduled, the oldest first.
    pub fn steps(&self) -> &[Step] {
        &self.record.steps
    }

    /// The headers of the job: texts that travel beside the payload.
    pub fn headers(&self) -> &Headers {
        &self.record.header.headers
    }

    /// The payload, byte for byte.
    pub fn payload(&self) -> &Bytes {
        &self.record.payload
    }

    /// The payload, decoded from JSON.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidPayload`] if it is not JSON, or does not fit `T`.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T> {
        serde_json::from_slice(self.payload()).map_err(|error| {
            Error::new(
                ErrorKind::InvalidPayload,
                format!("the payload of {} does not decode: {error}", self.key),
            )
        })
    }

    /// The retry policy of this job; `None` if the policy of its route applies.
    pub fn retry(&self) -> Option<&RetryPolicy> {
        self.record.header.terms.retry.as_ref()
    }

    /// The limit of attempts of this job, including the first run; `None` if the limit of its
    /// policy applies.
    pub fn max_attempts(&self) -> Option<u32> {
        self.record.header.terms.max_attempts
    }

    /// The timeout of a run of this job; `None` if the timeout of its route applies.
    pub fn timeout(&self) -> Option<Duration> {
        self.record.header.terms.timeout()
    }

    /// How late a run of this job may start, and what becomes of it if it could start only later;
    /// `None` if the limit of its route applies.
    pub fn max_lateness(&self) -> Option<MaxLateness> {
        self.record.header.terms.max_lateness
    }

    /// The number of the dead letter; `None` for a live job. One key can have several dead letters;
    /// [`Client::get`](crate::Client::get) returns the latest.
    pub fn letter(&self) -> Option<u64> {
        self.letter
    }

    /// The due time of the successor, if one was scheduled during the run in progress.
    pub fn successor_due(&self) -> Option<SystemTime> {
        self.successor.as_ref().map(|next| next.due.to_system())
    }

    /// The successor, if one was scheduled during the run in progress.
    /// [`Client::get`](crate::Client::get) reads it; in lists it is `None`.
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

    /// The lease of a job that runs or has lapsed. A program that knows that the run has ended can
    /// [settle](crate::Client::settle) it.
    #[cfg(feature = "worker")]
    pub fn lease(&self) -> Option<&Lease> {
        self.lease.as_ref()
    }

    /// The end of the lease of a job that runs or has lapsed, unless the lease is renewed.
    /// [`Client::get`](crate::Client::get) reads it; in lists it is `None`.
    pub fn lease_ends(&self) -> Option<SystemTime> {
        self.lease_ends.map(UnixMs::to_system)
    }

    /// Whether the job was made from a plain Redis key, which a route
    /// [adopts](crate::Handler::adopt).
    pub fn is_adopted(&self) -> bool {
        self.record.header.is_adopted()
    }

    /// Whether the job was cancelled during its run. If so, it is not retried.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled
    }
}

impl fmt::Debug for JobView {
    /// Leaves out payload and headers, which may be private, and large.
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
