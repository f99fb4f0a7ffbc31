//! The classic interface, as a client of such queues sees it: `keyfall serve` in a process of its
//! own.

use std::collections::HashSet;
use std::net::UdpSocket;
use std::process::{Command, Stdio};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use keyfall::embedded::Embedded;
use keyfall::{Cancelled, JobState};
use reqwest::Client;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::process::Process;
use crate::runs::{PATIENCE, eventually};
use crate::site::{Site, command, connect, ms, redis_time};
use crate::workers::SECOND;

/// A daemon that speaks the classic protocol, with its topics below `app:queue` of a site.
struct Queue {
    process: Process,
    /// Of the HTTP API, and of the interface.
    api: String,
    url: String,
    http: Client,
}

impl Queue {
    fn start(site: &Site) -> Self {
        Queue::with(site, &[])
    }

    fn with(site: &Site, flags: &[&str]) -> Self {
        Queue::spawned(Queue::command(site, "queue", flags))
    }

    fn command(site: &Site, module: &str, flags: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_keyfall"));
        command
            .args(["serve", "--http-listen", "127.0.0.1:0"])
            .args(["--redis-url", &site.url])
            .args(["--pull", &format!("{}:*:*:*", site.app)])
            .args(["--classic-prefix", &format!("{}:{module}", site.app)]);
        if !flags.contains(&"--classic-listen") {
            command.args(["--classic-listen", "127.0.0.1:0"]);
        }
        command.args(flags);
        command
    }

    fn spawned(command: Command) -> Self {
        let process = Process::spawn(command);
        let (api, url) = (process.line(), process.line());
        // Fails if another test was first.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Queue {
            api: api.strip_prefix("listening on ").unwrap().to_owned(),
            url: url
                .strip_prefix("classic interface on ")
                .unwrap()
                .to_owned(),
            http: Client::builder().timeout(PATIENCE).build().unwrap(),
            process,
        }
    }

    async fn call(&self, name: &str, body: Value) -> Value {
        answered(&self.http, &self.url, name, body.to_string()).await
    }

    /// What came of a call that must succeed.
    async fn does(&self, name: &str, body: Value) -> Value {
        let mut answer = self.call(name, body).await;
        assert_eq!(answer["code"], 0, "{name}: {answer}");
        answer["data"].take()
    }

    async fn push(&self, topic: &str, id: &str) {
        let job = json!({"topic": topic, "id": id, "delay": 0, "ttr": 60, "body": id});
        self.does("push", job).await;
    }

    /// The id of the next job of these topics.
    async fn pop(&self, topics: &str) -> String {
        let job = self.does("pop", json!({"topic": topics})).await;
        let id = job["id"].as_str();
        id.unwrap_or_else(|| panic!("nothing came")).to_owned()
    }

    async fn finish(&self, id: &str) {
        self.does("finish", json!({"id": id})).await;
    }

    async fn get(&self, id: &str) -> Value {
        self.does("get", json!({"id": id})).await
    }

    fn address(&self) -> &str {
        self.url.strip_prefix("http://").unwrap()
    }
}

/// Every answer is of the same shape, and has status 200.
async fn answered(http: &Client, url: &str, name: &str, body: String) -> Value {
    let sent = http.post(format!("{url}/{name}")).body(body).send().await;
    let response = sent.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "application/json");
    let answer: Value = serde_json::from_str(&response.text().await.unwrap()).unwrap();
    let names: Vec<&String> = answer.as_object().unwrap().keys().collect();
    assert_eq!(names, ["code", "data", "message"], "{answer}");
    assert!(!answer["message"].as_str().unwrap().is_empty(), "{answer}");
    answer
}

fn kind(site: &Site, topic: &str) -> String {
    format!("{}:queue:{topic}", site.app)
}

async fn state(site: &Site, topic: &str, id: &str) -> Option<JobState> {
    let key = format!("{}:{id}", kind(site, topic));
    let view = site.client.get(key).await.unwrap();
    view.map(|view| view.state())
}

#[tokio::test]
async fn a_job_is_pushed_popped_and_finished_and_is_a_job_like_any_other() {
    let site = Site::new("classic-one").await;
    let queue = Queue::start(&site);
    // The body comes back as it came, white space and all.
    let body = " {\"order\":  42}\n\u{1F4E6}";
    let job = json!({"topic": "order.close", "id": "42", "delay": 3600, "ttr": 90, "body": body});
    assert_eq!(queue.does("push", job).await, Value::Null);

    let seen = queue.get("42").await;
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let due = seen["delay"].as_u64().unwrap();
    assert!((now + 3590..now + 3610).contains(&due), "{seen}");
    let expected =
        json!({"topic": "order.close", "id": "42", "delay": due, "ttr": 90, "body": body});
    assert_eq!(seen, expected);

    // Everything else sees it, and can change it.
    let key = format!("{}:42", kind(&site, "order.close"));
    let view = site.view(&key).await;
    assert_eq!(view.payload(), body.as_bytes());
    assert_eq!(view.headers().get("ttr"), Some("90"));
    let counted = queue
        .http
        .get(format!("{}/v1/jobs/count?prefix={}:", queue.api, site.app));
    let counted: Value =
        serde_json::from_str(&counted.send().await.unwrap().text().await.unwrap()).unwrap();
    assert_eq!(counted["pending"], 1, "{counted}");
    site.client.fire_now(&key).await.unwrap();

    let popped = queue.does("pop", json!({"topic": "order.close"})).await;
    assert_eq!(popped, json!({"id": "42", "body": body}));
    assert_eq!(
        state(&site, "order.close", "42").await,
        Some(JobState::Running)
    );
    queue.finish("42").await;
    assert_eq!(queue.get("42").await, Value::Null);
    let stats = site
        .client
        .stats(&kind(&site, "order.close"))
        .await
        .unwrap();
    assert_eq!((stats.done, stats.leased, stats.pending), (1, 0, 0));

    // One that somebody else scheduled there is delivered, too, and one that was cancelled is not.
    queue.push("order.close", "43").await;
    let cancelled = site
        .client
        .cancel(format!("{}:43", kind(&site, "order.close")))
        .await;
    assert_eq!(cancelled.unwrap(), Cancelled::Cancelled);
    site.client
        .schedule_bytes(format!("{}:44", kind(&site, "order.close")), "x")
        .await
        .unwrap();
    assert_eq!(queue.pop("order.close").await, "44");
    queue.finish("44").await;
    site.assert_balanced().await;
}

/// What clients are answered, whatever they send.
#[tokio::test]
async fn every_call_is_answered_as_the_table_says() {
    let site = Site::new("classic-table").await;
    let queue = Queue::with(&site, &["--http-body-limit", "2000B"]);
    let push = |field: &str, value: Value| {
        let mut job = json!({"topic": "a", "id": "1", "delay": 3600, "ttr": 60, "body": "x"});
        job[field] = value;
        job.to_string()
    };
    let (missing, id) = (Value::Null, json!({"id": "1"}).to_string());
    for (name, body, code, message) in [
        ("push", push("id", json!("1")), 0, "pushed"),
        ("push", push("id", json!(" 1 ")), 0, "pushed"),
        ("push", push("body", missing.clone()), 0, "pushed"),
        ("push", push("ttr", missing.clone()), 0, "pushed"),
        ("push", push("ttr", json!(0)), 0, "pushed"),
        ("push", push("ttr", json!(86400)), 0, "pushed"),
        ("push", push("more", json!(7)), 0, "pushed"),
        (
            "push",
            push("topic", missing.clone()),
            1,
            "topic: it is missing",
        ),
        ("push", push("topic", json!(" ")), 1, "topic: it is missing"),
        ("push", push("topic", json!("x".repeat(65))), 1, "topic: "),
        ("push", push("topic", json!(7)), 1, "topic: invalid type"),
        ("push", push("id", missing.clone()), 1, "id: it is missing"),
        ("push", push("id", json!("x".repeat(257))), 1, "id: "),
        ("push", push("id", json!(7)), 1, "id: invalid type"),
        (
            "push",
            push("delay", missing.clone()),
            1,
            "delay: it is missing",
        ),
        (
            "push",
            push("delay", json!(-1)),
            1,
            "delay: -1 is out of range",
        ),
        (
            "push",
            push("delay", json!(1_u64 << 31)),
            1,
            "delay: 2147483648 is out of range",
        ),
        ("push", push("delay", json!(1_900_000_000)), 1, ""),
        ("push", push("delay", json!("5")), 1, "delay: invalid type"),
        ("push", push("delay", json!(1.5)), 1, "delay: invalid type"),
        ("push", push("ttr", json!(-1)), 1, "ttr: -1 is out of range"),
        (
            "push",
            push("ttr", json!(86401)),
            1,
            "ttr: 86401 is out of range",
        ),
        (
            "push",
            push("body", json!({"a": 1})),
            1,
            "body: invalid type",
        ),
        (
            "push",
            push("body", json!("x".repeat(2000))),
            4,
            "the body has more than 2000 bytes",
        ),
        ("push", "{".into(), 1, "body: EOF"),
        ("push", "[]".into(), 1, "body: this is a list"),
        ("push", String::new(), 1, "topic: it is missing"),
        ("pop", "{}".into(), 1, "topic: it is missing"),
        (
            "pop",
            json!({"topic": " , ,"}).to_string(),
            1,
            "topic: there are 0",
        ),
        (
            "pop",
            json!({"topic": "x,".repeat(101)}).to_string(),
            1,
            "topic: there are 101",
        ),
        (
            "pop",
            json!({"topic": "x".repeat(65)}).to_string(),
            1,
            "topic: ",
        ),
        ("get", id.clone(), 0, "found"),
        ("get", "{}".into(), 1, "id: it is missing"),
        ("finish", "{}".into(), 1, "id: it is missing"),
        ("finish", id.clone(), 3, "id: no consumer has this job"),
        ("delete", "{}".into(), 1, "id: it is missing"),
        ("delete", id.clone(), 0, "deleted"),
        ("delete", id.clone(), 0, "there is no job"),
        ("finish", id.clone(), 0, "there is no job"),
        ("get", id, 0, "there is no job"),
        ("shove", "{}".into(), 8, "there is POST of /push"),
        ("", "{}".into(), 8, "there is POST of /push"),
    ] {
        let answer = answered(&queue.http, &queue.url, name, body.clone()).await;
        let said = answer["message"].as_str().unwrap();
        assert!(
            answer["code"] == code && said.starts_with(message),
            "{name} {body}: {answer}"
        );
        assert!(name == "get" || answer["data"].is_null(), "{answer}");
    }
    let response = queue
        .http
        .get(format!("{}/push", queue.url))
        .header("x-request-id", "me-7");
    let response = response.send().await.unwrap();
    assert_eq!(
        (
            response.status().as_u16(),
            &response.headers()["x-request-id"]
        ),
        (200, &"me-7".parse().unwrap())
    );
    assert!(response.text().await.unwrap().contains("\"code\":8"));
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_web_page_gets_nothing() {
    let site = Site::new("classic-page").await;
    let queue = Queue::start(&site);
    let pop = queue.http.post(format!("{}/pop", queue.url));
    let pop = pop
        .header("origin", "http://evil.example")
        .body(r#"{"topic":"a"}"#);
    let answer: Value = pop.send().await.unwrap().json().await.unwrap();
    assert_eq!(answer["code"], 7, "{answer}");
    assert!(
        answer["message"].as_str().unwrap().contains("origin"),
        "{answer}"
    );
}

#[tokio::test]
async fn one_that_is_not_finished_within_its_ttr_comes_again() {
    let site = Site::new("classic-ttr").await;
    let queue = Queue::with(
        &site,
        &["--classic-ttr", "30s", "--classic-deliveries", "3"],
    );
    let began = Instant::now();
    let job =
        |id: &str, ttr: u64| json!({"topic": "a", "id": id, "delay": 0, "ttr": ttr, "body": ""});
    queue.does("push", job("short", 1)).await;
    for delivery in 1..=3 {
        assert_eq!(queue.pop("a").await, "short");
        assert!(began.elapsed() >= (delivery - 1) * SECOND);
    }
    // Three times were allowed. Whoever waits gets the next one.
    let (popped, ()) = tokio::join!(queue.pop("a"), async {
        eventually("buried", async || {
            (state(&site, "a", "short").await == Some(JobState::Dead)).then_some(())
        })
        .await;
        queue.push("a", "next").await;
    });
    assert_eq!(popped, "next");
    queue.finish("next").await;
    assert_eq!(queue.get("short").await, Value::Null);

    // What others write into the header does not harm the rest.
    for (ttr, known) in [(u64::MAX.to_string(), 86_400), ("soon".into(), 30)] {
        let key = format!("{}:odd", kind(&site, "a"));
        let odd = site.client.schedule_bytes(key, "").header("ttr", ttr);
        odd.await.unwrap();
        assert_eq!(queue.get("odd").await["ttr"], known);
        assert_eq!(queue.pop("a").await, "odd");
        queue.finish("odd").await;
    }

    // A longer one than that of the route, and the one of the route.
    for (id, ttr, range) in [("long", 7200, 7100..7201), ("default", 0, 20..31)] {
        queue.does("push", job(id, ttr)).await;
        assert_eq!(queue.pop("a").await, id);
        let leased = format!("keyfall:{{{}/0}}:leased", kind(&site, "a"));
        eventually("its lease is its own", async || {
            let now = redis_time(&mut site.redis()).await / 1000;
            let until: f64 = site.command(&["ZSCORE", &leased, id]).await;
            let left = (until as u64).saturating_sub(now as u64) / 1000;
            range.contains(&left).then_some(())
        })
        .await;
        queue.finish(id).await;
    }
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_consumer_waits_for_several_topics_and_gets_nothing_of_others() {
    let site = Site::new("classic-topics").await;
    let queue = Queue::start(&site);
    queue.push("orders", "other").await;
    let (popped, ()) = tokio::join!(queue.pop("order, remind ,,"), async {
        // Its place is taken when somebody is heard who waits; then a topic that nobody has used.
        queue.push("remind", "r").await;
    });
    assert_eq!(popped, "r");
    queue.push("order", "o").await;
    assert_eq!(queue.pop("remind,order").await, "o");
    assert_eq!(
        state(&site, "orders", "other").await,
        Some(JobState::Pending)
    );
    for id in ["r", "o"] {
        queue.finish(id).await;
    }
    queue.does("delete", json!({"id": "other"})).await;
    assert_eq!(state(&site, "orders", "other").await, None);
    site.assert_balanced().await;
}

#[tokio::test]
async fn an_id_is_unique_over_topics_and_replaced_or_refused() {
    let site = Site::new("classic-unique").await;
    let queue = Queue::start(&site);
    let push = |topic: &str, body: &str| json!({"topic": topic, "id": "7", "delay": 3600, "ttr": 60, "body": body});
    queue.does("push", push("a", "one")).await;
    queue.does("push", push("a", "two")).await;
    assert_eq!(queue.get("7").await["body"], "two");
    queue.does("push", push("b", "three")).await;
    assert_eq!(state(&site, "a", "7").await, None);
    let seen = queue.get("7").await;
    assert_eq!(
        (&seen["topic"], &seen["body"]),
        (&json!("b"), &json!("three"))
    );

    let refusing = Queue::with(&site, &["--classic-existing", "refuse"]);
    for topic in ["a", "b"] {
        let answer = refusing.call("push", push(topic, "four")).await;
        assert_eq!(answer["code"], 2, "{answer}");
        assert!(
            answer["message"].as_str().unwrap().contains("topic \"b\""),
            "{answer}"
        );
    }
    assert_eq!(queue.get("7").await["body"], "three");

    // While a consumer has it, the new one follows, and a finish ends the old one alone.
    site.client
        .fire_now(format!("{}:7", kind(&site, "b")))
        .await
        .unwrap();
    assert_eq!(queue.pop("b").await, "7");
    queue.does("push", push("b", "four")).await;
    assert_eq!(queue.get("7").await["body"], "four");
    queue.finish("7").await;
    assert_eq!(state(&site, "b", "7").await, Some(JobState::Pending));
    let answer = queue.call("finish", json!({"id": "7"})).await;
    assert_eq!(answer["code"], 3, "{answer}");

    // And into another topic: the old one is not delivered again.
    site.client
        .fire_now(format!("{}:7", kind(&site, "b")))
        .await
        .unwrap();
    assert_eq!(queue.pop("b").await, "7");
    queue.does("push", push("c", "five")).await;
    assert!(
        site.view(&format!("{}:7", kind(&site, "b")))
            .await
            .is_cancelled()
    );
    assert_eq!(queue.get("7").await["body"], "five");
    queue.finish("7").await;
    assert_eq!(state(&site, "b", "7").await, None);
    queue.does("delete", json!({"id": "7"})).await;
    assert_eq!(state(&site, "c", "7").await, None);
    site.assert_balanced().await;
}

/// Two daemons, many pushes of the same id into several topics at the same time: one job is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pushes_of_one_id_that_race_leave_one_job() {
    let site = Site::new("classic-race").await;
    let queues = [Queue::start(&site), Queue::start(&site)];
    // The topics are known, so that both daemons find them.
    for topic in ["a", "b"] {
        queues[0].push(topic, topic).await;
        assert_eq!(queues[0].pop(topic).await, topic);
        queues[0].finish(topic).await;
    }
    for round in 0..50 {
        let id = format!("race-{round}");
        let push = |topic: &str| json!({"topic": topic, "id": id, "delay": 3600, "ttr": 60, "body": topic});
        // In one daemon any number, over two one each.
        if round % 2 == 0 {
            tokio::join!(
                queues[0].does("push", push("a")),
                queues[1].does("push", push("b"))
            );
        } else {
            let pushes = ["a", "b", "a", "b", "a"].map(|topic| queues[0].does("push", push(topic)));
            join_all(pushes).await;
        }
        let states = [state(&site, "a", &id).await, state(&site, "b", &id).await];
        let left = states.iter().flatten().count();
        assert_eq!(left, 1, "{id}: {states:?}");
        queues[1].does("delete", json!({"id": id})).await;
    }
    site.assert_balanced().await;
}

#[tokio::test]
async fn two_daemons_are_one_queue() {
    let site = Site::new("classic-two").await;
    let (one, other) = (Queue::start(&site), Queue::start(&site));
    one.push("a", "1").await;
    assert_eq!(other.pop("a").await, "1");
    one.finish("1").await;
    assert_eq!(state(&site, "a", "1").await, None);

    // Deleted while a consumer has it: it is not delivered again, and finishing it is no error.
    one.does(
        "push",
        json!({"topic": "a", "id": "2", "delay": 0, "ttr": 1, "body": ""}),
    )
    .await;
    assert_eq!(one.pop("a").await, "2");
    other.does("delete", json!({"id": "2"})).await;
    assert_eq!(other.get("2").await, Value::Null);
    let third = json!({"topic": "a", "id": "3", "delay": 0, "ttr": 1, "body": ""});
    let (popped, ()) = tokio::join!(other.pop("a"), async {
        eventually("it ends with its ttr", async || {
            state(&site, "a", "2").await.is_none().then_some(())
        })
        .await;
        one.finish("2").await;
        one.does("push", third).await;
    });
    assert_eq!(popped, "3");

    // A finish that comes late ends the delivery that is out then, whoever made it.
    assert_eq!(one.pop("a").await, "3");
    other.finish("3").await;
    assert_eq!(state(&site, "a", "3").await, None);
    let stats = site.client.stats(&kind(&site, "a")).await.unwrap();
    assert_eq!((stats.done, stats.cancelled, stats.buried), (2, 1, 0));
    site.assert_balanced().await;
}

#[tokio::test]
async fn topics_and_ids_come_back_as_they_were_whatever_is_in_them() {
    let site = Site::new("classic-odd").await;
    let queue = Queue::start(&site);
    let ids = [
        "a:b",
        "100%",
        "100%25",
        "{x}*",
        "tab\there",
        "订单 42",
        "a/b?c#d",
        "\u{1F4E6}",
        "..%.2E",
    ];
    for topic in ["order:close", "a/b c", "v1.10", "订单", "%2F", "{t}"] {
        for id in ids {
            let id = format!("{id}-{topic}");
            let job = json!({"topic": topic, "id": id, "delay": 0, "ttr": 60, "body": id});
            queue.does("push", job).await;
            let seen = queue.get(&id).await;
            assert_eq!((&seen["topic"], &seen["id"]), (&json!(topic), &json!(id)));
            let popped = queue.does("pop", json!({"topic": topic})).await;
            assert_eq!(popped, json!({"id": id, "body": id}));
            queue.finish(&id).await;
            assert_eq!(queue.get(&id).await, Value::Null);
        }
    }
    // What others scheduled has a name, too, by which it can be finished.
    for id in ["x%2Fy", "x%252Fy", "%FF"] {
        let key = format!("{}:{id}", kind(&site, "order"));
        site.client.schedule_bytes(key, "").await.unwrap();
        let popped = queue.pop("order").await;
        assert_eq!(queue.get(&popped).await["id"], popped);
        queue.finish(&popped).await;
        assert_eq!(queue.get(&popped).await, Value::Null);
    }
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_consumer_that_goes_away_while_it_waits_costs_nothing() {
    let site = Site::new("classic-gone").await;
    let queue = Queue::start(&site);
    for number in 0..20 {
        let id = number.to_string();
        let mut stream = TcpStream::connect(queue.address()).await.unwrap();
        let request =
            "POST /pop HTTP/1.1\r\nhost: x\r\ncontent-length: 13\r\n\r\n{\"topic\":\"a\"}";
        stream.write_all(request.as_bytes()).await.unwrap();
        let push = queue.push("a", &id);
        // Before the job is there, and while it is on its way.
        if number % 2 == 0 {
            drop(stream);
            push.await;
        } else {
            tokio::join!(push, async { drop(stream) });
        }
        assert_eq!(queue.pop("a").await, id);
        // An answer that was written whole could have been read.
        let attempts = site
            .view(&format!("{}:{id}", kind(&site, "a")))
            .await
            .attempts();
        assert_eq!(attempts, 1);
        queue.finish(&id).await;
    }
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_held_pops_get_a_job_each() {
    const HELD: usize = 1000;
    let site = Site::new("classic-thousand").await;
    let queue = Queue::with(&site, &["--http-access-log=false"]);
    let pops = (0..HELD).map(|_| {
        let (http, url) = (queue.http.clone(), queue.url.clone());
        tokio::spawn(async move {
            let body = json!({"topic": "a"}).to_string();
            let answer = answered(&http, &url, "pop", body).await;
            let id = answer["data"]["id"].as_str().unwrap().to_owned();
            let body = json!({"id": id}).to_string();
            assert_eq!(
                answered(&http, &url, "finish", body).await["message"],
                "finished"
            );
            id
        })
    });
    let pops: Vec<_> = pops.collect();
    let ids: Vec<String> = (0..HELD).map(|id| id.to_string()).collect();
    for some in ids.chunks(50) {
        join_all(some.iter().map(|id| queue.push("a", id))).await;
    }
    let popped: HashSet<String> = join_all(pops)
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    assert_eq!(popped, ids.into_iter().collect());
    let stats = site.client.stats(&kind(&site, "a")).await.unwrap();
    assert_eq!((stats.done, stats.lapsed), (HELD as u64, 0));
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_stop_lets_those_go_who_wait() {
    let site = Site::new("classic-stop").await;
    let queue = Queue::start(&site);
    let pops = (0..20).map(|_| {
        let (http, url) = (queue.http.clone(), queue.url.clone());
        tokio::spawn(async move { answered(&http, &url, "pop", "{\"topic\":\"a\"}".into()).await })
    });
    let pops: Vec<_> = pops.collect();
    // One of them is known to have waited.
    queue.push("a", "1").await;
    eventually("one is served", async || {
        pops.iter().any(|pop| pop.is_finished()).then_some(())
    })
    .await;
    queue.finish("1").await;
    // The others have been heard by now, or are refused their connection.
    tokio::time::sleep(ms(300)).await;
    let Queue { process, .. } = queue;
    process.stop();
    let answers = join_all(pops).await;
    let nothing = answers
        .iter()
        .flatten()
        .filter(|answer| answer["data"].is_null());
    assert_eq!(
        nothing
            .inspect(|answer| assert_eq!(answer["code"], 0))
            .count(),
        19
    );
    site.assert_balanced().await;
}

#[tokio::test]
async fn what_is_too_slow_or_too_much_ends_and_redis_that_is_away_is_told() {
    let redis = Embedded::start().await.unwrap();
    let site = Site::at(&redis.url(), "classic-limits").await;
    let flags = ["--http-body-timeout", "1s", "--http-header-timeout", "1s"];
    let queue = Queue::with(
        &site,
        &[&flags[..], &["--redis-call-timeout", "1s"]].concat(),
    );
    for (begun, answer) in [
        (
            "POST /push HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{",
            "\"code\":5",
        ),
        ("POST /push HTTP/1.1\r\nhost: x\r\n", ""),
    ] {
        let mut stream = TcpStream::connect(queue.address()).await.unwrap();
        stream.write_all(begun.as_bytes()).await.unwrap();
        let mut all = Vec::new();
        let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut all));
        let _ = read.await.expect("it is closed");
        let all = String::from_utf8(all).unwrap();
        assert!(all.contains(answer), "{all}");
    }
    drop(redis);
    let answer = queue.call("get", json!({"id": "1"})).await;
    assert_eq!(answer["code"], 6, "{answer}");
}

/// Where this machine can be reached from elsewhere; loopback, if nowhere.
fn outward() -> String {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    // Nothing is sent by that.
    let reached = socket.connect("198.51.100.1:9");
    match reached.and_then(|()| socket.local_addr()) {
        Ok(address) => address.ip().to_string(),
        Err(_) => "127.0.0.1".to_owned(),
    }
}

#[tokio::test]
async fn it_listens_elsewhere_only_for_networks_that_are_named() {
    let site = Site::new("classic-nets").await;
    let listen = ["--classic-listen", "0.0.0.0:0"];
    let refused = Queue::command(&site, "queue", &listen)
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        said.contains("--classic-listen: classic.listen: 0.0.0.0:0 can be reached"),
        "{said}"
    );

    let address = outward();
    for (network, code) in [("203.0.113.0/24", 7), ("0.0.0.0/0", 0)] {
        let queue = Queue::with(
            &site,
            &[&listen[..], &["--classic-allow", network]].concat(),
        );
        let port = queue.address().rsplit_once(':').unwrap().1;
        let body = || json!({"id": "1"}).to_string();
        let local = answered(
            &queue.http,
            &format!("http://127.0.0.1:{port}"),
            "get",
            body(),
        )
        .await;
        assert_eq!(local["code"], 0, "{local}");
        if address != "127.0.0.1" {
            let url = format!("http://{address}:{port}");
            let answer = answered(&queue.http, &url, "get", body()).await;
            assert_eq!(answer["code"], code, "{answer}");
        }
    }
    // A route of the command line that clashes.
    let clash = format!("{}:queue:*:*", site.app);
    let refused = Queue::command(&site, "queue", &["--pull", &clash])
        .stderr(Stdio::piped())
        .output();
    let said = String::from_utf8_lossy(&refused.unwrap().stderr).into_owned();
    assert!(said.contains(&clash), "{said}");
}

/// A bucket of ids by due time, and a hash of bodies.
#[tokio::test]
async fn what_waits_in_sorted_sets_is_imported() {
    let site = Site::new("classic-import").await;
    let now = (redis_time(&mut site.redis()).await / 1_000_000) as u64;
    for number in 0..30_u64 {
        let (id, due) = (format!("o-{number}"), now + number % 2 * 3600);
        let _: u64 = site
            .command(&["ZADD", "classic_import_bucket", &due.to_string(), &id])
            .await;
        let _: u64 = site
            .command(&["HSET", "classic_import_jobs", &id, &format!("b{number}")])
            .await;
    }
    let import = format!(
        "import --from redis-zset --due-key classic_import_bucket --due-unit s --payload-key \
         classic_import_jobs --key {}:queue:order:{{member}} --json",
        site.app
    );
    assert_eq!(site.run(&import).await.value()["scheduled"], 30);
    let queue = Queue::start(&site);
    let mut popped = HashSet::new();
    for _ in 0..15 {
        let job = queue.does("pop", json!({"topic": "order"})).await;
        let id = job["id"].as_str().unwrap();
        assert_eq!(job["body"], id.replace("o-", "b"));
        queue.finish(id).await;
        popped.insert(id.to_owned());
    }
    assert_eq!(popped.len(), 15);
    assert_eq!(queue.get("o-1").await["ttr"], 60);
    let _: u64 = site
        .command(&["DEL", "classic_import_bucket", "classic_import_jobs"])
        .await;
    site.assert_balanced().await;
}

/// A job as the original keeps it: a map in MessagePack, its numbers in eight bytes.
fn kept(topic: &str, id: &str, delay: u64, body: &str) -> Vec<u8> {
    let text = |text: &str| [&[0xd9, text.len() as u8], text.as_bytes()].concat();
    let number = |number: u64| [&[0xd3][..], &number.to_be_bytes()].concat();
    let fields = [
        ("Topic", text(topic)),
        ("Id", text(id)),
        ("Delay", number(delay)),
        ("TTR", number(7)),
        ("Body", text(body)),
    ];
    let fields = fields.map(|(name, value)| [text(name), value].concat());
    [&[0x85][..], &fields.concat()].concat()
}

#[tokio::test]
async fn what_the_original_keeps_is_imported() {
    let site = Site::new("classic-original").await;
    let old = Embedded::start().await.unwrap();
    let mut redis = connect(&old.url()).await;
    let now = (redis_time(&mut site.redis()).await / 1_000_000) as u64;
    for (topic, id, score, delay) in [
        ("order:close", "a b", now, now),
        // A consumer has it, or it was pushed again for later.
        ("t", "later", now + 3600, now - 60),
        ("t", "again", now - 60, now + 3600),
    ] {
        let _: u64 = command(&mut redis, &["ZADD", "dq_bucket_1", &score.to_string(), id]).await;
        let mut set = redis::cmd("SET");
        set.arg(id).arg(kept(topic, id, delay, &format!("<{id}>")));
        let () = set.query_async(&mut redis).await.unwrap();
    }
    // It was deleted, and its time has not come.
    let _: u64 = command(&mut redis, &["ZADD", "dq_bucket_1", "9", "gone"]).await;
    let import = format!(
        "import --from classic-queue --due-key dq_bucket_1 --prefix {}:queue --source-url {} --json",
        site.app,
        old.url()
    );
    let report = site.run(&import).await.value();
    assert_eq!(
        (&report["scheduled"], &report["invalid"]),
        (&json!(3), &json!(0))
    );
    assert_eq!(site.run(&import).await.value()["present"], 3);

    let queue = Queue::start(&site);
    let popped = queue.does("pop", json!({"topic": "order:close"})).await;
    assert_eq!(popped, json!({"id": "a b", "body": "<a b>"}));
    queue.finish("a b").await;
    for id in ["later", "again"] {
        let seen = queue.get(id).await;
        let expected = json!({"topic": "t", "id": id, "delay": now + 3600, "ttr": 7, "body": format!("<{id}>")});
        assert_eq!(seen, expected);
    }
    let () = command(&mut redis, &["SET", "later", "no job"]).await;
    site.run(&import).await.fails(1, "is no job in MessagePack");
    site.run(&import.replace(":queue", ""))
        .await
        .fails(2, "write two segments, such as app1:queue");
    site.assert_balanced().await;
}

/// An example of `examples/classic`, with what it reads from its standard input.
fn example(interpreter: &str, name: &str, url: &str) -> Command {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/classic");
    let mut command = Command::new(interpreter);
    command
        .arg(format!("{dir}/{name}"))
        .env("KEYFALL_CLASSIC", url);
    command
}

#[tokio::test]
async fn the_examples_push_pop_and_finish() {
    let site = Site::new("classic-examples").await;
    let queue = Queue::start(&site);
    let lines = Process::spawn(example("python3", "push_and_pop.py", &queue.url)).ends();
    assert_eq!(lines[lines.len() - 1], "order 42: closed", "{lines:?}");
    assert!(
        lines
            .iter()
            .any(|line| line == "order 42: not finished, so it comes again")
    );
    assert!(
        lines.iter().any(|line| line == "order 41: closed") && lines.len() == 3,
        "{lines:?}"
    );
    let lines = Process::spawn(example("sh", "push_and_pop.sh", &queue.url)).ends();
    assert_eq!(lines.iter().collect::<HashSet<_>>().len(), 2, "{lines:?}");
    let stats = site
        .client
        .stats(&kind(&site, "order.close"))
        .await
        .unwrap();
    assert_eq!(
        (stats.done, stats.cancelled, stats.pending + stats.leased),
        (4, 1, 0)
    );
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_queue_is_moved_through_the_interface() {
    let site = Site::new("classic-move").await;
    let (old, new) = (
        Queue::start(&site),
        Queue::spawned(Queue::command(&site, "new", &[])),
    );
    let mut ids = String::from("gone\n");
    for (id, delay) in [("a:1", 0), ("b 2", 3600)] {
        let job = json!({"topic": "t", "id": id, "delay": delay, "ttr": 7, "body": id});
        old.does("push", job).await;
        ids += &format!("{id}\n");
    }
    let mut command = example("python3", "move.py", &new.url);
    command.args([&old.url, &new.url]).stdin(Stdio::piped());
    let mut process = Process::spawn(command);
    std::io::Write::write_all(&mut process.child.stdin.take().unwrap(), ids.as_bytes()).unwrap();
    assert_eq!(process.ends(), ["2 moved"]);
    let due = async |queue: &Queue| queue.get("b 2").await["delay"].as_u64().unwrap();
    let late = due(&new).await - due(&old).await;
    assert!(late <= 60, "{late} s late");
    assert_eq!(new.pop("t").await, "a:1");
    assert_eq!(new.get("a:1").await["ttr"], 7);
    new.finish("a:1").await;
    site.assert_balanced().await;
}
