//! More changes of keys than a worker has time for: no other job waits for them, and no change is
//! forgotten.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use keyfall::embedded::Embedded;
use keyfall::{Handler, MissingKey, Router};
use redis::aio::MultiplexedConnection;

use super::Adopting;
use crate::runs::{eventually, recorder};
use crate::site::{HOUR, Site, connect, ms};

/// The number of commands in one round trip.
const BATCH: usize = 200;

/// The same command on each of these keys, with words behind its name.
async fn on_each(mut redis: MultiplexedConnection, keys: &[String], command: &str, words: &[&str]) {
    for keys in keys.chunks(BATCH) {
        let mut pipe = redis::pipe();
        for key in keys {
            pipe.cmd(command).arg(key).arg(words).ignore();
        }
        let () = pipe.query_async(&mut redis).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heartbeats_delay_no_other_kind() {
    const HOSTS: usize = 2000;
    const JOBS: usize = 100;
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "adopt-crowd").await;
    let hosts: Vec<String> = (0..HOSTS)
        .map(|host| format!("{}:it:host:{host}", site.app))
        .collect();
    let (alarm, mut alarms) = recorder();
    let (log, mut runs) = recorder();
    let routes = Router::new()
        .route(
            &format!("{}:it:host:{{id}}", site.app),
            alarm.done().adopt(MissingKey::Run),
        )
        .route(&site.pattern(), log.done());
    let worker = site.serve(routes);
    worker.ready().await;
    on_each(site.redis(), &hosts, "SETEX", &["600", "v"]).await;

    let (over, beats) = (
        Arc::new(AtomicBool::default()),
        Arc::new(AtomicUsize::default()),
    );
    let beating = {
        let (over, beats, hosts) = (over.clone(), beats.clone(), hosts.clone());
        let redis = connect(&server.url()).await;
        tokio::spawn(async move {
            while !over.load(Ordering::Relaxed) {
                on_each(redis.clone(), &hosts, "EXPIRE", &["600"]).await;
                beats.fetch_add(hosts.len(), Ordering::Relaxed);
                // More heartbeats than a debug build can handle, and fewer than keep both cores
                // busy.
                tokio::time::sleep(ms(100)).await;
            }
        })
    };
    // There is always a backlog of heartbeats, and each job runs all the same.
    let mut ran = 0;
    while ran < JOBS || beats.load(Ordering::Relaxed) < 6 * HOSTS {
        let key = site.key(ran);
        site.client.schedule(&key, &1).after(ms(30)).await.unwrap();
        assert_eq!(runs.next().await.key().as_str(), key);
        ran += 1;
    }
    over.store(true, Ordering::Relaxed);
    beating.await.unwrap();

    let host = format!("{}:it:host", site.app);
    eventually("all hosts are jobs", async || {
        (site.client.stats(&host).await.unwrap().pending == HOSTS as u64).then_some(())
    })
    .await;
    worker.stop().await;
    alarms.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_beyond_the_limit_are_found_again() {
    /// Workers keep 65,536 names.
    const KEYS: usize = 66_500;

    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "adopt-names").await;
    let it = Adopting::at(site, |log| log.done().into_route()).await;
    // No key can be adopted, so the names are not used up.
    let shadow = format!("keyfall:{{{}/0}}:shadow", it.site.kind());
    let () = it.site.command(&["SET", &shadow, "no hash"]).await;
    let keys: Vec<String> = it.site.keys(KEYS).collect();
    let seconds = HOUR.as_secs().to_string();
    on_each(it.site.redis(), &keys, "SETEX", &[&seconds, "v"]).await;
    let () = it.site.command(&["DEL", &shadow]).await;
    let mut adopted = 0;
    while adopted < KEYS as u64 {
        adopted = eventually("more are adopted", async || {
            let pending = it.site.stats().await.pending;
            (pending > adopted).then_some(pending)
        })
        .await;
    }
    it.ends().await;
}

#[tokio::test]
async fn heartbeats_are_gathered_into_batches() {
    /// More than the other calls of a worker in this time.
    const OTHERS: usize = 60;

    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "adopt-gather").await;
    let it = Adopting::at(site, |log| log.done().into_route()).await;
    let keys: Vec<String> = it.site.keys(200).collect();
    on_each(it.site.redis(), &keys, "SETEX", &["600", "v"]).await;
    eventually("all are adopted", async || {
        (it.site.stats().await.pending == 200).then_some(())
    })
    .await;
    let scripts = async || {
        let info: String = it.site.command(&["INFO", "commandstats"]).await;
        let calls = info.split("cmdstat_evalsha:calls=").nth(1).unwrap();
        calls.split(',').next().unwrap().parse::<usize>().unwrap()
    };
    let (before, began) = (scripts().await, Instant::now());
    for key in keys.iter().cycle().take(3000) {
        let () = it.site.command(&["EXPIRE", key, "700"]).await;
    }
    let calls = scripts().await - before;
    // One call in ten milliseconds.
    let most = began.elapsed().as_millis() as usize / 10 + OTHERS;
    assert!(calls <= most, "{calls} calls, more than {most}");
    it.ends().await;
}
