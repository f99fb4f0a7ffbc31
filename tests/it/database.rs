//! `keyfall serve` and `keyfall database` beside a PostgreSQL.

use keyfall::JobState;
use keyfall::embedded::Embedded;
use keyfall_testing::postgres::Postgres;

use crate::runs::eventually;
use crate::shell::{Ran, keyfall};
use crate::site::Site;

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
    let start = [
        "serve",
        "--redis-url",
        &site.url,
        "--http-listen",
        "127.0.0.1:0",
    ];
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
    let refuse = ["--database-url", &url, "--database-refuse-lost-data"];
    let serve = [&["serve"], &here[..], &refuse[..]].concat();
    run(&serve)
        .await
        .fails(1, "bring it back with `keyfall rebuild --yes`");
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
