//! A network that is gone without a word, a lock that is held, a full disk, a Redis that refuses: what
//! waits is told of, and nothing is lost, doubled or refused.

use std::io::Write;
use std::time::Duration;

use keyfall::embedded::Embedded;
use keyfall::{ArchiveTerms, Client, Kind, Outcome, Router, Shards, Worker};
use keyfall_database::internals::store;
use keyfall_database::{Archiver, Database, Error, Relay, Settings};
use keyfall_testing::patience::eventually;
use keyfall_testing::postgres::Postgres;
use keyfall_testing::proxies::FreezingProxy;

use crate::archive::{NOON, row};
use crate::site::{Running, Site, connect};

/// A database whose statements may take no longer than this.
fn impatient(url: &str, limit: Duration) -> Database {
    Database::open(&Settings::new(url).statement_timeout(limit)).unwrap()
}

/// Each connection of the pool is dead, and neither side is told: the answer to a commit is among what
/// does not arrive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_that_is_gone_without_a_word_holds_rows_up_for_seconds() {
    let postgres = Postgres::start();
    let network = FreezingProxy::at(&postgres.socket().to_string_lossy()).await;
    let site = Site::beside(&postgres, "trouble-silent").await;
    let database = impatient(&site.url_through(&network), Duration::from_millis(500));
    let relay = Relay::new(Client::connect(&site.redis).await.unwrap(), database);
    let _relay = Running::start(relay);
    let insert = "INSERT INTO keyfall_outbox (key, delay)
        SELECT $1 || n, '1 hour' FROM generate_series(1, 500) n";
    for round in ["a", "b", "c"] {
        let beginning = site.key(round);
        network.freeze_before("COMMIT");
        site.sql.execute(insert, &[&beginning]).await.unwrap();
        eventually("a transaction is about to end", async || {
            network.is_frozen().then_some(())
        })
        .await;
        network.forget_connections();
        network.thaw();
        site.is_empty().await;
    }
    let stats = site.stats().await;
    assert_eq!((stats.accepted, stats.replaced), (1_500, 0));
}

#[tokio::test]
async fn a_statement_that_takes_too_long_is_given_up_and_can_be_repeated() {
    let site = Site::new("trouble-slow").await;
    let database = impatient(&site.url, Duration::from_millis(300));
    let rows = [row("a:b:c:1", NOON)];
    store(&database, &rows).await.unwrap();
    let lock = "BEGIN; LOCK TABLE keyfall_archive_kinds";
    site.sql.batch_execute(lock).await.unwrap();
    let error = store(&database, &[row("a:b:c:2", NOON)]).await.unwrap_err();
    assert!(error.to_string().contains("statement timeout"), "{error}");
    site.sql.batch_execute("ROLLBACK").await.unwrap();
    let both = [row("a:b:c:1", NOON), row("a:b:c:2", NOON)];
    assert_eq!(store(&database, &both).await.unwrap(), 1);
}

/// As after a fail-over behind one address: a connection that was opened meanwhile stays read-only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_was_read_only_is_used_again_without_a_restart() {
    let site = Site::new("trouble-read-only").await;
    site.read_only("on").await;
    let schedule = "SELECT keyfall_schedule($1, delay => '1 hour')";
    site.sql.execute(schedule, &[&site.key(1)]).await.unwrap();
    let rolled_back = "SELECT xact_rollback FROM pg_stat_database
        WHERE datname = current_database()";
    let before: i64 = site.one(rolled_back).await;
    let _relay = site.relay().await;
    eventually("the relay is refused", async || {
        (site.one::<i64>(rolled_back).await > before).then_some(())
    })
    .await;
    let (database, rows) = (site.database(), [row("a:b:c:1", NOON)]);
    let error = store(&database, &rows).await.unwrap_err();
    assert!(matches!(error, Error::ReadOnly { .. }), "{error}");
    assert!(error.to_string().contains("read-write"), "{error}");
    site.read_only("off").await;
    assert_eq!(store(&database, &rows).await.unwrap(), 1);
    site.is_empty().await;
    assert_eq!(site.stats().await.accepted, 1);
}

#[tokio::test]
async fn tables_are_made_as_soon_as_the_server_takes_writes() {
    let site = Site::bare("trouble-read-only").await;
    site.read_only("on").await;
    let database = site.database();
    let error = database.migrate().await.unwrap_err();
    assert!(matches!(error, Error::ReadOnly { .. }), "{error}");
    site.read_only("off").await;
    assert_eq!(database.migrate().await.unwrap(), 3);
}

/// Jobs end meanwhile, and their records wait in Redis.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_of_postgresql_loses_and_doubles_nothing() {
    let Some(postgres) = Postgres::with_small_disk() else {
        // libtest would keep the words of a test that passes from `eprintln!`.
        let told = "a full disk of PostgreSQL is not tried: no file system may be mounted here";
        let _ = writeln!(std::io::stderr(), "{told}");
        return;
    };
    let redis = Embedded::start().await.unwrap();
    let mut site = Site::on(&postgres, &redis.url(), "trouble-full").await;
    let small = "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_tablespace = small',
        current_database()); END $$";
    site.sql.batch_execute(small).await.unwrap();
    site.sql = connect(&site.url).await;
    site.database().migrate().await.unwrap();
    let terms = ArchiveTerms::new().payload(10_000);
    site.client
        .prefix(&site.kind())
        .archive(terms)
        .await
        .unwrap();
    let insert = "INSERT INTO keyfall_outbox (key, payload)
        SELECT $1 || n, convert_to(repeat(md5(n::text), 100), 'UTF8')
        FROM generate_series(1, 300) n";
    site.sql.execute(insert, &[&site.key("a")]).await.unwrap();
    fill(&site).await;
    let error = store(&site.database(), &[row("a:b:c:1", NOON)]).await;
    let error = error.unwrap_err().to_string();
    assert!(error.contains("No space left"), "{error}");
    assert!(error.contains("make room"), "{error}");

    let client = async || Client::connect(&site.redis).await.unwrap();
    let _relay = Running::start(Relay::new(client().await, site.database()));
    let archiver = Archiver::new(client().await, site.database());
    let archiver = tokio::spawn(archiver.run_until(std::future::pending()));
    let router = Router::new().route(&format!("{}:{{id}}", site.kind()), async || Outcome::Done);
    let worker = Worker::new(site.client.clone(), router);
    let worker = tokio::spawn(worker.run_until(std::future::pending()));
    for id in 0..300 {
        let job = site
            .client
            .schedule(site.key(format_args!("b{id}")), &"x".repeat(3_000));
        job.await.unwrap();
    }
    let kind = Kind::parse(&site.kind()).unwrap();
    eventually("jobs end, and their records wait", async || {
        let ended = site.client.ended(&kind, Shards::Present, 1).await.unwrap();
        (site.stats().await.done >= 300 && ended.waiting >= 300).then_some(())
    })
    .await;
    site.sql.batch_execute("DROP TABLE filler").await.unwrap();
    site.is_empty().await;
    eventually("all is in the archive", async || {
        let ended = site.client.ended(&kind, Shards::Present, 1).await.unwrap();
        (site.stats().await.done == 600 && ended.waiting == 0).then_some(())
    })
    .await;
    let stats = site.stats().await;
    assert_eq!((stats.accepted, stats.replaced), (600, 0));
    let stored: i64 = site
        .one("SELECT count(DISTINCT key) FROM keyfall_archive")
        .await;
    let rows: i64 = site.one("SELECT count(*) FROM keyfall_archive").await;
    let refused: i64 = site
        .one("SELECT count(*) FROM keyfall_outbox_refused")
        .await;
    assert_eq!((stored, rows, refused), (600, 600, 0));
    worker.abort();
    archiver.abort();
}

/// Fills the disk of the tables to the last page.
async fn fill(site: &Site) {
    let make = "CREATE TABLE filler (text text); ALTER TABLE filler ALTER text SET STORAGE PLAIN";
    site.sql.batch_execute(make).await.unwrap();
    for rows in [1_000, 10, 1] {
        let fill = "INSERT INTO filler SELECT repeat('x', 7000) FROM generate_series(1, $1)";
        let error = loop {
            match site.sql.execute(fill, &[&rows]).await {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        let code = error.code().map(|code| code.code().to_owned());
        assert_eq!(code.as_deref(), Some("53100"), "{error}");
    }
}

/// The setting of Redis is wrong, and no row: the rows wait until somebody mends it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_refuses_or_is_away_refuses_no_row() {
    let mut redis = Embedded::options()
        .args(["--appendonly", "yes"])
        .start()
        .await
        .unwrap();
    let postgres = Postgres::start();
    let site = Site::on(&postgres, &redis.url(), "trouble-redis").await;
    site.database().migrate().await.unwrap();
    let _relay = site.relay().await;
    let schedule = "SELECT keyfall_schedule($1, delay => '1 hour')";
    site.sql
        .execute(schedule, &[&site.key("first")])
        .await
        .unwrap();
    site.is_empty().await;
    let commands = redis::Client::open(redis.url()).unwrap();
    let mut rows = 1;
    for (wrong, right) in [
        // A user without the rights of a producer.
        (
            "ACL SETUSER default -evalsha",
            "ACL SETUSER default +evalsha",
        ),
        // No memory is left.
        ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"),
        // A schema that this version does not know, and a server that is away.
        ("", ""),
    ] {
        let run = async |words: &str| {
            let mut connection = commands.get_multiplexed_async_connection().await.unwrap();
            let mut words = words.split(' ');
            let mut command = redis::cmd(words.next().unwrap());
            let () = command
                .arg(words.collect::<Vec<_>>())
                .query_async(&mut connection)
                .await
                .unwrap();
        };
        match wrong {
            "" => redis.kill_server().await.unwrap(),
            wrong => run(wrong).await,
        }
        for _ in 0..5 {
            rows += 1;
            site.sql
                .execute(schedule, &[&site.key(rows)])
                .await
                .unwrap();
        }
        // Several attempts are made in vain.
        let tried = site.tried(3).await;
        assert_eq!(tried, (5, 0), "{wrong}");
        match right {
            "" => redis.restart().await.unwrap(),
            right => run(right).await,
        }
        site.is_empty().await;
        let refused: i64 = site
            .one("SELECT count(*) FROM keyfall_outbox_refused")
            .await;
        assert_eq!(refused, 0, "{wrong}");
    }
    let stats = site.stats().await;
    assert_eq!((stats.accepted, stats.replaced), (rows, 0));
}

impl Site {
    /// Whether the database takes no writes, for connections that are opened from now on.
    async fn read_only(&self, set: &str) {
        let set = format!(
            "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I
                SET default_transaction_read_only = {set}', current_database()); END $$"
        );
        self.sql.batch_execute(&set).await.unwrap();
    }

    /// Waits until the relay has noted its batch again so often: each attempt writes its time. Returns
    /// how many rows wait, and how many were refused.
    async fn tried(&self, times: usize) -> (i64, i64) {
        let read = "SELECT taken_until::text FROM keyfall_outbox_lanes
            WHERE cardinality(batch) > 0";
        let mut last = String::new();
        for _ in 0..=times {
            last = eventually("the relay tries again", async || {
                let refused: i64 = self
                    .one("SELECT count(*) FROM keyfall_outbox_refused")
                    .await;
                assert_eq!(refused, 0, "rows are refused");
                let row = self.sql.query_opt(read, &[]).await.unwrap()?;
                let now: String = row.get(0);
                (now != last).then_some(now)
            })
            .await;
        }
        (
            self.one("SELECT count(*) FROM keyfall_outbox").await,
            self.one("SELECT count(*) FROM keyfall_outbox_refused")
                .await,
        )
    }
}
