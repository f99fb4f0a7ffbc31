//! [`Limit`]: how many jobs of a kind, or of each group of them, may start in a time, and run at the
//! same time, over all workers together.
//!
//! The claim enforces a limit, by the clock of Redis: `lua/lib/limit.lua` has the arithmetic. This
//! file has limits as programs write them; `bounds.rs` checks them, `terms.rs` has them as the
//! scripts read them, and `shares.rs` divides them among ledgers.

mod bounds;
mod group;
mod scope;
mod shares;
mod terms;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use self::bounds::Bounds;
pub use self::group::GroupBy;
pub use self::scope::LimitScope;
pub(crate) use self::shares::{Holder, Share, Whole};
pub(crate) use self::terms::{GroupTerms, Terms};
use crate::durations::shown;
use crate::error::{Error, ErrorKind, Result};
use crate::phrase::Phrase;

/// The most groups with a weight.
const MOST_WEIGHTS: usize = 100;

/// How many jobs of a kind may start in a time, and run at the same time, over all workers together;
/// for [`Client::limit`](crate::Client::limit).
///
/// A rate spaces the starts evenly: `10` in a second means one each 100 ms. With a
/// [burst](Self::burst), so many may start at once, and then one each 100 ms. In any span of time at
/// most `burst` jobs start, and one more for each 100 ms of the span.
///
/// With [`per`](Self::per), rate, burst and concurrency are those of each group, such as a tenant,
/// and the groups take turns; `total_rate`, `total_burst` and `total_concurrency` are those of all
/// groups together.
///
/// ```
/// use keyfall::{GroupBy, Limit};
/// use std::time::Duration;
///
/// let second = Duration::from_secs(1);
/// let provider = Limit::new().rate(10, second).burst(5).concurrency(20);
/// assert_eq!(provider.to_string(), "10/s, 5 at once, 20 at the same time");
///
/// let tenants = Limit::new().per(GroupBy::header("tenant")).concurrency(5).total_rate(100, second);
/// assert_eq!(
///     tenants.to_string(),
///     "5 at the same time for each header:tenant; 100/s in total"
/// );
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Limit {
    /// Of the kind; of each group if there is `per`.
    bounds: Bounds,
    /// Of the kind, beside those of its groups.
    total: Bounds,
    per: Option<GroupBy>,
    /// By group, in thousandths.
    weights: BTreeMap<String, u32>,
}

impl Limit {
    /// No limit yet: add a rate, a concurrency, or groups.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets `jobs` start in each `per`, evenly spaced: 1 or more, and at most 100,000 in a second;
    /// `per` is 1 ms to 366 days. The time between two starts is rounded up to a whole microsecond.
    pub fn rate(mut self, jobs: u32, per: Duration) -> Self {
        self.bounds.rate = Some((jobs, per));
        self
    }

    /// The same, as people write it: a number of jobs and a time, `10/s`, `50/m`, `5/h`, `1/d` or
    /// `1/90s`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidSetting`] if the text is no rate.
    pub fn parse_rate(self, text: &str) -> Result<Self> {
        let (jobs, per) = bounds::read_rate("rate", text)?;
        Ok(self.rate(jobs, per))
    }

    /// Lets up to this many jobs start at once, if none has started for long enough. 1 to 1,000,000;
    /// defaults to 1. Without a burst, each start comes some milliseconds after its time, so that a
    /// rate of more than some 10 in a second is not fully used: give 2, or what starts in 50 ms.
    pub fn burst(mut self, jobs: u32) -> Self {
        self.bounds.burst = Some(jobs);
        self
    }

    /// Lets at most this many jobs run at the same time: 1 to 1,000,000. A job whose lease has lapsed
    /// counts until another worker has taken it over.
    pub fn concurrency(mut self, jobs: u32) -> Self {
        self.bounds.concurrency = Some(jobs);
        self
    }

    /// Makes groups of the jobs, which take turns: a group with many waiting jobs delays the others
    /// by no more than its share. Rate, burst and concurrency are those of each group. Without them,
    /// the groups only take turns.
    pub fn per(mut self, group: GroupBy) -> Self {
        self.per = Some(group);
        self
    }

    /// The rate of all groups together; as [`rate`](Self::rate).
    pub fn total_rate(mut self, jobs: u32, per: Duration) -> Self {
        self.total.rate = Some((jobs, per));
        self
    }

    /// The same, as people write it; as [`parse_rate`](Self::parse_rate).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidSetting`] if the text is no rate.
    pub fn parse_total_rate(self, text: &str) -> Result<Self> {
        let (jobs, per) = bounds::read_rate("total_rate", text)?;
        Ok(self.total_rate(jobs, per))
    }

    /// The burst of all groups together; as [`burst`](Self::burst).
    pub fn total_burst(mut self, jobs: u32) -> Self {
        self.total.burst = Some(jobs);
        self
    }

    /// The number of jobs of all groups together that may run at the same time; as
    /// [`concurrency`](Self::concurrency).
    pub fn total_concurrency(mut self, jobs: u32) -> Self {
        self.total.concurrency = Some(jobs);
        self
    }

    /// Gives a group so many starts for one start of any other group, while jobs of both wait: 0.001
    /// to 1,000, to three decimal places; 1 by default. The group is named as the header or the id
    /// does, and is empty for the jobs without a group. At most 100 groups have a weight.
    pub fn weight(mut self, group: impl Into<String>, weight: f64) -> Self {
        // A weight that is no number is zero, which the check refuses.
        let thousandths = (weight * 1000.0).round() as u32;
        self.weights.insert(group.into(), thousandths);
        self
    }

    /// The same, as people write it: `acme=3`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidSetting`] if the text is no group and weight.
    pub fn parse_weight(self, text: &str) -> Result<Self> {
        let parsed = text.rsplit_once('=').and_then(|(group, weight)| {
            let weight: f64 = weight.trim().parse().ok()?;
            Some((group.trim(), weight))
        });
        let Some((group, weight)) = parsed else {
            return Err(Error::new(
                ErrorKind::InvalidSetting,
                format!(
                    "`weights`, {:?}, is no weight: write a group and a number, acme=3",
                    shown(text)
                ),
            ));
        };
        Ok(self.weight(group, weight))
    }

    /// The rate: the number of jobs, and the time.
    pub fn get_rate(&self) -> Option<(u32, Duration)> {
        self.bounds.rate
    }

    /// The rate as people write it, as for [`parse_rate`](Self::parse_rate).
    pub fn rate_text(&self) -> Option<String> {
        self.bounds.rate_text()
    }

    /// The number of jobs that may start at once; 1 without a burst, `None` without a rate.
    pub fn get_burst(&self) -> Option<u32> {
        self.bounds.effective_burst()
    }

    /// The number of jobs that may run at the same time.
    pub fn get_concurrency(&self) -> Option<u32> {
        self.bounds.concurrency
    }

    /// Where the group of a job is found; `None` without groups.
    pub fn get_per(&self) -> Option<&GroupBy> {
        self.per.as_ref()
    }

    /// The rate of all groups together as people write it.
    pub fn total_rate_text(&self) -> Option<String> {
        self.total.rate_text()
    }

    /// The number of jobs of all groups together that may start at once; 1 without a burst, `None`
    /// without a rate.
    pub fn get_total_burst(&self) -> Option<u32> {
        self.total.effective_burst()
    }

    /// The number of jobs of all groups together that may run at the same time.
    pub fn get_total_concurrency(&self) -> Option<u32> {
        self.total.concurrency
    }

    /// The groups with a weight, and their weights.
    pub fn get_weights(&self) -> impl Iterator<Item = (&str, f64)> {
        let weights = self.weights.iter();
        weights.map(|(group, thousandths)| (&**group, f64::from(*thousandths) / 1000.0))
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
        let refuse = |message: &str| Err(Error::new(ErrorKind::InvalidSetting, message));
        let own = self.bounds.terms("")?;
        let Some(per) = &self.per else {
            if self.total != Bounds::default() {
                return refuse(
                    "`total_rate`, `total_burst` and `total_concurrency` belong to groups: set `per` \
                     as well, or take `rate`, `burst` and `concurrency`",
                );
            }
            if !self.weights.is_empty() {
                return refuse("`weights` belong to groups: set `per` as well");
            }
            if !self.bounds.limits() {
                return refuse(
                    "a limit has a rate, a concurrency, or both: set one of them, or `per` for \
                     groups that take turns",
                );
            }
            return Ok(own);
        };
        per.check()?;
        if self.weights.len() > MOST_WEIGHTS {
            return refuse("`weights`: at most 100 groups have a weight");
        }
        let mut weights = Vec::new();
        for (group, thousandths) in &self.weights {
            if !(1..=1_000_000).contains(thousandths) {
                return refuse(&format!(
                    "`weights`: the weight of {group:?} is from 0.001 to 1000"
                ));
            }
            let weight = f64::from(*thousandths) / 1000.0;
            weights.push(format!("{}={weight}", group::written_group(group)?));
        }
        let mut terms = self.total.terms("total_")?;
        terms.groups = Some(GroupTerms {
            by: per.to_script(),
            gap: own.gap,
            burst: own.burst,
            most: own.most,
            weights: weights.join(" "),
        });
        Ok(terms)
    }

    /// The text of a rule: `jobs per-µs burst concurrency` of the kind, where 0 stands for none; and
    /// what its groups have, `by jobs per-µs burst concurrency name=weight …`, if it has any.
    pub(crate) fn rule_text(&self) -> (String, Option<String>) {
        let Some(per) = &self.per else {
            return (self.bounds.rule_text(), None);
        };
        let mut groups = format!("{} {}", per.to_script(), self.bounds.rule_text());
        for (group, weight) in self.get_weights() {
            if let Ok(name) = group::written_group(group) {
                groups.push_str(&format!(" {name}={weight}"));
            }
        }
        (self.total.rule_text(), Some(groups))
    }

    /// Reads the texts of a rule; `None` if another program wrote them.
    pub(crate) fn of_rule(kind: &str, groups: Option<&str>) -> Option<Self> {
        let mut limit = Limit::new();
        let Some(groups) = groups else {
            limit.bounds = Bounds::of_rule(kind)?;
            return Some(limit);
        };
        limit.total = Bounds::of_rule(kind)?;
        let (by, rest) = groups.split_once(' ')?;
        limit.per = Some(GroupBy::of_script(by)?);
        let words: Vec<&str> = rest.split(' ').collect();
        let (bounds, weights) = words.split_at_checked(4)?;
        limit.bounds = Bounds::of_rule(&bounds.join(" "))?;
        for word in weights {
            let (name, weight) = word.split_once('=')?;
            limit = limit.weight(group::read_group(name)?, weight.parse().ok()?);
        }
        Some(limit)
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.phrase())
    }
}

impl Limit {
    /// The limit in words.
    pub fn phrase(&self) -> Phrase {
        let own = self.bounds.phrase();
        let Some(per) = &self.per else {
            return own.unwrap_or_else(|| "".into());
        };
        let per = per.to_string().into();
        let mut said = match own {
            None => Phrase::new("limit.turns", "turns for each {}", [per]),
            Some(own) => Phrase::new("limit.each", "{} for each {}", [own, per]),
        };
        if let Some(total) = self.total.phrase() {
            said = Phrase::new("limit.total", "{}; {} in total", [said, total]);
        }
        let weights: Vec<String> = self
            .get_weights()
            .map(|(group, weight)| format!("{group}={weight}"))
            .collect();
        if !weights.is_empty() {
            let weights = weights.join(" ").into();
            said = Phrase::new("limit.weights", "{}; weights {}", [said, weights]);
        }
        said
    }
}

#[cfg(test)]
mod tests {
    use super::bounds::LONGEST;
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_limit_is_written_in_microseconds_between_starts() {
        let terms = |limit: Limit| limit.terms().unwrap();
        let of = |gap, burst, most| Terms {
            gap,
            burst,
            most,
            groups: None,
        };
        assert_eq!(terms(Limit::new().rate(10, SECOND)), of(100_000, 1, 0));
        let all = Limit::new().rate(3, SECOND).burst(7).concurrency(9);
        assert_eq!(terms(all.clone()), of(333_334, 7, 9));
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
    fn with_groups_the_total_is_that_of_the_kind() {
        let limit = Limit::new()
            .per(GroupBy::header("tenant"))
            .concurrency(5)
            .total_rate(100, SECOND)
            .weight("acme & co", 2.5)
            .weight("", 0.5);
        let terms = limit.terms().unwrap();
        assert_eq!((terms.gap, terms.burst, terms.most), (10_000, 1, 0));
        let groups = terms.groups.unwrap();
        assert_eq!((groups.gap, groups.most), (0, 5));
        assert_eq!(groups.by, "header=tenant");
        assert_eq!(groups.weights, "%=0.5 acme%20%26%20co=2.5");
        assert_eq!(
            limit.to_string(),
            "5 at the same time for each header:tenant; 100/s in total; weights =0.5 acme & co=2.5"
        );
        let turns = Limit::new().per(GroupBy::id_part(1));
        assert_eq!(turns.to_string(), "turns for each id/1");
        assert!(turns.terms().is_ok());
    }

    #[test]
    fn a_weight_is_read_from_its_text() {
        let limit = Limit::new().parse_weight("a=b = 2.5").unwrap();
        assert_eq!(limit.get_weights().collect::<Vec<_>>(), [("a=b", 2.5)]);
        for text in ["", "acme", "acme=", "acme=x"] {
            let error = Limit::new().parse_weight(text).unwrap_err();
            assert!(error.to_string().contains("acme=3"), "{error}");
        }
    }

    #[test]
    fn a_limit_of_groups_is_refused_by_the_name_of_the_field() {
        let tenants = || Limit::new().per(GroupBy::header("tenant"));
        for (limit, named) in [
            (Limit::new().total_concurrency(3), "`per` as well"),
            (
                Limit::new().concurrency(1).weight("a", 2.0),
                "`per` as well",
            ),
            (tenants().total_burst(2), "`total_rate` as well"),
            (tenants().total_concurrency(0), "`total_concurrency`"),
            (tenants().weight("a", 0.0), "`weights`"),
            (tenants().weight("a", f64::NAN), "`weights`"),
            (tenants().weight("a", 1001.0), "`weights`"),
            (tenants().weight("é".repeat(30), 2.0), "`weights`"),
            (Limit::new().per(GroupBy::header("")), "`per`"),
            (Limit::new().per(GroupBy::id_part(0)), "`per`"),
        ] {
            let error = limit.terms().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidSetting);
            assert!(error.to_string().contains(named), "{error}");
        }
    }
}
