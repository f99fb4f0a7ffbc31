//! Several independent servers share the jobs.

use std::collections::BTreeSet;
use std::time::Duration;

use keyfall::doctor::Severity;
use keyfall::embedded::Embedded;
use keyfall::{
    Cancelled, Client, ErrorKind, JobState, NewJob, Placed, Rescheduled, Router, Tidings, Unseen,
    server_of,
};
use keyfall_testing::process::TalkingProcess;
use keyfall_testing::server::process_of;
use rustix::process::{Signal, kill_process};
use serde_json::Value;

use super::nodes::Node;
use super::sentinels::Sentineled;
use crate::outages::durable_redis;
use crate::runs::{Runs, eventually, ids, recorder};
use crate::shell::{Ran, keyfall};
use crate::site::{HOUR, Running, command, connect, ms};

/// Two servers that have every write on disk before they answer, and a client of both.
pub(super) struct Pair {
    pub(super) servers: [Embedded; 2],
    pub(super) client: Client,
    pub(super) kind: String,
}

fn both(servers: &[Embedded; 2]) -> String {
    format!("{} {}", servers[0].url(), servers[1].url())
}

impl Pair {
    /// The same, with a kind that has a shard on each server.
    pub(super) async fn start(app: &str) -> Self {
        let servers = [durable_redis().await, durable_redis().await];
        let client = Client::connect(&both(&servers)).await.unwrap();
        let kind = format!("{app}:it:job");
        // The kind has to exist.
        let key = format!("{kind}:first");
        client.schedule(&key, "").after(HOUR).await.unwrap();
        client.reshard(&kind, 2).await.unwrap();
        client.cancel(&key).await.unwrap();
        Pair {
            servers,
            client,
            kind,
        }
    }

    pub(super) fn url(&self) -> String {
        both(&self.servers)
    }

    pub(super) fn key(&self, id: impl std::fmt::Display) -> String {
        format!("{}:{id}", self.kind)
    }

    pub(super) fn pattern(&self) -> String {
        format!("{}:{{id}}", self.kind)
    }

    /// Sends one of the servers a signal, such as one that stops it.
    fn signal(&self, server: usize, signal: Signal) {
        kill_process(process_of(&self.servers[server]), signal).unwrap();
    }

    /// A client with a short timeout, since some calls have to fail.
    pub(super) async fn impatient(&self) -> Client {
        let client = Client::builder(&self.url()).call_timeout(ms(4000));
        client.connect().await.unwrap()
    }

    /// The server of a job.
    fn server_of(&self, id: &str) -> usize {
        let shard = keyfall::shard_of(id, 2);
        usize::from(server_of(&self.kind, shard, 2))
    }

    /// This number of ids whose jobs are on this server.
    pub(super) fn ids_on(&self, server: usize, name: &str, count: usize) -> Vec<String> {
        let ids = (0..).map(|number| format!("{name}{number}"));
        ids.filter(|id| self.server_of(id) == server)
            .take(count)
            .collect()
    }

    pub(super) async fn schedule(&self, ids: &[String], after: Duration) {
        for id in ids {
            let call = self.client.schedule(self.key(id), "").after(after);
            call.await.unwrap();
        }
    }

    pub(super) fn serve(&self, router: Router) -> Running {
        Running::start(keyfall::Worker::new(self.client.clone(), router))
    }

    pub(super) async fn assert_balanced(&self) {
        let stats = self.client.stats(&self.kind).await.unwrap();
        assert!(stats.is_balanced(), "{stats:?}");
        assert!(self.client.audit(&self.kind).await.unwrap().is_clean());
    }
}

fn set(ids: &[String]) -> BTreeSet<String> {
    ids.iter().cloned().collect()
}

/// The runs of jobs, which may run more than once.
struct Seen {
    runs: Runs,
    ids: BTreeSet<String>,
}

impl Seen {
    fn of(runs: Runs) -> Self {
        Seen {
            runs,
            ids: BTreeSet::new(),
        }
    }

    /// Waits until all these jobs have run.
    async fn all(&mut self, ids: &[String]) {
        while !set(ids).is_subset(&self.ids) {
            let job = self.runs.next().await;
            self.ids.insert(job.key().id().to_owned());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_are_spread_over_the_servers_and_every_call_finds_them() {
    let pair = Pair::start("several-calls").await;
    let client = &pair.client;
    let kind = &pair.kind;
    let keys: Vec<String> = (0..40).map(|id| pair.key(format!("{id:02}"))).collect();
    let jobs = keys.iter().map(|key| NewJob::new(key, &1).after(HOUR));
    for answer in client.schedule_many(jobs).await {
        assert_eq!(answer.unwrap().unwrap().placed, Placed::Created);
    }
    for shards in [2, 4, 3, 1] {
        client.reshard(kind, shards).await.unwrap();
        for (place, server) in pair.servers.iter().enumerate() {
            let mut redis = connect(&server.url()).await;
            let names: Vec<String> = command(&mut redis, &["KEYS", "keyfall:{*}:calls"]).await;
            for name in names {
                let shard = name.split_once('/').unwrap().1;
                let shard = shard.split(['.', '}']).next().unwrap();
                let home = server_of(kind, shard.parse().unwrap(), 2);
                assert_eq!(usize::from(home), place, "{name}");
            }
            // Leftover jobs are removed when no caller waits any more.
            let triggers = eventually("each trigger is where its ledger is", async || {
                let triggers: Vec<String> = command(&mut redis, &["KEYS", &pair.key("*")]).await;
                let is_home = |trigger: &String| {
                    let id = trigger.rsplit_once(':').unwrap().1;
                    let home = server_of(kind, keyfall::shard_of(id, shards), 2);
                    usize::from(home) == place
                };
                triggers.iter().all(is_home).then_some(triggers.len())
            });
            let triggers = triggers.await;
            assert!(triggers > 0 || shards == 1, "{shards}");
        }
        let other = Client::connect(&pair.url()).await.unwrap();
        for client in [client, &other] {
            let page = client.list(kind, JobState::Pending).await.unwrap();
            let listed: Vec<String> = page.jobs.iter().map(|job| job.key().to_string()).collect();
            assert_eq!(set(&listed), set(&keys), "{shards}");
            assert_eq!(client.count(kind).await.unwrap().pending, 40);
            let kinds = client.kinds().await.unwrap();
            assert_eq!(kinds.len(), 1);
            assert!(client.audit(kind).await.unwrap().is_clean());
        }
        for key in &keys {
            assert!(other.get(key).await.unwrap().is_some(), "{key}");
            let moved = other.reschedule(key).after(HOUR).await.unwrap();
            assert!(matches!(moved, Rescheduled::Moved(_)), "{moved:?}");
        }
    }
    client.reshard(kind, 4).await.unwrap();
    client.prefix(kind).pause().await.unwrap();
    assert_eq!(client.paused().await.unwrap().kinds.len(), 1);
    let (log, mut runs) = recorder();
    let worker = pair.serve(Router::new().route(&pair.pattern(), log.done()));
    worker.ready().await;
    client.prefix(kind).fire_now().await.unwrap();
    assert_eq!(client.cancel(&keys[0]).await.unwrap(), Cancelled::Cancelled);
    client.prefix(kind).resume().await.unwrap();
    let run = runs.take(39).await;
    assert_eq!(ids(&run).len(), 39);
    assert_eq!(client.instances().await.unwrap().len(), 1);
    worker.stop().await;
    runs.assert_no_more();
    pair.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kind_is_spread_over_the_servers_while_work_goes_on() {
    let pair = Pair::start("several-reshard").await;
    pair.client.reshard(&pair.kind, 1).await.unwrap();
    let (log, runs) = recorder();
    let mut seen = Seen::of(runs);
    let worker = pair.serve(Router::new().route(&pair.pattern(), log.done()));
    worker.ready().await;
    let all: Vec<String> = (0..200).map(|id| id.to_string()).collect();
    let produce = async {
        for id in &all {
            let number: u64 = id.parse().unwrap();
            let delay = ms(200 + number % 7 * 100);
            let call = pair.client.schedule(pair.key(id), "").after(delay);
            call.await.unwrap();
        }
    };
    let reshard = async {
        for shards in [4, 2, 3] {
            pair.client.reshard(&pair.kind, shards).await.unwrap();
        }
    };
    tokio::join!(produce, reshard);
    seen.all(&all).await;
    let stats = eventually("all are settled", async || {
        let stats = pair.client.stats(&pair.kind).await.unwrap();
        (stats.pending + stats.leased == 0).then_some(stats)
    });
    assert_eq!(stats.await.done, 200);
    worker.stop().await;
    pair.assert_balanced().await;
}

#[tokio::test]
async fn the_order_and_the_number_of_the_servers_are_kept() {
    let pair = Pair::start("several-order").await;
    let [one, two] = [0, 1].map(|it| pair.servers[it].url());
    let third = Node::start(None).await;
    let refused = async |url: String, part: &str| {
        let error = Client::connect(&url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Incompatible, "{url}: {error}");
        assert!(error.to_string().contains(part), "{url}: {error}");
    };
    refused(format!("{two} {one}"), "names it as server 1 of 2").await;
    refused(format!("{one} {one}"), "names it as server 2 of 2").await;
    let three = format!("{one} {two} {}", third.server.url());
    for _ in 0..2 {
        refused(three.clone(), "names it as server").await;
    }
    Client::connect(&third.server.url()).await.unwrap();
    refused(one.clone(), "names it as the only server").await;
    // A server with jobs is not accepted as a further server.
    let used = Node::start(None).await;
    let alone = Client::connect(&used.server.url()).await.unwrap();
    alone.schedule("several-used:it:job:1", "").await.unwrap();
    let new = Node::start(None).await;
    let url = format!("{} {}", used.server.url(), new.server.url());
    refused(
        url,
        "has jobs of 1 kind and was used as the only server so far",
    )
    .await;
    // Clusters have servers of their own.
    let error = Client::connect("redis://a redis+cluster://b:1").await;
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidSetting, "{error}");
    // Another namespace has no jobs there.
    let other = Client::builder(&format!("{two} {one}")).namespace("other");
    other.connect().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_takes_only_its_own_jobs_with_it() {
    let mut pair = Pair::start("several-killed").await;
    let (log, runs) = recorder();
    let mut seen = Seen::of(runs);
    let worker = pair.serve(Router::new().route(&pair.pattern(), log.done()));
    worker.ready().await;
    // Due while the server is away.
    let of_dead = pair.ids_on(1, "dead", 10);
    pair.schedule(&of_dead, ms(1500)).await;
    pair.servers[1].kill_server().await.unwrap();
    let before = pair.ids_on(0, "before", 10);
    pair.schedule(&before, ms(300)).await;
    seen.all(&before).await;
    assert!(worker.is_ready());

    let impatient = pair.impatient().await;
    let key = pair.key(&pair.ids_on(1, "refused", 1)[0]);
    let address = pair.servers[1].url().replace("redis+unix://", "");
    let (scheduled, cancelled, found) = tokio::join!(
        async { impatient.schedule(&key, "").await.map(drop) },
        async { impatient.cancel(&key).await.map(drop) },
        async { impatient.get(&key).await.map(drop) },
    );
    for answer in [scheduled, cancelled, found] {
        let error = answer.unwrap_err();
        assert!(error.is_retryable(), "{error}");
        assert!(error.to_string().contains(&address), "{error}");
    }

    // A new kind, with its only shard on a server that answers.
    let apps = (0..).map(|number| format!("several-late{number}:it:job"));
    let late_kind = { apps }.find(|kind| server_of(kind, 0, 2) == 0).unwrap();
    let (log, mut late_runs) = recorder();
    let route = format!("{late_kind}:{{id}}");
    let late = pair.serve(Router::new().route(&route, log.done()));
    late.ready().await;
    pair.client
        .schedule(format!("{late_kind}:1"), "")
        .await
        .unwrap();
    late_runs.next().await;

    pair.servers[1].restart().await.unwrap();
    seen.all(&of_dead).await;
    eventually("jobs are taken again", async || {
        pair.client.schedule(&key, "").await.ok()
    })
    .await;
    eventually("it has run", async || {
        let stats = pair.client.stats(&pair.kind).await.ok()?;
        (stats.pending + stats.leased == 0 && stats.done == 21).then_some(())
    })
    .await;
    late.stop().await;
    worker.stop().await;
    pair.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hanging_server_delays_only_its_own_jobs() {
    let pair = Pair::start("several-hung").await;
    let (log, runs) = recorder();
    let mut seen = Seen::of(runs);
    // So few slots that none may be kept for the other server.
    let worker = keyfall::Worker::new(
        pair.client.clone(),
        Router::new().route(&pair.pattern(), log.done()),
    );
    let worker = Running::start(worker.concurrency(2));
    worker.ready().await;
    let of_hung = pair.ids_on(1, "hung", 20);
    pair.schedule(&of_hung, ms(700)).await;
    pair.signal(1, Signal::STOP);
    let others = pair.ids_on(0, "other", 20);
    pair.schedule(&others, ms(300)).await;
    seen.all(&others).await;
    let later = pair.ids_on(0, "later", 20);
    pair.schedule(&later, ms(300)).await;
    seen.all(&later).await;
    pair.signal(1, Signal::CONT);
    seen.all(&of_hung).await;
    eventually("all are settled", async || {
        let stats = pair.client.stats(&pair.kind).await.ok()?;
        (stats.pending + stats.leased == 0).then_some(())
    })
    .await;
    worker.stop().await;
    pair.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_begins_while_a_server_is_away() {
    let mut pair = Pair::start("several-begin").await;
    let of_dead = pair.ids_on(0, "dead", 5);
    pair.schedule(&of_dead, ms(100)).await;
    pair.servers[0].kill_server().await.unwrap();
    // The first shard is away, or the second: both are found.
    let client = Client::connect(&pair.url()).await.unwrap();
    let (log, runs) = recorder();
    let mut seen = Seen::of(runs);
    let wildcard = pair.pattern().replace(":it:", ":*:");
    let worker = Running::start(keyfall::Worker::new(
        client.clone(),
        Router::new().route(&wildcard, log.done()),
    ));
    worker.ready().await;
    let others = pair.ids_on(1, "other", 5);
    for id in &others {
        client.schedule(pair.key(id), "").await.unwrap();
    }
    seen.all(&others).await;
    pair.servers[0].restart().await.unwrap();
    seen.all(&of_dead).await;
    eventually("all are settled", async || {
        let stats = client.stats(&pair.kind).await.ok()?;
        (stats.pending + stats.leased == 0).then_some(())
    })
    .await;
    worker.stop().await;
    pair.assert_balanced().await;

    for server in &mut pair.servers {
        server.kill_server().await.unwrap();
    }
    let error = Client::connect(&pair.url()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_several_servers_can_be_behind_sentinels() {
    let them = Sentineled::start().await;
    for node in &them.nodes {
        let mut redis = connect(&node.server.url()).await;
        let acl = [
            "ACL", "SETUSER", "jobs", "on", ">geheim", "~*", "&*", "+@all",
        ];
        let _: String = command(&mut redis, &acl).await;
    }
    let alone = Node::start(None).await;
    let sentineled = them.url().replace("//", "//jobs:geheim@");
    let url = format!("{} {sentineled}", alone.server.url());
    let wrong = url.replace("geheim", "falsch");
    let error = Client::connect(&wrong).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let client = Client::connect(&url).await.unwrap();
    let kind = "several-sentinel:it:job";
    let key = |id: u64| format!("{kind}:{id}");
    client.schedule(key(0), "").after(HOUR).await.unwrap();
    client.reshard(kind, 4).await.unwrap();
    let (log, runs) = recorder();
    let mut seen = Seen::of(runs);
    let worker = Running::start(keyfall::Worker::new(
        client.clone(),
        Router::new().route(&format!("{kind}:{{id}}"), log.done()),
    ));
    worker.ready().await;
    let schedule = async |from: u64| {
        let mut ids = Vec::new();
        for id in from..from + 20 {
            eventually("scheduled", async || {
                client.schedule(key(id), "").after(ms(500)).await.ok()
            })
            .await;
            ids.push(id.to_string());
        }
        ids
    };
    let first = schedule(1).await;
    seen.all(&first).await;
    let old = them.primary().await;
    them.fail_over().await;
    them.fails_over_from(old).await;
    let second = schedule(100).await;
    seen.all(&second).await;
    worker.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_name_the_servers_that_could_not_be_read() {
    let mut pair = Pair::start("several-unseen").await;
    for server in [0, 1] {
        let ids = pair.ids_on(server, "job", 10);
        pair.schedule(&ids, HOUR).await;
    }
    let mut serve = std::process::Command::new(env!("CARGO_BIN_EXE_keyfall"));
    serve.args([
        "serve",
        "--http-listen",
        "127.0.0.1:0",
        "--redis-url",
        &pair.url(),
    ]);
    serve.args(["--pull", "nobody:has:these:*"]);
    let daemon = TalkingProcess::spawn(serve);
    let api = daemon.line();
    let api = api.strip_prefix("listening on ").unwrap();
    let url = pair.url();
    let run = async |through_api: bool, words: &str| {
        let words: Vec<&str> = words.split(' ').collect();
        let mut command = keyfall(&words);
        match through_api {
            true => command.env("KEYFALL_API", api),
            false => command.env("KEYFALL_REDIS_URL", &url),
        };
        Ran::of(command).await
    };
    let kind = pair.kind.clone();
    for through_api in [false, true] {
        let ran = run(through_api, &format!("count {kind}: --json")).await;
        let counted = ran.value();
        assert_eq!(counted["pending"], 20);
        assert_eq!(counted.get("unseen"), None, "all was seen");
    }
    let address = pair.servers[1].url().replace("redis+unix://", "");
    let shard = (0..2)
        .find(|shard| server_of(&kind, *shard, 2) == 1)
        .unwrap();
    pair.servers[1].kill_server().await.unwrap();

    let client = pair.impatient().await;
    let is_told = |unseen: &[Unseen]| {
        let [one] = unseen else {
            panic!("one server is away: {unseen:?}")
        };
        assert_eq!(one.server, address);
        assert!(one.error.contains(&address), "{one:?}");
        let of_kind = one.shards.iter().filter(|(it, _)| it.as_str() == kind);
        assert!(of_kind.eq([&(kind.parse().unwrap(), shard)]), "{one:?}");
    };
    let counts = client.count(&kind).await.unwrap();
    assert_eq!(counts.pending, 10);
    is_told(&counts.unseen);
    let page = client.list(&kind, JobState::Pending).await.unwrap();
    assert_eq!(page.jobs.len(), 10);
    is_told(&page.unseen);
    let due = client.prefix(&format!("{kind}:")).upcoming(2 * HOUR).await;
    let due = due.unwrap();
    assert_eq!(due.spans.iter().sum::<u64>(), 10);
    is_told(&due.unseen);
    let stats = client.stats(&kind).await.unwrap();
    assert_eq!(stats.pending, 10);
    assert!(stats.is_balanced(), "{stats:?}");
    is_told(&stats.unseen);
    let audit = client.audit(&kind).await.unwrap();
    assert!(!audit.is_clean() && audit.stats.is_balanced(), "{audit:?}");
    is_told(&audit.unseen);
    let kinds = client.kinds().await.unwrap();
    assert_eq!(kinds.len(), 1);
    assert_eq!(kinds.unseen.len(), 1);
    let moved = client.prefix(&kind).postpone().after(2 * HOUR).await;
    let moved = moved.unwrap();
    assert_eq!((moved.matched, moved.done), (10, 10));
    is_told(&moved.unseen);
    let live = client.instances().await.unwrap();
    assert_eq!((live.len(), live.unseen.len()), (1, 1), "{live:?}");
    let unrouted = client.unrouted().await.unwrap();
    assert_eq!((unrouted.len(), unrouted[0].jobs), (1, 10), "{unrouted:?}");
    is_told(&unrouted.unseen);
    let mut tail = client.tail().last(1);
    let Tidings::Unseen(one) = tail.next().await.unwrap() else {
        panic!("it is told first")
    };
    assert_eq!(one.server, address);
    for failed in [
        client.prefix(&kind).pause().await,
        client.prefix(&kind).resume().await,
        client.prefix(&kind).keep_history(100).await,
    ] {
        let error = failed.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains(&address), "{error}");
        assert!(error.to_string().contains("done on the other servers"));
    }
    let error = client.reshard(&kind, 4).await.unwrap_err();
    assert!(
        error.is_retryable() && error.to_string().contains(&address),
        "{error}"
    );
    client.ping().await.unwrap();
    let diagnosis = client.diagnose().await.unwrap();
    let finding = |id| {
        diagnosis
            .findings
            .iter()
            .find(|it| it.check.id == id)
            .unwrap()
    };
    assert_eq!(finding("servers-there").severity, Severity::Error);
    assert!(finding("servers-there").found.contains(&address));
    assert_eq!(finding("server-version").severity, Severity::Ok);

    for through_api in [false, true] {
        let ran = run(through_api, "instances --json").await;
        assert_eq!(ran.code, 4, "{ran:?}");
        assert!(ran.err.contains(&format!("not seen: {address}")), "{ran:?}");
        let told: Value = serde_json::from_str(&ran.out).unwrap();
        assert_eq!(told["unseen"][0]["server"], address, "{ran:?}");
        for words in ["count", "list", "kinds", "audit"] {
            let ran = run(through_api, &format!("{words} {kind}: --json")).await;
            assert_eq!(ran.code, 4, "{words}: {ran:?}");
            assert!(ran.err.contains(&format!("not seen: {address}")), "{ran:?}");
            assert!(ran.err.contains(&format!("{kind}/{shard}")), "{ran:?}");
            let lines = ran
                .out
                .lines()
                .map(|line| serde_json::from_str::<Value>(line).unwrap());
            let lines: Vec<Value> = lines.collect();
            match words {
                "list" => assert_eq!(lines.len(), 10),
                _ => assert_eq!(lines[0]["unseen"][0]["server"], address, "{lines:?}"),
            }
        }
    }
    // A pause that one server did not hear of holds on the other one, and is logged.
    for words in ["pause", "resume"] {
        let ran = run(true, &format!("{words} {kind}: --yes")).await;
        assert_ne!(ran.code, 0, "{ran:?}");
    }
    // Fails if another test was first.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let ready = reqwest::get(format!("{api}/readyz")).await.unwrap();
    assert_eq!(ready.status().as_u16(), 204, "one of them suffices");
    let told = reqwest::get(format!("{api}/v1/actions")).await.unwrap();
    let told: Value = told.json().await.unwrap();
    for what in ["pause", "resume"] {
        let all = told["actions"].as_array().unwrap();
        let one = all.iter().find(|it| it["what"] == what);
        let note = one.and_then(|it| it["note"].as_str()).unwrap_or_default();
        assert!(note.starts_with("broken off"), "{what}: {told}");
    }

    pair.servers[1].restart().await.unwrap();
    let counts = eventually("all is seen again", async || {
        let counts = client.count(&kind).await.ok()?;
        counts.unseen.is_empty().then_some(counts)
    });
    assert_eq!(counts.await.pending, 20);
    pair.assert_balanced().await;
}

#[tokio::test]
async fn servers_and_shards_are_listed_although_a_server_is_away() {
    let mut pair = Pair::start("several-listed").await;
    let ids = pair.ids_on(1, "job", 3);
    pair.schedule(&ids, HOUR).await;
    let kind = keyfall::Kind::parse(&pair.kind).unwrap();
    let client = pair.impatient().await;
    let worker = Running::start(keyfall::Worker::new(
        client.clone(),
        Router::new().route(&pair.pattern(), recorder().0.done()),
    ));
    worker.ready().await;
    let home = |shard: u16| usize::from(server_of(&pair.kind, shard, 2));
    let look = async || {
        let servers = client.servers().await.unwrap();
        let places = client
            .shard_places(std::slice::from_ref(&kind))
            .await
            .unwrap();
        (servers, places)
    };
    let (servers, places) = eventually("the worker paces both ledgers", async || {
        let (servers, places) = look().await;
        let paced = servers.iter().filter(|it| !it.pacers.is_empty()).count();
        (paced == 2).then_some((servers, places))
    })
    .await;
    assert_eq!(servers.len(), 2);
    for (number, server) in servers.iter().enumerate() {
        assert_eq!((server.number, server.ledgers), (Some(number), 1));
        assert_eq!(server.topology, keyfall::Topology::Single);
        assert_eq!((server.pacers[0].paces, server.pacers[0].stands_by), (1, 0));
    }
    for place in &places.shards {
        let home = home(place.shard);
        assert_eq!(place.server, servers[home].address);
        let pending = if home == 1 { 3 } else { 0 };
        assert_eq!(place.stats.as_ref().unwrap().pending, pending);
        assert_eq!(
            place.pacer.as_ref(),
            Some(&servers[home].pacers[0].instance)
        );
    }
    let layouts = client.layouts().await.unwrap();
    let layout = layouts.kinds.iter().find(|it| it.kind == kind).unwrap();
    assert_eq!((layout.shards, layout.from), (2, None));

    pair.servers[1].kill_server().await.unwrap();
    let (servers, places) = look().await;
    assert_eq!(servers[0].away, None);
    assert!(servers[1].away.is_some() && servers[1].version.is_none());
    assert_eq!(servers[1].ledgers, 1);
    for place in &places.shards {
        assert_eq!(place.stats.is_none(), home(place.shard) == 1);
    }
    assert_eq!(places.unseen.len(), 1);
    pair.servers[1].restart().await.unwrap();
    worker.stop().await;
}
