//! What producers call: schedule, one or many, and change what is scheduled.

pub(super) mod change;
pub(super) mod many;
pub(super) mod new_job;
pub(super) mod ordered;
pub(super) mod schedule;
