//! A Redis that is killed, hangs or cuts connections: no job is lost, and no ended job is repeated.

use std::collections::{HashMap, HashSet};
use std::future::IntoFuture;
use std::time::Duration;

use futures_util::future::try_join_all;
use keyfall::embedded::Embedded;
use keyfall::{Client, Job, Router};
use keyfall_testing::proxies::{FaultyProxy, Weather};
use keyfall_testing::server::{process_of, socket_of};
use rustix::process::{Signal, kill_process};

use crate::runs::{Gate, PATIENCE, Runs, eventually, ids, recorder};
use crate::site::{HOUR, Running, Site, ms};

/// Opens a gate when a handler ends in any way.
struct OpenOnDrop(Gate);

impl Drop for OpenOnDrop {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// All acknowledged writes of the server survive a kill and a restart: it hands each write to the
/// system before it answers, and never waits for a disk. With `everysec`, a server with a busy disk
/// answers up to two seconds before the write, and with `always` a busy disk holds every answer up.
pub(crate) const KEEPS_ALL: [&str; 2] = ["--appendfsync", "no"];

/// A Redis that keeps all acknowledged writes.
pub(crate) async fn durable_redis() -> Embedded {
    let options = Embedded::options().args(KEEPS_ALL);
    options.start().await.unwrap()
}

/// The runs of this number of jobs, some of which may have run again.
pub(crate) async fn take_different(runs: &mut Runs, count: usize) -> HashMap<String, Vec<Job>> {
    let mut jobs: HashMap<String, Vec<Job>> = HashMap::new();
    while jobs.len() < count {
        let job = runs.next().await;
        jobs.entry(job.key().id().to_owned()).or_default().push(job);
    }
    jobs
}

/// Schedules jobs one after the other, due within some seconds, until `stop`; returns the keys of
/// the acknowledged jobs. Every refusal must be retryable.
pub(crate) fn keep_scheduling(
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
    // A clean restart.
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
async fn jobs_that_fall_due_in_an_outage_run_as_soon_as_redis_is_back() {
    let mut server = durable_redis().await;
    let mut site = Site::at(&server.url(), "crash-away").await;
    let (log, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    for key in site.keys(300) {
        site.client.schedule(key, "").after(ms(500)).await.unwrap();
    }
    server.kill_server().await.unwrap();
    let left = 300 - runs.rest().len();
    // Until all jobs are overdue.
    tokio::time::sleep(ms(600)).await;
    server.restart().await.unwrap();
    take_different(&mut runs, left).await;
    site.reconnect().await;
    let stats = site.all_ended().await;
    assert_eq!((stats.accepted, stats.done), (300, 300));
    worker.stop().await;
    site.assert_balanced().await;
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
    // The workers try in vain meanwhile, which the test cannot see.
    tokio::time::sleep(ms(300)).await;
    // A worker can be stopped while it waits.
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
    let pid = process_of(&server);
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
async fn a_run_whose_lease_cannot_be_renewed_ends_and_the_job_runs_again() {
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
    let pid = process_of(&server);
    kill_process(pid, Signal::STOP).unwrap();
    // The worker's own clock decides: Redis does not answer now.
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
async fn a_run_that_ends_in_an_outage_is_settled_later_and_not_repeated() {
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
    // The worker hears of the job too early, and claims it when it is due: by then Redis is away.
    let claimed = site.key("claimed");
    site.client
        .schedule(&claimed, "")
        .after(ms(600))
        .await
        .unwrap();
    let () = site
        .command(&["PUBLISH", "__keyevent@0__:expired", &claimed])
        .await;
    // A ledger remembers the lanes of its callers: one lane of the schedule, and one of the claim.
    let calls = format!("keyfall:{{{}/0}}:calls", site.kind());
    eventually("it was told how long to wait", async || {
        let lanes: u32 = site.command(&["HLEN", &calls]).await;
        (lanes > 1).then_some(())
    })
    .await;
    server.kill_server().await.unwrap();
    // The job falls due meanwhile. The test cannot see whether it is claimed in vain by then.
    tokio::time::sleep(ms(600)).await;
    // This run ends, and cannot be settled.
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
async fn constantly_killed_connections_lose_and_repeat_nothing() {
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
    assert!(cutting.await.unwrap() > 5, "connections were cut");
    site.reconnect().await;
    let stats = site.all_ended().await;
    worker.stop().await;
    runs.assert_no_more();
    let different: HashSet<&str> = jobs.iter().map(|job| job.key().id()).collect();
    assert_eq!(different.len(), 600);
    assert_eq!((stats.done, stats.lapsed), (600, 0));
    site.assert_balanced().await;
}

/// By the time that a call gets its turn to list the kind, it has waited for calls before it, and
/// has less time left than a listing takes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kind_becomes_known_again_while_calls_keep_coming() {
    let server = Embedded::start().await.unwrap();
    let proxy = FaultyProxy::to(socket_of(&server), |_| {}).await.unwrap();
    let builder = Client::builder(&proxy.url).call_timeout(ms(3000));
    let client = builder.connect().await.unwrap();
    let network = |cut| {
        proxy.set(Weather {
            delay: ms(300),
            cut,
            ..Weather::default()
        });
    };
    network(true);
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let crowd = tokio::spawn(async move {
        for n in 0_u64.. {
            let (client, tell) = (client.clone(), tell.clone());
            tokio::spawn(async move {
                let call = client.schedule(format!("crash-crowd:it:job:{n}"), "");
                // The test may be over.
                let _ = tell.send(call.after(HOUR).await.is_ok());
            });
            tokio::time::sleep(ms(50)).await;
        }
    });
    for _ in 0..20 {
        assert!(!told.recv().await.unwrap(), "nothing passes");
    }
    network(false);
    let succeeds = async { while !told.recv().await.unwrap() {} };
    let succeeded = tokio::time::timeout(PATIENCE, succeeds).await;
    assert!(succeeded.is_ok(), "no call succeeds, though Redis is back");
    crowd.abort();
}

#[tokio::test]
async fn simultaneous_calls_list_their_kind_once_for_each_connection() {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "crash-known").await;
    let made_known = async || {
        let info: String = site.command(&["INFO", "commandstats"]).await;
        let mut lines = info.lines();
        let calls = lines.find_map(|line| line.strip_prefix("cmdstat_hsetnx:calls="));
        calls
            .unwrap()
            .split(',')
            .next()
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    let keys: Vec<String> = site.keys(200).collect();
    let first = site.client.schedule(&keys[0], "").after(HOUR);
    first.await.unwrap();
    let kill = ["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"];
    let cut: u32 = site.command(&kill).await;
    assert!(cut > 0);
    // The call uses another connection, so the client asks again: the server may have restarted,
    // and have forgotten the kind.
    site.client.get(&keys[0]).await.unwrap();
    let before = made_known().await;
    let calls = keys
        .iter()
        .map(|key| site.client.schedule(key, "").after(HOUR).into_future());
    try_join_all(calls).await.unwrap();
    let calls = made_known().await - before;
    // One call, and one more for each connection that a slow machine makes the client open.
    assert!((1..20).contains(&calls), "{calls} times");
}
