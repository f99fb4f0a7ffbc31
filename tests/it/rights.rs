//! The users of `acl.conf`: what they may do suffices, and nothing of it is too much.

use std::time::Duration;

use keyfall::embedded::Embedded;
use keyfall::{
    Cancelled, Client, Handler, Job, JobState, NewJob, Outcome, RetryPolicy, Router, Worker,
};

use crate::log::Log;
use crate::runs::eventually;
use crate::site::{HOUR, Running, Site, ms};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/acl.conf");

const KIND: &str = "app1:it:job";

/// The rules of a user of the file, without the name.
fn rules(user: &str) -> Vec<String> {
    let file = std::fs::read_to_string(FILE).unwrap();
    let mut lines = file.lines().filter_map(|line| line.strip_prefix("user "));
    let line = lines.find(|line| line.starts_with(user)).unwrap();
    line.split(' ').skip(1).map(str::to_owned).collect()
}

/// Those that allow something.
fn grants(user: &str) -> Vec<String> {
    let grants = |rule: &String| rule.starts_with(['+', '~', '&']);
    rules(user).into_iter().filter(grants).collect()
}

fn key(id: &str) -> String {
    format!("{KIND}:{id}")
}

/// A server with the users of the file, as a script of somebody's would start it.
struct Scene {
    server: Embedded,
    admin: Site,
}

impl Scene {
    async fn set() -> Self {
        let server = Embedded::options().args(["--include", FILE]);
        let server = server.start().await.unwrap();
        let admin = Site::at(&server.url(), "app1").await;
        Scene { server, admin }
    }

    fn url(&self, user: &str, password: &str) -> String {
        format!("{}?user={user}&pass={password}", self.server.url())
    }

    /// Everything as at the start, but for a user `limited` that lacks one rule of another.
    async fn without(&self, user: &str, rule: &str) -> String {
        for command in [&["FLUSHALL"][..], &["SCRIPT", "FLUSH"]] {
            let () = self.admin.command(command).await;
        }
        let mut args = vec!["ACL", "SETUSER", "limited", "reset", "on", ">word"];
        let rules = grants(user);
        args.push("resetchannels");
        args.extend(rules.iter().map(String::as_str).filter(|it| *it != rule));
        let () = self.admin.command(&args).await;
        self.url("limited", "word")
    }

    /// A job that runs by somebody who may do everything.
    async fn running(&self, id: &str) -> Running {
        let handler = async |job: Job| job.cancellation().raised().await;
        let router = Router::new().route(&key(id), handler);
        let client = Client::connect(&self.server.url()).await.unwrap();
        let worker = Running::start(Worker::new(client.clone(), router));
        client.schedule(key(id), "").await.unwrap();
        self.admin.reaches(&key(id), JobState::Running).await;
        worker
    }
}

/// All that a producer does. What came out worse than it should is an error, too.
async fn produce(url: &str) -> Result<(), String> {
    let told = |error: keyfall::Error| error.to_string();
    let client = Client::builder(url).call_timeout(Duration::from_secs(5));
    let client = client.connect().await.map_err(told)?;
    for _ in 0..2 {
        let call = client.schedule(key("1"), "a").after(HOUR);
        let scheduled = call.await.map_err(told)?;
        if !scheduled.armed {
            return Err("not armed".into());
        }
    }
    client
        .schedule(key("2"), "")
        .if_absent()
        .await
        .map_err(told)?;
    let jobs = ["3", "4"].map(|id| NewJob::new(key(id), "").after(HOUR));
    for answer in client.schedule_many(jobs).await {
        answer.map_err(told)?;
    }
    client
        .reschedule(key("1"))
        .after(2 * HOUR)
        .await
        .map_err(told)?;
    client.update_payload(key("1"), "b").await.map_err(told)?;
    client
        .get(key("1"))
        .await
        .map_err(told)?
        .ok_or("it is gone")?;
    client.fire_now(key("3")).await.map_err(told)?;
    client.cancel(key("1")).await.map_err(told)?;
    // One that runs.
    client.schedule(key("runs"), "").await.map_err(told)?;
    client
        .update_payload(key("runs"), "b")
        .await
        .map_err(told)?;
    client
        .get(key("runs"))
        .await
        .map_err(told)?
        .ok_or("it is gone")?;
    match client.cancel(key("runs")).await.map_err(told)? {
        Cancelled::Running => Ok(()),
        other => Err(format!("{other:?}")),
    }
}

#[tokio::test]
async fn the_rules_of_a_producer_suffice_and_none_can_be_left_out() {
    let scene = Scene::set().await;
    let log = Log::read();
    let runs = scene.running("runs").await;
    let url = scene.url("keyfall-producer", "change-me");
    produce(&url).await.unwrap();
    assert_eq!(log.warnings(), [""; 0]);
    runs.stop().await;
    let mut unnoticed = Vec::new();
    for rule in grants("keyfall-producer") {
        let url = scene.without("keyfall-producer", &rule).await;
        let runs = scene.running("runs").await;
        // It forgets the scripts that the worker has made it learn.
        let () = scene.admin.command(&["SCRIPT", "FLUSH"]).await;
        let before = log.warnings().len();
        if produce(&url).await.is_ok() && log.warnings().len() == before {
            unnoticed.push(rule);
        }
        runs.drop_it().await;
    }
    assert_eq!(unnoticed, [""; 0]);
}

/// The warnings, but for those of the dead letters that are to be.
fn refusals(log: &Log) -> Vec<String> {
    let mut warnings = log.warnings();
    let meant = ["key=app1:it:job:bury", "fell to their limits"];
    warnings.retain(|line| !meant.iter().any(|text| line.contains(text)));
    warnings
}

/// Jobs of every sort, and a worker who runs them. Returns when all have ended, or why they
/// do not.
async fn work(scene: &Scene, url: &str, log: &Log) -> Result<(), String> {
    let admin = &scene.admin;
    let warned = refusals(log).len();
    // A run that nobody ended.
    admin.client.schedule(key("lapsed"), "").await.unwrap();
    let part = |part: &str| format!("keyfall:{{{KIND}/0}}:{part}");
    let _: u64 = admin.command(&["ZREM", &part("due"), "lapsed"]).await;
    let _: u64 = admin
        .command(&["ZADD", &part("leased"), "1", "lapsed"])
        .await;
    let lease = ["HSET", &part("lease"), "lapsed", "nobody 1 0 1 -"];
    let _: u64 = admin.command(&lease).await;
    let client = match Client::connect(url).await {
        Ok(client) => client,
        Err(error) => return Err(error.to_string()),
    };
    let own = client.clone();
    let handler = move |job: Job| {
        let client = own.clone();
        async move {
            match (job.key().id(), job.attempt()) {
                ("retry", 1) => Outcome::retry("not yet"),
                ("again", 1) => Outcome::again(),
                ("bury1" | "bury2", _) => Outcome::bury("no"),
                ("long", _) => {
                    job.cancellation().raised().await;
                    Outcome::Done
                }
                ("slow", _) => {
                    tokio::time::sleep(ms(1500)).await;
                    Outcome::Done
                }
                ("first", _) => match produce_within(&client).await {
                    Ok(()) => Outcome::Done,
                    Err(error) => Outcome::retry(error),
                },
                _ => Outcome::Done,
            }
        }
    };
    let route = handler.retry(RetryPolicy::fixed(ms(50)).unwrap().attempts(3));
    let router = Router::new().route(&format!("{KIND}:{{id}}"), route);
    let worker = Worker::new(client.clone(), router).lease(Duration::from_secs(1));
    let worker = worker.dead_letters(1, HOUR);
    let worker = Running::start(worker);
    for id in ["first", "retry", "again", "bury1", "bury2", "long", "slow"] {
        admin
            .client
            .schedule(key(id), "")
            .after(ms(100))
            .await
            .unwrap();
    }
    let reported = || refusals(log).len() > warned;
    eventually("it runs, or is reported", async || {
        let view = admin.client.get(key("long")).await.unwrap();
        let runs = view.is_some_and(|view| view.state() == JobState::Running);
        (runs || reported() || worker.is_over()).then_some(())
    })
    .await;
    if !reported() && !worker.is_over() {
        // Its successor comes when it has ended.
        admin.client.schedule(key("long"), "").await.unwrap();
        admin.client.cancel(key("long")).await.unwrap();
        eventually("all has ended, or is reported", async || {
            let stats = admin.client.stats(KIND).await.unwrap();
            let ended = stats.pending + stats.leased == 0;
            (ended || reported()).then_some(())
        })
        .await;
    }
    // What is not heard is reported after three seconds.
    let patient = tokio::time::Instant::now() + Duration::from_secs(5);
    while !reported() && !worker.is_over() && tokio::time::Instant::now() < patient {
        tokio::time::sleep(ms(50)).await;
    }
    if worker.is_over() {
        return Err(worker.ended().await.unwrap_err().to_string());
    }
    worker.drop_it().await;
    match refusals(log).get(warned..) {
        Some([first, ..]) => Err(first.clone()),
        _ => Ok(()),
    }
}

/// What a handler may do.
async fn produce_within(client: &Client) -> keyfall::Result<()> {
    client.schedule(key("next"), "").after(HOUR).await?;
    client.reschedule(key("next")).after(2 * HOUR).await?;
    client.update_payload(key("next"), "b").await?;
    client.cancel(key("next")).await?;
    Ok(())
}

#[tokio::test]
async fn the_rules_of_a_worker_suffice_and_none_can_be_left_out() {
    let scene = Scene::set().await;
    let log = Log::read();
    let url = scene.url("keyfall-worker", "change-me-too");
    work(&scene, &url, &log).await.unwrap();
    let stats = scene.admin.client.stats(KIND).await.unwrap();
    let ended = (stats.done, stats.buried, stats.trimmed);
    assert_eq!(ended, (6, 2, 1), "{stats:?}");
    scene.admin.assert_balanced().await;
    let mut unnoticed = Vec::new();
    for rule in grants("keyfall-worker") {
        let url = scene.without("keyfall-worker", &rule).await;
        if work(&scene, &url, &log).await.is_ok() {
            unnoticed.push(rule);
        }
    }
    assert_eq!(unnoticed, [""; 0]);
}

#[tokio::test]
async fn who_looks_after_jobs_needs_the_four_rules_more_that_the_file_names() {
    let scene = Scene::set().await;
    let mut args = vec!["ACL", "SETUSER", "operator", "on", ">word", "resetchannels"];
    let worker = grants("keyfall-worker");
    args.extend(worker.iter().map(String::as_str));
    args.extend(["+zrevrange", "+hstrlen", "+hscan", "+zscan"]);
    let () = scene.admin.command(&args).await;
    let client = Client::connect(&scene.url("operator", "word"))
        .await
        .unwrap();
    let handler = async || Outcome::bury("no");
    let router = Router::new().route(&format!("{KIND}:{{id}}"), handler);
    let worker = Running::start(Worker::new(client.clone(), router));
    for id in ["1", "2", "3"] {
        client.schedule(key(id), "").await.unwrap();
        scene.admin.reaches(&key(id), JobState::Dead).await;
    }
    worker.stop().await;
    client.schedule(key("4"), "").after(HOUR).await.unwrap();
    let all = || client.prefix("app1:");
    assert_eq!(client.kinds().await.unwrap().len(), 1);
    assert_eq!(client.count("app1:").await.unwrap().dead, 3);
    for state in [JobState::Pending, JobState::Running, JobState::Dead] {
        client.list("app1:", state).await.unwrap();
    }
    assert_eq!(client.dead_letters(key("1")).await.unwrap().len(), 1);
    all().pause().await.unwrap();
    assert_eq!(client.paused().await.unwrap().rules.len(), 1);
    client.requeue(key("1")).await.unwrap();
    client.delete_dead_letter(key("2")).await.unwrap();
    assert_eq!(all().requeue().await.unwrap().done, 1);
    assert_eq!(all().postpone().by(HOUR).await.unwrap().done, 3);
    assert_eq!(all().cancel().await.unwrap().done, 3);
    all().resume().await.unwrap();
    assert!(client.audit(KIND).repair().await.unwrap().is_clean());
    assert!(client.instances().await.unwrap().is_empty());
    assert!(client.unrouted().await.unwrap().is_empty());
    scene.admin.assert_balanced().await;
}
