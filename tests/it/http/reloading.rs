//! SIGHUP: routes that are replaced while the daemon serves.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;

use keyfall::embedded::Embedded;
use keyfall_testing::files::{Folder, repository};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::limits::trusts;
use super::{Daemon, assert_problem};
use crate::runs::{PATIENCE, eventually};
use crate::site::{HOUR, Site};

/// A daemon with its own configuration file, and its log.
struct Configured {
    daemon: Daemon,
    file: PathBuf,
    log: PathBuf,
}

impl Configured {
    fn start(site: &Site, routes: &str) -> Self {
        Configured::at(&site.url, routes)
    }

    /// Beside the Redis with this URL, which can have a password.
    fn at(url: &str, routes: &str) -> Self {
        let stem =
            std::env::temp_dir().join(format!("keyfall-reload-{:016x}", rand::random::<u64>()));
        let (file, log) = (stem.with_extension("toml"), stem.with_extension("log"));
        fs::write(&file, routes).unwrap();
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_keyfall"));
        command
            .args(["serve", "--http-listen", "127.0.0.1:0"])
            .arg("--config")
            .arg(&file)
            .env("KEYFALL_REDIS_URL", url)
            .stderr(Stdio::from(fs::File::create(&log).unwrap()));
        Configured {
            daemon: Daemon::spawned(command),
            file,
            log,
        }
    }

    /// Writes another file and sends the signal. Returns when the log has this text.
    async fn reload(&self, routes: &str, said: &str) -> String {
        let before = self.log().len();
        fs::write(&self.file, routes).unwrap();
        self.daemon.process.signal(Signal::HUP);
        eventually(said, async || {
            let log = self.log().split_off(before);
            log.contains(said).then_some(log)
        })
        .await
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    async fn pull(&self, max: usize, wait: &str) -> Vec<Value> {
        let wanted = json!({"max": max, "wait": wait});
        let mut answer = self.daemon.post("/v1/pull", wanted).await;
        serde_json::from_value(answer["jobs"].take()).unwrap()
    }

    /// The next job.
    async fn one(&self) -> Value {
        let mut jobs = self.pull(1, "40s").await;
        assert_eq!(jobs.len(), 1);
        jobs.remove(0)
    }

    async fn end(&self, call: &str, job: &Value, further: Value) -> Value {
        let mut body = json!({"leases": [job["lease"]]});
        body.as_object_mut()
            .unwrap()
            .extend(further.as_object().unwrap().clone());
        let answer = self.daemon.post(&format!("/v1/leases/{call}"), body).await;
        answer["results"][0].clone()
    }

    async fn schedule(&self, key: &str) {
        let (status, answer) = self
            .daemon
            .send("PUT", &format!("/v1/jobs/{key}"), json!({}))
            .await;
        assert_eq!(status, 201, "{answer}");
    }
}

impl Drop for Configured {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.file);
        let _ = fs::remove_file(&self.log);
    }
}

const REPLACED: &str = "the routes of the new configuration hold now";

fn route(pattern: &str, further: &str) -> String {
    format!("[[route]]\npattern = \"{pattern}\"\ntarget = \"pull\"\n{further}\n")
}

#[tokio::test]
async fn routes_come_go_and_change_and_a_held_pull_survives() {
    let site = Site::new("http-reload").await;
    let of = |kind: &str, further: &str| route(&format!("{}:it:{kind}:*", site.app), further);
    let key = |kind: &str| format!("{}:it:{kind}:1", site.app);
    let old = of("old", "") + &of("same", "concurrency = 1");
    let daemon = Configured::start(&site, &old);
    daemon.schedule(&key("same")).await;
    let held = daemon.one().await;

    let waiting = async { daemon.one().await };
    let reload = async {
        // The pull waits by then, or arrives when the routes are new.
        tokio::time::sleep(super::SECOND / 5).await;
        let new = of("new", "lease = \"90s\"") + &of("same", "concurrency = 1");
        let log = daemon.reload(&new, REPLACED).await;
        assert!(
            log.contains(&format!("route {}:it:new:*", site.app)),
            "{log}"
        );
        daemon.schedule(&key("old")).await;
        daemon.schedule(&key("new")).await;
    };
    let (came, ()) = tokio::join!(waiting, reload);
    assert_eq!(
        (&came["key"], &came["lease_ms"]),
        (&json!(key("new")), &json!(90_000))
    );
    // The old route is gone, and the limit of the remaining one counts the delivered jobs.
    daemon.schedule(&format!("{}:it:same:2", site.app)).await;
    assert!(daemon.pull(10, "300ms").await.is_empty());
    let ended = daemon.end("finish", &held, json!({})).await;
    assert_eq!(ended["result"], "done");
    let next = daemon.one().await;
    assert_eq!(next["key"], format!("{}:it:same:2", site.app));
    daemon.end("finish", &next, json!({})).await;
    daemon.end("finish", &came, json!({})).await;

    // The route comes back, and another one changes.
    let changed = of("new", "lease = \"70s\"") + &of("old", "");
    daemon.reload(&changed, REPLACED).await;
    let came = daemon.one().await;
    assert_eq!(
        (&came["key"], &came["lease_ms"]),
        (&json!(key("old")), &json!(60_000))
    );
    daemon.end("finish", &came, json!({})).await;
    daemon.schedule(&key("new")).await;
    let came = daemon.one().await;
    assert_eq!(came["lease_ms"], 70_000);
    daemon.end("finish", &came, json!({})).await;
    daemon.reload(&changed, "has the same routes").await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_faulty_file_changes_nothing_and_all_its_faults_are_logged() {
    let site = Site::new("http-reload-bad").await;
    let good = route(&site.pattern(), "lease = \"70s\"");
    let daemon = Configured::start(&site, &good);
    let bad = good.replace("70s", "0s") + "conccurrency = 3\n[redis]\nurll = \"x\"\n";
    let log = daemon.reload(&bad, "the old configuration stays").await;
    for part in [
        "3 faults",
        "route.lease",
        "`concurrency`",
        "redis.urll",
        ".toml:",
    ] {
        assert!(log.contains(part), "no {part} in {log}");
    }
    daemon.schedule(&site.key("a")).await;
    let came = daemon.one().await;
    assert_eq!(came["lease_ms"], 70_000);
    daemon.end("finish", &came, json!({})).await;
    let log = daemon
        .reload(&route(&site.pattern(), "lease = \"80s\""), REPLACED)
        .await;
    assert!(!log.contains("ERROR"), "{log}");
    daemon.schedule(&site.key("b")).await;
    assert_eq!(daemon.one().await["lease_ms"], 80_000);
    site.client.cancel(site.key("b")).await.unwrap();
    site.assert_balanced().await;
}

/// With the rights of a worker of `acl.conf`, which may use no app but `app1`.
#[tokio::test]
async fn a_reload_that_redis_refuses_says_what_holds() {
    let rules = repository().join("acl.conf").display().to_string();
    let redis = Embedded::options().args(["--include", &rules]);
    let redis = redis.start().await.unwrap();
    let site = Site::at(&redis.url(), "app1").await;
    let foreign = "app2:it:job";
    let job = site.client.schedule("app2:it:job:1", "").after(HOUR);
    job.await.unwrap();
    let files = Folder::new("refused");
    let [cert, key, old] = ["cert.pem", "key.pem", "old.pem"].map(|name| files.path(name));
    let renew = || {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        fs::write(&cert, made.cert.pem()).unwrap();
        fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    };
    renew();
    fs::copy(&cert, &old).unwrap();
    let tls = format!("[http]\ntls_cert_file = \"{cert}\"\ntls_key_file = \"{key}\"\n");
    let user = format!("{}?user=keyfall-worker&pass=change-me-too", redis.url());
    let daemon = Configured::at(&user, &(tls.clone() + &route(&site.pattern(), "")));
    assert!(trusts(&daemon.daemon, &old).await);

    renew();
    let refused = tls.clone() + &route(&format!("{foreign}:{{id}}"), "");
    let log = daemon.reload(&refused, "the old configuration stays").await;
    assert!(log.contains(foreign), "{log}");
    assert!(trusts(&daemon.daemon, &old).await, "the certificate stays");

    // The limit is refused when the routes are new.
    let limit = format!("[[limit]]\nkind = \"{foreign}\"\nrate = \"9/s\"\n");
    let half = tls + &route(&site.pattern(), "lease = \"70s\"") + &limit;
    let log = daemon.reload(&half, "send SIGHUP again").await;
    assert!(log.contains(REPLACED), "{log}");
    assert!(log.contains("not all of its limits"), "{log}");
    assert!(!log.contains("the old configuration stays"), "{log}");
    assert!(trusts(&daemon.daemon, &cert).await, "it is renewed");
}

#[tokio::test]
async fn pulls_continue_while_routes_are_replaced_repeatedly() {
    const JOBS: usize = 300;
    let site = Site::new("http-reload-often").await;
    let routes = |number: usize| {
        let lease = 60 + number % 2;
        route(&site.pattern(), &format!("lease = \"{lease}s\""))
    };
    let daemon = Configured::start(&site, &routes(0));
    let consumer = async {
        let mut done = 0;
        while done < JOBS {
            for job in daemon.pull(20, "40s").await {
                let ended = daemon.end("finish", &job, json!({})).await;
                assert_eq!(
                    (&job["attempt"], &ended["result"]),
                    (&json!(1), &json!("done"))
                );
                done += 1;
            }
        }
    };
    let (over, mut is_over) = tokio::sync::watch::channel(false);
    let operator = async {
        let mut number = 0;
        while !*is_over.borrow_and_update() {
            number += 1;
            daemon.reload(&routes(number), REPLACED).await;
        }
        assert!(number > 2);
    };
    let producer = async {
        for key in site.keys(JOBS) {
            daemon.schedule(&key).await;
        }
    };
    let work = async {
        tokio::join!(consumer, producer);
        over.send(true).unwrap();
    };
    timeout(2 * PATIENCE, async { tokio::join!(work, operator) })
        .await
        .expect("all come");
    assert_eq!(site.stats().await.done as usize, JOBS);
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_failure_follows_the_policy_of_the_route() {
    let site = Site::new("http-policy").await;
    let daemon = Configured::start(&site, &route(&site.pattern(), "retry = \"1h\""));
    let key = site.key("a");
    daemon.schedule(&key).await;
    let first = daemon.one().await;
    assert_eq!(first["max_attempts"], 2);
    let error = json!({"error": "no"});
    let failed = daemon.end("fail", &first, error.clone()).await;
    assert_eq!(failed["result"], "pending");
    site.client.fire_now(&key).await.unwrap();
    let second = daemon.one().await;
    let failed = daemon.end("fail", &second, error.clone()).await;
    assert_eq!(failed["result"], "buried");

    // The policy of the job wins.
    let own = json!({"retry": "2h 3h"});
    let path = format!("/v1/jobs/{}", site.key("b"));
    assert_eq!(daemon.daemon.send("PUT", &path, own).await.0, 201);
    let job = daemon.one().await;
    assert_eq!(job["max_attempts"], 3);
    let failed = daemon.end("fail", &job, error).await;
    crate::site::assert_about(
        failed["due"]
            .as_str()
            .unwrap()
            .parse::<jiff::Timestamp>()
            .unwrap()
            .into(),
        2 * HOUR,
    );
    site.client.cancel(site.key("b")).await.unwrap();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_payload_is_as_large_as_its_route_allows() {
    let site = Site::new("http-payload").await;
    let routes = |limit: &str| {
        let small = route(&format!("{}:it:small:*", site.app), limit);
        small
            + &route(&site.pattern(), "")
            + &route(
                &format!("{}:it:large:*", site.app),
                "payload_limit = \"2MiB\"",
            )
    };
    let daemon = Configured::start(&site, &routes("payload_limit = \"1000B\""));
    let of = |kind: &str| format!("{}:it:{kind}:1", site.app);
    // The quotes count, too.
    let sized = |bytes: usize| json!("x".repeat(bytes - 2));
    for (kind, fits) in [("small", 1000), ("job", 1 << 20), ("large", 2 << 20)] {
        let path = format!("/v1/jobs/{}", of(kind));
        let refused = |answer, limit: &str| {
            assert_problem(&answer, 413, "payload_too_large", "payload");
            let detail = answer.1["detail"].as_str().unwrap();
            for part in [limit, "payload_limit", &format!("{}:it:{kind}:", site.app)] {
                assert!(detail.contains(part), "no {part} in {detail}");
            }
        };
        let body = |bytes| json!({"payload": sized(bytes), "after": "1h"});
        refused(
            daemon.daemon.send("PUT", &path, body(fits + 1)).await,
            &fits.to_string(),
        );
        assert_eq!(daemon.daemon.send("PUT", &path, body(fits)).await.0, 201);
        let path = format!("{path}/payload");
        let body = |bytes| json!({"payload": sized(bytes)});
        refused(
            daemon.daemon.send("PUT", &path, body(fits + 1)).await,
            &fits.to_string(),
        );
        assert_eq!(daemon.daemon.send("PUT", &path, body(fits)).await.0, 200);
        let line = |bytes| json!({"call": "schedule", "key": of(kind), "payload": sized(bytes), "after": "1h"});
        let lines = format!("{}\n{}\n", line(fits + 1), line(fits));
        let sent = daemon
            .daemon
            .request("POST", "/v1/batch")
            .body(lines)
            .send();
        let text = sent.await.unwrap().text().await.unwrap();
        let statuses: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap()["status"].clone())
            .collect();
        assert_eq!(statuses, [413, 200]);
        site.client.cancel(of(kind)).await.unwrap();
    }
    // The limit counts bytes, and not letters of Base64.
    let bytes = json!({"payload_base64": "AAAA".repeat(333)});
    let path = format!("/v1/jobs/{}", of("small"));
    assert_eq!(daemon.daemon.send("PUT", &path, bytes.clone()).await.0, 201);
    daemon
        .reload(&routes("payload_limit = \"998B\""), REPLACED)
        .await;
    let refused = daemon.daemon.send("PUT", &path, bytes).await;
    assert_problem(&refused, 413, "payload_too_large", "payload");
    site.client.cancel(of("small")).await.unwrap();
    site.assert_balanced().await;
}

#[tokio::test]
async fn the_daemon_logs_its_settings_and_their_sources_without_secrets() {
    let site = Site::new("http-given").await;
    let file =
        std::env::temp_dir().join(format!("keyfall-given-{:016x}.toml", rand::random::<u64>()));
    fs::write(
        &file,
        format!("[worker]\nlease = \"70s\"\n{}", route(&site.pattern(), "")),
    )
    .unwrap();
    let log = file.with_extension("log");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_keyfall"));
    // A user without a password accepts any password.
    let url = format!("{}?user=default&pass=hidden-word", site.url);
    command
        .args(["serve", "--http-listen", "127.0.0.1:0", "--config"])
        .arg(&file)
        .env("KEYFALL_REDIS_URL", url)
        .stderr(Stdio::from(fs::File::create(&log).unwrap()));
    Daemon::spawned(command).process.stop();
    let said = fs::read_to_string(&log).unwrap();
    for part in [
        "http.listen = 127.0.0.1:0 (--http-listen)",
        "*** (KEYFALL_REDIS_URL)",
        "worker.lease = 70s (",
        ".toml:2:9)",
        &format!("route {}", site.pattern()),
    ] {
        assert!(said.contains(part), "no {part} in {said}");
    }
    assert!(!said.contains("hidden-word"), "{said}");
    let _ = (fs::remove_file(file), fs::remove_file(log));
}
