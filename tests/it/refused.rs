//! Refused calls and connections, and the text of their errors.

use std::time::Duration;

use keyfall::embedded::Embedded;
use keyfall::{Client, ErrorKind, Outcome, Router, Worker};
use keyfall_testing::proxies::FreezingProxy;
use keyfall_testing::server::process_of;
use rustix::process::{Signal, kill_process};

use crate::log::Log;
use crate::runs::{PATIENCE, eventually, recorder};
use crate::site::{HOUR, Running, Site, ms, patient};

/// The error by which a worker refuses to start.
async fn refusal(worker: Worker) -> keyfall::Error {
    let run = worker.run_until(std::future::pending());
    let ended = tokio::time::timeout(PATIENCE, run).await;
    ended.expect("it ends by itself").unwrap_err()
}

/// The result of a call in a situation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Answered,
    /// Trying again can help.
    Later(ErrorKind),
    /// Trying again cannot help.
    Never(ErrorKind),
}

impl End {
    fn of<T>(result: keyfall::Result<T>) -> Self {
        match result {
            Ok(_) => End::Answered,
            // The sort of error depends on the progress of the call.
            Err(error) if error.kind() == ErrorKind::OutcomeUnknown => {
                assert!(error.is_retryable());
                End::Later(ErrorKind::Unavailable)
            }
            Err(error) if error.is_retryable() => End::Later(error.kind()),
            Err(error) => End::Never(error.kind()),
        }
    }
}

/// The timeout of calls to a server that does not answer.
const SOON: Duration = Duration::from_millis(700);

/// The end of a call of each sort: schedule, reschedule, cancel, get, stats, and connect.
async fn calls(client: &Client, url: &str, key: &str) -> [End; 6] {
    let kind = key.rsplit_once(':').unwrap().0;
    let connect = Client::builder(url).call_timeout(SOON).connect();
    let calls = async {
        [
            End::of(client.schedule(key, "").after(HOUR).await),
            End::of(client.reschedule(key).after(HOUR).await),
            End::of(client.cancel(key).await),
            End::of(client.get(key).await),
            End::of(client.stats(kind).await),
            End::of(connect.await),
        ]
    };
    // Far more time than six calls may take, and still a limit.
    tokio::time::timeout(PATIENCE, calls).await.unwrap()
}

/// The same calls to a server that answers; the connection has more time, since a busy machine may
/// hold it up.
async fn answers(client: &Client, url: &str, key: &str) -> [End; 6] {
    let mut ends = calls(client, url, key).await;
    let connected = Client::builder(url).call_timeout(PATIENCE).connect().await;
    ends[5] = End::of(connected);
    ends
}

#[tokio::test]
async fn a_call_ends_in_time_in_any_outage_and_says_if_a_retry_can_help() {
    use ErrorKind::{Denied, Full, ReadOnly, Unavailable};
    let slow = ["--key-load-delay", "700", "--appendfsync", "no"];
    let mut server = Embedded::options().args(slow).start().await.unwrap();
    let proxy = FreezingProxy::to(&server).await;
    let url = proxy.url.clone();
    let client = async || {
        let client = Client::builder(&url).call_timeout(SOON);
        client.connect().await.unwrap()
    };
    let mut admin = crate::site::connect(&server.url()).await;
    let args = [
        "ACL", "SETUSER", "nobody", "on", "nopass", "+@all", "~other:*",
    ];
    let () = crate::site::command(&mut admin, &args).await;
    let key = "refused-calls:it:job:1";
    let here = client().await;
    let calm = patient(&url).await;
    assert_eq!(answers(&calm, &url, key).await, [End::Answered; 6]);

    let () = crate::site::command(&mut admin, &["CONFIG", "SET", "maxmemory", "1"]).await;
    let mut full = [End::Answered; 6];
    full[..1].fill(End::Later(Full));
    // There is no job to postpone, so Redis refuses nothing.
    let found = answers(&calm, &url, key).await;
    full[1] = found[1];
    assert_eq!(found, full);
    let () = crate::site::command(&mut admin, &["CONFIG", "SET", "maxmemory", "0"]).await;

    let () = crate::site::command(&mut admin, &["REPLICAOF", "127.0.0.1", "1"]).await;
    let mut replica = [End::Later(ReadOnly); 6];
    replica[3..5].fill(End::Answered);
    assert_eq!(answers(&calm, &url, key).await, replica);
    let () = crate::site::command(&mut admin, &["REPLICAOF", "NO", "ONE"]).await;

    let unknown = format!("{}?user=nobody&pass=x", server.url());
    let denied = Client::connect(&unknown).await;
    assert_eq!(End::of(denied), End::Never(Denied));

    let process = process_of(&server);
    kill_process(process, Signal::STOP).unwrap();
    let unavailable = [End::Later(Unavailable); 6];
    assert_eq!(calls(&here, &url, key).await, unavailable);
    kill_process(process, Signal::CONT).unwrap();

    let mut fill = redis::pipe();
    for _ in 0..10_000 {
        fill.cmd("INCR").arg("refused-calls").ignore();
    }
    let () = fill.query_async(&mut admin).await.unwrap();
    let socket = server.url();
    let direct = Client::builder(&socket).call_timeout(SOON);
    let direct = direct.connect().await.unwrap();
    server.kill_server().await.unwrap();
    assert_eq!(calls(&direct, &socket, key).await, unavailable);
    {
        let starting = server.restart();
        tokio::pin!(starting);
        // The server does not answer before the last of these calls.
        tokio::select! {
            started = &mut starting => started.unwrap(),
            found = calls(&direct, &socket, key) => {
                assert_eq!(found, unavailable);
                starting.await.unwrap();
            }
        }
    }
    assert_eq!(
        answers(&patient(&socket).await, &socket, key).await,
        [End::Answered; 6]
    );

    let here = client().await;
    proxy.swallow_everything();
    assert_eq!(calls(&here, &url, key).await, unavailable);
    // A call without an answer may have been carried out by now.
    let stats = patient(&socket)
        .await
        .stats("refused-calls:it:job")
        .await
        .unwrap();
    assert!(stats.is_balanced(), "{stats:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_opens_the_server_and_is_never_repeated_in_an_error() {
    let server = Embedded::start().await.unwrap();
    let open = Site::at(&server.url(), "crash-password").await;
    let args = ["CONFIG", "SET", "requirepass", "correct-horse"];
    let () = open.command(&args).await;

    for (query, secret) in [("", "correct-horse"), ("?pass=wrong-horse", "wrong-horse")] {
        let url = format!("{}{query}", server.url());
        let error = Client::connect(&url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
        assert!(!error.is_retryable());
        for text in [error.to_string(), format!("{error:?}")] {
            assert!(!text.contains(secret), "{text}");
        }
    }
    let url = format!("{}?pass=correct-horse", server.url());
    let site = Site::at(&url, "crash-password").await;
    assert!(!format!("{:?}", site.client).contains("horse"));
    let (log, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    site.client.schedule(site.key(1), "").await.unwrap();
    runs.next().await;
    site.all_ended().await;
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_waits_for_a_server_without_room_for_its_connection() {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "refused-crowded").await;
    let set = async |name, value| {
        let () = site.command(&["CONFIG", "SET", name, value]).await;
    };
    set("requirepass", "horse").await;
    // The server refuses the first command of the connection: AUTH, SELECT, or none that counts.
    for query in ["?pass=horse", "?pass=horse&db=3", "?db=3", ""] {
        if !query.contains("pass") {
            set("requirepass", "").await;
        }
        let client = patient(&format!("{}{query}", server.url())).await;
        let () = site.command(&["CONFIG", "RESETSTAT"]).await;
        set("maxclients", "1").await;
        let _: u32 = site.command(&["CLIENT", "KILL", "TYPE", "normal"]).await;
        let key = site.key("1");
        let call = tokio::spawn(async move { client.schedule(key, "").await });
        eventually("it is refused", async || {
            let stats: String = site.command(&["INFO", "stats"]).await;
            (!stats.contains("rejected_connections:0")).then_some(())
        })
        .await;
        set("maxclients", "1000").await;
        call.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn an_unsuitable_server_is_refused_with_the_remedy() {
    let start = async |args: &[&str]| {
        let options = Embedded::options().args(args.iter().copied());
        options.start().await.unwrap()
    };
    let evicting = ["--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru"];
    let replica = ["--replicaof", "127.0.0.1", "1"];
    for (args, kind, remedy) in [
        (
            &evicting[..],
            ErrorKind::Incompatible,
            "maxmemory-policy noeviction",
        ),
        (&replica[..], ErrorKind::ReadOnly, "name the primary"),
    ] {
        let server = start(args).await;
        let error = Client::connect(&server.url()).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(remedy), "{error}");
    }
    // A newer version has written another schema.
    let server = start(&[]).await;
    let site = Site::at(&server.url(), "crash-refused").await;
    let () = site
        .command(&["HSET", "keyfall:meta", "schema", "99"])
        .await;
    let error = Client::connect(&server.url()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible);
    assert!(error.to_string().contains("another namespace"), "{error}");
    let (log, _) = recorder();
    let router = Router::new().route(&site.pattern(), log.done());
    let refused = refusal(site.worker(router)).await;
    assert_eq!(refused.kind(), ErrorKind::Incompatible);
    let other = Client::builder(&server.url()).namespace("other");
    other.connect().await.unwrap();
}

#[tokio::test]
async fn the_error_names_the_setting_that_refuses_writes_without_replicas() {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "crash-alone").await;
    let least = "min-replicas-to-write";
    let () = site.command(&["CONFIG", "SET", least, "1"]).await;
    let error = site.client.schedule(site.key("1"), "").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ReadOnly, "{error}");
    assert!(error.to_string().contains(least), "{error}");
}

#[tokio::test]
async fn a_full_redis_refuses_new_jobs_and_runs_existing_ones() {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "crash-full").await;
    let (log, mut runs) = recorder();
    for key in site.keys(20) {
        site.client.schedule(key, "").after(ms(800)).await.unwrap();
    }
    let cancelled = site.key("cancelled");
    site.client
        .schedule(&cancelled, "")
        .after(HOUR)
        .await
        .unwrap();
    let () = site.command(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let error = site.client.schedule(site.key("new"), "").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert!(error.is_retryable());
    site.client.cancel(&cancelled).await.unwrap();
    // Even a new worker can start.
    let late = Site::at(&server.url(), "crash-full").await;
    let worker = late.serve(Router::new().route(&site.pattern(), log.done()));
    runs.take(20).await;
    let stats = site.all_ended().await;
    assert_eq!((stats.accepted, stats.done, stats.cancelled), (21, 20, 1));
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn eviction_is_refused_or_causes_a_warning_by_its_policy() {
    let log = Log::read();
    let connect = async |policy: &str, maxmemory: &str, allow: bool| {
        let args = ["--maxmemory-policy", policy, "--maxmemory", maxmemory];
        let server = Embedded::options().args(args).start().await.unwrap();
        let client = Client::builder(&server.url()).allow_eviction(allow);
        (client.connect().await, server)
    };
    let mut warned = 0;
    for (policy, maxmemory, allow, refused, warning) in [
        ("noeviction", "64mb", false, false, ""),
        ("allkeys-lfu", "64mb", false, true, ""),
        (
            "allkeys-lfu",
            "64mb",
            true,
            false,
            "any key when it is full",
        ),
        (
            "allkeys-lfu",
            "0",
            false,
            false,
            "as soon as it has a maxmemory",
        ),
        ("volatile-ttl", "64mb", false, false, "no job is lost"),
        ("volatile-ttl", "0", false, false, ""),
    ] {
        let (connected, _server) = connect(policy, maxmemory, allow).await;
        let what = format!("{policy} {maxmemory} {allow}");
        match connected {
            Err(error) => {
                assert!(refused, "{what}: {error}");
                assert_eq!(error.kind(), ErrorKind::Incompatible, "{what}");
                assert!(error.to_string().contains("allow_eviction"), "{error}");
            }
            Ok(client) => {
                assert!(!refused, "{what}");
                let (note, mut runs) = recorder();
                let router = Router::new().route("refused-evict:it:job:{id}", note.done());
                let worker = Running::start(Worker::new(client.clone(), router));
                client.schedule("refused-evict:it:job:1", "").await.unwrap();
                runs.next().await;
                worker.stop().await;
            }
        }
        warned += usize::from(!warning.is_empty());
        let warnings = log.warnings();
        assert_eq!(warnings.len(), warned, "{what}: {warnings:?}");
        assert!(
            warnings
                .last()
                .is_none_or(|it| warning.is_empty() || it.contains(warning))
        );
    }
}

#[tokio::test]
async fn a_worker_without_any_route_is_refused() {
    // A fallback would be a route for the jobs of all tests on a shared server.
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "refused-empty").await;
    let error = refusal(site.worker(Router::new())).await;
    assert_eq!(error.kind(), ErrorKind::InvalidRoute);
    assert!(error.to_string().contains(".route("), "{error}");
    // A worker with only a fallback has work to do.
    let (note, _) = recorder();
    let fallback = Running::start(site.worker(Router::new().fallback(note.done())));
    fallback.stop().await;
}

/// The number of commands that Redis has refused because of missing rights.
async fn refusals(site: &Site) -> u64 {
    let info: String = site.command(&["INFO", "errorstats"]).await;
    let count = info
        .lines()
        .find_map(|line| line.strip_prefix("errorstat_NOPERM:count="));
    count.map_or(0, |count| count.parse().unwrap())
}

#[tokio::test]
async fn a_user_without_rights_to_job_names_is_refused_before_any_claim() {
    let server = Embedded::start().await.unwrap();
    let log = Log::read();
    let site = Site::at(&server.url(), "refused-acl").await;
    let allow = async |names: &str| {
        let mut args = vec![
            "ACL",
            "SETUSER",
            "worker",
            "on",
            ">word",
            "resetkeys",
            "+@all",
        ];
        args.push("&*");
        args.extend(names.split(' '));
        let () = site.command(&args).await;
    };
    let url = format!("{}?user=worker&pass=word", server.url());
    let start = async |pattern: &str| {
        let client = Client::connect(&url).await.unwrap();
        let (note, runs) = recorder();
        let later = note.then(|job| match job.attempt() {
            1 => Outcome::again_after(ms(50)),
            _ => Outcome::Done,
        });
        (
            Worker::new(client, Router::new().route(pattern, later)),
            runs,
        )
    };
    for (names, missing) in [
        ("~keyfall:*", "`refused-acl:it:job:*`"),
        (
            "~refused-acl:* ~keyfall:meta",
            "`keyfall:{refused-acl:it:job/0}:due`",
        ),
    ] {
        allow(names).await;
        let (worker, _) = start(&site.pattern()).await;
        let error = refusal(worker).await;
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert!(error.to_string().contains(missing), "{error}");
    }

    // With a pattern, the names are unknown until there are jobs.
    allow("~keyfall:*").await;
    let (worker, mut runs) = start("refused-acl:*:job:{id}").await;
    let worker = Running::start(worker);
    site.client.schedule(site.key(1), "").await.unwrap();
    runs.next().await;
    eventually("it is told", async || {
        (!log.warnings().is_empty()).then_some(())
    })
    .await;
    // The commands are refused again and again, and the worker logs it once.
    let told = refusals(&site).await;
    eventually("more refusals", async || {
        (refusals(&site).await >= told + 3).then_some(())
    })
    .await;
    let warnings = log.warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains(&site.kind()), "{warnings:?}");
    allow("~keyfall:* ~refused-acl:*").await;
    runs.next().await;
    let stats = site.all_ended().await;
    assert_eq!((stats.done, stats.lapsed), (1, 0));
    eventually("its end is told", async || {
        (log.with("Redis accepts this command again").len() == 1).then_some(())
    })
    .await;
    worker.stop().await;
    site.assert_balanced().await;
}
