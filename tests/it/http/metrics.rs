//! The metrics of the daemon, as Prometheus reads them.

use std::collections::HashSet;

use serde_json::json;

use super::Daemon;
use crate::runs::eventually;
use crate::site::Site;

/// The value of the line with this beginning.
fn value(text: &str, line: &str) -> Option<f64> {
    let mut lines = text.lines();
    let found = lines.find_map(|it| it.strip_prefix(line))?;
    Some(found.trim().parse().unwrap())
}

async fn scraped(daemon: &Daemon) -> String {
    let answer = daemon.request("GET", "/metrics").send().await.unwrap();
    assert_eq!(answer.status(), 200);
    let kind = answer.headers()["content-type"].to_str().unwrap();
    assert!(kind.starts_with("text/plain; version=0.0.4"), "{kind}");
    answer.text().await.unwrap()
}

#[tokio::test]
async fn the_ends_of_jobs_are_counted() {
    let site = Site::new("metrics").await;
    let daemon = Daemon::start(&site);
    let of_kind = |name: &str, more: &str| {
        let kind = site.kind();
        format!("keyfall_{name}{{kind=\"{kind}\"{more}}}")
    };
    for id in ["done", "again", "dead", "never"] {
        let after = if id == "never" { "1h" } else { "0s" };
        let path = format!("/v1/jobs/{}", site.key(id));
        let (status, _) = daemon.send("PUT", &path, json!({"after": after})).await;
        assert_eq!(status, 201);
    }
    let mut settled = 0;
    while settled < 3 {
        for job in daemon.pull(3, "10s").await {
            let key = job["key"].as_str().unwrap();
            let (verb, body) = match key.rsplit(':').next().unwrap() {
                "done" => ("finish", json!({})),
                "again" => ("fail", json!({"error": "closed", "after": "1h"})),
                _ => ("fail", json!({"error": "closed", "bury": true})),
            };
            daemon.settle(verb, &job, body).await;
            settled += 1;
        }
    }
    let cancelled = format!("/v1/jobs/{}", site.key("never"));
    assert_eq!(daemon.call("DELETE", &cancelled).await.0, 200);

    let text = eventually("all is counted", async || {
        let text = scraped(&daemon).await;
        let overdue = value(&text, &of_kind("overdue", ""))?;
        // On a busy machine, the daemon itself may be missing for a while.
        let unrouted = value(&text, &of_kind("unrouted", ""))?;
        (overdue + unrouted == 0.0).then_some(text)
    })
    .await;
    for (name, more, expected) in [
        ("scheduled_total", "", 4.0),
        ("cancelled_total", "", 1.0),
        ("settled_total", ",outcome=\"done\"", 1.0),
        ("settled_total", ",outcome=\"failed\"", 1.0),
        ("settled_total", ",outcome=\"buried\"", 1.0),
        ("dead_total", "", 1.0),
        ("lag_seconds_count", "", 3.0),
        ("lag_seconds_bucket", ",le=\"3600\"", 3.0),
        ("pending", "", 1.0),
        ("leased", "", 0.0),
        ("dead_letters", "", 1.0),
        ("paused", "", 0.0),
        ("unrouted", "", 0.0),
        ("leases_lapsed_total", "", 0.0),
        ("dead_letters_trimmed_total", "", 0.0),
        ("oldest_overdue_seconds", "", 0.0),
        ("unbalanced", "", 0.0),
    ] {
        let line = of_kind(name, more);
        assert_eq!(value(&text, &line), Some(expected), "{line}\n{text}");
    }
    let sources = ["event", "pacer", "reconciler", "backlog"];
    let claimed = sources.map(|source| {
        let more = format!(",source=\"{source}\"");
        value(&text, &of_kind("claimed_total", &more)).unwrap_or(0.0)
    });
    assert_eq!(claimed.iter().sum::<f64>(), 3.0, "{text}");
    assert!(value(&text, "keyfall_script_seconds_count{script=\"settle\"}").unwrap() >= 1.0);
    assert!(
        !text.contains(&site.key("done")),
        "an id is a label: {text}"
    );
    let stems_after = |word: &'static str| -> HashSet<_> {
        let lines = text.lines().filter_map(|line| line.strip_prefix(word));
        lines.filter_map(|rest| rest.split(' ').next()).collect()
    };
    let (helped, typed) = (stems_after("# HELP "), stems_after("# TYPE "));
    let is_sample = |line: &&str| !line.is_empty() && !line.starts_with('#');
    for line in text.lines().filter(is_sample) {
        let name = line.split(['{', ' ']).next().unwrap();
        assert!(name.starts_with("keyfall_"), "{line}");
        let stem = ["_bucket", "_sum", "_count"];
        let stem = stem.iter().find_map(|end| name.strip_suffix(end));
        let stem = stem.unwrap_or(name);
        assert!(helped.contains(stem), "{name} has no help");
        assert!(typed.contains(stem), "{name} has no type");
    }
    site.client.cancel(site.key("again")).await.unwrap();
    site.assert_balanced().await;
}
