//! Every sort of outage: its start and its end are logged once, and no job is lost.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use keyfall::embedded::Embedded;
use keyfall::{Notice, Router, Worker};
use keyfall_testing::proxies::FreezingProxy;
use keyfall_testing::server::process_of;
use rustix::process::{Signal, kill_process};

use crate::log::Log;
use crate::runs::{Gate, Runs, eventually, recorder};
use crate::site::{Running, Site, command, connect, ms};

/// The log lines about a Redis that is gone, that is silent, and that loads its data.
const GONE: &str = "is it running and reachable?";
const SILENT: &str = "did not answer within";
const LOADING: &str = "is loading";

/// A worker in bad weather: one job runs all the time, others fall due all the time.
struct Scene {
    site: Site,
    log: Log,
    notices: Arc<Mutex<Vec<Notice>>>,
    worker: Running,
    runs: Runs,
    gate: Gate,
    scheduled: usize,
}

impl Scene {
    /// `url` is the address for the worker and its client; `server` is behind it.
    async fn at(url: &str, app: &str) -> Self {
        let log = Log::read();
        let site = Site::at(url, app).await;
        let (note, mut runs) = recorder();
        let gate = Gate::closed();
        let long = format!("{app}:it:long");
        let router = Router::new()
            .route(&site.pattern(), note.done())
            .route(&format!("{long}:{{id}}"), note.behind(&gate));
        let notices: Arc<Mutex<Vec<Notice>>> = Arc::default();
        let hook = {
            let notices = notices.clone();
            move |notice: &Notice| notices.lock().unwrap().push(notice.clone())
        };
        // Longer than any outage here: Redis 6.2 loads for 15 s, and on a busy machine for 30.
        let worker = Worker::new(site.client.clone(), router).lease(Duration::from_secs(120));
        let worker = Running::start(worker.on_notice(hook));
        site.client.schedule(format!("{long}:1"), "").await.unwrap();
        runs.next().await;
        Scene {
            site,
            log,
            notices,
            worker,
            runs,
            gate,
            scheduled: 0,
        }
    }

    /// Jobs that fall due over the next five seconds.
    async fn schedule(&mut self) {
        for n in 0..100_u64 {
            let key = self.site.key(self.scheduled);
            let call = self.site.client.schedule(key, &n).after(ms(50 * n));
            call.await.unwrap();
            self.scheduled += 1;
        }
    }

    /// All jobs have run and are accounted for, and events are heard again. The log has each of
    /// these texts once, and the end of the outage once. Shorter faults are logged only if they
    /// last, as on a busy machine.
    async fn ends(mut self, told: &[&str], in_passing: &[&str]) {
        self.gate.open();
        let mut jobs = self.runs.take(self.scheduled).await;
        // New jobs are announced.
        let heard = eventually("an event is heard", async || {
            let key = self.site.key(self.scheduled);
            self.scheduled += 1;
            self.site
                .client
                .schedule(key, "")
                .after(ms(50))
                .await
                .unwrap();
            jobs.push(self.runs.next().await);
            (jobs.last().unwrap().source() == keyfall::Source::Event).then_some(())
        });
        heard.await;
        let stats = self.site.all_ended().await;
        assert_eq!((stats.failed, stats.dead, stats.lapsed), (0, 0, 0));
        assert_eq!(stats.accepted, self.scheduled as u64);
        eventually("the end is told", async || {
            (!self.log.with("Redis is available again").is_empty()).then_some(())
        })
        .await;
        self.worker.stop().await;
        self.runs.assert_no_more();
        self.site.reconnect().await;
        self.site.assert_balanced().await;

        for text in told {
            let lines = self.log.with("Redis is unavailable");
            let lines: Vec<&String> = lines.iter().filter(|it| it.contains(text)).collect();
            assert_eq!(lines.len(), 1, "{text}: {:?}", self.log.warnings());
        }
        let mut warnings = self.log.warnings();
        // A new connection checks the settings of the server when there is time.
        warnings.retain(|it| !it.contains("check=\"persistence\""));
        for text in in_passing {
            let count = warnings.iter().filter(|it| it.contains(text)).count();
            assert!(count <= 1, "{text}: {warnings:?}");
        }
        let expected = |line: &&String| {
            [told, in_passing]
                .concat()
                .iter()
                .any(|it| line.contains(it))
        };
        let unexpected: Vec<&String> = warnings.iter().filter(|it| !expected(it)).collect();
        assert!(unexpected.is_empty(), "{unexpected:?}");
        assert_eq!(
            self.log.with("Redis is available again").len(),
            1,
            "{warnings:?}"
        );
        let notices = self.notices.lock().unwrap();
        let away = |it: &&Notice| matches!(it, Notice::Away { .. });
        let back = |it: &&Notice| matches!(it, Notice::Back { after, .. } if *after > ms(100));
        assert_eq!(
            notices.iter().filter(away).count(),
            warnings.len(),
            "{warnings:?}"
        );
        assert_eq!(notices.iter().filter(back).count(), 1, "{notices:?}");
    }
}

/// A Redis that has every write on disk before it answers, so no warning is due.
async fn sound_redis() -> Embedded {
    let options = Embedded::options().args(["--appendfsync", "always"]);
    options.start().await.unwrap()
}

#[tokio::test]
async fn a_redis_that_is_gone_for_seconds_is_logged_once() {
    let mut server = sound_redis().await;
    let mut scene = Scene::at(&server.url(), "weather-gone").await;
    scene.schedule().await;
    server.kill_server().await.unwrap();
    tokio::time::sleep(Duration::from_secs(4)).await;
    server.restart().await.unwrap();
    scene.ends(&[GONE], &[LOADING]).await;
}

#[tokio::test]
async fn a_redis_that_hangs_for_seconds_is_logged_once() {
    let server = sound_redis().await;
    let mut scene = Scene::at(&server.url(), "weather-hang").await;
    scene.schedule().await;
    kill_process(process_of(&server), Signal::STOP).unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    kill_process(process_of(&server), Signal::CONT).unwrap();
    scene.ends(&["Redis at"], &[]).await;
}

#[tokio::test]
async fn workers_wait_for_a_loading_redis() {
    // Each command of the log takes a while to load, and the server answers clients now and then.
    let slow = ["--key-load-delay", "300", "--appendfsync", "always"];
    let mut server = Embedded::options().args(slow).start().await.unwrap();
    let mut scene = Scene::at(&server.url(), "weather-loading").await;
    let mut fill = redis::pipe();
    // At least three seconds. A busy machine sleeps longer, and an embedded server may take thirty.
    for _ in 0..10_000 {
        fill.cmd("INCR").arg("weather-loading").ignore();
    }
    let () = fill.query_async(&mut scene.site.redis()).await.unwrap();
    scene.schedule().await;
    let url = server.url();
    server.kill_server().await.unwrap();
    let restarted = async { server.restart().await.unwrap() };
    let met = async {
        eventually("it is told", async || {
            (!scene.log.with(LOADING).is_empty()).then_some(())
        })
        .await;
        // Redis has loaded slowly for long enough. Redis 6.2 refuses the command, and goes on
        // loading.
        let mut hurry = redis::cmd("CONFIG");
        hurry.arg("SET").arg("key-load-delay").arg("0");
        let _: redis::RedisResult<()> = hurry.query_async(&mut connect(&url).await).await;
    };
    tokio::join!(restarted, met);
    scene.ends(&[LOADING], &[GONE, SILENT]).await;
}

#[tokio::test]
async fn workers_wait_for_a_read_only_redis() {
    let server = sound_redis().await;
    let mut scene = Scene::at(&server.url(), "weather-replica").await;
    scene.schedule().await;
    let () = scene.site.command(&["REPLICAOF", "127.0.0.1", "1"]).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let () = scene.site.command(&["REPLICAOF", "NO", "ONE"]).await;
    scene.ends(&["this server is a replica"], &[]).await;
}

#[tokio::test]
async fn silently_dead_connections_are_replaced() {
    let server = sound_redis().await;
    let proxy = FreezingProxy::to(&server).await;
    let mut scene = Scene::at(&proxy.url, "weather-half-open").await;
    scene.schedule().await;
    let before = proxy.opened();
    proxy.forget_connections();
    eventually("new connections", async || {
        (proxy.opened() >= before + 2).then_some(())
    })
    .await;
    scene.ends(&["Redis at"], &[]).await;
}

/// Cuts all connections except the one of `redis`.
async fn cut(redis: &mut redis::aio::MultiplexedConnection) {
    for kind in ["pubsub", "normal"] {
        let args = ["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"];
        let cut: u32 = command(redis, &args).await;
        assert!(cut > 0);
    }
}

#[tokio::test]
async fn workers_wait_for_a_redis_without_room_for_clients() {
    let server = sound_redis().await;
    let mut scene = Scene::at(&server.url(), "weather-clients").await;
    scene.schedule().await;
    let mut redis = scene.site.redis();
    let () = command(&mut redis, &["CONFIG", "SET", "maxclients", "1"]).await;
    cut(&mut redis).await;
    // The run that ends meanwhile is settled as soon as possible.
    scene.gate.open();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let () = command(&mut redis, &["CONFIG", "SET", "maxclients", "1000"]).await;
    scene.ends(&["Redis at"], &[]).await;
}

#[tokio::test]
async fn workers_wait_while_redis_answers_nonsense() {
    let server = sound_redis().await;
    let proxy = FreezingProxy::to(&server).await;
    let mut scene = Scene::at(&proxy.url, "weather-babble").await;
    scene.schedule().await;
    let mut redis = connect(&server.url()).await;
    proxy.babble(true);
    cut(&mut redis).await;
    // The run that ends meanwhile is settled as soon as possible.
    scene.gate.open();
    tokio::time::sleep(Duration::from_secs(2)).await;
    proxy.babble(false);
    scene
        .ends(&["does not speak the protocol of Redis"], &[])
        .await;
}

#[tokio::test]
async fn a_quickly_replaced_connection_is_not_logged() {
    let server = sound_redis().await;
    let log = Log::read();
    let site = Site::at(&server.url(), "weather-cut").await;
    let (note, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), note.done()));
    site.client.schedule(site.key(1), "").await.unwrap();
    runs.next().await;
    let redis = redis::Client::open(server.url()).unwrap();
    let mut redis = redis.get_multiplexed_async_connection().await.unwrap();
    let args = ["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"];
    let cut: u32 = command(&mut redis, &args).await;
    assert!(cut > 1);
    let late = site.key(2);
    site.client
        .schedule(&late, "")
        .after(ms(1500))
        .await
        .unwrap();
    runs.next().await;
    site.all_ended().await;
    worker.stop().await;
    assert_eq!(log.warnings(), [""; 0]);
    assert_eq!(log.with("Redis is available again"), [""; 0]);
}

#[tokio::test]
async fn a_broken_ledger_and_its_recovery_are_logged_once() {
    let server = Embedded::start().await.unwrap();
    let log = Log::read();
    let site = Site::at(&server.url(), "weather-broken").await;
    let (note, mut runs) = recorder();
    let leased = format!("keyfall:{{{}/0}}:leased", site.kind());
    let _: String = site.command(&["SET", &leased, "by hand"]).await;
    for key in site.keys(20) {
        site.client.schedule(key, "").await.unwrap();
    }
    let worker = site.serve(Router::new().route(&site.pattern(), note.done()));
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(log.warnings().len(), 1, "{:?}", log.warnings());
    assert!(
        log.warnings()[0].contains(&site.kind()),
        "{:?}",
        log.warnings()
    );
    let _: u64 = site.command(&["DEL", &leased]).await;
    runs.take(20).await;
    site.all_ended().await;
    eventually("its end is told", async || {
        (log.with("Redis accepts this command again").len() == 1).then_some(())
    })
    .await;
    assert_eq!(log.warnings().len(), 1, "{:?}", log.warnings());
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn unheard_events_of_a_serving_redis_are_logged_once() {
    let server = Embedded::start().await.unwrap();
    let admin = Site::at(&server.url(), "weather-deaf").await;
    let acl = async |rule: &str| {
        let mut args = vec!["ACL", "SETUSER", "worker"];
        args.extend(rule.split(' '));
        let () = admin.command(&args).await;
    };
    acl("on >word ~* resetchannels &keyfall:* +@all").await;
    let log = Log::read();
    let url = format!("{}?user=worker&pass=word", server.url());
    let site = Site::at(&url, "weather-deaf").await;
    let (note, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), note.done()));
    eventually("it is told", async || {
        (!log.warnings().is_empty()).then_some(())
    })
    .await;
    site.client
        .schedule(site.key(1), "")
        .after(ms(300))
        .await
        .unwrap();
    runs.next().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let warnings = log.warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("events do not arrive"), "{warnings:?}");
    acl("&__keyevent@0__:expired").await;
    eventually("its end is told", async || {
        (log.with("events arrive again").len() == 1).then_some(())
    })
    .await;
    site.all_ended().await;
    worker.stop().await;
    assert_eq!(log.warnings().len(), 1);
    site.assert_balanced().await;
}
