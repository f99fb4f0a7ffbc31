//! What the clients of the daemon ask.

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

/// How many lines a request holds, and how many requests are under way: what a client sends that
/// does not read while it sends.
const LINES: usize = 1000;
const BATCHES: usize = 4;

/// A client; clones share its connections.
#[derive(Clone)]
pub(super) struct Api {
    http: reqwest::Client,
    url: String,
    kind: String,
    payload: String,
}

/// What is read of an answer to a pull.
#[derive(Deserialize)]
struct PulledIn {
    jobs: Vec<JobIn>,
}

#[derive(Deserialize)]
struct JobIn {
    lease: String,
}

impl Api {
    /// Jobs of this kind, with payloads of so many bytes.
    pub(super) fn new(url: &str, kind: String, payload: usize) -> Self {
        Api {
            http: reqwest::Client::new(),
            url: url.to_owned(),
            kind,
            // In quotes it is as long as it is to be.
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

    /// The answer to a request that must not be refused.
    async fn sent(&self, method: Method, path: &str, body: String) -> reqwest::Result<String> {
        let call = self.http.request(method, format!("{}{path}", self.url));
        let answer = call.body(body).send().await?;
        answer.error_for_status()?.text().await
    }

    /// Schedules these in batches; how many in a second.
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

    /// Pulls some jobs and finishes them; how many there were.
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
