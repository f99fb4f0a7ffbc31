//! Limits as the scripts know them, and their parts in several ledgers.

use crate::error::{Error, ErrorKind, Result};

/// A limit as the scripts know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Terms {
    /// The µs between two starts in the long run; 0 without a rate.
    pub(crate) gap: u64,
    /// How many jobs may start at once.
    pub(crate) burst: u64,
    /// How many leases there may be at once; 0 for any number.
    pub(crate) most: u64,
    /// The same for each group, if there are groups.
    pub(crate) groups: Option<GroupTerms>,
}

/// The limit of each group, as the scripts know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GroupTerms {
    /// Where the group of a job is found: `header=name`, or `id`, a mark and a number.
    pub(crate) by: String,
    pub(crate) gap: u64,
    pub(crate) burst: u64,
    pub(crate) most: u64,
    /// `name=weight name=weight`.
    pub(crate) weights: String,
}

impl Terms {
    /// No limit.
    pub(crate) const NONE: Terms = Terms {
        gap: 0,
        burst: 1,
        most: 0,
        groups: None,
    };

    /// The part of one of `ledgers` ledgers among which the limit is split evenly. What cannot be
    /// split evenly is left out: the parts together never exceed the limit. The jobs of a group are
    /// spread over all ledgers, so its limit is split as well.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidSetting`] if there is not enough for each ledger.
    pub(crate) fn split(self, ledgers: u16) -> Result<Terms> {
        let of_group = self.groups.is_some();
        let part =
            |gap, burst, most, before: &str| split((gap, burst, most), u64::from(ledgers), before);
        let total = if of_group { "total_" } else { "" };
        let (gap, burst, most) = part(self.gap, self.burst, self.most, total)?;
        let groups = match self.groups {
            None => None,
            Some(groups) => {
                let (gap, burst, most) = part(groups.gap, groups.burst, groups.most, "")?;
                Some(GroupTerms {
                    gap,
                    burst,
                    most,
                    ..groups
                })
            }
        };
        Ok(Terms {
            gap,
            burst,
            most,
            groups,
        })
    }
}

/// The part of a gap, a burst and a most; `before` is what the names of their fields begin with.
fn split(
    (gap, burst, most): (u64, u64, u64),
    ledgers: u64,
    before: &str,
) -> Result<(u64, u64, u64)> {
    let few = |what: &str, jobs: u64| {
        Error::new(
            ErrorKind::InvalidSetting,
            format!(
                "`{before}{what}` is {jobs}, and the kind has {ledgers} shards, which share it \
                 evenly: make it {ledgers} or more, or reshard the kind to at most {jobs}"
            ),
        )
    };
    if gap > 0 && burst < ledgers {
        return Err(few("burst", burst));
    }
    if most > 0 && most < ledgers {
        return Err(few("concurrency", most));
    }
    Ok((gap * ledgers, (burst / ledgers).max(1), most / ledgers))
}
