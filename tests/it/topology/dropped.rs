//! Kinds whose ledgers are on several servers are dropped from all of them.

use keyfall::{Dropped, Router};

use super::several::Pair;
use crate::runs::{eventually, recorder};
use crate::site::{HOUR, command, connect};

impl Pair {
    /// The keys of the kind on a server, and its fields in the list of kinds, without expiring
    /// ones.
    async fn left_on(&self, server: usize) -> Vec<String> {
        let mut redis = connect(&self.servers[server].url()).await;
        let keys = format!("*{}*", self.kind);
        let keys: Vec<String> = command(&mut redis, &["KEYS", &keys]).await;
        let mut left = Vec::new();
        for key in keys {
            if command::<i64>(&mut redis, &["PTTL", &key]).await == -1 {
                left.push(key);
            }
        }
        let listed: Vec<String> = command(&mut redis, &["HKEYS", "keyfall:kinds"]).await;
        left.extend(listed.into_iter().filter(|it| it.contains(&self.kind)));
        left.sort();
        left
    }

    async fn assert_nothing_left(&self) {
        for server in [0, 1] {
            let left = self.left_on(server).await;
            assert!(left.is_empty(), "server {server}: {left:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kind_is_dropped_from_all_servers_and_can_return() {
    let pair = Pair::start("several-dropped").await;
    for server in [0, 1] {
        assert!(!pair.left_on(server).await.is_empty(), "server {server}");
        let ids = pair.ids_on(server, "held", 1);
        pair.schedule(&ids, HOUR).await;
        let held = pair.client.drop_kind(&pair.kind).await.unwrap();
        assert!(matches!(held, Dropped::InUse(_)), "{held:?}");
        pair.client.cancel(pair.key(&ids[0])).await.unwrap();
    }
    let dropped = pair.client.drop_kind(&pair.kind).await.unwrap();
    assert_eq!(dropped, Dropped::Dropped);
    pair.assert_nothing_left().await;
    let absent = pair.client.drop_kind(&pair.kind).await.unwrap();
    assert_eq!(absent, Dropped::Absent);

    let (log, mut runs) = recorder();
    let worker = pair.serve(Router::new().route("several-dropped:*:*:*", log.done()));
    for server in [0, 1] {
        let id = pair.ids_on(server, "again", 1).remove(0);
        pair.client.schedule(pair.key(id), "").await.unwrap();
        runs.next().await;
    }
    worker.stop().await;
    // The report of the last end may be on its way.
    eventually("it is dropped again", async || {
        let dropped = pair.client.drop_kind(&pair.kind).await.unwrap();
        (dropped == Dropped::Dropped).then_some(())
    })
    .await;
    pair.assert_nothing_left().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_dropped_while_a_server_is_away() {
    let mut pair = Pair::start("several-undropped").await;
    let impatient = pair.impatient().await;
    for away in [0, 1] {
        pair.servers[away].kill_server().await.unwrap();
        let before = pair.left_on(1 - away).await;
        let address = pair.servers[away].url().replace("redis+unix://", "");
        eventually("it is said which server is away", async || {
            let error = impatient.drop_kind(&pair.kind).await.unwrap_err();
            assert!(error.is_retryable(), "{error}");
            error.to_string().contains(&address).then_some(())
        })
        .await;
        assert_eq!(pair.left_on(1 - away).await, before);
        pair.servers[away].restart().await.unwrap();
    }
    let drop_it = async || {
        eventually("the servers are back", async || {
            impatient.drop_kind(&pair.kind).await.ok()
        })
        .await
    };
    assert_eq!(drop_it().await, Dropped::Dropped);
    pair.assert_nothing_left().await;

    // The list of a server that went away during the drop.
    let mut redis = connect(&pair.servers[1].url()).await;
    let mark = format!("={}", pair.kind);
    let listed = ["HSET", "keyfall:kinds", &mark, "1", &pair.kind, "1"];
    let _: u64 = command(&mut redis, &listed).await;
    assert_eq!(drop_it().await, Dropped::Dropped);
    pair.assert_nothing_left().await;
}
