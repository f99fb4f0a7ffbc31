//! Limits as the scripts know them.

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
}
