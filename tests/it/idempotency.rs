//! One idempotency key for all attempts of a job, and another one for the next job of its name.

use std::collections::BTreeSet;

use keyfall::{Handler, Job, KeptJob, Outcome, RetryPolicy, Route, Router};

use crate::runs::{Gate, Recorder, recorder};
use crate::site::{HOUR, Running, Site, ms};
use crate::workers::{Mortal, STEADY};

/// A handler that fails as long as the payload says "fail".
fn failing(log: &Recorder, attempts: u32) -> Route {
    log.then(|job| match &job.payload()[..] {
        b"\"fail\"" => Outcome::retry("no"),
        _ => Outcome::Done,
    })
    .retry(RetryPolicy::fixed(ms(1)).unwrap().attempts(attempts))
}

#[tokio::test]
async fn all_attempts_of_a_job_share_one_key() {
    let site = Site::new("idem-one").await;
    let (log, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), failing(&log, 3)));
    let key = site.key(1);
    site.client.schedule(&key, "fail").await.unwrap();
    let mut all = runs.take(3).await;
    let view = site.reaches(&key, keyfall::JobState::Dead).await;
    // A requeued job has all its attempts again.
    site.client.requeue(&key).await.unwrap();
    all.extend(runs.take(3).await);
    site.reaches(&key, keyfall::JobState::Dead).await;
    worker.stop().await;

    // The job gets another due time, another payload and another shard.
    site.client.requeue(&key).await.unwrap();
    site.client.reschedule(&key).after(HOUR).await.unwrap();
    site.client.update_payload(&key, "ok").await.unwrap();
    site.client.reshard(&site.kind(), 3).await.unwrap();
    let worker = site.serve(Router::new().route(&site.pattern(), failing(&log, 3)));
    site.client.fire_now(&key).await.unwrap();
    all.push(runs.next().await);
    let keys: BTreeSet<String> = all.iter().map(Job::idempotency_key).collect();
    assert_eq!(keys.len(), 1, "{keys:?}");
    let attempts: Vec<u32> = all.iter().map(Job::attempt).collect();
    assert_eq!(attempts, [1, 2, 3, 1, 2, 3, 1]);
    assert!(
        keys.first().unwrap().starts_with(&format!("{key}@")),
        "{keys:?}"
    );

    // The job is restored from a copy.
    site.all_ended().await;
    site.client
        .restore(KeptJob::from(&view).attempts(0))
        .await
        .unwrap();
    site.client.requeue(&key).await.unwrap();
    let restored = runs.next().await;
    assert_eq!(restored.idempotency_key(), *keys.first().unwrap());
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_job_that_is_taken_over_keeps_its_key() {
    let site = Site::new("idem-over").await;
    let (log, mut runs) = recorder();
    let stuck = Router::new().route(&site.pattern(), log.stuck());
    // A living worker would renew the lease.
    let worker = Mortal::start(&site.url, stuck, STEADY);
    site.client.schedule(site.key(1), "").await.unwrap();
    let first = runs.next().await;
    worker.die();
    site.lapse(1).await;
    let router = Router::new().route(&site.pattern(), log.done());
    let worker = Running::start(site.worker(router).lease(STEADY));
    let second = runs.next().await;
    assert_eq!(first.idempotency_key(), second.idempotency_key());
    assert_ne!(first.attempt(), second.attempt());
    site.all_ended().await;
    worker.stop().await;
    site.assert_balanced().await;
}

/// Many jobs are scheduled within one millisecond.
#[tokio::test]
async fn each_schedule_has_another_key() {
    const ROUNDS: usize = 300;
    let site = Site::new("idem-next").await;
    let (log, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    let key = site.key(1);
    let mut told = BTreeSet::new();
    for _ in 0..ROUNDS {
        // The job is replaced, then run, then followed by a successor.
        site.client.schedule(&key, "").after(HOUR).await.unwrap();
        let replaced = site.view(&key).await.first_scheduled_at();
        site.client.schedule(&key, "").await.unwrap();
        let job = runs.next().await;
        assert_ne!(job.first_scheduled_at(), replaced);
        assert!(told.insert(job.idempotency_key()), "{job:?}");
    }
    site.all_ended().await;
    worker.stop().await;

    let gate = Gate::closed();
    let worker = site.serve(Router::new().route(&site.pattern(), log.behind(&gate)));
    site.client.schedule(&key, "").await.unwrap();
    let first = runs.next().await;
    site.client.schedule(&key, "").await.unwrap();
    gate.open();
    let successor = runs.next().await;
    assert!(told.insert(first.idempotency_key()) && told.insert(successor.idempotency_key()));
    site.all_ended().await;
    worker.stop().await;
    site.assert_balanced().await;
}

/// The records of older versions have the time only in milliseconds.
#[tokio::test]
async fn a_record_of_an_older_version_has_one_key_for_all_attempts() {
    let site = Site::new("idem-before").await;
    let key = site.key(1);
    site.client
        .schedule(&key, "fail")
        .after(HOUR)
        .await
        .unwrap();
    let shadow = format!("keyfall:{{{}/0}}:shadow", site.kind());
    let record = "{\"v\":1}\n1763712345678\n\"fail\"";
    let _: u32 = site.command(&["HSET", &shadow, "1", record]).await;
    let (log, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), failing(&log, 2)));
    site.client.fire_now(&key).await.unwrap();
    for job in runs.take(2).await {
        assert_eq!(job.idempotency_key(), format!("{key}@1763712345678000"));
    }
    site.reaches(&key, keyfall::JobState::Dead).await;
    worker.stop().await;
    site.assert_balanced().await;
}
