//! Killed workers; a Redis that is killed, hangs, forgets or refuses.

use std::collections::{HashMap, HashSet};
use std::future::IntoFuture;
use std::time::Duration;

use futures_util::future::try_join_all;
use keyfall::embedded::Embedded;
use keyfall::{Client, ErrorKind, Job, Router, Source};
use rustix::process::{Pid, Signal, kill_process};

use crate::process::Process;
use crate::runs::{Gate, PATIENCE, Runs, eventually, ids, recorder};
use crate::site::{HOUR, Running, Site, ms};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_process_that_is_killed_loses_no_job_and_its_jobs_are_run_again() {
    let site = Site::new("crash-kill").await;
    let kind = format!("{}:work:sleep", site.app);
    let schedule = async |id: &str, payload: u64| {
        let key = format!("{kind}:{id}");
        site.client.schedule(&key, &payload).await.unwrap();
    };
    let mut first = Process::start(&site);
    assert_eq!(first.line(), format!("working for {}", site.app));
    for id in ["quick-1", "quick-2"] {
        schedule(id, 0).await;
        assert_eq!(first.line(), format!("started {kind}:{id} 1"));
        assert_eq!(first.line(), format!("finished {kind}:{id}"));
    }
    eventually("settled", async || {
        let stats = site.client.stats(&kind).await.unwrap();
        (stats.done == 2).then_some(())
    })
    .await;
    for id in ["cut-1", "cut-2"] {
        schedule(id, 3000).await;
        assert_eq!(first.line(), format!("started {kind}:{id} 1"));
    }
    first.kill();
    for id in ["waits-1", "waits-2"] {
        schedule(id, 0).await;
    }
    let second = Process::start(&site);
    let stats = eventually("all done", async || {
        let stats = site.client.stats(&kind).await.unwrap();
        (stats.done == 6).then_some(stats)
    })
    .await;
    assert_eq!((stats.lapsed, stats.failed, stats.dead), (2, 0, 0));
    let lines = second.stop();
    let started: HashSet<&str> = lines
        .iter()
        .filter_map(|line| line.strip_prefix("started "))
        .collect();
    let expected = ["cut-1 2", "cut-2 2", "waits-1 1", "waits-2 1"].map(|s| format!("{kind}:{s}"));
    assert_eq!(started, expected.iter().map(String::as_str).collect());
    let finished = lines.iter().filter(|line| line.starts_with("finished "));
    assert_eq!(finished.count(), 4);
    assert_eq!(lines.last().unwrap(), "stopped");
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_stops_a_worker_without_waiting_for_its_handlers() {
    let site = Site::new("crash-twice").await;
    let kind = format!("{}:work:sleep", site.app);
    let hour = 3_600_000_u64;
    let key = format!("{kind}:long");
    site.client.schedule(&key, &hour).await.unwrap();
    let mut process = Process::start(&site);
    assert_eq!(process.line(), format!("working for {}", site.app));
    assert_eq!(process.line(), format!("started {key} 1"));
    let pid = Pid::from_child(&process.child);
    kill_process(pid, Signal::TERM).unwrap();
    // The first one lets the handler go on, and nothing more is begun.
    let late = format!("{kind}:late");
    site.client
        .schedule(&late, &0)
        .after(ms(300))
        .await
        .unwrap();
    eventually("the late job is due, and nobody takes it", async || {
        let stats = site.client.stats(&kind).await.unwrap();
        (stats.overdue == 1 && stats.leased == 1).then_some(())
    })
    .await;
    assert_eq!(process.child.try_wait().unwrap(), None);
    kill_process(pid, Signal::TERM).unwrap();
    assert!(process.child.wait().unwrap().success());
    assert_eq!(process.line(), "stopped");
    let stats = site.client.stats(&kind).await.unwrap();
    assert_eq!((stats.pending, stats.leased, stats.done), (2, 0, 0));
    site.assert_balanced().await;
}

/// Opens a gate when a handler ends, in whatever way.
struct OpenOnDrop(Gate);

impl Drop for OpenOnDrop {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// A Redis that has every write on disk before it answers.
pub(crate) async fn durable_redis() -> Embedded {
    let options = Embedded::options().args(["--appendfsync", "always"]);
    options.start().await.unwrap()
}

/// The runs of so many jobs, each of which may have run again.
async fn take_different(runs: &mut Runs, count: usize) -> HashMap<String, Vec<Job>> {
    let mut jobs: HashMap<String, Vec<Job>> = HashMap::new();
    while jobs.len() < count {
        let job = runs.next().await;
        jobs.entry(job.key().id().to_owned()).or_default().push(job);
    }
    jobs
}

/// Schedules jobs one after the other that fall due over some seconds, until `stop`;
/// returns the keys of those that were acknowledged. Every refusal has to be one that
/// trying again can mend.
fn keep_scheduling(
    site: &Site,
    stop: &Gate,
) -> tokio::task::JoinHandle<(Vec<String>, Vec<keyfall::Error>)> {
    let (client, kind, stop) = (site.client.clone(), site.kind(), stop.clone());
    tokio::spawn(async move {
        let (mut accepted, mut refused) = (Vec::new(), Vec::new());
        let passed = stop.passed();
        tokio::pin!(passed);
        for n in 0_u64.. {
            let key = format!("{kind}:{n}");
            let call = client.schedule(&key, &n).after(ms(n * 13 % 1500));
            match call.await {
                Ok(_) => accepted.push(key),
                Err(error) => {
                    assert!(error.is_retryable(), "{error:?}");
                    refused.push(error);
                }
            }
            let pause = tokio::time::timeout(ms(10), &mut passed);
            if pause.await.is_ok() {
                break;
            }
        }
        (accepted, refused)
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_is_killed_or_restarted_loses_no_job() {
    let mut server = durable_redis().await;
    let site = Site::at(&server.url(), "crash-restart").await;
    let (log, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    let gate = Gate::closed();
    let scheduling = keep_scheduling(&site, &gate);
    let mut seen = take_different(&mut runs, 20).await;
    server.kill_server().await.unwrap();
    // Jobs fall due meanwhile.
    tokio::time::sleep(ms(700)).await;
    server.restart().await.unwrap();
    seen.extend(take_different(&mut runs, 40).await);
    // A clean one.
    server.restart().await.unwrap();
    seen.extend(take_different(&mut runs, 40).await);
    gate.open();
    let (accepted, refused) = scheduling.await.unwrap();
    assert!(
        refused.is_empty(),
        "outages this short are bridged: {refused:?}"
    );

    let mut site = site;
    site.reconnect().await;
    let stats = site.all_ended().await;
    assert_eq!((stats.failed, stats.dead), (0, 0));
    worker.stop().await;
    for job in runs.rest() {
        seen.entry(job.key().id().to_owned()).or_default().push(job);
    }
    for key in &accepted {
        let id = key.rsplit(':').next().unwrap();
        assert!(seen.contains_key(id), "{key} was acknowledged and lost");
    }
    assert_eq!(stats.accepted, accepted.len() as u64);
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_fell_due_while_redis_was_away_runs_as_soon_as_it_is_back() {
    let mut server = durable_redis().await;
    let mut site = Site::at(&server.url(), "crash-away").await;
    let (log, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    for key in site.keys(300) {
        site.client.schedule(key, "").after(ms(500)).await.unwrap();
    }
    server.kill_server().await.unwrap();
    let left = 300 - runs.rest().len();
    tokio::time::sleep(ms(600)).await;
    server.restart().await.unwrap();
    take_different(&mut runs, left).await;
    site.reconnect().await;
    let stats = site.all_ended().await;
    assert_eq!((stats.accepted, stats.done), (300, 300));
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_call_while_redis_is_away_ends_in_time_with_an_error_that_says_so() {
    let mut server = durable_redis().await;
    let url = server.url();
    let client = Client::builder(&url).call_timeout(ms(500));
    let client = client.connect().await.unwrap();
    let key = "crash-call:it:job:1";
    client.schedule(key, "").after(HOUR).await.unwrap();
    server.kill_server().await.unwrap();
    let calls = async {
        [
            client.schedule(key, "").await.map(drop).unwrap_err(),
            client.reschedule(key).await.map(drop).unwrap_err(),
            client.cancel(key).await.map(drop).unwrap_err(),
            client.get(key).await.map(drop).unwrap_err(),
            client
                .stats("crash-call:it:job")
                .await
                .map(drop)
                .unwrap_err(),
            Client::builder(&url)
                .call_timeout(ms(500))
                .connect()
                .await
                .unwrap_err(),
        ]
    };
    for error in tokio::time::timeout(PATIENCE, calls).await.unwrap() {
        assert!(error.is_retryable(), "{error:?}");
        let kind = error.kind();
        assert!(
            matches!(kind, ErrorKind::Unavailable | ErrorKind::OutcomeUnknown),
            "{error:?}"
        );
    }
    server.restart().await.unwrap();
    // A call of which nobody knows, the schedule at the worst, may have come through by now.
    client.schedule(key, "").after(HOUR).await.unwrap();
    assert!(
        client
            .stats("crash-call:it:job")
            .await
            .unwrap()
            .is_balanced()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_starts_while_redis_is_away_waits_for_it() {
    let mut server = durable_redis().await;
    let mut site = Site::at(&server.url(), "crash-wait").await;
    let (log, mut runs) = recorder();
    site.client.schedule(site.key(1), "").await.unwrap();
    server.kill_server().await.unwrap();
    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    let impatient = site.serve(Router::new().route(&site.pattern(), log.done()));
    tokio::time::sleep(ms(300)).await;
    // It can be stopped while it waits.
    impatient.stop().await;
    server.restart().await.unwrap();
    assert_eq!(ids(&[runs.next().await]), ["1"]);
    site.reconnect().await;
    site.all_ended().await;
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_hangs_for_a_while_loses_no_job() {
    let server = durable_redis().await;
    let mut site = Site::at(&server.url(), "crash-hang").await;
    let (log, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    let gate = Gate::closed();
    let scheduling = keep_scheduling(&site, &gate);
    let mut seen = take_different(&mut runs, 20).await;
    let pid = Pid::from_raw(server.pid().unwrap().try_into().unwrap()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    tokio::time::sleep(Duration::from_secs(4)).await;
    kill_process(pid, Signal::CONT).unwrap();
    seen.extend(take_different(&mut runs, 40).await);
    gate.open();
    let (accepted, refused) = scheduling.await.unwrap();
    assert!(
        refused.is_empty(),
        "a hang this short is bridged: {refused:?}"
    );
    site.reconnect().await;
    let stats = site.all_ended().await;
    worker.stop().await;
    for job in runs.rest() {
        seen.entry(job.key().id().to_owned()).or_default().push(job);
    }
    for key in &accepted {
        let id = key.rsplit(':').next().unwrap();
        assert!(seen.contains_key(id), "{key} was acknowledged and lost");
    }
    assert_eq!((stats.failed, stats.dead), (0, 0));
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_whose_lease_cannot_be_renewed_is_ended_and_the_job_is_run_again() {
    let server = durable_redis().await;
    let mut site = Site::at(&server.url(), "crash-renew").await;
    let (log, mut runs) = recorder();
    let ended = Gate::closed();
    let handler = {
        let ended = ended.clone();
        async move |job: Job| {
            log.note(&job);
            if job.attempt() == 1 {
                let _at_its_end = OpenOnDrop(ended.clone());
                std::future::pending::<()>().await;
            }
        }
    };
    let router = Router::new().route(&site.pattern(), handler);
    let worker = Running::start(site.worker(router).lease(Duration::from_secs(2)));
    site.client.schedule(site.key(1), "").await.unwrap();
    let first = runs.next().await;
    let pid = Pid::from_raw(server.pid().unwrap().try_into().unwrap()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    // By the worker's own clock: Redis tells nobody anything now.
    ended.passed().await;
    assert!(first.cancellation().is_raised(), "it was told before");
    kill_process(pid, Signal::CONT).unwrap();
    let second = runs.next().await;
    assert_eq!(second.attempt(), 2);
    assert!(first.fence() < second.fence());
    site.reconnect().await;
    let stats = site.all_ended().await;
    assert_eq!((stats.done, stats.lapsed), (1, 1));
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_ends_while_redis_is_away_is_settled_later_and_not_repeated() {
    let mut server = durable_redis().await;
    let mut site = Site::at(&server.url(), "crash-settle").await;
    let (log, mut runs) = recorder();
    let gate = Gate::closed();
    let ended = Gate::closed();
    let handler = {
        let (gate, ended) = (gate.clone(), ended.clone());
        async move |job: Job| {
            log.note(&job);
            gate.passed().await;
            ended.open();
        }
    };
    let worker = site.serve(Router::new().route(&site.pattern(), handler));
    site.client.schedule(site.key(1), "").await.unwrap();
    runs.next().await;
    server.kill_server().await.unwrap();
    gate.open();
    ended.passed().await;
    server.restart().await.unwrap();
    site.reconnect().await;
    let stats = site.all_ended().await;
    assert_eq!((stats.done, stats.lapsed, stats.failed), (1, 0, 0));
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_waits_for_redis_can_be_stopped() {
    let mut server = durable_redis().await;
    let mut site = Site::at(&server.url(), "crash-stop").await;
    let (log, mut runs) = recorder();
    let gate = Gate::closed();
    let running = format!("{}:it:running:1", site.app);
    let router = Router::new().route(&site.pattern(), log.done()).route(
        &format!("{}:it:running:{{id}}", site.app),
        log.behind(&gate),
    );
    let worker = site.worker(router.clone()).grace(ms(200));
    let worker = Running::start(worker.lease(Duration::from_secs(2)));
    site.client.schedule(&running, "").await.unwrap();
    runs.next().await;
    // Heard of too early, and claimed when it is due: by then Redis is away.
    let claimed = site.key("claimed");
    site.client
        .schedule(&claimed, "")
        .after(ms(600))
        .await
        .unwrap();
    let () = site
        .command(&["PUBLISH", "__keyevent@0__:expired", &claimed])
        .await;
    tokio::time::sleep(ms(200)).await;
    server.kill_server().await.unwrap();
    tokio::time::sleep(ms(600)).await;
    // This one ends, and cannot be settled.
    gate.open();
    let stopped = tokio::time::timeout(PATIENCE, worker.stop());
    stopped.await.expect("it stops without Redis");

    server.restart().await.unwrap();
    site.reconnect().await;
    let next = Running::start(site.worker(router).lease(Duration::from_secs(2)));
    let jobs = runs.take(2).await;
    assert_eq!(ids(&jobs), ["1", "claimed"]);
    for job in jobs {
        let expected = if job.key().as_str() == running { 2 } else { 1 };
        assert_eq!(job.attempt(), expected, "{job:?}");
    }
    site.all_ended().await;
    next.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_killed_all_the_time_lose_nothing_and_repeat_nothing() {
    let server = durable_redis().await;
    let mut site = Site::at(&server.url(), "crash-cut").await;
    let (log, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    let calls = site.keys(600).enumerate().map(|(number, key)| {
        let delay = ms(100 + 4 * number as u64);
        site.client.schedule(key, "").after(delay).into_future()
    });
    try_join_all(calls).await.unwrap();
    let gate = Gate::closed();
    let cutting = tokio::spawn({
        let (url, gate) = (server.url(), gate.clone());
        async move {
            let mut redis = crate::site::connect(&url).await;
            let passed = gate.passed();
            tokio::pin!(passed);
            let mut cut: u32 = 0;
            for kind in ["pubsub", "normal"].iter().cycle() {
                let args = ["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"];
                cut += crate::site::command::<u32>(&mut redis, &args).await;
                if tokio::time::timeout(ms(60), &mut passed).await.is_ok() {
                    return cut;
                }
            }
            unreachable!()
        }
    });
    let jobs = runs.take(600).await;
    gate.open();
    assert!(cutting.await.unwrap() > 20, "connections were cut");
    site.reconnect().await;
    let stats = site.all_ended().await;
    worker.stop().await;
    runs.assert_no_more();
    let different: HashSet<&str> = jobs.iter().map(|job| job.key().id()).collect();
    assert_eq!(different.len(), 600);
    assert_eq!((stats.done, stats.lapsed), (600, 0));
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn notification_flags_that_somebody_took_away_are_merged_back_at_a_reconnect() {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "crash-flags").await;
    let (log, mut runs) = recorder();
    let flags = async || -> String {
        let args = ["CONFIG", "GET", "notify-keyspace-events"];
        let (_, flags): (String, String) = site.command(&args).await;
        flags
    };
    let set = async |flags: &str| {
        let args = ["CONFIG", "SET", "notify-keyspace-events", flags];
        let () = site.command(&args).await;
    };
    set("").await;
    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    let announced = async |others: &[char]| {
        eventually("flags are merged", async || {
            let flags = flags().await;
            let has = |wanted: &[char]| wanted.iter().all(|flag| flags.contains(*flag));
            (has(&['E', 'x']) && has(others)).then_some(())
        })
        .await;
    };
    announced(&[]).await;

    // Nobody notices, and the jobs run all the same.
    set("gK").await;
    for (number, key) in site.keys(5).enumerate() {
        let delay = ms(100 + 60 * number as u64);
        site.client.schedule(key, "").after(delay).await.unwrap();
    }
    let jobs = runs.take(5).await;
    assert!(jobs.iter().all(|job| job.source() != Source::Event));

    let cut: u32 = site.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
    assert_eq!(cut, 1);
    announced(&['g', 'K']).await;
    for (number, key) in site.keys(10).enumerate() {
        let delay = ms(100 + 60 * number as u64);
        site.client.schedule(key, "").after(delay).await.unwrap();
    }
    let jobs = runs.take(10).await;
    assert!(jobs.iter().any(|job| job.source() == Source::Event));
    site.all_ended().await;
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_who_may_not_configure_redis_still_gets_every_job_run() {
    let server = Embedded::start().await.unwrap();
    let admin = Site::at(&server.url(), "crash-acl").await;
    let rule = "on >word ~crash-acl:* ~keyfall:* resetchannels &keyfall:* &__keyevent@0__:expired +@all -@admin";
    let mut args = vec!["ACL", "SETUSER", "worker"];
    args.extend(rule.split(' '));
    let () = admin.command(&args).await;
    let off = ["CONFIG", "SET", "notify-keyspace-events", ""];
    let () = admin.command(&off).await;

    let url = format!("{}?user=worker&pass=word", server.url());
    let site = Site::at(&url, "crash-acl").await;
    let (log, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    for (number, key) in site.keys(10).enumerate() {
        let delay = ms(200 + 60 * number as u64);
        site.client.schedule(key, "").after(delay).await.unwrap();
    }
    let sources: Vec<Source> = runs.take(10).await.iter().map(Job::source).collect();
    assert!(!sources.contains(&Source::Event), "{sources:?}");
    assert!(sources.contains(&Source::Pacer), "{sources:?}");
    site.all_ended().await;
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
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

#[tokio::test]
async fn a_server_that_cannot_carry_keyfall_is_refused_with_the_remedy() {
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
    // An eviction policy without a limit evicts nothing, and another schema is another's.
    let server = start(&evicting[2..]).await;
    let site = Site::at(&server.url(), "crash-refused").await;
    let () = site
        .command(&["HSET", "keyfall:meta", "schema", "99"])
        .await;
    let error = Client::connect(&server.url()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible);
    assert!(error.to_string().contains("another namespace"), "{error}");
    let (log, _) = recorder();
    let router = Router::new().route(&site.pattern(), log.done());
    let refused = site.worker(router).run_until(std::future::pending()).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Incompatible);
    let other = Client::builder(&server.url()).namespace("other");
    other.connect().await.unwrap();
}

#[tokio::test]
async fn a_redis_that_is_full_refuses_new_jobs_and_runs_those_it_has() {
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
    // A worker can even start.
    let late = Site::at(&server.url(), "crash-full").await;
    let worker = late.serve(Router::new().route(&site.pattern(), log.done()));
    runs.take(20).await;
    let stats = site.all_ended().await;
    assert_eq!((stats.accepted, stats.done, stats.cancelled), (21, 20, 1));
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}
