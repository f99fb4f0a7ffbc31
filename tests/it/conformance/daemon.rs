//! Consumers outside of our processes: they speak to the present daemon.

use std::process::Command;
use std::sync::{Arc, Mutex};

use keyfall_testing::process::TalkingProcess;
use reqwest::Client;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout_at};

use crate::site::ms;

/// The address of the present daemon.
#[derive(Clone)]
pub(super) struct Line {
    url: Arc<Mutex<String>>,
    http: Client,
}

/// `keyfall serve` on this Redis. It announces each of its addresses on a line of its own.
pub(super) fn serve(redis: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keyfall"));
    command
        .args(["serve", "--http-listen", "127.0.0.1:0"])
        .args(["--redis-url", redis, "--log-filter", "error"]);
    command
}

impl Line {
    /// There is no daemon yet.
    pub(super) fn new() -> Self {
        // Fails if another test was first.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Line {
            url: Arc::default(),
            http: Client::new(),
        }
    }

    /// Speaks to this daemon from now on, at the address that it announces with this text.
    pub(super) fn dial(&self, daemon: &TalkingProcess, announced: &str) {
        let line = daemon.line();
        let url = line.strip_prefix(announced).unwrap().to_owned();
        *self.url.lock().unwrap() = url;
    }

    /// The answer to a call, if it comes in time. If a daemon dies meanwhile, the next one is
    /// called.
    pub(super) async fn post(&self, path: &str, body: &Value, until: Instant) -> Option<Value> {
        while Instant::now() < until {
            let url = format!("{}{path}", self.url.lock().unwrap());
            let answered = async {
                let response = self.http.post(url).json(body).send().await?;
                response.json().await
            };
            if let Ok(answer) = timeout_at(until, answered).await.ok()? {
                return Some(answer);
            }
            sleep(ms(20)).await;
        }
        None
    }
}
