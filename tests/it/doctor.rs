//! The doctor finds exactly the problems of a server; each remedy works as it is printed.

use std::collections::BTreeMap;
use std::time::Duration;

use keyfall::doctor::{CHECKS, Diagnosis, Finding, Severity};
use keyfall::embedded::Embedded;
use keyfall::{
    Client, CopyMark, CopyTerms, ErrorKind, JobState, Kind, NewJob, Outcome, Router, Rule,
};
use keyfall_testing::proxies::FreezingProxy;
use serde_json::Value;

use crate::log::Log;
use crate::runs::{eventually, recorder};
use crate::site::{HOUR, Site};
use crate::workers::SECOND;

use Severity::{Error, Info, Ok as Fine, Warning};

/// The findings: check → severity. The finding on the distance of Redis is left out: on a busy
/// machine it always appears.
type Told = BTreeMap<&'static str, Severity>;

fn told(diagnosis: &Diagnosis) -> Told {
    let findings = diagnosis.findings.iter();
    let told = findings.filter(|it| it.severity > Fine && it.check.id != FAR);
    told.map(|it| (it.check.id, it.severity)).collect()
}

const FAR: &str = "round-trip";

/// A doctor that leaves out the same finding.
fn doctor(flags: &str) -> String {
    let ids = CHECKS.iter().map(|it| it.id).filter(|id| *id != FAR);
    let ids: Vec<&str> = ids.collect();
    format!("doctor --only {} {flags}", ids.join(","))
}

/// The findings on a server with our redis.conf and these settings, and without a worker.
fn but(others: &[(&'static str, Severity)]) -> Told {
    let usual = [("memory-limit", Info), ("workers-alive", Info)];
    usual.iter().chain(others).copied().collect()
}

fn finding<'a>(diagnosis: &'a Diagnosis, id: &str) -> &'a Finding {
    let mut findings = diagnosis.findings.iter();
    findings.find(|it| it.check.id == id).expect(id)
}

/// The words of a remedy, as redis-cli takes them.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (part, text) in line.split('"').enumerate() {
        if part % 2 == 1 {
            words.push(text.to_owned());
        } else {
            words.extend(text.split_whitespace().map(str::to_owned));
        }
    }
    words
}

async fn config(site: &Site, settings: &[(&str, &str)]) {
    for (name, value) in settings {
        let () = site.command(&["CONFIG", "SET", name, value]).await;
    }
}

async fn site(app: &str) -> (Embedded, Site) {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), app).await;
    (server, site)
}

/// The given settings, the findings, and the settings that the remedy cannot know.
type Break = (
    &'static [(&'static str, &'static str)],
    &'static str,
    Severity,
    &'static [(&'static str, &'static str)],
);

/// Every setting of redis.conf, and further settings that can be wrong.
const BREAKS: [Break; 20] = [
    (
        &[("notify-keyspace-events", "")],
        "notify-flags",
        Warning,
        &[],
    ),
    (
        &[("notify-keyspace-events", "gE")],
        "notify-flags",
        Warning,
        &[],
    ),
    (
        &[("notify-keyspace-events", "Kx")],
        "notify-flags",
        Warning,
        &[],
    ),
    (
        &[("client-output-buffer-limit", "pubsub 32mb 8mb 60")],
        "pubsub-buffer",
        Warning,
        &[],
    ),
    (&[("hz", "50")], "server-hz", Info, &[]),
    (
        &[("maxmemory-policy", "volatile-ttl")],
        "eviction-policy",
        Info,
        &[],
    ),
    (
        &[("maxmemory-policy", "allkeys-lru")],
        "eviction-policy",
        Warning,
        &[],
    ),
    (
        &[("maxmemory", "1gb"), ("maxmemory-policy", "volatile-lru")],
        "eviction-policy",
        Warning,
        &[("maxmemory", "0")],
    ),
    (
        &[("maxmemory", "1gb"), ("maxmemory-policy", "allkeys-lru")],
        "eviction-policy",
        Error,
        &[("maxmemory", "0")],
    ),
    (
        &[("maxmemory", "999gb")],
        "memory-limit",
        Warning,
        &[("maxmemory", "0")],
    ),
    (&[("appendonly", "no")], "persistence", Error, &[]),
    (
        &[("appendonly", "no"), ("save", "3600 1")],
        "persistence",
        Warning,
        &[("save", "")],
    ),
    (&[("appendfsync", "no")], "aof-fsync", Warning, &[]),
    (
        &[("aof-load-truncated", "no")],
        "aof-load-truncated",
        Warning,
        &[],
    ),
    (&[("save", "3600 1")], "snapshots", Info, &[]),
    (&[("timeout", "300")], "client-timeout", Warning, &[]),
    (&[("tcp-keepalive", "0")], "tcp-keepalive", Warning, &[]),
    (
        &[("min-replicas-to-write", "1")],
        "min-replicas",
        Error,
        &[("min-replicas-to-write", "0")],
    ),
    (
        &[
            ("min-replicas-to-write", "1"),
            ("min-replicas-max-lag", "0"),
        ],
        "replica-lag",
        Warning,
        &[("min-replicas-to-write", "0")],
    ),
    (
        &[("maxmemory", "1mb")],
        "memory-headroom",
        Error,
        &[("maxmemory", "0")],
    ),
];

#[tokio::test]
async fn a_server_with_the_shipped_configuration_has_no_problem() {
    let (_server, site) = site("doctor-fine").await;
    let diagnosis = site.client.diagnose().await.unwrap();
    assert_eq!(told(&diagnosis), but(&[]), "{diagnosis:#?}");
    let ids: Vec<&str> = diagnosis.findings.iter().map(|it| it.check.id).collect();
    let all: Vec<&str> = CHECKS.iter().map(|it| it.id).collect();
    assert_eq!(ids, all);
}

#[tokio::test]
async fn every_broken_setting_is_found_alone_and_its_remedy_mends_it() {
    let (_server, site) = site("doctor-settings").await;
    // The settings of redis.conf, by their names.
    let settings = CHECKS.iter().flat_map(|check| check.settings);
    for name in settings.map(|line| line.split(' ').next().unwrap()) {
        let breaks = BREAKS.iter().flat_map(|(settings, ..)| *settings);
        assert!(breaks.clone().any(|(broken, _)| *broken == name), "{name}");
    }
    for (settings, id, severity, rest) in BREAKS {
        config(&site, settings).await;
        let diagnosis = Client::builder(&site.url).diagnose().await.unwrap();
        let mut found = told(&diagnosis);
        // A limit that is set to cause another fault hides the finding of a missing limit.
        if settings.iter().any(|(name, _)| *name == "maxmemory") {
            found.entry("memory-limit").or_insert(Info);
        }
        let mut expected = but(&[(id, severity)]);
        // A setting that cannot be written cannot be tried either.
        expected.insert(id, severity);
        assert_eq!(found, expected, "{settings:?}: {diagnosis:#?}");

        // A fix mends exactly the problems that it reports as fixed.
        let is_mended = CHECKS.iter().any(|it| it.id == id && it.is_mended);
        let fixed = Client::builder(&site.url).diagnose().fix().await.unwrap();
        let after = finding(&fixed, id);
        assert_eq!(after.severity == Fine, is_mended, "{after:?}");
        assert_eq!(after.fixed.is_some(), is_mended, "{after:?}");
        for other in fixed.findings.iter().filter(|it| it.check.id != id) {
            assert_eq!(other.fixed, None);
        }
        if is_mended {
            let (name, value) = settings[0];
            let (_, now): (String, String) = site.command(&["CONFIG", "GET", name]).await;
            if name == "notify-keyspace-events" {
                assert!(
                    value.chars().all(|flag| now.contains(flag)),
                    "{value} in {now}"
                );
            } else {
                assert!(now.contains("slave") || now.contains("replica"), "{now}");
            }
            config(&site, settings).await;
        }

        // The remedy, as it is printed.
        let remedy = finding(&diagnosis, id).remedy.clone().expect(id);
        if remedy.starts_with("CONFIG SET") && !id.starts_with("memory-") {
            let () = site.command(&words(&remedy)).await;
        }
        config(&site, rest).await;
        if id == "replica-lag" {
            config(&site, &[("min-replicas-max-lag", "10")]).await;
        }
        let diagnosis = site.client.diagnose().await.unwrap();
        assert_eq!(told(&diagnosis), but(&[]), "{remedy}: {diagnosis:#?}");
    }
}

#[tokio::test]
async fn the_doctor_examines_servers_that_connect_refuses() {
    let primary = Embedded::options().args(["--repl-diskless-sync-delay", "0"]);
    let primary = primary.start().await.unwrap();
    let proxy = FreezingProxy::to(&primary).await;
    let (host, port) = proxy.url["redis://".len()..].split_once(':').unwrap();
    let replica = Embedded::options().args(["--replicaof", host, port]);
    let replica = replica.start().await.unwrap();
    let site = Site::at(&primary.url(), "doctor-replica").await;
    let diagnosis = eventually("it follows", async || {
        let diagnosis = site.client.diagnose().await.unwrap();
        (finding(&diagnosis, "min-replicas").severity > Fine).then_some(diagnosis)
    })
    .await;
    assert_eq!(told(&diagnosis), but(&[("min-replicas", Warning)]));
    let refused = Client::connect(&replica.url()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnly);
    let diagnosis = eventually("it has loaded", async || {
        let diagnosis = Client::builder(&replica.url()).diagnose().await.unwrap();
        (diagnosis.findings.len() == CHECKS.len()).then_some(diagnosis)
    })
    .await;
    assert_eq!(
        told(&diagnosis),
        but(&[("server-role", Error)]),
        "{diagnosis:#?}"
    );
    let remedy = finding(&diagnosis, "server-role").remedy.clone().unwrap();
    assert!(remedy.contains(&format!("{host}:{port}")), "{remedy}");
}

#[tokio::test]
async fn the_state_of_jobs_and_workers_is_reported() {
    let (_server, site) = site("doctor-jobs").await;
    let set: u64 = site.command(&["HSET", "keyfall:meta", "schema", "9"]).await;
    assert_eq!(set, 0);
    let diagnosis = site.client.diagnose().await.unwrap();
    assert_eq!(told(&diagnosis), but(&[("schema", Error)]));
    let _: u64 = site.command(&["HSET", "keyfall:meta", "schema", "1"]).await;

    let key = site.key("foreign");
    site.client.schedule(&key, "").after(HOUR).await.unwrap();
    let waits = but(&[("workers-alive", Warning)]);
    let diagnosis = site.client.diagnose().await.unwrap();
    assert_eq!(told(&diagnosis), waits, "{diagnosis:#?}");
    let () = site.command(&["SET", &key, "mine"]).await;
    let diagnosis = site.client.diagnose().await.unwrap();
    let mut expected = waits.clone();
    expected.insert("foreign-values", Warning);
    assert_eq!(told(&diagnosis), expected);
    assert!(finding(&diagnosis, "foreign-values").found.contains(&key));
    let _: u64 = site.command(&["DEL", &key]).await;

    // The keys have a TTL, and belong to another program; our trigger is gone.
    for name in ["theirs", "his"] {
        let () = site.command(&["SET", name, "1", "EX", "1000"]).await;
    }
    let diagnosis = site.client.diagnose().await.unwrap();
    assert_eq!(finding(&diagnosis, "expiry-crowd").severity, Info);
    let _: u64 = site.command(&["DEL", "theirs", "his"]).await;

    let stats = format!("keyfall:{{{}/0}}:stats", site.kind());
    let _: i64 = site.command(&["HINCRBY", &stats, "accepted", "1"]).await;
    let diagnosis = site.client.diagnose().await.unwrap();
    let mut expected = waits.clone();
    expected.insert("books", Error);
    assert_eq!(told(&diagnosis), expected);
    let _: i64 = site.command(&["HINCRBY", &stats, "accepted", "-1"]).await;

    let _: u64 = site
        .command(&["HSET", "keyfall:kinds", &site.kind(), "many"])
        .await;
    let diagnosis = site.client.diagnose().await.unwrap();
    assert_eq!(finding(&diagnosis, "kind-shards").severity, Error);
    let _: u64 = site
        .command(&["HSET", "keyfall:kinds", &site.kind(), "1"])
        .await;

    // No worker has a route for this job, and it is long overdue.
    let other = format!("{}:it:other", site.app);
    site.client
        .schedule(format!("{other}:1"), "")
        .await
        .unwrap();
    let due = format!("keyfall:{{{other}/0}}:due");
    let _: i64 = site.command(&["ZADD", &due, "XX", "1", "1"]).await;
    let diagnosis = site.client.diagnose().await.unwrap();
    assert_eq!(
        told(&diagnosis),
        but(&[("workers-alive", Error)]),
        "{diagnosis:#?}"
    );

    let worker = site.serve(Router::new().route(&site.pattern(), async || Outcome::bury("no")));
    let diagnosis = eventually("it lives", async || {
        let diagnosis = site.client.diagnose().await.unwrap();
        let lives = finding(&diagnosis, "workers-alive").severity == Fine;
        let hears = finding(&diagnosis, "workers-hear").severity == Fine;
        (lives && hears).then_some(diagnosis)
    })
    .await;
    let usual = [("memory-limit", Info), ("unrouted-jobs", Warning)];
    assert_eq!(told(&diagnosis), Told::from(usual), "{diagnosis:#?}");
    assert!(finding(&diagnosis, "unrouted-jobs").found.contains(&other));
    let lives = &finding(&diagnosis, "workers-alive").found;
    assert!(
        lives.contains(&site.pattern().replace("{id}", "")),
        "{lives}"
    );

    // One letter is new; ten are many; one is old and about to be removed.
    for (letters, severity) in [(1, Info), (10, Warning)] {
        for key in site.keys(letters) {
            site.client.schedule(&key, "").await.unwrap();
            site.reaches(&key, JobState::Dead).await;
        }
        let diagnosis = site.client.diagnose().await.unwrap();
        assert_eq!(finding(&diagnosis, "dead-letters-new").severity, severity);
        assert_eq!(finding(&diagnosis, "dead-letters-full").severity, Fine);
    }
    let dead = format!("keyfall:{{{}/0}}:dead", site.kind());
    let letters: Vec<String> = site.command(&["ZRANGE", &dead, "0", "0"]).await;
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let then = (now - Duration::from_secs(85 * 86_400))
        .as_millis()
        .to_string();
    let _: i64 = site
        .command(&["ZADD", &dead, "XX", &then, &letters[0]])
        .await;
    let diagnosis = site.client.diagnose().await.unwrap();
    let full = finding(&diagnosis, "dead-letters-full");
    assert_eq!(full.severity, Warning);
    let remedy = full.remedy.as_ref().unwrap();
    for command in ["dead requeue", "dead rm"] {
        assert!(remedy.contains(&format!("`keyfall {command} --prefix ")));
        let help = site.run(&format!("{command} --help")).await;
        assert!(help.out.contains("--prefix"), "{help:?}");
    }

    // Paused jobs are late on purpose; other jobs are not.
    let long = site.key("overdue");
    let kind = format!("{}:", site.kind());
    site.client.prefix(&kind).pause().await.unwrap();
    site.client.schedule(&long, "").await.unwrap();
    let due = format!("keyfall:{{{}/0}}:due", site.kind());
    let _: i64 = site.command(&["ZADD", &due, "XX", "1", "overdue"]).await;
    let diagnosis = site.client.diagnose().await.unwrap();
    assert_eq!(finding(&diagnosis, "overdue-jobs").severity, Fine);
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_kind_that_has_long_been_empty_is_named() {
    let (_server, site) = site("doctor-empty").await;
    let key = site.key(1);
    site.client.schedule(&key, "").after(HOUR).await.unwrap();
    site.client.cancel(&key).await.unwrap();
    let empty = async || {
        let diagnosis = site.client.diagnose().await.unwrap();
        finding(&diagnosis, "empty-kinds").clone()
    };
    assert_eq!(empty().await.severity, Fine, "it was used a moment ago");
    // Moves all remembered calls back by this time.
    let calls = format!("keyfall:{{{}/0}}:calls", site.kind());
    let all: Vec<(String, String)> = site.command(&["HGETALL", &calls]).await;
    for (lane, value) in all {
        let words: Vec<&str> = value.splitn(3, ' ').collect();
        if let [number, at, reply] = words[..] {
            let then = at.parse::<u64>().unwrap() - 31 * 86_400_000;
            let aged = format!("{number} {then} {reply}");
            let _: u64 = site.command(&["HSET", &calls, &lane, &aged]).await;
        }
    }
    let found = empty().await;
    assert_eq!(found.severity, Info);
    assert!(found.found.contains("for 31 days"), "{found:?}");
    let remedy = found.remedy.unwrap();
    let ran = site.run(remedy.strip_prefix("keyfall ").unwrap()).await;
    assert!(ran.out.contains("is gone"), "{ran:?}");
    assert_eq!(empty().await.severity, Fine);
    // No key of the kind is left, since it was not used in the last hour.
    let keys: Vec<String> = site.command(&["KEYS", &format!("*{}*", site.kind())]).await;
    assert!(keys.is_empty(), "{keys:?}");
}

#[tokio::test]
async fn a_copy_that_nobody_makes_lags_or_is_stopped_is_named() {
    let (_server, site) = site("doctor-copy").await;
    let client = &site.client;
    let copy = async || {
        let diagnosis = client.diagnose().await.unwrap();
        ["copier-alive", "copy-lag", "copy-data-set"].map(|id| finding(&diagnosis, id).clone())
    };
    let is_fine = |all: &[Finding; 3]| all.iter().all(|it| it.severity == Fine);
    assert!(is_fine(&copy().await), "nobody asks for a copy");
    let terms = CopyTerms::new().waiting(1_000);
    client.prefix(&site.kind()).copy(terms).await.unwrap();
    client.schedule(site.key(0), "").after(HOUR).await.unwrap();
    assert!(is_fine(&copy().await), "a daemon may not know of it yet");

    // Nobody has copied for two minutes.
    let field = format!("copy {}:", site.kind());
    let _: u64 = site
        .command(&["HSET", "keyfall:meta", &field, "1000 1 anna"])
        .await;
    let [copier, ..] = copy().await;
    assert_eq!(copier.severity, Warning, "{copier}");
    assert!(copier.found.contains("ever copied"), "{copier}");
    assert!(copier.remedy.unwrap().contains("keyfall serve"));
    client.note_copier(None).await.unwrap();
    assert!(is_fine(&copy().await));

    // A change waits since 1970; then more wait than may.
    let kind = Kind::parse(&site.kind()).unwrap();
    let mark = CopyMark::default();
    let begun = client.begin_copy(&kind, 0, terms, mark, None).await;
    begun.unwrap();
    assert!(is_fine(&copy().await));
    let changes = format!("keyfall:{{{kind}/0}}:changes");
    let _: u64 = site.command(&["ZADD", &changes, "1", "0"]).await;
    let [copier, lag, _] = copy().await;
    assert_eq!((copier.severity, lag.severity), (Fine, Warning));
    assert!(lag.found.contains("1 changes wait, the oldest"), "{lag}");
    let keys: Vec<String> = site.keys(1_001).collect();
    let many = keys.iter().map(|key| NewJob::new(key, "").after(HOUR));
    let answers = client.schedule_many(many).await;
    assert!(answers.iter().all(Result::is_ok));
    let [_, lag, _] = copy().await;
    assert_eq!(lag.severity, Warning);
    assert!(lag.found.contains("more changes waited"), "{lag}");
    client.prefix(&site.kind()).stop_copy().await.unwrap();
    assert!(is_fine(&copy().await));

    // A copier has found another Redis than the one that it has copied.
    client.note_copier(Some("it was emptied")).await.unwrap();
    let [copier, lag, data_set] = copy().await;
    assert_eq!((copier.severity, lag.severity), (Fine, Fine));
    assert_eq!(data_set.severity, Error);
    assert!(data_set.found.ends_with("it was emptied"), "{data_set}");
    let remedy = data_set.remedy.unwrap();
    assert!(remedy.contains("keyfall rebuild --yes"), "{remedy}");
    client.note_copier(None).await.unwrap();
    assert!(is_fine(&copy().await));
}

#[tokio::test]
async fn a_rule_that_no_worker_can_compute_is_named() {
    let (_redis, site) = site("doctor_rules").await;
    let rule = Rule::cron("0 9 * * *").unwrap();
    let rule = rule.zone("Europe/Berlin").unwrap();
    let key = site.key("digest");
    site.client
        .schedule(&key, "")
        .recurring(rule)
        .await
        .unwrap();
    site.client.reschedule(&key).after(SECOND).await.unwrap();
    let diagnosis = site.client.diagnose().await.unwrap();
    assert_eq!(finding(&diagnosis, "rules-computed").severity, Fine);
    // As a worker leaves it that does not know the zone.
    let shadow = format!("keyfall:{{{}/0}}:shadow", site.kind());
    let record: String = site.command(&["HGET", &shadow, "digest"]).await;
    let (before, at) = record.split_once("\"at\":").unwrap();
    let end = at.find(|it: char| !it.is_ascii_digit()).unwrap();
    let open = format!("{before}\"at\":0{}", &at[end..]);
    let open = open.replace("Europe/Berlin", "Mars/Olympus");
    let _: u32 = site.command(&["HSET", &shadow, "digest", &open]).await;
    let diagnosis = site.client.diagnose().await.unwrap();
    let found = finding(&diagnosis, "rules-computed");
    assert_eq!(found.severity, Warning);
    assert_eq!(&*found.found, format!("{key} (Mars/Olympus)"));
}

#[tokio::test]
async fn a_worker_logs_each_problem_once_until_it_changes() {
    let log = Log::read();
    let (_server, site) = site("doctor-log").await;
    config(&site, &[("appendfsync", "no"), ("timeout", "400")]).await;
    let (note, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), note.done()));
    let said = |text: &str| log.with(&format!("check={text:?}")).len();
    eventually("both are said", async || {
        (said("aof-fsync") + said("client-timeout") == 2).then_some(())
    })
    .await;
    config(&site, &[("appendfsync", "everysec"), ("appendonly", "no")]).await;
    let _: u64 = site.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
    eventually("what is new and what is over is said", async || {
        (said("aof-fsync") == 2 && said("persistence") == 1).then_some(())
    })
    .await;
    assert_eq!(said("client-timeout"), 1);
    assert_eq!(log.warnings().len(), 3, "{:?}", log.warnings());
    site.client.schedule(site.key(1), "").await.unwrap();
    runs.next().await;
    site.all_ended().await;
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn the_command_and_the_call_answer_in_the_same_shape() {
    let (_server, mut site) = site("doctor-shape").await;
    let ran = site.run(&doctor("--json")).await.value();
    assert_eq!(ran["worst"], "info");
    let daemon = site.daemon(&[]);
    // `keyfall` does the same. It fails if another test was first.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let shape = |answer: &Value| -> Vec<Vec<String>> {
        let findings = answer["findings"].as_array().unwrap().iter();
        let keys = |it: &Value| it.as_object().unwrap().keys().cloned().collect();
        findings.map(keys).collect()
    };
    let get = reqwest::get(format!("{}/v1/doctor", daemon.url))
        .await
        .unwrap();
    let called: Value = serde_json::from_slice(&get.bytes().await.unwrap()).unwrap();
    let ids = |answer: &Value| -> Vec<Value> {
        let findings = answer["findings"].as_array().unwrap().iter();
        findings.map(|it| it["id"].clone()).collect()
    };
    let mut all = ids(&called);
    all.retain(|id| id != FAR);
    assert_eq!(ids(&ran), all);
    assert_eq!(shape(&ran)[0], shape(&called)[0]);
    site.daemon = Some(daemon);
    let ran = site
        .run("doctor --json --only notify-flags,books")
        .await
        .value();
    assert_eq!(ids(&ran), ["notify-flags", "books"]);
    config(&site, &[("notify-keyspace-events", "g")]).await;
    // Of an old server, the doctor warns.
    let ran = site.run("doctor --fix --json").await;
    let ran: Value = serde_json::from_str(&ran.out).unwrap();
    let repaired = |it: &&Value| it["repaired"] == true;
    let findings = ran["findings"].as_array().unwrap();
    let repaired: Vec<&Value> = findings.iter().filter(repaired).collect();
    assert_eq!(repaired.len(), 1, "{ran}");
    assert_eq!(repaired[0]["id"], "notify-flags");
    assert_eq!(repaired[0]["severity"], "ok");
    site.run("doctor --only nothing")
        .await
        .fails(2, "notify-flags");
}

/// As a user of a rented Redis.
#[tokio::test]
async fn forbidden_checks_are_reported_and_are_no_error() {
    let server = Embedded::options().args(["--rename-command", "CONFIG", ""]);
    let server = server.start().await.unwrap();
    let site = Site::at(&server.url(), "doctor-rented").await;
    let diagnosis = site.client.diagnose().fix().await.unwrap();
    assert!(told(&diagnosis).values().all(|it| *it == Info));
    let findings = diagnosis.findings.iter();
    let unseen: Vec<&Finding> = findings.filter(|it| !it.is_seen).collect();
    let ids: Vec<&str> = unseen.iter().map(|it| it.check.id).collect();
    let of_config = [
        "client-timeout",
        "tcp-keepalive",
        "notify-flags",
        "pubsub-buffer",
        "aof-fsync",
        "aof-load-truncated",
        "snapshots",
        "replica-lag",
    ];
    assert_eq!(ids, of_config);
    for finding in unseen {
        assert!(finding.found.contains("unknown command"), "{finding}");
        assert_eq!(finding.fixed, None);
        for line in finding.check.settings {
            assert!(finding.remedy.as_ref().unwrap().contains(line), "{finding}");
        }
    }
    let ran = site.run(&doctor("")).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    let grouped = format!("info     {}: not seen: ", of_config.join(", "));
    assert!(ran.out.contains(&grouped), "{ran:?}");
}

#[tokio::test]
async fn problems_outside_the_chosen_checks_are_not_mended() {
    let (_server, site) = site("doctor-only").await;
    let limit = "pubsub 33554432 8388608 60";
    let broken = [
        ("notify-keyspace-events", "g"),
        ("client-output-buffer-limit", limit),
    ];
    config(&site, &broken).await;
    let ran = site.run("doctor --fix --only notify-flags").await;
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.out.starts_with("ok       notify-flags"), "{ran:?}");
    assert!(!ran.out.contains("pubsub-buffer"), "{ran:?}");
    let logged = site.client.actions(10, |_| true).await.unwrap();
    let [action] = &logged[..] else {
        panic!("one repair was made: {logged:#?}");
    };
    assert_eq!(
        (&*action.what, &*action.on, action.count),
        ("fix", "", Some(1))
    );
    assert!(
        action
            .note
            .as_ref()
            .unwrap()
            .starts_with("notify-flags: merged")
    );
    let diagnosis = site.client.diagnose().only(["pubsub-buffer"]).await;
    let findings = diagnosis.unwrap().findings;
    let [finding] = &findings[..] else {
        panic!("one was asked for: {findings:#?}");
    };
    assert_eq!(finding.severity, Warning, "{finding}");
}

/// Many checks lack their answer for the same reason, also with other lines between them.
#[tokio::test]
async fn a_missing_right_is_reported_once_for_all_checks() {
    let (_server, site) = site("doctor-nothing").await;
    let () = site
        .command(&["ACL", "SETUSER", "default", "-info", "-time"])
        .await;
    let ran = site.run("doctor").await;
    let reasons = ran.out.lines().filter(|line| line.contains("'info'"));
    assert_eq!(reasons.count(), 1, "{ran:?}");
}

#[tokio::test]
async fn the_exit_code_reflects_the_worst_finding() {
    let (_server, site) = site("doctor-code").await;
    let ran = site.run(&doctor("")).await;
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    assert_eq!(
        ran.out.lines().count(),
        3,
        "two notes, and the rest: {ran:?}"
    );
    config(&site, &[("notify-keyspace-events", "g")]).await;
    let ran = site.run(&doctor("")).await;
    assert_eq!(ran.code, 5, "{ran:?}");
    assert!(ran.out.starts_with("warning  notify-flags"), "{ran:?}");
    assert!(ran.out.contains("CONFIG SET notify-keyspace-events gEx"));
    config(&site, &[("appendonly", "no")]).await;
    let ran = site.run(&doctor("")).await;
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.out.starts_with("error    persistence"), "{ran:?}");
    assert_eq!(site.run("doctor --only persistence").await.code, 1);
    assert_eq!(site.run("doctor --only books").await.code, 0);
    let ran = site.run("doctor --fix --only notify-flags").await;
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.out.contains("into \"g\", which gives"), "{ran:?}");
    let gone = crate::shell::keyfall(&["doctor", "--redis-url", "redis://127.0.0.1:1"]);
    crate::shell::Ran::of(gone).await.fails(4, "127.0.0.1:1");
}
