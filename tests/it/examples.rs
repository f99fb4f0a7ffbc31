//! The examples, run in the way of their readers.

use std::process::Command;

use keyfall::Client;
use keyfall_testing::files::repository;
use keyfall_testing::process::{TalkingProcess, example};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::site::shared_redis;

/// The tests in the example itself run here, too.
#[path = "../../examples/handlers.rs"]
#[allow(dead_code, reason = "its `main` runs as a process")]
mod handlers;

/// All examples. Each has a test in this module, except `traced`, which `http::traces` tests, and
/// `worker`, which other modules kill.
const EXAMPLES: [&str; 12] = [
    "dead_man",
    "digest",
    "handlers",
    "layers",
    "order_timeout",
    "payment_notice",
    "producer",
    "refund",
    "series",
    "traced",
    "web_service",
    "worker",
];

#[test]
fn every_example_is_tested_listed_and_documented() {
    let root = repository();
    let mut files: Vec<String> = std::fs::read_dir(root.join("examples"))
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        // Examples in other languages are tested by `http::examples`, `classic`,
        // `adopting::languages` and `make consumers`.
        .filter(|name| !["http", "classic", "adoption", "consumers"].contains(&&**name))
        .collect();
    files.sort_unstable();
    assert_eq!(files, EXAMPLES.map(|name| format!("{name}.rs")));
    let guide = std::fs::read_to_string(root.join("docs/guides/handlers.md")).unwrap();
    for name in EXAMPLES {
        let path = format!("examples/{name}.rs");
        assert!(guide.contains(&format!("(../../{path})")), "{path}");
        let text = std::fs::read_to_string(root.join(path)).unwrap();
        let opening: Vec<&str> = text
            .lines()
            .take_while(|it| it.starts_with("//!"))
            .collect();
        let opening = opening.join("\n");
        // Its exporter is a dependency of the daemon, and not of the library.
        let package = if name == "traced" {
            "-p keyfall-daemon "
        } else {
            ""
        };
        let run = format!("cargo run {package}--example {name}");
        for said in [&run, "KEYFALL_REDIS_URL"] {
            assert!(opening.contains(said), "{name} does not say {said}");
        }
    }
}

#[test]
fn every_example_fails_with_a_message_without_redis() {
    // No server listens there.
    let url = "redis://127.0.0.1:1";
    let started = EXAMPLES.map(|name| {
        let mut command = example(name, url);
        command.arg("app1").env("LISTEN", "127.0.0.1:0");
        std::thread::spawn(move || (name, output(command)))
    });
    for one in started {
        let (name, output) = one.join().unwrap();
        assert!(!output.status.success(), "{name}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("127.0.0.1:1"), "{name}: {said}");
    }
}

#[tokio::test]
async fn producer() {
    let lines = played("producer");
    assert_in_order(
        &lines,
        &[
            "coupon 1: Created",
            "coupon 1 is good for a day longer",
            "coupon 1: Pending, for user 7",
            "coupon 1: Cancelled",
            "coupon 1: Absent",
            "coupon 2 is for user 7",
            "coupon 2 is for user 7 already",
            "scheduled 1000 coupons at once",
            "not scheduled: ",
            "mend the call: ",
            "cancelled 1001 coupons",
        ],
    );
    assert_ended("app1:coupon:expire", 0).await;
}

#[tokio::test]
async fn handlers_with_state() {
    let lines = played("handlers");
    assert_in_order(
        &lines,
        &["to ada@example.com: 3 days left", "account 7 is closed"],
    );
    assert_ended("app1:trial:remind", 1).await;
    assert_ended("app1:trial:end", 1).await;
}

#[tokio::test]
async fn dead_man() {
    let lines = played("dead_man");
    assert_in_order(
        &lines,
        &[
            "web-1 begins to beat",
            "web-2 begins to beat",
            "web-1 is silent",
            "web-1 begins to beat",
            "web-1 is retired",
            "web-2 is retired",
            "nobody else was silent",
        ],
    );
    assert_ended("app1:host:silent", 1).await;
}

#[tokio::test]
async fn payment_notice() {
    let lines = played("payment_notice");
    assert_in_order(&lines, &["41, attempt 1: 200"]);
    let to_42 = [
        "42, attempt 1: 503",
        "42, attempt 2: 503",
        "42, attempt 3: 200",
    ];
    assert_in_order(&lines, &to_42);
    assert_in_order(
        &lines,
        &[
            "44, attempt 1: 404",
            "44 is a dead letter: the shop answered 404",
        ],
    );
    assert_in_order(
        &lines,
        &[
            "43, attempt 1: 503",
            "43, attempt 2: 503",
            "43, attempt 3: 503",
            "43, attempt 4: 503",
            "43 is a dead letter: the shop answered 503",
            "the shop is mended",
            "43, attempt 1: 200",
            "all are delivered",
        ],
    );
    assert_ended("app1:trans:notice", 3).await;
}

#[tokio::test]
async fn order_timeout() {
    let lines = played("order_timeout");
    assert_in_order(
        &lines,
        &[
            "order 1 is placed",
            "order 2 is placed",
            "order 2 is paid",
            "order 2: no warn",
            "order 2: no close",
            "order 1 is to be paid within five minutes",
            "order 1 is closed",
            "order 1 is closed: the payment goes back",
        ],
    );
    assert!(
        !lines.contains(&"order 2 is closed".to_owned()),
        "{lines:#?}"
    );
    assert_ended("app1:order:warn", 1).await;
    assert_ended("app1:order:close", 1).await;
}

#[tokio::test]
async fn series() {
    let lines = played("series");
    assert_in_order(
        &lines,
        &[
            "invoice 7, +3d 09:00: is scheduled",
            "invoice 7, +21d 09:00: is scheduled",
            "paid invoice 7, +3d 09:00: is cancelled",
            "paid invoice 7, +21d 09:00: is cancelled",
            "booking 42, -15d 09:00: is left out: its time had passed",
            "booking 42, -3d 09:00: is left out: its time had passed",
            "booking 42, -1h: is scheduled",
            "booking 42, +1d 10:00: is scheduled",
            "42~-1h: your stay",
            "moved booking 42, -1h: has run already",
            "moved booking 42, +1d 10:00: is moved",
            "subscription 5, -14d 09:00: is scheduled",
            "subscription 5, +0d: is scheduled",
        ],
    );
    assert_ended("app1:invoice:dun", 0).await;
    assert_ended("app1:booking:remind", 1).await;
    assert_ended("app1:subscription:renew", 0).await;
}

#[tokio::test]
async fn digest() {
    let lines = played("digest");
    assert!(
        lines[0].starts_with("At 09:00, in Europe/Berlin"),
        "{lines:#?}"
    );
    assert_in_order(
        &lines,
        &["digest 1 of user 42 for 20", "digest 2 is due in "],
    );
    assert_ended("app1:digest:daily", 1).await;
}

#[tokio::test]
async fn refund() {
    let lines = played("refund");
    assert_in_order(
        &lines,
        &[
            "refund 1, question 1: under way",
            "refund 1, question 2: the bank does not answer",
            "refund 1, question 3: under way",
            "refund 1, question 4: through",
            "app1:refund:check:1 is through",
            "app1:refund:check:2 needs a person: the bank denied it",
            "app1:refund:check:3 needs a person: the handler asked to run the job again, but attempt 5 was its last",
        ],
    );
    assert_in_order(&lines, &["refund 2, question 2: denied"]);
    assert_in_order(&lines, &["refund 3, question 5: under way"]);
    assert_ended("app1:refund:check", 1).await;
}

#[tokio::test]
async fn layers() {
    let lines = played("layers");
    let hung = r#"attempt=1}:request{id="r-7001"}: layers: the mail service hangs"#;
    let sent = r#"attempt=2}:request{id="r-7001"}: layers: invoice"#;
    assert_in_order(&lines, &[hung, sent]);
    for user in 1..=3 {
        let welcome =
            format!("run{{key=app1:mail:welcome:{user} attempt=1}}:request: layers: welcome");
        assert_in_order(&lines, &[&welcome]);
    }
    assert_ended("app1:mail:welcome", 3).await;
    assert_ended("app1:mail:invoice", 1).await;
}

#[tokio::test]
async fn web_service() {
    let mut command = example("web_service", shared_redis());
    command.env("LISTEN", "127.0.0.1:0");
    let process = TalkingProcess::spawn(command);
    let line = process.line();
    let address = line
        .strip_prefix("listening at http://")
        .unwrap()
        .to_owned();
    let speak = async |method: &str, path: &str, body: &str| {
        speak(&address, method, path, body).await.unwrap()
    };

    let (status, placed) = speak("POST", "/orders", r#"{"order":1,"minutes":15}"#).await;
    assert_eq!(status, 201, "{placed}");
    assert_eq!(process.line(), "order 1 is placed");
    let (status, found) = speak("GET", "/orders/1", "").await;
    assert_eq!(status, 200);
    assert!(found.contains(r#""state":"Pending""#), "{found}");
    assert_eq!(speak("DELETE", "/orders/1", "").await.0, 204);
    assert_eq!(speak("DELETE", "/orders/1", "").await.0, 404);
    assert_eq!(speak("GET", "/orders/1", "").await.0, 404);
    let (status, refused) = speak("POST", "/orders", r#"{"order":2,"minutes":6000000}"#).await;
    assert_eq!(status, 422);
    assert!(refused.contains("10 years"), "{refused}");

    // Asked to stop while a job runs, it finishes the job.
    assert_eq!(
        speak("POST", "/orders", r#"{"order":3,"minutes":0}"#)
            .await
            .0,
        201
    );
    let mut started = [process.line(), process.line()];
    started.sort_unstable();
    assert_eq!(started, ["order 3 is being closed", "order 3 is placed"]);
    let rest = process.stop();
    assert_in_order(&rest, &["stopping", "order 3 is closed", "stopped"]);
    assert!(TcpStream::connect(&address).await.is_err());
    assert_ended("app1:order:expire", 1).await;
}

/// The output of an example, which runs on the shared Redis and ends with success.
fn played(name: &str) -> Vec<String> {
    TalkingProcess::spawn(example(name, shared_redis())).ends()
}

fn output(mut command: Command) -> std::process::Output {
    command.output().unwrap()
}

/// Each of these is part of a line, in this order; other lines may stand between them.
#[track_caller]
pub(crate) fn assert_in_order(lines: &[String], expected: &[&str]) {
    let mut rest = lines.iter();
    for text in expected {
        let found = rest.any(|line| line.contains(text));
        assert!(found, "no {text:?} in its place: {lines:#?}");
    }
}

/// Asserts that no job of this kind is left, dead or alive; that this number is done; and that the
/// books balance.
async fn assert_ended(kind: &str, done: u64) {
    let client = Client::connect(shared_redis()).await.unwrap();
    let stats = client.stats(kind).await.unwrap();
    assert_eq!(stats.pending + stats.leased + stats.dead, 0, "{stats:?}");
    assert_eq!(stats.done, done, "{stats:?}");
    assert!(stats.is_balanced(), "{stats:?}");
}

/// One request, and the status and body of its answer.
async fn speak(
    address: &str,
    method: &str,
    path: &str,
    body: &str,
) -> std::io::Result<(u16, String)> {
    let mut connection = TcpStream::connect(address).await?;
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    connection.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Ok((status, body.to_owned()))
}
