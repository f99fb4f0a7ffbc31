//! Rules as text and tables, and in words.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use jiff::civil::DateTime;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, Serializer};

use super::cron::Expression;
use super::interval::{Interval, instant_of};
use super::{Busy, Gap, Missed, Overlapping, QuietHours, Rule, Times, Zone, invalid};
use crate::durations::{duration, shown, written};
use crate::error::{Error, ErrorKind, Result};

/// The table form of a rule.
#[derive(Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Table {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cron: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    every: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    after_end: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    zone: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    from: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    until: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    runs: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    jitter: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    busy: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    gap: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    overlap: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    missed: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    template: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    quiet: Option<QuietHours>,
}

impl Table {
    /// The table of a rule, without the fields that have their defaults.
    pub(super) fn of(rule: &Rule) -> Self {
        let mut table = Table::default();
        match &rule.times {
            Times::Cron(expression) => table.cron = Some(expression.text.clone()),
            Times::Every(interval) => table.every = Some(interval.text()),
            Times::AfterEnd(pause) => table.after_end = Some(written(pause)),
        }
        table.zone = (rule.zone.name != "UTC").then(|| rule.zone.name.clone());
        table.from = rule.from.map(|time| time.to_string());
        table.until = rule.until.map(|time| time.to_string());
        table.runs = rule.runs;
        table.jitter = (!rule.jitter.is_zero()).then(|| written(&rule.jitter));
        table.busy = word(rule.busy, &BUSY);
        table.gap = word(rule.gap, &GAPS);
        table.overlap = word(rule.overlap, &OVERLAPS);
        table.missed = (rule.missed != Missed::One).then(|| rule.missed.to_string());
        table.template = rule.template;
        table.quiet.clone_from(&rule.quiet);
        table
    }

    /// The rule of a table, even if all of its times have passed.
    fn rule(mut self) -> Result<Rule> {
        let times = match (self.cron.take(), self.every.take(), self.after_end.take()) {
            (Some(text), None, None) => Times::Cron(Expression::parse(&text)?),
            (None, Some(text), None) => Times::Every(Interval::parse(&text)?),
            (None, None, Some(text)) => {
                let pause = duration(ErrorKind::InvalidRule, "`after_end`", &text)?;
                Rule::after_end(pause)?.times
            }
            _ => {
                return Err(invalid(
                    "a rule has exactly one of `cron`, `every` and `after_end`: keep one of them",
                ));
            }
        };
        let mut rule = Rule::new(times);
        if let Some(name) = &self.zone {
            rule.zone = Zone::named(name)?;
        }
        let point = |field, text: Option<String>| {
            let read = text.map(|text| point_in_time(field, &text, &rule.zone));
            read.transpose()
        };
        (rule.from, rule.until) = (point("from", self.from)?, point("until", self.until)?);
        if let Some(runs) = self.runs {
            rule = rule.runs(runs)?;
        }
        if let Some(text) = &self.jitter {
            rule = rule.jitter(duration(ErrorKind::InvalidRule, "`jitter`", text)?)?;
        }
        rule.busy = choice("busy", self.busy.as_deref(), &BUSY)?;
        rule.gap = choice("gap", self.gap.as_deref(), &GAPS)?;
        rule.overlap = choice("overlap", self.overlap.as_deref(), &OVERLAPS)?;
        if let Some(missed) = &self.missed {
            rule.missed = missed.parse()?;
        }
        rule.template = self.template;
        rule.quiet = self.quiet;
        Ok(rule)
    }
}

/// The words of each choice; the first is the default.
const BUSY: [(Busy, &str); 3] = [
    (Busy::Skip, "skip"),
    (Busy::QueueOne, "queue one"),
    (Busy::Replace, "replace"),
];
const GAPS: [(Gap, &str); 2] = [(Gap::Run, "run"), (Gap::Skip, "skip")];
const OVERLAPS: [(Overlapping, &str); 2] =
    [(Overlapping::First, "first"), (Overlapping::Both, "both")];

/// The word of a choice, unless it is the default.
fn word<T: PartialEq>(choice: T, words: &[(T, &str)]) -> Option<String> {
    let place = words.iter().position(|(it, _)| *it == choice);
    place
        .filter(|place| *place > 0)
        .map(|place| words[place].1.to_owned())
}

/// Reads a choice; `None` is the default.
fn choice<T: Copy>(field: &str, text: Option<&str>, words: &[(T, &str)]) -> Result<T> {
    let Some(text) = text else {
        return Ok(words[0].0);
    };
    let found = words.iter().find(|(_, word)| *word == text.trim());
    found.map(|(it, _)| *it).ok_or_else(|| {
        let words: Vec<String> = words.iter().map(|(_, word)| format!("{word:?}")).collect();
        invalid(format!(
            "`{field}` is {:?}: write {}",
            shown(text),
            words.join(" or ")
        ))
    })
}

/// Reads a time: with its offset, or on the wall of the zone.
pub(super) fn point_in_time(field: &str, text: &str, zone: &Zone) -> Result<Timestamp> {
    let text = text.trim();
    let wall = || text.parse::<DateTime>().ok();
    let on_wall = || instant_of(wall()?, &zone.zone, Gap::Run);
    let read = text.parse::<Timestamp>().ok().or_else(on_wall);
    // Due times are whole milliseconds.
    let rounded = read.and_then(|time| Timestamp::from_millisecond(time.as_millisecond()).ok());
    rounded.ok_or_else(|| {
        invalid(format!(
            "`{field}` is {:?}, which is no time: write \"2026-12-07 09:00\", which is on the wall \
             of the zone, or \"2026-12-07T08:00:00Z\"",
            shown(text)
        ))
    })
}

impl Rule {
    /// The rule as a table.
    pub(crate) fn to_value(&self) -> serde_json::Value {
        serde_json::to_value(self).expect("a table of texts is JSON")
    }

    /// Reads a rule as a table in JSON. All of its times may have passed, as those of a rule that was
    /// stored some time ago.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRule`](crate::ErrorKind::InvalidRule) if it is no rule.
    pub fn from_table(table: &serde_json::Value) -> Result<Self> {
        let read = Table::deserialize(table);
        read.map_err(|error| invalid(error.to_string()))?.rule()
    }
}

impl FromStr for Rule {
    type Err = Error;

    /// Reads `every 90m`, or a cron expression.
    fn from_str(text: &str) -> Result<Self> {
        let text = text.trim();
        let table = match text.strip_prefix("every ") {
            Some(interval) => Table {
                every: Some(interval.to_owned()),
                ..Table::default()
            },
            None => Table {
                cron: Some(text.to_owned()),
                ..Table::default()
            },
        };
        table.rule()?.with_a_next()
    }
}

impl Serialize for Rule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Table::of(self).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Rule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Form;

        impl<'de> Visitor<'de> for Form {
            type Value = Rule;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a rule: a cron expression, \"every 90m\", or a table with `cron`, `every` or \
                     `after_end`",
                )
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Rule, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Rule, A::Error> {
                let table = Table::deserialize(MapAccessDeserializer::new(map))?;
                let rule = table.rule().and_then(Rule::with_a_next);
                rule.map_err(de::Error::custom)
            }
        }

        deserializer.deserialize_any(Form)
    }
}

impl fmt::Display for Rule {
    /// The rule in words: `At 09:30, on Monday, in Europe/Berlin`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let zone = &self.zone;
        let mut names_zone = true;
        match &self.times {
            Times::Cron(expression) => f.write_str(&expression.words())?,
            Times::Every(interval) => {
                names_zone = interval.is_calendar();
                write!(f, "Every {}", interval.text())?;
            }
            Times::AfterEnd(pause) => {
                names_zone = false;
                write!(f, "{} after the end of each run", written(pause))?;
            }
        }
        if names_zone {
            write!(f, ", in {}", zone.name)?;
        }
        let on_wall = |time: Timestamp| {
            let wall = time.to_zoned(zone.zone.clone());
            wall.strftime("%Y-%m-%d %H:%M:%S").to_string()
        };
        if let Some(from) = self.from {
            write!(f, ", from {}", on_wall(from))?;
        }
        if let Some(until) = self.until {
            write!(f, ", until {}", on_wall(until))?;
        }
        match self.runs {
            None => {}
            Some(1) => f.write_str(", once")?,
            Some(runs) => write!(f, ", {runs} times")?,
        }
        if !self.jitter.is_zero() {
            write!(f, ", up to {} later at random", written(&self.jitter))?;
        }
        f.write_str(match self.busy {
            Busy::Skip => "",
            Busy::QueueOne => "; a time that passes during a run is made up for once",
            Busy::Replace => "; a run ends at the next time",
        })?;
        match self.missed {
            Missed::One => {}
            Missed::Skip => f.write_str("; missed times are left out")?,
            Missed::All(most) => write!(f, "; up to {most} missed times are made up for")?,
            Missed::Spread(time) => {
                let time = written(&time);
                write!(f, "; a missed time is made up for within {time}, at random")?;
            }
        }
        match &self.quiet {
            Some(quiet) => write!(f, "; quiet {quiet}"),
            None => Ok(()),
        }
    }
}
