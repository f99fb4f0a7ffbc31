//! The users of `acl.conf`: their rules suffice, and none of them is superfluous.

use std::time::Duration;

use futures_util::StreamExt;
use keyfall::doctor::{Diagnosis, Severity};
use keyfall::embedded::Embedded;
use keyfall::{
    Cancelled, Client, GroupBy, Handler, Job, JobState, Limit, MissingKey, NewJob, Outcome,
    Rescheduled, RetryPolicy, Router, Tidings, What, Worker, shard_of,
};
use keyfall_testing::files::repository;

use crate::log::Log;
use crate::runs::{PATIENCE, eventually};
use crate::shell::{Ran, keyfall};
use crate::site::{HOUR, Running, Site, connect, ms};
use crate::version::ServerVersion;

fn acl_file() -> String {
    repository().join("acl.conf").display().to_string()
}

const KIND: &str = "app1:it:job";

/// A kind whose jobs start in the turns of their groups.
const TURNS: &str = "app1:it:turns";

/// The further rules for operators.
const OPERATORS: [&str; 10] = [
    "+zrevrange",
    "+hstrlen",
    "+zscan",
    "+type",
    "+renamenx",
    "+scan",
    "+xrange",
    "+xrevrange",
    "+xread",
    "~keyfall:actions",
];

/// The rules of a user of the file, without the name.
pub(crate) fn rules(user: &str) -> Vec<String> {
    let file = std::fs::read_to_string(acl_file()).unwrap();
    // Rules that not every server knows are comments.
    let lines = file.lines().map(|line| line.trim_start_matches("# "));
    let mut lines = lines.filter_map(|line| line.strip_prefix("user "));
    let line = lines.find(|line| line.starts_with(user)).unwrap();
    line.split(' ').skip(1).map(str::to_owned).collect()
}

/// The rules that allow something.
fn grants(user: &str) -> Vec<String> {
    let grants = |rule: &String| rule.starts_with(['+', '~', '&']);
    rules(user).into_iter().filter(grants).collect()
}

fn key(id: &str) -> String {
    format!("{KIND}:{id}")
}

/// A server with the users of the file, set up as by a user's script.
struct Scene {
    server: Embedded,
    admin: Site,
}

impl Scene {
    async fn set() -> Self {
        let server = Embedded::options().args(["--include", &acl_file()]);
        let server = server.start().await.unwrap();
        let admin = Site::at(&server.url(), "app1").await;
        Scene { server, admin }
    }

    fn url(&self, user: &str, password: &str) -> String {
        format!("{}?user={user}&pass={password}", self.server.url())
    }

    /// The state of the start, with a further user `limited`, which has the rules of another user
    /// except one.
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

    /// A running job, on a worker with all rights.
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

/// Limits each kind of `app1:lot:` that begins, together and by groups.
async fn set_limit(scene: &Scene) {
    let groups = Limit::new().per(GroupBy::id_part(1));
    let limit = groups.concurrency(1).rate(9, Duration::from_secs(1));
    scene.admin.client.limit("app1:lot:", limit).await.unwrap();
}

/// Makes all calls of a producer. A worse answer than expected is an error, too.
async fn produce(scene: &Scene, url: &str) -> Result<(), String> {
    set_limit(scene).await;
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
    client
        .schedule("app1:lot:job:a/1", "")
        .await
        .map_err(told)?;
    client.fire_now(key("3")).await.map_err(told)?;
    client.cancel(key("1")).await.map_err(told)?;
    // A running job.
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
    produce(&scene, &url).await.unwrap();
    assert_eq!(log.warnings(), [""; 0]);
    runs.stop().await;
    let mut unnoticed = Vec::new();
    for rule in grants("keyfall-producer") {
        let url = scene.without("keyfall-producer", &rule).await;
        let runs = scene.running("runs").await;
        // The server forgets the scripts of the worker.
        let () = scene.admin.command(&["SCRIPT", "FLUSH"]).await;
        let before = log.warnings().len();
        if produce(&scene, &url).await.is_ok() && log.warnings().len() == before {
            unnoticed.push(rule);
        }
        runs.drop_it().await;
    }
    assert_eq!(unnoticed, [""; 0]);
}

#[tokio::test]
async fn the_rules_of_a_producer_suffice_during_a_reshard() {
    let scene = Scene::set().await;
    let url = scene.url("keyfall-producer", "change-me");
    let client = Client::connect(&url).await.unwrap();
    let ids: Vec<String> = (0..16).map(|id| id.to_string()).collect();
    for id in &ids {
        client.schedule(key(id), "").after(HOUR).await.unwrap();
    }
    // A reshard that was begun and then left.
    let calls = format!("keyfall:{{{KIND}/0}}:calls");
    for (hash, field) in [("keyfall:kinds", KIND), (&calls, "layout")] {
        let _: u64 = scene.admin.command(&["HSET", hash, field, "2 1 1"]).await;
    }
    for id in &ids {
        let moved = client.reschedule(key(id)).after(2 * HOUR).await.unwrap();
        assert!(matches!(moved, Rescheduled::Moved(_)), "{moved:?}");
    }
    for id in &ids {
        let cancelled = client.cancel(key(id)).await.unwrap();
        assert_eq!(cancelled, Cancelled::Cancelled, "{id}");
    }
    scene.admin.assert_balanced().await;
}

/// The warnings, without those about the expected dead letters.
fn refusals(log: &Log) -> Vec<String> {
    let mut warnings = log.warnings();
    let meant = [
        "key=app1:it:job:bury",
        "error=\"not yet\"",
        "its lease has lapsed",
        "exceeded their limits",
    ];
    warnings.retain(|line| !meant.iter().any(|text| line.contains(text)));
    warnings
}

/// Schedules jobs of every sort for a worker. Returns when all have ended, or the reason why they
/// do not; `patience` is the time for a late report.
async fn work(scene: &Scene, url: &str, log: &Log, patience: Duration) -> Result<(), String> {
    let admin = &scene.admin;
    let warned = refusals(log).len();
    let groups = Limit::new().per(GroupBy::id_part(1));
    let limit = admin.client.limit(TURNS, groups.concurrency(1));
    limit.await.unwrap();
    set_limit(scene).await;
    // A run without an end.
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
    let router = Router::new()
        .route(&format!("{KIND}:{{id}}"), route)
        .route(&format!("{TURNS}:{{id}}"), async || {})
        .route("app1:lot:job:{id}", async || {});
    let worker = Worker::new(client.clone(), router).lease(Duration::from_secs(1));
    let worker = worker.dead_letters(1, HOUR);
    let worker = Running::start(worker);
    for id in ["a/1", "a/2", "b/1"] {
        let call = admin.client.schedule(format!("{TURNS}:{id}"), "");
        call.after(ms(100)).await.unwrap();
    }
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
        // A job of which the worker hears is not there any more.
        let news = format!("now {KIND}/0 nobody");
        let _: u64 = admin.command(&["PUBLISH", "keyfall:wake:0", &news]).await;
        // The successor starts when the job has ended.
        admin.client.schedule(key("long"), "").await.unwrap();
        admin.client.cancel(key("long")).await.unwrap();
        eventually("all has ended, or is reported", async || {
            let mut left = 0;
            for kind in [KIND, TURNS] {
                let stats = admin.client.stats(kind).await.unwrap();
                left += stats.pending + stats.leased;
            }
            (left == 0 || reported()).then_some(())
        })
        .await;
    }
    // Missing events are reported after three seconds.
    let patient = tokio::time::Instant::now() + patience;
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

/// Makes all calls that a handler may make.
async fn produce_within(client: &Client) -> keyfall::Result<()> {
    // The first job of a kind gives it its limit.
    client.schedule("app1:lot:job:a/1", "").after(HOUR).await?;
    client.schedule(key("next"), "").after(HOUR).await?;
    client.reschedule(key("next")).after(2 * HOUR).await?;
    client.update_payload(key("next"), "b").await?;
    client.get(key("next")).await?;
    client.cancel(key("next")).await?;
    Ok(())
}

#[tokio::test]
async fn the_rules_of_a_worker_suffice_and_none_can_be_left_out() {
    let scene = Scene::set().await;
    let log = Log::read();
    let url = scene.url("keyfall-worker", "change-me-too");
    work(&scene, &url, &log, Duration::from_secs(5))
        .await
        .unwrap();
    let stats = scene.admin.client.stats(KIND).await.unwrap();
    let ended = (stats.done, stats.buried, stats.trimmed);
    assert_eq!(ended, (6, 2, 1), "{stats:?}");
    scene.admin.assert_balanced().await;
    let mut unnoticed = Vec::new();
    for rule in grants("keyfall-worker") {
        let url = scene.without("keyfall-worker", &rule).await;
        if work(&scene, &url, &log, PATIENCE).await.is_ok() {
            unnoticed.push(rule);
        }
    }
    assert_eq!(unnoticed, [""; 0]);
}

/// The kind whose keys the adopter of the file adopts.
const ADOPTED: &str = "app1:trans:notice";

/// A worker that adopts, at work.
async fn adopter(client: &Client) -> Result<Running, String> {
    let handler = async |job: Job| match (job.key().id(), job.attempt()) {
        ("retry", 1) => Outcome::retry("not yet"),
        _ => Outcome::Done,
    };
    let route = handler
        .adopt(MissingKey::Cancel)
        .retry(RetryPolicy::fixed(ms(50)).unwrap());
    let router = Router::new().route(&format!("{ADOPTED}:{{id}}"), route);
    let worker = Running::start(Worker::new(client.clone(), router));
    eventually("it starts, or does not", async || {
        (worker.is_over() || worker.is_ready()).then_some(())
    })
    .await;
    match worker.is_over() {
        true => Err(worker.ended().await.unwrap_err().to_string()),
        false => Ok(worker),
    }
}

#[tokio::test]
async fn the_rules_of_an_adopter_suffice_and_it_needs_all_to_start() {
    let scene = Scene::set().await;
    let log = Log::read();
    let admin = &scene.admin;
    let flags = ["CONFIG", "SET", "notify-keyspace-events", "ExKg$"];
    let () = admin.command(&flags).await;
    let id = |id: &str| format!("{ADOPTED}:{id}");
    // An existing key, a new key, and a key without a string.
    let () = admin
        .command(&["SET", &id("before"), "v", "EX", "900"])
        .await;
    let url = scene.url("keyfall-adopter", "change-me-three");
    let worker = adopter(&Client::connect(&url).await.unwrap())
        .await
        .unwrap();
    let () = admin
        .command(&["SET", &id("retry"), "v", "EX", "900"])
        .await;
    let () = admin.command(&["RPUSH", &id("list"), "v"]).await;
    let () = admin.command(&["EXPIRE", &id("list"), "900"]).await;
    for id in ["before", "retry", "list"].map(id) {
        admin.reaches(&id, JobState::Pending).await;
        let () = admin.command(&["PEXPIRE", &id, "100"]).await;
    }
    eventually("all have ended", async || {
        let stats = admin.client.stats(ADOPTED).await.unwrap();
        ((stats.done, stats.buried) == (2, 1)).then_some(())
    })
    .await;
    worker.stop().await;
    let warnings = log.warnings();
    let others = warnings
        .iter()
        .filter(|line| !line.contains("held no string") && !line.contains("not yet"));
    assert_eq!(others.collect::<Vec<_>>(), [""; 0]);
    admin.assert_balanced().await;

    let ours = grants("keyfall-worker");
    let theirs = grants("keyfall-adopter");
    for rule in theirs.iter().filter(|rule| !ours.contains(rule)) {
        let url = scene.without("keyfall-adopter", rule).await;
        let refused = adopter(&Client::connect(&url).await.unwrap()).await;
        let error = refused.map(|_| ()).unwrap_err();
        assert!(error.contains(rule), "without {rule}: {error}");
    }
    // A channel rule for further names does not allow a pattern.
    let url = scene
        .without("keyfall-adopter", "&__keyspace@0__:app1:trans:notice:*")
        .await;
    let more = ["ACL", "SETUSER", "limited", "&__keyspace@0__:app1:*"];
    let () = admin.command(&more).await;
    let refused = adopter(&Client::connect(&url).await.unwrap()).await;
    assert!(
        refused
            .map(|_| ())
            .unwrap_err()
            .contains("&__keyspace@0__:app1:trans:notice:*")
    );
}

#[tokio::test]
async fn the_doctor_says_which_rule_an_adopter_lacks() {
    let scene = Scene::set().await;
    let client = Client::connect(&scene.server.url()).await.unwrap();
    let worker = adopter(&client).await.unwrap();
    let look = async |url: String| {
        eventually("somebody adopts", async || {
            let live = scene.admin.client.instances().await.unwrap();
            live.iter().any(|one| !one.adopts.is_empty()).then_some(())
        })
        .await;
        let diagnosis = diagnosed(&scene, &url).await;
        let mut findings = diagnosis.findings.into_iter();
        findings.find(|it| it.check.id == "rights-adopt").unwrap()
    };
    for (user, password, severity) in [
        ("keyfall-producer", "change-me", Severity::Info),
        ("keyfall-worker", "change-me-too", Severity::Info),
        ("keyfall-adopter", "change-me-three", Severity::Ok),
    ] {
        let found = look(scene.url(user, password)).await;
        assert_eq!(found.severity, severity, "{user}: {found}");
    }
    let ours = grants("keyfall-worker");
    let theirs = grants("keyfall-adopter");
    for rule in theirs.iter().filter(|rule| !ours.contains(rule)) {
        let found = look(scene.without("keyfall-adopter", rule).await).await;
        assert_eq!(found.severity, Severity::Error, "without {rule}: {found}");
        let remedy = found.remedy.as_deref().unwrap_or_default();
        assert!(remedy.contains(rule), "without {rule}: {found}");
    }
    worker.stop().await;
}

#[tokio::test]
async fn a_user_without_the_history_is_told_the_missing_rule() {
    let scene = Scene::set().await;
    let client = &scene.admin.client;
    client.schedule(key("1"), "").after(HOUR).await.unwrap();
    let url = scene.url("keyfall-worker", "change-me-too");
    let mut why = keyfall(&["why", &key("1")]);
    why.env("KEYFALL_REDIS_URL", &url);
    let ran = Ran::of(why).await;
    assert_ne!(ran.code, 0, "{ran:?}");
    for hint in ["acl.conf", "keyfall doctor", "rights-look"] {
        assert!(ran.err.contains(hint), "{ran:?}");
    }
}

/// The findings of the doctor for a user, on a server with one job.
async fn diagnosed(scene: &Scene, url: &str) -> Diagnosis {
    let client = &scene.admin.client;
    client.schedule(key("1"), "").after(HOUR).await.unwrap();
    client.cancel(key("1")).await.unwrap();
    Client::builder(url).diagnose().await.unwrap()
}

/// The findings on rights.
fn of_rights(diagnosis: &Diagnosis) -> Vec<(&str, Severity)> {
    let findings = diagnosis.findings.iter();
    let rights = findings.filter(|it| it.check.id.starts_with("rights-"));
    rights.map(|it| (it.check.id, it.severity)).collect()
}

#[tokio::test]
async fn the_doctor_works_with_each_user_and_says_which_rule_is_missing() {
    let scene = Scene::set().await;
    for (user, password, runs) in [
        ("keyfall-producer", "change-me", Severity::Info),
        ("keyfall-worker", "change-me-too", Severity::Ok),
    ] {
        let diagnosis = diagnosed(&scene, &scene.url(user, password)).await;
        let expected = [
            ("rights-schedule", Severity::Ok),
            ("rights-run", runs),
            ("rights-adopt", Severity::Info),
            ("rights-look", Severity::Info),
        ];
        assert_eq!(of_rights(&diagnosis), expected, "{diagnosis:#?}");
        // On a busy machine Redis seems far away.
        let rest = diagnosis
            .findings
            .iter()
            .filter(|it| it.check.id != "round-trip");
        let worst = rest.map(|it| it.severity).max();
        assert_eq!(worst, Some(Severity::Info), "{diagnosis:#?}");
        let mut unseen = diagnosis.findings.iter().filter(|it| !it.is_seen);
        assert!(unseen.all(|it| it.found.contains("ACL") || it.found.contains("NOPERM")));
        for rule in grants(user) {
            let url = scene.without(user, &rule).await;
            let diagnosis = diagnosed(&scene, &url).await;
            let errors = diagnosis
                .findings
                .iter()
                .filter(|it| it.severity > Severity::Info);
            let remedies: Vec<&str> = errors.filter_map(|it| it.remedy.as_deref()).collect();
            let named = |remedy: &&str| remedy.contains(rule.trim_end_matches('*'));
            assert!(
                remedies.iter().any(named),
                "{user} without {rule}: {diagnosis:#?}"
            );
        }
    }
    for rule in OPERATORS {
        let _ = scene.without("keyfall-worker", "").await;
        let mut args = vec!["ACL", "SETUSER", "limited"];
        args.extend(OPERATORS.iter().filter(|it| **it != rule));
        let () = scene.admin.command(&args).await;
        let diagnosis = diagnosed(&scene, &scene.url("limited", "word")).await;
        let findings = &mut diagnosis.findings.iter();
        let look = findings.find(|it| it.check.id == "rights-look").unwrap();
        let remedy = look.remedy.as_deref().unwrap_or_default();
        assert!(remedy.contains(rule), "without {rule}: {look}");
    }
    // The refused calls have changed nothing.
    let keys: Vec<String> = scene.admin.command(&["KEYS", "app1:*"]).await;
    assert_eq!(keys, [""; 0]);
    // The flushed schema is not written again either.
    let schema: Option<String> = scene
        .admin
        .command(&["HGET", "keyfall:meta", "schema"])
        .await;
    assert_eq!(schema, None);
    scene.admin.assert_balanced().await;
}

/// A user without rights to `INFO` and `CONFIG`: two reasons alternate in the list of checks.
#[tokio::test]
async fn the_doctor_reports_each_reason_of_a_forbidden_check_once() {
    let scene = Scene::set().await;
    let url = scene.without("keyfall-producer", "+info").await;
    let mut doctor = keyfall(&["doctor"]);
    doctor.env("KEYFALL_REDIS_URL", &url);
    let ran = Ran::of(doctor).await;
    let lines = ran.out.lines();
    let mut reasons: Vec<&str> = lines
        .filter_map(|it| it.split_once(": not seen: "))
        .map(|it| it.1)
        .collect();
    assert!(reasons.len() > 1, "{ran:?}");
    reasons.sort_unstable();
    let said = reasons.len();
    reasons.dedup();
    assert_eq!(reasons.len(), said, "{ran:?}");
}

#[tokio::test]
async fn an_operator_needs_the_additional_rules_of_the_file() {
    let scene = Scene::set().await;
    let mut args = vec!["ACL", "SETUSER", "operator", "on", ">word", "resetchannels"];
    let worker = grants("keyfall-worker");
    args.extend(worker.iter().map(String::as_str));
    args.extend(OPERATORS);
    let () = scene.admin.command(&args).await;
    let client = Client::connect(&scene.url("operator", "word"))
        .await
        .unwrap();
    let mut tail = client.tail().last(1000);
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
    client.log_action("pause", "app1:").count(1).await.unwrap();
    let actions = client.actions(9, |_| true).await.unwrap();
    assert_eq!(actions[0].count, Some(1), "{actions:?}");
    client.requeue(key("1")).await.unwrap();
    client.delete_dead_letter(key("2")).await.unwrap();
    assert_eq!(all().requeue().await.unwrap().done, 1);
    assert_eq!(all().postpone().by(HOUR).await.unwrap().done, 3);
    assert_eq!(all().cancel().await.unwrap().done, 3);
    all().resume().await.unwrap();
    let mut told = Vec::new();
    while told.last() != Some(&What::Resumed) {
        match tail.next().await.unwrap() {
            Tidings::Happened(it) => told.push(it.what),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(told[0], What::Scheduled);
    all().keep_history(0).await.unwrap();
    assert_eq!(client.history_kept(KIND).await.unwrap(), 0);
    assert!(client.audit(KIND).repair().await.unwrap().is_clean());
    for id in ["5", "6", "7", "8"] {
        client.schedule(key(id), "").after(HOUR).await.unwrap();
    }
    assert_eq!(client.reshard(KIND, 2).await.unwrap().to, 2);
    assert_eq!(client.prefix(KIND).cancel().await.unwrap().done, 4);
    assert!(client.instances().await.unwrap().is_empty());
    assert!(client.unrouted().await.unwrap().is_empty());
    scene.admin.assert_balanced().await;
}

/// Makes all calls of a caller of functions, on a server where a job `runs`. A worse answer than
/// expected is an error, too.
async fn call(scene: &Scene, url: &str) -> Result<(), String> {
    let admin = &scene.admin;
    let wakes = redis::Client::open(&*admin.url).unwrap();
    let mut wakes = wakes.get_async_pubsub().await.unwrap();
    wakes.subscribe("keyfall:wake:0").await.unwrap();
    let redis = connect(url).await;
    let calls = async |words: &str, expected: &str| -> Result<(), String> {
        let mut cmd = redis::Cmd::new();
        for word in words.split(' ') {
            cmd.arg(word);
        }
        let answer: Result<redis::Value, _> = cmd.query_async(&mut redis.clone()).await;
        let answer = format!("{:?}", answer.map_err(|error| error.to_string())?);
        let is_fine = answer.contains(expected) && !answer.contains("unarmed");
        is_fine.then_some(()).ok_or(answer)
    };
    calls(
        "FCALL keyfall_schedule 1 app1:it:new:1 x EX 3600",
        "created",
    )
    .await?;
    calls(
        "FCALL keyfall_schedule 1 app1:it:job:1 x EX 3600",
        "created",
    )
    .await?;
    calls(
        "FCALL keyfall_schedule 1 app1:it:job:1 x EX 7200 CALL c",
        "replaced",
    )
    .await?;
    let left: u64 = admin.command(&["TTL", &key("1")]).await;
    if left < 5400 {
        return Err("the trigger was not moved".into());
    }
    calls("FCALL_RO keyfall_get 1 app1:it:job:1", "pending").await?;
    calls("FCALL keyfall_cancel 1 app1:it:job:1", "cancelled").await?;
    let is_there: bool = admin.command(&["EXISTS", &key("1")]).await;
    if is_there {
        return Err("the trigger is still there".into());
    }
    calls(
        "FCALL keyfall_schedule 1 app1:it:job:runs x EX 3600",
        "succeeds",
    )
    .await?;
    calls("FCALL_RO keyfall_get 1 app1:it:job:runs", "running").await?;
    calls("FCALL keyfall_cancel 1 app1:it:job:runs", "running").await?;
    // A kind with a limit, a kind that a rule pauses, and a kind that is being resharded.
    set_limit(scene).await;
    calls(
        "FCALL keyfall_schedule 1 app1:lot:job:1 x EX 3600",
        "created",
    )
    .await?;
    let ledger = "keyfall:{app1:lot:job/0}:calls";
    let limited: Option<String> = admin.command(&["HGET", ledger, "limit"]).await;
    if limited.is_none() {
        return Err("a kind was not limited".into());
    }
    let rule = ["HSET", "keyfall:paused", "app1:it:halted:", "1"];
    let _: u64 = admin.command(&rule).await;
    calls(
        "FCALL keyfall_schedule 1 app1:it:halted:1 x EX 3600",
        "created",
    )
    .await?;
    let ledger = "keyfall:{app1:it:halted/0}:calls";
    let paused: Option<u64> = admin.command(&["HGET", ledger, "paused"]).await;
    if paused.is_none() {
        return Err("a kind was not paused".into());
    }
    for (key, field) in [("keyfall:kinds", "app1:it:halted"), (ledger, "layout")] {
        let _: u64 = admin.command(&["HSET", key, field, "2 1 1"]).await;
    }
    let moves = (2..).map(|id: u32| format!("app1:it:halted:{id}"));
    let mut moves = moves.filter(|key| shard_of(&key[15..], 2) == 1);
    let moves = moves.next().unwrap();
    // This lookup updates the other ledger.
    assert!(admin.client.get(&moves).await.unwrap().is_none());
    let schedule = format!("FCALL keyfall_schedule 1 {moves} x EX 3600");
    calls(&schedule, "created").await?;
    let history = "keyfall:{app1:it:job/0}:history";
    let told: redis::Value = admin.command(&["XRANGE", history, "-", "+"]).await;
    if !format!("{told:?}").contains("fcall") {
        return Err("the history does not tell of it".into());
    }
    let _: u64 = admin.command(&["PUBLISH", "keyfall:wake:0", "end"]).await;
    let mut heard = Vec::new();
    while heard.last().is_none_or(|it| it != "end") {
        let message = wakes.on_message().next().await.unwrap();
        heard.push(message.get_payload::<String>().unwrap());
    }
    let is_heard = |what: &str| heard.iter().any(|it| it.starts_with(what));
    let is_heard = is_heard("kind app1:it:new") && is_heard("due app1:it:new/0");
    is_heard.then_some(()).ok_or("nobody was woken".into())
}

#[tokio::test]
async fn the_rules_of_a_caller_suffice_and_none_can_be_left_out() {
    let scene = Scene::set().await;
    if ServerVersion::of(&mut scene.admin.redis()).await < ServerVersion::Redis(7, 0) {
        return;
    }
    let mut unnoticed = Vec::new();
    for rule in ["".to_owned()].into_iter().chain(grants("keyfall-caller")) {
        let url = scene.without("keyfall-caller", &rule).await;
        scene.admin.client.functions().install().await.unwrap();
        let schema = ["HSETNX", "keyfall:meta", "schema", "1"];
        let _: u64 = scene.admin.command(&schema).await;
        let runs = scene.running("runs").await;
        match call(&scene, &url).await {
            Ok(()) => unnoticed.push(rule),
            Err(error) => assert_ne!(rule, "", "{error}"),
        }
        runs.drop_it().await;
    }
    assert_eq!(unnoticed, [""], "but for the one that lacks nothing");
    scene.admin.assert_balanced().await;
}

/// Makes all calls of an installer.
async fn install(scene: &Scene, url: &str) -> keyfall::Result<()> {
    let functions = Client::builder(url).functions()?;
    functions.install().await?;
    functions.state().await?;
    // The library is loaded, and the database is emptied.
    let () = scene.admin.command(&["FLUSHALL"]).await;
    functions.install().await?;
    functions.remove().await.map(drop)
}

#[tokio::test]
async fn the_rules_of_an_installer_suffice_and_none_can_be_left_out() {
    let scene = Scene::set().await;
    if ServerVersion::of(&mut scene.admin.redis()).await < ServerVersion::Redis(7, 0) {
        return;
    }
    let mut unnoticed = Vec::new();
    for rule in ["".to_owned()]
        .into_iter()
        .chain(grants("keyfall-installer"))
    {
        let url = scene.without("keyfall-installer", &rule).await;
        let () = scene.admin.command(&["FUNCTION", "FLUSH"]).await;
        match install(&scene, &url).await {
            Ok(()) => unnoticed.push(rule),
            Err(error) => assert_ne!(rule, "", "{error}"),
        }
    }
    assert_eq!(unnoticed, [""], "but for the one that lacks nothing");
}
