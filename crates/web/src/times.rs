//! Times and durations, in words and in the zone of the reader.

use std::fmt;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::words::Words;

/// Seconds of each unit, and the name of the unit among the words.
const UNITS: [(u64, &str); 4] = [
    (86_400, "time.days"),
    (3_600, "time.hours"),
    (60, "time.minutes"),
    (1, "time.seconds"),
];

/// The time as a machine reads it.
pub(crate) fn machine(time: SystemTime) -> String {
    format!("{:.3}", stamp(time))
}

/// The time of the day in a zone, with the day unless it is today.
pub(crate) fn absolute(time: SystemTime, now: SystemTime, zone: &TimeZone) -> String {
    let zoned = |time| stamp(time).to_zoned(zone.clone()).datetime();
    let (time, now) = (zoned(time), zoned(now));
    if time.date() == now.date() {
        format!("{:.3}", time.time())
    } else {
        format!("{} {:.0}", time.date(), time.time().round_down())
    }
}

/// The hour and minute in a zone.
pub(crate) fn minute(time: SystemTime, zone: &TimeZone) -> String {
    let zoned = stamp(time).to_zoned(zone.clone());
    zoned.strftime("%H:%M").to_string()
}

/// How long it is from now until then, or since then: `in 5 min`, `3 h ago`.
pub(crate) fn relative(time: SystemTime, now: SystemTime, words: &Words) -> String {
    match time.duration_since(now) {
        Ok(span) if span < Duration::from_secs(1) => words.t("time.now").to_owned(),
        Ok(span) => words.fill("time.in", &[&self::span(span, words)]),
        Err(error) if error.duration() < Duration::from_secs(1) => words.t("time.now").to_owned(),
        Err(error) => words.fill("time.ago", &[&self::span(error.duration(), words)]),
    }
}

/// A duration by its largest unit, and the next one where that says more: `2 d`, `1 h 5 min`.
pub(crate) fn span(span: Duration, words: &Words) -> String {
    let seconds = span.as_secs();
    if seconds == 0 {
        return words.fill("time.millis", &[&span.as_millis()]);
    }
    let at = UNITS.iter().position(|(size, _)| seconds >= *size);
    let at = at.expect("a second is the smallest unit");
    let (size, name) = UNITS[at];
    let large = words.fill(name, &[&(seconds / size)]);
    let small = UNITS.get(at + 1).map(|(size, name)| {
        let rest = seconds % UNITS[at].0 / size;
        (rest, words.fill(name, &[&rest]))
    });
    match small {
        Some((1.., small)) if seconds / size < 10 => format!("{large} {small}"),
        _ => large,
    }
}

/// A time beyond the years of the calendar is shown as the last instant of the calendar.
fn stamp(time: SystemTime) -> Timestamp {
    Timestamp::try_from(time).unwrap_or(Timestamp::MAX)
}

trait RoundDown {
    fn round_down(self) -> Self;
}

impl RoundDown for jiff::civil::Time {
    fn round_down(self) -> Self {
        jiff::civil::time(self.hour(), self.minute(), self.second(), 0)
    }
}

/// A time on the page: an element that says the time of the day, and what that is from now.
pub(crate) struct Moment {
    pub(crate) machine: String,
    pub(crate) absolute: String,
    pub(crate) relative: String,
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // All three are digits, points and words of the page.
        write!(
            f,
            "<time datetime=\"{}\">{} <small>{}</small></time>",
            self.machine, self.absolute, self.relative
        )
    }
}

impl askama::filters::HtmlSafe for Moment {}
