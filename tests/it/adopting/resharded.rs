//! Reshards of kinds that adopt keys.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use futures_util::future::{join, join_all};
use keyfall::{Handler, Job, JobState, MissingKey, Router, shard_of};

use super::Adopting;
use crate::runs::eventually;
use crate::site::Site;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_state_of_keys_moves_with_and_without_their_jobs() {
    let mut adopting = Adopting::new("adopt-shards").await;
    let ids: Vec<String> = (0..40).map(|id| id.to_string()).collect();
    for id in &ids {
        adopting.does(id, "SET first EX 900").await;
    }
    for id in &ids {
        adopting.becomes(id, Some(("first", 900))).await;
    }
    // The key of a cancelled job stays, and does not change.
    let kept = &ids[0];
    let site = &adopting.site;
    site.client.cancel(site.key(kept)).await.unwrap();
    // The expiry in milliseconds comes from the ledger; Redis 6.2 does not have PEXPIRETIME.
    let adopted = format!("keyfall:{{{}/0}}:adopted", site.kind());
    let expiry: u64 = site.command(&["ZSCORE", &adopted, kept]).await;
    for shards in [4, 1, 3] {
        site.client.reshard(&site.kind(), shards).await.unwrap();
        assert_eq!(site.stats().await.pending, 39, "{shards}");
    }
    // A second look changes nothing.
    let same = format!("PEXPIREAT {expiry}");
    adopting.does(kept, &same).await;
    let mut others = ids.iter().skip(1);
    let same_shard = |id: &&String| shard_of(id, 3) == shard_of(kept, 3);
    let after = others.find(same_shard).unwrap();
    adopting.does(after, "SET second EX 1800").await;
    adopting.becomes(after, Some(("second", 1800))).await;
    adopting.becomes(kept, None).await;
    let (deleted, hastened) = (others.next().unwrap(), others.next().unwrap());
    adopting.does(deleted, "DEL").await;
    adopting.becomes(deleted, None).await;
    adopting.does(hastened, "PEXPIRE 50").await;
    assert_eq!(adopting.runs.next().await.key().id(), hastened);
    adopting.worker.stop().await;
    adopting
        .site
        .client
        .prefix(&adopting.site.kind())
        .cancel()
        .await
        .unwrap();
    adopting.site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_keys_during_a_reshard_count_once() {
    const PRODUCERS: usize = 4;
    const ROUNDS: usize = 12;
    let site = Site::new("adopt-reshard").await;
    let ran: Arc<Mutex<BTreeMap<String, usize>>> = Arc::default();
    let mut workers = Vec::new();
    for _ in 0..2 {
        let ran = ran.clone();
        let handler = async move |job: Job| {
            let id = job.key().id().to_owned();
            *ran.lock().unwrap().entry(id).or_default() += 1;
        };
        let route = handler.adopt(MissingKey::Run);
        let worker = site.serve(Router::new().route(&site.pattern(), route));
        worker.ready().await;
        workers.push(worker);
    }
    let set = async |key: &str, value: &str| {
        let _: String = site.command(&["SET", key, value, "EX", "900"]).await;
    };
    // The client knows the kind when it is resharded.
    let known = site.key("known");
    set(&known, "").await;
    site.reaches(&known, JobState::Pending).await;
    let reshard = async {
        for shards in [4, 2, 7, 1, 3] {
            let resharded = site.client.reshard(&site.kind(), shards).await.unwrap();
            assert_eq!(resharded.to, shards);
        }
    };
    let produce = async |number: usize| {
        for round in 0..ROUNDS {
            let all = ["hastened", "replaced", "deleted"];
            let all = all.map(|what| site.key(format!("{what}-{number}-{round}")));
            for key in &all {
                set(key, "first").await;
            }
            for key in &all {
                site.reaches(key, JobState::Pending).await;
            }
            let [hastened, replaced, deleted] = &all;
            let _: u64 = site.command(&["PEXPIRE", hastened, "100"]).await;
            set(replaced, "second").await;
            let _: u64 = site.command(&["PEXPIRE", replaced, "100"]).await;
            let _: u64 = site.command(&["DEL", deleted]).await;
        }
    };
    join(reshard, join_all((0..PRODUCERS).map(produce))).await;
    eventually("all has ended but one", async || {
        let stats = site.stats().await;
        (stats.pending + stats.leased + stats.successors == 1).then_some(())
    })
    .await;
    for worker in workers {
        worker.stop().await;
    }
    let ran = ran.lock().unwrap().clone();
    let is_odd = |(id, times): &(&String, &usize)| id.starts_with("deleted") || **times != 1;
    let odd: Vec<_> = ran.iter().filter(is_odd).collect();
    assert!(odd.is_empty(), "{odd:?}");
    assert_eq!(ran.len(), PRODUCERS * ROUNDS * 2);
    site.client.cancel(&known).await.unwrap();
    site.assert_balanced().await;
}
