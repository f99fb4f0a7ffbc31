//! The times of jobs: the rule of a recurring job with the occurrence that is stored, the plan of a
//! series, and quiet hours.
//!
//! | part | task |
//! |---|---|
//! | `cron` | cron expressions in a time zone |
//! | `interval` | `every 90m`, `every 2 weeks` |
//! | `written` | rules as text and tables |
//! | `occurrence` | the occurrence that a record holds |
//! | `following` | which occurrence follows the end of another |
//! | `missed` | times at which nobody could run the job |
//! | `template` | payloads that name the time of their occurrence |
//! | `changing` | another rule, a pause, a resume |
//! | `zones` | the version of the time zone database |
//! | `offset` | `-3d 09:00`: times relative to a date |
//! | `plan` | the plan of a series, and what a change does to its members |
//! | `quiet` | hours and days on which no job is to be due |

mod changing;
mod cron;
#[cfg(feature = "worker")]
mod following;
mod interval;
mod missed;
mod occurrence;
mod offset;
mod plan;
mod quiet;
#[cfg_attr(
    not(feature = "worker"),
    expect(
        dead_code,
        reason = "a service that only schedules fills in no template"
    )
)]
mod template;
mod written;
#[cfg(feature = "worker")]
mod zones;

#[cfg(all(test, feature = "worker"))]
mod tests;

use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::error::{Error, ErrorKind, Result};
use cron::Expression;
#[cfg(feature = "worker")]
pub(crate) use following::RunEnd;
use interval::Interval;
pub use missed::Missed;
pub use occurrence::Occurrence;
pub(crate) use occurrence::Recurring;
pub use offset::Offset;
pub use plan::{Anchor, MAX_MEMBERS, MemberFate, Past};
pub(crate) use plan::{Deed, Plan, Planned, Stand, WantedMember, Wish, decide};
pub use quiet::{Instead, QuietHours};
pub(crate) use quiet::{Quieted, Shift};
#[cfg(feature = "worker")]
pub(crate) use zones::database_version;

/// The times of a recurring job.
///
/// | rule | times |
/// |---|---|
/// | [`cron`](Self::cron) | `30 9 * * MON-FRI`: by the clock on the wall of its zone |
/// | [`every`](Self::every) | each so much time, counted from [`starting`](Self::starting), or from the Unix epoch |
/// | [`calendar`](Self::calendar) | each so many days, weeks, months or years, counted from `starting` |
/// | [`after_end`](Self::after_end) | so long after the end of the last run |
///
/// A rule has the time zone UTC unless [`zone`](Self::zone) sets another one.
///
/// # As text
///
/// In JSON, TOML and similar formats a rule is a table with `cron`, `every` or `after_end`, or the
/// text alone:
///
/// ```
/// use keyfall::Rule;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// for text in [
///     r#""30 9 * * MON-FRI""#,
///     r#""every 90m""#,
///     r#"{"cron": "30 9 * * MON-FRI", "zone": "Europe/Berlin", "jitter": "30s"}"#,
///     r#"{"every": "2 weeks", "from": "2026-12-07 09:00", "zone": "Europe/Berlin", "runs": 10}"#,
///     r#"{"after_end": "10m", "until": "2027-01-01T00:00:00Z"}"#,
/// ] {
///     let rule: Rule = serde_json::from_str(text)?;
/// #   drop(rule);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Rule {
    times: Times,
    zone: Zone,
    from: Option<Timestamp>,
    until: Option<Timestamp>,
    runs: Option<u64>,
    jitter: Duration,
    busy: Busy,
    gap: Gap,
    overlap: Overlapping,
    missed: Missed,
    template: bool,
    quiet: Option<QuietHours>,
}

/// The sort of a rule.
#[derive(Debug, Clone)]
enum Times {
    Cron(Expression),
    Every(Interval),
    AfterEnd(Duration),
}

/// A time zone and its name.
#[derive(Debug, Clone)]
pub(crate) struct Zone {
    name: String,
    zone: TimeZone,
}

/// What becomes of a time of the rule at which the run before is not over, or waits for a retry;
/// see [`Rule::when_busy`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Busy {
    /// It is left out, and counted as skipped. The default.
    #[default]
    Skip,
    /// One run follows at once, for the last time that passed; the others are left out.
    QueueOne,
    /// The run is told to stop at that time, and is not retried beyond it.
    Replace,
}

/// What becomes of a time that the zone skips when its clock goes forward; see [`Rule::in_gap`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Gap {
    /// The job is due when the gap ends. The default.
    #[default]
    Run,
    /// It is left out.
    Skip,
}

/// Which of two equal times counts when the clock of the zone goes back; see
/// [`Rule::in_overlap`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Overlapping {
    /// The first. The default.
    #[default]
    First,
    /// Both.
    Both,
}

impl Rule {
    /// A cron expression: `minute hour day month weekday`, optionally with the second in front,
    /// and with the year behind. It may have lists, ranges, steps, names (`MON`, `JAN`), `L` for
    /// the last day, `15W` for the weekday nearest to the 15th, `FRI#2` for the second Friday; or be
    /// `@hourly`, `@daily`, `@weekly`, `@monthly`, `@yearly`. If both day and weekday are
    /// restricted, one of them is enough, as in Vixie cron.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRule`] if it does not parse or names no time in the next 100 years.
    pub fn cron(expression: &str) -> Result<Self> {
        Rule::new(Times::Cron(Expression::parse(expression)?)).with_a_next()
    }

    /// Each so much time, from 1 s to 10 years, counted from [`starting`](Self::starting), or from
    /// the Unix epoch: `every(1 h)` is due at each full hour of UTC. A change of the clock in a zone
    /// is no matter.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRule`] if the interval is out of range, or has parts of a millisecond.
    pub fn every(interval: Duration) -> Result<Self> {
        Interval::exact(interval).map(|every| Rule::new(Times::Every(every)))
    }

    /// Each so many days, weeks, months or years, such as `2 weeks`, at the time on the wall at
    /// which the rule [starts](Self::starting); it has to have a start. From the 31st of a month,
    /// `1 month` leads to the last day of shorter months, and back to the 31st.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRule`] if it is no such interval.
    pub fn calendar(interval: &str, starting: SystemTime) -> Result<Self> {
        let every = Interval::parse(interval)?;
        if !every.is_calendar() {
            return Err(invalid(format!(
                "{interval:?} is not an interval of the calendar: write days, weeks, months or \
                 years, or take `Rule::every`"
            )));
        }
        Rule::new(Times::Every(every)).starting(starting)
    }

    /// So long after the end of the last run, from 1 s to 10 years. The first run is due so long
    /// after the rule was stored, or when it [starts](Self::starting).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRule`] if the pause is out of range.
    pub fn after_end(pause: Duration) -> Result<Self> {
        Interval::exact(pause)?;
        Ok(Rule::new(Times::AfterEnd(pause)))
    }

    fn new(times: Times) -> Self {
        Rule {
            times,
            zone: Zone::utc(),
            from: None,
            until: None,
            runs: None,
            jitter: Duration::ZERO,
            busy: Busy::default(),
            gap: Gap::default(),
            overlap: Overlapping::default(),
            missed: Missed::default(),
            template: false,
            quiet: None,
        }
    }

    /// The time zone, by its name in the [IANA database](https://www.iana.org/time-zones), such as
    /// `Europe/Berlin`. Defaults to UTC.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRule`] if this machine does not know the zone.
    pub fn zone(mut self, name: &str) -> Result<Self> {
        self.zone = Zone::named(name)?;
        self.with_a_next()
    }

    /// No run is due before this time; an interval is counted from it. Defaults to no limit.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRule`] if no time of the rule follows.
    pub fn starting(mut self, from: SystemTime) -> Result<Self> {
        self.from = Some(timestamp("from", from)?);
        self.with_a_next()
    }

    /// No run is due after this time. Defaults to no limit.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRule`] if no time of the rule is left.
    pub fn until(mut self, until: SystemTime) -> Result<Self> {
        self.until = Some(timestamp("until", until)?);
        self.with_a_next()
    }

    /// The number of runs, 1 or more, those that were skipped not counted. Defaults to no limit.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRule`] for 0.
    pub fn runs(mut self, limit: u64) -> Result<Self> {
        if limit == 0 {
            return Err(invalid("`runs` is 0: write 1 or more, or leave it out"));
        }
        self.runs = Some(limit);
        Ok(self)
    }

    /// Each run is due up to so much later than its time, chosen at random, so that many jobs of
    /// one rule do not run at once. At most a day. Defaults to zero.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRule`] above a day.
    pub fn jitter(mut self, most: Duration) -> Result<Self> {
        const DAY: Duration = Duration::from_secs(24 * 3600);
        if most > DAY {
            return Err(invalid(format!(
                "`jitter` is {most:?}, and the limit is a day: is the unit right?"
            )));
        }
        self.jitter = most;
        Ok(self)
    }

    /// What becomes of times at which the run before is not over. Defaults to [`Busy::Skip`].
    pub fn when_busy(mut self, busy: Busy) -> Self {
        self.busy = busy;
        self
    }

    /// What becomes of times at which nobody could run the job. Defaults to [`Missed::One`].
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRule`] if a number or time of the choice is out of range.
    pub fn when_missed(mut self, missed: Missed) -> Result<Self> {
        self.missed = missed.check()?;
        Ok(self)
    }

    /// What becomes of a time that the zone skips. It does not apply to expressions whose hours
    /// are `*` or `*/n`, nor to intervals of hours and less: these count the time that passes.
    /// Defaults to [`Gap::Run`].
    pub fn in_gap(mut self, gap: Gap) -> Self {
        self.gap = gap;
        self
    }

    /// Which of two equal times counts. It does not apply to expressions whose hours are `*` or
    /// `*/n`, which run at both, nor to intervals. Defaults to [`Overlapping::First`].
    pub fn in_overlap(mut self, overlap: Overlapping) -> Self {
        self.overlap = overlap;
        self
    }

    /// Makes the payload of the job a template: each run gets it with the placeholders filled in.
    ///
    /// | placeholder | is filled with |
    /// |---|---|
    /// | `{{number}}` | the number of the occurrence |
    /// | `{{scheduled_for}}` | the time that the rule names, in the zone of the rule: `2026-12-07T09:00:00+01:00` |
    /// | `{{scheduled_for %Y-%m-%d}}` | the same in a [format of `strftime`](https://docs.rs/jiff/latest/jiff/fmt/strtime/index.html) of letters, digits and ` %-_:./,` |
    ///
    /// A payload with another placeholder is refused with [`ErrorKind::InvalidRule`] when the job is
    /// scheduled.
    pub fn template(mut self) -> Self {
        self.template = true;
        self
    }

    /// Hours and days on which no run is due, in the zone of the rule unless they have their own. A
    /// time within them becomes a later or an earlier one; with [`Instead::Skip`] the rule does not
    /// name it at all. Defaults to none.
    pub fn quiet(mut self, quiet: QuietHours) -> Self {
        self.quiet = Some(quiet);
        self
    }

    /// The first time of the rule after this one. `None` if there is none, or only beyond the next
    /// 100 years. The number of [`runs`](Self::runs) and the [`jitter`](Self::jitter) are not
    /// considered.
    pub fn next_after(&self, after: SystemTime) -> Option<SystemTime> {
        let after = Timestamp::try_from(after).ok()?;
        self.next(after).map(SystemTime::from)
    }

    /// The next times after this one, up to `most` of them, the number of [`runs`](Self::runs)
    /// considered. For a rule of [`after_end`](Self::after_end) as if runs took no time.
    pub fn upcoming(&self, after: SystemTime, most: usize) -> Vec<SystemTime> {
        let most = self.runs.map_or(most, |runs| {
            usize::try_from(runs).unwrap_or(usize::MAX).min(most)
        });
        let first = self.next_after(after);
        let times = std::iter::successors(first, |time| self.next_after(*time));
        times.take(most).collect()
    }

    /// The name of the time zone.
    pub fn zone_name(&self) -> &str {
        &self.zone.name
    }

    /// The next time that quiet hours do not leave out.
    fn next(&self, after: Timestamp) -> Option<Timestamp> {
        /// More times than any quiet hours leave out, of a rule that names a time each second.
        const TIMES: usize = 100_000;
        let mut next = self.next_named(after)?;
        let Some(quiet) = self.quiet.as_ref().filter(|it| it.leaves_out()) else {
            return Some(next);
        };
        for _ in 0..TIMES {
            let due = occurrence::unix(next)?;
            match quiet.settle(due, due, &self.zone) {
                Quieted::Out(_) => next = self.next_named(next)?,
                _ => return Some(next),
            }
        }
        None
    }

    fn next_named(&self, after: Timestamp) -> Option<Timestamp> {
        let (zone, from) = (&self.zone.zone, self.from);
        let next = match &self.times {
            Times::Cron(expression) => {
                let begin = from.and_then(cron::a_moment_before);
                let after = begin.map_or(after, |begin| begin.max(after));
                expression.next(after, zone, self.gap, self.overlap)?
            }
            Times::Every(interval) => {
                let anchor = from.unwrap_or(Timestamp::UNIX_EPOCH);
                interval.next(anchor, after, zone, self.gap)?
            }
            Times::AfterEnd(pause) => {
                let next = after.checked_add(*pause).ok()?;
                from.map_or(next, |from| if after < from { from } else { next })
            }
        };
        self.until.is_none_or(|until| next <= until).then_some(next)
    }

    /// The rule, if it names a time.
    fn with_a_next(self) -> Result<Self> {
        let now = Timestamp::now();
        if let Times::Every(interval) = &self.times
            && interval.is_calendar()
            && self.from.is_none()
        {
            return Err(invalid(
                "`every` of days, weeks, months or years is counted from a date: add `from`, such \
                 as \"2026-12-07 09:00\"",
            ));
        }
        if self.next(now).is_some() {
            return Ok(self);
        }
        Err(invalid(match self.until {
            Some(until) if until <= now => {
                format!("`until`, {until}, has passed: the rule would never run")
            }
            Some(until) => format!("no time of the rule comes before `until`, {until}"),
            None => format!("{self} names no time in the next 100 years: does that date exist?"),
        }))
    }
}

impl Zone {
    pub(crate) fn utc() -> Self {
        Zone {
            name: "UTC".to_owned(),
            zone: TimeZone::UTC,
        }
    }

    fn named(name: &str) -> Result<Self> {
        let zone = TimeZone::get(name).map_err(|error| {
            invalid(format!(
                "`zone` is {:?}, which this machine does not know: write a name of the IANA \
                 database, such as Europe/Berlin, and install the package tzdata if it is missing",
                crate::durations::shown(name)
            ))
            .because(error)
        })?;
        Ok(Zone {
            // As the database spells it.
            name: zone.iana_name().unwrap_or(name).to_owned(),
            zone,
        })
    }
}

/// A time of a rule, to the millisecond.
fn timestamp(field: &str, time: SystemTime) -> Result<Timestamp> {
    let exact = Timestamp::try_from(time).ok();
    let rounded = exact.and_then(|time| Timestamp::from_millisecond(time.as_millisecond()).ok());
    rounded.ok_or_else(|| {
        invalid(format!(
            "`{field}` is a time that no calendar has: is the unit right?"
        ))
    })
}

/// Whether two rules name the same times and treat them alike.
impl PartialEq for Rule {
    fn eq(&self, other: &Self) -> bool {
        written::Table::of(self) == written::Table::of(other)
    }
}

/// An error about a rule.
fn invalid(fault: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidRule, fault)
}
