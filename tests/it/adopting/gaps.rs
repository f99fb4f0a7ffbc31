//! Changes of keys while no worker listens.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use keyfall::embedded::Embedded;
use keyfall::{Handler, MissingKey, Router, Worker};
use keyfall_testing::proxies::FreezingProxy;
use redis::aio::MultiplexedConnection;

use super::Adopting;
use crate::runs::{Gate, Recorder, Runs, eventually, recorder};
use crate::site::{Running, Site, command, connect, patient, redis_time};

/// A replica does not wait for further replicas before it is served.
const AT_ONCE: [&str; 2] = ["--repl-diskless-sync-delay", "0"];

/// A worker on a server of its own, whose subscription can be cut.
async fn alone(app: &str, missing: MissingKey) -> (Embedded, Adopting) {
    let server = Embedded::options().args(AT_ONCE).start().await.unwrap();
    let site = Site::at(&server.url(), app).await;
    let it = Adopting::with(site, missing, |log| log.done().into_route()).await;
    (server, it)
}

impl Adopting {
    /// Runs commands whose announcements no worker hears: the subscriptions end at the same moment.
    async fn does_unheard(&self, commands: &[&str]) {
        let mut both = redis::pipe();
        both.atomic();
        both.cmd("CLIENT").arg("KILL").arg("TYPE").arg("pubsub");
        for command in commands {
            let mut words = command.split(' ');
            both.cmd(words.next().unwrap());
            both.arg(self.site.key(words.next().unwrap()));
            both.arg(words.collect::<Vec<_>>());
        }
        let _: redis::Value = both.query_async(&mut self.site.redis()).await.unwrap();
    }
}

#[tokio::test]
async fn keys_set_before_any_worker_listened_are_found() {
    let site = Site::new("adopt-before").await;
    for id in 0..2000 {
        let key = site.key(id);
        let () = site.command(&["SET", &key, "v", "EX", "3600"]).await;
    }
    let () = site
        .command(&["SET", &site.key("soon"), "v", "PX", "9000"])
        .await;
    let mut it = Adopting::at(site, |log| log.done().into_route()).await;
    let job = it.runs.next().await;
    assert_eq!((job.key().id(), &job.payload()[..]), ("soon", &b"v"[..]));
    eventually("all are found", async || {
        (it.site.stats().await.pending == 2000).then_some(())
    })
    .await;
    it.ends().await;
}

#[tokio::test]
async fn changes_during_a_gap_count() {
    let (_server, mut it) = alone("adopt-gap", MissingKey::Run).await;
    for id in ["postponed", "persisted", "overwritten", "deleted", "left"] {
        it.does(id, "SET v EX 6").await;
        it.becomes(id, Some(("v", 6))).await;
    }
    it.does_unheard(&[
        "EXPIRE postponed 3600",
        "PERSIST persisted",
        "SET overwritten w EX 3600",
        "DEL deleted",
        "SET created v EX 3600",
    ])
    .await;
    let mut ran: Vec<String> = Vec::new();
    for job in it.runs.take(2).await {
        ran.push(job.key().id().to_owned());
    }
    ran.sort_unstable();
    assert_eq!(ran, ["deleted", "left"], "nobody knows why it is missing");
    it.becomes("postponed", Some(("v", 3600))).await;
    it.becomes("persisted", None).await;
    it.becomes("overwritten", Some(("w", 3600))).await;
    it.becomes("created", Some(("v", 3600))).await;
    it.ends().await;
}

#[tokio::test]
async fn a_key_that_expires_while_a_worker_listens_is_not_missed() {
    let (_server, mut it) = alone("adopt-there", MissingKey::Cancel).await;
    for id in 0..20 {
        it.does(&id.to_string(), "SET v EX 900").await;
    }
    for id in 0..20 {
        it.expires(&id.to_string(), "v").await;
    }
    it.runs.take(20).await;
    assert_eq!(it.site.all_ended().await.cancelled, 0);
    it.ends().await;
}

#[tokio::test]
async fn a_later_worker_does_not_take_waiting_jobs_for_missing() {
    let site = Site::new("adopt-late").await;
    let gate = Gate::closed();
    let (log, runs) = recorder();
    let start = |site: &Site| {
        let route = log.behind(&gate).adopt(MissingKey::Cancel);
        let router = Router::new().route(&site.pattern(), route);
        Running::start(site.worker(router).concurrency(2))
    };
    let worker = start(&site);
    worker.ready().await;
    let mut it = Adopting { site, runs, worker };
    for id in 0..12 {
        it.does(&id.to_string(), "SET v EX 900").await;
    }
    for id in 0..12 {
        it.expires(&id.to_string(), "v").await;
    }
    it.runs.take(2).await;
    let second = start(&it.site);
    it.runs.take(2).await;
    gate.open();
    it.runs.take(8).await;
    assert_eq!(it.site.all_ended().await.cancelled, 0);
    second.stop().await;
    it.ends().await;
}

/// An instance with room for one job, and the gate that its jobs wait behind.
struct Single {
    running: Running,
    gate: Gate,
}

impl Single {
    /// Starts an instance with a connection of its own, whose room the job with this id takes.
    async fn full(site: &Site, url: &str, (log, runs): (&Recorder, &mut Runs), id: &str) -> Self {
        let gate = Gate::closed();
        let route = log.behind(&gate).adopt(MissingKey::Cancel);
        let router = Router::new().route(&site.pattern(), route);
        let running = Running::start(Worker::new(patient(url).await, router).concurrency(1));
        running.ready().await;
        site.client.schedule(site.key(id), "").await.unwrap();
        runs.next().await;
        Single { running, gate }
    }
}

/// Two instances without room hear of a key. The event that the key expired reaches only the first
/// instance, which is cut off before it can note the event. The second has lost exactly that event;
/// it gets room once it counts as alone, and the first is back three seconds after the expiry.
///
/// Returns whether the machine was quick enough, and the number of cancelled jobs.
async fn cut_off(server: &Embedded, round: usize) -> (bool, u64) {
    let (proxy, lossy) = (
        FreezingProxy::to(server).await,
        FreezingProxy::to(server).await,
    );
    let site = Site::at(&server.url(), &format!("adopt-cut-off-{round}")).await;
    let (log, mut runs) = recorder();
    let first = Single::full(&site, &proxy.url, (&log, &mut runs), "one").await;
    let second = Single::full(&site, &lossy.url, (&log, &mut runs), "two").await;
    let key = site.key("key");
    let () = site.command(&["SET", &key, "v", "EX", "900"]).await;
    let is_due_within = async |seconds| {
        eventually("its job goes by the key", async || {
            let due = site.client.get(&key).await.unwrap()?.due();
            let left = due.duration_since(SystemTime::now());
            (left.unwrap_or_default() < seconds).then_some(due)
        })
        .await
    };
    is_due_within(Duration::from_secs(1000)).await;

    proxy.freeze_before("\r\nover\r\n");
    // The announcement under the name of this key is lost, and the one for all expired keys is not.
    lossy.lose(":key\r\n$7\r\nexpired\r\n");
    let _: u64 = site.command(&["PEXPIRE", &key, "2000"]).await;
    let due = is_due_within(Duration::from_secs(60)).await;
    let since = |time: u128| {
        let due = due.duration_since(UNIX_EPOCH).unwrap();
        Duration::from_micros(time as u64).saturating_sub(due)
    };
    eventually("one has heard it, and the other has not", async || {
        (proxy.is_frozen() && lossy.is_clear()).then_some(())
    })
    .await;
    let mut alone = None;
    eventually("the second knows that it is alone", async || {
        let now = redis_time(&mut site.redis()).await;
        let instances = site.client.instances().await.unwrap();
        let [only] = &instances[..] else {
            alone = None;
            return None;
        };
        // With each heartbeat it learns of the other instances.
        let beat = now - only.seen.as_micros();
        (beat > *alone.get_or_insert(now)).then_some(())
    })
    .await;
    second.gate.open();
    let is_cancelled = async || site.stats().await.cancelled > 0;
    eventually("it is cancelled, or the others had some time", async || {
        let waited = since(redis_time(&mut site.redis()).await);
        (is_cancelled().await || waited > Duration::from_secs(3)).then_some(())
    })
    .await;
    proxy.thaw();
    let adopted = format!("keyfall:{{{}/0}}:adopted", site.kind());
    eventually("it is cancelled, or noted as expired", async || {
        let noted: Option<f64> = site.command(&["ZSCORE", &adopted, "key"]).await;
        (noted.is_none() || is_cancelled().await).then_some(())
    })
    .await;
    let was_quick = since(redis_time(&mut site.redis()).await) < Duration::from_secs(4);
    let cancelled = eventually("it runs, or is cancelled", async || {
        let (ran, stats) = (runs.rest(), site.stats().await);
        (!ran.is_empty() || stats.cancelled > 0).then_some(stats.cancelled)
    })
    .await;
    first.gate.open();
    first.running.stop().await;
    second.running.stop().await;
    (was_quick, cancelled)
}

#[tokio::test]
async fn who_has_lost_an_event_gives_those_their_time_who_are_cut_off() {
    let server = Embedded::start().await.unwrap();
    for round in 0..9 {
        let (was_quick, cancelled) = cut_off(&server, round).await;
        if was_quick {
            assert_eq!(cancelled, 0);
            return;
        }
    }
    panic!("this machine was too busy nine times");
}

#[tokio::test]
async fn a_key_missing_after_a_gap_can_cancel_its_job() {
    let (_server, it) = alone("adopt-lost", MissingKey::Cancel).await;
    it.does("soon", "SET v EX 6").await;
    it.does("later", "SET v EX 3600").await;
    it.does("left", "SET v EX 3600").await;
    for id in ["soon", "later", "left"] {
        let seconds = if id == "soon" { 6 } else { 3600 };
        it.becomes(id, Some(("v", seconds))).await;
    }
    it.does_unheard(&["DEL soon", "DEL later"]).await;
    it.becomes("soon", None).await;
    it.becomes("later", None).await;
    it.becomes("left", Some(("v", 3600))).await;
    let stats = it.site.stats().await;
    assert_eq!((stats.cancelled, stats.done), (2, 0), "{stats:?}");
    it.ends().await;
}

#[tokio::test]
async fn events_from_a_replica_cancel_nothing() {
    let (server, mut it) = alone("adopt-demoted", MissingKey::Run).await;
    let proxy = FreezingProxy::to(&server).await;
    let (host, port) = address(&proxy);
    let peer = Embedded::options().args(["--replicaof", host, port]);
    let peer = peer.args(AT_ONCE).start().await.unwrap();
    let mut primary = connect(&peer.url()).await;
    says(&mut primary, "master_link_status:up").await;
    it.does("k", "SET v EX 15").await;
    it.becomes("k", Some(("v", 15))).await;

    let replicas: u64 = it.site.command(&["WAIT", "1", "20000"]).await;
    assert_eq!(replicas, 1);
    let () = command(&mut primary, &["REPLICAOF", "NO", "ONE"]).await;
    let proxy = FreezingProxy::to(&peer).await;
    let (host, port) = address(&proxy);
    let () = it.site.command(&["REPLICAOF", host, port]).await;
    let mut replica = it.site.redis();
    says(&mut replica, "master_link_status:up").await;
    // The worker has to notice the replica while the key exists. Only the sum of all errors shows
    // when: Redis 6.2 does not count the errors of scripts by name. No other client is refused a
    // command here.
    let refused = refusals(&mut replica).await;
    eventually("the worker was refused a write", async || {
        (refusals(&mut replica).await > refused + 1).then_some(())
    })
    .await;
    let before: u64 = command(&mut replica, &["DBSIZE"]).await;
    // The new primary announces that the key expired, and this server that it was deleted.
    let key = it.site.key("k");
    let () = command(&mut primary, &["PEXPIRE", &key, "1"]).await;
    eventually("it is deleted here", async || {
        let _: u64 = command(&mut primary, &["EXISTS", &key]).await;
        let now: u64 = command(&mut replica, &["DBSIZE"]).await;
        (now < before).then_some(())
    })
    .await;
    let () = it.site.command(&["REPLICAOF", "NO", "ONE"]).await;
    assert_eq!(it.runs.next().await.key().id(), "k");
    it.site.all_ended().await;
    it.ends().await;
}

fn address(proxy: &FreezingProxy) -> (&str, &str) {
    proxy.url["redis://".len()..].split_once(':').unwrap()
}

/// The number of errors that a server has answered with.
async fn refusals(redis: &mut MultiplexedConnection) -> u64 {
    let info: String = command(redis, &["INFO", "stats"]).await;
    let mut lines = info.lines();
    let count = lines.find_map(|line| line.strip_prefix("total_error_replies:"));
    count.unwrap().parse().unwrap()
}

/// Waits until the `INFO` of a server contains this.
async fn says(redis: &mut MultiplexedConnection, what: &str) {
    eventually(what, async || {
        let info: String = command(redis, &["INFO", "everything"]).await;
        info.contains(what).then_some(())
    })
    .await;
}
