//! What is counted and measured, for the [`metrics`](https://docs.rs/metrics) facade.
//!
//! Install a recorder, such as that of `metrics-exporter-prometheus`, before the first client
//! connects: what is counted before there is one is not counted. Then call [`describe`], and
//! [`sample`] before each time that the recorder is read. `keyfall serve` has a recorder of its
//! own, and shows it at `/metrics`.
//!
#![doc = include_str!("../../docs/metrics.md")]

mod described;
mod gauges;

pub use described::describe;
pub use gauges::sample;

/// What `keyfall_lag_seconds` and `keyfall_handler_seconds` are best divided by: from 1 ms to 1 h.
pub const LAG_BUCKETS: [f64; 17] = [
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0,
    1800.0, 3600.0,
];
