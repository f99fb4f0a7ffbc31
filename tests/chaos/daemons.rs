//! Daemons: `keyfall serve` as processes, and the way to them over HTTP.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use keyfall_testing::ports::free_port;
use reqwest::{Client, Method, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::journal::Answer;
use crate::roles::keyfall;
use crate::target::Ways;

pub(crate) const DAEMONS: usize = 2;

/// Longer than any call takes, a pull included.
const PATIENCE: Duration = Duration::from_secs(60);

/// The ports of the daemons. A daemon that is started again has the same port.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Ports(pub(crate) Vec<u16>);

/// A client that tries the daemons until one answers.
pub(crate) struct Daemons {
    urls: Vec<String>,
    http: Client,
    /// Counts calls, so that the daemons take turns in being asked first.
    turn: AtomicUsize,
}

/// A call without an answer.
#[derive(Debug, Clone)]
pub(crate) enum Lost {
    /// No daemon got the call.
    Unsent(String),
    /// A daemon may have carried it out.
    Unknown(String),
}

impl Ports {
    /// So many free ports.
    pub(crate) fn free(count: usize) -> Self {
        Ports((0..count).map(|_| free_port()).collect())
    }
}

/// The command of daemon `number`, for the Redis at `url`; its configuration is kept in `dir`.
pub(crate) fn command(ways: &Ways, number: usize, url: &str, dir: &Path) -> Command {
    let config = dir.join(format!("daemon-{number}.toml"));
    fs::write(&config, ways.config(number)).expect("the directory is writable");
    let port = ways.api.0[number];
    let mut command = keyfall();
    command
        .args(["serve", "--redis-url", url])
        .args(["--http-listen", &format!("127.0.0.1:{port}")])
        .args(["--http-access-log=false", "--log-filter", "info"])
        .args(["--worker-dead-letters", "1000000", "--config"])
        .arg(config);
    command
}

impl Daemons {
    pub(crate) fn new(ports: &Ports) -> Self {
        // The client needs a provider, though it meets no TLS. This fails if one is installed
        // already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let urls = ports.0.iter();
        Daemons {
            urls: urls
                .map(|port| format!("http://127.0.0.1:{port}"))
                .collect(),
            http: Client::builder()
                .timeout(PATIENCE)
                .build()
                .expect("it needs nothing"),
            turn: AtomicUsize::new(0),
        }
    }

    /// A call with a body in JSON, and its answer; `null` for an answer without a body.
    pub(crate) async fn call(
        &self,
        method: Method,
        path: &str,
        body: &Value,
    ) -> Result<(StatusCode, Value), Lost> {
        let (status, answer) = self.send(method, path, body.to_string()).await?;
        let answer = serde_json::from_slice(&answer);
        Ok((status, answer.unwrap_or(Value::Null)))
    }

    /// Many calls on jobs, and the answer to each, as far as it is known.
    pub(crate) async fn batch(&self, calls: &[Value]) -> Result<Vec<(StatusCode, Value)>, Lost> {
        let lines: String = calls.iter().map(|call| format!("{call}\n")).collect();
        let (status, answer) = self.send(Method::POST, "/v1/batch", lines).await?;
        let lines: Vec<&[u8]> = answer.split(|byte| *byte == b'\n').collect();
        let answers = lines.into_iter().filter(|line| !line.is_empty());
        let answers = answers.map(|line| {
            let mut line: Value = serde_json::from_slice(line).expect("a whole line is JSON");
            let status = line["status"]
                .as_u64()
                .and_then(|it| u16::try_from(it).ok());
            let status = status.and_then(|it| StatusCode::from_u16(it).ok());
            let part = if line["problem"].is_null() {
                "result"
            } else {
                "problem"
            };
            (status.expect("as documented"), line[part].take())
        });
        if status.is_success() {
            Ok(answers.collect())
        } else {
            Err(Lost::Unsent(format!("{status}")))
        }
    }

    /// Asks one daemon. Another one is asked only if the call cannot have reached the first.
    async fn send(
        &self,
        method: Method,
        path: &str,
        body: String,
    ) -> Result<(StatusCode, Bytes), Lost> {
        let unknown = |error: reqwest::Error| Lost::Unknown(format!("{error:?}"));
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let mut unsent = String::new();
        for place in (turn..).take(self.urls.len()) {
            let url = format!("{}{path}", self.urls[place % self.urls.len()]);
            let request = self.http.request(method.clone(), url).body(body.clone());
            match request.send().await {
                Ok(answer) => {
                    let status = answer.status();
                    return Ok((status, answer.bytes().await.map_err(unknown)?));
                }
                Err(error) if error.is_connect() => unsent = format!("{error:?}"),
                Err(error) => return Err(unknown(error)),
            }
        }
        Err(Lost::Unsent(unsent))
    }
}

impl From<Lost> for Answer {
    fn from(lost: Lost) -> Self {
        match lost {
            Lost::Unsent(told) => Answer::Refused(told),
            Lost::Unknown(told) => Answer::Unknown(told),
        }
    }
}
