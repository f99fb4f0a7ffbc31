//! Cancels before, at and after the start of a run.

use std::collections::HashSet;
use std::future::IntoFuture;

use futures_util::future::try_join_all;
use keyfall::{Cancelled, Outcome, Placed, Router};

use crate::runs::{Gate, recorder};
use crate::site::{Site, ms};

#[tokio::test]
async fn a_cancelled_pending_job_never_runs() {
    let site = Site::new("pro-cancel").await;
    let (log, mut runs) = recorder();
    let client = &site.client;
    let key = site.key("cancelled");
    assert_eq!(client.cancel(&key).await.unwrap(), Cancelled::Absent);
    client.schedule(&key, "").after(ms(300)).await.unwrap();
    client
        .schedule(site.key("probe"), "")
        .after(ms(500))
        .await
        .unwrap();
    assert_eq!(client.cancel(&key).await.unwrap(), Cancelled::Cancelled);
    assert_eq!(client.cancel(&key).await.unwrap(), Cancelled::Absent);
    assert!(client.get(&key).await.unwrap().is_none());
    let exists: bool = site.command(&["EXISTS", &key]).await;
    assert!(!exists, "its trigger is gone too");
    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    assert_eq!(runs.next().await.key().id(), "probe");
    let stats = site.all_ended().await;
    assert_eq!((stats.cancelled, stats.done), (1, 1));
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_cancel_that_races_with_the_start_prevents_it_or_says_running() {
    let site = Site::new("pro-race").await;
    let (log, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    let mut cancelled = HashSet::new();
    let mut running = 0;
    for round in 0..10 {
        let keys: Vec<String> = (0..20)
            .map(|n| site.key(format_args!("{round}-{n}")))
            .collect();
        let calls = keys.iter().map(|key| {
            let call = site.client.schedule(key, "").after(ms(5));
            call.into_future()
        });
        try_join_all(calls).await.unwrap();
        let cancels = keys.iter().map(|key| site.client.cancel(key).into_future());
        let answers = try_join_all(cancels).await;
        for (key, answer) in keys.iter().zip(answers.unwrap()) {
            if answer == Cancelled::Cancelled {
                assert!(site.client.get(key).await.unwrap().is_none());
                cancelled.insert(key.clone());
            }
            running += u64::from(answer == Cancelled::Running);
        }
    }
    let stats = site.all_ended().await;
    worker.stop().await;
    let ran = runs.rest();
    assert!(
        ran.iter()
            .all(|job| !cancelled.contains(job.key().as_str()))
    );
    assert_eq!(ran.len() as u64, stats.done);
    // A claimed job that has not begun may end without a run.
    let at_the_least = cancelled.len() as u64;
    assert!(
        (at_the_least..=at_the_least + running).contains(&stats.cancelled),
        "{stats:?}"
    );
    assert_eq!(stats.done, 200 - stats.cancelled);
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_cancelled_run_is_told_to_stop_and_is_not_retried() {
    let site = Site::new("pro-halt").await;
    let (log, mut runs) = recorder();
    let handler = log.until_stopped(|| Outcome::retry("told to stop"));
    let worker = site.serve(Router::new().route(&site.pattern(), handler));
    let key = site.key(1);
    site.client.schedule(&key, "").await.unwrap();
    runs.next().await;
    // Its successor is cancelled with it.
    let next = site.client.schedule(&key, "next").await.unwrap();
    assert_eq!(next.placed, Placed::Succeeds);
    assert_eq!(site.client.cancel(&key).await.unwrap(), Cancelled::Running);
    let stats = site.all_ended().await;
    assert_eq!((stats.cancelled, stats.failed, stats.done), (2, 0, 0));
    assert!(site.client.get(&key).await.unwrap().is_none());
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_cancelled_run_that_succeeds_is_done() {
    let site = Site::new("pro-halt-done").await;
    let (log, mut runs) = recorder();
    let gate = Gate::closed();
    let worker = site.serve(Router::new().route(&site.pattern(), log.behind(&gate)));
    let key = site.key(1);
    site.client.schedule(&key, "").await.unwrap();
    runs.next().await;
    assert_eq!(site.client.cancel(&key).await.unwrap(), Cancelled::Running);
    assert!(site.view(&key).await.is_cancelled());
    gate.open();
    let stats = site.all_ended().await;
    assert_eq!((stats.cancelled, stats.done), (0, 1));
    worker.stop().await;
    site.assert_balanced().await;
}
