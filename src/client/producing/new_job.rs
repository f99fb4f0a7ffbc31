//! [`NewJob`]: key, payload, due time and terms of a job before it is scheduled.
//!
//! The builder methods stand in a macro, which `NewJob` and `Schedule` share. Values are checked
//! when the job is scheduled.

use std::fmt;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use serde::Serialize;

use crate::durable::Durable;
use crate::error::{Error, ErrorKind, Result};
use crate::headers::Headers;
use crate::key::{IntoJobKey, JobKey};
use crate::lateness::MaxLateness;
use crate::record::{Header, Terms};
use crate::recurrence::{QuietHours, Quieted, Recurring, Rule, Zone};
use crate::retry::RetryPolicy;
use crate::settings::MAX_DELAY;
use crate::store::{Mode, Placement, When};
use crate::time::UnixMs;
use crate::traces;

/// A job for [`Client::schedule_many`](crate::client::Client::schedule_many). Invalid values are
/// reported by that call, for this job alone.
///
/// ```
/// use keyfall::NewJob;
/// use std::time::Duration;
///
/// let jobs = (1..=3).map(|order| {
///     NewJob::new(format!("app1:order:expire:{order}"), &order)
///         .after(Duration::from_secs(1800))
///         .if_absent()
/// });
/// # drop(jobs);
/// ```
#[must_use = "hand it to `schedule_many`"]
pub struct NewJob {
    pub(crate) key: Result<JobKey>,
    pub(crate) payload: Result<Bytes>,
    pub(crate) when: Result<When>,
    pub(crate) rule: Option<Rule>,
    pub(crate) quiet: Option<QuietHours>,
    pub(crate) headers: Headers,
    pub(crate) retry: Option<RetryPolicy>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) max_lateness: Option<MaxLateness>,
    pub(crate) attempts: Option<u32>,
    pub(crate) mode: Mode,
    /// How calls for the same key are gathered: [`Mode::Debounce`] or [`Mode::Throttle`].
    pub(crate) spacing: Option<Mode>,
    /// The order number, for [`Client::next_order`](crate::client::Client::next_order).
    pub(crate) order: Option<u64>,
    pub(crate) durable: Option<Durable>,
}

/// What becomes of a new job.
pub(crate) enum Placing {
    Send(Placement),
    /// Its quiet hours leave it out: it would be due then.
    LeftOut(UnixMs),
}

/// The builder methods of a job, for a type that holds a `NewJob` at `self$at`.
macro_rules! job_options {
    ($($at:tt)*) => {
        /// Makes the job due this long after Redis receives the call. Zero means now. 10 years is
        /// the limit: beyond it, the job is refused with
        /// [`ErrorKind::InvalidTime`](crate::ErrorKind::InvalidTime).
        pub fn after(mut self, delay: std::time::Duration) -> Self {
            self $($at)* .when = $crate::client::producing::new_job::after(delay);
            self
        }

        /// Makes the job due at this time by Redis' clock. The past means now. 10 years ahead is
        /// the limit: beyond it, or before 1970, the job is refused with
        /// [`ErrorKind::InvalidTime`](crate::ErrorKind::InvalidTime).
        pub fn at(mut self, due: std::time::SystemTime) -> Self {
            self $($at)* .when = $crate::client::producing::new_job::at(due);
            self
        }

        /// Makes the job recur by this rule: it is due at the first time that the rule names, and
        /// the end of each run stores the next occurrence in the same step. This takes the place
        /// of [`after`](Self::after) and [`at`](Self::at).
        ///
        /// The job stays until it is cancelled or its rule ends. Payload, headers and terms apply to
        /// each occurrence. Scheduled without a rule, the key becomes a single job again. See
        /// `docs/recurring.md`.
        pub fn recurring(mut self, rule: $crate::Rule) -> Self {
            self $($at)* .rule = Some(rule);
            self
        }

        /// Hours and days on which the job is not to be due: within them it is due later or earlier,
        /// or is not scheduled at all. Settled now, by the clock of Redis; the job keeps the reason.
        /// For a recurring job, the same as [`Rule::quiet`](crate::Rule::quiet). Defaults to none.
        pub fn quiet(mut self, quiet: $crate::QuietHours) -> Self {
            self $($at)* .quiet = Some(quiet);
            self
        }

        /// Gathers calls for this key: the job is due when they have been silent for `quiet`, but
        /// no later than `at_most` after the first of them, and carries the payload of the last.
        /// Each is 1 ms to 10 years. A job that runs is followed by one such job; a retry is
        /// replaced, and the wait begins anew.
        ///
        /// This takes the place of [`after`](Self::after) and [`at`](Self::at). A job that recurs, has
        /// [quiet hours](Self::quiet) of its own, or is scheduled only under a condition, cannot be
        /// gathered.
        pub fn debounce(mut self, quiet: std::time::Duration, at_most: std::time::Duration) -> Self {
            self $($at)* .when = $crate::client::producing::new_job::after(quiet);
            self $($at)* .spacing = Some($crate::store::Mode::Debounce(at_most));
            self
        }

        /// Spaces the jobs of this key: one is due at once, the next `span` after that one, and so
        /// on; 1 ms to 10 years. Calls in between are gathered in the next one, which carries the
        /// payload of the last call. Retries are not counted.
        ///
        /// This takes the place of [`after`](Self::after) and [`at`](Self::at), with the same exceptions
        /// as for [`debounce`](Self::debounce).
        pub fn throttle(mut self, span: std::time::Duration) -> Self {
            self $($at)* .when = Ok($crate::client::producing::new_job::NOW);
            self $($at)* .spacing = Some($crate::store::Mode::Throttle(span));
            self
        }

        /// Adds a header: a text that travels beside the payload, for the handler to read. A job
        /// has up to [`MAX_HEADERS`](crate::MAX_HEADERS) headers, with
        /// [`MAX_HEADERS_BYTES`](crate::MAX_HEADERS_BYTES) in all.
        pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
            self $($at)* .headers.insert(name, value);
            self
        }

        /// The retry policy of this job, instead of the policy of its route. Defaults to the policy
        /// of the route.
        pub fn retry(mut self, policy: $crate::RetryPolicy) -> Self {
            self $($at)* .retry = Some(policy);
            self
        }

        /// The limit of attempts of this job, including the first run; at least 1. It applies to
        /// the policy of the job or of its route; see
        /// [`RetryPolicy::attempts`](crate::RetryPolicy::attempts). Defaults to the limit of that
        /// policy.
        pub fn attempts(mut self, limit: u32) -> Self {
            self $($at)* .attempts = Some(limit);
            self
        }

        /// The durability that the answer waits for, such as `1` for one replica; the answer tells
        /// the durability that was [reached](crate::Scheduled::reached). Defaults to no wait: the
        /// job is in the memory of the server.
        pub fn durable(mut self, how: impl Into<crate::Durable>) -> Self {
            self $($at)* .durable = Some(how.into());
            self
        }

        /// The longest that a run of this job may take, instead of the timeout of its route: from 1
        /// ms to 10 years. Defaults to the timeout of the route.
        pub fn timeout(mut self, limit: std::time::Duration) -> Self {
            self $($at)* .timeout = Some(limit);
            self
        }

        /// How late a run of this job may start, and what becomes of it if it could start only
        /// later: from 1 s to 10 years. Lateness counts from the due time of the job, or of its
        /// retry. A run that has begun, and is taken over from a worker that died, is not late.
        /// Defaults to the limit of the route.
        pub fn max_lateness(mut self, limit: std::time::Duration, then: $crate::Late) -> Self {
            self $($at)* .max_lateness = Some($crate::lateness::MaxLateness { limit, then });
            self
        }
    };
}
pub(crate) use job_options;

impl NewJob {
    /// A job with a payload that is stored as JSON. The job is due now, unless
    /// [`after`](Self::after) or [`at`](Self::at) set another time. Invalid values are reported
    /// when the job is scheduled.
    pub fn new(key: impl IntoJobKey, payload: &(impl Serialize + ?Sized)) -> Self {
        NewJob::carrying(key, to_json(payload))
    }

    /// A job with a payload of any bytes, stored unchanged. Due now, as with [`new`](Self::new).
    pub fn from_bytes(key: impl IntoJobKey, payload: impl Into<Bytes>) -> Self {
        NewJob::carrying(key, Ok(payload.into()))
    }

    fn carrying(key: impl IntoJobKey, payload: Result<Bytes>) -> Self {
        NewJob {
            key: key.into_job_key(),
            payload,
            when: Ok(NOW),
            rule: None,
            quiet: None,
            headers: Headers::new(),
            retry: None,
            timeout: None,
            max_lateness: None,
            attempts: None,
            mode: Mode::Set,
            spacing: None,
            order: None,
            durable: None,
        }
    }

    job_options!();

    /// Schedules the job only if no job with this key is pending or running. Dead letters do not
    /// count as jobs.
    pub fn if_absent(mut self) -> Self {
        self.mode = Mode::Absent;
        self
    }

    /// Schedules the job only if a job with this key is pending or running; it replaces the pending
    /// job, or follows the run. Dead letters do not count as jobs.
    pub fn if_present(mut self) -> Self {
        self.mode = Mode::Present;
        self
    }

    /// The item that is sent to the ledger. `now` is the time by the clock of Redis, as far as it
    /// is known, for the first time of a rule and for quiet hours.
    ///
    /// # Errors
    /// For the first value that is not valid.
    pub(crate) fn into_placing(mut self, payload_limit: usize, now: UnixMs) -> Result<Placing> {
        let key = self.key?;
        let payload = self.payload?;
        check_payload(&key, &payload, payload_limit)?;
        let mut when = self.when?;
        if let Some(spacing) = self.spacing {
            let other = match () {
                () if self.rule.is_some() => Some("a job that recurs"),
                () if self.quiet.is_some() => {
                    Some("a job with quiet hours of its own (give them to its route)")
                }
                () if self.mode != Mode::Set => Some("a job that is scheduled under a condition"),
                () => None,
            };
            check_spacing(&key, spacing, when, other)?;
            self.mode = spacing;
        }
        self.durable.map_or(Ok(()), |durable| durable.check())?;
        traces::carry(&mut self.headers);
        self.headers.check(&key)?;
        let terms = Terms::new(&key, self.retry, self.timeout, self.attempts)?;
        let terms = terms.max_lateness(&key, self.max_lateness)?;
        let mut header = Header::new(self.headers, terms);
        header.order = self.order;
        if let Some(rule) = self.rule {
            rule.check_template(&payload)?;
            let rule = match self.quiet {
                Some(quiet) => rule.quiet(quiet),
                None => rule,
            };
            let first = Recurring::first(&rule, now, rand::random()).ok_or_else(|| {
                Error::new(
                    ErrorKind::InvalidRule,
                    format!("{key}: its rule names no time any more: {rule}"),
                )
            })?;
            when = When::At(first.due());
            header = header.with_recur(Some(first));
        } else if let Some(quiet) = &self.quiet {
            let due = match when {
                When::At(due) => due.max(now),
                When::After(delay) | When::By(delay) => now.plus(delay),
            };
            match quiet.settle(due, now, &Zone::utc()) {
                Quieted::Same => {}
                Quieted::Moved(shift) => {
                    when = When::At(UnixMs(shift.to));
                    header.shift = Some(Box::new(shift));
                }
                Quieted::Out(_) => return Ok(Placing::LeftOut(due)),
            }
        }
        Ok(Placing::Send(Placement {
            mode: self.mode,
            when,
            header: header.to_line(),
            key,
            payload,
        }))
    }
}

/// Checks the spacing of a job. `other` names what else decides when it is due.
///
/// # Errors
/// [`ErrorKind::InvalidTime`] if a time is out of range, or something else decides the due time.
fn check_spacing(key: &JobKey, spacing: Mode, when: When, other: Option<&str>) -> Result<()> {
    let refuse = |message: String| Err(Error::new(ErrorKind::InvalidTime, message));
    if let Some(other) = other {
        return refuse(format!(
            "{key}: {other} cannot have `debounce` or `throttle`"
        ));
    }
    let times = match (spacing, when) {
        (Mode::Debounce(at_most), When::After(quiet)) => vec![
            ("the silence of `debounce`", quiet),
            ("the longest wait of `debounce`", at_most),
        ],
        (Mode::Throttle(span), When::After(Duration::ZERO)) => vec![("`throttle`", span)],
        _ => {
            return refuse(format!(
                "{key}: `debounce` and `throttle` set the due time: leave out `after` and `at`"
            ));
        }
    };
    let range = Duration::from_millis(1)..=MAX_DELAY;
    match times.iter().find(|(_, time)| !range.contains(time)) {
        None => Ok(()),
        Some((what, time)) => refuse(format!(
            "{key}: {what} is from 1 ms to 10 years, not {time:?}"
        )),
    }
}

/// The payload as JSON.
///
/// # Errors
/// [`ErrorKind::InvalidPayload`] if it cannot be serialized.
pub(crate) fn to_json(payload: &(impl Serialize + ?Sized)) -> Result<Bytes> {
    serde_json::to_vec(payload).map(Bytes::from).map_err(|e| {
        Error::new(
            ErrorKind::InvalidPayload,
            format!("the payload cannot be written as JSON: {e}"),
        )
    })
}

/// Checks the size of a payload; `limit` is in bytes.
///
/// # Errors
/// [`ErrorKind::InvalidPayload`] if it is larger.
pub(crate) fn check_payload(key: &JobKey, payload: &Bytes, limit: usize) -> Result<()> {
    if payload.len() <= limit {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidPayload,
        format!(
            "the payload of {key} has {} bytes, and the limit is {limit}: store it elsewhere and \
             schedule a reference to it, or raise `payload_limit`",
            payload.len()
        ),
    ))
}

/// The default due time: a delay of zero.
pub(crate) const NOW: When = When::After(Duration::ZERO);

/// A delay from the moment at which Redis receives the call.
///
/// # Errors
/// [`ErrorKind::InvalidTime`] if the delay is above 10 years.
pub(crate) fn after(delay: Duration) -> Result<When> {
    if delay > MAX_DELAY {
        return Err(too_far(format!("the delay {delay:?} is")));
    }
    Ok(When::After(delay))
}

/// A time by the clock of Redis.
///
/// # Errors
/// [`ErrorKind::InvalidTime`] before 1970, or more than 10 years ahead by this machine's clock.
pub(crate) fn at(due: SystemTime) -> Result<When> {
    // The clock of this machine may be wrong; it is good enough to catch a mistaken unit.
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

impl fmt::Debug for NewJob {
    /// Leaves out payload and headers, which may be private, and large.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NewJob")
            .field("key", &self.key)
            .field("when", &self.when)
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}
