//! Worker processes that are killed, or told twice to stop.

use std::collections::HashSet;

use keyfall_testing::process::TalkingProcess;
use rustix::process::Signal;

use crate::runs::eventually;
use crate::site::{Site, ms};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_worker_process_loses_no_job() {
    let site = Site::new("crash-kill").await;
    let kind = format!("{}:work:sleep", site.app);
    let schedule = async |id: &str, payload: u64| {
        let key = format!("{kind}:{id}");
        site.client.schedule(&key, &payload).await.unwrap();
    };
    let mut first = TalkingProcess::worker(&site.url, &site.app);
    assert_eq!(first.line(), format!("working for {}", site.app));
    for id in ["quick-1", "quick-2"] {
        schedule(id, 0).await;
        assert_eq!(first.line(), format!("started {kind}:{id} 1"));
        assert_eq!(first.line(), format!("finished {kind}:{id}"));
    }
    eventually("settled", async || {
        let stats = site.client.stats(&kind).await.unwrap();
        (stats.done == 2).then_some(())
    })
    .await;
    for id in ["cut-1", "cut-2"] {
        schedule(id, 3_600_000).await;
        assert_eq!(first.line(), format!("started {kind}:{id} 1"));
    }
    first.kill();
    // The next worker does not have to sleep for as long.
    for id in ["cut-1", "cut-2"] {
        let updated = site.client.update_payload(format!("{kind}:{id}"), &0);
        updated.await.unwrap();
    }
    for id in ["waits-1", "waits-2"] {
        schedule(id, 0).await;
    }
    let second = TalkingProcess::worker(&site.url, &site.app);
    let stats = eventually("all done", async || {
        let stats = site.client.stats(&kind).await.unwrap();
        (stats.done == 6).then_some(stats)
    })
    .await;
    assert_eq!((stats.lapsed, stats.failed, stats.dead), (2, 0, 0));
    let lines = second.stop();
    let started: HashSet<&str> = lines
        .iter()
        .filter_map(|line| line.strip_prefix("started "))
        .collect();
    let expected = ["cut-1 2", "cut-2 2", "waits-1 1", "waits-2 1"].map(|s| format!("{kind}:{s}"));
    assert_eq!(started, expected.iter().map(String::as_str).collect());
    let finished = lines.iter().filter(|line| line.starts_with("finished "));
    assert_eq!(finished.count(), 4);
    assert_eq!(lines.last().unwrap(), "stopped");
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_stops_a_worker_without_waiting_for_its_handlers() {
    let site = Site::new("crash-twice").await;
    let kind = format!("{}:work:sleep", site.app);
    let hour = 3_600_000_u64;
    let key = format!("{kind}:long");
    site.client.schedule(&key, &hour).await.unwrap();
    let mut process = TalkingProcess::worker(&site.url, &site.app);
    assert_eq!(process.line(), format!("working for {}", site.app));
    assert_eq!(process.line(), format!("started {key} 1"));
    process.signal(Signal::TERM);
    // After the first signal the handler goes on, and no further job begins.
    let late = format!("{kind}:late");
    site.client
        .schedule(&late, &0)
        .after(ms(300))
        .await
        .unwrap();
    eventually("the late job is due, and nobody takes it", async || {
        let stats = site.client.stats(&kind).await.unwrap();
        (stats.overdue == 1 && stats.leased == 1).then_some(())
    })
    .await;
    assert_eq!(process.child.try_wait().unwrap(), None);
    process.signal(Signal::TERM);
    assert!(process.child.wait().unwrap().success());
    assert_eq!(process.line(), "stopped");
    let stats = site.client.stats(&kind).await.unwrap();
    assert_eq!((stats.pending, stats.leased, stats.done), (2, 0, 0));
    site.assert_balanced().await;
}
