//! Very many connections, very many jobs, and several daemons.

use std::collections::HashSet;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use keyfall::NewJob;
use reqwest::Client;
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::Daemon;
use crate::runs::{PATIENCE, eventually};
use crate::site::{Site, ms};

/// Returns when the daemon has used next to no CPU for a while, apart from a few ticks for its
/// heartbeats and for expired keys of other tests: then it has read the requests of all waiting
/// consumers.
async fn is_idle(daemon: &Daemon) {
    let stat = format!("/proc/{}/stat", daemon.process.child.id());
    let used = || {
        let stat = std::fs::read_to_string(&stat).unwrap_or_default();
        let (_, rest) = stat.rsplit_once(')')?;
        let words: Vec<&str> = rest.split_whitespace().collect();
        let ticks = |place: usize| words[place].parse::<u64>().ok();
        Some(ticks(11)? + ticks(12)?)
    };
    eventually("idle", async || {
        let before = used();
        tokio::time::sleep(ms(500)).await;
        (used() <= before.map(|before| before + 3)).then_some(())
    })
    .await;
}

const MIB: u64 = 1024 * 1024;

async fn due_now(site: &Site, count: usize) {
    let jobs = site
        .keys(count)
        .map(|key| NewJob::new(key, &"x".repeat(200)));
    for answer in site.client.schedule_many(jobs).await {
        answer.unwrap();
    }
}

/// The jobs that a consumer has finished, and whether it was told that there are no more. If not,
/// its request met a stop.
struct Consumed {
    keys: Vec<String>,
    was_told: bool,
}

/// Pulls and finishes jobs until no job comes, or the daemon stops. Counts the jobs that it has
/// finished.
async fn consumes(
    http: Client,
    url: String,
    most: usize,
    wait: &str,
    count: Arc<AtomicUsize>,
) -> Consumed {
    let mut keys = Vec::new();
    loop {
        let call = http.post(format!("{url}/v1/pull"));
        let wanted = json!({"max": most, "wait": wait});
        let Ok(answer) = call.json(&wanted).send().await else {
            let was_told = false;
            return Consumed { keys, was_told };
        };
        let answer: Value = answer.json().await.unwrap();
        let jobs = answer["jobs"].as_array().unwrap();
        if jobs.is_empty() {
            let was_told = true;
            return Consumed { keys, was_told };
        }
        let leases: Vec<&Value> = jobs.iter().map(|job| &job["lease"]).collect();
        finish(&http, &url, leases).await;
        count.fetch_add(jobs.len(), Ordering::Relaxed);
        keys.extend(
            jobs.iter()
                .map(|job| job["key"].as_str().unwrap().to_owned()),
        );
    }
}

/// Finishes the job of each lease, and repeats the call as often as necessary.
async fn finish(http: &Client, url: &str, mut leases: Vec<&Value>) {
    let mut said = "done";
    while !leases.is_empty() {
        let call = http.post(format!("{url}/v1/leases/finish"));
        let answer = call.json(&json!({"leases": leases})).send().await.unwrap();
        let answer: Value = answer.json().await.unwrap();
        let results = answer["results"].as_array().unwrap();
        let mut again = Vec::new();
        for (lease, result) in leases.into_iter().zip(results) {
            match result["result"].as_str().unwrap() {
                // A busy machine may keep Redis from answering in time.
                "failed" if result["problem"]["retryable"] == true => again.push(lease),
                end => assert!(end == "done" || end == said, "{answer}"),
            }
        }
        leases = again;
        // The call may have got through.
        said = "gone";
    }
}

struct Consumers {
    tasks: JoinSet<Consumed>,
    /// The jobs that all of them have finished.
    finished: Arc<AtomicUsize>,
}

/// Starts this number of consumers, at these daemons in turn.
fn consumers(daemons: &[&Daemon], count: usize, most: usize, wait: &'static str) -> Consumers {
    let mut tasks = JoinSet::new();
    let finished = Arc::<AtomicUsize>::default();
    let http = Client::builder().build().unwrap();
    for number in 0..count {
        let url = daemons[number % daemons.len()].url.clone();
        tasks.spawn(consumes(http.clone(), url, most, wait, finished.clone()));
    }
    Consumers { tasks, finished }
}

/// The keys that all consumers finished. Each consumer was told the end.
async fn finished(consumers: Consumers) -> Vec<String> {
    let all = consumers.tasks.join_all().await;
    assert!(all.iter().all(|one| one.was_told));
    all.into_iter().flat_map(|one| one.keys).collect()
}

/// Each of this number of jobs is among the keys, and none twice.
fn assert_each_once(seen: &[String], count: usize) {
    let different: HashSet<&String> = seen.iter().collect();
    assert_eq!((seen.len(), different.len()), (count, count));
}

/// A thousand consumers hold their connections; then jobs fall due.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_waiting_consumers_get_each_job_once() {
    const WAITING: usize = 1000;
    const JOBS: usize = 2000;
    let site = Site::new("http-thousand").await;
    // The usual limits of services.
    let mut command = Command::new("sh");
    let inner = Daemon::command(&site, &["--http-access-log=false"]);
    command.args(["-c", "ulimit -S -n 256; exec \"$@\"", "sh"]);
    command.arg(inner.get_program()).args(inner.get_args());
    let daemon = Daemon::spawned(command);
    let before = daemon.process.memory("VmRSS:");
    let waiting = consumers(&[&daemon], WAITING, 1, "180s");
    let open = format!("/proc/{}/fd", daemon.process.child.id());
    if std::fs::exists(&open).unwrap() {
        eventually("all are connected", async || {
            (std::fs::read_dir(&open).unwrap().count() > WAITING).then_some(())
        })
        .await;
    }
    let jobs = site
        .keys(JOBS)
        .map(|key| NewJob::new(key, "").after(ms(500)));
    for answer in site.client.schedule_many(jobs).await {
        answer.unwrap();
    }
    // By the answers: a stopping daemon does not read a call that has just been sent.
    eventually("all are finished", async || {
        (waiting.finished.load(Ordering::Relaxed) == JOBS).then_some(())
    })
    .await;
    let stats = site.stats().await;
    assert_eq!(stats.done as usize, JOBS);
    assert_eq!((stats.returned, stats.lapsed), (0, 0), "{stats:?}");
    is_idle(&daemon).await;
    let grown = daemon.process.memory("VmHWM:").saturating_sub(before);
    println!("a thousand connections took {} MiB", grown / MIB);
    assert!(grown < 64 * MIB, "{grown} bytes");

    daemon.process.signal(Signal::TERM);
    let all = waiting.tasks.join_all().await;
    let told = all.iter().filter(|one| one.was_told).count();
    assert!(told > WAITING * 9 / 10, "{told} were told");
    let seen: Vec<String> = all.into_iter().flat_map(|one| one.keys).collect();
    assert_each_once(&seen, JOBS);
    daemon.process.ends();
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_daemons_share_the_jobs_and_the_leases() {
    const JOBS: usize = 1000;
    let site = Site::new("http-two").await;
    let flags = ["--http-access-log=false", "--worker-lease", "1h"];
    let (here, there) = (Daemon::with(&site, &flags), Daemon::with(&site, &flags));
    site.client.schedule(site.key("a"), "").await.unwrap();
    let [job] = &here.pull(1, "30s").await[..] else {
        panic!("no job");
    };
    let by = json!({"by": "2h"});
    assert_eq!(there.settle("extend", job, by).await, "extended");
    assert_eq!(there.settle("finish", job, json!({})).await, "done");
    assert_eq!(here.settle("finish", job, json!({})).await, "gone");

    due_now(&site, JOBS).await;
    let served = [&here, &there].map(|daemon| consumers(&[daemon], 20, 5, "2s"));
    let [here_seen, there_seen] = served.map(finished);
    let (here_seen, there_seen) = tokio::join!(here_seen, there_seen);
    assert!(!here_seen.is_empty() && !there_seen.is_empty());
    assert_each_once(&[here_seen, there_seen].concat(), JOBS);

    // A lease outlives the daemon that handed it out.
    site.client.schedule(site.key("a"), "").await.unwrap();
    let [job] = &here.pull(1, "30s").await[..] else {
        panic!("no job");
    };
    let Daemon { mut process, .. } = here;
    process.kill();
    assert_eq!(there.settle("finish", job, json!({})).await, "done");
    site.assert_balanced().await;
}

/// A backlog is drained, and the daemon's memory does not grow with it.
async fn drained(app: &str, count: usize) {
    let site = Site::new(app).await;
    let daemon = Daemon::with(&site, &["--http-access-log=false"]);
    // The memory for any backlog: connections, buffers.
    due_now(&site, 1000).await;
    let warm = finished(consumers(&[&daemon], 64, 10, "2s")).await;
    assert_each_once(&warm, 1000);
    let before = daemon.process.memory("VmHWM:");
    let mut filled = 0;
    while filled < count {
        let jobs = (filled..count.min(filled + 10_000)).map(|number| {
            let key = site.key(format_args!("{number:07}"));
            NewJob::new(key, &"x".repeat(200))
        });
        filled += jobs.len();
        for answer in site.client.schedule_many(jobs).await {
            answer.unwrap();
        }
    }
    let waits = daemon.process.memory("VmHWM:");
    let seen = finished(consumers(&[&daemon], 64, 10, "5s")).await;
    let after = daemon.process.memory("VmHWM:");
    println!(
        "{count} jobs: {} MiB before, {} with all of them waiting, {} when they were drained",
        before / MIB,
        waits / MIB,
        after / MIB
    );
    assert_each_once(&seen, count);
    assert!(after < before + 16 * MIB, "from {before} to {after} bytes");
    let stats = site.stats().await;
    assert_eq!((stats.pending, stats.leased), (0, 0), "{stats:?}");
    daemon.process.stop();
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backlog_is_drained_in_bounded_memory() {
    drained("http-backlog", 4000).await;
}

/// `make extremes`
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes a minute"]
async fn extremes_a_hundred_thousand_are_drained_in_bounded_memory() {
    drained("http-drain", 100_000).await;
}

/// Consumers are cut off and die while they drain a backlog, and nothing is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consumers_that_come_and_go_lose_nothing() {
    const JOBS: usize = 800;
    let site = Site::new("http-churn").await;
    let daemon = Daemon::with(&site, &["--http-access-log=false", "--worker-lease", "1s"]);
    // The jobs must bear any number of consumers that die or are too slow for their leases.
    let jobs = site
        .keys(JOBS)
        .map(|key| NewJob::new(key, &"x".repeat(200)).attempts(1_000_000));
    for answer in site.client.schedule_many(jobs).await {
        answer.unwrap();
    }
    let cut = Arc::new(AtomicUsize::new(0));
    let http = Client::builder().build().unwrap();
    let churn = (0..20).map(|number| {
        let (url, http, cut) = (daemon.url.clone(), http.clone(), cut.clone());
        let (client, kind) = (site.client.clone(), site.kind());
        tokio::spawn(async move {
            while (client.stats(&kind).await.unwrap().done as usize) < JOBS {
                let call = http.post(format!("{url}/v1/pull"));
                let call = call.json(&json!({"max": 20, "wait": "2s"})).send();
                // The pull is often dropped on its way.
                let patience = match rand::random() {
                    true => ms(rand::random_range(0..300)),
                    false => PATIENCE,
                };
                let Ok(Ok(answer)) = tokio::time::timeout(patience, call).await else {
                    cut.fetch_add(1, Ordering::Relaxed);
                    continue;
                };
                let Ok(answer) = answer.json::<Value>().await else {
                    continue;
                };
                let jobs = answer["jobs"].as_array().unwrap();
                if jobs.is_empty() || number % 5 == 0 && rand::random() {
                    // The consumer dies with its jobs.
                    continue;
                }
                let leases: Vec<&Value> = jobs.iter().map(|job| &job["lease"]).collect();
                let call = http.post(format!("{url}/v1/leases/finish"));
                call.json(&json!({"leases": leases})).send().await.unwrap();
            }
        })
    });
    for one in join_all(churn).await {
        one.unwrap();
    }
    println!(
        "{} were cut off: {:?}",
        cut.load(Ordering::Relaxed),
        site.stats().await
    );
    assert!(cut.load(Ordering::Relaxed) > 0);
    let stats = site.all_ended().await;
    assert_eq!((stats.done as usize, stats.dead), (JOBS, 0), "{stats:?}");
    daemon.process.stop();
    site.assert_balanced().await;
}
