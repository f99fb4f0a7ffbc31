//! Instances that died before they looked at the keys that they had heard of.

use keyfall::embedded::Embedded;
use keyfall::{Handler, MissingKey, Router};

use super::Adopting;
use crate::runs::{eventually, recorder};
use crate::site::Site;

const KEYS: usize = 60;

/// All instances responsible for some of the keys are dead, and the live one does not know yet.
async fn only_one_is_left(app: &str, before: impl AsyncFn(&Adopting)) -> (Embedded, Adopting) {
    // A server of its own: the calls of other workers would be counted, too.
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), app).await;
    let (log, runs) = recorder();
    let start = || {
        let route = log.done().into_route().adopt(MissingKey::Run);
        site.serve(Router::new().route(&site.pattern(), route))
    };
    let (worker, others) = (start(), [start(), start(), start()]);
    for one in others.iter().chain([&worker]) {
        one.ready().await;
    }
    eventually("all know each other", async || {
        (site.client.instances().await.unwrap().len() == 4).then_some(())
    })
    .await;
    let it = Adopting { site, runs, worker };
    before(&it).await;
    for one in others {
        one.drop_it().await;
    }
    (server, it)
}

#[tokio::test]
async fn live_instances_adopt_the_keys_that_dead_ones_heard_of() {
    let (_server, it) = only_one_is_left("adopt-dead", async |_| {}).await;
    for id in 0..KEYS {
        it.does(&id.to_string(), "SET v EX 3600").await;
    }
    eventually("all are adopted", async || {
        (it.site.stats().await.pending == KEYS as u64).then_some(())
    })
    .await;
    it.ends().await;
}

#[tokio::test]
async fn keys_that_dead_instances_heard_expire_run() {
    let (_server, mut it) = only_one_is_left("adopt-dead-over", async |it| {
        for id in 0..KEYS {
            it.does(&id.to_string(), "SET v EX 3600").await;
        }
        eventually("all are adopted", async || {
            (it.site.stats().await.pending == KEYS as u64).then_some(())
        })
        .await;
    })
    .await;
    for id in 0..KEYS {
        it.does(&id.to_string(), "PEXPIRE 1").await;
    }
    let stats = it.site.all_ended().await;
    // A Redis that is interrupted in the middle of that command takes the time for past, and
    // announces that the key was deleted.
    assert_eq!(stats.done + stats.cancelled, KEYS as u64, "{stats:?}");
    assert!(stats.done > stats.cancelled, "{stats:?}");
    assert_eq!(it.runs.rest().len() as u64, stats.done);
    it.ends().await;
}
