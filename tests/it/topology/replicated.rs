//! Durable calls on a cluster: waiting callers follow the ledger.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use keyfall::{Client, Durable, Handler, Reached, Router, Worker};
use keyfall_testing::server::signal_to;
use rustix::process::Signal;
use tokio::task::JoinHandle;

use super::clusters::{Clustered, ledger_of};
use crate::runs::{Gate, eventually, recorder};
use crate::site::{HOUR, Running, ms};

/// A client with a long timeout for busy machines; each of its kinds is on one primary.
async fn patient(them: &Clustered) -> Client {
    let client = Client::builder(&them.url()).call_timeout(Duration::from_secs(60));
    client.default_shards(1).connect().await.unwrap()
}

/// The goal of one replica, within this time.
fn within(time: u64) -> Durable {
    Durable::replicas(1).within(ms(time))
}

/// Schedules a job, and returns its reached goals.
async fn reach(client: &Client, key: &str, durable: Durable) -> Reached {
    let call = client.schedule(key, "").after(HOUR).durable(durable);
    call.await.unwrap().reached.unwrap()
}

/// Schedules a job until a replica has it.
async fn is_met(client: &Client, key: &str) {
    eventually("a replica has it", async || {
        let reached = reach(client, key, within(3_000)).await;
        reached.is_met.then_some(())
    })
    .await;
}

/// A durable call that waits on a node.
async fn waiting(
    them: &Clustered,
    place: usize,
    client: &Client,
    key: &str,
    durable: Durable,
) -> JoinHandle<Reached> {
    let (of_call, name) = (client.clone(), key.to_owned());
    let call = tokio::spawn(async move { reach(&of_call, &name, durable).await });
    eventually("it waits", async || {
        let clients: String = them.nodes[place].ask("CLIENT LIST").await;
        clients.contains(" cmd=wait ").then_some(())
    })
    .await;
    call
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_replicas_of_the_node_with_the_ledger_count() {
    let them = Clustered::start().await;
    let client = patient(&them).await;
    let kinds = them.kinds("durable-counts").await;
    for (place, kind) in kinds.iter().enumerate() {
        is_met(&client, &format!("{kind}:1")).await;
        let replica = &them.nodes[place + 3];
        let there: Vec<String> = replica.ask(&format!("KEYS keyfall:{{{kind}/0}}:due")).await;
        assert_eq!(there.len(), 1, "{kind}");
    }
    signal_to(&them.nodes[3].server, Signal::STOP);
    let reached = reach(&client, &format!("{}:2", kinds[0]), within(50)).await;
    assert_eq!((reached.is_met, reached.replicas), (false, 0));
    // Kinds of other nodes have other replicas.
    is_met(&client, &format!("{}:2", kinds[1])).await;
    signal_to(&them.nodes[3].server, Signal::CONT);
    is_met(&client, &format!("{}:2", kinds[0])).await;

    // The ends of runs wait for replicas, too.
    let (log, mut runs) = recorder();
    let route = |router: Router, kind: &String| {
        router.route(&format!("{kind}:{{id}}"), log.done().durable(1))
    };
    let worker = Running::start(Worker::new(
        client.clone(),
        kinds.iter().fold(Router::new(), route),
    ));
    worker.ready().await;
    for kind in &kinds {
        client.fire_now(format!("{kind}:1")).await.unwrap();
    }
    runs.take(kinds.len()).await;
    worker.stop().await;
    for kind in &kinds {
        let stats = client.stats(kind).await.unwrap();
        assert_eq!(stats.done, 1, "{stats:?}");
        assert!(stats.is_balanced(), "{stats:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_of_a_node_that_gives_the_slot_away_do_not_count() {
    let them = Clustered::start().await;
    let client = patient(&them).await;
    let kind = &them.kinds("durable-moves").await[0];
    let slot = them.slot_of(&ledger_of(kind), 0).await;
    is_met(&client, &format!("{kind}:0")).await;
    for (primary, replica) in [(0, 3), (1, 4)] {
        signal_to(&them.nodes[replica].server, Signal::STOP);
        // Valkey does not move a slot while a replica is attached that acknowledges nothing.
        let _: u64 = them.nodes[primary].ask("CLIENT KILL TYPE replica").await;
    }
    let key = format!("{kind}:1");
    let call = waiting(&them, 0, &client, &key, within(5_000)).await;
    them.migrate(slot, 0, 1).await;
    // This replica gets the write and acknowledges it, but its primary no longer has the ledger.
    signal_to(&them.nodes[3].server, Signal::CONT);
    let reached = call.await.unwrap();
    assert_eq!((reached.is_met, reached.replicas), (false, 0));
    signal_to(&them.nodes[4].server, Signal::CONT);
    is_met(&client, &key).await;
    assert_eq!(client.stats(kind).await.unwrap().pending, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_a_fail_over_lost_is_repeated_at_the_new_owner() {
    let mut them = Clustered::start().await;
    let client = patient(&them).await;
    let kind = them.kinds("durable-forgot").await.swap_remove(0);
    // The replica has heard nothing for a while and takes over all the same.
    let anyhow = "CONFIG SET cluster-replica-validity-factor 0";
    let _: () = them.nodes[3].ask(anyhow).await;
    signal_to(&them.nodes[3].server, Signal::STOP);
    let _: u64 = them.nodes[0].ask("CLIENT KILL TYPE replica").await;
    let key = format!("{kind}:1");
    let call = waiting(&them, 0, &client, &key, within(10_000)).await;
    them.nodes[0].server.kill_server().await.unwrap();
    signal_to(&them.nodes[3].server, Signal::CONT);
    let reached = call.await.unwrap();
    assert_eq!((reached.is_met, reached.replicas), (false, 0));
    assert!(client.get(&key).await.unwrap().is_some());
    assert_eq!(client.stats(&kind).await.unwrap().pending, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn durable_writes_survive_the_primary() {
    let mut them = Clustered::start().await;
    let client = patient(&them).await;
    let kind = them.kinds("durable-lives").await.swap_remove(0);
    let slot = them.slot_of(&ledger_of(&kind), 0).await;
    is_met(&client, &format!("{kind}:first")).await;
    let stop = Gate::closed();
    let met: Arc<Mutex<Vec<String>>> = Arc::default();
    let callers: Vec<JoinHandle<()>> = (0..4)
        .map(|caller| {
            let (client, kind, stop) = (client.clone(), kind.clone(), stop.clone());
            let met = met.clone();
            tokio::spawn(async move {
                let passed = stop.passed();
                tokio::pin!(passed);
                for number in 0_usize.. {
                    let key = format!("{kind}:{caller}-{number}");
                    let call = client.schedule(&key, "").after(HOUR).durable(within(1_000));
                    match call.await {
                        Ok(scheduled) if scheduled.reached.unwrap().is_met => {
                            met.lock().unwrap().push(key);
                        }
                        Ok(_) => {}
                        Err(error) => assert!(error.is_retryable(), "{error:?}"),
                    }
                    if tokio::time::timeout(ms(1), &mut passed).await.is_ok() {
                        break;
                    }
                }
            })
        })
        .collect();
    eventually("some are met", async || {
        (met.lock().unwrap().len() >= 20).then_some(())
    })
    .await;
    them.nodes[0].server.kill_server().await.unwrap();
    eventually("a replica takes over", async || {
        (them.owner_of(slot, 1).await == Some(3)).then_some(())
    })
    .await;
    them.nodes[0].server.restart().await.unwrap();
    them.is_well().await;
    is_met(&client, &format!("{kind}:last")).await;
    stop.open();
    for caller in callers {
        caller.await.unwrap();
    }
    let met = std::mem::take(&mut *met.lock().unwrap());
    for key in &met {
        assert!(client.get(key).await.unwrap().is_some(), "{key}");
    }
    assert!(client.stats(&kind).await.unwrap().is_balanced());
}
