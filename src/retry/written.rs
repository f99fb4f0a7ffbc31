//! Retry policies as people write them: a text, or a table in JSON or TOML.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, Serializer};

use super::{RetryPolicy, Shape};
use crate::durations::{self, written};
use crate::error::{Error, ErrorKind, Result};

/// The text of [`RetryPolicy::none`].
const NONE: &str = "none";

/// The table form. Durations are texts here, so that an error can name the rung at fault.
#[derive(Default, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ladder: Option<Rungs>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    exponential: Option<Exponential>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    linear: Option<Linear>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fixed: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    attempts: Option<u32>,
}

/// The rungs of a ladder, as a list or as one text.
#[derive(serde::Serialize, serde::Deserialize)]
#[serde(
    untagged,
    expecting = "a ladder is a list of durations, [\"15s\", \"3m\"], or a text, \"15s 3m\""
)]
enum Rungs {
    List(Vec<String>),
    Text(String),
}

/// The fields of `exponential`, with durations as texts.
#[derive(serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Exponential {
    base: String,
    cap: String,
}

/// The fields of `linear`, with durations as texts.
#[derive(serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Linear {
    step: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cap: Option<String>,
}

impl FromStr for RetryPolicy {
    type Err = Error;

    /// Reads a ladder, `15s 3m 1h30m`, one word for each rung, with or without commas; or `none`.
    fn from_str(text: &str) -> Result<Self> {
        if text.trim() == NONE {
            return Ok(RetryPolicy::none());
        }
        ladder(
            text.split(|c: char| c.is_whitespace() || c == ',')
                .filter(|word| !word.is_empty()),
        )
    }
}

impl TryFrom<Table> for RetryPolicy {
    type Error = Error;

    fn try_from(table: Table) -> Result<Self> {
        let Table {
            ladder: rungs,
            exponential,
            linear,
            fixed,
            attempts,
        } = table;
        let policy = match (rungs, exponential, linear, fixed) {
            (Some(Rungs::List(rungs)), None, None, None) => {
                ladder(rungs.iter().map(String::as_str))?
            }
            (Some(Rungs::Text(text)), None, None, None) => text.parse()?,
            (None, Some(Exponential { base, cap }), None, None) => {
                RetryPolicy::exponential(duration("base", &base)?, duration("cap", &cap)?)?
            }
            (None, None, Some(Linear { step, cap: None }), None) => {
                RetryPolicy::linear(duration("step", &step)?)?
            }
            (
                None,
                None,
                Some(Linear {
                    step,
                    cap: Some(cap),
                }),
                None,
            ) => RetryPolicy::linear_up_to(duration("step", &step)?, duration("cap", &cap)?)?,
            (None, None, None, Some(delay)) => RetryPolicy::fixed(duration("fixed", &delay)?)?,
            _ => {
                return Err(invalid(
                    "a retry policy has exactly one shape: \
                     keep one of `ladder`, `exponential`, `linear` and `fixed`, or write \"none\"",
                ));
            }
        };
        match attempts {
            None => Ok(policy),
            Some(0) => Err(invalid(
                "`attempts` is 0, and the first run counts as one: write 1 or more",
            )),
            Some(limit) => Ok(policy.attempts(limit)),
        }
    }
}

impl Serialize for RetryPolicy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut table = Table {
            attempts: self.attempts,
            ..Table::default()
        };
        match &self.shape {
            Shape::None => return serializer.serialize_str(NONE),
            Shape::Ladder(rungs) => {
                table.ladder = Some(Rungs::List(rungs.iter().map(written).collect()));
            }
            Shape::Exponential { base, cap } => {
                table.exponential = Some(Exponential {
                    base: written(base),
                    cap: written(cap),
                });
            }
            Shape::Linear { step, cap } => {
                table.linear = Some(Linear {
                    step: written(step),
                    cap: cap.as_ref().map(written),
                });
            }
            Shape::Fixed(delay) => table.fixed = Some(written(delay)),
        }
        table.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RetryPolicy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Form;

        impl<'de> Visitor<'de> for Form {
            type Value = RetryPolicy;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a retry policy: a ladder such as \"15s 3m\", \"none\", or a table")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<RetryPolicy, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RetryPolicy, A::Error> {
                Table::deserialize(MapAccessDeserializer::new(map))?
                    .try_into()
                    .map_err(de::Error::custom)
            }
        }

        deserializer.deserialize_any(Form)
    }
}

/// Reads the rungs of a ladder. Stops after one rung too many, which is enough to refuse it.
fn ladder<'a>(rungs: impl Iterator<Item = &'a str>) -> Result<RetryPolicy> {
    let rungs = (1..=super::MAX_RUNGS + 1)
        .zip(rungs)
        .map(|(number, text)| duration(&format!("rung {number}"), text))
        .collect::<Result<Vec<_>>>()?;
    RetryPolicy::ladder(rungs)
}

/// Reads a duration. `part` names it in an error.
fn duration(part: &str, text: &str) -> Result<Duration> {
    durations::duration(ErrorKind::InvalidPolicy, part, text)
}

/// The error for a text or table that is no policy.
fn invalid(fault: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidPolicy, fault)
}
