//! A client of a cluster follows slots and primaries by itself: no worker tells it.

use keyfall::Client;

use super::clusters::{Clustered, is_copied, ledger_of};
use crate::runs::eventually;
use crate::site::HOUR;

/// How often a node has sent clients to another one for good.
async fn times_moved(them: &Clustered, node: usize) -> u64 {
    let errors: String = them.nodes[node].ask("INFO errorstats").await;
    let count = errors
        .lines()
        .find_map(|line| line.strip_prefix("errorstat_MOVED:count="));
    count.map_or(0, |count| count.trim().parse().unwrap())
}

#[tokio::test]
async fn a_client_learns_from_one_redirection_where_a_slot_is() {
    let them = Clustered::steady(&[]).await;
    let client = Client::builder(&them.url()).default_shards(1);
    let client = client.connect().await.unwrap();
    let kind = them.kinds("cluster-followed").await.swap_remove(0);
    let key = format!("{kind}:1");
    client.schedule(&key, "").after(HOUR).await.unwrap();
    let slot = them.slot_of(&ledger_of(&kind), 0).await;
    them.migrate(slot, 0, 1).await;
    let before = times_moved(&them, 0).await;
    for _ in 0..5 {
        assert!(client.get(&key).await.unwrap().is_some());
    }
    assert_eq!(times_moved(&them, 0).await - before, 1);
}

#[tokio::test]
async fn a_client_asks_which_node_replaces_a_dead_one() {
    let mut them = Clustered::steady(&[]).await;
    let client = Client::builder(&them.url()).default_shards(1);
    let client = client.connect().await.unwrap();
    let kind = them.kinds("cluster-replaced").await.swap_remove(0);
    let key = format!("{kind}:1");
    client.schedule(&key, "").after(HOUR).await.unwrap();
    is_copied(&them.nodes[0], &format!("{}mark", ledger_of(&kind))).await;
    them.nodes[0].server.kill_server().await.unwrap();
    let _: () = them.nodes[3].ask("CLUSTER FAILOVER TAKEOVER").await;
    let slot = them.slot_of(&ledger_of(&kind), 1).await;
    eventually("all know the new primary", async || {
        for node in [1, 2, 4, 5] {
            (them.owner_of(slot, node).await == Some(3)).then_some(())?;
        }
        Some(())
    })
    .await;
    assert!(client.get(&key).await.unwrap().is_some());
}
