//! The examples in other languages, run in the way of their readers.

use std::process::Command;

use keyfall::JobState;
use keyfall_testing::files::repository;
use keyfall_testing::process::TalkingProcess;

use super::Daemon;
use crate::examples::assert_in_order;
use crate::runs::eventually;
use crate::site::Site;

/// Runs an example with this daemon and app.
fn example(interpreter: &str, name: &str, daemon: &Daemon, site: &Site) -> TalkingProcess {
    let found = Command::new(interpreter).arg("--version").output();
    assert!(
        found.is_ok_and(|found| found.status.success()),
        "this test needs {interpreter}: `sh scripts/install-clients.sh` installs it, and so does \
         `make test`"
    );
    let dir = repository().join("examples/http");
    let shell = if name.ends_with(".sh") {
        "sh"
    } else {
        interpreter
    };
    let mut command = Command::new(shell);
    command.arg(dir.join(name)).arg(&site.app);
    command.env("KEYFALL_API", &daemon.url);
    command.env_remove("KEYFALL_TOKEN");
    TalkingProcess::spawn(command)
}

/// The printed lines, until all of these have come.
fn until(process: &TalkingProcess, all: &[&str]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    while !all.iter().all(|one| lines.iter().any(|line| line == one)) {
        lines.push(process.line());
    }
    lines
}

/// Four orders are delivered, each as its shop answers, and no order is left.
async fn delivers(interpreter: &str, name: &str, app: &str) {
    let site = Site::new(app).await;
    let daemon = Daemon::start(&site);
    let process = example(interpreter, name, &daemon, &site);
    let all = [41, 42, 43, 44].map(|order| format!("order {order}: done"));
    let lines = until(&process, &all.each_ref().map(String::as_str));
    assert_in_order(&lines, &["order 41, attempt 1", "order 41: done"]);
    assert_in_order(&lines, &["order 42, attempt 2", "order 42: done"]);
    assert_in_order(&lines, &["order 43, attempt 1", "order 43: done"]);
    // The dead letter has all its attempts ahead.
    let order_44 = [
        "order 44, attempt 1",
        "order 44: buried",
        "order 44, attempt 1",
        "order 44: done",
    ];
    assert_in_order(&lines, &order_44);
    let kind = format!("{app}:trans:notice");
    let stats = site.client.stats(&kind).await.unwrap();
    assert_eq!((stats.done, stats.requeued), (4, 1), "{stats:?}");
    assert_eq!(stats.pending + stats.leased + stats.dead, 0, "{stats:?}");

    // The example stops while it waits, and holds no job.
    assert_eq!(process.stop(), ["stopped"]);
    let key = format!("{kind}:45");
    site.client.schedule(&key, "").await.unwrap();
    let view = eventually("still due", async || site.client.get(&key).await.unwrap()).await;
    assert_eq!(view.state(), JobState::Pending);
    site.client.cancel(&key).await.unwrap();
    site.assert_balanced().await;
}

#[tokio::test]
async fn in_python() {
    delivers("python3", "schedule_and_pull.py", "http-python").await;
}

#[tokio::test]
async fn with_curl() {
    delivers("curl", "schedule_and_pull.sh", "http-curl").await;
}
