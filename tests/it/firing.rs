//! A job runs when it is due: once, never early, on each path by which it can be found.

use std::collections::HashSet;
use std::future::IntoFuture;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::try_join_all;
use keyfall::{Handler, Headers, Job, Json, Placed, Router, Segments, Source, State};
use redis::{ExistenceCheck, SetExpiry, SetOptions};
use serde::{Deserialize, Serialize};

use crate::runs::{Gate, eventually, ids, recorder};
use crate::site::{HOUR, Running, Site, command, ms, redis_time};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Purchase {
    uid: u64,
    items: Vec<String>,
}

#[tokio::test]
async fn a_job_runs_with_its_payload_segments_state_and_headers() {
    type Seen = Arc<Mutex<Vec<(Purchase, String, u64, String)>>>;
    async fn handler(
        Json(order): Json<Purchase>,
        Segments((what, number)): Segments<(String, u64)>,
        State(seen): State<Seen>,
        headers: Headers,
    ) {
        let tenant = headers.get("tenant").unwrap_or_default().to_owned();
        seen.lock().unwrap().push((order, what, number, tenant));
    }

    let site = Site::new("fire-whole").await;
    let seen = Seen::default();
    let worker = site.serve(
        Router::new()
            .route(&format!("{}:it:{{what}}:{{number}}", site.app), handler)
            .with_state(seen.clone()),
    );
    let order = Purchase {
        uid: 7,
        items: vec!["tea".into(), "Töpfe".into()],
    };
    let scheduled = site
        .client
        .schedule(site.key(1_615_283_234), &order)
        .header("tenant", "acme")
        .after(ms(100))
        .await
        .unwrap();
    assert_eq!((scheduled.placed, scheduled.armed), (Placed::Created, true));
    let stats = site.all_ended().await;
    assert_eq!((stats.accepted, stats.done), (1, 1));
    let expected = (order, "job".into(), 1_615_283_234, "acme".into());
    assert_eq!(*seen.lock().unwrap(), [expected]);
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn jobs_are_announced_by_events_and_none_runs_before_its_time() {
    let site = Site::new("fire-event").await;
    let (log, mut runs) = recorder();
    let started: Arc<Mutex<Vec<u128>>> = Arc::default();
    let (clock, times) = (site.redis(), started.clone());
    let worker = site.serve(Router::new().route(&site.pattern(), async move |job: Job| {
        let now = redis_time(&mut clock.clone()).await;
        times.lock().unwrap().push(now);
        log.note(&job);
    }));
    worker.ready().await;
    for (number, key) in site.keys(20).enumerate() {
        let delay = ms(100 + 60 * number as u64);
        site.client.schedule(key, "").after(delay).await.unwrap();
    }
    let jobs = runs.take(20).await;
    for (job, started) in jobs.iter().zip(started.lock().unwrap().iter()) {
        let due = job.due().duration_since(UNIX_EPOCH).unwrap().as_micros();
        assert!(due <= *started, "{job:?} was due at {due}, ran {started}");
    }
    // If the machine is busy for 20 ms, the pacer overtakes the event.
    let by_event = jobs.iter().filter(|job| job.source() == Source::Event);
    assert!(by_event.count() > 0, "no event was heard");
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_job_with_a_past_or_present_due_time_runs_at_once() {
    let site = Site::new("fire-past").await;
    let (log, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    let yesterday = SystemTime::now() - 24 * HOUR;
    let client = &site.client;
    let before = SystemTime::now() - Duration::from_secs(1);
    let past = client.schedule(site.key("past"), "").at(yesterday);
    assert!(
        past.await.unwrap().due >= before,
        "the past is taken for now"
    );
    let epoch = client.schedule(site.key("epoch"), "").at(UNIX_EPOCH);
    epoch.await.unwrap();
    let zero = client.schedule(site.key("zero"), "").after(Duration::ZERO);
    zero.await.unwrap();
    client.schedule(site.key("bare"), "").await.unwrap();
    let jobs = runs.take(4).await;
    assert_eq!(ids(&jobs), ["bare", "epoch", "past", "zero"]);
    site.all_ended().await;
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn the_pacer_runs_a_job_without_a_trigger() {
    let site = Site::new("fire-deleted").await;
    let (log, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    worker.ready().await;
    // If the machine is busy for 200 ms, the reconciler overtakes the pacer.
    eventually("the pacer is the first to find one", async || {
        let key = site.key(rand::random::<u32>());
        site.client.schedule(&key, "").after(ms(400)).await.unwrap();
        let deleted: u32 = site.command(&["DEL", &key]).await;
        let source = runs.next().await.source();
        // The job may have fallen due before the DEL.
        assert!(deleted == 0 || source != Source::Event);
        (source == Source::Pacer).then_some(())
    })
    .await;
    site.all_ended().await;
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_worker_that_starts_late_finds_overdue_jobs() {
    let site = Site::new("fire-late").await;
    let (log, mut runs) = recorder();
    let keys: Vec<String> = site.keys(5).collect();
    for key in &keys {
        site.client.schedule(key, "").after(ms(50)).await.unwrap();
    }
    eventually("all expired", async || {
        let mut exists = vec!["EXISTS"];
        exists.extend(keys.iter().map(String::as_str));
        let alive: u32 = site.command(&exists).await;
        (alive == 0).then_some(())
    })
    .await;
    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    for job in runs.take(5).await {
        let source = job.source();
        assert!(
            matches!(source, Source::Reconciler | Source::Backlog),
            "{source:?}"
        );
    }
    site.all_ended().await;
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn an_early_trigger_starts_its_job_neither_early_nor_twice() {
    let site = Site::new("fire-spurious").await;
    let (log, mut runs) = recorder();
    let mut redis = site.redis();
    let worker = site.serve(Router::new().route(&site.pattern(), {
        let clock = site.redis();
        async move |job: Job| {
            let now = redis_time(&mut clock.clone()).await;
            let due = job.due().duration_since(UNIX_EPOCH).unwrap().as_micros();
            assert!(due <= now, "too early by {} µs", due - now);
            log.note(&job);
        }
    }));
    let [soon, shortened, later] = ["soon", "shortened", "later"].map(|id| site.key(id));
    for (key, delay) in [
        (&soon, ms(500)),
        (&shortened, ms(500)),
        (&later, 2 * ms(2000)),
    ] {
        site.client.schedule(key, "").after(delay).await.unwrap();
    }
    let () = command(&mut redis, &["PEXPIRE", &shortened, "20"]).await;
    for _ in 0..10 {
        for key in [&soon, &later] {
            let () = command(&mut redis, &["PUBLISH", "__keyevent@0__:expired", key]).await;
        }
    }
    assert_eq!(ids(&runs.take(2).await), ["shortened", "soon"]);
    assert_eq!(runs.next().await.key().id(), "later");
    let stats = site.all_ended().await;
    assert_eq!((stats.done, stats.failed, stats.buried), (3, 0, 0));
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_name_heard_many_times_takes_one_slot_and_returns_it() {
    let site = Site::new("fire-noise").await;
    let (log, mut runs) = recorder();
    let gate = Gate::closed();
    let router = Router::new().route(&site.pattern(), log.behind(&gate));
    let worker = Running::start(site.worker(router).concurrency(4));
    let noisy = site.key("noisy");
    site.client.schedule(&noisy, "").after(HOUR).await.unwrap();
    let mut noise = redis::pipe();
    for _ in 0..200 {
        noise
            .cmd("PUBLISH")
            .arg("__keyevent@0__:expired")
            .arg(&noisy);
    }
    eventually("heard", async || {
        let heard: Vec<u32> = noise.query_async(&mut site.redis()).await.unwrap();
        (heard.iter().sum::<u32>() >= 200).then_some(())
    })
    .await;
    for key in site.keys(4) {
        site.client.schedule(key, "").await.unwrap();
    }
    // All four run at the same time, so no slot is lost.
    runs.take(4).await;
    gate.open();
    site.client.cancel(&noisy).await.unwrap();
    site.all_ended().await;
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn foreign_keys_that_expire_start_nothing() {
    let site = Site::new("fire-foreign").await;
    let (log, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    // The worker is up.
    site.client.schedule(site.key("first"), "").await.unwrap();
    runs.next().await;

    let app = &site.app;
    let foreign: Vec<Vec<u8>> = vec![
        site.key("no-such-job").into(),
        format!("{app}:it:other:1").into(),
        format!("{app}:it:job").into(),
        format!("{app}:it:job:").into(),
        format!("{app}:it:job:a:b").into(),
        format!("{app}:it:job:a b").into(),
        format!("{app}:::").into(),
        b":::".to_vec(),
        [site.kind().as_bytes(), b":\xff\xfe\0"].concat(),
        b"\x00\xff:\x80:\xc3:\x28".to_vec(),
    ];
    for name in &foreign {
        let options = SetOptions::default()
            .conditional_set(ExistenceCheck::NX)
            .with_expiration(SetExpiry::PX(20));
        let mut set = redis::cmd("SET");
        set.arg(name).arg("theirs").arg(options);
        let () = set.query_async(&mut site.redis()).await.unwrap();
    }
    for name in &foreign {
        eventually("expired", async || {
            let alive: bool = command(&mut site.redis(), &[&b"EXISTS"[..], name]).await;
            (!alive).then_some(())
        })
        .await;
    }
    // All their effects are visible once a later job has run.
    site.client.schedule(site.key("last"), "").await.unwrap();
    assert_eq!(runs.next().await.key().id(), "last");
    let stats = site.all_ended().await;
    assert_eq!((stats.accepted, stats.done, stats.dead), (2, 2, 0));
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_job_runs_though_its_trigger_name_is_taken() {
    let site = Site::new("fire-taken").await;
    let (log, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    let [text, list, now] = ["text", "list", "now"].map(|id| site.key(id));
    let () = site.command(&["SET", &text, "theirs"]).await;
    let () = site.command(&["SET", &now, "theirs"]).await;
    let () = site.command(&["RPUSH", &list, "theirs"]).await;
    for (key, delay) in [(&text, 100), (&list, 100), (&now, 0)] {
        let scheduled = site.client.schedule(key, "").after(ms(delay)).await;
        assert!(!scheduled.unwrap().armed, "{key}");
    }
    let jobs = runs.take(3).await;
    assert_eq!(ids(&jobs), ["list", "now", "text"]);
    // A job that is due when it is stored is announced without a trigger.
    let mut armless = jobs.iter().filter(|job| job.key().id() != "now");
    assert!(armless.all(|job| job.source() != Source::Event));
    site.all_ended().await;
    worker.stop().await;
    runs.assert_no_more();
    for key in [&text, &now] {
        let value: String = site.command(&["GET", key]).await;
        assert_eq!(value, "theirs");
    }
    let values: Vec<String> = site.command(&["LRANGE", &list, "0", "-1"]).await;
    assert_eq!(values, ["theirs"]);
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_wildcard_route_serves_kinds_that_are_newer_than_its_worker() {
    let site = Site::new("fire-wild").await;
    let (log, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&format!("{}:*:*:{{id}}", site.app), log.done()));
    for kind in ["it:job", "it:other", "another:one"] {
        let key = format!("{}:{kind}:1", site.app);
        site.client.schedule(&key, "").after(ms(50)).await.unwrap();
        assert_eq!(runs.next().await.key().as_str(), key);
    }
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn the_databases_of_a_server_are_independent() {
    let zero = Site::new("fire-database").await;
    let three = Site::at(&format!("{}?db=3", zero.url), "fire-database").await;
    let (log, mut runs) = recorder();
    let worker = three.serve(Router::new().route(&three.pattern(), log.done()));
    worker.ready().await;
    zero.client.schedule(zero.key("zero"), "").await.unwrap();
    for (number, key) in three.keys(10).enumerate() {
        let delay = ms(100 + 60 * number as u64);
        three.client.schedule(key, "").after(delay).await.unwrap();
    }
    let jobs = runs.take(10).await;
    assert!(jobs.iter().any(|job| job.source() == Source::Event));
    three.all_ended().await;
    worker.stop().await;
    runs.assert_no_more();
    assert_eq!(zero.stats().await.pending, 1, "nobody serves database 0");
    three.assert_balanced().await;
    zero.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_thousand_jobs_at_one_instant_all_run_once() {
    let site = Site::new("fire-crowd").await;
    let (log, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    let due = SystemTime::now() + ms(1000);
    let calls = site
        .keys(2000)
        .map(|key| site.client.schedule(key, "").at(due).into_future());
    try_join_all(calls).await.unwrap();
    let jobs = runs.take(2000).await;
    let different: HashSet<&str> = jobs.iter().map(|job| job.key().id()).collect();
    assert_eq!(different.len(), 2000);
    let stats = site.all_ended().await;
    assert_eq!((stats.done, stats.lapsed), (2000, 0));
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_saturated_route_does_not_delay_another_route_of_its_kind() {
    let site = Site::new("fire-split").await;
    let ((slow, mut slow_runs), (quick, mut quick_runs)) = (recorder(), recorder());
    let gate = Gate::closed();
    let kind = site.kind();
    let worker = site.serve(
        Router::new()
            .route(
                &format!("{kind}:{{id:slow-[0-9]+}}"),
                slow.behind(&gate).concurrency(1),
            )
            .route(&format!("{kind}:{{id}}"), quick.done()),
    );
    // More slow jobs than one look at the ledger shows, and all of them older than the quick ones.
    let slow_keys: Vec<String> = (0..400).map(|n| format!("{kind}:slow-{n}")).collect();
    let calls = slow_keys
        .iter()
        .map(|key| site.client.schedule(key, "").into_future());
    try_join_all(calls).await.unwrap();
    slow_runs.next().await;
    for delay in [0, 200] {
        let calls = (0..40).map(|n| {
            let key = format!("{kind}:quick-{delay}-{n}");
            site.client.schedule(key, "").after(ms(delay)).into_future()
        });
        try_join_all(calls).await.unwrap();
    }
    assert_eq!(quick_runs.take(80).await.len(), 80);
    slow_runs.assert_no_more();
    eventually("one slow job runs, 399 wait in Redis", async || {
        let stats = site.stats().await;
        (stats.leased == 1 && stats.pending == 399).then_some(())
    })
    .await;
    gate.open();
    slow_runs.take(399).await;
    let stats = site.all_ended().await;
    assert_eq!((stats.done, stats.lapsed), (480, 0));
    worker.stop().await;
    quick_runs.assert_no_more();
    slow_runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_saturated_kind_does_not_delay_another_kind() {
    let site = Site::new("fire-saturated").await;
    let ((slow, mut slow_runs), (quick, mut quick_runs)) = (recorder(), recorder());
    let gate = Gate::closed();
    let worker = Running::start(
        site.worker(
            Router::new()
                .route(&site.pattern(), slow.behind(&gate).concurrency(2))
                .route(&format!("{}:it:quick:{{id}}", site.app), quick.done()),
        )
        .concurrency(8),
    );
    let calls = site
        .keys(500)
        .map(|key| site.client.schedule(key, "").into_future());
    try_join_all(calls).await.unwrap();
    slow_runs.take(2).await;
    for n in 0..20_u64 {
        let key = format!("{}:it:quick:{n}", site.app);
        let delay = ms(20 * n);
        site.client.schedule(key, "").after(delay).await.unwrap();
    }
    quick_runs.take(20).await;
    let stats = site.stats().await;
    assert_eq!((stats.leased, stats.pending), (2, 498));
    slow_runs.assert_no_more();
    gate.open();
    slow_runs.take(498).await;
    site.all_ended().await;
    worker.stop().await;
    slow_runs.assert_no_more();
    quick_runs.assert_no_more();
    site.assert_balanced().await;
}
