//! Streams on primaries that a replica replaces, with all writes or behind by some.

use rustix::process::Signal;

use super::clusters::Clustered;
use super::sentinels::{SentinelTerms, Sentineled};
use crate::forgotten::{Apart, Habit, LEASE, NAME};
use crate::runs::eventually;
use crate::site::{HOUR, Site, command, connect};

/// The setting that keeps a replica from authenticating at its primary, and the setting that undoes
/// it.
const LAGS: [&str; 4] = ["CONFIG", "SET", "masterauth", "nobody"];
const FOLLOWS: [&str; 4] = ["CONFIG", "SET", "masterauth", ""];

async fn tell(server: &str, words: &[&str]) {
    let _: redis::Value = command(&mut connect(server).await, words).await;
}

/// The replicas get no further writes from now on.
async fn cut_off(primary: &str, replicas: &[&str]) {
    for replica in replicas {
        tell(replica, &LAGS).await;
    }
    tell(primary, &["CLIENT", "KILL", "TYPE", "replica"]).await;
}

/// Waits until this number of replicas have all writes of the primary.
async fn are_copied(primary: &str, replicas: u64) {
    let mut redis = connect(primary).await;
    eventually("the replicas have all", async || {
        let mut both = redis::pipe();
        // `WAIT` covers the writes of its own connection.
        both.cmd("SET").arg(format!("{NAME}:mark")).arg("").ignore();
        both.cmd("WAIT").arg(replicas).arg(100);
        let (copies,): (u64,) = both.query_async(&mut redis).await.ok()?;
        (copies >= replicas).then_some(())
    })
    .await;
}

async fn on_a_cluster(app: &str, lags: bool) {
    let mut them = Clustered::steady(&[]).await;
    let slot = them.slot_of(NAME, 0).await;
    let owner = them.owner_of(slot, 0).await.unwrap();
    let urls: Vec<String> = them.nodes.iter().map(|node| node.server.url()).collect();
    let (primary, replica) = (&urls[owner], &urls[owner + 3]);
    let apart = Apart {
        site: Site::new(app).await,
        url: them.url(),
        servers: urls.clone(),
    };
    let prepare = async || {
        are_copied(primary, 1).await;
        if lags {
            cut_off(primary, &[replica]).await;
        }
    };
    let strike = async || {
        if !lags {
            are_copied(primary, 1).await;
        }
        them.nodes[owner].server.kill_server().await.unwrap();
        eventually("the replica has taken over", async || {
            let node = &them.nodes[owner + 3];
            let _: redis::RedisResult<()> = node.try_ask("CLUSTER FAILOVER TAKEOVER").await;
            node.says("INFO replication", "role:master")
                .await
                .then_some(())
        })
        .await;
    };
    let lease = if lags { LEASE } else { HOUR };
    let stats = apart
        .survives(Habit::AckAndDelete, lease, prepare, strike)
        .await;
    assert!(lags || stats.lapsed == 0, "{stats:?}");
}

async fn with_sentinels(app: &str, lags: bool) {
    let terms = SentinelTerms {
        is_steady: true,
        ..SentinelTerms::default()
    };
    let them = Sentineled::with(terms).await;
    let old = them.primary().await;
    let urls: Vec<String> = them.nodes.iter().map(|node| node.server.url()).collect();
    let replicas: Vec<&str> = (0..urls.len())
        .filter(|place| *place != old)
        .map(|place| &*urls[place])
        .collect();
    let apart = Apart {
        site: Site::new(app).await,
        url: them.url(),
        servers: urls.clone(),
    };
    let prepare = async || {
        are_copied(&urls[old], 2).await;
        if lags {
            cut_off(&urls[old], &replicas).await;
        }
    };
    let strike = async || {
        if !lags {
            are_copied(&urls[old], 2).await;
        }
        // No replica gets its writes any more.
        them.nodes[old].signal(Signal::KILL);
        for replica in &replicas {
            tell(replica, &FOLLOWS).await;
        }
        them.fail_over().await;
        them.fails_over_from(old).await;
    };
    let lease = if lags { LEASE } else { HOUR };
    let stats = apart
        .survives(Habit::AckAndDelete, lease, prepare, strike)
        .await;
    assert!(lags || stats.lapsed == 0, "{stats:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lagging_replica_of_a_cluster_gets_missing_entries_again() {
    on_a_cluster("lagging-cluster", true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_of_a_cluster_gets_no_known_entry_again() {
    on_a_cluster("copied-cluster", false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lagging_replica_behind_sentinels_gets_missing_entries_again() {
    with_sentinels("lagging-sentinels", true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_behind_sentinels_gets_no_known_entry_again() {
    with_sentinels("copied-sentinels", false).await;
}
