//! The HTTP API, as a client sees it: `keyfall serve` in a separate process.
//!
//! | module | content |
//! |---|---|
//! | [`calls`] | each call on one job, and each of its errors |
//! | [`actions`] | the log of what operators did |
//! | [`groups`] | dead letters by kind and reason |
//! | [`errors`] | each error code has a page with a real answer |
//! | [`hindered`] | errors where Redis is full, read-only, of a newer version or denies a right |
//! | [`kinds`] | dropped kinds, and the limit of new kinds |
//! | [`many`] | lists, bulk calls, batches, dead letters, kinds |
//! | [`upcoming`] | how many jobs fall due in each minute, hour or day |
//! | [`document`] | the OpenAPI document, the router and the manual agree |
//! | [`following`] | tails, overviews, and warnings about a job |
//! | [`metrics`] | the metrics, as Prometheus reads them |
//! | [`searching`] | lists with conditions on due time, attempts and error |
//! | [`activity`] | how many runs began and ended in each minute of the last hour, and over the day |
//! | [`servers`] | the servers, and the kinds with several shards |
//! | [`traces`] | the trace of a producer continues through every attempt, as a collector sees it |
//! | [`reloading`] | SIGHUP; retries and payload limits of routes |
//! | [`revoking`] | tokens that are revoked, narrowed or expire while a request is open |
//! | [`consumers`] | consumers that go away at every step, or come late |
//! | [`crowds`] | a thousand consumers, a large backlog, two daemons |
//! | [`examples`] | the examples in Python and with curl work |
//! | [`supervised`] | systemd is told when the daemon is ready, reloads, stops and lives |
//! | [`limits`] | limits of size, time and number; TLS, ids, the log, the stop |

mod actions;
mod activity;
mod calls;
mod consumers;
mod crowds;
mod document;
mod errors;
mod examples;
mod following;
mod groups;
mod hindered;
mod kinds;
mod limits;
mod many;
mod metrics;
mod reloading;
mod revoking;
mod searching;
mod servers;
mod supervised;
mod traces;
mod upcoming;

use std::process::Command;
use std::time::Duration;

use keyfall::embedded::Embedded;
use keyfall_testing::process::TalkingProcess;
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};

use crate::runs::{PATIENCE, eventually};
use crate::site::Site;

/// A daemon whose consumers pull the jobs of one app.
pub(crate) struct Daemon {
    pub(crate) process: TalkingProcess,
    /// `http://127.0.0.1:port`
    pub(crate) url: String,
    http: Client,
}

/// A status, and the body as JSON; `null` if there is none.
pub(crate) type HttpAnswer = (u16, Value);

impl Daemon {
    pub(crate) fn start(site: &Site) -> Self {
        Daemon::with(site, &[])
    }

    /// Starts a daemon with these further flags.
    pub(crate) fn with(site: &Site, flags: &[&str]) -> Self {
        Daemon::spawned(Daemon::command(site, flags))
    }

    fn command(site: &Site, flags: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_keyfall"));
        command
            .args(["serve", "--http-listen", "127.0.0.1:0"])
            .args(["--redis-url", &site.url])
            .args(["--pull", &format!("{}:*:*:*", site.app)])
            .args(flags);
        command
    }

    pub(crate) fn spawned(command: Command) -> Self {
        let process = TalkingProcess::spawn(command);
        let line = process.line();
        let url = line.strip_prefix("listening on ").unwrap().to_owned();
        // `keyfall` does the same. It fails if another test was first.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = Client::builder().timeout(PATIENCE).build().unwrap();
        Daemon { process, url, http }
    }

    pub(crate) fn request(&self, method: &str, path: &str) -> RequestBuilder {
        let method: Method = method.parse().unwrap();
        self.http.request(method, format!("{}{path}", self.url))
    }

    pub(crate) async fn call(&self, method: &str, path: &str) -> HttpAnswer {
        read(self.request(method, path).send().await.unwrap()).await
    }

    pub(crate) async fn send(&self, method: &str, path: &str, body: Value) -> HttpAnswer {
        let sent = self.request(method, path).json(&body).send().await;
        read(sent.unwrap()).await
    }

    /// What must be answered with 200.
    pub(crate) async fn get(&self, path: &str) -> Value {
        let (status, body) = self.call("GET", path).await;
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    /// What must be answered with 200.
    pub(crate) async fn post(&self, path: &str, body: Value) -> Value {
        let (status, answer) = self.send("POST", path, body).await;
        assert_eq!(status, 200, "{path}: {answer}");
        answer
    }

    /// Pulls the jobs that fall due in this time, `most` of them at the most.
    pub(crate) async fn pull(&self, most: usize, wait: &str) -> Vec<Value> {
        let wanted = json!({"max": most, "wait": wait});
        let mut answer = self.post("/v1/pull", wanted).await;
        let jobs = answer["jobs"].take();
        serde_json::from_value(jobs).unwrap()
    }

    /// Finishes, extends or fails the lease of a job, and returns its result.
    pub(crate) async fn settle(&self, verb: &str, job: &Value, mut body: Value) -> String {
        body["leases"] = json!([job["lease"]]);
        let answer = self.post(&format!("/v1/leases/{verb}"), body).await;
        let result = answer["results"][0]["result"].as_str();
        result.unwrap_or_else(|| panic!("{answer}")).to_owned()
    }

    /// Waits until the worker of the daemon hears events: before, it mends settings of Redis.
    async fn is_ready(&self) {
        eventually("the daemon is ready", async || {
            (self.call("GET", "/readyz").await.0 == 204).then_some(())
        })
        .await;
    }

    /// Waits until the daemon holds a pull: only then does it have room for a job.
    async fn holds_a_pull(&self, site: &Site) {
        eventually("a pull is held", async || {
            let live = site.client.instances().await.unwrap();
            let own = live.iter().find(|it| it.pid == self.process.child.id())?;
            own.saturated.is_empty().then_some(())
        })
        .await;
    }

    fn address(&self) -> &str {
        self.url.split_once("://").unwrap().1
    }
}

async fn read(response: Response) -> HttpAnswer {
    let status = response.status();
    let kind = response.headers().get("content-type").cloned();
    let body = response.bytes().await.unwrap();
    if body.is_empty() {
        return (status.as_u16(), Value::Null);
    }
    let expected = if status < StatusCode::BAD_REQUEST {
        "application/json"
    } else {
        "application/problem+json"
    };
    assert_eq!(kind.unwrap(), expected);
    let body: Value = serde_json::from_slice(&body).unwrap();
    if status >= StatusCode::BAD_REQUEST {
        assert_eq!(body["status"], status.as_u16());
        assert!(!body["title"].as_str().unwrap().is_empty());
        assert!(!body["detail"].as_str().unwrap().is_empty());
        errors::assert_has_page(&body);
    }
    (status.as_u16(), body)
}

/// Asserts that the call was refused with this code and field.
#[track_caller]
fn assert_problem(answer: &HttpAnswer, status: u16, code: &str, field: impl Into<Value>) {
    let (got, body) = answer;
    assert_eq!(*got, status, "{body}");
    assert_eq!(body["code"], code, "{body}");
    assert_eq!(body["field"], field.into(), "{body}");
}

/// A separate Redis that is stopped in the middle of a call.
pub(crate) async fn own_redis(app: &str) -> (Embedded, Site) {
    let redis = Embedded::start().await.unwrap();
    let site = Site::at(&redis.url(), app).await;
    (redis, site)
}

/// A time in the near future, the same throughout a test run, except at the end of a year.
fn next_year() -> String {
    let this = jiff::Timestamp::now().strftime("%Y").to_string();
    format!("{}-06-01T00:00:00.000Z", this.parse::<u32>().unwrap() + 1)
}

const SECOND: Duration = Duration::from_secs(1);
