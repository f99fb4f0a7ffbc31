//! Alerts: jobs by which a daemon reports dead letters and late starts.

use std::fs::File;
use std::process::Command;

use keyfall::JobState;
use keyfall::embedded::Embedded;
use keyfall_testing::files::Folder;
use keyfall_testing::process::TalkingProcess;
use serde_json::Value;

use crate::callbacks::receiver::{Received, Receiver, says};
use crate::runs::eventually;
use crate::site::Site;

impl Site {
    /// A kind of this app.
    fn of(&self, rest: &str) -> String {
        format!("{}:{rest}", self.app)
    }

    /// The number of jobs that a kind of this app ever had.
    async fn accepted(&self, rest: &str) -> u64 {
        self.client.stats(&self.of(rest)).await.unwrap().accepted
    }
}

/// A daemon with this file, whose log is beside it.
fn serve(site: &Site, folder: &Folder, config: &str) -> TalkingProcess {
    folder.write("k.toml", config);
    let mut command = Command::new(env!("CARGO_BIN_EXE_keyfall"));
    command
        .args(["serve", "--http-listen", "127.0.0.1:0"])
        .args(["--redis-url", &site.url])
        .args(["--config", &folder.path("k.toml")])
        .stderr(File::create(folder.path("log")).unwrap());
    let process = TalkingProcess::spawn(command);
    assert!(process.line().starts_with("listening on "));
    process
}

fn json(received: &Received) -> Value {
    serde_json::from_slice(&received.body).unwrap()
}

/// A receiver that refuses its first request, and takes all others.
async fn slow_to_wake() -> Receiver {
    let asked = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    Receiver::start(
        move |_| match asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            0 => says("503 Service Unavailable", "", ""),
            _ => says("200 OK", "", ""),
        },
    )
    .await
}

#[tokio::test]
async fn a_dead_letter_raises_an_alert_job_that_is_retried() {
    let site = Site::new("alert-dead").await;
    let folder = Folder::new("alert-dead");
    let gone = Receiver::always("410 Gone", "").await;
    let mut pager = slow_to_wake().await;
    let app = &site.app;
    let config = format!(
        r#"
[alerts]
on_dead = "{app}:alerts:dead"
[[route]]
pattern = "{app}:it:job:*"
target = {{ http = {{ url = "{}" }} }}
[[route]]
pattern = "{app}:it:quiet:*"
target = {{ http = {{ url = "{}" }} }}
on_dead = "none"
[[route]]
pattern = "{app}:alerts:dead:*"
target = {{ http = {{ url = "{}" }} }}
retry = {{ fixed = "10ms" }}
"#,
        gone.url("/"),
        gone.url("/"),
        pager.url("/page")
    );
    let daemon = serve(&site, &folder, &config);
    let quiet = site.of("it:quiet:1");
    site.client.schedule(&quiet, &1).await.unwrap();
    site.reaches(&quiet, JobState::Dead).await;
    let key = site.key("me@example.org");
    let schedule = site.client.schedule(&key, "4711 geheim");
    schedule.header("tenant", "7").await.unwrap();

    let (first, second) = (pager.next().await, pager.next().await);
    assert_eq!(first.path, "/page");
    let alert = json(&second);
    assert_eq!(json(&first), alert);
    let view = site.reaches(&key, JobState::Dead).await;
    assert_eq!(
        (&alert["alert"], &alert["key"]),
        (&"dead".into(), &key.into())
    );
    assert_eq!(alert["kind"], site.kind());
    assert_eq!(alert["reason"], view.last_error().unwrap());
    assert_eq!(
        (&alert["attempts"], &alert["payload_bytes"]),
        (&1.into(), &13.into())
    );
    assert_eq!(alert["headers"]["tenant"], "7");
    assert!(alert["lag_ms"].is_u64(), "{alert}");
    for time in ["due", "first_scheduled_at"] {
        assert!(alert[time].as_str().unwrap().ends_with('Z'), "{alert}");
    }
    assert!(alert["instance"].as_str().unwrap().contains(':'), "{alert}");
    let own = alert["idempotency_key"].as_str().unwrap();
    assert!(own.starts_with(view.key().as_str()), "{own}");
    // An alert does not contain the payload of its job.
    assert!(!alert.to_string().contains("geheim"), "{alert}");
    let id = format!("dead/{}", own.replace(':', "/"));
    let told = site.of(&format!("alerts:dead:{id}"));
    eventually("it is done", async || {
        site.client
            .get(&told)
            .await
            .unwrap()
            .is_none()
            .then_some(())
    })
    .await;
    assert_eq!(site.accepted("alerts:dead").await, 1);
    daemon.stop();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_late_start_raises_an_alert_and_an_alert_raises_none() {
    let site = Site::new("alert-late").await;
    let folder = Folder::new("alert-late");
    let (done, gone) = (
        Receiver::always("200 OK", "").await,
        Receiver::always("410 Gone", "").await,
    );
    let app = &site.app;
    let config = format!(
        r#"
[alerts]
on_dead = "{app}:alerts:dead"
late_after = "1ms"
on_late = "{app}:alerts:late"
[[route]]
pattern = "{app}:it:job:*"
target = {{ http = {{ url = "{}" }} }}
[[route]]
pattern = "{app}:it:patient:*"
target = {{ http = {{ url = "{}" }} }}
late_after = "1h"
[[route]]
pattern = "{app}:alerts:*:*"
target = {{ http = {{ url = "{}" }} }}
"#,
        done.url("/"),
        done.url("/"),
        gone.url("/")
    );
    // The start of the daemon makes the job late.
    let (key, patient) = (site.key(1), site.of("it:patient:1"));
    for key in [&key, &patient] {
        site.client.schedule(key, &1).await.unwrap();
    }
    let daemon = serve(&site, &folder, &config);
    let letter = eventually("the alert has died", async || {
        let page = site
            .client
            .prefix(&site.of("alerts:late"))
            .list(JobState::Dead);
        page.await.unwrap().jobs.pop()
    })
    .await;
    let alert: Value = letter.json().unwrap();
    assert_eq!(
        (&alert["alert"], &alert["key"]),
        (&"late".into(), &key.into())
    );
    assert_eq!(
        (&alert["limit_ms"], &alert["untold"]),
        (&1.into(), &0.into())
    );
    assert!(alert["lag_ms"].as_u64().unwrap() >= 1, "{alert}");
    assert_eq!(alert.get("reason"), None);
    // All later reports have arrived by then.
    daemon.stop();
    assert_eq!(site.accepted("alerts:late").await, 1);
    assert_eq!(site.accepted("alerts:dead").await, 0);
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_repeated_report_is_one_alert() {
    // A separate server, so that the damage disturbs no other test.
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "alert-twice").await;
    let folder = Folder::new("alert-twice");
    let gone = Receiver::always("410 Gone", "").await;
    let config = format!(
        "[worker]\nlease = \"1s\"\n[alerts]\non_dead = \"{}\"\n\
         [[route]]\npattern = \"{}\"\ntarget = {{ http = {{ url = \"{}\" }} }}\nretry = {{ fixed = \"1h\", attempts = 1 }}\n",
        site.of("alerts:dead"),
        site.pattern(),
        gone.url("/")
    );
    // The burial fails.
    let grave = format!("keyfall:{{{}/0}}:grave", site.kind());
    let _: String = site.command(&["SET", &grave, "not ours"]).await;
    let mut daemon = serve(&site, &folder, &config);
    site.client.schedule(site.key(1), &1).await.unwrap();
    eventually("it is told", async || {
        (site.accepted("alerts:dead").await == 1).then_some(())
    })
    .await;
    assert_eq!(site.view(&site.key(1)).await.state(), JobState::Running);
    daemon.kill();
    let _: u64 = site.command(&["DEL", &grave]).await;
    let daemon = serve(&site, &folder, &config);
    let view = site.reaches(&site.key(1), JobState::Dead).await;
    assert!(view.last_error().unwrap().contains("lapsed"), "{view:?}");
    let stats = site.client.stats(&site.of("alerts:dead")).await.unwrap();
    assert_eq!((stats.accepted, stats.pending), (1, 1));
    daemon.stop();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_refused_alert_does_not_stop_the_burial() {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "alert-refused").await;
    let folder = Folder::new("alert-refused");
    let gone = Receiver::always("410 Gone", "").await;
    let kind = site.of("alerts:dead");
    let config = format!(
        "[alerts]\non_dead = \"{kind}\"\n[[route]]\npattern = \"{}\"\ntarget = {{ http = {{ url = \"{}\" }} }}\n",
        site.pattern(),
        gone.url("/")
    );
    let due = format!("keyfall:{{{kind}/0}}:due");
    let _: String = site.command(&["SET", &due, "not ours"]).await;
    let daemon = serve(&site, &folder, &config);
    let key = site.key(1);
    site.client.schedule(&key, &1).await.unwrap();
    site.reaches(&key, JobState::Dead).await;
    daemon.stop();
    let log = folder.read("log");
    let line = log
        .lines()
        .find(|line| line.contains("could not be scheduled"));
    let line = line.unwrap_or_else(|| panic!("{log}"));
    assert!(line.contains("ERROR") && line.contains(&key), "{line}");
    let _: u64 = site.command(&["DEL", &due]).await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_daemon_without_a_file_alerts_on_jobs_that_consumers_bury() {
    let site = Site::new("alert-pull").await;
    let alerts = site.of("alerts:dead");
    let daemon = site.daemon(&["--pull", &site.pattern(), "--alerts-on-dead", &alerts]);
    site.client.schedule(site.key(1), &1).await.unwrap();
    // As `keyfall` does. Fails if another test was first.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let http = reqwest::Client::new();
    let post = async |path: &str, body: Value| {
        let sent = http
            .post(format!("{}{path}", daemon.url))
            .json(&body)
            .send()
            .await;
        sent.unwrap().json::<Value>().await.unwrap()
    };
    let pulled = post("/v1/pull", serde_json::json!({"max": 1, "wait": "40s"})).await;
    let lease = &pulled["jobs"][0]["lease"];
    let fail = serde_json::json!({"leases": [lease], "error": "no such account", "bury": true});
    let failed = post("/v1/leases/fail", fail).await;
    assert_eq!(failed["results"][0]["result"], "buried", "{failed}");
    let page = site
        .client
        .prefix(&alerts)
        .list(JobState::Pending)
        .await
        .unwrap();
    let alert: Value = page.jobs[0].json().unwrap();
    assert_eq!(alert["reason"], "no such account");
    assert_eq!(alert.get("lag_ms"), None);
    site.assert_balanced().await;
}
