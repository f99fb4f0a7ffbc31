//! Kinds are paused and resumed while workers run.

use std::future::IntoFuture;
use std::time::Duration;

use futures_util::future::try_join_all;
use keyfall::{ErrorKind, Handler, Job, JobState, Outcome, RetryPolicy, Router};

use crate::runs::{Gate, eventually, recorder};
use crate::site::{HOUR, Site, ms, redis_time};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acknowledged_pause_stops_all_claims_of_its_kind_only() {
    let site = Site::new("pause-load").await;
    let (log, mut runs) = recorder();
    let (other_log, mut other_runs) = recorder();
    let other = |id: usize| format!("{}:it:other:{id}", site.app);
    // Slow enough for the pause to come before the end of the jobs.
    let slow = async move |job: Job| {
        log.note(&job);
        tokio::time::sleep(ms(10)).await;
    };
    let router = Router::new()
        .route(&site.pattern(), slow.concurrency(8))
        .route(&format!("{}:it:other:{{id}}", site.app), other_log.done());
    let worker = site.serve(router);
    let crowd = site.keys(2000).map(|key| site.client.schedule(key, ""));
    try_join_all(crowd.map(IntoFuture::into_future))
        .await
        .unwrap();
    runs.next().await;
    let kind = site.kind();
    let paused = site.client.prefix(&kind).pause().await.unwrap();
    assert_eq!(paused.len(), 1);
    let acknowledged = redis_time(&mut site.redis()).await;
    let left = site.stats().await;
    assert!(left.paused && left.pending > 0, "{left:?}");

    // Later jobs of the paused kind wait as well, whatever path finds them; the other kind does
    // not.
    let late = (0..50).map(|id| {
        site.client
            .schedule(site.key(format_args!("late-{id}")), "")
    });
    try_join_all(late.map(IntoFuture::into_future))
        .await
        .unwrap();
    for id in 0..50 {
        let delay = ms(id % 7 * 100);
        site.client
            .schedule(other(id as usize), "")
            .after(delay)
            .await
            .unwrap();
    }
    other_runs.take(50).await;
    let stats = eventually("those that ran have ended", async || {
        let stats = site.stats().await;
        (stats.leased == 0).then_some(stats)
    })
    .await;
    assert_eq!(stats.pending, left.pending + 50);
    let begun = runs.rest();
    for job in &begun {
        // The fencing value is the time of the claim, give or take its place in the batch.
        assert!(u128::from(job.fence()) <= acknowledged + 1000, "{job:?}");
    }
    assert_eq!(begun.len() as u64 + 1, stats.done);

    let resumed = site.client.prefix(&kind).resume().await.unwrap();
    assert_eq!(resumed, paused);
    let stats = site.all_ended().await;
    assert_eq!((stats.done, stats.paused), (2050, false));
    worker.stop().await;
    assert_eq!(runs.rest().len() + begun.len() + 1, 2050, "each ran once");
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_run_in_progress_ends_normally_and_its_retry_waits() {
    let site = Site::new("pause-runs").await;
    let (log, mut runs) = recorder();
    let gate = Gate::closed();
    let fails = {
        let (log, gate) = (log.clone(), gate.clone());
        async move |job: Job| {
            log.note(&job);
            gate.passed().await;
            match job.attempt() {
                1 => Outcome::retry("once"),
                _ => Outcome::Done,
            }
        }
    };
    let retry = RetryPolicy::fixed(ms(1)).unwrap();
    let worker = site.serve(Router::new().route(&site.pattern(), fails.retry(retry)));
    let key = site.key(1);
    site.client.schedule(&key, "").await.unwrap();
    runs.next().await;
    site.client.prefix(&site.kind()).pause().await.unwrap();
    gate.open();
    let stats = eventually("it has failed, and is due again", async || {
        let stats = site.stats().await;
        (stats.failed == 1 && stats.overdue == 1).then_some(stats)
    })
    .await;
    assert_eq!((stats.pending, stats.leased), (1, 0));
    // Paused jobs can be cancelled and moved.
    site.client.schedule(site.key(2), "").await.unwrap();
    site.client.cancel(site.key(2)).await.unwrap();
    site.client.schedule(site.key(3), "").await.unwrap();
    site.client
        .reschedule(site.key(3))
        .after(HOUR)
        .await
        .unwrap();
    site.client.prefix(&site.kind()).resume().await.unwrap();
    assert_eq!(runs.next().await.attempt(), 2);
    site.client.cancel(site.key(3)).await.unwrap();
    site.all_ended().await;
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_lapsed_job_is_taken_over_after_the_pause() {
    let site = Site::new("pause-lapse").await;
    let (log, mut runs) = recorder();
    let router = Router::new().route(&site.pattern(), log.stuck());
    let doomed = crate::workers::Mortal::start(&site.url, router, Duration::from_secs(1));
    site.client.schedule(site.key(1), "").await.unwrap();
    let first = runs.next().await;
    site.client.prefix(&site.kind()).pause().await.unwrap();
    doomed.die();
    site.reaches(first.key().as_str(), JobState::Lapsed).await;
    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    // The worker works, and leaves the lapsed job alone.
    let probe = format!("{}:it:probe:1", site.app);
    let (probe_log, mut probed) = recorder();
    let other =
        site.serve(Router::new().route(&format!("{}:it:probe:{{id}}", site.app), probe_log.done()));
    site.client.schedule(&probe, "").await.unwrap();
    probed.next().await;
    assert_eq!(site.stats().await.leased, 1);
    site.client.prefix(&site.kind()).resume().await.unwrap();
    assert_eq!(runs.next().await.attempt(), 2);
    site.all_ended().await;
    worker.stop().await;
    other.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_kind_that_comes_later_is_paused_by_its_prefix() {
    let site = Site::new("pause-rule").await;
    let (log, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&format!("{}:*:*:{{id}}", site.app), log.done()));
    let prefix = format!("{}:later:", site.app);
    let paused = site.client.prefix(&prefix).pause().await.unwrap();
    assert!(paused.is_empty());
    let key = format!("{}:later:new:1", site.app);
    site.client.schedule(&key, "").await.unwrap();
    site.client.schedule(site.key("free"), "").await.unwrap();
    assert_eq!(runs.next().await.key().id(), "free");
    let kind = format!("{}:later:new", site.app);
    assert!(site.client.stats(&kind).await.unwrap().paused);
    let told = site.client.paused().await.unwrap();
    assert!(told.rules.iter().any(|(rule, _)| *rule == prefix));
    assert!(told.kinds.iter().any(|(paused, _)| paused.as_str() == kind));

    // A resume of the shorter prefix ends the pause of the longer one, but not the other way round.
    let dry = site
        .client
        .prefix(&site.app)
        .resume()
        .dry_run()
        .await
        .unwrap();
    assert_eq!(dry.len(), 1);
    assert!(
        site.client.stats(&kind).await.unwrap().paused,
        "it was a dry run"
    );
    site.client
        .prefix(&format!("{}:", site.app))
        .resume()
        .await
        .unwrap();
    assert_eq!(runs.next().await.key().as_str(), key);
    let told = site.client.paused().await.unwrap();
    assert!(!told.rules.iter().any(|(rule, _)| *rule == prefix));
    let next = format!("{}:later:another:1", site.app);
    site.client.schedule(&next, "").await.unwrap();
    assert_eq!(runs.next().await.key().as_str(), next);
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn an_invalid_prefix_of_a_pause_is_refused_with_the_remedy() {
    let site = Site::new("pause-refused").await;
    for (text, hint) in [
        (String::new(), "everything()"),
        (site.key("16"), "third colon"),
        (format!("{} ", site.app), "' '"),
    ] {
        for call in [
            site.client.prefix(&text).pause().await,
            site.client.prefix(&text).resume().await,
            site.client.prefix(&text).pause().dry_run().await,
        ] {
            let error = call.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidKey);
            assert!(error.to_string().contains(hint), "{error}");
        }
    }
    let rules = site.client.paused().await.unwrap().rules;
    assert!(rules.iter().all(|(rule, _)| !rule.starts_with(&site.app)));
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_kind_that_appears_during_a_pause_or_resume_follows_it() {
    let site = Site::new("pause-race").await;
    for round in 0..40 {
        let kind = |n: usize| format!("{}:race{round}:kind{n}", site.app);
        let prefix = format!("{}:race{round}:", site.app);
        let appear = async |n: usize| {
            // A separate client, as if it had just started.
            let client = keyfall::Client::connect(&site.url).await.unwrap();
            let key = format!("{}:1", kind(n));
            client.schedule(key, "").after(HOUR).await.unwrap();
        };
        let (paused, ()) =
            tokio::join!(site.client.prefix(&prefix).pause().into_future(), appear(0));
        paused.unwrap();
        assert!(site.client.stats(&kind(0)).await.unwrap().paused, "{round}");
        let (resumed, ()) = tokio::join!(
            site.client.prefix(&prefix).resume().into_future(),
            appear(1)
        );
        resumed.unwrap();
        for n in 0..2 {
            let stats = site.client.stats(&kind(n)).await.unwrap();
            assert!(!stats.paused, "{round}: {n}");
        }
    }
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_worker_that_missed_the_resume_notices_it() {
    let site = Site::new("pause-missed").await;
    let (log, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    site.client.schedule(site.key("first"), "").await.unwrap();
    runs.next().await;
    site.client.prefix(&site.kind()).pause().await.unwrap();
    site.client.schedule(site.key("second"), "").await.unwrap();
    // The state after the message was lost.
    let calls = format!("keyfall:{{{}/0}}:calls", site.kind());
    let _: u64 = site.command(&["HSET", &calls, "paused", "0"]).await;
    assert_eq!(runs.next().await.key().id(), "second");
    site.all_ended().await;
    worker.stop().await;
    site.client.prefix(&site.kind()).resume().await.unwrap();
    site.assert_balanced().await;
}
