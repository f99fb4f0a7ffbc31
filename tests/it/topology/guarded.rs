//! Clusters that speak TLS, and clusters whose users have only the necessary rights.

use keyfall::{Client, ErrorKind, Router, Source, Worker};
use keyfall_testing::files::Folder;

use super::clusters::{Clustered, node};
use crate::encrypted::Authority;
use crate::rights::rules;
use crate::runs::{Runs, eventually, recorder};
use crate::site::{HOUR, Running, ms};

/// Schedules rounds of jobs of each kind until events start all jobs of a round.
async fn fire(client: &Client, kinds: &[String], runs: &mut Runs) {
    let mut round = 0;
    eventually("all by events", async || {
        round += 1;
        for kind in kinds {
            for number in 0..4 {
                let key = format!("{kind}:r{round}-{number}");
                client.schedule(&key, "").after(ms(700)).await.unwrap();
            }
        }
        let jobs = runs.take(4 * kinds.len()).await;
        let is_event = |job: &keyfall::Job| job.source() == Source::Event;
        jobs.iter().all(is_event).then_some(())
    })
    .await;
}

/// A worker for these kinds.
fn serve(client: &Client, kinds: &[String]) -> (Running, Runs) {
    let (log, runs) = recorder();
    let add = |router: Router, kind: &String| router.route(&format!("{kind}:{{id}}"), log.done());
    let router = kinds.iter().fold(Router::new(), add);
    (Running::start(Worker::new(client.clone(), router)), runs)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_can_require_tls() {
    let (authority, folder) = (Authority::new(), Folder::new("cluster-tls"));
    let identity = authority.signs("127.0.0.1");
    let write = |name: &str, text: &str| {
        folder.write(name, text);
        folder.path(name)
    };
    let ca = write("ca.pem", &authority.pem());
    let (chain, key) = (
        write("redis.pem", &identity.chain),
        write("redis.key", &identity.key),
    );
    let args = |port: u16| {
        let port = port.to_string();
        let words = [
            ["--port", "0"],
            ["--tls-port", &port],
            ["--tls-cluster", "yes"],
            ["--tls-replication", "yes"],
            ["--tls-auth-clients", "no"],
            ["--tls-ca-cert-file", &ca],
            ["--tls-cert-file", &chain],
            ["--tls-key-file", &key],
        ];
        words
            .as_flattened()
            .iter()
            .map(|it| (*it).to_owned())
            .collect()
    };
    let mut nodes = Vec::new();
    for _ in 0..6 {
        nodes.push(node(args).await);
    }
    let them = Clustered::of(nodes).await;
    let url = them.url().replace("redis+", "rediss+");
    let client = Client::builder(&url).ca_certificate_file(&ca);
    let client = client.default_shards(1).connect().await.unwrap();
    let kinds = them.kinds("cluster-tls").await;
    let (worker, mut runs) = serve(&client, &kinds);
    worker.ready().await;
    fire(&client, &kinds, &mut runs).await;
    // A call that waits has a connection of its own.
    eventually("a replica has it", async || {
        let call = client
            .schedule(format!("{}:kept", kinds[0]), "")
            .after(HOUR);
        let reached = call.durable(1).await.unwrap().reached.unwrap();
        reached.is_met.then_some(())
    })
    .await;
    worker.stop().await;

    let another = Authority::new().pem();
    let error = Client::builder(&url).ca_certificate(another);
    let error = error.connect().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("no trusted CA"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rules_of_acl_conf_and_two_more_suffice_on_a_cluster() {
    let them = Clustered::start().await;
    let allow = async |user: &str, more: &[&str]| {
        let rules = rules("keyfall-worker").join(" ");
        for node in &them.nodes {
            let set = format!("ACL SETUSER {user} reset {rules} {}", more.join(" "));
            let _: () = node.ask(&set).await;
        }
    };
    let connect = async |user: &str| {
        let users = format!("//{user}:change-me-too@");
        let url = them.url().replace("//", &users);
        Client::builder(&url).default_shards(1).connect().await
    };
    allow("guarded", &["+cluster|slots", "+asking", "+wait"]).await;
    allow("blind", &["+asking"]).await;
    let error = connect("blind").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");

    let client = connect("guarded").await.unwrap();
    let kinds = them.kinds("app1").await;
    let (worker, mut runs) = serve(&client, &kinds);
    worker.ready().await;
    fire(&client, &kinds, &mut runs).await;
    let call = client
        .schedule(format!("{}:kept", kinds[0]), "")
        .after(HOUR);
    assert!(call.durable(1).await.unwrap().reached.is_some());

    // A trigger in a moving slot goes to the destination of the slot.
    let key = format!("{}:asked", kinds[0]);
    let slot = them.slot_of(&key, 0).await;
    let from = them.owner_of(slot, 0).await.unwrap();
    let to = (from + 1) % 3;
    let (here, there) = (&them.nodes[from], &them.nodes[to]);
    let importing = format!("CLUSTER SETSLOT {slot} IMPORTING {}", here.id);
    let migrating = format!("CLUSTER SETSLOT {slot} MIGRATING {}", there.id);
    let _: () = there.ask(&importing).await;
    let _: () = here.ask(&migrating).await;
    client.schedule(&key, "").after(HOUR).await.unwrap();
    eventually("it is there", async || {
        let keys: Vec<String> = there.ask(&format!("KEYS {key}")).await;
        (!keys.is_empty()).then_some(())
    })
    .await;
    them.migrate(slot, from, to).await;
    fire(&client, &kinds, &mut runs).await;
    worker.stop().await;
}
