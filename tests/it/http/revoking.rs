//! Tokens that are revoked, narrowed or expire while a request is open.

use std::process::Command;
use std::time::{Duration, Instant};

use futures_util::{Stream, StreamExt};
use keyfall::JobState;
use reqwest::{Body, RequestBuilder};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{Daemon, read};
use crate::folder::Folder;
use crate::runs::PATIENCE;
use crate::site::Site;

/// By when it must hold: within a second, and as much as a busy machine may need.
const SOON: Duration = Duration::from_secs(6);

/// The file of tokens, and a token of it.
struct Token {
    folder: Folder,
    bearer: String,
}

impl Token {
    fn make(name: &str, scopes: &str, more: &[&str]) -> Self {
        let folder = Folder::new(name);
        let made = Token::command(&folder, &["make", "--scope", scopes], more);
        let bearer = String::from_utf8(made).unwrap().trim_end().to_owned();
        // Another one, so that the file has one when this is gone.
        Token::command(&folder, &["make", "--scope", "read"], &[]);
        Token { folder, bearer }
    }

    fn command(folder: &Folder, args: &[&str], more: &[&str]) -> Vec<u8> {
        let mut command = Command::new(env!("CARGO_BIN_EXE_keyfall"));
        command.arg("token").args(args).args(more);
        command.args(["--file", &folder.path("tokens.toml")]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        output.stdout
    }

    fn daemon(&self, site: &Site) -> Daemon {
        Daemon::with(site, &["--tokens-file", &self.folder.path("tokens.toml")])
    }

    fn revoke(&self) {
        let id = self.bearer.split('_').nth(1).unwrap();
        Token::command(&self.folder, &["revoke", id], &[]);
    }

    /// From now on it is good for looking only.
    fn narrow(&self) {
        let text = self.folder.read("tokens.toml");
        let narrow = text.replacen("\"schedule\"", "\"read\"", 1);
        assert_ne!(text, narrow);
        self.folder.write("tokens.toml", &narrow);
    }

    fn shown(&self, request: RequestBuilder) -> RequestBuilder {
        request.bearer_auth(&self.bearer)
    }
}

/// A batch that is open: what is sent, and what is answered.
struct Batch {
    lines: mpsc::UnboundedSender<String>,
    answers: std::pin::Pin<Box<dyn Stream<Item = Value> + Send>>,
    sent: usize,
}

impl Batch {
    fn open(token: &Token, daemon: &Daemon) -> Self {
        let (lines, mut rest) = mpsc::unbounded_channel::<String>();
        let body = futures_util::stream::poll_fn(move |context| rest.poll_recv(context));
        let body = Body::wrap_stream(body.map(Ok::<_, std::io::Error>));
        let request = token.shown(daemon.request("POST", "/v1/batch")).body(body);
        let answers = async move {
            let answer = request.send().await.unwrap();
            assert_eq!(answer.status(), 200);
            // One line is sent at a time, so each part is a whole answer.
            answer
                .bytes_stream()
                .map(|part| serde_json::from_slice(&part.unwrap()).unwrap())
        };
        Batch {
            lines,
            answers: Box::pin(futures_util::stream::once(answers).flatten()),
            sent: 0,
        }
    }

    /// Schedules one more job: how that is answered.
    async fn schedule(&mut self, site: &Site) -> u64 {
        self.sent += 1;
        let line = json!({"call": "schedule", "key": site.key(self.sent), "after": "1h"});
        self.lines.send(format!("{line}\n")).unwrap();
        let answer = tokio::time::timeout(PATIENCE, self.answers.next());
        let answer = answer.await.expect("in time").expect("one for each line");
        assert_eq!(answer["line"], self.sent);
        answer["status"].as_u64().unwrap()
    }

    /// Until it is refused with this: how many were accepted.
    async fn until_refused(&mut self, site: &Site, status: u64) -> usize {
        let began = Instant::now();
        loop {
            let answered = self.schedule(site).await;
            if answered != 201 {
                assert_eq!(answered, status);
                return self.sent - 1;
            }
            let passed = began.elapsed();
            assert!(
                passed < SOON,
                "accepted {passed:?} after it was not allowed any more"
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

#[tokio::test]
async fn an_open_batch_is_refused_line_by_line_when_its_token_is_revoked() {
    let site = Site::new("http-revoked").await;
    let token = Token::make("http-revoked", "schedule", &[]);
    let daemon = token.daemon(&site);
    let mut batch = Batch::open(&token, &daemon);
    assert_eq!(batch.schedule(&site).await, 201);
    token.revoke();
    let accepted = batch.until_refused(&site, 401).await;
    // The rest as well, and nothing of it was done.
    assert_eq!(batch.schedule(&site).await, 401);
    assert_eq!(site.stats().await.pending, accepted as u64);
    site.assert_balanced().await;
}

#[tokio::test]
async fn an_open_batch_is_refused_when_its_token_is_narrowed_or_expires() {
    let site = Site::new("http-narrowed").await;
    let token = Token::make("http-narrowed", "schedule", &[]);
    let daemon = token.daemon(&site);
    let mut batch = Batch::open(&token, &daemon);
    assert_eq!(batch.schedule(&site).await, 201);
    token.narrow();
    let accepted = batch.until_refused(&site, 403).await;
    assert_eq!(site.stats().await.pending, accepted as u64);

    let site = Site::new("http-expired").await;
    let token = Token::make("http-expired", "schedule", &["--expires", "5s"]);
    let daemon = token.daemon(&site);
    let mut batch = Batch::open(&token, &daemon);
    let opened = batch.schedule(&site).await;
    assert!(opened == 201 || opened == 401);
    tokio::time::sleep(Duration::from_secs(4)).await;
    batch.until_refused(&site, 401).await;
}

#[tokio::test]
async fn a_held_pull_ends_without_a_job_when_its_token_is_revoked() {
    let site = Site::new("http-held").await;
    let token = Token::make("http-held", "consume", &[]);
    let daemon = token.daemon(&site);
    let held = token.shown(daemon.request("POST", "/v1/pull"));
    let held = tokio::spawn(held.json(&json!({"wait": "60s"})).send());
    daemon.holds_a_pull(&site).await;
    token.revoke();
    let revoked = Instant::now();
    let (status, problem) = read(held.await.unwrap().unwrap()).await;
    assert_eq!((status, &problem["code"]), (401, &json!("unauthorized")));
    assert!(revoked.elapsed() < SOON, "{:?}", revoked.elapsed());
    // And a job that falls due in between goes to nobody.
    let key = site.key("late");
    site.client.schedule(&key, "").await.unwrap();
    let again = token.shown(daemon.request("POST", "/v1/pull"));
    let again = again.json(&json!({"wait": "1s"})).send().await.unwrap();
    assert_eq!(again.status(), 401);
    let view = site.view(&key).await;
    assert_eq!((view.state(), view.attempts()), (JobState::Pending, 0));
    site.client.cancel(&key).await.unwrap();
    site.assert_balanced().await;
}
