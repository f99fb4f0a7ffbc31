//! Layers of tower around the handlers of a worker.

use std::time::Instant;

use keyfall::{Handler, JobState, Outcome, RetryPolicy, Router};
use tower::ServiceBuilder;
use tower::limit::RateLimitLayer;
use tower::timeout::TimeoutLayer;
use tower::util::MapRequestLayer;

use crate::runs::recorder;
use crate::site::{Site, ms};
use crate::workers::STEADY;

#[tokio::test]
async fn a_timeout_layer_fails_the_attempt_and_the_job_runs_again() {
    let site = Site::new("lay-timeout").await;
    let (log, mut runs) = recorder();
    let hangs_once = async move |job: keyfall::Job| {
        log.note(&job);
        if job.attempt() == 1 {
            std::future::pending::<()>().await;
        }
    };
    let policy = RetryPolicy::fixed(ms(10)).unwrap();
    let router = Router::new()
        .route(&site.pattern(), hangs_once.retry(policy))
        .layer(TimeoutLayer::new(ms(50)));
    let worker = site.serve(router);
    site.client.schedule(site.key(1), "").await.unwrap();
    assert_eq!(
        [runs.next().await.attempt(), runs.next().await.attempt()],
        [1, 2]
    );
    let stats = site.all_ended().await;
    assert_eq!((stats.failed, stats.done), (1, 1));
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_rate_limit_spaces_runs_and_keeps_their_leases() {
    let site = Site::new("lay-rate").await;
    let (log, mut runs) = recorder();
    let router = Router::new()
        .route(&site.pattern(), log.done())
        .layer(RateLimitLayer::new(2, STEADY * 3 / 5));
    // The last job waits for longer than a lease.
    let worker = site.worker(router).lease(STEADY);
    let start = Instant::now();
    let worker = crate::site::Running::start(worker);
    for key in site.keys(6) {
        site.client.schedule(key, "").await.unwrap();
    }
    let jobs = runs.take(6).await;
    assert!(start.elapsed() >= STEADY);
    assert!(jobs.iter().all(|job| job.attempt() == 1));
    let stats = site.all_ended().await;
    assert_eq!((stats.done, stats.lapsed), (6, 0));
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn the_outcome_of_a_stack_of_layers_is_settled() {
    let site = Site::new("lay-stack").await;
    let (log, mut runs) = recorder();
    let noted = log.clone();
    let note = MapRequestLayer::new(move |job: keyfall::Job| {
        noted.note(&job);
        job
    });
    let shed = ServiceBuilder::new().load_shed().concurrency_limit(8);
    let router = Router::new()
        .route(
            &site.pattern(),
            log.then(|_| Outcome::bury("no such order")),
        )
        .layer(shed)
        .layer(note);
    let worker = site.serve(router);
    let key = site.key(1);
    site.client.schedule(&key, "").await.unwrap();
    let dead = site.reaches(&key, JobState::Dead).await;
    assert_eq!(dead.last_error(), Some("no such order"));
    let seen = runs.take(2).await;
    assert_eq!(seen[0].fence(), seen[1].fence());
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_job_that_times_out_before_its_turn_uses_no_attempt() {
    let site = Site::new("lay-turn").await;
    let (log, mut runs) = recorder();
    let policy = RetryPolicy::none();
    let router = Router::new()
        .route(&site.pattern(), log.done().timeout(ms(60)).retry(policy))
        .layer(RateLimitLayer::new(1, ms(200)));
    // All jobs are stored when the first one begins.
    for key in site.keys(4) {
        site.client.schedule(key, "").await.unwrap();
    }
    let worker = site.serve(router);
    let jobs = runs.take(4).await;
    assert!(jobs.iter().all(|job| job.attempt() == 1));
    let stats = site.all_ended().await;
    assert_eq!((stats.done, stats.buried), (4, 0));
    assert!(stats.snoozed > 0, "{stats:?}");
    worker.stop().await;
    site.assert_balanced().await;
}
