//! Calls of operators: look up, list, count, audit, pause, reshard, and change or end many jobs at
//! once.

#[cfg(feature = "worker")]
pub(super) mod actions;
pub(super) mod audit;
pub(super) mod bulk;
pub(super) mod counting;
pub(super) mod cursor;
#[cfg(feature = "worker")]
pub(super) mod dropping;
pub(super) mod filter;
pub(super) mod folding;
pub(super) mod functions;
pub(super) mod grouping;
#[cfg(feature = "worker")]
pub(super) mod history;
#[cfg(feature = "worker")]
pub(super) mod instances;
pub(super) mod letters;
pub(super) mod listing;
#[cfg(feature = "worker")]
pub(super) mod mending;
pub(super) mod partial;
pub(super) mod pausing;
#[cfg(feature = "worker")]
pub(super) mod resharding;
pub(super) mod restoring;
pub(super) mod scan;
pub(super) mod selection;
#[cfg(feature = "worker")]
pub(super) mod series;
pub(super) mod stats;
#[cfg(feature = "worker")]
pub(super) mod story;
pub(super) mod upcoming;
