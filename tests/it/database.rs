//! `keyfall serve` and `keyfall database` beside a PostgreSQL.

use std::collections::BTreeSet;

use keyfall::JobState;
use keyfall::embedded::Embedded;
use keyfall_testing::postgres::Postgres;
use serde_json::{Value, json};

use crate::http::Daemon;
use crate::runs::eventually;
use crate::shell::{Ran, keyfall};
use crate::site::{HOUR, Site, assert_about};

/// A site on a Redis of its own: a daemon with a database archives all kinds.
async fn alone(app: &str) -> (Embedded, Site) {
    let redis = Embedded::start().await.unwrap();
    let site = Site::at(&redis.url(), app).await;
    (redis, site)
}

async fn run(words: &[&str]) -> Ran {
    Ran::of(keyfall(words)).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_passes_on_what_transactions_have_scheduled() {
    let (_redis, site) = alone("database-serve").await;
    let mut postgres = Postgres::start();
    let url = postgres.url("postgres");
    let daemon = site.daemon(&["--database-url", &url]);
    let schedule = |id: &str| {
        format!(
            "SELECT keyfall_schedule('{}', '{{\"order\": 42}}', delay => '1 hour')",
            site.key(id)
        )
    };
    let rolled_back = format!("BEGIN; {}; ROLLBACK", schedule("no"));
    postgres.sql("postgres", &rolled_back);
    postgres.sql("postgres", &schedule("yes"));
    let view = site.reaches(&site.key("yes"), JobState::Pending).await;
    assert_eq!(&view.payload()[..], br#"{"order": 42}"#);
    postgres.sql("postgres", "INSERT INTO keyfall_outbox (key) VALUES ('x')");
    let check = ["database", "check", "--database-url", &url];
    eventually("the last row is refused", async || {
        run(&check)
            .await
            .out
            .contains("keyfall_outbox_refused: 1")
            .then_some(())
    })
    .await;
    let told = run(&check).await;
    assert_eq!((told.code, told.err.as_str()), (0, ""), "{told:?}");
    assert!(told.out.contains("no row waits"), "{told:?}");
    // The daemon goes on without its database, and has it again later.
    postgres.kill();
    site.client.cancel(site.key("yes")).await.unwrap();
    run(&check).await.fails(4, "PostgreSQL cannot be reached");
    postgres.begin();
    postgres.sql("postgres", &schedule("later"));
    site.reaches(&site.key("later"), JobState::Pending).await;
    drop(daemon);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_daemon_starts_without_its_database_and_refuses_tables_of_others() {
    let (_redis, site) = alone("database-start").await;
    let mut postgres = Postgres::start();
    let url = postgres.url("postgres");
    postgres.kill();
    let start = [
        "serve",
        "--redis-url",
        &site.url,
        "--http-listen",
        "127.0.0.1:0",
    ];
    // Redis could have lost data, and nobody can tell.
    let mut careful = keyfall(&start);
    careful.env("KEYFALL_DATABASE_URL", &url);
    careful.env("KEYFALL_DATABASE_REFUSE_LOST_DATA", "true");
    Ran::of(careful).await.fails(1, "refuse_lost_data = false");
    let _daemon = site.daemon(&["--database-url", &url]);
    postgres.begin();
    eventually("the tables are made", async || {
        let made = "SELECT to_regclass('keyfall_outbox') IS NOT NULL";
        (postgres.sql("postgres", made) == "t\n").then_some(())
    })
    .await;
    let insert = format!(
        "SELECT keyfall_schedule('{}', delay => '1 hour')",
        site.key(1)
    );
    postgres.sql("postgres", &insert);
    site.reaches(&site.key(1), JobState::Pending).await;

    postgres.sql("postgres", "CREATE DATABASE other");
    postgres.sql("other", "CREATE TABLE keyfall_outbox (id text)");
    let other = postgres.url("other");
    let refused = run(&[&start[..], &["--database-url", &other]].concat()).await;
    refused.fails(1, "keyfall_outbox");
    let mut bare = keyfall(&start);
    bare.env("KEYFALL_DATABASE_URL", &other);
    bare.env("KEYFALL_DATABASE_MIGRATE", "false");
    let refused = Ran::of(bare).await;
    refused.fails(1, "its column id is a text, not a bigint");
}

#[tokio::test]
async fn wrong_settings_of_the_database_name_the_remedy() {
    for (flags, hint) in [
        (&["check"][..], "--database-url postgresql://"),
        (
            &["migrate", "--database-url", "postgresql://h/d?sslmod=on"],
            "database.url: the URL of the database is not valid",
        ),
        (
            &["check", "--database-password-file", "/nowhere"],
            "name the place of the database by `database.url`",
        ),
        (
            &[
                "check",
                "--database-url",
                "host=h",
                "--database-ca-file",
                "/nowhere",
            ],
            "database.ca_file: the CA file of the database, /nowhere",
        ),
        (
            &[
                "check",
                "--database-url",
                "host=h",
                "--database-connections",
                "0",
            ],
            "database.connections",
        ),
    ] {
        run(&[&["database"], flags].concat()).await.fails(1, hint);
    }
    let secret = "postgresql://anna:geheim@h/d?sslmod=on";
    let told = run(&["database", "check", "--database-url", secret]).await;
    assert!(!told.err.contains("geheim"), "{told:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ended_jobs_are_found_in_the_archive() {
    let (_redis, site) = alone("database-archive").await;
    let mut postgres = Postgres::start();
    let url = postgres.url("postgres");
    let daemon = site.daemon(&["--database-url", &url]);
    let api = ["--api", &daemon.url];
    let asks = async |words: &[&str]| run(&[words, &api].concat()).await;
    let app = format!("{}:", site.app);
    let set = [
        "archive",
        "set",
        &app,
        "--payload",
        "100",
        "--keep-months",
        "24",
    ];
    assert!(asks(&set).await.out.contains("0 kinds so far"));
    let listed = asks(&["archive", "ls"]).await.out;
    assert!(
        listed.contains(&app) && listed.contains("24 months"),
        "{listed}"
    );
    for id in ["a", "b"] {
        site.client.schedule(site.key(id), &1).await.unwrap();
        site.client.cancel(site.key(id)).await.unwrap();
    }
    let search = [
        "archive",
        "search",
        &app,
        "--how",
        "cancelled",
        "--since",
        "1h",
    ];
    let found = eventually("both are in the archive", async || {
        let found = asks(&search).await;
        (found.out.matches("cancelled").count() == 2).then_some(found)
    })
    .await;
    assert_eq!((found.code, found.err.as_str()), (0, ""), "{found:?}");
    let one = asks(&["archive", "search", &app, "--limit", "1"]).await.out;
    let (_, cursor) = one.trim_end().rsplit_once("--cursor ").unwrap();
    let other = asks(&["archive", "search", &app, "--cursor", cursor])
        .await
        .out;
    assert!(
        one.contains(&site.key("b")) && other.contains(&site.key("a")),
        "{one}{other}"
    );
    let why = asks(&["why", &site.key("a")]).await.out;
    assert!(why.contains("in the archive: cancelled"), "{why}");
    for (words, code, told) in [
        (
            &["archive", "search", "--how", "gone"][..],
            2,
            "\"gone\" is no end of a job",
        ),
        (&["archive", "search", "--cursor", "x"], 2, "cursor"),
        (
            &["archive", "set", "database-archive"],
            2,
            "ends with a colon",
        ),
        (
            &["archive", "set", &app, "--waiting", "1"],
            2,
            "`waiting` is 1 bytes",
        ),
    ] {
        asks(words).await.fails(code, told);
    }
    // Without a database there is nothing to search; the story of a job is told all the same.
    let plain = ["archive", "search", "--redis-url", &site.url];
    run(&plain).await.fails(1, "ask one that has");
    postgres.kill();
    asks(&search).await.fails(4, "PostgreSQL cannot be reached");
    let why = asks(&["why", &site.key("a")]).await;
    assert!(why.out.contains("cancelled"), "{why:?}");
    assert!(!why.out.contains("in the archive"), "{why:?}");
    assert!(
        asks(&["archive", "off", &app])
            .await
            .out
            .contains("no records")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_redis_has_lost_is_brought_back_by_command() {
    let (_redis, site) = alone("database-copy").await;
    let postgres = Postgres::start();
    let url = postgres.url("postgres");
    let daemon = site.daemon(&["--database-url", &url]);
    let here = ["--redis-url", &site.url];
    run(&[
        &["copy", "set", "database-copy:", "--waiting", "5"],
        &here[..],
    ]
    .concat())
    .await
    .fails(2, "`waiting` is 5 jobs");
    let set = run(&[&["copy", "set", "database-copy:"], &here[..]].concat()).await;
    assert!(
        set.out.contains("pending jobs are copied: database-copy:"),
        "{set:?}"
    );
    let listed = run(&[&["copy", "ls"], &here[..]].concat()).await;
    assert!(listed.out.contains("database-copy:"), "{listed:?}");
    let hour = std::time::Duration::from_secs(3600);
    for id in ["a", "b", "c"] {
        site.client
            .schedule(site.key(id), id)
            .after(hour)
            .await
            .unwrap();
        assert!(site.client.until_copied(site.key(id), hour).await.unwrap());
    }
    let rebuild = ["rebuild", "--redis-url", &site.url, "--database-url", &url];
    let told = run(&rebuild).await;
    assert!(
        told.out.contains("nothing of the copy is missing"),
        "{told:?}"
    );
    let () = site.command(&["FLUSHALL"]).await;
    let told = eventually("the copy stops", async || {
        let told = run(&rebuild).await;
        told.out.contains("the copy is stopped").then_some(told)
    })
    .await;
    assert!(told.out.contains("was emptied"), "{told:?}");
    assert!(
        told.out.contains("--yes` brings back what is missing"),
        "{told:?}"
    );
    assert_eq!(
        site.client.get(site.key("a")).await.unwrap().map(drop),
        None
    );
    // A daemon that is told to does not start beside such a Redis.
    drop(daemon);
    let _: u64 = site.command(&["HDEL", "keyfall:meta", "copier"]).await;
    let refuse = ["--database-url", &url, "--database-refuse-lost-data"];
    let serve = [&["serve"], &here[..], &refuse[..]].concat();
    run(&serve)
        .await
        .fails(1, "bring it back with `keyfall rebuild --yes`");
    // The one who looks for the reason asks the doctor.
    let note: String = site.command(&["HGET", "keyfall:meta", "copier"]).await;
    assert!(note.contains("was emptied"), "{note}");
    let done = run(&[&rebuild[..], &["--yes"]].concat()).await;
    assert!(done.out.contains("keyfall resume"), "{done:?}");
    for id in ["a", "b", "c"] {
        let job = site.client.get(site.key(id)).await.unwrap();
        assert_eq!(job.unwrap().json::<String>().unwrap(), id);
    }
    let _daemon = site.daemon(&refuse);
    site.client
        .schedule(site.key("d"), "d")
        .after(hour)
        .await
        .unwrap();
    assert!(site.client.until_copied(site.key("d"), hour).await.unwrap());
}

/// A daemon that archives the jobs of an app, with their payloads up to 100 bytes.
async fn archiving(site: &Site, url: &str) -> Daemon {
    let daemon = Daemon::with(site, &["--database-url", url]);
    let terms = json!({"prefix": format!("{}:", site.app), "payload": 100});
    let (status, answer) = daemon.send("PUT", "/v1/archives", terms).await;
    assert_eq!(status, 200, "{answer}");
    daemon
}

/// The ends of the jobs with this prefix, the newest first, as soon as there are so many.
async fn ends(daemon: &Daemon, prefix: &str, count: usize) -> Vec<Value> {
    eventually("the archive has the ends", async || {
        let page = daemon.get(&format!("/v1/archive?prefix={prefix}")).await;
        let jobs = page["jobs"].as_array().unwrap().clone();
        (jobs.len() == count).then_some(jobs)
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ended_job_runs_again_as_it_was() {
    let (_redis, site) = alone("database-again").await;
    let mut postgres = Postgres::start();
    let daemon = archiving(&site, &postgres.url("postgres")).await;
    let asks = async |words: &[&str]| run(&[words, &["--api", &daemon.url]].concat()).await;
    let key = site.key("a");
    let job = site.client.schedule_bytes(&key, r#"{"n": 1.50}"#);
    let job = job.header("tenant", "x").attempts(3).timeout(5 * HOUR);
    job.after(HOUR).await.unwrap();
    site.client.cancel(&key).await.unwrap();
    let first = ends(&daemon, &key, 1).await.remove(0);
    assert_eq!(first["has_payload"], true, "{first}");
    let shown = daemon.get(&format!("/v1/archive/{key}")).await;
    assert_eq!(shown["payload"], json!({"n": 1.5}), "{shown}");
    // PostgreSQL has no such text.
    for field in ["prefix", "error", "cursor"] {
        let path = format!("/v1/archive?{field}=a%00");
        let (status, refused) = daemon.call("GET", &path).await;
        assert_eq!(
            (status, &refused["field"]),
            (400, &json!(field)),
            "{refused}"
        );
    }
    assert_eq!(
        (&shown["max_attempts"], &shown["timeout"]),
        (&json!(3), &json!("5h"))
    );

    let requeue = ["archive", "requeue", &key, "--after", "1h"];
    let told = asks(&requeue).await;
    assert_eq!((told.code, told.err.as_str()), (0, ""), "{told:?}");
    let view = site.view(&key).await;
    assert_eq!(&view.payload()[..], br#"{"n": 1.50}"#);
    assert_eq!(view.headers().get("tenant"), Some("x"));
    assert_eq!(
        (view.max_attempts(), view.timeout()),
        (Some(3), Some(5 * HOUR))
    );
    assert_about(view.due(), HOUR);
    asks(&requeue).await.fails(1, "there is a job");

    // Repeated with the same name of the call, it schedules nothing, although the job ended again.
    let path = format!("/v1/archive/{key}/requeue");
    let call = json!({"ended": first["ended"], "call": "0123456789abcdef01234567", "after": "1h"});
    assert_eq!(daemon.send("POST", &path, call.clone()).await.0, 409);
    site.client.cancel(&key).await.unwrap();
    let mut named = call.clone();
    named["call"] = json!("1123456789abcdef01234567");
    for is_first in [true, false] {
        let (status, answer) = daemon.send("POST", &path, named.clone()).await;
        assert_eq!(
            (status, answer["due"].is_string()),
            (200, is_first),
            "{answer}"
        );
        let is_there = site.client.get(&key).await.unwrap().is_some();
        assert_eq!(is_there, is_first);
        site.client.cancel(&key).await.unwrap();
    }
    // Runs are told apart by their ends.
    let all = ends(&daemon, &key, 3).await;
    assert_eq!(all[2]["ended"], first["ended"], "{all:?}");
    named["ended"] = all[0]["ended"].clone();
    let (status, answer) = daemon.send("POST", &path, named).await;
    assert_eq!((status, answer["due"].is_string()), (200, true), "{answer}");
    site.client.cancel(&key).await.unwrap();
    let ended = first["ended"].as_str().unwrap();
    let older = [
        "archive", "requeue", &key, "--ended", ended, "--after", "1h",
    ];
    assert_eq!(asks(&older).await.code, 0);
    let logged = daemon.get("/v1/actions?last=1").await;
    let logged = &logged["actions"][0];
    let note = format!("from the archive: the run that ended {ended}");
    assert_eq!(
        (&logged["what"], &logged["note"]),
        (&json!("requeue"), &json!(note))
    );

    let (other, long) = (site.key("other"), site.key("long"));
    site.client
        .schedule(&long, &"x".repeat(200))
        .after(HOUR)
        .await
        .unwrap();
    site.client.cancel(&long).await.unwrap();
    ends(&daemon, &long, 1).await;
    for (words, code, hint) in [
        (&["archive", "requeue", &long][..], 1, "archive set"),
        (
            &["archive", "requeue", &other],
            3,
            "the archive has no run of",
        ),
        (
            &[
                "archive",
                "requeue",
                &key,
                "--ended",
                "2020-01-01T00:00:00Z",
            ],
            3,
            "no run of",
        ),
        (
            &["archive", "requeue", &key, "--ended", "soon"],
            2,
            "2026-12-24T18:00:00.000001Z",
        ),
        (
            &["archive", "requeue", &key, "--how", "done"],
            2,
            "`--how` is for many jobs",
        ),
        (
            &[
                "archive",
                "requeue",
                &key,
                "--call",
                "0123456789abcdef01234567",
            ],
            2,
            "`--call` is for many jobs",
        ),
    ] {
        asks(words).await.fails(code, hint);
    }
    let (status, answer) = daemon
        .send("POST", &path, json!({"ended": ended, "call": "x"}))
        .await;
    assert_eq!(
        (status, &answer["field"]),
        (400, &json!("call")),
        "{answer}"
    );
    let plain = ["archive", "requeue", &key, "--redis-url", &site.url];
    run(&plain).await.fails(1, "ask one that has");
    postgres.kill();
    asks(&["archive", "requeue", &key])
        .await
        .fails(4, "PostgreSQL cannot be reached");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_ended_jobs_run_again_unless_their_last_end_is_another() {
    let (_redis, site) = alone("database-many").await;
    let postgres = Postgres::start();
    let daemon = archiving(&site, &postgres.url("postgres")).await;
    let asks = async |words: &[&str]| run(&[words, &["--api", &daemon.url]].concat()).await;
    let kind = format!("{}:", site.kind());
    // Ten are cancelled; of these one was replaced before, one is there again, and one has no payload.
    for id in 0..10 {
        let payload = if id == 3 {
            "x".repeat(200)
        } else {
            id.to_string()
        };
        let schedule = || site.client.schedule(site.key(id), &payload).after(HOUR);
        schedule().await.unwrap();
        if id == 1 {
            schedule().await.unwrap();
        }
        site.client.cancel(site.key(id)).await.unwrap();
        if id == 2 {
            schedule().await.unwrap();
        }
    }
    // A dead letter, which is still in Redis.
    site.client.schedule(site.key("dead"), &1).await.unwrap();
    let pulled = daemon.pull(1, "40s").await;
    let bury = json!({"error": "no licence", "bury": true});
    assert_eq!(daemon.settle("fail", &pulled[0], bury).await, "buried");
    let all = ends(&daemon, &kind, 12).await;

    let requeue = ["archive", "requeue", &kind];
    let counted = async |more: &[&str]| {
        let told = asks(&[&requeue[..], more, &["--dry-run", "--json"]].concat()).await;
        assert_eq!(told.code, 0, "{told:?}");
        let out: Value = serde_json::from_str(&told.out).unwrap();
        (
            out["matched"].as_u64().unwrap(),
            out["without_payload"].as_u64().unwrap(),
        )
    };
    assert_eq!(counted(&[]).await, (11, 1));
    assert_eq!(counted(&["--how", "replaced"]).await, (0, 0));
    assert_eq!(counted(&["--error", "licence"]).await, (1, 0));
    assert_eq!(counted(&["--until", "1h"]).await, (0, 0));
    asks(&requeue)
        .await
        .fails(2, "11 jobs, all whose keys begin with");
    let dead = all.iter().find(|end| end["how"] == "buried").unwrap();
    let path = format!("/v1/archive/{}/requeue", site.key("dead"));
    let refused = daemon
        .send("POST", &path, json!({"ended": dead["ended"]}))
        .await;
    assert_eq!(
        (refused.0, &refused.1["code"]),
        (409, &json!("letter_present"))
    );

    // Page by page, and each page twice: no job is scheduled twice, although all have ended in between,
    // and the archive has their ends.
    let mut wanted = json!({"prefix": kind, "at_most": 4, "call": "0123456789abcdef01234567"});
    let mut ran = BTreeSet::new();
    let mut counts = [0; 4];
    loop {
        let mut next = Value::Null;
        for is_again in [false, true] {
            let before = site.stats().await.accepted;
            let page = daemon.post("/v1/archive/requeue", wanted.clone()).await;
            for _ in before..site.stats().await.accepted {
                let pulled = daemon.pull(1, "40s").await;
                assert!(ran.insert(pulled[0]["key"].to_string()), "{pulled:?}");
                assert_eq!(daemon.settle("finish", &pulled[0], json!({})).await, "done");
            }
            ends(&daemon, &kind, 12 + ran.len()).await;
            if !is_again {
                next = page["next"].clone();
                let fields = ["matched", "done", "skipped", "without_payload"];
                for (count, field) in counts.iter_mut().zip(fields) {
                    *count += page[field].as_u64().unwrap();
                }
            }
        }
        wanted["cursor"] = next;
        if wanted["cursor"].is_null() {
            break;
        }
    }
    assert_eq!(ran.len(), 8, "{ran:?}");
    assert_eq!(counts, [11, 8, 2, 1]);
    site.client.cancel(site.key(2)).await.unwrap();
    // Their last ends are other ones now.
    let all = 12 + 8 + 1;
    ends(&daemon, &kind, all).await;
    assert_eq!(counted(&["--how", "cancelled"]).await, (2, 1));
    assert_eq!(counted(&["--how", "done"]).await, (8, 0));
    // The same command again schedules no job twice, although one has ended in between.
    let named = ["--how", "done", "--yes", "--call"];
    let named = [&requeue[..], &named, &["2123456789abcdef01234567"]].concat();
    let told = asks(&named).await;
    assert_eq!(told.out.trim_end(), "8 of 8 done", "{told:?}");
    let pulled = daemon.pull(1, "40s").await;
    assert_eq!(daemon.settle("finish", &pulled[0], json!({})).await, "done");
    ends(&daemon, &kind, all + 1).await;
    let accepted = site.stats().await.accepted;
    let again = asks(&named).await;
    assert_eq!(again.code, 0, "{again:?}");
    assert_eq!(site.stats().await.accepted, accepted, "{again:?}");
    let unnamed = [&requeue[..], &["--cursor", "x"]].concat();
    asks(&unnamed).await.fails(2, "--call");
    let broken = json!({"prefix": kind, "cursor": "x"});
    let (status, answer) = daemon.send("POST", "/v1/archive/requeue", broken).await;
    assert_eq!(
        (status, &answer["field"]),
        (400, &json!("cursor")),
        "{answer}"
    );
}
