//! What becomes of the times of a rule at which nobody could run the job.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::invalid;
use crate::durations::{shown, written};
use crate::error::Error;
use crate::lateness::Late;

/// The most missed times that a rule makes up for.
const MOST: u32 = 1000;

/// How many are made up for if the text names no number.
const USUAL: u32 = 100;

/// What becomes of times of the rule at which nobody could run the job, because Redis or all workers
/// were away, or its kind was paused; see [`Rule::when_missed`](super::Rule::when_missed).
///
/// As text: `one`, `skip`, `all`, `all 10`, `spread 10m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Missed {
    /// The job runs once, for the first time that was missed; the others are left out. The default.
    #[default]
    One,
    /// All are left out. A time is missed if the job could start only a minute late.
    Skip,
    /// The job runs for each of them, one run after the other, but only for this many, the last ones:
    /// 1 to 1000.
    All(u32),
    /// The job runs once, at a random moment within this time, from 1 s to 1 day.
    Spread(Duration),
}

impl Missed {
    pub(super) fn check(self) -> Result<Self, Error> {
        match self {
            Missed::All(most) if !(1..=MOST).contains(&most) => Err(invalid(format!(
                "`missed` makes up for {most} times, and the limit is 1 to {MOST}"
            ))),
            Missed::Spread(time) => Late::spread(time)
                .map(|_| self)
                .map_err(|error| invalid(format!("`missed`: {error}"))),
            _ => Ok(self),
        }
    }
}

impl fmt::Display for Missed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Missed::One => f.write_str("one"),
            Missed::Skip => f.write_str("skip"),
            Missed::All(most) => write!(f, "all {most}"),
            Missed::Spread(time) => write!(f, "spread {}", written(time)),
        }
    }
}

impl FromStr for Missed {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let text = text.trim();
        let unknown = || {
            invalid(format!(
                "`missed` is {:?}: write \"one\", \"skip\", \"all\", \"all 10\" or \"spread 10m\"",
                shown(text)
            ))
        };
        match text.split_once(' ') {
            None if text == "one" => Ok(Missed::One),
            None if text == "skip" => Ok(Missed::Skip),
            None if text == "all" => Ok(Missed::All(USUAL)),
            Some(("all", most)) => {
                let most = most.trim().parse().map_err(|_| unknown())?;
                Missed::All(most).check()
            }
            Some(("spread", _)) => match text.parse() {
                Ok(Late::Spread(time)) => Ok(Missed::Spread(time)),
                Ok(_) => Err(unknown()),
                Err(error) => Err(invalid(format!("`missed`: {error}"))),
            },
            _ => Err(unknown()),
        }
    }
}
