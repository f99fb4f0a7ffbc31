//! The limit of lateness of a job, and what becomes of a job that exceeds it.
//!
//! Jobs start milliseconds after their due times while Redis and a worker are there. After an
//! outage, or the pause of a kind, all that fell due meanwhile starts at once: a limit says which of
//! it still has a point.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::durations::{duration, shown, written};
use crate::error::{Error, ErrorKind, Result};
use crate::settings::MAX_DELAY;

/// The shortest limit: a worker that is busy for a moment must not skip jobs.
const SHORTEST: Duration = Duration::from_secs(1);

/// The longest time over which late jobs are spread.
const LONGEST_SPREAD: Duration = Duration::from_secs(24 * 3600);

/// What becomes of a job that could start only after its
/// [`max_lateness`](crate::NewJob::max_lateness), because Redis or all workers were away, or its kind
/// was paused.
///
/// As text: `run`, `skip`, `bury`, `spread 10m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Late {
    /// It runs at once. The default.
    #[default]
    Run,
    /// It ends without a run. It counts as [skipped](crate::Stats::skipped), and its history says how
    /// late it was. A recurring job goes on with the next time of its rule.
    Skip,
    /// It becomes a dead letter without a run, and can be requeued. A recurring job goes on with the
    /// next time of its rule.
    Bury,
    /// It runs at a random moment within this time from now, from 1 s to 1 day, so that the jobs of
    /// an outage do not fall on a receiver at once. It counts as snoozed.
    Spread(Duration),
}

/// How late a job may start, and what becomes of it if it could start only later.
///
/// As text, here and in JSON: `1h skip`, `30m bury`, `1h spread 10m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaxLateness {
    /// The limit, from 1 s to 10 years.
    pub limit: Duration,
    /// What becomes of a job beyond it.
    pub then: Late,
}

impl MaxLateness {
    /// # Errors
    /// [`ErrorKind::InvalidSetting`] if the limit or the time to spread over is out of range.
    pub(crate) fn check(self) -> Result<Self> {
        let MaxLateness { limit, then } = self;
        if !(SHORTEST..=MAX_DELAY).contains(&limit) {
            return Err(invalid(format!(
                "`max_lateness` is {limit:?}, and it is from 1 s to 10 years: is the unit right?"
            )));
        }
        match then {
            Late::Spread(time) => Late::spread(time).map(|_| self),
            Late::Run | Late::Skip | Late::Bury => Ok(self),
        }
    }
}

impl Late {
    /// # Errors
    /// [`ErrorKind::InvalidSetting`] if the time is out of range.
    pub(crate) fn spread(time: Duration) -> Result<Self> {
        if !(SHORTEST..=LONGEST_SPREAD).contains(&time) {
            return Err(invalid(format!(
                "late jobs are spread over {time:?}, and that time is from 1 s to 1 day: is the \
                 unit right?"
            )));
        }
        Ok(Late::Spread(time))
    }
}

impl fmt::Display for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Late::Run => f.write_str("run"),
            Late::Skip => f.write_str("skip"),
            Late::Bury => f.write_str("bury"),
            Late::Spread(time) => write!(f, "spread {}", written(time)),
        }
    }
}

impl FromStr for Late {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let text = text.trim();
        match (text, text.strip_prefix("spread ")) {
            ("run", _) => Ok(Late::Run),
            ("skip", _) => Ok(Late::Skip),
            ("bury", _) => Ok(Late::Bury),
            (_, Some(time)) => {
                let time = duration(ErrorKind::InvalidSetting, "the time after `spread`", time)?;
                Late::spread(time)
            }
            _ => Err(invalid(format!(
                "{:?} is nothing that can become of a late job: write \"run\", \"skip\", \"bury\" \
                 or \"spread 10m\"",
                shown(text)
            ))),
        }
    }
}

impl fmt::Display for MaxLateness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", written(&self.limit), self.then)
    }
}

impl FromStr for MaxLateness {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let Some((limit, then)) = text.trim().split_once(' ') else {
            return Err(invalid(format!(
                "`max_lateness` is {:?}: write a duration and what becomes of a job that is later, \
                 such as \"1h skip\", \"1h bury\" or \"1h spread 10m\"",
                shown(text)
            )));
        };
        let limit = duration(ErrorKind::InvalidSetting, "`max_lateness`", limit)?;
        let then = then.parse()?;
        MaxLateness { limit, then }.check()
    }
}

impl Serialize for MaxLateness {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for MaxLateness {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

fn invalid(fault: String) -> Error {
    Error::new(ErrorKind::InvalidSetting, fault)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_choice_is_read_as_it_is_written() {
        let spread = Late::Spread(Duration::from_secs(600));
        for (late, text) in [
            (Late::Run, "run"),
            (Late::Skip, "skip"),
            (Late::Bury, "bury"),
            (spread, "spread 10m"),
        ] {
            assert_eq!(late.to_string(), text);
            assert_eq!(text.parse::<Late>().unwrap(), late);
        }
        assert_eq!(
            " spread  1h ".parse::<Late>().unwrap().to_string(),
            "spread 1h"
        );
    }

    #[test]
    fn a_wrong_choice_or_limit_names_the_rule() {
        for (text, fault) in [
            ("drop", "write \"run\", \"skip\", \"bury\""),
            ("spread", "write \"run\""),
            ("spread soon", "not a duration"),
            ("spread 0", "from 1 s to 1 day"),
            ("spread 2d", "from 1 s to 1 day"),
        ] {
            let error = text.parse::<Late>().unwrap_err().to_string();
            assert!(error.contains(fault), "{text}: {error}");
        }
        for limit in [Duration::ZERO, Duration::from_millis(999), Duration::MAX] {
            let lateness = MaxLateness {
                limit,
                then: Late::Skip,
            };
            let error = lateness.check().unwrap_err().to_string();
            assert!(error.contains("from 1 s to 10 years"), "{error}");
        }
    }

    #[test]
    fn a_limit_is_read_as_it_is_written() {
        for text in ["1h skip", "90d bury", "1s500ms run", "1h spread 1m30s"] {
            let read: MaxLateness = text.parse().unwrap();
            let json = serde_json::to_string(&read).unwrap();
            assert_eq!(serde_json::from_str::<MaxLateness>(&json).unwrap(), read);
        }
        let days: MaxLateness = " 2d  skip ".parse().unwrap();
        assert_eq!(days.to_string(), "48h skip");
        for (text, fault) in [
            ("1h", "such as \"1h skip\""),
            ("skip 1h", "not a duration"),
            ("10 skip", "not a duration"),
            ("0 skip", "from 1 s to 10 years"),
            ("1h later", "write \"run\""),
        ] {
            let error = text.parse::<MaxLateness>().unwrap_err().to_string();
            assert!(error.contains(fault), "{text}: {error}");
        }
    }
}
