//! The flags for announcements of expired keys: merged, read again, and missing.

use keyfall::embedded::Embedded;
use keyfall::{Router, Source};

use crate::log::Log;
use crate::runs::{Runs, eventually, recorder};
use crate::site::{Site, ms};

/// The flags that are set.
async fn flags(site: &Site) -> String {
    let args = ["CONFIG", "GET", "notify-keyspace-events"];
    let (_, flags): (String, String) = site.command(&args).await;
    flags
}

async fn set_flags(site: &Site, flags: &str) {
    let args = ["CONFIG", "SET", "notify-keyspace-events", flags];
    let () = site.command(&args).await;
}

/// Waits until Redis announces expired keys and the events of all `others`.
async fn announced(site: &Site, others: &[char]) {
    eventually("flags are merged", async || {
        let flags = flags(site).await;
        let mut wanted = others.iter().chain(&['E', 'x']);
        wanted.all(|flag| flags.contains(*flag)).then_some(())
    })
    .await;
}

/// Schedules jobs until the worker hears an event for one.
async fn until_heard(site: &Site, runs: &mut Runs) {
    eventually("an event is heard", async || {
        let key = site.key(rand::random::<u32>());
        site.client.schedule(&key, "").after(ms(50)).await.unwrap();
        (runs.next().await.source() == Source::Event).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_flags_are_merged_in_at_the_start_and_with_each_new_connection() {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "crash-flags").await;
    let (log, mut runs) = recorder();
    set_flags(&site, "").await;
    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    announced(&site, &[]).await;

    set_flags(&site, "gK").await;
    let cut: u32 = site.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
    assert_eq!(cut, 1);
    announced(&site, &['g', 'K']).await;
    until_heard(&site, &mut runs).await;
    site.all_ended().await;
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn removed_flags_are_noticed_as_soon_as_jobs_fall_due() {
    let server = Embedded::start().await.unwrap();
    let log = Log::read();
    let site = Site::at(&server.url(), "flags-taken").await;
    let (note, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), note.done()));
    until_heard(&site, &mut runs).await;
    // Events that are late, or that another worker takes, are not logged.
    assert_eq!(log.warnings(), [""; 0]);
    for round in 1..=2 {
        set_flags(&site, "gK").await;
        let key = site.key(format_args!("round-{round}"));
        site.client.schedule(&key, "").after(ms(100)).await.unwrap();
        assert_ne!(runs.next().await.source(), Source::Event);
        announced(&site, &['g', 'K']).await;
        until_heard(&site, &mut runs).await;
        eventually("it is told", async || {
            (log.with("has set the missing flags").len() == round).then_some(())
        })
        .await;
    }
    assert_eq!(log.warnings().len(), 2);
    site.all_ended().await;
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn every_job_runs_without_config_set_and_the_remedy_is_logged_once() {
    let server = Embedded::start().await.unwrap();
    let admin = Site::at(&server.url(), "crash-acl").await;
    let rule = "on >word ~crash-acl:* ~keyfall:* resetchannels &keyfall:* &__keyevent@0__:expired +@all -@admin";
    let mut args = vec!["ACL", "SETUSER", "worker"];
    args.extend(rule.split(' '));
    let () = admin.command(&args).await;
    set_flags(&admin, "").await;

    let log = Log::read();
    let url = format!("{}?user=worker&pass=word", server.url());
    let site = Site::at(&url, "crash-acl").await;
    let (note, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), note.done()));
    // On a machine that is busy for 200 ms, the reconciler overtakes the pacer.
    eventually("the pacer is the first to find one", async || {
        let key = site.key(rand::random::<u32>());
        site.client.schedule(&key, "").after(ms(200)).await.unwrap();
        let source = runs.next().await.source();
        assert_ne!(source, Source::Event);
        (source == Source::Pacer).then_some(())
    })
    .await;
    eventually("it is told", async || {
        (!log.warnings().is_empty()).then_some(())
    })
    .await;
    // The next connection does not repeat the log line.
    let cut: u32 = admin.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
    assert_eq!(cut, 1);
    for key in 0..100 {
        site.client
            .schedule(site.key(format_args!("more-{key}")), "")
            .after(ms(40 * key))
            .await
            .unwrap();
    }
    runs.take(100).await;
    let warnings = log.warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(
        warnings[0].contains("set `notify-keyspace-events Ex`"),
        "{warnings:?}"
    );

    // The administrator sets the flags.
    set_flags(&admin, "Ex").await;
    until_heard(&site, &mut runs).await;
    assert_eq!(log.with("Redis announces expired keys now").len(), 1);
    assert_eq!(log.warnings().len(), 1);
    site.all_ended().await;
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}
