//! The meter without the feature `metrics`: the items of `meter.rs`, which do nothing and compile
//! to nothing.

use std::time::Duration;

use crate::key::Kind;
#[cfg(feature = "worker")]
use crate::source::Source;

/// Stands for the meter of a ledger; has no data.
pub(crate) struct Meter;

impl Meter {
    /// Takes the place of a meter for a kind.
    pub(crate) fn new(_: &Kind) -> Self {
        Meter
    }

    pub(crate) fn scheduled(&self, _: u64) {}

    pub(crate) fn cancelled(&self, _: u64) {}
}

#[cfg(feature = "worker")]
impl Meter {
    pub(crate) fn begun(&self, _: Source, _: Duration, _: u32) {}

    pub(crate) fn adopted(&self, _: impl Iterator<Item = &'static str>) {}

    pub(crate) fn ran(&self, _: Duration) {}

    pub(crate) fn settled(&self, _: &'static str) {}

    pub(crate) fn lost(&self, _: u64) {}

    pub(crate) fn dropped(&self) {}

    pub(crate) fn touched(&self, _: u64) {}
}

#[cfg(feature = "worker")]
pub(crate) fn event_is_heard() {}

#[cfg(feature = "worker")]
pub(crate) fn event_is_foreign() {}

#[cfg(feature = "worker")]
pub(crate) fn changes_are_announced(_: &str, _: bool) {}

#[cfg(feature = "worker")]
pub(crate) fn breakers_are_open(_: usize) {}

pub(crate) fn reconnected(_: &'static str) {}

pub(crate) fn script_took(_: &'static str, _: Duration) {}
