//! Quiet hours: times at which no job is to be due.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use jiff::civil::{Date, DateTime, Time, Weekday};
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, Serializer};

use super::interval::instant_of;
use super::occurrence::{instant, unix};
use super::{Gap, Zone, invalid};
use crate::durations::shown;
use crate::error::{Error, Result};
use crate::phrase::Phrase;
use crate::time::UnixMs;

/// The reason of a member whose time had passed when it was planned.
pub(super) const PASSED: &str = "its time had passed";

/// The most holidays.
const HOLIDAYS: usize = 366;

/// More steps than quiet spans follow each other without a break.
const STEPS: usize = 4 * HOLIDAYS;

/// The days of the week as they are written.
const DAYS: [(Weekday, &str); 7] = [
    (Weekday::Monday, "MON"),
    (Weekday::Tuesday, "TUE"),
    (Weekday::Wednesday, "WED"),
    (Weekday::Thursday, "THU"),
    (Weekday::Friday, "FRI"),
    (Weekday::Saturday, "SAT"),
    (Weekday::Sunday, "SUN"),
];

/// Times at which no job is to be due: hours of each day, and whole days. A due time within them
/// becomes an earlier or a later one, or the job is left out. This is settled when the due time is
/// computed; a retry, and a job that is moved or fired by hand, may run in quiet hours. Those of a
/// [route](crate::Handler::quiet) hold for all its runs instead.
///
/// # As text
///
/// The hours alone, `"22:00-08:00"`, or a table:
///
/// ```
/// use keyfall::QuietHours;
///
/// let quiet: QuietHours = serde_json::from_str(
///     r#"{"hours": "22:00-08:00", "days": ["SUN"], "holidays": ["2026-12-25"],
///         "zone": "Europe/Berlin", "instead": "earlier"}"#,
/// )?;
/// # drop(quiet);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct QuietHours {
    hours: Option<(Time, Time)>,
    days: Vec<Weekday>,
    holidays: BTreeSet<Date>,
    zone: Option<Zone>,
    instead: Instead,
}

/// What becomes of a due time within quiet hours; see [`QuietHours::instead`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Instead {
    /// The job is due when the quiet hours end. The default.
    #[default]
    Later,
    /// The job is due when the quiet hours begin; if that has passed, when they end.
    Earlier,
    /// The job is left out.
    Skip,
}

/// A due time that quiet hours have moved, in the header of a job.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Shift {
    /// The time that was asked for, Unix ms.
    pub(crate) from: u64,
    /// The due time, Unix ms.
    pub(crate) to: u64,
    /// The reason.
    pub(crate) why: String,
}

/// A due time after quiet hours were considered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Quieted {
    /// It is not within quiet hours.
    Same,
    Moved(Shift),
    /// The job is left out for this reason.
    Out(String),
}

/// The table form.
#[derive(Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hours: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    days: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    holidays: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    zone: Option<String>,
    #[serde(default, skip_serializing_if = "is_later")]
    instead: Instead,
}

impl QuietHours {
    /// Hours of each day, such as `22:00-08:00`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRule`](crate::ErrorKind::InvalidRule) if they do not parse.
    pub fn hours(hours: &str) -> Result<Self> {
        Table {
            hours: Some(hours.to_owned()),
            ..Table::default()
        }
        .read()
    }

    /// Whole days of the week, such as `["SAT", "SUN"]`, and no hours of the other days.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRule`](crate::ErrorKind::InvalidRule) if one is no day, or no day is
    /// left.
    pub fn on(days: &[&str]) -> Result<Self> {
        Table {
            days: days.iter().map(|day| (*day).to_owned()).collect(),
            ..Table::default()
        }
        .read()
    }

    /// Whole days of the week beside the hours. Defaults to none.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRule`](crate::ErrorKind::InvalidRule) if one is no day, or no day is
    /// left.
    pub fn days(self, days: &[&str]) -> Result<Self> {
        let mut table = Table::of(&self);
        table.days = days.iter().map(|day| (*day).to_owned()).collect();
        table.read()
    }

    /// Whole days of the calendar, such as `2026-12-25`; 366 at the most. Defaults to none.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRule`](crate::ErrorKind::InvalidRule) if one is no date, or there are too
    /// many.
    pub fn holidays(self, days: &[&str]) -> Result<Self> {
        let mut table = Table::of(&self);
        table.holidays = days.iter().map(|day| (*day).to_owned()).collect();
        table.read()
    }

    /// The zone of the recipient, by its name in the IANA database. Defaults to the zone of the
    /// series or of the rule, and for a single job to UTC.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRule`](crate::ErrorKind::InvalidRule) if this machine does not know the
    /// zone.
    pub fn zone(mut self, name: &str) -> Result<Self> {
        self.zone = Some(Zone::named(name)?);
        Ok(self)
    }

    /// What becomes of a due time within the quiet hours. Defaults to [`Instead::Later`].
    pub fn instead(mut self, instead: Instead) -> Self {
        self.instead = instead;
        self
    }

    /// The reason for which a due time was moved, or a member of a series left out, as a sentence. The
    /// record of a job has it as text.
    pub fn said(why: &str) -> Phrase {
        if why == PASSED {
            return Phrase::new("quiet.passed", "its time had passed", []);
        }
        if let Some(date) = why.strip_prefix("holiday ") {
            return Phrase::new("quiet.holiday", "holiday {}", [date.into()]);
        }
        if let Some(day) = why.strip_prefix("quiet day ") {
            return Phrase::new("quiet.day", "quiet day {}", [day.into()]);
        }
        match why.strip_prefix("quiet hours ") {
            Some(hours) => Phrase::new("quiet.hours", "quiet hours {}", [hours.into()]),
            None => why.into(),
        }
    }

    /// Whether due times within them are left out.
    pub(super) fn leaves_out(&self) -> bool {
        self.instead == Instead::Skip
    }

    /// Whether due times within them are to become earlier ones.
    #[cfg(feature = "worker")]
    pub(crate) fn asks_for_earlier(&self) -> bool {
        self.instead == Instead::Earlier
    }

    /// What becomes of a start now, for a route.
    #[cfg(feature = "worker")]
    pub(crate) fn at_start(&self, now: UnixMs) -> Quieted {
        self.settle(now, now, &Zone::utc())
    }

    /// What becomes of this due time. `zone` is the zone for want of another.
    pub(crate) fn settle(&self, due: UnixMs, now: UnixMs, zone: &Zone) -> Quieted {
        let zone = self.zone.as_ref().unwrap_or(zone);
        let Some(wall) = instant(due).map(|it| it.to_zoned(zone.zone.clone()).datetime()) else {
            return Quieted::Same;
        };
        if self.end_after(wall).is_none() {
            return Quieted::Same;
        }
        let why = self.reason(wall);
        let at = |wall: Option<DateTime>| unix(instant_of(wall?, &zone.zone, Gap::Run)?);
        let later = || {
            let end = repeated(wall, |wall| self.end_after(wall))?;
            let first = at(Some(end)).filter(|first| *first > due);
            // While the clock shows an hour once more, the first instant of the end has passed.
            first.or_else(|| unix(zone.zone.to_ambiguous_timestamp(end).later().ok()?))
        };
        let to = match self.instead {
            Instead::Skip => None,
            Instead::Later => later(),
            Instead::Earlier => {
                let earlier = at(repeated(wall, |wall| self.begin_before(wall)));
                earlier.filter(|earlier| *earlier >= now).or_else(later)
            }
        };
        match to {
            None => Quieted::Out(why),
            Some(to) if to == due => Quieted::Same,
            Some(to) => Quieted::Moved(Shift {
                from: due.0,
                to: to.0,
                why,
            }),
        }
    }

    /// Why a time on the wall is quiet.
    fn reason(&self, wall: DateTime) -> String {
        let date = wall.date();
        if self.holidays.contains(&date) {
            return format!("holiday {date}");
        }
        if self.days.contains(&date.weekday()) {
            return format!("quiet day {}", word(date.weekday()));
        }
        let hours = self.hours_text().unwrap_or_default();
        format!("quiet hours {hours}")
    }

    fn hours_text(&self) -> Option<String> {
        let (from, to) = self.hours?;
        Some(format!(
            "{}-{}",
            from.strftime("%H:%M"),
            to.strftime("%H:%M")
        ))
    }

    /// The quiet spans that begin on this day or the day before.
    fn spans(&self, date: Date) -> Vec<(DateTime, DateTime)> {
        let mut spans = Vec::new();
        for day in [date.yesterday(), Ok(date)].into_iter().flatten() {
            let Ok(next) = day.tomorrow() else { continue };
            let midnight = Time::midnight();
            if self.holidays.contains(&day) || self.days.contains(&day.weekday()) {
                spans.push((day.to_datetime(midnight), next.to_datetime(midnight)));
            }
            if let Some((from, to)) = self.hours {
                let last = if to <= from { next } else { day };
                spans.push((day.to_datetime(from), last.to_datetime(to)));
            }
        }
        spans
    }

    /// The end of the span that has this time; a span does not have its end.
    fn end_after(&self, wall: DateTime) -> Option<DateTime> {
        let spans = self.spans(wall.date()).into_iter();
        let here = spans.filter(|(begin, end)| *begin <= wall && wall < *end);
        here.map(|(_, end)| end).max()
    }

    /// The beginning of the span that has this time behind its beginning, or as its end.
    fn begin_before(&self, wall: DateTime) -> Option<DateTime> {
        let spans = self.spans(wall.date()).into_iter();
        let here = spans.filter(|(begin, end)| *begin < wall && wall <= *end);
        here.map(|(begin, _)| begin).min()
    }
}

/// The last of the times that follow each other. `None` if there is no end to them.
fn repeated(first: DateTime, next: impl Fn(DateTime) -> Option<DateTime>) -> Option<DateTime> {
    let mut wall = first;
    for _ in 0..STEPS {
        match next(wall) {
            Some(further) => wall = further,
            None => return Some(wall),
        }
    }
    None
}

fn word(day: Weekday) -> &'static str {
    let found = DAYS.iter().find(|(it, _)| *it == day);
    found.map_or("", |(_, word)| word)
}

impl Table {
    fn of(quiet: &QuietHours) -> Self {
        Table {
            hours: quiet.hours_text(),
            days: quiet.days.iter().map(|day| word(*day).to_owned()).collect(),
            holidays: quiet.holidays.iter().map(Date::to_string).collect(),
            zone: quiet.zone.as_ref().map(|zone| zone.name.clone()),
            instead: quiet.instead,
        }
    }

    fn read(self) -> Result<QuietHours> {
        let hours = self.hours.as_deref().map(span_of_hours).transpose()?;
        let mut days = Vec::new();
        for text in &self.days {
            let day = DAYS
                .iter()
                .find(|(_, word)| text.eq_ignore_ascii_case(word));
            let Some((day, _)) = day else {
                return Err(invalid(format!(
                    "`days` of the quiet hours has {:?}: write MON, TUE, WED, THU, FRI, SAT or SUN",
                    shown(text)
                )));
            };
            if !days.contains(day) {
                days.push(*day);
            }
        }
        let mut holidays = BTreeSet::new();
        for text in &self.holidays {
            let day: Date = text.trim().parse().map_err(|error| {
                invalid(format!(
                    "`holidays` has {:?}, which is no date: write it as 2026-12-25",
                    shown(text)
                ))
                .because(error)
            })?;
            holidays.insert(day);
        }
        if holidays.len() > HOLIDAYS {
            return Err(invalid(format!(
                "`holidays` has {} days, and the limit is {HOLIDAYS}: leave out those that have \
                 passed",
                holidays.len()
            )));
        }
        if days.len() == DAYS.len() {
            return Err(invalid(
                "`days` of the quiet hours has all days of the week: leave one out",
            ));
        }
        if hours.is_none() && days.is_empty() && holidays.is_empty() {
            return Err(invalid(
                "quiet hours have neither `hours` nor `days` nor `holidays`: write one of them, \
                 such as \"22:00-08:00\"",
            ));
        }
        Ok(QuietHours {
            hours,
            days,
            holidays,
            zone: self.zone.as_deref().map(Zone::named).transpose()?,
            instead: self.instead,
        })
    }
}

fn span_of_hours(text: &str) -> Result<(Time, Time)> {
    let ends = text.split_once('-');
    let ends = ends.and_then(|(from, to)| {
        let read = |text: &str| text.trim().parse::<Time>().ok();
        Some((read(from)?, read(to)?))
    });
    ends.filter(|(from, to)| from != to).ok_or_else(|| {
        invalid(format!(
            "`hours` of the quiet hours is {:?}: write two different times of day, such as \
             22:00-08:00",
            shown(text)
        ))
    })
}

// By reference: serde wants it so.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_later(instead: &Instead) -> bool {
    *instead == Instead::Later
}

impl FromStr for QuietHours {
    type Err = Error;

    /// Reads the hours alone, `22:00-08:00`.
    fn from_str(text: &str) -> Result<Self> {
        QuietHours::hours(text)
    }
}

/// Whether the two name the same times, in the same zone, and do the same with them.
impl PartialEq for QuietHours {
    fn eq(&self, other: &Self) -> bool {
        Table::of(self) == Table::of(other)
    }
}

impl Eq for QuietHours {}

impl Serialize for QuietHours {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Table::of(self).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for QuietHours {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Form;

        impl<'de> Visitor<'de> for Form {
            type Value = QuietHours;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "quiet hours: \"22:00-08:00\", or a table with `hours`, `days` or `holidays`",
                )
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<QuietHours, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<QuietHours, A::Error> {
                let table = Table::deserialize(MapAccessDeserializer::new(map))?;
                table.read().map_err(de::Error::custom)
            }
        }

        deserializer.deserialize_any(Form)
    }
}

impl fmt::Display for QuietHours {
    /// In words: `22:00-08:00, SUN, 2 holidays, in Europe/Berlin; later`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = Table::of(self);
        let mut parts: Vec<String> = table.hours.into_iter().chain(table.days).collect();
        match self.holidays.len() {
            0 => {}
            1 => parts.push("1 holiday".to_owned()),
            many => parts.push(format!("{many} holidays")),
        }
        if let Some(zone) = table.zone {
            parts.push(format!("in {zone}"));
        }
        let instead = match self.instead {
            Instead::Later => "later",
            Instead::Earlier => "earlier",
            Instead::Skip => "not at all",
        };
        write!(f, "{}; {instead}", parts.join(", "))
    }
}
