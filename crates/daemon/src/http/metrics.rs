//! The metrics of the daemon, for Prometheus.

use std::time::Duration;

use axum::http::header;
use axum::response::{IntoResponse, Response};
use keyfall::metrics;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use metrics_util::MetricKindMask;
use tokio::time::interval;

use super::auth::{Caller, Scope};
use super::problem::Problem;

/// The buckets of the durations of calls, in seconds.
const SCRIPT_BUCKETS: [f64; 13] = [
    0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0,
];

/// The time after which a series without changes is no longer shown: its kind is gone, or idle.
const FORGET_AFTER: Duration = Duration::from_secs(3600);

/// How often measurements are put into their buckets, even without a scrape.
const UPKEEP: Duration = Duration::from_secs(5);

/// The metrics of this process. Clones share them.
#[derive(Clone)]
pub(crate) struct Recorder(PrometheusHandle);

impl Recorder {
    /// Counts from now on, for this whole process.
    pub(crate) fn install() -> anyhow::Result<Self> {
        let builder = PrometheusBuilder::new()
            .idle_timeout(MetricKindMask::ALL, Some(FORGET_AFTER))
            .set_buckets(&metrics::LAG_BUCKETS)?
            .set_buckets_for_metric(
                Matcher::Full("keyfall_script_seconds".into()),
                &SCRIPT_BUCKETS,
            )?;
        let recorder = builder.build_recorder();
        let handle = recorder.handle();
        ::metrics::set_global_recorder(recorder)?;
        metrics::describe();
        Ok(Recorder(handle))
    }

    /// Puts measurements into their buckets, for ever.
    pub(crate) async fn keep_up(&self) {
        let mut look = interval(UPKEEP);
        loop {
            look.tick().await;
            self.0.run_upkeep();
        }
    }
}

/// The counters of this daemon, and the number of jobs in Redis, in the text format of Prometheus.
#[utoipa::path(get, path = "/metrics", operation_id = "get_metrics", tag = "health",
    responses((status = 200, description = "Counters, gauges and histograms", body = String, content_type = "text/plain")))]
pub(super) async fn show(caller: Caller) -> Result<Response, Problem> {
    let api = caller.may(Scope::Read, "")?;
    // The counters of this process are available even if Redis is not.
    if let Err(error) = metrics::sample(&api.client).await {
        tracing::debug!(%error, "the jobs could not be counted");
    }
    let text = api.recorder.as_ref().map(|recorder| recorder.0.render());
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    Ok(([(header::CONTENT_TYPE, kind)], text.unwrap_or_default()).into_response())
}
