//! A thousand waiting consumers, each with one job at a time: over the classic interface of a
//! daemon, and in this process.

use std::time::{Duration, Instant};

use anyhow::ensure;
use keyfall::target::Pull;
use keyfall::{Router, Worker};
use serde::Deserialize;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::fall_due;
use crate::args::Options;
use crate::bar::Bar;
use crate::daemon::Daemon;
use crate::drain::{self, Consumers};
use crate::ground::{Ground, Moment};

/// The consumers.
const CONSUMERS: Consumers = Consumers {
    count: 1000,
    max: 1,
    wait: Duration::from_secs(180),
};

/// The time before the due time in which all consumers connect and begin to wait.
const REST: Duration = Duration::from_secs(2);

/// A client of the classic interface. Clones share its connections.
#[derive(Clone)]
struct Classic {
    http: reqwest::Client,
    url: String,
    topic: String,
}

/// An answer, as far as it is read.
#[derive(Deserialize)]
struct AnswerIn {
    code: u8,
    message: String,
    data: Option<JobIn>,
}

#[derive(Deserialize)]
struct JobIn {
    id: String,
}

/// The jobs that the consumers finish in a second, in this process and over the classic interface.
pub(super) async fn measure(
    ground: &Ground,
    options: &Options,
    bar: &Bar,
) -> anyhow::Result<(f64, f64)> {
    let mut kinds = ground.kinds(8).skip(6);
    let mut kind = || kinds.next().expect("there are two");
    let here = in_process(ground, options, &kind(), bar).await?;
    Ok((here, over_http(ground, options, &kind(), bar).await?))
}

/// The rate with the library alone.
async fn in_process(
    ground: &Ground,
    options: &Options,
    kind: &str,
    bar: &Bar,
) -> anyhow::Result<f64> {
    let (pull, stop) = (Pull::new(), CancellationToken::new());
    let routes = Router::new().route(&format!("{kind}:*"), pull.clone());
    let client = ground.another_client().await?;
    let worker = Worker::new(client.clone(), routes).run_until(stop.clone().cancelled_owned());
    let worker = tokio::spawn(worker);
    let take = move || drain::locally(CONSUMERS, pull.clone(), client.clone());
    let rate = rate(ground, options, kind, take, bar).await?;
    stop.cancel();
    worker.await??;
    Ok(rate)
}

/// The rate with a daemon.
async fn over_http(
    ground: &Ground,
    options: &Options,
    kind: &str,
    bar: &Bar,
) -> anyhow::Result<f64> {
    let (prefix, topic) = kind.rsplit_once(':').expect("three segments");
    let flags = [
        "--classic-listen",
        "127.0.0.1:0",
        "--classic-prefix",
        prefix,
    ];
    let daemon = Daemon::start(ground, &flags, "classic interface on ").await?;
    let classic = Classic {
        http: reqwest::Client::new(),
        url: daemon.url().to_owned(),
        topic: topic.to_owned(),
    };
    let take = move || classic.clone().pop_and_finish();
    let rate = rate(ground, options, kind, take, bar).await?;
    daemon.stop().await?;
    Ok(rate)
}

/// The jobs that are finished in a second, counted from their due time.
async fn rate<F>(
    ground: &Ground,
    options: &Options,
    kind: &str,
    take: impl Fn() -> F + Clone + Send + 'static,
    bar: &Bar,
) -> anyhow::Result<f64>
where
    F: Future<Output = anyhow::Result<usize>> + Send,
{
    let filled = fall_due(ground, options, kind, REST, bar);
    let done = drain::until_done(CONSUMERS, options.burst, take, bar);
    let (due, done): (Moment, Instant) = tokio::try_join!(filled, done)?;
    Ok(options.burst as f64 / (done - due.here).as_secs_f64())
}

impl Classic {
    /// Pops a job and finishes it. Returns the number of jobs, 0 or 1.
    async fn pop_and_finish(self) -> anyhow::Result<usize> {
        let Some(job) = self.ask("pop", json!({"topic": self.topic})).await? else {
            return Ok(0);
        };
        self.ask("finish", json!({"id": job.id})).await?;
        Ok(1)
    }

    /// Sends a call. Its answer must have the code 0.
    async fn ask(&self, call: &str, body: serde_json::Value) -> anyhow::Result<Option<JobIn>> {
        let request = self.http.post(format!("{}/{call}", self.url));
        let answer = request.body(body.to_string()).send().await?.bytes().await?;
        let AnswerIn {
            code,
            message,
            data,
        } = serde_json::from_slice(&answer)?;
        ensure!(code == 0, "{call} was answered by {code}: {message}");
        Ok(data)
    }
}
