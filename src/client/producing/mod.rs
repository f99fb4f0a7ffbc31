//! Calls of producers: schedule jobs, singly or in batches, and change scheduled jobs.

pub(super) mod change;
#[cfg(feature = "worker")]
pub(super) mod declaring;
pub(super) mod many;
pub(super) mod new_job;
pub(super) mod numbered;
pub(super) mod ordered;
pub(super) mod rule;
pub(super) mod schedule;
pub(super) mod series;
pub(super) mod terms;
