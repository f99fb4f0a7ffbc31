//! Cron expressions in a time zone.
//!
//! croner finds the matches on a clock without changes; the changes of the zone are resolved here.
//! A zone is a series of spans with one offset each. In a span, wall clock and instants run side by
//! side, so the search goes from span to span. At a change the clock skips wall times, or repeats
//! them.

use croner::Cron;
use croner::parser::CronParser;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};

use super::{Gap, Overlapping, invalid};
use crate::durations::shown;
use crate::error::Result;

/// The longest expression: a list of each minute and each hour fits.
const LONGEST: usize = 512;

/// How far a search looks ahead. The longest wait of a rule without a year is from 29 February of
/// 2096 to that of 2104, on one weekday 40 years.
const YEARS: i16 = 100;

/// A cron expression: `minute hour day month weekday`, with the second before them or the year
/// behind them, or a name such as `@daily`.
#[derive(Debug, Clone)]
pub(super) struct Expression {
    /// As it was given.
    pub(super) text: String,
    cron: Box<Cron>,
    /// Whether its hours are `*` or a step of `*`: it follows the time that passes, not the clock
    /// on the wall, so no change of the clock makes a pause or a repetition.
    is_periodic: bool,
}

impl Expression {
    /// Reads an expression.
    pub(super) fn parse(text: &str) -> Result<Self> {
        if text.len() > LONGEST {
            return Err(invalid(format!(
                "the cron expression has {} bytes, and the limit is {LONGEST}: write ranges and \
                 steps, such as 0-30/5",
                text.len()
            )));
        }
        let parsed = CronParser::new().parse(text);
        let cron = parsed.map_err(|error| {
            invalid(format!(
                "{:?} is not a cron expression ({error}): write `minute hour day month weekday`, \
                 such as \"30 9 * * MON-FRI\", optionally with the second in front, or @hourly, \
                 @daily, @weekly, @monthly or @yearly",
                shown(text)
            ))
        })?;
        let fields: Vec<&str> = cron.pattern.as_str().split_whitespace().collect();
        let hours = fields.get(if fields.len() == 5 { 1 } else { 2 });
        let is_periodic = hours.is_some_and(|hours| hours.starts_with('*'));
        Ok(Expression {
            text: text.trim().to_owned(),
            cron: Box::new(cron),
            is_periodic,
        })
    }

    /// The expression in words, such as "At 09:30, on Monday".
    pub(super) fn words(&self) -> String {
        let words = self.cron.describe();
        let words = words.trim_end_matches('.');
        // croner 4.0.3 says the same of `L` and `LW`.
        match self.text.to_ascii_uppercase().contains("LW") {
            true => words.replace("last day of the month", "last weekday of the month"),
            false => words.to_owned(),
        }
    }

    /// The first time after this instant that the expression names.
    pub(super) fn next(
        &self,
        after: Timestamp,
        zone: &TimeZone,
        gap: Gap,
        overlap: Overlapping,
    ) -> Option<Timestamp> {
        let skips = self.is_periodic || gap == Gap::Skip;
        let repeats = self.is_periodic || overlap == Overlapping::Both;
        let mut at = after;
        let mut offset = zone.to_offset(at);
        let (mut start, mut inclusive) = (offset.to_datetime(at), false);
        if !repeats {
            // The span before may have had these wall times already.
            let moment_later = at.checked_add(SignedDuration::from_nanos(1)).ok()?;
            if let Some(change) = zone.preceding(moment_later).next() {
                let before = zone.to_offset(a_moment_before(change.timestamp())?);
                let passed = before.to_datetime(change.timestamp());
                if passed > start {
                    (start, inclusive) = (passed, true);
                }
            }
        }
        let horizon = start.year().saturating_add(YEARS);
        let mut found = self.find(start, inclusive)?;
        loop {
            if found.year() > horizon {
                return None;
            }
            let instant = offset.to_timestamp(found).ok()?;
            let Some(change) = zone.following(at).next() else {
                return Some(instant);
            };
            if instant < change.timestamp() {
                return Some(instant);
            }
            at = change.timestamp();
            let ended = offset.to_datetime(at);
            offset = change.offset();
            let began = offset.to_datetime(at);
            if found < began && !skips {
                return Some(at);
            }
            let from = if repeats { began } else { began.max(ended) };
            if from > found || from < ended {
                found = self.find(from, true)?;
            }
        }
    }

    /// The first match on a clock without changes.
    fn find(&self, from: DateTime, inclusive: bool) -> Option<DateTime> {
        let from = from.to_zoned(TimeZone::UTC).ok()?;
        let found = self.cron.find_next_occurrence(&from, inclusive).ok()?;
        Some(found.datetime())
    }
}

/// An instant in the span before a change of the zone.
pub(super) fn a_moment_before(change: Timestamp) -> Option<Timestamp> {
    change.checked_sub(SignedDuration::from_nanos(1)).ok()
}
