//! Runs what was claimed, for as long as its lease lasts.
//!
//! | part | what it does |
//! |---|---|
//! | [`slots`] | the right to run a job, of those that one set of routes has |
//! | [`limits`] | how many jobs may run at the same time, over all |
//! | [`limiter`] | how many on each route; with [`rate`] and [`external`], how many in a time, and how many in the hands of those who pull |
//! | [`runner`] | calls the handler, and settles |
//! | [`span`] | the span of a run, for the log and for traces |
//! | [`leases`] | renews the leases of what runs |

mod external;
pub(super) mod leases;
mod limiter;
pub(super) mod limits;
mod rate;
pub(super) mod runner;
pub(super) mod slots;
#[cfg(not(feature = "traces"))]
#[path = "plain_span.rs"]
mod span;
#[cfg(feature = "traces")]
mod span;
