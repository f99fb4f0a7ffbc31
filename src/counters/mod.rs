//! Counters and histograms that the library updates while it works: a [`Meter`] for each ledger,
//! and functions for the process. Both do nothing without the feature `metrics`.
//!
//! Callers do not test the feature: both variants have the same items. The names of the metrics are
//! described in `src/metrics/described.rs`.

#[cfg(feature = "metrics")]
mod meter;
#[cfg(not(feature = "metrics"))]
#[path = "none.rs"]
mod meter;

pub(crate) use meter::Meter;
#[cfg(all(feature = "metrics", feature = "worker"))]
pub(crate) use meter::OUTCOMES;
#[cfg(feature = "worker")]
pub(crate) use meter::{
    breakers_are_open, changes_are_announced, event_is_foreign, event_is_heard,
};
pub(crate) use meter::{reconnected, script_took};
