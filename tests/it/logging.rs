//! The log of a worker, for operators: its routes, failed attempts, and lapsed leases.

use keyfall::embedded::Embedded;
use keyfall::{Handler, Job, JobState, NewJob, Outcome, RetryPolicy, Router};
use tokio::sync::mpsc::unbounded_channel;

use crate::log::Log;
use crate::runs::{Gate, eventually, recorder};
use crate::site::{HOUR, Running, Site, fails_slowly, steps};
use crate::workers::{Mortal, SECOND};

#[tokio::test]
async fn a_worker_logs_once_its_routes_and_its_server() {
    // Its fallback would be a route for the jobs of all tests on a shared server.
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "log-start").await;
    let told = Log::read();
    let (log, _runs) = recorder();
    let router = Router::new()
        .route(&site.pattern(), log.done())
        .fallback(log.done());
    let worker = Running::start(site.worker(router).concurrency(7));
    worker.ready().await;
    let lines = told.with("the worker serves these routes");
    assert_eq!(lines.len(), 1, "{lines:?}");
    let server = site.url.trim_start_matches("redis+unix://");
    for part in [
        &*site.pattern(),
        "all jobs without a route",
        server,
        "concurrency=7",
        "lease=15s",
    ] {
        assert!(lines[0].contains(part), "no {part} in {lines:?}");
    }
    worker.stop().await;
}

#[tokio::test]
async fn each_failed_attempt_is_logged_with_reason_and_next_time() {
    let site = Site::new("log-failed").await;
    let told = Log::read();
    let (log, _runs) = recorder();
    let policy = RetryPolicy::fixed(SECOND / 10).unwrap().attempts(2);
    let handler = log.then(|_| Outcome::retry("no such host")).retry(policy);
    let worker = site.serve(Router::new().route(&site.pattern(), handler));
    let key = site.key(1);
    site.client.schedule(&key, "").await.unwrap();
    site.reaches(&key, JobState::Dead).await;
    worker.stop().await;
    let lines = told.with("an attempt failed");
    assert_eq!(lines.len(), 1, "{lines:?}");
    let parts = [
        &*format!("key={key}"),
        "attempt=1",
        "error=\"no such host\"",
        "next=\"20",
    ];
    for part in parts {
        assert!(lines[0].contains(part), "no {part} in {lines:?}");
    }
    let last = told.with("a job ended as a dead letter");
    assert!(
        last[0].contains(&key) && last[0].contains("no such host"),
        "{last:?}"
    );
    assert_eq!(last.len(), 1);
    site.assert_balanced().await;
}

#[tokio::test]
async fn of_many_failures_some_are_logged_and_the_others_counted() {
    let site = Site::new("log-many").await;
    let told = Log::read();
    let (log, _runs) = recorder();
    let handler = log
        .then(|_| Outcome::retry("no such host"))
        .retry(fails_slowly());
    let worker = site.serve(Router::new().route(&site.pattern(), handler));
    let jobs = site.keys(100).map(|key| NewJob::new(key, ""));
    for answer in site.client.schedule_many(jobs).await {
        answer.unwrap();
    }
    // On a busy machine the attempts fail in several groups.
    let left_out = |lines: Vec<String>| {
        let of = |line: &String| line.split("left_out=").nth(1)?.trim().parse::<usize>().ok();
        lines.iter().filter_map(of).sum::<usize>()
    };
    eventually("all are told or counted", async || {
        let told_of = told.with("an attempt failed").len();
        let left_out = left_out(told.with("more attempts failed"));
        (told_of + left_out == 100).then_some(())
    })
    .await;
    let told_of = told.with("an attempt failed").len();
    assert!((20..100).contains(&told_of), "{told_of}");
    worker.stop().await;
    site.client.prefix(&site.kind()).cancel().await.unwrap();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_lapsed_lease_is_logged_once_with_its_key() {
    let site = Site::new("log-gone").await;
    let told = Log::read();
    let (log, mut runs) = recorder();
    let stuck = Router::new().route(&site.pattern(), log.stuck());
    let worker = Mortal::start(&site.url, stuck, 60 * SECOND);
    site.client.schedule(site.key("gone"), "").await.unwrap();
    runs.next().await;
    worker.die();
    // The worker has room for one job, which is taken: so it finds the other one again and again.
    let gate = Gate::closed();
    let handler = log.behind(&gate).concurrency(1);
    let router = Router::new().route(&site.pattern(), handler);
    let rival = Running::start(site.worker(router).lease(3 * SECOND));
    site.client.schedule(site.key("busy"), "").await.unwrap();
    assert_eq!(runs.next().await.key().id(), "busy");
    site.lapse("gone").await;
    eventually("it was found", async || {
        site.sweep().await;
        (!told.with("lapsed").is_empty()).then_some(())
    })
    .await;
    for _ in 0..3 {
        site.sweep().await;
        site.passes(SECOND).await;
    }
    let lines = told.with("lapsed");
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains(&site.key("gone")), "{lines:?}");
    gate.open();
    assert_eq!(runs.next().await.key().id(), "gone");
    site.all_ended().await;
    rival.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn snoozes_and_repetitions_are_not_logged_as_failures() {
    let site = Site::new("log-later").await;
    let told = Log::read();
    let (log, _runs) = recorder();
    let handler = log.then(|job| match job.key().id() {
        "again" => Outcome::again_after(HOUR),
        _ => Outcome::snooze(HOUR),
    });
    let worker = site.serve(Router::new().route(&site.pattern(), handler));
    for id in ["again", "snoozed"] {
        site.client.schedule(site.key(id), "").await.unwrap();
        eventually("it was put off", async || {
            let view = site.view(&site.key(id)).await;
            steps(&view).contains(&id).then_some(())
        })
        .await;
    }
    worker.stop().await;
    assert_eq!(told.warnings(), [""; 0]);
    site.client.prefix(&site.kind()).cancel().await.unwrap();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_lease_that_lapses_again_is_logged_again() {
    let site = Site::new("log-again").await;
    let told = Log::read();
    let (hand_over, mut handed) = unbounded_channel();
    let gives = async move |job: Job| {
        hand_over.send(job.lease().clone()).unwrap();
        Outcome::HandedOver
    };
    let worker = site.serve(Router::new().route(&site.pattern(), gives.lease(HOUR)));
    site.client.schedule(site.key("gone"), "").await.unwrap();
    let lease = handed.recv().await.unwrap();
    worker.stop().await;
    // The worker has room for one job, which is taken: so it takes no job over.
    let ((log, mut runs), gate) = (recorder(), Gate::closed());
    let handler = log.behind(&gate).concurrency(1);
    let router = Router::new().route(&site.pattern(), handler);
    let rival = Running::start(site.worker(router).lease(3 * SECOND));
    site.client.schedule(site.key("busy"), "").await.unwrap();
    assert_eq!(runs.next().await.key().id(), "busy");
    eventually("it is told twice", async || {
        // The holder of the lease comes back, and is gone again.
        site.client.extend(&lease, HOUR).await.unwrap();
        // One sweep without it is no proof that it was taken over.
        for _ in 0..2 {
            site.sweep().await;
            site.passes(SECOND).await;
        }
        site.lapse("gone").await;
        site.sweep().await;
        site.passes(SECOND).await;
        (told.with("lapsed").len() >= 2).then_some(())
    })
    .await;
    gate.open();
    assert_eq!(runs.next().await.key().id(), "gone");
    site.all_ended().await;
    rival.stop().await;
    site.assert_balanced().await;
}
