//! Metrics of clients and workers, for the [`metrics`](https://docs.rs/metrics) facade.
//!
//! Install a recorder, for example `metrics-exporter-prometheus`, before the first client connects:
//! events before that are not counted. Then call [`describe`] once, and [`sample`] each time before
//! the recorder is read. `keyfall serve` has a recorder of its own, and shows it at `/metrics`.
//!
//! ```no_run
//! # async fn example() -> keyfall::Result<()> {
//! // Install the recorder of your choice here.
//! keyfall::metrics::describe();
//! let client = keyfall::Client::connect("redis://127.0.0.1:6379").await?;
//! keyfall::metrics::sample(&client).await?;
//! # Ok(())
//! # }
//! ```
//!
#![doc = include_str!("../../docs/metrics.md")]

mod described;
mod gauges;

pub use described::describe;
pub use gauges::sample;

/// Upper bounds of histogram buckets, in seconds, that suit `keyfall_lag_seconds` and
/// `keyfall_handler_seconds`: ascending, from 1 ms to 1 h. Pass them to the recorder.
pub const LAG_BUCKETS: [f64; 17] = [
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0,
    1800.0, 3600.0,
];
