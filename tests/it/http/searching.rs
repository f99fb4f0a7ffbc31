//! Lists with conditions on due time, attempts and error.

use std::time::SystemTime;

use keyfall::{JobState, KeptJob, NewJob};
use serde_json::Value;

use super::{Daemon, assert_problem};
use crate::site::{HOUR, Site};

/// The keys of all pages of a list, without the kind, and the number of jobs that were looked at.
async fn search(daemon: &Daemon, site: &Site, query: &str) -> (Vec<String>, u64) {
    let (mut found, mut scanned, mut cursor) = (Vec::new(), 0, String::new());
    loop {
        let path = format!("/v1/jobs?prefix={}:&{query}&cursor={cursor}", site.app);
        let page = daemon.get(&path).await;
        let jobs = page["jobs"].as_array().unwrap();
        let key = |job: &Value| job["key"].as_str().unwrap().to_owned();
        let ids = jobs.iter().map(key);
        found.extend(ids.map(|key| key.rsplit_once(':').unwrap().1.to_owned()));
        scanned += page["scanned"].as_u64().unwrap();
        match page["next"].as_str() {
            Some(next) => cursor = next.to_owned(),
            None => return (found, scanned),
        }
    }
}

/// Brings a job whose attempts have failed, or a dead letter, as a backup would.
async fn bring(site: &Site, key: &str, state: JobState, attempts: u32, error: &str) {
    let now = SystemTime::now();
    let kept = match state {
        JobState::Dead => KeptJob::dead(key, now - HOUR, "1"),
        _ => KeptJob::pending(key, now + HOUR, "1"),
    };
    let restored = site
        .client
        .restore(kept.attempts(attempts).error(error))
        .await;
    restored.unwrap();
}

#[tokio::test]
async fn jobs_are_found_by_their_due_time() {
    let site = Site::new("http-search-due").await;
    let daemon = Daemon::start(&site);
    let jobs = (1..=40).map(|hour| {
        let kind = ["a", "b"][hour % 2];
        let key = format!("{}:it:{kind}:{hour:02}", site.app);
        NewJob::new(key, &hour).after(HOUR * hour as u32)
    });
    for answer in site.client.schedule_many(jobs).await {
        answer.unwrap();
    }
    let half = |hours: u32| format!("{}m", hours * 60 + 30);
    let query = format!("due_before={}&due_after={}", half(20), half(10));
    let (mut found, scanned) = search(&daemon, &site, &query).await;
    let of_kinds: Vec<bool> = found
        .iter()
        .map(|id| id.parse::<u32>().unwrap() % 2 == 1)
        .collect();
    assert!(of_kinds.is_sorted(), "kind by kind: {found:?}");
    found.sort_unstable();
    let expected: Vec<String> = (11..=20).map(|hour| hour.to_string()).collect();
    assert_eq!(found, expected);
    // The others were not looked at.
    assert_eq!(scanned, 10);
    let (found, _) = search(&daemon, &site, &format!("{query}&limit=1")).await;
    assert_eq!(found.len(), 10, "{found:?}");
    assert_eq!(search(&daemon, &site, "due_after=41h").await.0.len(), 0);
    assert_eq!(
        search(&daemon, &site, "due_before=1h&due_after=2h")
            .await
            .0
            .len(),
        0
    );
    let far = search(&daemon, &site, "due_before=2100-01-01T00:00:00Z").await;
    assert_eq!(far.0.len(), 40);
    // A time is a boundary to the millisecond: the job that is due then comes after it.
    let view = site.view(&format!("{}:it:a:02", site.app)).await;
    let due = jiff::Timestamp::try_from(view.due()).unwrap();
    assert_eq!(
        search(&daemon, &site, &format!("due_before={due}")).await.0,
        ["01"]
    );
    let (found, _) = search(&daemon, &site, &format!("due_after={due}&due_before=150m")).await;
    assert_eq!(found, ["02"]);
    site.client
        .prefix(&format!("{}:", site.app))
        .cancel()
        .await
        .unwrap();
    site.assert_balanced().await;
}

#[tokio::test]
async fn jobs_are_found_by_attempts_and_error() {
    let site = Site::new("http-search-error").await;
    let daemon = Daemon::start(&site);
    for number in 0..600 {
        let (attempts, error) = match number % 100 {
            7 => (5, format!("Connection TIMEOUT after {number} ms")),
            _ => (1 + number % 3, "refused".to_owned()),
        };
        let state = if number % 2 == 0 {
            JobState::Pending
        } else {
            JobState::Dead
        };
        let key = site.key(format_args!("{number:03}"));
        bring(&site, &key, state, attempts, &error).await;
        if number % 100 == 7 {
            let key = site.key(format_args!("{number:03}r"));
            bring(&site, &key, JobState::Pending, attempts, &error).await;
        }
    }
    let ids = |letter: &str| -> Vec<String> {
        (0..6)
            .map(|hundred| format!("{hundred}07{letter}"))
            .collect()
    };
    for query in [
        "error=timeout",
        "attempts_over=4",
        "error=Timeout&attempts_over=4&limit=2",
    ] {
        for (state, letter, all) in [
            ("pending", "r", 306),
            ("retrying", "r", 306),
            ("dead", "", 300),
        ] {
            let (mut found, scanned) =
                search(&daemon, &site, &format!("{query}&state={state}")).await;
            found.sort_unstable();
            assert_eq!(found, ids(letter), "{query} {state}");
            assert!(scanned >= all, "{scanned}");
        }
    }
    // A reason is the whole error, with its numbers folded.
    let reason = "state=dead&reason=Connection TIMEOUT after %23 ms";
    assert_eq!(search(&daemon, &site, reason).await.0.len(), 6);
    let part = "state=dead&reason=Connection TIMEOUT";
    assert_eq!(search(&daemon, &site, part).await.0.len(), 0);
    assert_eq!(search(&daemon, &site, "attempts_over=5").await.0.len(), 0);
    site.client.prefix(&site.kind()).cancel().await.unwrap();
    site.assert_balanced().await;
}

#[tokio::test]
async fn wrong_conditions_are_named() {
    let site = Site::new("http-search-wrong").await;
    let daemon = Daemon::start(&site);
    for (query, field, hint) in [
        ("due_before=soon", "due_before", "a duration from now"),
        ("due_after=5", "due_after", "`15m`"),
        ("attempts_over=-1", "attempts_over", "digit"),
        ("error=", "error", "part of the error"),
    ] {
        let answer = daemon.call("GET", &format!("/v1/jobs?{query}")).await;
        assert_problem(&answer, 400, "invalid_request", field);
        let detail = answer.1["detail"].as_str().unwrap();
        assert!(detail.contains(hint), "{query}: {detail}");
    }
}
