//! The findings of the doctor on large shards.

use keyfall::Client;
use keyfall::doctor::{Finding, Severity};

use super::clusters::{Clustered, ledger_of};

const KIND: &str = "sized:it:job";

/// Writes records into the first shard, without due times: only their number matters. Not all at
/// once, which would hold the node up.
const FILL: &str = "for i=1,10000 do redis.call('HSET',KEYS[1],ARGV[1]..i,'') end";

async fn shard_size(client: &Client) -> Finding {
    let diagnosis = client.diagnose().await.unwrap();
    let mut findings = diagnosis.findings.into_iter();
    let found = findings.find(|it| it.check.id == "shard-size");
    found.expect("one for each check")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_would_block_its_node_in_a_move_is_reported() {
    let cluster = Clustered::steady(&[]).await;
    let client = Client::builder(&cluster.url()).default_shards(1);
    let client = client.connect().await.unwrap();
    client.schedule(format!("{KIND}:1"), &1).await.unwrap();
    assert_eq!(shard_size(&client).await.severity, Severity::Ok);

    let ledger = ledger_of(KIND);
    let slot = cluster.slot_of(&ledger, 0).await;
    let owner = cluster.owner_of(slot, 0).await.unwrap();
    let shadow = format!("keyfall:{ledger}:shadow");
    let node = redis::Client::open(cluster.nodes[owner].server.url()).unwrap();
    // The look has no time limit here.
    let patient = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    let node = node.get_multiplexed_async_connection_with_config(&patient);
    let mut node = node.await.unwrap();
    for part in 0..26 {
        let mut fill = redis::cmd("EVAL");
        fill.arg(FILL).arg(1).arg(&shadow).arg(format!("{part}-"));
        let () = fill.query_async(&mut node).await.unwrap();
    }

    let found = shard_size(&client).await;
    assert_eq!(found.severity, Severity::Warning, "{found}");
    let remedy = format!("keyfall reshard {KIND} --to 2");
    assert_eq!(found.remedy.as_deref(), Some(&*remedy));
}
