//! The requests that the phase `http` sends to a daemon.

use std::ops::Range;
use std::time::Instant;

use anyhow::ensure;
use futures_util::{StreamExt, TryStreamExt, stream};
use reqwest::Method;
use serde::Deserialize;
use serde_json::json;

use super::CONSUMERS;
use crate::bar::Bar;
use crate::ground;

/// Lines in a batch request, as a client sends them that does not read the answer meanwhile.
const LINES: usize = 1000;
/// Simultaneous batch requests.
const BATCHES: usize = 4;

/// A client of the daemon. Clones share its connections.
#[derive(Clone)]
pub(super) struct Api {
    http: reqwest::Client,
    url: String,
    kind: String,
    payload: String,
}

/// The answer to a pull, as far as it is read.
#[derive(Deserialize)]
struct PulledIn {
    jobs: Vec<JobIn>,
}

#[derive(Deserialize)]
struct JobIn {
    lease: String,
}

impl Api {
    /// A client for jobs of this kind, with payloads of `payload` bytes.
    pub(super) fn new(url: &str, kind: String, payload: usize) -> Self {
        Api {
            http: reqwest::Client::new(),
            url: url.to_owned(),
            kind,
            // With its quotes, the JSON text has the wanted length.
            payload: "x".repeat(payload.saturating_sub(2)),
        }
    }

    /// Schedules one job, due in an hour.
    pub(super) async fn schedule(self, number: usize) -> anyhow::Result<()> {
        let key = ground::key(&self.kind, number);
        let body = json!({"payload": self.payload, "after": "1h"});
        self.sent(Method::PUT, &format!("/v1/jobs/{key}"), body.to_string())
            .await?;
        Ok(())
    }

    /// Sends a request and returns the body of the answer. A refusal is an error.
    async fn sent(&self, method: Method, path: &str, body: String) -> reqwest::Result<String> {
        let call = self.http.request(method, format!("{}{path}", self.url));
        let answer = call.body(body).send().await?;
        answer.error_for_status()?.text().await
    }

    /// Schedules these jobs in batches, and returns the jobs in a second.
    pub(super) async fn batches(&self, numbers: Range<usize>, bar: &Bar) -> anyhow::Result<f64> {
        bar.begin("in batches", numbers.len());
        let (jobs, end, began) = (numbers.len(), numbers.end, Instant::now());
        let requests = numbers.step_by(LINES).map(|first| async move {
            let numbers = first..end.min(first + LINES);
            let count = numbers.len();
            self.batch(numbers).await?;
            bar.advance(count);
            anyhow::Ok(())
        });
        let sent = stream::iter(requests).buffer_unordered(BATCHES);
        let () = sent.try_collect().await?;
        Ok(jobs as f64 / began.elapsed().as_secs_f64())
    }

    /// Schedules these jobs with one request.
    async fn batch(&self, numbers: Range<usize>) -> anyhow::Result<()> {
        let count = numbers.len();
        let line = |number| {
            let key = ground::key(&self.kind, number);
            let call =
                json!({"call": "schedule", "key": key, "payload": self.payload, "after": "1h"});
            format!("{call}\n")
        };
        let lines: String = numbers.map(line).collect();
        let answers = self.sent(Method::POST, "/v1/batch", lines).await?;
        let scheduled = answers.matches("\"status\":201").count();
        ensure!(scheduled == count, "a batch was not carried out: {answers}");
        Ok(())
    }

    /// Pulls some jobs, finishes them, and returns their number.
    pub(super) async fn pull_and_finish(self) -> anyhow::Result<usize> {
        let wanted = json!({"max": CONSUMERS.max, "wait": format!("{:?}", CONSUMERS.wait)});
        let answer = self.sent(Method::POST, "/v1/pull", wanted.to_string());
        let PulledIn { jobs } = serde_json::from_str(&answer.await?)?;
        if jobs.is_empty() {
            return Ok(0);
        }
        let count = jobs.len();
        let leases: Vec<String> = jobs.into_iter().map(|job| job.lease).collect();
        let leases = json!({"leases": leases}).to_string();
        let answer = self.sent(Method::POST, "/v1/leases/finish", leases).await?;
        let done = answer.matches("\"result\":\"done\"").count();
        ensure!(done == count, "jobs were not finished: {answer}");
        Ok(count)
    }
}
