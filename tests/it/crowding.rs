//! Loads that could hinder other jobs: a backlog, large payloads, a broken ledger, a deaf listener.

use std::future::IntoFuture;

use futures_util::future::try_join_all;
use keyfall::embedded::Embedded;
use keyfall::{Job, NewJob, Outcome, Router, Source};

use crate::runs::{Gate, eventually, recorder};
use crate::site::{Running, Site, ms};
use crate::workers::{Mortal, STEADY};

#[tokio::test]
async fn a_lapsed_job_does_not_wait_behind_a_backlog() {
    const JOBS: usize = 800;
    let site = Site::new("crowd-lapsed").await;
    let (note, mut runs) = recorder();
    let stuck = Router::new().route(&site.pattern(), note.stuck());
    let dying = Mortal::start(&site.url, stuck, STEADY);
    let orphan = site.key("orphan");
    site.client.schedule(&orphan, "").await.unwrap();
    runs.next().await;
    dying.die();
    site.lapse("orphan").await;
    let calls = site
        .keys(JOBS)
        .map(|key| site.client.schedule(key, "").into_future());
    try_join_all(calls).await.unwrap();

    // Few slots, each taken again as soon as it is free, for far longer than a lapsed job is left
    // to its owner.
    let slow = async move |job: Job| {
        note.note(&job);
        tokio::time::sleep(ms(20)).await;
    };
    let router = Router::new().route(&site.pattern(), slow);
    let worker = site.worker(router).lease(STEADY / 2).concurrency(4);
    let worker = Running::start(worker);
    let ran = runs.take(JOBS + 1).await;
    let place = ran.iter().position(|job| job.key().as_str() == orphan);
    assert!(place.unwrap() < JOBS - 100, "it ran as number {place:?}");
    assert_eq!(ran[place.unwrap()].attempt(), 2);
    site.all_ended().await;
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_crowd_of_large_payloads_is_claimed_in_portions() {
    let redis = Embedded::start().await.unwrap();
    let site = Site::at(&redis.url(), "crowd-large").await;
    let payload = "x".repeat(512 * 1024);
    for key in site.keys(120) {
        site.client.schedule(key, &payload).await.unwrap();
    }
    let (note, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), note.done()));
    for job in runs.take(120).await {
        assert_eq!((job.payload().len(), job.attempt()), (payload.len() + 2, 1));
    }
    let stats = site.all_ended().await;
    assert_eq!((stats.done, stats.lapsed), (120, 0));
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_broken_ledger_is_retried_with_pauses_and_delays_no_other() {
    let redis = Embedded::start().await.unwrap();
    let site = Site::at(&redis.url(), "crowd-broken").await;
    let quick = format!("{}:it:quick:1", site.app);
    let (note, mut runs) = recorder();
    let leased = format!("keyfall:{{{}/0}}:leased", site.kind());
    let _: String = site.command(&["SET", &leased, "by hand"]).await;
    let calls = site
        .keys(300)
        .map(|key| site.client.schedule(key, "").into_future());
    try_join_all(calls).await.unwrap();
    let worker = site.serve(
        Router::new()
            .route(&site.pattern(), note.done())
            .route(&format!("{}:it:quick:{{id}}", site.app), note.done()),
    );
    site.client
        .schedule(&quick, "")
        .after(ms(300))
        .await
        .unwrap();
    assert_eq!(runs.next().await.key().as_str(), quick);
    // The worker tries now and then, and not in a tight loop.
    let info: String = site.command(&["INFO", "commandstats"]).await;
    let calls = info
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    let calls: u64 = calls.unwrap().split(',').next().unwrap().parse().unwrap();
    assert!(calls < 1000, "{calls} calls of scripts");

    let _: u32 = site.command(&["DEL", &leased]).await;
    runs.take(300).await;
    site.all_ended().await;
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn two_routes_of_a_kind_run_more_jobs_than_one_page_shows() {
    let site = Site::new("crowd-pages").await;
    let kind = site.kind();
    let calls = site
        .keys(700)
        .map(|key| site.client.schedule(key, "").into_future());
    try_join_all(calls).await.unwrap();
    let (note, mut runs) = recorder();
    let gate = Gate::closed();
    let router = Router::new()
        .route(&format!("{kind}:{{id:[0-9]*[02468]}}"), note.behind(&gate))
        .route(&format!("{kind}:{{id}}"), note.behind(&gate));
    let worker = Running::start(site.worker(router).concurrency(700));
    runs.take(700).await;
    gate.open();
    site.all_ended().await;
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_user_without_subscribe_runs_jobs_too() {
    let redis = Embedded::start().await.unwrap();
    let site = Site::at(&redis.url(), "crowd-deaf").await;
    let rules = [
        "ACL",
        "SETUSER",
        "deaf",
        "on",
        ">secret",
        "~*",
        "+@all",
        "resetchannels",
    ];
    let _: String = site.command(&rules).await;
    let url = format!("{}?user=deaf&pass=secret", redis.url());
    let deaf = Site::at(&url, "crowd-deaf").await;
    let (note, mut runs) = recorder();
    let worker = deaf.serve(Router::new().route(&deaf.pattern(), note.then(|_| Outcome::Done)));
    deaf.client.schedule(deaf.key("first"), "").await.unwrap();
    runs.next().await;
    // The worker sleeps by now, and no event wakes it.
    deaf.client.schedule(deaf.key("now"), "").await.unwrap();
    deaf.client
        .schedule(deaf.key("soon"), "")
        .after(ms(700))
        .await
        .unwrap();
    for job in runs.take(2).await {
        assert_ne!(job.source(), Source::Event);
    }
    deaf.all_ended().await;
    worker.stop().await;
    deaf.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kinds_share_scarce_slots() {
    const LARGE: usize = 1500;
    const SMALL: usize = 50;
    let site = Site::new("crowd-share").await;
    let kind = |biz: &str| format!("{}:it:{biz}", site.app);
    let jobs = |biz: &str, count: usize| -> Vec<NewJob> {
        let key = |number| format!("{}:{number}", kind(biz));
        (0..count)
            .map(|number| NewJob::new(key(number), &()))
            .collect()
    };
    // All jobs are due before a worker starts, and the jobs of the small kind after the jobs of the
    // large kind.
    for batch in [jobs("large", LARGE), jobs("small", SMALL)] {
        let answers = site.client.schedule_many(batch).await;
        assert!(answers.iter().all(Result::is_ok));
    }
    let handler = async || tokio::time::sleep(ms(2)).await;
    let router = Router::new()
        .route(&format!("{}:*", kind("large")), handler)
        .route(&format!("{}:*", kind("small")), handler);
    let worker = Running::start(site.worker(router).concurrency(4));
    let done = async |biz: &str| site.client.stats(&kind(biz)).await.unwrap().done as usize;
    let left = eventually("the small kind is done", async || {
        let is_done = done("small").await == SMALL;
        is_done.then_some(LARGE - done("large").await)
    })
    .await;
    // If one kind went after the other, no large job would be left; with half of the slots for
    // each, nearly all are left.
    assert!(left > LARGE / 2, "{left}");
    eventually("the large kind is done", async || {
        (done("large").await == LARGE).then_some(())
    })
    .await;
    worker.stop().await;
    site.assert_balanced().await;
}
