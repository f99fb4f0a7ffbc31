//! Jobs scheduled while a job of the same name runs.

use std::time::Duration;

use keyfall::{JobState, Outcome, Placed, Router, What};

use crate::log::Log;
use crate::runs::{Gate, recorder};
use crate::site::Site;

#[tokio::test]
async fn a_job_scheduled_during_a_run_replaces_its_retries() {
    let site = Site::new("pro-next").await;
    let (log, mut runs) = recorder();
    let gate = Gate::closed();
    let handler = {
        let gate = gate.clone();
        async move |job: keyfall::Job| {
            log.note(&job);
            match &job.payload()[..] {
                b"\"first\"" => {
                    gate.passed().await;
                    Outcome::retry_after(Duration::ZERO, "to be superseded")
                }
                _ => Outcome::Done,
            }
        }
    };
    let worker = site.serve(Router::new().route(&site.pattern(), handler));
    let key = site.key(1);
    site.client.schedule(&key, "first").await.unwrap();
    let first = runs.next().await;
    for payload in ["second", "third"] {
        let next = site.client.schedule(&key, payload).await.unwrap();
        assert_eq!(next.placed, Placed::Succeeds);
    }
    let view = site.view(&key).await;
    assert_eq!(view.state(), JobState::Running);
    assert_eq!(
        view.json::<String>().unwrap(),
        "first",
        "the run keeps what it was given"
    );
    assert!(view.successor_due().is_some());
    assert_eq!(site.stats().await.successors, 1);
    runs.assert_no_more();
    gate.open();
    let third = runs.next().await;
    assert_eq!(
        (&third.payload()[..], third.attempt()),
        (&b"\"third\""[..], 1)
    );
    assert!(first.fence() < third.fence());
    let stats = site.all_ended().await;
    // The third job replaced the second, the successor replaced the first, and the first has
    // failed.
    assert_eq!((stats.replaced, stats.failed, stats.done), (2, 1, 1));
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_successor_starts_after_a_buried_or_a_done_run() {
    let site = Site::new("pro-way").await;
    let (log, mut runs) = recorder();
    let gate = Gate::closed();
    let handler = {
        let gate = gate.clone();
        async move |job: keyfall::Job| {
            log.note(&job);
            gate.passed().await;
            match &job.payload()[..] {
                b"\"dies\"" => Outcome::bury("it had to"),
                _ => Outcome::Done,
            }
        }
    };
    let worker = site.serve(Router::new().route(&site.pattern(), handler));
    for payload in ["dies", "ends well"] {
        site.client
            .schedule(site.key(payload.len()), payload)
            .await
            .unwrap();
        runs.next().await;
        site.client
            .schedule(site.key(payload.len()), "next")
            .await
            .unwrap();
    }
    gate.open();
    for job in runs.take(2).await {
        assert_eq!(&job.payload()[..], b"\"next\"");
    }
    let stats = site.all_ended().await;
    assert_eq!((stats.done, stats.dead, stats.replaced), (3, 1, 0));
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_failure_before_a_successor_stays_in_the_story() {
    let site = Site::new("pro-own").await;
    let told = Log::read();
    let (log, mut runs) = recorder();
    let handler = {
        let client = site.client.clone();
        async move |job: keyfall::Job| {
            log.note(&job);
            if job.payload()[..] == *b"\"next\"" {
                return Outcome::Done;
            }
            let next = client.schedule(job.key(), "next").await.unwrap();
            assert_eq!(next.placed, Placed::Succeeds);
            Outcome::retry("the mail was not sent")
        }
    };
    let worker = site.serve(Router::new().route(&site.pattern(), handler));
    let key = site.key(1);
    site.client.schedule(&key, "first").await.unwrap();
    runs.take(2).await;
    let stats = site.all_ended().await;
    assert_eq!((stats.failed, stats.replaced, stats.done), (1, 1, 1));
    assert_eq!(stats.dead, 0, "somebody has said what is to follow");
    let story = site.client.story(&key).await.unwrap().happenings;
    let failed = story.iter().position(|it| it.what == What::Failed);
    let failed = &story[failed.expect("it is told")..];
    assert_eq!((failed[0].attempt, failed[0].due), (Some(1), None));
    assert_eq!(failed[0].note.as_deref(), Some("the mail was not sent"));
    let then: Vec<What> = failed[1..].iter().map(|it| it.what).collect();
    assert_eq!(
        then,
        [What::Superseded, What::Follows, What::Claimed, What::Done]
    );
    assert_eq!(told.with("the mail was not sent").len(), 1);
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}
