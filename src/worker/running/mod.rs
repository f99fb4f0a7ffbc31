//! Runs claimed jobs, and keeps their leases while they run.
//!
//! | part | task |
//! |---|---|
//! | [`slots`] | hands out slots: the right to run one job, for one set of routes |
//! | [`limits`] | counts the running jobs over all routes |
//! | [`limiter`] | limits each route; with [`rate`] the starts in a time, with [`external`] the leases that others hold |
//! | [`runner`] | calls the handler, and settles the job |
//! | [`span`] | the tracing span of a run, for the log and for traces |
//! | [`leases`] | renews the leases of running jobs |

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
