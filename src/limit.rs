//! [`Limit`]: how many jobs of a kind may start in a time, and run at the same time, over all
//! workers together.
//!
//! The claim enforces a limit, by the clock of Redis: `lua/lib/limit.lua` has the arithmetic. This
//! file checks limits, and writes them as the scripts read them.

use std::fmt;
use std::time::Duration;

use crate::durations::{duration, shown, written};
use crate::error::{Error, ErrorKind, Result};

/// The most starts a second.
const MOST_A_SECOND: u32 = 100_000;

/// The most jobs that may start at once, or run at the same time.
const MOST_AT_ONCE: u32 = 1_000_000;

/// The units of a rate, and their seconds.
const UNITS: [(&str, u64); 4] = [("s", 1), ("m", 60), ("h", 3600), ("d", 86_400)];

/// The longest time of a rate, and the longest time in which a burst may become free again.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// How many jobs of a kind may start in a time, and run at the same time, over all workers together;
/// for [`Client::limit`](crate::Client::limit).
///
/// A rate spaces the starts evenly: `10` in a second means one each 100 ms. With a
/// [burst](Self::burst), so many may start at once, and then one each 100 ms. In any span of time at
/// most `burst` jobs start, and one more for each 100 ms of the span.
///
/// ```
/// use keyfall::Limit;
/// use std::time::Duration;
///
/// let provider = Limit::new().rate(10, Duration::from_secs(1)).burst(5).concurrency(20);
/// assert_eq!(provider.to_string(), "10/s, 5 at once, 20 at the same time");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limit {
    rate: Option<(u32, Duration)>,
    burst: Option<u32>,
    concurrency: Option<u32>,
}

/// A limit as the scripts know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Terms {
    /// The µs between two starts in the long run; 0 without a rate.
    pub(crate) gap: u64,
    /// How many jobs may start at once.
    pub(crate) burst: u64,
    /// How many leases there may be at once; 0 for any number.
    pub(crate) most: u64,
}

impl Limit {
    /// No limit yet: add a rate, a concurrency, or both.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets `jobs` start in each `per`, evenly spaced: 1 or more, and at most 100,000 in a second;
    /// `per` is 1 ms to 366 days. The time between two starts is rounded up to a whole microsecond.
    pub fn rate(mut self, jobs: u32, per: Duration) -> Self {
        self.rate = Some((jobs, per));
        self
    }

    /// The same, as people write it: a number of jobs and a time, `10/s`, `50/m`, `5/h`, `1/d` or
    /// `1/90s`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidSetting`] if the text is no rate.
    pub fn parse_rate(self, text: &str) -> Result<Self> {
        let fault = || {
            Error::new(
                ErrorKind::InvalidSetting,
                format!(
                    "`rate`, {:?}, is not a rate: write a number of jobs, and a time: 10/s, 50/m, \
                     5/h, 1/d or 1/90s",
                    shown(text)
                ),
            )
        };
        let (jobs, per) = text.trim().split_once('/').ok_or_else(fault)?;
        let jobs = jobs.trim().parse().map_err(|_| fault())?;
        let per = per.trim();
        let per = match UNITS.iter().find(|(unit, _)| *unit == per) {
            Some((_, seconds)) => Duration::from_secs(*seconds),
            None => duration(ErrorKind::InvalidSetting, "the time of `rate`", per)?,
        };
        Ok(self.rate(jobs, per))
    }

    /// Lets up to this many jobs start at once, if none has started for long enough. 1 to 1,000,000;
    /// defaults to 1. Without a burst, each start comes some milliseconds after its time, so that a
    /// rate of more than some 10 in a second is not fully used: give 2, or what starts in 50 ms.
    pub fn burst(mut self, jobs: u32) -> Self {
        self.burst = Some(jobs);
        self
    }

    /// Lets at most this many jobs run at the same time: 1 to 1,000,000. A job whose lease has lapsed
    /// counts until another worker has taken it over.
    pub fn concurrency(mut self, jobs: u32) -> Self {
        self.concurrency = Some(jobs);
        self
    }

    /// The rate: the number of jobs, and the time.
    pub fn get_rate(&self) -> Option<(u32, Duration)> {
        self.rate
    }

    /// The rate as people write it, as for [`parse_rate`](Self::parse_rate).
    pub fn rate_text(&self) -> Option<String> {
        let (jobs, per) = self.rate?;
        let is_unit = |(_, seconds): &&(&str, u64)| per == Duration::from_secs(*seconds);
        Some(match UNITS.iter().find(is_unit) {
            Some((unit, _)) => format!("{jobs}/{unit}"),
            None => format!("{jobs}/{}", written(&per)),
        })
    }

    /// The number of jobs that may start at once; 1 without a burst, `None` without a rate.
    pub fn get_burst(&self) -> Option<u32> {
        self.rate.map(|_| self.burst.unwrap_or(1))
    }

    /// The number of jobs that may run at the same time.
    pub fn get_concurrency(&self) -> Option<u32> {
        self.concurrency
    }

    /// Checks the limit, as setting it does.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidSetting`] if a value is out of range, or nothing is limited.
    pub fn check(&self) -> Result<()> {
        self.terms().map(drop)
    }

    /// The limit as the scripts know it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidSetting`] if a value is out of range, or nothing is limited.
    pub(crate) fn terms(&self) -> Result<Terms> {
        let refuse = |message: String| Err(Error::new(ErrorKind::InvalidSetting, message));
        let at_once = 1..=MOST_AT_ONCE;
        if self.rate.is_none() && self.burst.is_some() {
            return refuse("`burst` belongs to a rate: set `rate` as well".into());
        }
        if self.rate.is_none() && self.concurrency.is_none() {
            return refuse("a limit has a rate, a concurrency, or both: set one of them".into());
        }
        if let Some(jobs) = self.concurrency.filter(|jobs| !at_once.contains(jobs)) {
            return refuse(format!(
                "`concurrency` is from 1 to {MOST_AT_ONCE}, not {jobs}: `unlimit` removes a limit, \
                 and `pause` keeps all jobs from starting"
            ));
        }
        if let Some(jobs) = self.burst.filter(|jobs| !at_once.contains(jobs)) {
            return refuse(format!("`burst` is from 1 to {MOST_AT_ONCE}, not {jobs}"));
        }
        let most = self.concurrency.map_or(0, u64::from);
        let Some((jobs, per)) = self.rate else {
            return Ok(Terms {
                gap: 0,
                burst: 1,
                most,
            });
        };
        if jobs == 0 {
            return refuse(
                "`rate` lets 1 job or more start: `pause` keeps all jobs from starting".into(),
            );
        }
        if !(Duration::from_millis(1)..=LONGEST).contains(&per) {
            return refuse(format!(
                "the time of `rate` is from 1ms to 366d, not {}",
                written(&per)
            ));
        }
        let gap = per.as_micros().div_ceil(u128::from(jobs)) as u64;
        if u128::from(jobs) * 1_000_000 > u128::from(MOST_A_SECOND) * per.as_micros() {
            return refuse(format!(
                "`rate` lets at most {MOST_A_SECOND} jobs start in a second; without a limit, any \
                 number can"
            ));
        }
        let burst = u64::from(self.burst.unwrap_or(1));
        if u128::from(gap) * u128::from(burst) > LONGEST.as_micros() {
            return refuse(format!(
                "a `burst` of {burst} at this `rate` becomes free again after more than 366 days: \
                 make it smaller"
            ));
        }
        Ok(Terms { gap, burst, most })
    }
}

impl Terms {
    /// No limit.
    pub(crate) const NONE: Terms = Terms {
        gap: 0,
        burst: 1,
        most: 0,
    };

    /// The part of one of `ledgers` ledgers among which the limit is split evenly. What cannot be
    /// split evenly is left out: the parts together never exceed the limit.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidSetting`] if there is not enough for each ledger.
    pub(crate) fn split(self, ledgers: u16) -> Result<Terms> {
        let ledgers = u64::from(ledgers);
        let few = |what: &str, jobs: u64| {
            Error::new(
                ErrorKind::InvalidSetting,
                format!(
                    "`{what}` is {jobs}, and the kind has {ledgers} shards, which share it evenly: \
                     make it {ledgers} or more, or reshard the kind to at most {jobs}"
                ),
            )
        };
        if self.gap > 0 && self.burst < ledgers {
            return Err(few("burst", self.burst));
        }
        if self.most > 0 && self.most < ledgers {
            return Err(few("concurrency", self.most));
        }
        Ok(Terms {
            gap: self.gap * ledgers,
            burst: (self.burst / ledgers).max(1),
            most: self.most / ledgers,
        })
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.rate_text();
        let burst = self.burst.filter(|jobs| *jobs > 1 && self.rate.is_some());
        let burst = burst.map(|jobs| format!("{jobs} at once"));
        let concurrency = self
            .concurrency
            .map(|jobs| format!("{jobs} at the same time"));
        let parts: Vec<String> = [rate, burst, concurrency].into_iter().flatten().collect();
        f.write_str(&parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_limit_is_written_in_microseconds_between_starts() {
        let terms = |limit: Limit| limit.terms().unwrap();
        let of = |gap, burst, most| Terms { gap, burst, most };
        assert_eq!(terms(Limit::new().rate(10, SECOND)), of(100_000, 1, 0));
        let all = Limit::new().rate(3, SECOND).burst(7).concurrency(9);
        assert_eq!(terms(all), of(333_334, 7, 9));
        assert_eq!(terms(Limit::new().concurrency(5)), of(0, 1, 5));
        assert_eq!(all.to_string(), "3/s, 7 at once, 9 at the same time");
        assert_eq!(Limit::new().rate(1, 600 * SECOND).to_string(), "1/10m");
    }

    #[test]
    fn a_value_out_of_range_is_refused_by_its_name() {
        for (limit, named) in [
            (Limit::new(), "a rate, a concurrency, or both"),
            (Limit::new().burst(2), "`rate` as well"),
            (Limit::new().concurrency(0), "`concurrency` is from 1"),
            (Limit::new().rate(0, SECOND), "`rate` lets 1 job"),
            (Limit::new().rate(1, Duration::ZERO), "from 1ms to 366d"),
            (Limit::new().rate(1, LONGEST + SECOND), "from 1ms to 366d"),
            (Limit::new().rate(100_001, SECOND), "at most 100000"),
            (Limit::new().rate(9, SECOND).burst(0), "`burst` is from 1"),
            (Limit::new().rate(1, LONGEST).burst(2), "366 days"),
        ] {
            let error = limit.terms().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidSetting);
            assert!(error.to_string().contains(named), "{error}");
        }
        assert!(Limit::new().rate(100_000, SECOND).terms().is_ok());
        assert!(Limit::new().rate(1, LONGEST).terms().is_ok());
    }

    #[test]
    fn a_rate_is_written_as_it_is_read() {
        for text in ["10/s", "50/m", "5/h", "1/d", "1/1m30s", "7/250ms"] {
            let limit = Limit::new().parse_rate(text).unwrap();
            assert_eq!(limit.rate_text().as_deref(), Some(text));
        }
        let limit = Limit::new().parse_rate(" 3 / 2 hours").unwrap();
        assert_eq!(limit, Limit::new().rate(3, 7200 * SECOND));
        for text in [
            "",
            "10",
            "/s",
            "x/s",
            "10/",
            "10/fortnight",
            "-1/s",
            "10/-1s",
        ] {
            let error = Limit::new().parse_rate(text).unwrap_err();
            assert!(error.to_string().contains("`rate`"), "{text}: {error}");
        }
    }

    #[test]
    fn the_parts_of_a_limit_never_exceed_it() {
        let limit = Limit::new().rate(10, SECOND).burst(7).concurrency(9);
        let whole = limit.terms().unwrap();
        for ledgers in 1..=7 {
            let part = whole.split(ledgers).unwrap();
            let ledgers = u64::from(ledgers);
            assert!(part.burst >= 1 && part.burst * ledgers <= whole.burst);
            assert!(part.most >= 1 && part.most * ledgers <= whole.most);
            assert_eq!(part.gap, whole.gap * ledgers);
        }
        let error = whole.split(8).unwrap_err().to_string();
        assert!(
            error.contains("`burst` is 7") && error.contains("8 shards"),
            "{error}"
        );
        let evenly = Limit::new().concurrency(3).terms().unwrap();
        assert_eq!(evenly.split(3).unwrap().most, 1);
        assert!(
            evenly
                .split(4)
                .unwrap_err()
                .to_string()
                .contains("`concurrency`")
        );
        assert_eq!(Terms::NONE.split(16).unwrap().most, 0);
    }
}
