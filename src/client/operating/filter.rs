//! [`Filter`]: further conditions on the jobs of a list.

use std::time::{Duration, Instant, SystemTime};

use super::folding::fold_reason;
use crate::client::{Client, JobState, JobView, ListJobs};
use crate::error::{Error, ErrorKind, Result};
use crate::key::Kind;
use crate::limit::LimitScope;
use crate::store::{Position, Sought};
use crate::time::UnixMs;

/// The conditions on the jobs of a list; a job meets all of them.
#[derive(Debug, Clone, Default)]
pub(super) struct Filter {
    due_after: Option<Moment>,
    due_before: Option<Moment>,
    attempts_over: Option<u32>,
    /// A part of the last error, in lower case.
    error: Option<String>,
    /// The last error, folded.
    reason: Option<String>,
    recurring: bool,
    held: bool,
    /// Whether the list is a search although every job fits.
    pub(super) is_survey: bool,
}

/// A point in time, by Redis' clock.
#[derive(Debug, Clone, Copy)]
enum Moment {
    At(SystemTime),
    FromNow(Duration),
}

/// A filter whose times are fixed.
#[derive(Debug)]
pub(super) struct Conditions {
    state: JobState,
    /// The first due time that fits, and the first one that is too late.
    due: (UnixMs, UnixMs),
    /// The limits that cover the kinds of the list, if it has no other kinds.
    limits: Option<Vec<LimitScope>>,
    filter: Filter,
}

impl<'a> ListJobs<'a> {
    /// Lists only jobs that are due at this time or later, by Redis' clock; dead letters that died
    /// at this time or later.
    pub fn due_after(self, time: SystemTime) -> Self {
        self.filtered(|filter| filter.due_after = Some(Moment::At(time)))
    }

    /// Lists only jobs that are due before this time, by Redis' clock; dead letters that died
    /// before it.
    pub fn due_before(self, time: SystemTime) -> Self {
        self.filtered(|filter| filter.due_before = Some(Moment::At(time)))
    }

    /// As [`due_after`](Self::due_after), for a time from now.
    pub fn due_beyond(self, delay: Duration) -> Self {
        self.filtered(|filter| filter.due_after = Some(Moment::FromNow(delay)))
    }

    /// As [`due_before`](Self::due_before), for a time from now. Overdue jobs are listed as well.
    pub fn due_within(self, delay: Duration) -> Self {
        self.filtered(|filter| filter.due_before = Some(Moment::FromNow(delay)))
    }

    /// Lists only jobs of which more than this number of attempts have begun.
    pub fn attempts_over(self, attempts: u32) -> Self {
        self.filtered(|filter| filter.attempts_over = Some(attempts))
    }

    /// Lists only jobs whose last error, or reason of death, contains this text. Upper and lower
    /// case are the same.
    pub fn error(self, part: &str) -> Self {
        let part = part.to_lowercase();
        self.filtered(|filter| filter.error = Some(part))
    }

    /// Lists only jobs whose last error, or reason of death, is this one if its numbers and ids
    /// are [folded](crate::fold_reason).
    pub fn reason(self, folded: &str) -> Self {
        let folded = folded.to_owned();
        self.filtered(|filter| filter.reason = Some(folded))
    }

    /// Lists only recurring jobs. The records of the others are read as well, since nothing keeps
    /// recurring jobs apart.
    pub fn recurring(self) -> Self {
        self.filtered(|filter| filter.recurring = true)
    }

    /// Lists only jobs that are due and belong to a kind with a [limit](Client::limit): they wait
    /// for it, or are about to start. For lists of [pending](JobState::Pending) jobs.
    pub fn held(self) -> Self {
        self.filtered(|filter| filter.held = true)
    }

    fn filtered(mut self, change: impl FnOnce(&mut Filter)) -> Self {
        change(&mut self.filter);
        self
    }
}

impl Filter {
    /// Fixes the times. A time from now needs the clock of Redis.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidSetting`] if a part of the error is empty, because every error would
    /// contain it; other errors if Redis does not answer in time.
    pub(super) async fn conditions(
        self,
        state: JobState,
        client: &Client,
        until: Instant,
    ) -> Result<Conditions> {
        if self.error.as_ref().is_some_and(String::is_empty) {
            return Err(Error::new(
                ErrorKind::InvalidSetting,
                "`error` is empty: write a part of the error, or leave it out",
            ));
        }
        let is_from_now = |it: &Option<Moment>| matches!(it, Some(Moment::FromNow(_)));
        let has_time = is_from_now(&self.due_after) || is_from_now(&self.due_before);
        let now = match has_time || self.held {
            true => client.store().time(until).await?.floor_ms(),
            false => UnixMs(0),
        };
        let fixed = |it: Option<Moment>, none: u64| match it {
            None => UnixMs(none),
            Some(Moment::At(time)) => UnixMs::from_system(time).unwrap_or_default(),
            Some(Moment::FromNow(delay)) => {
                let delay = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
                UnixMs(now.0.saturating_add(delay))
            }
        };
        let mut due = (fixed(self.due_after, 0), fixed(self.due_before, u64::MAX));
        let limits = match self.held {
            true => Some(client.store().limit_scopes(until).await?),
            false => None,
        };
        if self.held {
            due.1 = due.1.min(UnixMs(now.0 + 1));
        }
        Ok(Conditions {
            state,
            due,
            limits,
            filter: self,
        })
    }
}

impl Conditions {
    /// Narrows a request to the times that fit, if the jobs are sorted by that time; at the
    /// beginning of a kind, it also skips the jobs before.
    pub(super) fn narrow(&self, sought: Sought) -> Sought {
        let (first, end) = self.due;
        if !self.is_sorted_by_due() {
            return sought;
        }
        let skip = || -> Position { (first.to_string(), String::new()) };
        Sought {
            after: sought.after.or_else(|| (first.0 > 0).then(skip)),
            until: UnixMs(end.0.saturating_sub(1)).min(sought.until),
            ..sought
        }
    }

    /// Whether records are read in order to find the jobs that fit, so that many may be read for
    /// few.
    pub(super) fn is_search(&self) -> bool {
        let has_times = self.filter.due_after.is_some() || self.filter.due_before.is_some();
        !self.fit_all() || self.filter.is_survey || (has_times && !self.is_sorted_by_due())
    }

    /// Whether no condition is on the record of a job.
    pub(super) fn fit_all(&self) -> bool {
        let Filter {
            attempts_over,
            error,
            reason,
            recurring,
            ..
        } = &self.filter;
        attempts_over.is_none() && error.is_none() && reason.is_none() && !recurring
    }

    /// Whether jobs of this kind can fit.
    pub(super) fn fits_kind(&self, kind: &Kind) -> bool {
        let limits = self.limits.as_ref();
        limits.is_none_or(|limits| limits.iter().any(|scope| scope.covers(kind)))
    }

    /// Whether no due time fits.
    pub(super) fn is_empty(&self) -> bool {
        self.due.0 >= self.due.1
    }

    /// Whether a job fits.
    pub(super) fn fit(&self, view: &JobView) -> bool {
        if self.state == JobState::Retrying && view.state() != self.state {
            return false;
        }
        let Filter {
            attempts_over,
            error,
            reason,
            recurring,
            ..
        } = &self.filter;
        let last = view.last_error();
        let due = UnixMs::from_system(view.due()).unwrap_or_default();
        (self.due.0..self.due.1).contains(&due)
            && (!recurring || view.record.header.recur().is_some())
            && attempts_over.is_none_or(|limit| view.attempts() > limit)
            && error
                .as_ref()
                .is_none_or(|part| last.is_some_and(|it| it.to_lowercase().contains(part)))
            && reason
                .as_ref()
                .is_none_or(|folded| fold_reason(last.unwrap_or_default()) == *folded)
    }

    /// Whether Redis keeps the jobs in the order of the time that a filter compares.
    fn is_sorted_by_due(&self) -> bool {
        !matches!(self.state, JobState::Running | JobState::Lapsed)
    }
}
