//! Rate, burst and concurrency, checked; of a kind, or of each of its groups.

use std::time::Duration;

use super::Terms;
use crate::durations::{duration, shown, written};
use crate::error::{Error, ErrorKind, Result};
use crate::phrase::Phrase;

/// The most starts a second.
const MOST_A_SECOND: u32 = 100_000;

/// The most jobs that may start at once, or run at the same time.
const MOST_AT_ONCE: u32 = 1_000_000;

/// The units of a rate, and their seconds.
const UNITS: [(&str, u64); 4] = [("s", 1), ("m", 60), ("h", 3600), ("d", 86_400)];

/// The longest time of a rate, and the longest time in which a burst may become free again.
pub(super) const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// What may start and run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Bounds {
    pub(super) rate: Option<(u32, Duration)>,
    pub(super) burst: Option<u32>,
    pub(super) concurrency: Option<u32>,
}

/// Reads the text of the rate that is called `field`.
///
/// # Errors
/// [`ErrorKind::InvalidSetting`] if the text is no rate.
pub(super) fn read_rate(field: &str, text: &str) -> Result<(u32, Duration)> {
    let fault = || {
        Error::new(
            ErrorKind::InvalidSetting,
            format!(
                "`{field}`, {:?}, is not a rate: write a number of jobs, and a time: 10/s, 50/m, \
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
        None => duration(
            ErrorKind::InvalidSetting,
            &format!("the time of `{field}`"),
            per,
        )?,
    };
    Ok((jobs, per))
}

impl Bounds {
    /// Whether anything is limited.
    pub(super) fn limits(&self) -> bool {
        self.rate.is_some() || self.concurrency.is_some()
    }

    /// The rate as people write it.
    pub(super) fn rate_text(&self) -> Option<String> {
        let (jobs, per) = self.rate?;
        let is_unit = |(_, seconds): &&(&str, u64)| per == Duration::from_secs(*seconds);
        Some(match UNITS.iter().find(is_unit) {
            Some((unit, _)) => format!("{jobs}/{unit}"),
            None => format!("{jobs}/{}", written(&per)),
        })
    }

    /// The burst; 1 if none was given, `None` without a rate.
    pub(super) fn effective_burst(&self) -> Option<u32> {
        self.rate.map(|_| self.burst.unwrap_or(1))
    }

    /// The bounds as the scripts know them; `before` is what the names of their fields begin with.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidSetting`] if a value is out of range.
    pub(super) fn terms(&self, before: &str) -> Result<Terms> {
        let refuse = |message: String| Err(Error::new(ErrorKind::InvalidSetting, message));
        let at_once = 1..=MOST_AT_ONCE;
        if self.rate.is_none() && self.burst.is_some() {
            return refuse(format!(
                "`{before}burst` belongs to a rate: set `{before}rate` as well"
            ));
        }
        if let Some(jobs) = self.concurrency.filter(|jobs| !at_once.contains(jobs)) {
            return refuse(format!(
                "`{before}concurrency` is from 1 to {MOST_AT_ONCE}, not {jobs}: `unlimit` removes a \
                 limit, and `pause` keeps all jobs from starting"
            ));
        }
        if let Some(jobs) = self.burst.filter(|jobs| !at_once.contains(jobs)) {
            return refuse(format!(
                "`{before}burst` is from 1 to {MOST_AT_ONCE}, not {jobs}"
            ));
        }
        let most = self.concurrency.map_or(0, u64::from);
        let Some((jobs, per)) = self.rate else {
            return Ok(Terms {
                most,
                ..Terms::NONE
            });
        };
        if jobs == 0 {
            return refuse(format!(
                "`{before}rate` lets 1 job or more start: `pause` keeps all jobs from starting"
            ));
        }
        if !(Duration::from_millis(1)..=LONGEST).contains(&per) {
            return refuse(format!(
                "the time of `{before}rate` is from 1ms to 366d, not {}",
                written(&per)
            ));
        }
        let gap = per.as_micros().div_ceil(u128::from(jobs)) as u64;
        if u128::from(jobs) * 1_000_000 > u128::from(MOST_A_SECOND) * per.as_micros() {
            return refuse(format!(
                "`{before}rate` lets at most {MOST_A_SECOND} jobs start in a second; without a \
                 limit, any number can"
            ));
        }
        let burst = u64::from(self.burst.unwrap_or(1));
        if u128::from(gap) * u128::from(burst) > LONGEST.as_micros() {
            return refuse(format!(
                "a `{before}burst` of {burst} at this `{before}rate` becomes free again after more \
                 than 366 days: make it smaller"
            ));
        }
        Ok(Terms {
            gap,
            burst,
            most,
            groups: None,
        })
    }

    /// `jobs per-µs burst concurrency`; 0 stands for none.
    pub(super) fn rule_text(&self) -> String {
        let (jobs, per) = self.rate.unwrap_or_default();
        let burst = self.effective_burst().filter(|burst| *burst > 1);
        format!(
            "{jobs} {} {} {}",
            per.as_micros(),
            burst.unwrap_or_default(),
            self.concurrency.unwrap_or_default(),
        )
    }

    /// Reads that text; `None` if another program wrote it.
    pub(super) fn of_rule(text: &str) -> Option<Self> {
        let numbers: Vec<u64> = text
            .split(' ')
            .map(|word| word.parse().ok())
            .collect::<Option<_>>()?;
        let [jobs, per, burst, most] = numbers[..] else {
            return None;
        };
        let some = |number: u64| Some(u32::try_from(number).ok()).map(|it| it.filter(|it| *it > 0));
        Some(Bounds {
            rate: some(jobs)?.map(|jobs| (jobs, Duration::from_micros(per))),
            burst: some(burst)?,
            concurrency: some(most)?,
        })
    }
}

impl Bounds {
    /// The bounds in words; `None` without any.
    pub(super) fn phrase(&self) -> Option<Phrase> {
        let burst = self.burst.filter(|jobs| *jobs > 1 && self.rate.is_some());
        let parts = [
            self.rate_text().map(Phrase::from),
            burst.map(|jobs| Phrase::new("limit.burst", "{} at once", [jobs.into()])),
            self.concurrency
                .map(|jobs| Phrase::new("limit.running", "{} at the same time", [jobs.into()])),
        ];
        let both = |one, other| Phrase::new("list.comma", "{}, {}", [one, other]);
        parts.into_iter().flatten().reduce(both)
    }
}
