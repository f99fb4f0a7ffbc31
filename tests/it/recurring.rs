//! Recurring jobs: the end of each run stores the next occurrence.

use std::time::{Duration, SystemTime};

use keyfall::target::Pull;
use keyfall::{Busy, Cancelled, Job, JobState, Outcome, RetryPolicy, Router, Rule, Settled};

use crate::runs::{Gate, PATIENCE, eventually, recorder};
use crate::site::{Site, ms};
use crate::workers::SECOND;

/// A rule whose times are far apart, so that only a test makes its job due.
fn hourly() -> Rule {
    Rule::every(Duration::from_secs(3600)).unwrap()
}

fn number(job: &Job) -> u64 {
    job.occurrence().expect("the job recurs").number
}

#[tokio::test]
async fn a_recurring_job_runs_at_each_time_of_its_rule_until_the_rule_ends() {
    let site = Site::new("recur-runs").await;
    let (log, mut runs) = recorder();
    let key = site.key("a");
    let rule = Rule::every(SECOND).unwrap().runs(3).unwrap();
    let scheduled = site.client.schedule(&key, "tick").recurring(rule);
    let first = scheduled.await.unwrap().due;
    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    let jobs = runs.take(3).await;
    let mut last = SystemTime::UNIX_EPOCH;
    for (job, expected) in jobs.iter().zip(1..) {
        let occurrence = job.occurrence().unwrap();
        assert_eq!(occurrence.number, expected);
        assert_eq!((job.attempt(), &job.payload()[..]), (1, &b"\"tick\""[..]));
        assert!(job.due() >= occurrence.scheduled_for);
        assert!(occurrence.scheduled_for > last, "no time has two runs");
        last = occurrence.scheduled_for;
    }
    assert_eq!(jobs[0].occurrence().unwrap().scheduled_for, first);
    let keys: Vec<_> = jobs.iter().map(Job::idempotency_key).collect();
    assert!(keys[0] != keys[1] && keys[1] != keys[2]);
    let stats = site.all_ended().await;
    assert_eq!((stats.accepted, stats.done), (3, 3));
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn an_occurrence_that_dies_leaves_its_letter_and_the_next() {
    let site = Site::new("recur-dies").await;
    let (log, mut runs) = recorder();
    let key = site.key("a");
    let failing = log.then(|_| Outcome::retry("no"));
    let worker = site.serve(Router::new().route(&site.pattern(), failing));
    let job = site.client.schedule(&key, "").recurring(hourly());
    job.retry(RetryPolicy::fixed(ms(10)).unwrap().attempts(2))
        .await
        .unwrap();
    site.client.fire_now(&key).await.unwrap();
    let attempts: Vec<_> = runs.take(2).await.iter().map(Job::attempt).collect();
    assert_eq!(attempts, [1, 2], "the retries of an occurrence are its own");
    let has_died = async || (site.stats().await.dead == 1).then_some(());
    eventually("a dead letter", has_died).await;
    let next = site.view(&key).await;
    assert_eq!((next.state(), next.attempts()), (JobState::Pending, 0));
    assert_eq!(next.occurrence().unwrap().number, 2);
    assert_eq!(next.last_error(), None);
    let letters = site.client.dead_letters(&key).await.unwrap();
    assert_eq!(letters[0].occurrence().unwrap().number, 1);
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_run_before_its_time_leaves_the_times_of_the_rule_as_they_are() {
    let site = Site::new("recur-fired").await;
    let (log, mut runs) = recorder();
    let key = site.key("a");
    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    let job = site.client.schedule(&key, "").recurring(hourly());
    let due = job.await.unwrap().due;
    for expected in 1..=3 {
        site.client.fire_now(&key).await.unwrap();
        assert_eq!(number(&runs.next().await), expected);
        let is_next = async || {
            let view = site.client.get(&key).await.unwrap();
            view.filter(|view| view.state() == JobState::Pending)
        };
        eventually("the next occurrence", is_next).await;
        assert_eq!(site.view(&key).await.due(), due);
    }
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_cancel_ends_the_rule_while_the_job_waits_and_while_it_runs() {
    let site = Site::new("recur-cancel").await;
    let (log, mut runs) = recorder();
    let gate = Gate::closed();
    let worker = site.serve(Router::new().route(&site.pattern(), log.behind(&gate)));
    let (waits, running) = (site.key("waits"), site.key("runs"));
    for key in [&waits, &running] {
        let job = site.client.schedule(key, "").recurring(hourly());
        job.await.unwrap();
    }
    let answer = site.client.cancel(&waits).await.unwrap();
    assert_eq!(answer, Cancelled::Cancelled);
    site.client.fire_now(&running).await.unwrap();
    runs.next().await;
    let answer = site.client.cancel(&running).await.unwrap();
    assert_eq!(answer, Cancelled::Running);
    gate.open();
    site.all_ended().await;
    assert!(site.client.get(&running).await.unwrap().is_none());
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_schedule_during_a_run_replaces_the_rule() {
    let site = Site::new("recur-replace").await;
    let (log, mut runs) = recorder();
    let gate = Gate::closed();
    let worker = site.serve(Router::new().route(&site.pattern(), log.behind(&gate)));
    let key = site.key("a");
    let job = site.client.schedule(&key, "").recurring(hourly());
    job.await.unwrap();
    site.client.fire_now(&key).await.unwrap();
    runs.next().await;
    let daily = Rule::cron("@daily").unwrap();
    let job = site.client.schedule(&key, "new").recurring(daily.clone());
    let due = job.await.unwrap().due;
    gate.open();
    let view = site.reaches(&key, JobState::Pending).await;
    assert_eq!((view.due(), &view.payload()[..]), (due, &b"\"new\""[..]));
    let rule = view.occurrence().unwrap().rule;
    assert_eq!(rule, serde_json::to_value(&daily).unwrap());
    // Without a rule it is a single job again.
    site.client.schedule(&key, "last").await.unwrap();
    assert_eq!(runs.next().await.occurrence(), None);
    site.all_ended().await;
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_payload_that_is_changed_during_a_run_is_that_of_the_next_occurrence() {
    let site = Site::new("recur-update").await;
    let (log, mut runs) = recorder();
    let gate = Gate::closed();
    let worker = site.serve(Router::new().route(&site.pattern(), log.behind(&gate)));
    let key = site.key("a");
    let job = site.client.schedule(&key, "old").header("tenant", "7");
    job.recurring(hourly()).await.unwrap();
    site.client.fire_now(&key).await.unwrap();
    runs.next().await;
    site.client.update_payload(&key, "new").await.unwrap();
    gate.open();
    let view = site.reaches(&key, JobState::Pending).await;
    assert_eq!(&view.payload()[..], b"\"new\"");
    assert_eq!(view.headers().get("tenant"), Some("7"));
    worker.stop().await;
}

#[tokio::test]
async fn a_consumer_that_settles_by_the_lease_leaves_the_next_occurrence() {
    let site = Site::new("recur-pull").await;
    let pull = Pull::new();
    let worker = site.serve(Router::new().route(&site.pattern(), pull.clone()));
    let key = site.key("a");
    let job = site.client.schedule(&key, "").recurring(hourly());
    job.await.unwrap();
    for (outcome, settled) in [
        (Outcome::Done, Settled::Done),
        (Outcome::bury("no"), Settled::Buried(1)),
    ] {
        site.client.fire_now(&key).await.unwrap();
        let mut pulled = pull.pull(&[""; 0], 1, PATIENCE).await.unwrap();
        let (_, lease) = pulled.pop().unwrap().accept().unwrap();
        let answer = site.client.settle(&lease, outcome.clone()).await.unwrap();
        assert_eq!(answer, settled);
        assert_eq!(site.view(&key).await.state(), JobState::Pending);
        let again = site.client.settle(&lease, outcome).await.unwrap();
        assert_eq!(again, Settled::Gone);
    }
    assert_eq!(site.view(&key).await.occurrence().unwrap().number, 3);
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_run_makes_room_for_the_next_time_if_its_rule_says_so() {
    let site = Site::new("recur-room").await;
    let (log, mut runs) = recorder();
    let key = site.key("a");
    let worker = site.serve(Router::new().route(&site.pattern(), log.stuck()));
    let rule = Rule::every(SECOND).unwrap().when_busy(Busy::Replace);
    let job = site.client.schedule(&key, "").recurring(rule);
    job.await.unwrap();
    let jobs = runs.take(2).await;
    assert_eq!((number(&jobs[0]), number(&jobs[1])), (1, 2));
    assert_eq!(jobs[1].attempt(), 1, "no retry goes beyond the next time");
    worker.stop().await;
    site.assert_balanced().await;
}
