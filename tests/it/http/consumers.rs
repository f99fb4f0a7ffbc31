//! Consumers that go away at every step: no job is lost, and jobs that they have not received go
//! back at once and count no attempt.

use keyfall::{JobState, NewJob};
use keyfall_testing::proxies::FreezingProxy;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};

use super::{Daemon, own_redis};
use crate::runs::{PATIENCE, eventually};
use crate::site::{Site, ms};

/// With this lease, a job that comes again during a test was given back: its lease cannot have
/// lapsed.
const LONG: [&str; 2] = ["--worker-lease", "1h"];

/// A consumer whose connection the test controls.
struct Raw(TcpStream);

impl Raw {
    async fn pulling(daemon: &Daemon, most: usize) -> Self {
        let body = json!({"max": most, "wait": "60s"}).to_string();
        Raw::sending(daemon, "/v1/pull", &body).await
    }

    /// Its receive buffer is small, so that answers get stuck on the way.
    async fn sending(daemon: &Daemon, path: &str, body: &str) -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let address = daemon.address().parse().unwrap();
        let mut stream = socket.connect(address).await.unwrap();
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        Raw(stream)
    }

    /// Dies like a process whose host is switched off: all further data is answered with a reset.
    fn cut(self) {
        self.0.set_zero_linger().unwrap();
    }

    /// Closes its side for writing, and reads the rest: returns the jobs if the whole answer
    /// arrived.
    async fn stopped(mut self) -> Option<Vec<Value>> {
        self.0.shutdown().await.unwrap();
        let mut all = Vec::new();
        // A reset also ends the connection.
        let _ = timeout(PATIENCE, self.0.read_to_end(&mut all))
            .await
            .expect("it is closed");
        let end = all.windows(4).position(|four| four == b"\r\n\r\n")?;
        let head = String::from_utf8(all[..end].to_vec()).unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        let length = head.lines().find_map(|line| {
            let length = line.strip_prefix("content-length: ")?;
            length.parse::<usize>().ok()
        });
        let body = &all[end + 4..];
        (body.len() == length.expect("a length")).then(|| {
            let body: Value = serde_json::from_slice(body).unwrap();
            body["jobs"].as_array().unwrap().clone()
        })
    }

    /// Waits for the beginning of the answer.
    async fn answered(&self) {
        let mut some = [0; 12];
        let peeked = timeout(PATIENCE, self.0.peek(&mut some)).await;
        assert!(peeked.unwrap().unwrap() > 0);
    }
}

/// Pulls and finishes all jobs of this site: this number, each in its first attempt.
async fn all_come_again(site: &Site, daemon: &Daemon, count: usize) {
    let mut come = 0;
    while come < count {
        let jobs = daemon.pull(count, "30s").await;
        assert!(
            !jobs.is_empty(),
            "{come} of {count}: {:?}",
            site.stats().await
        );
        for job in &jobs {
            assert_eq!(job["attempt"], 1, "{job}");
            assert_eq!(daemon.settle("finish", job, json!({})).await, "done");
        }
        come += jobs.len();
    }
    let stats = site.stats().await;
    assert_eq!(stats.pending + stats.leased, 0, "{stats:?}");
}

#[tokio::test]
async fn consumers_cut_off_while_waiting_get_no_job() {
    let site = Site::new("http-cut-wait").await;
    let daemon = Daemon::with(&site, &LONG);
    for number in 0..20 {
        let raw = Raw::pulling(&daemon, 10).await;
        sleep(ms(10)).await;
        if number % 2 == 0 {
            raw.cut();
        } else {
            assert_eq!(raw.stopped().await, None);
        }
    }
    site.client.schedule(site.key("a"), "").await.unwrap();
    all_come_again(&site, &daemon, 1).await;
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumers_cut_off_between_claim_and_answer_cost_only_a_hand_back() {
    /// The proxy recognizes the reply to the claim by this text.
    const MARK: &str = "the job as it was claimed";
    let (redis, site) = own_redis("http-cut-claim").await;
    let proxy = FreezingProxy::to(&redis).await;
    let behind = Site::at(&proxy.url, "http-cut-claim").await;
    let daemon = Daemon::with(&behind, &LONG);
    for number in 0..3 {
        proxy.freeze_at(MARK);
        let raw = Raw::pulling(&daemon, 1).await;
        site.client.schedule(site.key(number), MARK).await.unwrap();
        eventually("it is claimed", async || {
            (site.stats().await.leased == 1).then_some(())
        })
        .await;
        // The daemon learns of the claim only when the consumer is gone.
        raw.cut();
        proxy.thaw();
        eventually("it is handed back", async || {
            let stats = site.stats().await;
            (stats.returned == number + 1 && stats.leased == 0).then_some(())
        })
        .await;
    }
    all_come_again(&site, &daemon, 3).await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn consumers_cut_off_within_an_answer_have_none_of_its_jobs() {
    let site = Site::new("http-cut-answer").await;
    let daemon = Daemon::with(&site, &LONG);
    let payload = "x".repeat(1_000_000);
    for key in site.keys(10) {
        site.client.schedule(key, &payload).await.unwrap();
    }
    for _ in 0..3 {
        let raw = Raw::pulling(&daemon, 10).await;
        raw.answered().await;
        let stats = site.stats().await;
        assert!(stats.leased > 4, "less might fit in between: {stats:?}");
        raw.cut();
        eventually("all are back", async || {
            (site.stats().await.pending == 10).then_some(())
        })
        .await;
    }
    all_come_again(&site, &daemon, 10).await;
    site.assert_balanced().await;
}

/// An answer can get stuck anywhere, even a byte before its end: it is handed out, or its jobs go
/// back. The test finds the size of the buffers of a connection by trying.
#[tokio::test]
async fn an_answer_is_handed_out_exactly_with_its_last_byte() {
    let site = Site::new("http-cut-end").await;
    let daemon = Daemon::with(&site, &LONG);
    let (mut passes, mut sticks) = (0, 1_040_000);
    while sticks - passes > 1 {
        let size = usize::midpoint(passes, sticks);
        let payload = "x".repeat(size);
        let jobs = site.keys(3).map(|key| NewJob::new(key, &payload));
        for answer in site.client.schedule_many(jobs).await {
            answer.unwrap();
        }
        let raw = Raw::pulling(&daemon, 3).await;
        raw.answered().await;
        // Until no more data moves.
        sleep(ms(30)).await;
        let rest = match raw.stopped().await {
            Some(jobs) => {
                passes = size;
                for job in &jobs {
                    assert_eq!(daemon.settle("finish", job, json!({})).await, "done");
                }
                3 - jobs.len()
            }
            None => {
                sticks = size;
                3
            }
        };
        all_come_again(&site, &daemon, rest).await;
    }
    println!("payloads of {passes} bytes pass");
    site.assert_balanced().await;
}

/// A consumer that stops like the Python example never leaves a job to its lease: either it has the
/// whole answer, or its jobs go back.
#[tokio::test]
async fn a_consumer_that_stops_well_has_its_jobs_or_returns_them() {
    let site = Site::new("http-cut-race").await;
    let daemon = Daemon::with(&site, &LONG);
    let (mut theirs, mut back) = (0, 0);
    for round in 0..200 {
        let raw = Raw::pulling(&daemon, 1).await;
        site.client.schedule(site.key("a"), "").await.unwrap();
        sleep(std::time::Duration::from_micros(round * 50)).await;
        match raw.stopped().await.as_deref() {
            Some([job]) => {
                theirs += 1;
                assert_eq!(daemon.settle("finish", job, json!({})).await, "done");
            }
            Some(other) => panic!("{other:?}"),
            None => {
                back += 1;
                all_come_again(&site, &daemon, 1).await;
            }
        }
    }
    println!("{theirs} were theirs, {back} went back");
    site.assert_balanced().await;
}

#[tokio::test]
async fn the_leases_of_gone_consumers_lapse_and_others_get_the_jobs() {
    let site = Site::new("http-cut-after").await;
    let daemon = Daemon::with(&site, &["--worker-lease", "2s"]);
    for id in ["answered", "extended", "failed", "cut"] {
        site.client.schedule(site.key(id), "").await.unwrap();
        let [job] = &daemon.pull(1, "30s").await[..] else {
            panic!("no job");
        };
        // One consumer dies at once, one after it has extended its lease, and one after it has
        // failed its job.
        match id {
            "extended" => {
                let extended = daemon.settle("extend", job, json!({"by": "3s"}));
                assert_eq!(extended.await, "extended");
            }
            "failed" => {
                let failed = json!({"error": "closed", "after": "0s"});
                assert_eq!(daemon.settle("fail", job, failed).await, "pending");
            }
            _ => {}
        }
        // The job goes to another consumer, and counts another attempt.
        let [job] = &daemon.pull(1, "30s").await[..] else {
            panic!("{id} does not come again: {:?}", site.stats().await);
        };
        assert_eq!(job["attempt"], 2, "{job}");
        if id == "cut" {
            // The consumer is cut off before the answer to its finish.
            let body = json!({"leases": [job["lease"]]}).to_string();
            Raw::sending(&daemon, "/v1/leases/finish", &body)
                .await
                .cut();
        }
        let result = daemon.settle("finish", job, json!({})).await;
        let expected = ["done", if id == "cut" { "gone" } else { "done" }];
        assert!(expected.contains(&&*result), "{id}: {result}");
        assert_eq!(daemon.settle("finish", job, json!({})).await, "gone");
    }
    let stats = site.stats().await;
    assert_eq!((stats.done, stats.failed), (4, 1), "{stats:?}");
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_late_finish_counts_until_another_consumer_has_the_job() {
    let site = Site::new("http-late").await;
    let daemon = Daemon::with(&site, &["--worker-lease", "1s"]);
    site.client.schedule(site.key("a"), "").await.unwrap();
    let [job] = &daemon.pull(1, "30s").await[..] else {
        panic!("no job");
    };
    site.reaches(&site.key("a"), JobState::Lapsed).await;
    assert_eq!(daemon.settle("finish", job, json!({})).await, "done");
    assert_eq!(daemon.settle("finish", job, json!({})).await, "gone");

    site.client.schedule(site.key("a"), "").await.unwrap();
    let [late] = &daemon.pull(1, "30s").await[..] else {
        panic!("no job");
    };
    let [job] = &daemon.pull(1, "30s").await[..] else {
        panic!("it does not come again");
    };
    assert_eq!((&late["attempt"], &job["attempt"]), (&json!(1), &json!(2)));
    assert!(job["fence"].as_u64() > late["fence"].as_u64());
    assert_eq!(daemon.settle("finish", late, json!({})).await, "taken");
    let by = json!({"by": "1m"});
    assert_eq!(daemon.settle("extend", late, by.clone()).await, "taken");
    let failed = json!({"error": "late"});
    assert_eq!(daemon.settle("fail", late, failed).await, "taken");
    assert_eq!(daemon.settle("extend", job, by).await, "extended");
    assert_eq!(daemon.settle("finish", job, json!({})).await, "done");
    assert_eq!(daemon.settle("finish", late, json!({})).await, "gone");
    site.assert_balanced().await;
}

/// The retry policy of the route holds for a job without its own policy.
#[tokio::test]
async fn a_failure_follows_the_retry_policy_of_its_route() {
    let site = Site::new("http-ladder").await;
    let file = std::env::temp_dir().join(format!("keyfall-ladder-{}.toml", std::process::id()));
    let routes = format!(
        "[[route]]\npattern = \"{}\"\ntarget = \"pull\"\nretry = \"0s\"\n",
        site.pattern()
    );
    std::fs::write(&file, routes).unwrap();
    let daemon = Daemon::with(&site, &["--config", file.to_str().unwrap()]);
    site.client.schedule(site.key("a"), "").await.unwrap();
    let failed = || json!({"error": "closed"});
    for result in ["pending", "buried"] {
        let [job] = &daemon.pull(1, "30s").await[..] else {
            panic!("it does not come again");
        };
        assert_eq!(job["max_attempts"], 2);
        assert_eq!(daemon.settle("fail", job, failed()).await, result);
    }
    std::fs::remove_file(file).unwrap();
    site.assert_balanced().await;
}
