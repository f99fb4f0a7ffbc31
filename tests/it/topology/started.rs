//! Kinds on a cluster start with a number of shards that fits its size.

use std::collections::HashSet;

use futures_util::future::join_all;
use keyfall::{Client, Placed, Router, Source, Worker, shard_of};

use super::clusters::Clustered;
use crate::runs::{PATIENCE, eventually, ids, recorder};
use crate::site::{HOUR, Running, ms};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kind_starts_on_all_primaries() {
    let them = Clustered::start().await;
    let kind = "cluster-starts:it:job";
    let (log, mut runs) = recorder();
    let client = Client::connect(&them.url()).await.unwrap();
    let router = Router::new().route(&format!("{kind}:{{id}}"), log.done());
    let worker = Running::start(Worker::new(client, router));
    worker.ready().await;
    // Three clients that do not know the kind, one of them with another default.
    let mut clients = Vec::new();
    for shards in [None, Some(2), None] {
        let builder = Client::builder(&them.url());
        let builder = match shards {
            Some(shards) => builder.default_shards(shards),
            None => builder,
        };
        clients.push(builder.connect().await.unwrap());
    }
    let calls = clients.iter().enumerate().flat_map(|(place, client)| {
        (0..10).map(move |id| {
            client
                .schedule(format!("{kind}:{place}-{id}"), "")
                .after(ms(500))
        })
    });
    for placed in join_all(calls.map(IntoFuture::into_future)).await {
        placed.unwrap();
    }
    let all = ids(&runs.take(30).await);
    assert_eq!(all.iter().collect::<HashSet<_>>().len(), 30);
    let (shards, from) = clients[0].shards(kind).await.unwrap();
    assert!([2, 4].contains(&shards) && from.is_none(), "{shards}");

    // For this client alone, its default counts.
    let kind = "cluster-starts:it:other";
    for id in 0..12 {
        let call = clients[0].schedule(format!("{kind}:{id}"), "");
        call.after(HOUR).await.unwrap();
    }
    assert_eq!(clients[1].shards(kind).await.unwrap(), (4, None));
    for node in &them.nodes[..3] {
        let ledgers: Vec<String> = node.ask(&format!("KEYS keyfall:{{{kind}/*}}:calls")).await;
        assert!(!ledgers.is_empty(), "each primary has one");
    }

    let kind = "cluster-starts:it:job";
    let mut round = 0;
    eventually("all by events", async || {
        round += 1;
        for id in 0..6 {
            let call = clients[2].schedule(format!("{kind}:e{round}-{id}"), "");
            call.after(ms(700)).await.unwrap();
        }
        let jobs = runs.take(6).await;
        let is_event = |job: &keyfall::Job| job.source() == Source::Event;
        jobs.iter().all(is_event).then_some(())
    })
    .await;
    worker.stop().await;
    eventually("all ended", async || {
        let stats = clients[0].stats(kind).await.unwrap();
        (stats.pending + stats.leased == 0 && stats.is_balanced()).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_primary_does_not_stop_new_producers_on_other_shards() {
    // No replica takes over.
    let mut them = Clustered::steady(&["--appendfsync", "always"]).await;
    let kind = "cluster-bereft:it:job";
    let client = Client::connect(&them.url()).await.unwrap();
    for id in 0..12 {
        let call = client.schedule(format!("{kind}:{id}"), "");
        call.after(HOUR).await.unwrap();
    }
    assert_eq!(client.shards(kind).await.unwrap(), (4, None));
    for dead in 0..3 {
        let newcomer = Client::builder(&them.url()).call_timeout(PATIENCE / 3);
        let newcomer = newcomer.connect().await.unwrap();
        let mut served = Vec::new();
        for id in 0..12 {
            let shard = shard_of(&id.to_string(), 4);
            let pattern = format!("KEYS keyfall:{{{kind}/{shard}*}}:calls");
            let there: Vec<String> = them.nodes[dead].ask(&pattern).await;
            if there.is_empty() {
                served.push(id);
            }
        }
        assert!(!served.is_empty(), "one has not all of them");
        them.nodes[dead].server.kill_server().await.unwrap();
        for id in served {
            let call = newcomer.schedule(format!("{kind}:{id}"), "").after(HOUR);
            let placed = call.await.unwrap();
            assert_eq!(placed.placed, Placed::Replaced, "{id}, without {dead}");
        }
        them.nodes[dead].server.restart().await.unwrap();
        them.is_well().await;
    }
}
