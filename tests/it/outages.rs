//! A Redis that refuses, loads, turns read-only or hangs half-open: the worker waits, says it
//! once, and goes on as soon as it is over; the calls of a client end in time.

use std::time::Duration;

use keyfall::embedded::Embedded;
use keyfall::{Client, ErrorKind, Notice, Router};
use tokio::sync::mpsc;

use crate::crash::durable_redis;
use crate::process::Process;
use crate::proxy::Proxy;
use crate::runs::{PATIENCE, Recorder, eventually, recorder};
use crate::site::{HOUR, Running, Site, ms};

/// How long an outage lasts: longer than several tries of every part of a worker.
const OUTAGE: Duration = Duration::from_secs(3);

/// A worker that notes its jobs, and what it tells of the weather.
fn serve(site: &Site, log: &Recorder) -> (Running, mpsc::UnboundedReceiver<Notice>) {
    let (tell, told) = mpsc::unbounded_channel();
    let worker = site.worker(Router::new().route(&site.pattern(), log.done()));
    let worker = worker.on_notice(move |notice| drop(tell.send(notice.clone())));
    (Running::start(worker), told)
}

/// What is told of one outage: that it is one, of this kind, and that it is over. A machine that
/// stops for seconds makes another one, which is told in the same way.
async fn told_in_turn(told: &mut mpsc::UnboundedReceiver<Notice>, expected: ErrorKind) {
    let mut first = Some(told.recv().await.unwrap());
    while let Some(notice) = first.take().or_else(|| told.try_recv().ok()) {
        match notice {
            Notice::Away { kind, reason } => assert_eq!(kind, expected, "{reason}"),
            other => panic!("{other:?}"),
        }
        match told.recv().await.unwrap() {
            Notice::Back { .. } => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Every call of a client with this patience fails in time, with an error that says what kind
/// it is, and that trying again can help.
async fn calls_fail_in_time(client: &Client, key: &str, reads: bool, expected: &[ErrorKind]) {
    let calls = async {
        let mut errors = vec![
            client.schedule(key, "").await.map(drop).unwrap_err(),
            client
                .reschedule(key)
                .after(HOUR)
                .await
                .map(drop)
                .unwrap_err(),
            client.cancel(key).await.map(drop).unwrap_err(),
            client.update_payload(key, "").await.map(drop).unwrap_err(),
        ];
        if reads {
            errors.push(client.get(key).await.map(drop).unwrap_err());
            errors.push(client.kinds().await.map(drop).unwrap_err());
        }
        errors
    };
    for error in tokio::time::timeout(PATIENCE, calls).await.unwrap() {
        assert!(error.is_retryable(), "{error:?}");
        assert!(expected.contains(&error.kind()), "{error:?}");
    }
}

async fn impatient(url: &str) -> Client {
    let client = Client::builder(url).call_timeout(ms(400));
    client.connect().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outage_is_one_line_in_the_log_and_its_end_another() {
    let mut server = durable_redis().await;
    let mut site = Site::at(&server.url(), "out-log").await;
    let kind = format!("{}:work:sleep", site.app);
    let worker = Process::start(&site);
    // Some run during the outage, some are to be settled, some fall due.
    for number in 0..60 {
        let key = format!("{kind}:{number}");
        let delay = ms(100 * number);
        let call = site.client.schedule(&key, &300).after(delay);
        call.await.unwrap();
    }
    eventually("some are done", async || {
        let stats = site.client.stats(&kind).await.unwrap();
        (stats.done > 5).then_some(())
    })
    .await;
    server.kill_server().await.unwrap();
    tokio::time::sleep(OUTAGE).await;
    server.restart().await.unwrap();
    site.reconnect().await;
    eventually("all are done", async || {
        let stats = site.client.stats(&kind).await.ok()?;
        (stats.done == 60).then_some(())
    })
    .await;
    let said: Vec<String> = {
        let log = worker.log.try_iter().collect();
        worker.stop();
        log
    };
    let with = |what: &str| said.iter().filter(|line| line.contains(what)).count();
    assert_eq!(with("Redis cannot be used"), 1, "{said:#?}");
    assert_eq!(with("Redis can be used again"), 1, "{said:#?}");
    assert_eq!(with(" WARN ") + with("ERROR"), 1, "{said:#?}");
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_turns_read_only_is_waited_for() {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "out-replica").await;
    let (log, mut runs) = recorder();
    let (worker, mut told) = serve(&site, &log);
    let client = impatient(&site.url).await;
    site.client.schedule(site.key("before"), "").await.unwrap();
    runs.next().await;
    for (number, key) in site.keys(20).enumerate() {
        let delay = ms(100 * number as u64);
        site.client.schedule(&key, "").after(delay).await.unwrap();
    }
    // Of a primary that is not there. The discard port: nobody listens.
    let () = site.command(&["REPLICAOF", "127.0.0.1", "9"]).await;
    calls_fail_in_time(&client, &site.key("refused"), false, &[ErrorKind::ReadOnly]).await;
    tokio::time::sleep(OUTAGE).await;
    let () = site.command(&["REPLICAOF", "NO", "ONE"]).await;
    told_in_turn(&mut told, ErrorKind::ReadOnly).await;
    assert_eq!(runs.take(20).await.len(), 20);
    let stats = site.all_ended().await;
    assert_eq!(stats.done, 21);
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_go_silent_are_replaced() {
    let server = Embedded::start().await.unwrap();
    let proxy = Proxy::before(&server.url());
    let site = Site::at(&server.url(), "out-silent").await;
    let behind = Site::at(&proxy.url(), "out-silent").await;
    let client = impatient(&proxy.url()).await;
    let (log, mut runs) = recorder();
    let (worker, mut told) = serve(&behind, &log);
    site.client.schedule(site.key("before"), "").await.unwrap();
    runs.next().await;
    let opened = proxy.opened();
    for (number, key) in site.keys(20).enumerate() {
        let delay = ms(200 * number as u64);
        site.client.schedule(&key, "").after(delay).await.unwrap();
    }
    proxy.freeze();
    // Its patience is what it takes to find out; a further try has another connection.
    let error = client.cancel(site.key("none")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error:?}");
    eventually("it is answered", async || {
        client.cancel(site.key("none")).await.ok()
    })
    .await;
    assert_eq!(runs.take(20).await.len(), 20);
    told_in_turn(&mut told, ErrorKind::Unavailable).await;
    let stats = site.all_ended().await;
    assert_eq!((stats.done, stats.lapsed), (21, 0));
    eventually(
        "the two of the worker and that of the client are others",
        async || (proxy.opened() >= opened + 3).then_some(()),
    )
    .await;
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_is_loading_is_waited_for() {
    // Settings for tests of Redis itself: it loads slowly, and looks up now and then.
    let slowly = ["--key-load-delay", "1000"];
    let looks_up = ["--loading-process-events-interval-bytes", "1024"];
    let options = Embedded::options().args(["--appendonly", "yes"]);
    let mut server = options.args(slowly).args(looks_up).start().await.unwrap();
    let mut site = Site::at(&server.url(), "out-loading").await;
    let (log, mut runs) = recorder();
    let (worker, mut told) = serve(&site, &log);
    let client = impatient(&site.url).await;
    let mut fill = redis::pipe();
    for number in 0..10_000 {
        fill.cmd("SET")
            .arg(format!("other:{number}"))
            .arg("x".repeat(50));
    }
    let () = fill.query_async(&mut site.redis()).await.unwrap();
    for (number, key) in site.keys(20).enumerate() {
        let delay = ms(200 * number as u64);
        site.client.schedule(&key, "").after(delay).await.unwrap();
    }
    server.kill_server().await.unwrap();
    let restart = tokio::spawn(async move {
        server.restart().await.unwrap();
        server
    });
    eventually("it is loading", async || {
        let client = redis::Client::open(&*site.url).unwrap();
        let patient = redis::AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
        let ping = async {
            let connection = client.get_multiplexed_async_connection_with_config(&patient);
            redis::cmd("PING")
                .query_async::<()>(&mut connection.await?)
                .await
        };
        let error = ping.await.err()?;
        error.to_string().contains("loading").then_some(())
    })
    .await;
    let gone = [ErrorKind::Unavailable, ErrorKind::OutcomeUnknown];
    calls_fail_in_time(&client, &site.key("refused"), true, &gone).await;
    let server = restart.await.unwrap();
    site.reconnect().await;
    assert_eq!(runs.take(20).await.len(), 20);
    told_in_turn(&mut told, ErrorKind::Unavailable).await;
    site.all_ended().await;
    worker.stop().await;
    site.assert_balanced().await;
    drop(server);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn notification_flags_that_are_taken_away_are_merged_back_without_a_reconnect() {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "out-flags").await;
    let (log, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    let announces = async |others: &str| {
        eventually("flags are merged", async || {
            let args = ["CONFIG", "GET", "notify-keyspace-events"];
            let (_, flags): (String, String) = site.command(&args).await;
            let wanted = format!("Ex{others}");
            wanted
                .chars()
                .all(|flag| flags.contains(flag))
                .then_some(())
        })
        .await;
    };
    announces("").await;
    let () = site
        .command(&["CONFIG", "SET", "notify-keyspace-events", "Kg"])
        .await;
    // Meanwhile jobs run all the same.
    site.client
        .schedule(site.key("unheard"), "")
        .after(ms(50))
        .await
        .unwrap();
    runs.next().await;
    announces("Kg").await;
    worker.stop().await;
    site.assert_balanced().await;
}
