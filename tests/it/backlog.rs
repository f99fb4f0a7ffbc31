//! A hundred thousand overdue jobs of one kind with slow handlers, and what goes on beside them.

use std::time::{Duration, SystemTime};

use keyfall::{Cancelled, JobState, NewJob, Rescheduled, Router};

use crate::process::Process;
use crate::runs::{eventually, recorder};
use crate::site::{HOUR, Running, Site, ms};

const JOBS: usize = 100_000;
const SLOTS: usize = 32;

/// Overdue by an hour and less, the oldest first.
async fn pile_up(site: &Site, kind: &str, payload: u64) {
    let now = SystemTime::now();
    let due = |number: usize| now - HOUR + Duration::from_millis(10 * number as u64);
    let job = |number| NewJob::new(format!("{kind}:{number:06}"), &payload).at(due(number));
    // A due time in the past means now, so that they are due in the order in which they come.
    for chunk in (0..JOBS).collect::<Vec<_>>().chunks(10_000) {
        let answers = site
            .client
            .schedule_many(chunk.iter().map(|number| job(*number)))
            .await;
        assert!(answers.iter().all(Result::is_ok));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_oldest_go_first_the_rest_can_be_changed_and_others_are_on_time() {
    let site = Site::new("backlog").await;
    let slow = site.kind();
    let quick = format!("{}:it:quick", site.app);
    pile_up(&site, &slow, 0).await;
    let (recorder, mut runs) = recorder();
    let (quick_recorder, mut quick_runs) = crate::runs::recorder();
    let handler = {
        let recorder = recorder.clone();
        async move |job: keyfall::Job| {
            recorder.note(&job);
            tokio::time::sleep(ms(50)).await;
        }
    };
    let router = Router::new()
        .route(&site.pattern(), handler)
        .route(&format!("{quick}:*"), quick_recorder.done());
    let worker = Running::start(site.worker(router).concurrency(SLOTS));
    let first = runs.take(SLOTS * 8).await;
    let newest = first
        .iter()
        .map(|job| job.key().id().parse::<usize>().unwrap())
        .max();
    // In batches that fall due at one instant, and so in the order of their names.
    assert!(
        newest < Some(first.len() + 4 * SLOTS),
        "{newest:?} of {}",
        first.len()
    );

    // What has not started can be cancelled and moved.
    let last = site.key(format_args!("{:06}", JOBS - 1));
    assert_eq!(
        site.client.cancel(&last).await.unwrap(),
        Cancelled::Cancelled
    );
    let next = site.key(format_args!("{:06}", JOBS - 2));
    let moved = site.client.reschedule(&next).after(HOUR).await.unwrap();
    assert!(matches!(moved, Rescheduled::Moved(_)), "{moved:?}");
    assert_eq!(site.view(&next).await.state(), JobState::Pending);

    // Another kind has its slots.
    for number in 0..20 {
        let key = format!("{quick}:{number}");
        let call = site.client.schedule(&key, "").after(ms(50 * number));
        call.await.unwrap();
    }
    assert_eq!(quick_runs.take(20).await.len(), 20);
    let stats = site.stats().await;
    assert!(
        stats.overdue > JOBS as u64 / 2,
        "the backlog is gone: {stats:?}"
    );
    assert!(stats.leased <= 2 * SLOTS as u64, "{stats:?}");

    site.client
        .prefix(&format!("{slow}:"))
        .cancel()
        .await
        .unwrap();
    site.all_ended().await;
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_memory_of_a_worker_does_not_grow_with_its_backlog() {
    let server = keyfall::embedded::Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "backlog-memory").await;
    let kind = format!("{}:work:sleep", site.app);
    let worker = Process::start(&site);
    let done = async |count: u64| {
        eventually("so many are done", async || {
            let stats = site.client.stats(&kind).await.unwrap();
            (stats.done >= count).then_some(())
        })
        .await;
    };
    // As much as it ever runs at once.
    let jobs = (0..1000).map(|number| NewJob::new(format!("{kind}:warm{number}"), &0));
    site.client.schedule_many(jobs).await;
    done(1000).await;
    let resident = || {
        let status = format!("/proc/{}/status", worker.child.id());
        let status = std::fs::read_to_string(status).unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("VmRSS:"))
            .unwrap();
        let kib: u64 = line
            .split_ascii_whitespace()
            .nth(1)
            .unwrap()
            .parse()
            .unwrap();
        kib / 1024
    };
    let before = resident();
    pile_up(&site, &kind, 100).await;
    done(3000).await;
    let stats = site.client.stats(&kind).await.unwrap();
    assert!(
        stats.overdue > JOBS as u64 / 2,
        "the backlog is gone: {stats:?}"
    );
    let after = resident();
    // The jobs alone, in memory, would take more.
    assert!(after < before + 24, "{before} MiB, then {after} MiB");
    site.client
        .prefix(&format!("{kind}:"))
        .cancel()
        .await
        .unwrap();
    worker.stop();
    site.assert_balanced().await;
}
