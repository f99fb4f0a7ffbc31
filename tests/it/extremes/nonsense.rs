//! Calls on jobs of unknown kinds, each of another kind: they leave no key in Redis, and next to
//! nothing in the daemon.

use serde_json::json;

use crate::http::Daemon;
use crate::site::Site;

/// The number of calls in one request.
const LINES: usize = 5_000;

/// The allowed growth of the daemon, in bytes.
const MOST: u64 = 10_000_000;

async fn nonsense(app: &str, names: usize) {
    let site = Site::new(app).await;
    let daemon = Daemon::start(&site);
    // The first request costs more than the following ones.
    call(&site, &daemon, "warm", LINES).await;
    let before = resident_bytes(&daemon);
    call(&site, &daemon, "kind", names).await;
    let grown = resident_bytes(&daemon).saturating_sub(before);
    println!(
        "{names} names: the daemon holds {:.1} MB more",
        grown as f64 / 1e6
    );
    assert!(grown < MOST, "the daemon grew by {grown} bytes");
    let keys: Vec<String> = site.command(&["KEYS", &format!("*{app}*")]).await;
    let keys: Vec<_> = keys.iter().filter(|key| !key.contains(":pulse:")).collect();
    assert!(keys.is_empty(), "{} keys, such as {}", keys.len(), keys[0]);
    let mut listed: Vec<String> = site.command(&["HKEYS", "keyfall:kinds"]).await;
    listed.retain(|kind| kind.contains(app));
    assert!(
        listed.is_empty(),
        "{} kinds, such as {}",
        listed.len(),
        listed[0]
    );
}

async fn call(site: &Site, daemon: &Daemon, what: &str, names: usize) {
    for from in (0..names).step_by(LINES) {
        let lines = (from..names.min(from + LINES)).map(|number| {
            let key = format!("{}:it:{what}{number}:1", site.app);
            let line = match number % 8 {
                0 => json!({"call": "postpone", "key": key, "after": "1h"}),
                1 => json!({"call": "fire", "key": key}),
                2 => json!({"call": "payload", "key": key, "payload": 1}),
                3 => json!({"call": "schedule", "key": key, "if": "present"}),
                4 => json!({"call": "requeue", "key": key, "letter": 1}),
                5 => json!({"call": "delete", "key": key, "letter": 1}),
                _ => json!({"call": "cancel", "key": key}),
            };
            format!("{line}\n")
        });
        let batch = daemon.request("POST", "/v1/batch");
        let sent = batch.body(lines.collect::<String>()).send().await.unwrap();
        let answers = sent.text().await.unwrap();
        let absent = answers
            .lines()
            .filter(|line| line.contains("\"status\":404"));
        assert_eq!(absent.count(), LINES.min(names - from), "{answers:.500}");
    }
}

fn resident_bytes(daemon: &Daemon) -> u64 {
    let statm = format!("/proc/{}/statm", daemon.process.child.id());
    let pages = std::fs::read_to_string(statm).unwrap_or_default();
    let pages = pages.split(' ').nth(1).and_then(|it| it.parse().ok());
    pages.unwrap_or(0_u64) * 4096
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_unknown_names_leave_no_key() {
    nonsense("nonsense", 10_000).await;
}

/// `make extremes`
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes a minute"]
async fn a_hundred_thousand_unknown_names_leave_no_key() {
    nonsense("nonsense-all", 100_000).await;
}
