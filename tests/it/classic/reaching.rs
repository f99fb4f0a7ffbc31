//! Access to the interface, and limits of its connections.

use std::net::UdpSocket;
use std::process::Stdio;

use keyfall::embedded::Embedded;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Queue, answered};
use crate::runs::PATIENCE;
use crate::site::Site;

#[tokio::test]
async fn calls_from_web_pages_are_refused() {
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
async fn slow_and_large_calls_end_and_a_missing_redis_is_reported() {
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

/// The address of this machine for other machines; loopback if there is none.
fn outward() -> String {
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    // This sends no data.
    let reached = socket.connect("198.51.100.1:9");
    match reached.and_then(|()| socket.local_addr()) {
        Ok(address) => address.ip().to_string(),
        Err(_) => "127.0.0.1".to_owned(),
    }
}

#[tokio::test]
async fn the_interface_listens_publicly_only_for_named_networks() {
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
    // A route of the command line clashes.
    let clash = format!("{}:queue:*:*", site.app);
    let refused = Queue::command(&site, "queue", &["--pull", &clash])
        .stderr(Stdio::piped())
        .output();
    let said = String::from_utf8_lossy(&refused.unwrap().stderr).into_owned();
    assert!(said.contains(&clash), "{said}");
}
