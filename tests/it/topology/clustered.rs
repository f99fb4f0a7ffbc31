//! Jobs on a cluster: on all its nodes, and through failures and changes of nodes.

use std::collections::HashSet;

use keyfall::doctor::Severity;
use keyfall::{Client, ErrorKind, Handler, MissingKey, Outcome, Router, Source};
use keyfall_testing::server::signal_to;
use rustix::process::Signal;

use super::clusters::{Clustered, is_copied, ledger_of, node};
use crate::runs::{Gate, Runs, eventually, ids, recorder};
use crate::site::{HOUR, Running, ms};

/// A cluster, a client, and a kind on each primary.
struct Field {
    them: Clustered,
    client: Client,
    kinds: Vec<String>,
}

impl Field {
    async fn new(app: &str) -> Self {
        let them = Clustered::start().await;
        // Each kind is on one primary.
        let builder = Client::builder(&them.url()).default_shards(1);
        let client = builder.connect().await.unwrap();
        let kinds = them.kinds(app).await;
        Field {
            them,
            client,
            kinds,
        }
    }

    /// A router with a route for each kind, by this handler.
    fn routes<H>(&self, handler: impl Fn() -> H) -> Router
    where
        H: keyfall::Handler<(keyfall::Job,), ()>,
    {
        let add =
            |router: Router, kind: &String| router.route(&format!("{kind}:{{id}}"), handler());
        self.kinds.iter().fold(Router::new(), add)
    }

    fn serve(&self, router: Router) -> Running {
        Running::start(keyfall::Worker::new(self.client.clone(), router))
    }

    /// Schedules this number of jobs of each kind; returns the sum.
    async fn schedule(&self, name: &str, count: usize, after: u64) -> usize {
        for number in 0..count {
            for kind in &self.kinds {
                let key = format!("{kind}:{name}{number}");
                eventually("scheduled", async || {
                    self.client.schedule(&key, "").after(ms(after)).await.ok()
                })
                .await;
            }
        }
        count * self.kinds.len()
    }

    /// The remaining milliseconds of a trigger; negative if there is none.
    async fn time_to_live(&self, key: &str) -> i64 {
        let slot = self.them.slot_of(key, 0).await;
        let owner = self.them.owner_of(slot, 0).await.unwrap();
        self.them.nodes[owner].ask(&format!("PTTL {key}")).await
    }

    /// Waits until all jobs have ended; then the books balance.
    async fn all_ended(&self) {
        for kind in &self.kinds {
            eventually("all ended", async || {
                let stats = self.client.stats(kind).await.ok()?;
                (stats.pending + stats.leased + stats.successors == 0).then_some(())
            })
            .await;
            let stats = self.client.stats(kind).await.unwrap();
            assert!(stats.is_balanced(), "{kind}: {stats:?}");
        }
    }
}

/// Schedules rounds of jobs until events start all jobs of a round.
async fn fire_by_events(field: &Field, runs: &mut Runs, name: &str) {
    let mut round = 0;
    eventually("all by events", async || {
        round += 1;
        let count = field.schedule(&format!("{name}-{round}-"), 4, 700).await;
        let jobs = runs.take(count).await;
        let is_event = |job: &&keyfall::Job| job.source() == Source::Event;
        (jobs.iter().filter(is_event).count() == count).then_some(())
    })
    .await;
}

#[tokio::test]
async fn faults_of_a_cluster_are_reported_with_the_remedy() {
    let them = Clustered::start().await;
    let node = &them.nodes[0];
    for (url, kind, part) in [
        (
            format!("redis://127.0.0.1:{}", node.port),
            ErrorKind::Incompatible,
            "write redis+cluster://",
        ),
        (
            "redis+cluster://127.0.0.1:1".to_owned(),
            ErrorKind::Unavailable,
            "127.0.0.1:1",
        ),
        (
            format!("{}/1", them.url()),
            ErrorKind::InvalidSetting,
            "only database 0",
        ),
    ] {
        let error = Client::connect(&url).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(part), "{error}");
    }
    // Nodes that do not answer do no harm, at any place in the URL.
    let some_away = them.url().replace("//", "//127.0.0.1:1,");
    Client::connect(&some_away).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unsupported_features_are_refused_on_a_cluster() {
    let field = Field::new("cluster-refuses").await;
    let pattern = format!("{}:{{id}}", field.kinds[0]);
    let (log, _runs) = recorder();
    let adopts = Router::new().route(&pattern, log.done().adopt(MissingKey::Run));
    let error = field.serve(adopts).ended().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible);
    assert!(error.to_string().contains("use a single Redis"), "{error}");
    let error = field.client.functions().install().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible);
    assert!(error.to_string().contains("use a single Redis"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_are_checked_and_mended_on_each_node() {
    let field = Field::new("cluster-settings").await;
    for node in &field.them.nodes {
        let _: () = node.ask("CONFIG SET notify-keyspace-events K$").await;
    }
    let (log, _runs) = recorder();
    let worker = field.serve(field.routes(|| log.done()));
    worker.ready().await;
    for node in &field.them.nodes {
        eventually("the flags are merged", async || {
            let (_, flags): (String, String) = node.ask("CONFIG GET notify-keyspace-events").await;
            let are_set = ["$", "K", "E", "x"].iter().all(|flag| flags.contains(flag));
            are_set.then_some(())
        })
        .await;
    }
    // The doctor names the node.
    let node = &field.them.nodes[2];
    let _: () = node.ask("CONFIG SET timeout 100").await;
    let diagnosis = field
        .client
        .diagnose()
        .only(["client-timeout"])
        .await
        .unwrap();
    let finding = &diagnosis.findings[0];
    assert!(finding.found.contains("timeout 100"), "{finding}");
    let diagnosis = field.client.diagnose().await.unwrap();
    let errors = diagnosis.findings.iter();
    let errors: Vec<_> = errors.filter(|it| it.severity == Severity::Error).collect();
    assert!(errors.is_empty(), "{errors:?}");
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_live_on_all_nodes_and_fire_by_events() {
    let field = Field::new("cluster-jobs").await;
    let (client, kind) = (&field.client, &field.kinds[1]);
    let (log, mut runs) = recorder();
    let worker = field.serve(field.routes(|| log.done()));
    worker.ready().await;
    fire_by_events(&field, &mut runs, "fire").await;

    // Each operation works on some kind, and the triggers follow.
    let key = format!("{kind}:moved");
    let trigger = async || field.time_to_live(&key).await;
    assert!(client.schedule(&key, "1").after(HOUR).await.unwrap().armed);
    assert!(trigger().await > 3_000_000);
    client.reschedule(&key).after(2 * HOUR).await.unwrap();
    assert!(trigger().await > 6_000_000);
    client.cancel(&key).await.unwrap();
    assert_eq!(trigger().await, -2);
    client.schedule(&key, "2").after(HOUR).await.unwrap();
    client.fire_now(&key).await.unwrap();
    assert_eq!(ids(&runs.take(1).await), ["moved"]);
    assert_eq!(trigger().await, -2);
    worker.stop().await;
    runs.assert_no_more();
    field.all_ended().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_successor_has_a_trigger_after_any_end_of_its_run() {
    let field = Field::new("cluster-follows").await;
    let (client, kind) = (&field.client, &field.kinds[0]);
    let (log, mut runs) = recorder();
    let gate = Gate::closed();
    let ends = ["done", "fails", "dies", "cancelled"];
    let handler = {
        let gate = gate.clone();
        move |job: keyfall::Job| {
            let gate = gate.clone();
            log.note(&job);
            async move {
                gate.passed().await;
                match job.key().id() {
                    "fails" => Outcome::retry_after(ms(1), "not yet"),
                    "dies" => Outcome::bury("no"),
                    _ => Outcome::Done,
                }
            }
        }
    };
    let worker = field.serve(field.routes(|| handler.clone()));
    worker.ready().await;
    let key = |id: &str| format!("{kind}:{id}");
    for id in ends {
        client.schedule(key(id), "1").await.unwrap();
    }
    runs.take(ends.len()).await;
    client.cancel(key("cancelled")).await.unwrap();
    for id in ends {
        client.schedule(key(id), "2").after(HOUR).await.unwrap();
        assert_eq!(field.time_to_live(&key(id)).await, -2, "{id}");
    }
    gate.open();
    for id in ends {
        eventually("it is armed", async || {
            let left = field.time_to_live(&key(id)).await;
            (left > 3_000_000).then_some(())
        })
        .await;
    }
    worker.stop().await;
    runs.assert_no_more();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_value_in_place_of_a_trigger_is_left_alone() {
    let field = Field::new("cluster-foreign").await;
    let key = format!("{}:taken", field.kinds[0]);
    let slot = field.them.slot_of(&key, 0).await;
    let owner = field.them.owner_of(slot, 0).await.unwrap();
    let node = &field.them.nodes[owner];
    let _: () = node.ask(&format!("SET {key} theirs")).await;
    let placed = field
        .client
        .schedule(&key, "")
        .after(ms(500))
        .await
        .unwrap();
    assert!(!placed.armed);
    let (log, mut runs) = recorder();
    let worker = field.serve(field.routes(|| log.done()));
    assert_eq!(ids(&runs.take(1).await), ["taken"]);
    worker.stop().await;
    assert_eq!(node.ask::<String>(&format!("GET {key}")).await, "theirs");
    field.all_ended().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retries_dead_letters_and_pauses_work_as_on_a_single_redis() {
    let field = Field::new("cluster-ends").await;
    let client = &field.client;
    let (log, mut runs) = recorder();
    let fails = || {
        log.then(|job| match job.attempt() {
            1 => Outcome::retry_after(ms(300), "not yet"),
            _ => Outcome::bury("no"),
        })
    };
    let worker = field.serve(field.routes(fails));
    worker.ready().await;
    let count = field.schedule("dies", 2, 200).await;
    runs.take(2 * count).await;
    for kind in &field.kinds {
        eventually("dead", async || {
            let stats = client.stats(kind).await.unwrap();
            (stats.dead == 2).then_some(())
        })
        .await;
        let whole = format!("{kind}:");
        client.prefix(&whole).pause().await.unwrap();
        client.requeue(format!("{kind}:dies0")).await.unwrap();
        let paused = client.paused().await.unwrap();
        assert!(format!("{paused:?}").contains(kind.as_str()));
    }
    for kind in &field.kinds {
        let stats = client.stats(kind).await.unwrap();
        assert_eq!((stats.pending, stats.leased), (1, 0), "{kind}");
        client.prefix(&format!("{kind}:")).resume().await.unwrap();
    }
    runs.take(2 * field.kinds.len()).await;
    worker.stop().await;
    field.all_ended().await;
}

/// Schedules jobs of all kinds until told to stop; returns the acknowledged ones.
fn keep_scheduling(field: &Field, stop: &Gate) -> tokio::task::JoinHandle<Vec<String>> {
    let (client, kinds, stop) = (field.client.clone(), field.kinds.clone(), stop.clone());
    tokio::spawn(async move {
        let mut accepted = Vec::new();
        let passed = stop.passed();
        tokio::pin!(passed);
        for number in 0_usize.. {
            let key = format!("{}:n{number}", kinds[number % kinds.len()]);
            let after = ms((number as u64 * 13) % 1500);
            match client.schedule(&key, "").after(after).await {
                Ok(_) => accepted.push(key),
                Err(error) => assert!(error.is_retryable(), "{error:?}"),
            }
            if tokio::time::timeout(ms(10), &mut passed).await.is_ok() {
                break;
            }
        }
        accepted
    })
}

/// Takes runs until each of these has run.
async fn all_run(runs: &mut Runs, seen: &mut HashSet<String>, keys: &[String]) {
    while !keys.iter().all(|key| seen.contains(key)) {
        seen.insert(runs.next().await.key().to_string());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn moving_slots_are_followed_without_a_loss() {
    let field = Field::new("cluster-slots").await;
    let (log, mut runs) = recorder();
    let worker = field.serve(field.routes(|| log.done()));
    worker.ready().await;
    let gate = Gate::closed();
    let scheduling = keep_scheduling(&field, &gate);
    let mut seen = HashSet::new();
    let slot = field.them.slot_of(&ledger_of(&field.kinds[0]), 0).await;
    // The slots move there, further, and back.
    for (from, to) in [(0, 1), (1, 2), (2, 0)] {
        for _ in 0..20 {
            seen.insert(runs.next().await.key().to_string());
        }
        field.them.migrate(slot, from, to).await;
        assert_eq!(field.them.owner_of(slot, to).await, Some(to));
    }
    gate.open();
    let accepted = scheduling.await.unwrap();
    all_run(&mut runs, &mut seen, &accepted).await;
    fire_by_events(&field, &mut runs, "after").await;
    worker.stop().await;
    field.all_ended().await;
    let done: u64 = {
        let mut done = 0;
        for kind in &field.kinds {
            done += field.client.stats(kind).await.unwrap().done;
        }
        done
    };
    assert!(done >= accepted.len() as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requested_fail_overs_are_followed() {
    let field = Field::new("cluster-handover").await;
    let (log, mut runs) = recorder();
    let worker = field.serve(field.routes(|| log.done()));
    worker.ready().await;
    let gate = Gate::closed();
    let scheduling = keep_scheduling(&field, &gate);
    let mut seen = HashSet::new();
    let slot = field.them.slot_of(&ledger_of(&field.kinds[0]), 0).await;
    for next in [3, 0] {
        field.them.fail_over_to(next, slot).await;
        field.them.is_well().await;
        for _ in 0..30 {
            seen.insert(runs.next().await.key().to_string());
        }
    }
    gate.open();
    let accepted = scheduling.await.unwrap();
    all_run(&mut runs, &mut seen, &accepted).await;
    fire_by_events(&field, &mut runs, "after").await;
    worker.stop().await;
    field.all_ended().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_continue_when_a_primary_is_killed_or_hangs() {
    let mut field = Field::new("cluster-killed").await;
    let (log, mut runs) = recorder();
    let worker = field.serve(field.routes(|| log.done()));
    worker.ready().await;
    let slots = [
        field.them.slot_of(&ledger_of(&field.kinds[0]), 0).await,
        field.them.slot_of(&ledger_of(&field.kinds[1]), 0).await,
    ];
    // Writes on the replica are kept: the test waits for it, since all other writes are lost.
    let count = field.schedule("early", 5, 3_000).await;
    let mark = format!("{}mark", ledger_of(&field.kinds[0]));
    is_copied(&field.them.nodes[0], &mark).await;
    field.them.nodes[0].server.kill_server().await.unwrap();
    eventually("a replica takes over", async || {
        (field.them.owner_of(slots[0], 1).await == Some(3)).then_some(())
    })
    .await;
    let mut seen = HashSet::new();
    while seen.len() < count {
        seen.insert(runs.next().await.key().to_string());
    }
    fire_by_events(&field, &mut runs, "killed").await;

    // It comes back as a replica.
    field.them.nodes[0].server.restart().await.unwrap();
    field.them.is_well().await;
    fire_by_events(&field, &mut runs, "back").await;

    // A stopped node keeps its connections, and does not answer.
    signal_to(&field.them.nodes[1].server, Signal::STOP);
    eventually("a replica takes over", async || {
        (field.them.owner_of(slots[1], 2).await == Some(4)).then_some(())
    })
    .await;
    fire_by_events(&field, &mut runs, "hung").await;
    signal_to(&field.them.nodes[1].server, Signal::CONT);
    field.them.is_well().await;
    fire_by_events(&field, &mut runs, "woken").await;
    worker.stop().await;
    field.all_ended().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hanging_node_does_not_delay_kinds_on_other_nodes() {
    let field = Field::new("cluster-hangs").await;
    let (log, mut runs) = recorder();
    let worker = field.serve(field.routes(|| log.done()));
    worker.ready().await;
    fire_by_events(&field, &mut runs, "before").await;
    // No replica takes over: writes that the returned primary acknowledges must not be lost.
    let forbid = "CONFIG SET cluster-replica-no-failover yes";
    let _: () = field.them.nodes[3].ask(forbid).await;
    signal_to(&field.them.nodes[0].server, Signal::STOP);
    for number in 0..20 {
        let key = format!("{}:beside{number}", field.kinds[2]);
        field
            .client
            .schedule(&key, "")
            .after(ms(200))
            .await
            .unwrap();
        assert_eq!(runs.next().await.key().as_str(), key);
    }
    signal_to(&field.them.nodes[0].server, Signal::CONT);
    field.them.is_well().await;
    fire_by_events(&field, &mut runs, "after").await;
    worker.stop().await;
    field.all_ended().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn added_and_removed_nodes_are_noticed() {
    let mut field = Field::new("cluster-grows").await;
    let (log, mut runs) = recorder();
    let worker = field.serve(field.routes(|| log.done()));
    worker.ready().await;
    fire_by_events(&field, &mut runs, "before").await;
    let slot = field.them.slot_of(&ledger_of(&field.kinds[0]), 0).await;
    let new = node(|port| vec!["--port".into(), port.to_string()]).await;
    new.meet(&field.them.nodes[0]).await.unwrap();
    field.them.nodes.push(new);
    field.them.all_know(7).await;
    field.them.is_well().await;
    // The triggers with these names are in the moving slots.
    let mut slots = vec![slot];
    for number in 0..4 {
        let key = format!("{}:there{number}", field.kinds[0]);
        slots.push(field.them.slot_of(&key, 0).await);
    }
    for slot in &slots {
        let from = field.them.owner_of(*slot, 0).await.unwrap();
        field.them.migrate(*slot, from, 6).await;
    }
    eventually("by events, on the new node", async || {
        for number in 0..4 {
            let key = format!("{}:there{number}", field.kinds[0]);
            let call = field.client.schedule(&key, "").after(ms(300));
            call.await.unwrap();
        }
        let jobs = runs.take(4).await;
        let is_event = |job: &keyfall::Job| job.source() == Source::Event;
        jobs.iter().all(is_event).then_some(())
    })
    .await;

    // The slots go back, and the node leaves.
    for slot in &slots {
        field.them.migrate(*slot, 6, 2).await;
    }
    let gone = field.them.nodes.pop().unwrap();
    for node in &field.them.nodes {
        eventually("it is forgotten", async || {
            let forget = format!("CLUSTER FORGET {}", gone.id);
            node.try_ask::<()>(&forget).await.ok()
        })
        .await;
    }
    drop(gone);
    fire_by_events(&field, &mut runs, "after").await;
    worker.stop().await;
    field.all_ended().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shards_lie_on_all_primaries_and_can_be_changed_under_load() {
    let field = Field::new("cluster-shards").await;
    let (recorder, mut runs) = recorder();
    let worker = field.serve(field.routes(|| recorder.done()));
    worker.ready().await;
    fire_by_events(&field, &mut runs, "one").await;
    let kind = &field.kinds[0];
    let waiting: Vec<String> = (0..60)
        .map(|number| format!("{kind}:later{number}"))
        .collect();
    for key in &waiting {
        field.client.schedule(key, "").after(HOUR).await.unwrap();
    }
    for shards in [6, 3] {
        let resharded = field.client.reshard(kind, shards).await.unwrap();
        assert_eq!(resharded.to, shards);
        fire_by_events(&field, &mut runs, &format!("in-{shards}")).await;
        for key in &waiting {
            assert!(field.client.get(key).await.unwrap().is_some(), "{key}");
        }
        // Each primary has jobs of the kind.
        let mut primaries = HashSet::new();
        for node in &field.them.nodes[..3] {
            let ledgers: Vec<String> = node.ask(&format!("KEYS keyfall:{{{kind}/*}}:due")).await;
            if !ledgers.is_empty() {
                primaries.insert(node.id.clone());
            }
        }
        assert_eq!(primaries.len(), 3, "{shards} shards");
    }
    for key in &waiting {
        field.client.fire_now(key).await.unwrap();
    }
    runs.take(waiting.len()).await;
    field.all_ended().await;
    worker.stop().await;
}

#[tokio::test]
async fn the_primaries_of_a_cluster_are_listed_with_their_shards() {
    let field = Field::new("cluster-listed").await;
    let kind = field.kinds[0].clone();
    let key = format!("{kind}:1");
    field.client.schedule(&key, "").after(HOUR).await.unwrap();
    field.client.reshard(&kind, 8).await.unwrap();
    let servers = field.client.servers().await.unwrap();
    assert_eq!(servers.len(), field.kinds.len(), "{servers:#?}");
    let kinds = [keyfall::Kind::parse(&kind).unwrap()];
    let places = field.client.shard_places(&kinds).await.unwrap().shards;
    assert_eq!(places.len(), 8);
    for server in &servers {
        assert_eq!(server.topology, keyfall::Topology::Cluster);
        assert!(
            server.version.is_some() && server.away.is_none(),
            "{server:?}"
        );
        // The shards of a kind are spread evenly.
        let here = places.iter().filter(|it| it.server == server.address);
        assert!((1..=4).contains(&here.count()), "{places:#?}");
        assert!(server.ledgers > 0, "{server:?}");
    }
    let pending: u64 = places
        .iter()
        .map(|it| it.stats.as_ref().unwrap().pending)
        .sum();
    assert_eq!(pending, 1);
    field.client.cancel(&key).await.unwrap();
}
