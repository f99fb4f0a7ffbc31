//! Intervals: `every 90m` counts the time that passes, `every 2 weeks` the days of the calendar.

use std::time::Duration;

use jiff::civil::DateTime;
use jiff::fmt::friendly::{Designator, Spacing, SpanPrinter};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{SignedDuration, Span, SpanRelativeTo, Timestamp, Unit};

use super::{Gap, invalid};
use crate::durations::shown;
use crate::error::Result;
use crate::settings::MAX_DELAY;

/// An interval.
#[derive(Debug, Clone)]
pub(super) enum Interval {
    /// So much time, in whole milliseconds.
    Exact(Duration),
    /// So many days, weeks, months or years, at the same time on the wall.
    Calendar(Span),
}

impl Interval {
    /// An interval of this much time.
    pub(super) fn exact(length: Duration) -> Result<Self> {
        if length < Duration::from_secs(1) || length > MAX_DELAY {
            return Err(invalid(format!(
                "an interval of {length:?} must be from 1 s to 10 years: is the unit right?"
            )));
        }
        if !length.subsec_nanos().is_multiple_of(1_000_000) {
            return Err(invalid(format!(
                "an interval of {length:?} must be of whole milliseconds: round it"
            )));
        }
        Ok(Interval::Exact(length))
    }

    /// Reads an interval: `90m`, or `2 weeks`.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let not_one = || {
            invalid(format!(
                "{:?} is not an interval: write a number and its unit, such as 90m, 2h or 2 weeks",
                shown(text)
            ))
        };
        let span: Span = text
            .trim()
            .parse()
            .map_err(|error| not_one().because(error))?;
        if span.is_negative() || span.is_zero() {
            return Err(not_one());
        }
        if is_calendar(&span) {
            let largest = span.to_duration(SpanRelativeTo::days_are_24_hours());
            let has_time = span.get_hours() != 0
                || span.get_minutes() != 0
                || span.get_seconds() != 0
                || span.get_milliseconds() != 0;
            if has_time
                || largest.is_ok_and(|length| length > SignedDuration::from_hours(24 * 3653))
            {
                return Err(invalid(format!(
                    "{:?} is not an interval of the calendar: write whole days, weeks, months or \
                     years, up to 10 years",
                    shown(text)
                )));
            }
            return Ok(Interval::Calendar(span));
        }
        let length = span.to_duration(SpanRelativeTo::days_are_24_hours());
        let length = length.map_err(|error| not_one().because(error))?;
        Interval::exact(Duration::try_from(length).map_err(|_| not_one())?)
    }

    /// Whether it counts days and not hours.
    pub(super) fn is_calendar(&self) -> bool {
        matches!(self, Interval::Calendar(_))
    }

    /// The text that [`parse`](Self::parse) reads.
    pub(super) fn text(&self) -> String {
        match self {
            Interval::Exact(length) => crate::durations::written(length),
            Interval::Calendar(span) => SpanPrinter::new()
                .designator(Designator::Verbose)
                .spacing(Spacing::BetweenUnitsAndDesignators)
                .span_to_string(span),
        }
    }

    /// The first time after this instant, counted from `anchor`, which is the first of all.
    pub(super) fn next(
        &self,
        anchor: Timestamp,
        after: Timestamp,
        zone: &TimeZone,
        gap: Gap,
    ) -> Option<Timestamp> {
        if after < anchor {
            return Some(anchor);
        }
        match self {
            Interval::Exact(length) => {
                let length = i64::try_from(length.as_millis()).ok()?;
                let passed = after.as_millisecond() - anchor.as_millisecond();
                let ahead = length - passed.rem_euclid(length);
                Timestamp::from_millisecond(after.as_millisecond().checked_add(ahead)?).ok()
            }
            Interval::Calendar(span) => {
                let first = anchor.to_zoned(zone.clone()).datetime();
                let hours = span.total((Unit::Hour, first)).ok()?;
                // The first month may be February, with 28 days of 30.4 in the mean.
                let mean = match span.get_months() != 0 || span.get_years() != 0 {
                    true => hours * 1.1,
                    false => hours,
                };
                // The offset of the zone may have changed, and each month has its own length.
                let passed = after.duration_since(anchor).as_secs() / 3600 - 100;
                // So the estimate is low: by 250 months in 200 years, by five days at any time.
                let estimate = (passed as f64 / mean).floor().max(0.0) as i64;
                (estimate..)
                    .take(1_000)
                    .map_while(|count| first.checked_add(span.checked_mul(count).ok()?).ok())
                    .filter_map(|wall| instant_of(wall, zone, gap))
                    .find(|instant| *instant > after)
            }
        }
    }
}

/// Whether a span has days or more.
pub(super) fn is_calendar(span: &Span) -> bool {
    span.get_days() != 0 || span.get_weeks() != 0 || span.get_months() != 0 || span.get_years() != 0
}

/// The instant of a time on the wall: the first of two, and the end of the gap for one that the
/// zone skips.
pub(super) fn instant_of(wall: DateTime, zone: &TimeZone, gap: Gap) -> Option<Timestamp> {
    match zone.to_ambiguous_timestamp(wall).offset() {
        AmbiguousOffset::Unambiguous { offset } => offset.to_timestamp(wall).ok(),
        AmbiguousOffset::Fold { before, .. } => before.to_timestamp(wall).ok(),
        AmbiguousOffset::Gap { .. } if gap == Gap::Skip => None,
        AmbiguousOffset::Gap { before, .. } => {
            let behind = before.to_timestamp(wall).ok()?;
            let behind = behind.checked_add(SignedDuration::from_nanos(1)).ok()?;
            zone.preceding(behind)
                .next()
                .map(|change| change.timestamp())
        }
    }
}
