//! Times and durations as people write them.

use std::time::Duration;

use jiff::civil::{self, Weekday};
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, ToSpan};

use super::stop::Stop;
use keyfall_daemon::duration;
use keyfall_daemon::shapes::{Span, Time};

const GRAMMAR: &str = "write RFC 3339, 2026-12-24T18:00:00+01:00, or a day and a time of day: \
                       `today 18:00`, `tomorrow 9:00`, `monday 9:00`";

/// When a job is due.
#[derive(clap::Args, Debug, Clone)]
pub(crate) struct When {
    /// Due this long from now: 90s, 15m, 2h30m, 3d
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, conflicts_with = "at")]
    after: Option<Duration>,

    /// Due at this time: 2026-12-24T18:00:00+01:00, `tomorrow 9:00`, `monday 9:00`
    #[arg(long, value_name = "TIME")]
    at: Option<String>,

    /// The zone of `tomorrow 9:00`, such as Europe/Berlin; by default the zone of this system
    #[arg(long, requires = "at", value_parser = zone)]
    zone: Option<TimeZone>,
}

impl When {
    /// # Errors
    /// If the text is not a time; the exit code is 2.
    pub(crate) fn at(&self) -> Result<Option<Time>, Stop> {
        let Some(text) = &self.at else {
            return Ok(None);
        };
        let zone = self.zone.clone().unwrap_or_else(TimeZone::system);
        let time = time(text, &zone, Timestamp::now());
        let time = time.map_err(|fault| Stop::wrong(format!("`--at {text}`: {fault}")))?;
        Ok(Some(Time(time.into())))
    }

    pub(crate) fn after(&self) -> Option<Span> {
        self.after.map(Span)
    }

    /// Whether neither was given.
    pub(crate) fn is_open(&self) -> bool {
        self.after.is_none() && self.at.is_none()
    }
}

/// A zone by its name in the IANA database.
pub(crate) fn zone(name: &str) -> Result<TimeZone, String> {
    TimeZone::get(name)
        .map_err(|_| "no such zone is known: write one as Europe/Berlin or UTC".to_owned())
}

/// RFC 3339; or `today`, `tomorrow` or a weekday, and a time of day in this zone.
///
/// A weekday is the next one: today, if its time is still to come. A time of day that the clock
/// skips in spring becomes a time as much later as the clock skips. A time that the clock shows
/// twice in autumn means the first of the two.
pub(crate) fn time(text: &str, zone: &TimeZone, now: Timestamp) -> Result<Timestamp, String> {
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(time);
    }
    let words: Vec<&str> = text.split_whitespace().collect();
    let [day, clock] = words[..] else {
        return Err(GRAMMAR.to_owned());
    };
    let clock = time_of_day(clock)
        .ok_or_else(|| format!("{clock} is not a time of day: write it as 9:00 or 18:30:15"))?;
    let today = now.to_zoned(zone.clone()).date();
    let on = |days: i64| {
        let day = today.checked_add(days.days());
        let time = day.and_then(|day| day.to_datetime(clock).to_zoned(zone.clone()));
        let time = time.map_err(|_| "the calendar does not reach that far".to_owned());
        time.map(|time| time.timestamp())
    };
    match day.to_lowercase().as_str() {
        "today" => match on(0)? {
            time if time <= now => Err(format!("that time is past: write `tomorrow {clock:.0}`")),
            time => Ok(time),
        },
        "tomorrow" => on(1),
        day => {
            let weekday = weekday(day).ok_or(GRAMMAR)?;
            let ahead = i64::from(today.weekday().until(weekday));
            match on(ahead)? {
                time if time <= now => on(ahead + 7),
                time => Ok(time),
            }
        }
    }
}

/// `9:00`, `18:30`, `18:30:15`.
fn time_of_day(text: &str) -> Option<civil::Time> {
    let parts: Vec<&str> = text.split(':').collect();
    let number = |part: &str, digits: &[usize]| {
        let is_number = part.bytes().all(|byte| byte.is_ascii_digit());
        (is_number && digits.contains(&part.len())).then(|| part.parse::<i8>().ok())?
    };
    let (hour, minute, second) = match parts[..] {
        [hour, minute] => (hour, minute, "00"),
        [hour, minute, second] => (hour, minute, second),
        _ => return None,
    };
    let (minute, second) = (number(minute, &[2])?, number(second, &[2])?);
    // A leap second cannot be a due time.
    civil::Time::new(number(hour, &[1, 2])?, minute, second, 0).ok()
}

/// In full or by its first three letters, in lower case.
fn weekday(text: &str) -> Option<Weekday> {
    let days = [
        ("monday", Weekday::Monday),
        ("tuesday", Weekday::Tuesday),
        ("wednesday", Weekday::Wednesday),
        ("thursday", Weekday::Thursday),
        ("friday", Weekday::Friday),
        ("saturday", Weekday::Saturday),
        ("sunday", Weekday::Sunday),
    ];
    let named = |name: &str| text == name || text == &name[..3];
    days.into_iter()
        .find(|(name, _)| named(name))
        .map(|(_, day)| day)
}

/// A time as people read it: `2026-12-24T18:00:00Z, in 14m 59s`.
pub(crate) fn shown(time: Time) -> String {
    // Times beyond the calendar become its last instant.
    let time = Timestamp::try_from(time.0).unwrap_or(Timestamp::MAX);
    format!("{time:.0}, {}", distance(time, Timestamp::now()))
}

/// A time as logs have it, in a zone: `2026-12-24 18:00:00.002`.
pub(crate) fn to_the_ms(time: Time, zone: &TimeZone) -> String {
    let time = Timestamp::try_from(time.0).unwrap_or(Timestamp::MAX);
    let time = time.to_zoned(zone.clone()).datetime();
    format!("{} {:.3}", time.date(), time.time())
}

fn distance(time: Timestamp, now: Timestamp) -> String {
    let ahead = SignedDuration::from_secs(time.duration_since(now).as_secs());
    if ahead.is_zero() {
        return "now".to_owned();
    }
    let days = ahead.as_hours() / 24;
    let span = if days == 0 {
        format!("{:#}", ahead.abs())
    } else {
        format!("{}d", days.abs())
    };
    if ahead.is_positive() {
        format!("in {span}")
    } else {
        format!("{span} ago")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn berlin() -> TimeZone {
        TimeZone::get("Europe/Berlin").unwrap()
    }

    /// A Thursday, 18:30 in Berlin.
    const NOW: &str = "2026-03-26T17:30:00Z";

    fn at(text: &str) -> Result<String, String> {
        time(text, &berlin(), NOW.parse().unwrap()).map(|time| time.to_string())
    }

    #[test]
    fn rfc_3339_says_its_offset_itself() {
        assert_eq!(
            at("2026-12-24T18:00:00+01:00").unwrap(),
            "2026-12-24T17:00:00Z"
        );
        assert_eq!(
            at("2020-01-01T00:00:00.5Z").unwrap(),
            "2020-01-01T00:00:00.5Z"
        );
    }

    #[test]
    fn days_are_counted_in_the_zone() {
        assert_eq!(at("today 18:31").unwrap(), "2026-03-26T17:31:00Z");
        assert_eq!(at("Tomorrow  9:00").unwrap(), "2026-03-27T08:00:00Z");
        assert_eq!(at("tomorrow 09:00:05").unwrap(), "2026-03-27T08:00:05Z");
        // In New York it is still the day before.
        let zone = TimeZone::get("America/New_York").unwrap();
        let late = "2026-03-27T02:00:00Z".parse().unwrap();
        let time = time("today 23:00", &zone, late).unwrap();
        assert_eq!(time.to_string(), "2026-03-27T03:00:00Z");
    }

    #[test]
    fn a_weekday_is_the_next_one() {
        assert_eq!(at("thursday 18:31").unwrap(), "2026-03-26T17:31:00Z");
        assert_eq!(
            at("thu 18:30").unwrap(),
            "2026-04-02T16:30:00Z",
            "it is that by now"
        );
        assert_eq!(at("fri 8:00").unwrap(), "2026-03-27T07:00:00Z");
        assert_eq!(at("wed 8:00").unwrap(), "2026-04-01T06:00:00Z");
    }

    #[test]
    fn the_clock_changes_in_spring_and_autumn() {
        assert_eq!(
            at("sunday 9:00").unwrap(),
            "2026-03-29T07:00:00Z",
            "summer time"
        );
        assert_eq!(
            at("sunday 2:30").unwrap(),
            "2026-03-29T01:30:00Z",
            "skipped: 3:30"
        );
        let autumn = "2026-10-24T12:00:00Z".parse().unwrap();
        let twice = time("sunday 2:30", &berlin(), autumn).unwrap();
        assert_eq!(twice.to_string(), "2026-10-25T00:30:00Z", "the first");
    }

    #[test]
    fn an_invalid_time_is_refused_with_the_valid_forms() {
        for (text, hint) in [
            ("", "RFC 3339"),
            ("9:00", "RFC 3339"),
            ("someday 9:00", "RFC 3339"),
            ("tomorrow 9", "9 is not a time of day"),
            ("tomorrow 9:0", "9:0 is not a time of day"),
            ("tomorrow 24:00", "24:00 is not a time of day"),
            ("tomorrow +9:00", "+9:00 is not a time of day"),
            ("today 18:30", "`tomorrow 18:30:00`"),
            ("2026-12-24T18:00:00", "RFC 3339"),
        ] {
            let fault = at(text).unwrap_err();
            assert!(fault.contains(hint), "{text}: {fault}");
        }
    }

    #[test]
    fn distances_are_rounded_for_people() {
        let now: Timestamp = NOW.parse().unwrap();
        let far = |seconds| distance(now + SignedDuration::from_secs(seconds), now);
        assert_eq!(far(0), "now");
        assert_eq!(far(899), "in 14m 59s");
        assert_eq!(far(-3600), "1h ago");
        assert_eq!(far(3 * 86_400 + 5), "in 3d");
        assert_eq!(far(-40 * 86_400), "40d ago");
    }
}
