//! How many runs began and ended in each step of the last hour or day.

use keyfall::{ActivitySpan, Dropped, Outcome, RetryPolicy, Router};
use serde_json::{Value, json};

use super::{Daemon, assert_problem};
use crate::runs::eventually;
use crate::site::{Running, Site, ms};

/// The sum of a list of numbers.
fn sum(numbers: &Value) -> u64 {
    let numbers: Vec<u64> = serde_json::from_value(numbers.clone()).unwrap();
    numbers.iter().sum()
}

fn sums(steps: &Value) -> [u64; 5] {
    ["started", "done", "failed", "buried", "late"].map(|name| sum(&steps[name]))
}

/// The names of the keys with the activity of the app.
async fn keys(site: &Site) -> Vec<String> {
    let pattern = format!("keyfall:{{{}:*}}:*", site.app);
    let mut keys: Vec<String> = site.command(&["KEYS", &pattern]).await;
    keys.retain(|key| key.ends_with(":minutes") || key.ends_with(":quarters"));
    keys
}

#[tokio::test]
async fn the_activity_counts_the_runs_of_all_workers() {
    let site = Site::new("http-series").await;
    let daemon = Daemon::start(&site);
    let (kind, prefix) = (site.kind(), format!("{}:", site.kind()));
    let policy = RetryPolicy::fixed(ms(1)).unwrap().attempts(2);
    let handler = async |job: keyfall::Job| match job.key().id() {
        "fails" => Outcome::retry("no"),
        _ => Outcome::Done,
    };
    let router = || {
        Router::new().route(
            &site.pattern(),
            keyfall::Handler::retry(handler, policy.clone()),
        )
    };
    let workers = [(); 2].map(|()| site.serve(router()));
    for worker in &workers {
        worker.ready().await;
    }
    site.client.prefix(&prefix).pause().await.unwrap();
    site.client.schedule(site.key("late"), "").await.unwrap();
    site.passes(ms(1100)).await;
    site.client.prefix(&prefix).resume().await.unwrap();
    for id in ["fails", "one", "two"] {
        site.client.schedule(site.key(id), "").await.unwrap();
    }
    eventually("all have run", async || {
        let stats = site.stats().await;
        (stats.done == 3 && stats.buried == 1).then_some(())
    })
    .await;
    // A worker that stops writes the rest.
    for worker in workers {
        worker.stop().await;
    }
    // A kind before it, which fills a page.
    let quiet = format!("{}:aa:job:1", site.app);
    let later = site.client.schedule(&quiet, "").after(crate::site::HOUR);
    later.await.unwrap();
    for (whole, expected) in [("false", [0; 5]), ("true", [5, 3, 1, 1, 1])] {
        let path = format!("/v1/series?prefix={}:&limit=1&whole={whole}", site.app);
        let series = daemon.get(&path).await;
        assert_eq!(sums(&series["sum"]), expected, "{series}");
        assert_eq!(series["kinds"], json!([]), "{series}");
    }
    site.client.cancel(&quiet).await.unwrap();
    for (span, step, steps) in [("hour", "1m", 60), ("day", "15m", 96)] {
        let path = format!("/v1/series?prefix={prefix}&span={span}");
        let series = daemon.get(&path).await;
        assert_eq!(
            (&series["total"], &series["step"]),
            (&json!(1), &json!(step))
        );
        let of_kind = &series["kinds"][0];
        assert_eq!(of_kind["kind"], *kind);
        assert_eq!(sums(of_kind), [5, 3, 1, 1, 1], "{of_kind}");
        assert_eq!(sums(&series["sum"]), [5, 3, 1, 1, 1]);
        for name in ["started", "late", "lag_p50_ms", "lag_p99_ms", "lag_max_ms"] {
            assert_eq!(of_kind[name].as_array().unwrap().len(), steps, "{name}");
        }
        let longest = of_kind["lag_max_ms"].as_array().unwrap().iter();
        let longest = longest.filter_map(Value::as_f64).fold(0.0, f64::max);
        assert!(longest >= 1000.0, "{longest}");
    }
    // The activity of a kind goes with it.
    assert_eq!(keys(&site).await.len(), 2);
    let letters = site.client.prefix(&prefix).delete_dead_letters();
    assert_eq!(letters.await.unwrap().done, 1);
    assert_eq!(
        site.client.drop_kind(&kind).await.unwrap(),
        Dropped::Dropped
    );
    assert_eq!(keys(&site).await, [""; 0]);
    let series = daemon.get(&format!("/v1/series?prefix={prefix}")).await;
    assert_eq!(
        (&series["total"], &series["kinds"]),
        (&json!(0), &json!([]))
    );
}

#[tokio::test]
async fn leases_that_consumers_finish_are_counted() {
    let site = Site::new("http-series-pull").await;
    let daemon = Daemon::start(&site);
    for id in 0..3 {
        site.client.schedule(site.key(id), "").await.unwrap();
    }
    let mut pulled = Vec::new();
    while pulled.len() < 3 {
        pulled.extend(daemon.pull(3, "30s").await);
    }
    assert_eq!(daemon.settle("finish", &pulled[0], json!({})).await, "done");
    assert_eq!(daemon.settle("finish", &pulled[1], json!({})).await, "done");
    let bury = json!({"error": "no", "bury": true});
    assert_eq!(daemon.settle("fail", &pulled[2], bury).await, "buried");
    daemon.process.stop();
    let kinds = [site.kind().parse().unwrap()];
    let series = site
        .client
        .activity(&kinds, ActivitySpan::Hour)
        .await
        .unwrap();
    let (_, steps) = &series.kinds[0];
    let count = |count: fn(&keyfall::Activity) -> u64| steps.iter().map(count).sum::<u64>();
    let counts = (
        count(keyfall::Activity::started),
        count(|step| step.done),
        count(|step| step.buried),
    );
    assert_eq!(counts, (3, 2, 1));
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_client_without_a_worker_and_idle_kinds_leave_no_activity() {
    let site = Site::new("http-series-idle").await;
    let worker = Running::start(site.worker(Router::new().route(&site.pattern(), async || {})));
    worker.ready().await;
    site.client
        .schedule(site.key(1), "")
        .after(crate::site::HOUR)
        .await
        .unwrap();
    worker.stop().await;
    assert_eq!(keys(&site).await, [""; 0]);
    site.client.cancel(site.key(1)).await.unwrap();
    site.assert_balanced().await;
}

#[tokio::test]
async fn wrong_parameters_of_the_activity_are_named() {
    let site = Site::new("http-series-wrong").await;
    let daemon = Daemon::start(&site);
    for (query, code, field, hint) in [
        ("span=week", "invalid_request", "span", "`hour` or `day`"),
        ("prefix=no key", "invalid_key", "prefix", ""),
        ("kind=a:b", "invalid_key", "kind", ""),
        ("limit=257", "invalid_request", "limit", "from 1 to 256"),
        ("step=1m", "invalid_request", "step", "`span`"),
        (
            "whole=yes",
            "invalid_request",
            "whole",
            "`true` nor `false`",
        ),
    ] {
        let answer = daemon.call("GET", &format!("/v1/series?{query}")).await;
        assert_problem(&answer, 400, code, field);
        let detail = answer.1["detail"].as_str().unwrap();
        assert!(detail.contains(hint), "{query}: {detail}");
    }
}
