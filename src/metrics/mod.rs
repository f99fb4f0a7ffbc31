//! What is counted and measured, for the [`metrics`](https://docs.rs/metrics) facade.
//!
//! Install a recorder, such as that of `metrics-exporter-prometheus`, before the first client
//! connects: what is counted before there is one is not counted. `keyfall serve` has its own, and
//! shows it at `/metrics`. Names follow the [conventions of
//! Prometheus](https://prometheus.io/docs/practices/naming/): totals count what this process did
//! since it started, times are in seconds.
//!
//! | name | labels | what it is |
//! |---|---|---|
//! | `keyfall_scheduled_total` | `kind` | jobs that a schedule created, replaced, or had follow a run |
//! | `keyfall_cancelled_total` | `kind` | cancels that found a job |
//! | `keyfall_claimed_total` | `kind`, `source` | jobs claimed; `source` is how they were found: `event`, `pacer`, `reconciler`, `backlog` |
//! | `keyfall_settled_total` | `kind`, `outcome` | runs that ended: `done`, `failed` (tried again), `again`, `snoozed`, `returned`, `buried`, `replaced`, `cancelled`, or `late`: the lease was over |
//! | `keyfall_retries_total` | `kind` | runs begun that were not the first attempt of their job |
//! | `keyfall_dead_total` | `kind` | runs after which the job was a dead letter |
//! | `keyfall_claims_lost_total` | `kind` | jobs that were asked for and that somebody else had, or nobody any more |
//! | `keyfall_lag_seconds` | `kind` | histogram: from the due time to the start of the run, by the clock of Redis |
//! | `keyfall_handler_seconds` | `kind` | histogram: for how long handlers ran |
//! | `keyfall_script_seconds` | `script` | histogram: how long Redis and the way to it took for each call |
//! | `keyfall_events_heard_total` | | expired keys that are jobs served here |
//! | `keyfall_events_foreign_total` | | expired keys that are not |
//! | `keyfall_events_dropped_total` | `kind` | jobs found due that were not noted, because more than a thousand were; they are claimed as the oldest |
//! | `keyfall_touches_total` | `kind` | triggers that the pacer touched so that Redis expires them |
//! | `keyfall_reconnects_total` | `connection` | connections opened in place of one that was lost: `commands`, `events` |
//! | `keyfall_samples_failed_total` | | times that Redis did not answer when the following were to be set: they are old then |
//! | `keyfall_pending`, `keyfall_overdue`, `keyfall_leased`, `keyfall_dead` | `kind` | how many jobs are in that state; `overdue` are those of the pending that are due |
//! | `keyfall_oldest_overdue_seconds` | `kind` | for how long the oldest of them has been due; 0 if none is |
//! | `keyfall_unbalanced` | `kind` | jobs and dead letters that are not accounted for: 0, unless somebody else writes to the ledger |
//!
//! The last three lines are of the whole ledger and are set by [`sample`]; all others are of this
//! process. Kinds are as many as you name; no label ever holds an id.

#[cfg(feature = "metrics")]
mod described;
#[cfg(feature = "metrics")]
mod gauges;
#[cfg(feature = "metrics")]
mod meter;
#[cfg(not(feature = "metrics"))]
#[path = "none.rs"]
mod meter;

#[cfg(feature = "metrics")]
pub use described::describe;
#[cfg(feature = "metrics")]
pub use gauges::sample;
pub(crate) use meter::Meter;
#[cfg(feature = "worker")]
pub(crate) use meter::{event_is_foreign, event_is_heard};
pub(crate) use meter::{reconnected, script_took};

/// What `keyfall_lag_seconds` and `keyfall_handler_seconds` are best divided by: from 1 ms to 1 h.
#[cfg(feature = "metrics")]
pub const LAG_BUCKETS: [f64; 17] = [
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0,
    1800.0, 3600.0,
];
