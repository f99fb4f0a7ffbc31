//! What the library counts while it works: the meter of a ledger, and counters of the process. Both
//! do nothing without the feature `metrics`.

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
