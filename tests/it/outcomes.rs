//! The fate of a job after each outcome of its handler.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use keyfall::{Handler, Job, JobState, Json, Outcome, RetryPolicy, Router};
use serde::{Deserialize, Serialize};

use crate::runs::recorder;
use crate::site::{HOUR, Site, fails_slowly, ms};

fn ladder<const N: usize>(rungs: [u64; N]) -> RetryPolicy {
    RetryPolicy::ladder(rungs.map(ms)).unwrap()
}

fn attempts(jobs: &[Job]) -> Vec<u32> {
    jobs.iter().map(Job::attempt).collect()
}

/// The events of a job, without the times.
fn steps(view: &keyfall::JobView) -> Vec<&str> {
    view.steps().iter().map(|step| step.what.as_str()).collect()
}

#[derive(Debug)]
struct BankIsDown(std::io::Error);

impl fmt::Display for BankIsDown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the bank did not answer")
    }
}

impl StdError for BankIsDown {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&self.0)
    }
}

#[tokio::test]
async fn a_job_that_fails_climbs_its_ladder_and_ends_as_a_dead_letter() {
    let site = Site::new("out-ladder").await;
    let (log, mut runs) = recorder();
    let fail = async move |job: Job| -> Result<(), BankIsDown> {
        log.note(&job);
        Err(BankIsDown(std::io::Error::other("connection refused")))
    };
    let router = Router::new().route(&site.pattern(), fail.retry(ladder([10, 20])));
    let worker = site.serve(router);
    let key = site.key(1);
    site.client.schedule(&key, &7).after(ms(50)).await.unwrap();
    let jobs = runs.take(3).await;
    assert_eq!(attempts(&jobs), [1, 2, 3]);
    let dead = site.reaches(&key, JobState::Dead).await;
    assert_eq!(dead.attempts(), 3);
    assert_eq!(
        dead.last_error(),
        Some("the bank did not answer: connection refused")
    );
    assert_eq!(steps(&dead), ["failed", "failed", "buried"]);
    assert_eq!(dead.json::<u32>().unwrap(), 7);
    // All runs belong to the job that was scheduled once, and each has a larger fencing value than
    // the last.
    for pair in jobs.windows(2) {
        assert_eq!(pair[0].first_scheduled_at(), pair[1].first_scheduled_at());
        assert!(pair[0].fence() < pair[1].fence());
        assert!(pair[0].due() < pair[1].due());
    }
    assert_eq!(jobs[0].first_scheduled_at(), dead.first_scheduled_at());
    let stats = site.all_ended().await;
    assert_eq!((stats.failed, stats.buried, stats.dead), (2, 1, 1));
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn the_fencing_value_grows_over_several_jobs_of_one_name() {
    let site = Site::new("out-fence").await;
    let (log, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    let mut last = 0;
    for _ in 0..5 {
        site.client.schedule(site.key(1), "").await.unwrap();
        let fence = runs.next().await.fence();
        assert!(last < fence, "{last}, then {fence}");
        last = fence;
        site.all_ended().await;
    }
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_rung_of_zero_retries_at_once() {
    let site = Site::new("out-zero").await;
    let (log, mut runs) = recorder();
    let twice = log.then(|job| match job.attempt() {
        1 | 2 => Outcome::retry("not yet"),
        _ => Outcome::Done,
    });
    let router = Router::new().route(&site.pattern(), twice.retry(ladder([0, 0])));
    let worker = site.serve(router);
    site.client.schedule(site.key(1), "").await.unwrap();
    assert_eq!(attempts(&runs.take(3).await), [1, 2, 3]);
    let stats = site.all_ended().await;
    assert_eq!((stats.failed, stats.done), (2, 1));
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn again_counts_attempts_but_no_failure() {
    let site = Site::new("out-again").await;
    let (log, mut runs) = recorder();
    let check = log.then(|job| match job.attempt() {
        1 => Outcome::again(),
        2 => Outcome::again_after(ms(5)),
        _ => Outcome::Done,
    });
    let router = Router::new().route(&site.pattern(), check.retry(ladder([10, 1_000_000])));
    let worker = site.serve(router);
    site.client.schedule(site.key(1), "").await.unwrap();
    assert_eq!(attempts(&runs.take(3).await), [1, 2, 3]);
    let stats = site.all_ended().await;
    assert_eq!((stats.again, stats.failed, stats.done), (2, 0, 1));
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn again_ends_with_the_ladder_in_a_dead_letter() {
    let site = Site::new("out-again-end").await;
    let (log, mut runs) = recorder();
    let check = log.then(|_| Outcome::again());
    let router = Router::new().route(&site.pattern(), check.retry(ladder([10])));
    let worker = site.serve(router);
    let key = site.key(1);
    site.client.schedule(&key, "").await.unwrap();
    let dead = site.reaches(&key, JobState::Dead).await;
    assert_eq!(attempts(&runs.take(2).await), [1, 2]);
    let reason = dead.last_error().unwrap();
    assert!(reason.contains("attempt 2 was its last"), "{reason}");
    assert_eq!(steps(&dead), ["again", "buried"]);
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_snooze_uses_no_attempt() {
    let site = Site::new("out-snooze").await;
    let (log, mut runs) = recorder();
    let asked = Arc::new(AtomicBool::new(false));
    let sleepy = log.then(move |_| {
        if asked.swap(true, Ordering::Relaxed) {
            Outcome::Done
        } else {
            Outcome::snooze(HOUR)
        }
    });
    let router = Router::new().route(&site.pattern(), sleepy.retry(RetryPolicy::none()));
    let worker = site.serve(router);
    let key = site.key(1);
    site.client.schedule(&key, "").await.unwrap();
    assert_eq!(runs.next().await.attempt(), 1);
    let snoozing = site.reaches(&key, JobState::Pending).await;
    assert_eq!(
        (snoozing.attempts(), steps(&snoozing)),
        (0, vec!["snoozed"])
    );
    site.client.fire_now(&key).await.unwrap();
    assert_eq!(runs.next().await.attempt(), 1);
    let stats = site.all_ended().await;
    assert_eq!((stats.snoozed, stats.done, stats.failed), (1, 1, 0));
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_buried_job_keeps_its_reason_and_its_unused_attempts() {
    let site = Site::new("out-bury").await;
    let (log, mut runs) = recorder();
    let worker = site.serve(Router::new().route(
        &site.pattern(),
        log.then(|_| Outcome::bury("no such order")),
    ));
    let key = site.key(1);
    let call = site.client.schedule(&key, "").header("tenant", "acme");
    call.await.unwrap();
    let dead = site.reaches(&key, JobState::Dead).await;
    assert_eq!(
        (dead.attempts(), dead.last_error()),
        (1, Some("no such order"))
    );
    assert_eq!(dead.headers().get("tenant"), Some("acme"));
    site.all_ended().await;
    worker.stop().await;
    assert_eq!(runs.rest().len(), 1);
    site.assert_balanced().await;
}

#[tokio::test]
async fn the_name_of_a_dead_job_can_be_used_again_and_die_again() {
    let site = Site::new("out-twice").await;
    let (log, mut runs) = recorder();
    let worker = site.serve(Router::new().route(
        &site.pattern(),
        log.then(|job| match &job.payload()[..] {
            b"\"live\"" => Outcome::Done,
            why => Outcome::bury(String::from_utf8_lossy(why)),
        }),
    ));
    let key = site.key(1);
    for (number, payload) in [(1, "first"), (2, "second"), (2, "live")] {
        site.client.schedule(&key, payload).await.unwrap();
        runs.next().await;
        assert_eq!(site.all_ended().await.dead, number);
    }
    // A lookup by the name returns the latest letter.
    let dead = site.view(&key).await;
    assert_eq!(dead.last_error(), Some("\"second\""));
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_panic_is_a_failed_attempt_and_the_worker_survives() {
    let site = Site::new("out-panic").await;
    let (log, mut runs) = recorder();
    let worker = site.serve(
        Router::new()
            .route(
                &site.pattern(),
                log.then(|job| {
                    assert!(job.attempt() > 1, "the first attempt panics, on purpose");
                    Outcome::Done
                })
                .retry(fails_slowly()),
            )
            .route(&format!("{}:it:other:{{id}}", site.app), log.done()),
    );
    let key = site.key(1);
    site.client.schedule(&key, "").await.unwrap();
    assert_eq!(runs.next().await.attempt(), 1);
    let retrying = site.reaches(&key, JobState::Retrying).await;
    let error = retrying.last_error().unwrap();
    assert!(
        error.starts_with("the handler panicked: the first attempt panics"),
        "{error}"
    );
    let other = format!("{}:it:other:1", site.app);
    site.client.schedule(&other, "").await.unwrap();
    assert_eq!(runs.next().await.key().as_str(), other);
    site.client.fire_now(&key).await.unwrap();
    assert_eq!(runs.next().await.attempt(), 2);
    let stats = site.all_ended().await;
    assert_eq!((stats.failed, stats.done), (1, 1));
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn an_undecodable_payload_is_buried_with_the_place_of_the_fault() {
    #[derive(Serialize, Deserialize)]
    struct Line {
        price: u32,
    }
    #[derive(Serialize, Deserialize)]
    struct Invoice {
        lines: Vec<Line>,
    }
    async fn handler(_: Json<Invoice>) {
        panic!("it cannot be called");
    }

    let site = Site::new("out-decode").await;
    let worker = site.serve(Router::new().route(&site.pattern(), handler));
    let (wrong, broken) = (site.key("wrong"), site.key("broken"));
    let order = serde_json::json!({"lines": [{"price": 1}, {"price": "two"}]});
    site.client.schedule(&wrong, &order).await.unwrap();
    let bytes = site.client.schedule_bytes(&broken, &b"\xff\0{"[..]);
    bytes.await.unwrap();
    let dead = site.reaches(&wrong, JobState::Dead).await;
    let reason = dead.last_error().unwrap();
    assert!(reason.contains("`lines[1].price`"), "{reason}");
    let dead = site.reaches(&broken, JobState::Dead).await;
    assert!(dead.last_error().unwrap().contains("does not decode"));
    assert_eq!(&dead.payload()[..], b"\xff\0{");
    let stats = site.all_ended().await;
    assert_eq!((stats.buried, stats.failed), (2, 0));
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_run_that_times_out_is_told_to_stop_and_has_failed() {
    let site = Site::new("out-timeout").await;
    let (log, mut runs) = recorder();
    let (told, mut was_told) = tokio::sync::mpsc::unbounded_channel();
    let slow = async move |job: Job| {
        log.note(&job);
        if job.attempt() == 1 {
            job.cancellation().raised().await;
            told.send(()).unwrap();
            std::future::pending::<()>().await;
        }
    };
    let router = Router::new().route(&site.pattern(), slow.timeout(ms(100)).retry(fails_slowly()));
    let worker = site.serve(router);
    let key = site.key(1);
    site.client.schedule(&key, "").await.unwrap();
    assert_eq!(runs.next().await.attempt(), 1);
    was_told.recv().await.unwrap();
    let retrying = site.reaches(&key, JobState::Retrying).await;
    assert_eq!(retrying.last_error(), Some("it took longer than 100ms"));
    site.client.fire_now(&key).await.unwrap();
    assert_eq!(runs.next().await.attempt(), 2);
    let stats = site.all_ended().await;
    assert_eq!((stats.failed, stats.done, stats.lapsed), (1, 1, 0));
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_handler_can_choose_the_time_of_its_retry() {
    let site = Site::new("out-after").await;
    let (log, mut runs) = recorder();
    let policy = RetryPolicy::fixed(HOUR).unwrap().attempts(2);
    let fail = log.then(|_| Outcome::retry_after(ms(10), "come back later"));
    let worker = site.serve(Router::new().route(&site.pattern(), fail.retry(policy)));
    let key = site.key(1);
    site.client.schedule(&key, "").await.unwrap();
    assert_eq!(attempts(&runs.take(2).await), [1, 2]);
    // An outcome with a delay does not exceed the attempts of the policy.
    let dead = site.reaches(&key, JobState::Dead).await;
    assert_eq!(dead.last_error(), Some("come back later"));
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}
