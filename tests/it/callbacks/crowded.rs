//! Hosts that are down or slow do not stop the calls to other hosts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use keyfall::{Handler, RetryPolicy, Router, target};

use super::receiver::{Receiver, Reply, says};
use crate::runs::eventually;
use crate::site::{Site, fails_slowly};

const JOBS: usize = 60;

#[tokio::test]
async fn a_host_that_is_down_gets_no_calls_and_delays_no_other() {
    let site = Site::new("cb-down").await;
    let is_up: Arc<AtomicBool> = Arc::default();
    let mut down = Receiver::start({
        let is_up = is_up.clone();
        move |_| match is_up.load(Ordering::Relaxed) {
            true => says("200 OK", "", ""),
            false => says("503 Service Unavailable", "", ""),
        }
    })
    .await;
    let mut up = Receiver::always("200 OK", "").await;
    let hosts = [&down, &up].map(|host| host.url(""));
    let target = target::http_of_jobs(hosts)
        .networks(["127.0.0.1"])
        .host_concurrency(2)
        .breaker_failures(3)
        .breaker_pause(Duration::from_secs(1));
    // No more requests than a host with an open breaker can get.
    let route = target.retry(fails_slowly()).concurrency(16);
    let worker = site.serve(Router::new().route(&site.pattern(), route));
    for number in 0..JOBS {
        for (name, host) in [("down", &down), ("up", &up)] {
            let call = site
                .client
                .schedule(site.key(format_args!("{name}-{number}")), "");
            call.header("url", host.url("/")).await.unwrap();
        }
    }
    for _ in 0..JOBS {
        up.next().await;
    }
    // All other jobs wait, and no job has lost an attempt; some jobs were sent, but not all.
    let sent = down.rest().len();
    let stats = eventually("the others are done", async || {
        let stats = site.stats().await;
        (stats.done == JOBS as u64).then_some(stats)
    })
    .await;
    assert_eq!(stats.pending + stats.leased, JOBS as u64);
    assert!((3..JOBS / 2).contains(&sent), "{sent}");
    // The trial call finds the host up, and all postponed jobs go there.
    is_up.store(true, Ordering::Relaxed);
    let failed = eventually("the rest is done", async || {
        let stats = site.stats().await;
        (stats.done + stats.failed == 2 * JOBS as u64).then_some(stats.failed)
    })
    .await;
    let view = site.client.get(&site.key("down-59")).await.unwrap();
    assert!(view.is_none_or(|view| view.attempts() <= 1));
    assert!(failed >= 3 && failed < JOBS as u64 / 2, "{failed}");
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_slow_host_does_not_take_the_slots_of_others() {
    let site = Site::new("cb-slow").await;
    let mut slow = Receiver::start(|_| Reply::Hangs).await;
    let mut quick = Receiver::always("200 OK", "").await;
    let hosts = [&slow, &quick].map(|host| host.url(""));
    let target = target::http_of_jobs(hosts)
        .networks(["127.0.0.1"])
        .host_concurrency(1);
    // Calls and waiting calls would take two slots.
    let route = target
        .retry(RetryPolicy::none())
        .timeout(Duration::from_secs(600));
    let worker = site.serve(Router::new().route(&site.pattern(), route.concurrency(3)));
    for number in 0..20 {
        let call = site
            .client
            .schedule(site.key(format_args!("slow-{number}")), "");
        call.header("url", slow.url("/")).await.unwrap();
    }
    slow.next().await;
    for number in 0..20 {
        let call = site
            .client
            .schedule(site.key(format_args!("quick-{number}")), "");
        call.header("url", quick.url("/")).await.unwrap();
    }
    for _ in 0..20 {
        quick.next().await;
    }
    assert!(slow.rest().is_empty());
    eventually("the quick ones are done", async || {
        (site.stats().await.done == 20).then_some(())
    })
    .await;
    assert_eq!(site.stats().await.failed, 0);
    worker.drop_it().await;
    site.assert_balanced().await;
}
