//! Times relative to a date: `-3d 09:00`, `-1h`, `+1mo 09:00`.

use std::fmt;
use std::str::FromStr;

use jiff::civil::Time;
use jiff::fmt::friendly::{Designator, Spacing, SpanPrinter};
use jiff::{SignedDuration, Span, SpanRelativeTo, Timestamp};

use super::interval::{instant_of, is_calendar};
use super::{Gap, Zone, invalid};
use crate::durations::shown;
use crate::error::{Error, Result};
use crate::settings::MAX_DELAY;

/// A time relative to the anchor of a series.
///
/// | offset | time |
/// |---|---|
/// | `-1h`, `+90m`, `-1h30m` | so much time before or after the anchor |
/// | `-3d 09:00`, `+2w 09:00`, `+1mo 09:00`, `-1y 09:00` | so many days, weeks, months or years before or after the date of the anchor, at this time on the wall of its zone |
/// | `-3d` | the same, at the time on the wall of the anchor |
///
/// From the 31st, `+1mo` leads to the last day of a shorter month. A time that the zone skips is the
/// end of the gap, and of two equal times the first counts. The limit is 10 years.
#[derive(Debug, Clone)]
pub struct Offset {
    is_before: bool,
    /// How far, without the sign.
    span: Span,
    /// The time on the wall, for an offset of days and more.
    clock: Option<Time>,
}

impl Offset {
    /// Sign and amount in one word, `-3d`: the end of the id of its member unless that has a name.
    pub(crate) fn name(&self) -> String {
        let sign = if self.is_before { '-' } else { '+' };
        let printer = SpanPrinter::new()
            .designator(Designator::Compact)
            .spacing(Spacing::None);
        let amount = match self.span.is_zero() {
            true => "0d".to_owned(),
            false => printer.span_to_string(&self.span),
        };
        format!("{sign}{amount}")
    }

    /// The time that it names; `None` if no calendar has it.
    pub(super) fn from(&self, anchor: Timestamp, zone: &Zone) -> Option<Timestamp> {
        let span = if self.is_before {
            -self.span
        } else {
            self.span
        };
        if !self.is_calendar() {
            return anchor.checked_add(span).ok();
        }
        let wall = anchor.to_zoned(zone.zone.clone()).datetime();
        let date = wall.date().checked_add(span).ok()?;
        let clock = self.clock.unwrap_or(wall.time());
        instant_of(date.to_datetime(clock), &zone.zone, Gap::Run)
    }

    /// Whether it counts days and not hours.
    fn is_calendar(&self) -> bool {
        self.clock.is_some() || self.span.is_zero() || is_calendar(&self.span)
    }
}

impl FromStr for Offset {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = |rule: &str| {
            invalid(format!(
                "`at` has {:?}, which is no offset: {rule}, such as -3d 09:00, -1h or +2w 10:00",
                shown(text)
            ))
        };
        let trimmed = text.trim();
        let is_before = trimmed.starts_with('-');
        let Some(rest) = trimmed.strip_prefix(['-', '+']) else {
            return Err(wrong(
                "begin with `-` for a time before the anchor, or with `+` for a time after it",
            ));
        };
        let (amount, clock) = match rest.trim().rsplit_once(' ') {
            Some((amount, clock)) if clock.contains(':') => (amount, Some(clock)),
            _ => (rest, None),
        };
        let span: Span = amount
            .trim()
            .parse()
            .map_err(|error| wrong("write a number and its unit behind the sign").because(error))?;
        let clock: Option<Time> = clock
            .map(str::parse)
            .transpose()
            .map_err(|error| wrong("write the time of day as hours and minutes").because(error))?;
        let has_time = span.get_hours() != 0
            || span.get_minutes() != 0
            || span.get_seconds() != 0
            || span.get_milliseconds() != 0;
        let is_fine = span.get_microseconds() != 0 || span.get_nanoseconds() != 0;
        if span.is_negative() || is_fine {
            return Err(wrong("write one sign and whole milliseconds"));
        }
        if has_time && is_calendar(&span) {
            return Err(wrong("write either days and more, or hours and less"));
        }
        if has_time && clock.is_some() {
            return Err(wrong(
                "write a time of day only behind days, weeks, months or years",
            ));
        }
        let length = span.to_duration(SpanRelativeTo::days_are_24_hours());
        // A month and a year have no length by themselves.
        let months = i64::from(span.get_years()) * 12 + i64::from(span.get_months());
        let is_far = months > 120
            || length.is_ok_and(|length| {
                SignedDuration::try_from(MAX_DELAY).is_ok_and(|most| length > most)
            });
        if is_far {
            return Err(wrong("stay within 10 years"));
        }
        Ok(Offset {
            is_before,
            span,
            clock,
        })
    }
}

impl fmt::Display for Offset {
    /// The offset as it is written: `-3d 09:00`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())?;
        match self.clock {
            Some(clock) if clock.second() == 0 => write!(f, " {}", clock.strftime("%H:%M")),
            Some(clock) => write!(f, " {}", clock.strftime("%H:%M:%S")),
            None => Ok(()),
        }
    }
}

/// Whether the two name the same times.
impl PartialEq for Offset {
    fn eq(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}
