//! Tails, which follow the events of jobs, and overviews.

use std::time::{Duration, Instant};

use axum::body::Bytes;
use futures_util::{Stream, StreamExt};
use reqwest::Response;
use serde_json::{Value, json};

use super::revoking::Token;
use super::{Daemon, assert_problem, read};
use crate::runs::{PATIENCE, eventually};
use crate::site::{HOUR, Site};

/// The time limit for a change to take effect: a second, and as much as a busy machine may need.
const SOON: Duration = Duration::from_secs(6);

const SECOND: Duration = Duration::from_secs(1);

/// The lines of a tail.
struct Lines {
    parts: std::pin::Pin<Box<dyn Stream<Item = reqwest::Result<Bytes>> + Send>>,
    got: String,
}

impl Lines {
    async fn open(daemon: &Daemon, query: &str) -> Self {
        let path = format!("/v1/tail?{query}");
        Lines::of(daemon.request("GET", &path).send().await.unwrap())
    }

    /// The first line comes at once.
    fn of(answer: Response) -> Self {
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["content-type"], "application/x-ndjson");
        Lines {
            parts: Box::pin(answer.bytes_stream()),
            got: String::new(),
        }
    }

    /// The next line; `None` at the end.
    async fn any(&mut self) -> Option<Value> {
        loop {
            if let Some((line, rest)) = self.got.split_once('\n') {
                let line = serde_json::from_str(line).unwrap();
                self.got = rest.to_owned();
                return Some(line);
            }
            let part = tokio::time::timeout(PATIENCE, self.parts.next());
            let part = part.await.expect("it is not silent for so long")?;
            self.got += std::str::from_utf8(&part.unwrap()).unwrap();
        }
    }

    /// The next change: its word, and the key.
    async fn happened(&mut self) -> (String, String) {
        loop {
            let line = self.any().await.expect("it goes on");
            // On a busy machine Redis may answer too late; the tail then goes on.
            if line.get("alive").or(line.get("away")).is_some() {
                continue;
            }
            let text = |field: &str| {
                let text = line["happened"][field].as_str();
                text.unwrap_or_else(|| panic!("no change of a job: {line}"))
                    .to_owned()
            };
            return (text("what"), text("key"));
        }
    }

    /// The reason why the tail ended.
    async fn ended(&mut self) -> Value {
        while let Some(line) = self.any().await {
            if let Some(problem) = line.get("ended") {
                assert!(self.any().await.is_none(), "nothing comes after the end");
                return problem.clone();
            }
        }
        panic!("it ended without a reason");
    }
}

async fn schedule(site: &Site, key: &str) {
    let call = site.client.schedule(key, "").after(HOUR);
    call.await.unwrap();
}

#[tokio::test]
async fn a_tail_shows_the_requested_events_from_the_last_ones_on() {
    shows_the_requested_events("http-tail", "").await;
}

#[tokio::test]
async fn a_shared_tail_shows_the_same() {
    shows_the_requested_events("http-tail-shared", "&shared=true").await;
}

async fn shows_the_requested_events(app: &str, further: &str) {
    let site = Site::new(app).await;
    let daemon = Daemon::start(&site);
    let other = format!("{}:it:other:1", site.app);
    for key in [&site.key(1), &site.key(2), &other] {
        schedule(&site, key).await;
    }
    let app = &site.app;
    let mut all = Lines::open(&daemon, &format!("prefix={app}:&last=2{further}")).await;
    let first = all.any().await.unwrap();
    assert!(first["alive"]["at"].is_string(), "{first}");
    let scheduled = |key: &str| ("scheduled".to_owned(), key.to_owned());
    assert_eq!(all.happened().await, scheduled(&site.key(2)));
    assert_eq!(all.happened().await, scheduled(&other));

    // Several prefixes, several words, and single jobs.
    let query = format!(
        "prefix={}&prefix={other}&what=cancelled,failed&what=scheduled&last=3{further}",
        site.key(2)
    );
    let mut some = Lines::open(&daemon, &query).await;
    assert_eq!(some.happened().await, scheduled(&site.key(2)));
    assert_eq!(some.happened().await, scheduled(&other));
    let query = format!("key={}&last=1{further}", site.key(1));
    let mut one = Lines::open(&daemon, &query).await;
    assert_eq!(one.happened().await, scheduled(&site.key(1)));
    for key in [&site.key(2), &site.key(1)] {
        let moved = site.client.reschedule(key).after(2 * HOUR).await;
        moved.unwrap();
        site.client.cancel(key).await.unwrap();
    }
    let did = |what: &str, key: &str| (what.to_owned(), key.to_owned());
    assert_eq!(some.happened().await, did("cancelled", &site.key(2)));
    assert_eq!(one.happened().await, did("postponed", &site.key(1)));
    assert_eq!(one.happened().await, did("cancelled", &site.key(1)));
    for (what, id) in [("postponed", 2), ("cancelled", 2), ("postponed", 1)] {
        assert_eq!(all.happened().await, did(what, &site.key(id)));
    }
    site.client.cancel(&other).await.unwrap();
    site.assert_balanced().await;
}

#[tokio::test]
async fn what_is_done_after_the_first_line_is_told() {
    let site = Site::new("http-tail-first").await;
    let daemon = Daemon::start(&site);
    let key = site.key(1);
    schedule(&site, &key).await;
    for further in ["", "&shared=true"].repeat(5) {
        let query = format!("prefix=http-tail-first:{further}");
        let mut tail = Lines::open(&daemon, &query).await;
        assert!(tail.any().await.unwrap().get("alive").is_some());
        let call = site.client.reschedule(&*key).after(2 * HOUR);
        call.await.unwrap();
        assert_eq!(tail.happened().await, ("postponed".to_owned(), key.clone()));
    }
    site.assert_balanced().await;
}

#[tokio::test]
async fn what_a_tail_or_an_overview_cannot_be_asked_names_the_parameter() {
    let site = Site::new("http-tail-wrong").await;
    let daemon = Daemon::start(&site);
    for (query, code, field, hint) in [
        ("tail?prefix=no key", "invalid_key", "prefix", ""),
        ("tail?key=a:b:c", "invalid_key", "key", "four"),
        (
            "tail?what=exploded",
            "invalid_request",
            "what",
            "scheduled, replaced",
        ),
        (
            "tail?last=1001",
            "invalid_request",
            "last",
            "from 0 to 1000",
        ),
        (
            "tail?zone=Atlantis",
            "invalid_request",
            "zone",
            "Europe/Berlin",
        ),
        (
            "tail?shared=yes",
            "invalid_request",
            "shared",
            "`true` or `false`",
        ),
        (
            "tail?first=1",
            "invalid_request",
            "first",
            "`prefix`, `key`",
        ),
        ("overview?prefix=no key", "invalid_key", "prefix", ""),
        ("overview?kind=a:b", "invalid_key", "kind", ""),
        ("overview?cursor=a:b", "invalid_key", "cursor", ""),
        (
            "overview?limit=257",
            "invalid_request",
            "limit",
            "from 1 to 256",
        ),
        // After an empty page there could be no next page, however many kinds there are.
        (
            "overview?limit=0",
            "invalid_request",
            "limit",
            "from 1 to 256",
        ),
        (
            "overview?last=1",
            "invalid_request",
            "last",
            "`prefix`, `kind`",
        ),
    ] {
        let answer = daemon.call("GET", &format!("/v1/{query}")).await;
        assert_problem(&answer, 400, code, field);
        let detail = answer.1["detail"].as_str().unwrap();
        assert!(detail.contains(hint), "{query}: {detail}");
    }
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_tail_ends_with_the_token_and_with_the_daemon() {
    let site = Site::new("http-tail-ends").await;
    let token = Token::make("http-tail-ends", "read", &["--prefix", "http-tail-ends:"]);
    let other = token.another("read");
    let daemon = token.daemon_with(&site, &[]);
    let get = |bearer: &str, path: &str| daemon.request("GET", path).bearer_auth(bearer).send();
    // The tail does not report other jobs.
    for path in ["/v1/tail", "/v1/tail?prefix=http-tail-e", "/v1/overview"] {
        let answer = read(get(&token.bearer, path).await.unwrap()).await;
        assert_problem(&answer, 403, "forbidden", Value::Null);
    }
    schedule(&site, &site.key(1)).await;
    let own = "/v1/tail?prefix=http-tail-ends:&last=1";
    let mut lines = Lines::of(get(&token.bearer, own).await.unwrap());
    let mut whole = Lines::of(get(&other, own).await.unwrap());
    assert_eq!(lines.happened().await.1, site.key(1));
    assert_eq!(whole.happened().await.1, site.key(1));
    let own = "/v1/overview?prefix=http-tail-ends:";
    let (status, seen) = read(get(&token.bearer, own).await.unwrap()).await;
    assert_eq!((status, &seen["total"]), (200, &json!(1)), "{seen}");
    assert!(seen.get("instances").is_none(), "{seen}");

    token.revoke();
    let revoked = Instant::now();
    let problem = lines.ended().await;
    assert_eq!(problem["code"], "unauthorized");
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("the request was broken off"), "{detail}");
    assert!(revoked.elapsed() < SOON, "{:?}", revoked.elapsed());

    let Daemon { process, .. } = daemon;
    process.stop();
    assert_eq!(whole.ended().await["code"], "stopping");
    site.client.cancel(site.key(1)).await.unwrap();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_daemon_limits_its_tails_and_frees_the_places_of_closed_ones() {
    const MOST: usize = 64;
    const SHARE: usize = 16;
    let site = Site::new("http-tails").await;
    let token = Token::make("http-tails", "read", &[]);
    let bearers: Vec<String> = (0..=MOST / SHARE).map(|_| token.another("read")).collect();
    let daemon = token.daemon_with(&site, &[]);
    let get = |bearer: &str| daemon.request("GET", "/v1/tail").bearer_auth(bearer).send();
    let refused = async |bearer: &str, hint: &str| {
        let answer = get(bearer).await.unwrap();
        assert_eq!(answer.headers()["retry-after"], "30");
        let answer = read(answer).await;
        assert_problem(&answer, 429, "too_many_tails", Value::Null);
        let detail = answer.1["detail"].as_str().unwrap();
        assert!(detail.contains(hint), "{detail}");
    };
    let mut open = Vec::new();
    for bearer in &bearers[..MOST / SHARE] {
        for _ in 0..SHARE {
            open.push(Lines::of(get(bearer).await.unwrap()));
        }
        refused(bearer, "16 tails of this token").await;
    }
    let [.., other] = &bearers[..] else {
        unreachable!()
    };
    refused(other, "serves 64 tails already").await;
    open.pop();
    eventually("there is a place", async || {
        (get(other).await.ok()?.status() == 200).then_some(())
    })
    .await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn shared_tails_have_one_reader_and_each_reports_its_own_jobs() {
    const TAILS: usize = 50;
    let server = keyfall::embedded::Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "http-tails-shared").await;
    let daemon = Daemon::start(&site);
    let connections = async || -> usize {
        let list: String = site.command(&["CLIENT", "LIST"]).await;
        list.lines().count()
    };
    let open = async |id: usize| {
        let query = format!("prefix={}&shared=true", site.key(format!("of-{id}-")));
        let mut tail = Lines::open(&daemon, &query).await;
        assert!(tail.any().await.unwrap().get("alive").is_some());
        tail
    };
    let mut tails = vec![open(0).await];
    let before = connections().await;
    for id in 1..TAILS {
        tails.push(open(id).await);
    }
    // The past is read over a connection that is closed afterwards.
    eventually("one connection is enough for all", async || {
        (connections().await <= before + 1).then_some(())
    })
    .await;
    for (id, tail) in tails.iter_mut().enumerate() {
        let key = site.key(format!("of-{id}-1"));
        schedule(&site, &key).await;
        assert_eq!(tail.happened().await, ("scheduled".to_owned(), key.clone()));
        site.client.cancel(&*key).await.unwrap();
        assert_eq!(tail.happened().await, ("cancelled".to_owned(), key));
    }
    drop(tails);
    let reads = async || -> u64 {
        let info: String = site.command(&["INFO", "commandstats"]).await;
        let line = info.lines().find(|line| line.starts_with("cmdstat_xread:"));
        let calls = line.and_then(|line| line.split(['=', ',']).nth(1));
        calls.map_or(0, |calls| calls.parse().unwrap())
    };
    eventually("nobody listens, so nobody reads", async || {
        let before = reads().await;
        tokio::time::sleep(2 * SECOND).await;
        (reads().await == before).then_some(())
    })
    .await;
    // A later one starts the reader again.
    let mut tail = open(0).await;
    let key = site.key("of-0-2");
    schedule(&site, &key).await;
    assert_eq!(tail.happened().await, ("scheduled".to_owned(), key.clone()));
    site.client.cancel(&*key).await.unwrap();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_shared_tail_that_is_read_too_slowly_is_told_that_changes_are_missing() {
    // The reader of shared tails would also read the crowds of other tests.
    let server = keyfall::embedded::Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "http-tail-skips").await;
    let daemon = Daemon::start(&site);
    schedule(&site, &site.key("first")).await;
    let query = "prefix=http-tail-skips:&shared=true&last=1";
    let mut slow = Lines::open(&daemon, query).await;
    assert_eq!(slow.happened().await.1, site.key("first"));
    // It asks for one change of the crowd, and gets it without a hundred thousand lines before.
    let query = "prefix=http-tail-skips:&shared=true&what=scheduled";
    let mut other = Lines::open(&daemon, query).await;
    let begins = other.any().await.unwrap();
    assert!(begins["alive"].is_object(), "{begins}");
    crowd(&site).await;
    let last = site.key("last");
    schedule(&site, &last).await;
    let read_on = async |tail: &mut Lines| {
        let mut has_skipped = false;
        loop {
            let line = tail.any().await.expect("it goes on");
            has_skipped |= line.get("skipped").is_some();
            if line["happened"]["key"] == *last {
                return has_skipped;
            }
        }
    };
    // The daemon has read all changes when another client has heard of the last one.
    read_on(&mut other).await;
    assert!(read_on(&mut slow).await);
    for key in [site.key("first"), last] {
        site.client.cancel(key).await.unwrap();
    }
    site.assert_balanced().await;
}

/// Writes 150,000 changes into the history.
async fn crowd(site: &Site) {
    let ids: Vec<String> = (100..350).map(|id| id.to_string()).collect();
    let crowd = format!("- - {}", ids.join(" "));
    let write = "for _ = 1, 600 do redis.call('XADD', KEYS[1], '*', 'what', 'cancelled', \
                 'by', 'web-1:42', 'jobs', ARGV[1], 'note', '') end";
    let history = format!("keyfall:{{{}/0}}:history", site.kind());
    let _: () = site.command(&["EVAL", write, "1", &history, &crowd]).await;
}

#[tokio::test]
async fn an_overview_has_a_page_of_kinds_and_the_named_kinds() {
    let site = Site::new("http-overview").await;
    let daemon = Daemon::start(&site);
    let kinds = ["a", "b", "c"].map(|biz| format!("{}:it:{biz}", site.app));
    for kind in &kinds {
        schedule(&site, &format!("{kind}:1")).await;
    }
    let names = |seen: &Value| -> Vec<String> {
        let kinds = seen["kinds"].as_array().unwrap().iter();
        let name = |kind: &Value| kind["kind"].as_str().unwrap().to_owned();
        kinds.map(name).collect()
    };
    let path = format!("/v1/overview?prefix={}:", site.app);
    let seen = daemon.get(&path).await;
    assert_eq!((names(&seen), &seen["total"]), (kinds.to_vec(), &json!(3)));
    assert!(seen.get("next").is_none(), "{seen}");
    let first = &seen["kinds"][0];
    assert_eq!(
        (&first["pending"], &first["counters"]["accepted"]),
        (&json!(1), &json!(1))
    );
    assert!(
        first["next_due"].is_string() && first["at"].is_string(),
        "{first}"
    );
    let within = json!({"minute": 0, "hour": 1, "day": 1});
    assert_eq!(first["due_within"], within, "{first}");
    let own = seen["instances"].as_array().unwrap().iter();
    let own = own
        .filter(|it| it["pid"] == daemon.process.child.id())
        .count();
    assert_eq!(own, 1, "{seen}");

    let seen = daemon
        .get(&format!("{path}&limit=1&kind={}", kinds[2]))
        .await;
    assert_eq!(names(&seen), [kinds[0].clone(), kinds[2].clone()]);
    assert_eq!(seen["next"], *kinds[0]);
    let seen = daemon
        .get(&format!("{path}&limit=2&cursor={}", kinds[0]))
        .await;
    assert_eq!(names(&seen), kinds[1..]);
    assert!(seen.get("next").is_none(), "{seen}");

    // Overdue jobs have been due for a measurable time.
    site.client
        .fire_now(format!("{}:1", kinds[0]))
        .await
        .unwrap();
    let seen = daemon.get(&path).await;
    let first = &seen["kinds"][0];
    assert!(first["overdue_for"].is_string(), "{first}");
    assert!(first.get("next_due").is_none(), "{first}");
    for kind in &kinds {
        site.client.cancel(format!("{kind}:1")).await.unwrap();
    }
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_job_without_a_route_is_scheduled_with_a_warning() {
    // A daemon of another test that has a route for every name would hide the job without a route.
    let server = keyfall::embedded::Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "http-warned").await;
    let daemon = Daemon::start(&site);
    let put = async |key: &str| {
        let path = format!("/v1/jobs/{key}");
        let (status, answer) = daemon.send("PUT", &path, json!({"after": "1h"})).await;
        assert!(matches!(status, 200 | 201), "{answer}");
        answer
    };
    let stray = "http-warned-stray:it:job:1";
    let said = format!("no live worker has a route for {stray}");
    let is_said = |warning: &Value| {
        let detail = warning["detail"].as_str();
        warning["code"] == "unrouted" && detail.is_some_and(|detail| detail.starts_with(&said))
    };
    // On a busy machine the routes are not read in time, or the daemon's heartbeat is late: then
    // there is no warning, or another one.
    eventually("its own route is known", async || {
        let answer = put(&site.key(1)).await;
        answer.get("warnings").is_none().then_some(())
    })
    .await;
    eventually("a job without a route leads to a warning", async || {
        let answer = put(stray).await;
        is_said(&answer["warnings"][0]).then_some(())
    })
    .await;
    let line = json!({"call": "schedule", "key": stray, "after": "1h"});
    eventually("a line of a batch leads to the same", async || {
        let answer = daemon.request("POST", "/v1/batch").body(line.to_string());
        let answer = answer.send().await.unwrap().text().await.unwrap();
        let answer: Value = serde_json::from_str(&answer).unwrap();
        is_said(&answer["result"]["warnings"][0]).then_some(())
    })
    .await;
    for key in [&*site.key(1), stray] {
        site.client.cancel(key).await.unwrap();
    }
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_tail_that_is_read_slowly_takes_little_memory_however_much_happens() {
    const TAILS: u64 = 4;
    // One read of entries is a mebibyte; its lines, job by job, are a hundred.
    const MOST: u64 = TAILS * 8 * 1024 * 1024;
    let site = Site::new("http-tail-crowds").await;
    let daemon = Daemon::start(&site);
    let first = site.key("first");
    schedule(&site, &first).await;
    let mut tails = Vec::new();
    for _ in 0..TAILS {
        let mut tail = Lines::open(&daemon, "prefix=http-tail-crowds:&last=1").await;
        assert_eq!(tail.happened().await.1, first);
        tails.push(tail);
    }
    let before = daemon.process.memory("VmHWM:");
    crowd(&site).await;
    for tail in &mut tails {
        assert_eq!(tail.happened().await.1, site.key(100));
    }
    let grown = daemon.process.memory("VmHWM:") - before;
    assert!(grown < MOST, "{grown} bytes");
    // Clients that go on reading get the changes job by job, in order.
    for number in 1..1000 {
        let key = site.key(100 + number % 250);
        assert_eq!(tails[0].happened().await.1, key);
    }
    site.assert_balanced().await;
}
