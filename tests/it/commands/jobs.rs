//! Commands on jobs: schedule, get, cancel, postpone, fire, list and count.

use std::time::Duration;

use keyfall::{Outcome, Router};
use serde_json::json;

use super::only;
use crate::runs::{eventually, recorder};
use crate::site::{HOUR, Site, assert_about};

both_ways! {
    schedule_takes_terms_times_and_payloads on "cmd_schedule";
    get_shows_a_job on "cmd_get";
    cancel_asks_before_it_cancels_many on "cmd_cancel";
    postpone_and_fire_move_one_or_many on "cmd_move";
    a_run_cannot_be_fired_and_is_told_to_stop_by_cancel on "cmd_running";
    list_and_count_show_many on "cmd_list";
    a_job_without_a_route_is_scheduled_with_a_warning on "cmd_warned";
}

async fn schedule_takes_terms_times_and_payloads(site: Site) {
    let key = site.key(1);
    let terms = "--after 1h --header tenant=acme --retry none --attempts 3 --timeout 30s --json";
    let ran = site
        .run(&format!("schedule {key} {{\"a\":1.50}} {terms}"))
        .await;
    let answer = only(ran.value(), &["key", "placed", "armed"]);
    assert_eq!(
        answer,
        json!({"key": key, "placed": "created", "armed": true})
    );
    let job = site.view(&key).await;
    assert_eq!(&job.payload()[..], b"{\"a\":1.50}");
    assert_about(job.due(), HOUR);
    assert_eq!(job.headers().get("tenant"), Some("acme"));
    assert_eq!(job.max_attempts(), Some(3));
    assert_eq!(job.timeout().unwrap().as_secs(), 30);
    assert!(job.retry().is_some());

    let args = [
        "schedule",
        &key,
        "--at",
        "tomorrow 9:00",
        "--zone",
        "Asia/Tokyo",
        "--file",
        "-",
    ];
    let ran = site.run_args(&args).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.out.contains("replaces the pending job"), "{ran:?}");
    assert!(ran.out.contains("T00:00:00Z"), "nine in Tokyo: {ran:?}");
    let ran = site
        .run_reading(&format!("schedule {key} --file -"), b"\0\xff")
        .await;
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(&site.view(&key).await.payload()[..], b"\0\xff");

    let ran = site.run(&format!("schedule {key} --if-absent")).await;
    ran.fails(1, "pending or running");
    let ran = site
        .run(&format!("schedule {} --if-present", site.key(2)))
        .await;
    ran.fails(3, "there is no job");
    site.run("schedule a:b:c").await.fails(2, "exactly four");
    let ran = site
        .run_args(&["schedule", &key, "--at", "someday 9:00"])
        .await;
    ran.fails(2, "tomorrow 9:00");
    let ran = site.run(&format!("schedule {key} --after 20y")).await;
    ran.fails(2, "2h30m");
    let ran = site.run(&format!("schedule {key} --after 4000d")).await;
    ran.fails(2, "10 years");
    let ran = site.run(&format!("schedule {key} --retry 15x")).await;
    ran.fails(2, "rung 1");
    site.assert_balanced().await;
}

async fn get_shows_a_job(site: Site) {
    let key = site.key(1);
    site.client
        .schedule(&key, &json!({"n": 1}))
        .after(HOUR)
        .await
        .unwrap();
    let job = site.run(&format!("get {key} --json")).await.value();
    let job = only(job, &["key", "state", "payload", "attempts"]);
    let expected = json!({"key": key, "state": "pending", "payload": {"n": 1}, "attempts": 0});
    assert_eq!(job, expected);
    let ran = site.run(&format!("get {key}")).await;
    assert!(ran.out.contains("state      pending"), "{ran:?}");
    assert!(ran.out.contains(r#"payload    {"n":1}"#), "{ran:?}");

    site.client
        .schedule_bytes(&key, "\x1b]0;title\x07")
        .after(HOUR)
        .await
        .unwrap();
    let ran = site.run(&format!("get {key}")).await;
    assert!(
        !ran.out.contains('\x1b'),
        "a stored text steers no terminal: {ran:?}"
    );
    site.run(&format!("get {}", site.key(2)))
        .await
        .fails(3, "there is no job");
    site.run("get nonsense").await.fails(2, "not a job key");
    site.assert_balanced().await;
}

async fn cancel_asks_before_it_cancels_many(site: Site) {
    for key in site.keys(5) {
        site.client.schedule(&key, &1).after(HOUR).await.unwrap();
    }
    let key = site.key("00000");
    let ran = site.run(&format!("cancel {key} --json")).await;
    assert_eq!(ran.value(), json!({"key": key, "running": false}));
    site.run(&format!("cancel {key}"))
        .await
        .fails(3, "there is no job");

    let prefix = format!("--prefix {}:", site.kind());
    let ran = site.run(&format!("cancel {prefix}")).await;
    ran.fails(2, "`--yes`");
    assert!(ran.err.contains("4 jobs"), "{ran:?}");
    let ran = site.run(&format!("cancel {prefix} --dry-run --json")).await;
    assert_eq!(
        only(ran.value(), &["matched", "done"]),
        json!({"matched": 4, "done": 0})
    );
    assert_eq!(site.stats().await.pending, 4);
    let ran = site.run(&format!("cancel {prefix} --yes")).await;
    assert_eq!(ran.out, "4 of 4 done\n", "{ran:?}");
    assert_eq!(site.stats().await.cancelled, 5);

    site.run("cancel").await.fails(2, "required");
    site.run(&format!("cancel {key} {prefix}"))
        .await
        .fails(2, "cannot be used with");
    site.assert_balanced().await;
}

async fn postpone_and_fire_move_one_or_many(site: Site) {
    for key in site.keys(3) {
        site.client.schedule(&key, &1).after(HOUR).await.unwrap();
    }
    let key = site.key("00000");
    let ran = site.run(&format!("postpone {key} --after 2h --json")).await;
    assert_eq!(
        only(ran.value(), &["key", "successor"]),
        json!({"key": key, "successor": false})
    );
    assert_about(site.view(&key).await.due(), 2 * HOUR);
    let prefix = format!("--prefix {}:", site.kind());
    for bulk in ["postpone {} --by 1h", "fire {}"] {
        let ran = site.run(&bulk.replace("{}", &prefix)).await;
        ran.fails(2, "`--yes`");
        assert!(ran.err.contains("3 jobs"), "{ran:?}");
    }
    let ran = site.run(&format!("postpone {prefix} --by 1h --yes")).await;
    assert_eq!(ran.out, "3 of 3 done\n", "{ran:?}");
    assert_about(site.view(&key).await.due(), 3 * HOUR);
    let ran = site.run(&format!("fire {prefix} --dry-run --json")).await;
    assert_eq!(ran.value()["matched"], 3);
    let ran = site.run(&format!("fire {key}")).await;
    assert!(ran.out.starts_with(&format!("{key} is due ")), "{ran:?}");
    assert_about(site.view(&key).await.due(), Duration::ZERO);

    let absent = site.key(9);
    site.run(&format!("fire {absent}"))
        .await
        .fails(3, "there is no job");
    site.run(&format!("postpone {absent} --after 1h"))
        .await
        .fails(3, "there is no job");
    site.run(&format!("postpone {key}"))
        .await
        .fails(2, "--after 15m");
    for one in ["postpone {} --by 1h", "fire {} --dry-run"] {
        let ran = site.run(&one.replace("{}", &key)).await;
        ran.fails(2, "is for many jobs");
    }
    site.run("fire --prefix a:b:c:d:e")
        .await
        .fails(2, "four segments");
    site.assert_balanced().await;
}

async fn a_run_cannot_be_fired_and_is_told_to_stop_by_cancel(site: Site) {
    let (recorder, mut runs) = recorder();
    let handler = recorder.until_stopped(|| Outcome::Done);
    let worker = site.serve(Router::new().route(&site.pattern(), handler));
    let key = site.key(1);
    assert_eq!(site.run(&format!("schedule {key}")).await.code, 0);
    runs.next().await;
    site.run(&format!("fire {key}"))
        .await
        .fails(1, "is running");
    let ran = site.run(&format!("cancel {key} --json")).await;
    assert_eq!(ran.value(), json!({"key": key, "running": true}));
    site.all_ended().await;
    worker.stop().await;
    site.assert_balanced().await;
}

async fn list_and_count_show_many(site: Site) {
    for key in site.keys(5) {
        site.client.schedule(&key, &1).after(HOUR).await.unwrap();
    }
    let prefix = format!("{}:", site.kind());
    let first = site.run(&format!("list {prefix} --limit 3 --json")).await;
    let cursor = first
        .err
        .split('\'')
        .nth(1)
        .expect("where to go on")
        .to_owned();
    let second = site
        .run(&format!("list {prefix} --json --after {cursor}"))
        .await;
    assert_eq!(second.err, "");
    let mut jobs = first.lines();
    jobs.extend(second.lines());
    let keys: Vec<&str> = jobs
        .iter()
        .map(|job| job["key"].as_str().unwrap())
        .collect();
    assert!(keys.into_iter().eq(site.keys(5)), "{jobs:?}");
    let ran = site.run(&format!("list {prefix}")).await;
    assert_eq!(ran.out.lines().count(), 6, "a title and five rows: {ran:?}");
    assert!(
        ran.out.starts_with("key "),
        "plain without a terminal: {ran:?}"
    );

    let ran = site.run(&format!("count {prefix} --json")).await;
    let expected = json!({"pending": 5, "overdue": 0, "running": 0, "lapsed": 0, "dead": 0});
    assert_eq!(ran.value(), expected);
    let ran = site.run(&format!("count {prefix}")).await;
    assert_eq!(ran.out.lines().count(), 2, "{ran:?}");
    site.run("list a*").await.fails(2, "holds '*'");
    site.run(&format!("list {prefix} --state gone"))
        .await
        .fails(2, "[possible values");
    site.run(&format!("list {prefix} --after x"))
        .await
        .fails(2, "not a cursor");
    site.run("count a*").await.fails(2, "holds '*'");
    site.assert_balanced().await;
}

async fn a_job_without_a_route_is_scheduled_with_a_warning(site: Site) {
    let key = site.key(1);
    let ran = site.run(&format!("schedule {key} --after 1h --json")).await;
    assert_eq!(ran.value()["warnings"][0]["code"], "unrouted");
    assert!(ran.err.starts_with("warning: no "), "{ran:?}");
    assert!(
        ran.err.contains(&format!("route for {key}")) || ran.err.contains(&key),
        "{ran:?}"
    );

    // A route for some jobs of the kind, and then a route for this job.
    for (id, is_warned) in [("other", true), ("1", false)] {
        let worker = site.serve(Router::new().route(&site.key(id), async || {}));
        worker.ready().await;
        eventually("it is known", async || {
            let ran = site.run(&format!("schedule {key} --after 1h")).await;
            assert_eq!(ran.code, 0, "{ran:?}");
            let said = format!("warning: no live worker has a route for {key}");
            (ran.err.contains(&said) == is_warned).then_some(())
        })
        .await;
        worker.stop().await;
    }
    site.client.cancel(&key).await.unwrap();
    site.assert_balanced().await;
}
