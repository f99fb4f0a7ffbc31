//! Calls of producers: schedule jobs, singly or in batches, and change scheduled jobs.

pub(super) mod change;
pub(super) mod many;
pub(super) mod new_job;
pub(super) mod ordered;
pub(super) mod schedule;
