//! Limits of size, time and number; TLS, ids, the log, the stop.

use std::io::{Read, Write};
use std::net::TcpStream as Plain;
use std::process::Stdio;
use std::sync::Arc;

use futures_util::{StreamExt, stream};
use keyfall::NewJob;
use reqwest::Body;
use rustix::process::Signal;
use rustls::pki_types::ServerName;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use super::{Daemon, assert_problem, read};
use crate::runs::{PATIENCE, eventually};
use crate::site::{HOUR, Site};

const NONE: Value = Value::Null;

/// All bytes until the daemon closes the connection.
async fn rest(stream: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    let read = timeout(PATIENCE, stream.read_to_end(&mut all)).await;
    // A reset also ends the connection.
    let _ = read.expect("it is closed");
    all
}

#[tokio::test]
async fn a_large_body_is_refused_wherever_its_size_shows() {
    let site = Site::new("http-large").await;
    let daemon = Daemon::with(&site, &["--http-body-limit", "10000B"]);
    let path = format!("/v1/jobs/{}", site.key("a"));
    let payload = |bytes: usize| json!({"payload": "x".repeat(bytes)});
    assert_eq!(daemon.send("PUT", &path, payload(9_900)).await.0, 201);
    let too_large = daemon.send("PUT", &path, payload(10_000)).await;
    assert_problem(&too_large, 413, "payload_too_large", NONE);
    // Larger than all buffers on the way: the client sends for a while, and then reads the answer.
    let too_large = daemon.send("PUT", &path, payload(8_000_000)).await;
    assert_problem(&too_large, 413, "payload_too_large", NONE);
    // The length is not announced.
    let parts = stream::repeat_with(|| Ok::<_, std::io::Error>("x".repeat(1_000))).take(20);
    let request = daemon.request("PUT", &path).body(Body::wrap_stream(parts));
    let too_large = read(request.send().await.unwrap()).await;
    assert_problem(&too_large, 413, "payload_too_large", NONE);
    site.client.cancel(site.key("a")).await.unwrap();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_client_that_sends_no_request_is_cut_off() {
    let site = Site::new("http-slow").await;
    let flags = ["--http-header-timeout", "1s", "--http-body-timeout", "1s"];
    let daemon = Daemon::with(&site, &flags);
    for begun in ["", "GET /livez HTTP/1.1\r\nhost: localhost\r\n"] {
        let mut stream = TcpStream::connect(daemon.address()).await.unwrap();
        stream.write_all(begun.as_bytes()).await.unwrap();
        let said = rest(&mut stream).await;
        assert!(
            said.is_empty() || said.starts_with(b"HTTP/1.1 408"),
            "{said:?}"
        );
    }
    let mut stream = TcpStream::connect(daemon.address()).await.unwrap();
    let begun = format!(
        "PUT /v1/jobs/{} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{{",
        site.key("a")
    );
    stream.write_all(begun.as_bytes()).await.unwrap();
    let answer = String::from_utf8(rest(&mut stream).await).unwrap();
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    assert!(answer.contains("\"body_timeout\""), "{answer}");

    // A batch that stalls is answered up to its last complete line.
    let line = format!("{}\n", json!({"call": "cancel", "key": site.key("a")}));
    let lines = stream::iter([Ok::<_, std::io::Error>(line)]).chain(stream::pending());
    let request = daemon
        .request("POST", "/v1/batch")
        .body(Body::wrap_stream(lines));
    let text = request.send().await.unwrap().text().await.unwrap();
    let answers: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let codes: Vec<_> = answers
        .iter()
        .map(|one| one["problem"]["code"].as_str().unwrap())
        .collect();
    assert_eq!(codes, ["job_absent", "body_timeout"]);
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_client_that_does_not_read_is_cut_off() {
    let site = Site::new("http-deaf").await;
    let daemon = Daemon::with(
        &site,
        &["--http-body-timeout", "1s", "--http-max-connections", "1"],
    );
    let payload = "x".repeat(100_000);
    let jobs = site
        .keys(40)
        .map(|key| NewJob::new(key, &payload).after(HOUR));
    for answer in site.client.schedule_many(jobs).await {
        answer.unwrap();
    }
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stream = socket
        .connect(daemon.address().parse().unwrap())
        .await
        .unwrap();
    let request = format!(
        "GET /v1/jobs?prefix={} HTTP/1.1\r\nhost: localhost\r\n\r\n",
        site.app
    );
    // More than all buffers hold.
    stream
        .write_all(request.repeat(10).as_bytes())
        .await
        .unwrap();
    // The place of the connection is free again.
    eventually("there is room", async || {
        let answer = daemon.request("GET", "/livez").send().await.ok()?;
        (answer.status() == 204).then_some(())
    })
    .await;
    assert!(rest(&mut stream).await.len() < 30_000_000);
    let prefix = json!({"prefix": site.app});
    daemon
        .http
        .post(format!("{}/v1/jobs/cancel", daemon.url))
        .json(&prefix)
        .send()
        .await
        .unwrap();
    site.assert_balanced().await;
}

#[tokio::test]
async fn the_number_of_connections_is_limited() {
    let site = Site::new("http-full").await;
    let daemon = Daemon::with(&site, &["--http-max-connections", "2"]);
    let mut open = Vec::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(daemon.address()).await.unwrap();
        stream
            .write_all(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
            .await
            .unwrap();
        let mut some = [0; 12];
        stream.read_exact(&mut some).await.unwrap();
        assert_eq!(&some, b"HTTP/1.1 204");
        open.push(stream);
    }
    let mut third = TcpStream::connect(daemon.address()).await.unwrap();
    assert!(rest(&mut third).await.is_empty());
    open.pop();
    eventually("there is room", async || {
        let answer = daemon.request("GET", "/livez").send().await.ok()?;
        (answer.status() == 204).then_some(())
    })
    .await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_client_beyond_its_rate_is_told_when_to_retry() {
    let site = Site::new("http-often").await;
    let daemon = Daemon::with(&site, &["--http-requests-per-second", "1"]);
    let mut refused = None;
    for _ in 0..100 {
        let answer = daemon.request("GET", "/v1/kinds/a:b").send().await.unwrap();
        if answer.status() == 429 {
            refused = Some(answer);
            break;
        }
    }
    let refused = refused.expect("a hundred in a second are too many");
    let wait: u64 = refused.headers()["retry-after"]
        .to_str()
        .unwrap()
        .parse()
        .unwrap();
    assert!((1..=2).contains(&wait), "{wait}");
    let refused = read(refused).await;
    assert_problem(&refused, 429, "rate_limited", NONE);
    assert_eq!(refused.1["retryable"], true);
    // The health calls are open at any time.
    for _ in 0..10 {
        assert_eq!(daemon.call("GET", "/livez").await.0, 204);
    }
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_request_keeps_its_id_and_is_logged() {
    let site = Site::new("http-log").await;
    let mut command = Daemon::command(&site, &[]);
    command.env("KEYFALL_LOG", "info").stderr(Stdio::piped());
    let mut daemon = Daemon::spawned(command);
    let mut log = daemon.process.child.stderr.take().unwrap();
    let ask = |id: &'static str| {
        let path = format!("/v1/jobs/{}", site.key("secret"));
        daemon
            .request("GET", &path)
            .header("x-request-id", id)
            .send()
    };
    let answer = ask("trace-17").await.unwrap();
    assert_eq!(answer.headers()["x-request-id"], "trace-17");
    // An id that a log could misread is replaced.
    let answer = ask("two words").await.unwrap();
    assert_eq!(answer.headers()["x-request-id"].len(), 32);
    daemon.process.stop();
    let mut text = String::new();
    log.read_to_string(&mut text).unwrap();
    let line = text
        .lines()
        .find(|line| line.contains("trace-17"))
        .expect("a line");
    for part in ["method=GET", "path=\"/v1/jobs/{key}\"", "status=404", "ms="] {
        assert!(line.contains(part), "no {part} in {line}");
    }
    assert!(!text.contains("secret"), "{text}");
    site.assert_balanced().await;
}

/// Whether a client that trusts only this certificate is served.
pub(super) async fn trusts(daemon: &Daemon, cert: &str) -> bool {
    let mut roots = RootCertStore::empty();
    roots
        .add(rustls::pki_types::CertificateDer::from_pem_file(cert).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let host = ServerName::try_from("localhost").unwrap();
    let client = ClientConnection::new(Arc::new(config), host).unwrap();
    let address = daemon.address().to_owned();
    let answer = tokio::task::spawn_blocking(move || {
        let socket = Plain::connect(address).unwrap();
        let mut stream = StreamOwned::new(client, socket);
        stream.write_all(b"GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok::<_, std::io::Error>(answer)
    });
    match answer.await.unwrap() {
        Ok(answer) => {
            assert!(answer.starts_with("HTTP/1.1 204"), "{answer}");
            true
        }
        Err(error) => {
            assert_eq!(error.kind(), std::io::ErrorKind::InvalidData, "{error}");
            false
        }
    }
}

#[tokio::test]
async fn the_daemon_serves_https() {
    let site = Site::new("http-tls").await;
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let files = std::env::temp_dir().join(format!("keyfall-https-{:016x}", rand::random::<u64>()));
    std::fs::create_dir(&files).unwrap();
    let (cert, key) = (files.join("cert.pem"), files.join("key.pem"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let (cert, key) = (cert.to_str().unwrap(), key.to_str().unwrap());
    let daemon = Daemon::with(
        &site,
        &["--http-tls-cert-file", cert, "--http-tls-key-file", key],
    );
    assert!(daemon.url.starts_with("https://"));

    // The two have the same name, and differ only in the certificate.
    assert!(trusts(&daemon, cert).await);
    let other = std::fs::read(cert).unwrap();
    let renewed = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(cert, renewed.cert.pem()).unwrap();
    std::fs::write(key, renewed.signing_key.serialize_pem()).unwrap();
    assert!(!trusts(&daemon, cert).await);
    daemon.process.signal(Signal::HUP);
    eventually("it is renewed", async || {
        trusts(&daemon, cert).await.then_some(())
    })
    .await;
    std::fs::write(cert, other).unwrap();
    assert!(!trusts(&daemon, cert).await);

    let swapped = ["--http-tls-cert-file", key, "--http-tls-key-file", key];
    let refused = Daemon::command(&site, &swapped).output().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(
        said.contains("http.tls_cert_file") && said.contains("no certificate"),
        "{said}"
    );
    std::fs::remove_dir_all(files).unwrap();
    site.assert_balanced().await;
}

#[tokio::test]
async fn calls_from_web_pages_are_refused_without_tokens() {
    let site = Site::new("http-pages").await;
    let daemon = Daemon::start(&site);
    let key = site.key("a");
    let path = format!("/v1/jobs/{key}");
    let put = || {
        let body = json!({"after": "1h"}).to_string();
        daemon.request("PUT", &path).body(body)
    };
    for (name, value) in [
        ("origin", "http://evil.example"),
        ("origin", "null"),
        // A name that was pointed at this machine a moment ago: to its page, this daemon is its own
        // site.
        ("host", "evil.example:9276"),
    ] {
        let refused = read(put().header(name, value).send().await.unwrap()).await;
        assert_problem(&refused, 403, "web_page", NONE);
    }
    assert!(site.client.get(&key).await.unwrap().is_none());
    let probe = daemon.request("GET", "/livez").header("origin", "null");
    assert_eq!(probe.send().await.unwrap().status(), 204);
    for host in ["localhost", "app.localhost:9276", "[::1]:9276"] {
        assert!(
            put()
                .header("host", host)
                .send()
                .await
                .unwrap()
                .status()
                .is_success()
        );
    }
    site.client.cancel(&key).await.unwrap();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_stop_ends_pulls_and_batches_cleanly() {
    let site = Site::new("http-stop").await;
    let daemon = Daemon::start(&site);
    let key = site.key("a");
    let line = format!(
        "{}\n",
        json!({"call": "schedule", "key": key, "after": "1h"})
    );
    let lines = stream::iter([Ok::<_, std::io::Error>(line)]).chain(stream::pending());
    let request = daemon
        .request("POST", "/v1/batch")
        .body(Body::wrap_stream(lines));
    let mut answers = request.send().await.unwrap().bytes_stream();
    let first = answers.next().await.unwrap().unwrap();
    assert!(first.starts_with(br#"{"line":1,"status":201"#), "{first:?}");
    let pull = daemon.send("POST", "/v1/pull", json!({"wait": "180s"}));
    let stop = async {
        daemon.holds_a_pull(&site).await;
        daemon.process.signal(Signal::TERM);
    };
    let (pulled, ()) = tokio::join!(pull, stop);
    assert_eq!(pulled, (200, json!({"jobs": []})));
    let last: Value = serde_json::from_slice(&answers.next().await.unwrap().unwrap()).unwrap();
    assert_eq!((&last["line"], &last["status"]), (&json!(2), &json!(503)));
    assert_eq!(last["problem"]["code"], "stopping");
    assert!(answers.next().await.is_none());
    daemon.process.ends();
    site.client.cancel(&key).await.unwrap();
    site.assert_balanced().await;
}

#[tokio::test]
async fn an_answer_whose_jobs_were_returned_is_broken_off() {
    const JOBS: usize = 30;
    const MORE_THAN_BUFFERS_HOLD: usize = 6_500_000;
    let site = Site::new("http-broken-off").await;
    let daemon = Daemon::with(&site, &["--worker-grace", "0s"]);
    let payload = "x".repeat(500_000);
    let jobs = site.keys(JOBS).map(|key| NewJob::new(key, &payload));
    for answer in site.client.schedule_many(jobs).await {
        answer.unwrap();
    }
    let all_are_back = async || {
        eventually("all are back", async || {
            let stats = site.stats().await;
            (stats.pending as usize == JOBS).then_some(())
        })
        .await;
    };
    let mut stream = loop {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let address = daemon.address().parse().unwrap();
        let mut stream = socket.connect(address).await.unwrap();
        let body = r#"{"max": 30, "wait": "40s"}"#;
        let request = format!(
            "POST /v1/pull HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        let head = String::from_utf8(head).unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "));
        let length = length.unwrap().parse().unwrap();
        if length > MORE_THAN_BUFFERS_HOLD {
            break stream;
        }
        // The first jobs were claimed and sent one by one. They belong to this consumer, since the
        // system took the whole answer: dropping the connection would not give them back.
        let mut answer = vec![0; length];
        stream.read_exact(&mut answer).await.unwrap();
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        for job in answer["jobs"].as_array().unwrap() {
            let again = json!({"error": "too few", "after": "0s"});
            assert_eq!(daemon.settle("fail", job, again).await, "pending");
        }
        all_are_back().await;
    };
    daemon.process.signal(Signal::TERM);
    all_are_back().await;
    let answer = rest(&mut stream).await;
    assert!(answer.len() < MORE_THAN_BUFFERS_HOLD, "{}", answer.len());
    daemon.process.ends();
    site.client
        .prefix(&format!("{}:", site.kind()))
        .cancel()
        .await
        .unwrap();
    site.assert_balanced().await;
}

/// The rate limits the lines of a batch, and the jobs of a pull.
#[tokio::test]
async fn jobs_count_as_requests() {
    let site = Site::new("http-rate-jobs").await;
    let daemon = Daemon::with(&site, &["--http-requests-per-second", "5"]);
    let lines = site.keys(20).map(|key| {
        let line = json!({"call": "schedule", "key": key, "after": "1h"});
        format!("{line}\n")
    });
    let lines: String = lines.collect();
    let began = std::time::Instant::now();
    let request = daemon.request("POST", "/v1/batch").body(lines);
    let answer = request.send().await.unwrap();
    assert_eq!(answer.status(), 200);
    let text = answer.text().await.unwrap();
    // Five lines come at once, the others one by one.
    assert!(began.elapsed() >= std::time::Duration::from_millis(2900));
    let statuses = text.lines().map(|line| {
        let answer: Value = serde_json::from_str(line).unwrap();
        (
            answer["line"].as_u64().unwrap(),
            answer["status"].as_u64().unwrap(),
        )
    });
    let expected: Vec<(u64, u64)> = (1..=20).map(|line| (line, 201)).collect();
    assert_eq!(statuses.collect::<Vec<_>>(), expected);

    for key in site.keys(20) {
        site.client.fire_now(&key).await.unwrap();
    }
    let answer = eventually("a pull that may come", async || {
        let pull = json!({"max": 1000, "wait": "10s"});
        let (status, answer) = daemon.send("POST", "/v1/pull", pull).await;
        (status == 200).then_some(answer)
    })
    .await;
    let jobs = answer["jobs"].as_array().unwrap().len();
    assert!((1..=5).contains(&jobs), "{jobs}");
    site.client.prefix(&site.kind()).cancel().await.unwrap();
}
