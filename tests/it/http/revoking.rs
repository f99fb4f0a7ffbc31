//! Tokens that are revoked, narrowed or expire while a request is open.

use std::process::Command;
use std::time::{Duration, Instant};

use futures_util::{Stream, StreamExt};
use keyfall::{JobState, NewJob};
use keyfall_testing::files::Folder;
use keyfall_testing::proxies::FreezingProxy;
use reqwest::{Body, RequestBuilder};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::{Daemon, own_redis, read};
use crate::runs::{PATIENCE, eventually};
use crate::site::{HOUR, Site, assert_about};

/// The time limit for a change to take effect: a second, and as much as a busy machine may need.
const SOON: Duration = Duration::from_secs(6);

/// With this lease, a job that comes again during a test was given back: its lease cannot have
/// lapsed.
const LONG: [&str; 2] = ["--worker-lease", "1h"];

/// The number of pulls that are held at a time: some get jobs before they check their rights again.
const PULLS: usize = 20;

/// The file of tokens, and the first token of it.
pub(super) struct Token {
    folder: Folder,
    pub(super) bearer: String,
}

impl Token {
    pub(super) fn make(name: &str, scopes: &str, more: &[&str]) -> Self {
        let folder = Folder::new(name);
        let bearer = Token::bearer(&folder, scopes, more);
        // A second token, so that the file has one when the first is gone.
        Token::bearer(&folder, "read", &[]);
        Token { folder, bearer }
    }

    /// A further token in the same file.
    pub(super) fn another(&self, scopes: &str) -> String {
        Token::bearer(&self.folder, scopes, &[])
    }

    /// A further token in the same file, for the jobs with this prefix.
    pub(super) fn another_of(&self, scopes: &str, prefix: &str) -> String {
        Token::bearer(&self.folder, scopes, &["--prefix", prefix])
    }

    fn bearer(folder: &Folder, scopes: &str, more: &[&str]) -> String {
        let made = Token::command(folder, &["make", "--scope", scopes], more);
        String::from_utf8(made).unwrap().trim_end().to_owned()
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
        self.daemon_with(site, &[])
    }

    /// A daemon with these further flags.
    pub(super) fn daemon_with(&self, site: &Site, flags: &[&str]) -> Daemon {
        let file = self.folder.path("tokens.toml");
        let mut all = vec!["--tokens-file", file.as_str()];
        all.extend(flags);
        Daemon::with(site, &all)
    }

    pub(super) fn revoke(&self) {
        let id = self.bearer.split('_').nth(1).unwrap();
        Token::command(&self.folder, &["revoke", id], &[]);
    }

    /// Replaces this scope of the token by `read`.
    fn narrow(&self, scope: &str) {
        self.change(scope, "read");
    }

    /// Replaces the first such text in the file.
    fn change(&self, from: &str, to: &str) {
        let text = self.folder.read("tokens.toml");
        let changed = text.replacen(&format!("\"{from}\""), &format!("\"{to}\""), 1);
        assert_ne!(text, changed);
        self.replace(&changed);
    }

    /// Moves the distant end of the token to this time from now.
    fn expires_in(&self, time: Duration) {
        let text = self.folder.read("tokens.toml");
        let (before, rest) = text.split_once("expires = \"").expect("it expires");
        let (_, after) = rest.split_once('"').unwrap();
        let expires = jiff::Timestamp::now().checked_add(time).unwrap();
        self.replace(&format!("{before}expires = \"{expires}\"{after}"));
    }

    /// Replaces the file in one step: half a file would have no token at all.
    fn replace(&self, text: &str) {
        self.folder.write("changed.toml", text);
        let paths = ["changed.toml", "tokens.toml"].map(|name| self.folder.path(name));
        std::fs::rename(&paths[0], &paths[1]).unwrap();
    }

    fn shown(&self, request: RequestBuilder) -> RequestBuilder {
        request.bearer_auth(&self.bearer)
    }
}

/// An open batch: the lines sent, and the answers.
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

    /// Schedules one more job; returns the status.
    async fn schedule(&mut self, site: &Site) -> u64 {
        self.sent += 1;
        let line = json!({"call": "schedule", "key": site.key(self.sent), "after": "1h"});
        self.lines.send(format!("{line}\n")).unwrap();
        let answer = tokio::time::timeout(PATIENCE, self.answers.next());
        let answer = answer.await.expect("in time").expect("one for each line");
        assert_eq!(answer["line"], self.sent);
        answer["status"].as_u64().unwrap()
    }

    /// Schedules jobs until one is refused with this status; returns the number of accepted jobs.
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

/// Asserts that a request in progress was broken off because its token was revoked.
#[track_caller]
fn assert_broken_off(status: u16, problem: &Value) {
    assert_eq!((status, &problem["code"]), (401, &json!("unauthorized")));
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("the request was broken off"), "{detail}");
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
    // The rest of the batch is refused as well, and none of it was done.
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
    token.narrow("schedule");
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
    assert_broken_off(status, &problem);
    assert!(revoked.elapsed() < SOON, "{:?}", revoked.elapsed());
    // A job that falls due in between goes to no consumer.
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

/// Pulls are held, their token loses its rights, and jobs fall due as soon as the daemon knows:
/// each pull is refused, and the jobs go back.
async fn held_in_vain(
    name: &str,
    more: &[&str],
    status: u16,
    lose: impl FnOnce(&Token),
) -> (Site, Token, Daemon) {
    let site = Site::new(name).await;
    let token = Token::make(name, "consume", more);
    let daemon = token.daemon_with(&site, &LONG);
    let pull = |wait: &str| {
        let wanted = json!({"prefixes": [format!("{name}:")], "wait": wait});
        let request = token.shown(daemon.request("POST", "/v1/pull"));
        request.json(&wanted).send()
    };
    let held: Vec<_> = (0..PULLS).map(|_| tokio::spawn(pull("60s"))).collect();
    daemon.holds_a_pull(&site).await;
    lose(&token);
    // From then on no job is handed out.
    eventually("the daemon knows", async || {
        // The daemon closes idle connections, perhaps at the moment in which the client reuses one.
        let answer = pull("0s").await.ok()?;
        (answer.status() == status).then_some(())
    })
    .await;
    let jobs = site.keys(PULLS).map(|key| NewJob::new(key, ""));
    for answer in site.client.schedule_many(jobs).await {
        answer.unwrap();
    }
    for one in held {
        let (answered, problem) = read(one.await.unwrap().unwrap()).await;
        assert_eq!(answered, status, "{problem}");
    }
    all_wait(&site, PULLS).await;
    (site, token, daemon)
}

/// This number of jobs wait, and none has lost an attempt. An abandoned claim may still be under
/// way.
async fn all_wait(site: &Site, count: usize) {
    eventually("all wait as before", async || {
        let stats = site.stats().await;
        if stats.pending as usize != count || stats.leased != 0 {
            return None;
        }
        for key in site.keys(count) {
            if site.view(&key).await.attempts() != 0 {
                return None;
            }
        }
        Some(())
    })
    .await;
}

async fn cancel_all(site: &Site) {
    let all = site.client.prefix(&format!("{}:", site.app)).cancel();
    all.await.unwrap();
    site.assert_balanced().await;
}

/// The bearer of this token gets each of this number of jobs in its first attempt, and finishes it.
async fn all_come_to(bearer: &str, daemon: &Daemon, count: usize) {
    let post = async |path: &str, body: Value| {
        let call = daemon.request("POST", path).bearer_auth(bearer);
        let (status, answer) = read(call.json(&body).send().await.unwrap()).await;
        assert_eq!(status, 200, "{answer}");
        answer
    };
    let mut come = 0;
    while come < count {
        let pulled = post("/v1/pull", json!({"max": count, "wait": "30s"})).await;
        let jobs = pulled["jobs"].as_array().unwrap();
        assert!(!jobs.is_empty(), "{come} of {count}");
        for job in jobs {
            assert_eq!(job["attempt"], 1, "{job}");
        }
        let leases: Vec<&Value> = jobs.iter().map(|job| &job["lease"]).collect();
        let finished = post("/v1/leases/finish", json!({"leases": leases})).await;
        for one in finished["results"].as_array().unwrap() {
            assert_eq!(one["result"], "done", "{one}");
        }
        come += jobs.len();
    }
}

#[tokio::test]
async fn held_pulls_end_without_a_job_when_their_token_is_narrowed_or_expires() {
    let of_scope = |token: &Token| token.narrow("consume");
    let (site, ..) = held_in_vain("http-held-scope", &[], 403, of_scope).await;
    cancel_all(&site).await;

    let name = "http-held-prefix";
    let (had, has) = (format!("{name}:"), format!("{name}:other:"));
    let of_prefix = |token: &Token| token.change(&had, &has);
    let (site, ..) = held_in_vain(name, &["--prefix", &had], 403, of_prefix).await;
    cancel_all(&site).await;

    let in_a_while = |token: &Token| token.expires_in(Duration::from_secs(2));
    let more = ["--expires", "1h"];
    let (site, ..) = held_in_vain("http-held-expired", &more, 401, in_a_while).await;
    cancel_all(&site).await;
}

#[tokio::test]
async fn jobs_for_held_pulls_of_a_revoked_token_go_to_another_token() {
    let name = "http-held-late";
    let (site, token, daemon) = held_in_vain(name, &[], 401, Token::revoke).await;
    // The daemon learns of this token in the same way.
    let other = token.another("consume");
    eventually("the daemon knows it", async || {
        let call = daemon.request("POST", "/v1/leases/finish");
        let call = call.bearer_auth(&other).json(&json!({"leases": ["none"]}));
        (call.send().await.unwrap().status() == 200).then_some(())
    })
    .await;
    all_come_to(&other, &daemon, PULLS).await;
    assert_eq!(site.stats().await.done as usize, PULLS);
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_claimed_for_a_revoked_token_goes_back() {
    /// The proxy recognizes the reply to the claim by this text.
    const MARK: &str = "the job as it was claimed";
    let (redis, site) = own_redis("http-held-claim").await;
    let proxy = FreezingProxy::to(&redis).await;
    let behind = Site::at(&proxy.url, "http-held-claim").await;
    let token = Token::make("http-held-claim", "consume", &[]);
    let other = token.another("consume");
    let daemon = token.daemon_with(&behind, &LONG);
    proxy.freeze_at(MARK);
    let held = token.shown(daemon.request("POST", "/v1/pull"));
    let held = tokio::spawn(held.json(&json!({"wait": "60s"})).send());
    let key = site.keys(1).next().unwrap();
    site.client.schedule(&key, MARK).await.unwrap();
    eventually("it is claimed", async || {
        (site.stats().await.leased == 1).then_some(())
    })
    .await;
    token.revoke();
    let (status, problem) = read(held.await.unwrap().unwrap()).await;
    assert_broken_off(status, &problem);
    proxy.thaw();
    all_wait(&site, 1).await;
    assert_eq!(site.stats().await.returned, 1);
    all_come_to(&other, &daemon, 1).await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn an_answer_with_jobs_is_broken_off_when_its_token_is_revoked() {
    const JOBS: usize = 10;
    let site = Site::new("http-held-answer").await;
    let token = Token::make("http-held-answer", "consume", &[]);
    let daemon = token.daemon_with(&site, &LONG);
    let payload = "x".repeat(1_000_000);
    for key in site.keys(JOBS) {
        site.client.schedule(key, &payload).await.unwrap();
    }
    // Its receive buffer is small, so that the answer gets stuck on the way.
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let address = daemon.address().parse().unwrap();
    let mut stream = socket.connect(address).await.unwrap();
    let body = json!({"max": JOBS, "wait": "60s"}).to_string();
    let request = format!(
        "POST /v1/pull HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\
         content-length: {}\r\n\r\n{body}",
        token.bearer,
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let byte = timeout(PATIENCE, stream.read_u8()).await;
        head.push(byte.expect("it begins").unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let length = head.lines().find_map(|line| {
        let length = line.strip_prefix("content-length: ")?;
        length.parse::<usize>().ok()
    });
    let length = length.expect("a length");
    assert!(length > 4 * payload.len(), "less might fit in between");

    token.revoke();
    eventually("the daemon knows", async || {
        let call = token.shown(daemon.request("GET", "/v1/jobs/count"));
        // Before that, the token lacked the scope for this call.
        (call.send().await.unwrap().status() == 401).then_some(())
    })
    .await;
    let mut rest = Vec::new();
    // A reset also ends the connection.
    let _ = timeout(PATIENCE, stream.read_to_end(&mut rest))
        .await
        .expect("it is closed");
    assert!(rest.len() < length, "{} of {length} bytes", rest.len());
    all_wait(&site, JOBS).await;
    cancel_all(&site).await;
}

/// The proxy decides at which step the token is revoked: the call has changed the first of two
/// kinds, and has not read the second yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bulk_call_stops_when_its_token_is_revoked_and_keeps_its_changes() {
    /// The proxy recognizes the reply that names the job of the second kind by this text.
    const MARK: &str = "it-does-not-come-to-this";
    let (redis, site) = own_redis("http-broken-off").await;
    let proxy = FreezingProxy::to(&redis).await;
    // The daemon has no route for the jobs, so only the call touches them.
    let behind = Site::at(&proxy.url, "http-elsewhere").await;
    let token = Token::make("http-broken-off", "operate", &[]);
    let other = token.another("read");
    // The call must not end before it is broken off, however long a busy machine takes.
    let daemon = token.daemon_with(&behind, &["--redis-call-timeout", "60s"]);
    let first = format!("{}:it:first:1", site.app);
    let second = format!("{}:it:second:{MARK}", site.app);
    for key in [&first, &second] {
        site.client.schedule(key, "").after(HOUR).await.unwrap();
    }
    proxy.freeze_at(MARK);
    let call = token.shown(daemon.request("POST", "/v1/jobs/postpone"));
    let body = json!({"prefix": format!("{}:", site.app), "after": "2h"});
    let call = tokio::spawn(call.json(&body).send());
    eventually("it has come to the second kind", async || {
        proxy.is_frozen().then_some(())
    })
    .await;
    token.revoke();
    let (status, problem) = read(call.await.unwrap().unwrap()).await;
    assert_broken_off(status, &problem);
    proxy.thaw();
    // The daemon goes on, but not with that call.
    let shown = daemon.request("GET", &format!("/v1/jobs/{second}"));
    let (status, shown) = read(shown.bearer_auth(&other).send().await.unwrap()).await;
    assert_eq!(status, 200, "{shown}");
    assert_about(site.view(&first).await.due(), 2 * HOUR);
    assert_about(site.view(&second).await.due(), HOUR);
    cancel_all(&site).await;
}
