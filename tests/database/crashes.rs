//! Relays, PostgreSQL and Redis are killed: each committed row is passed on once.

use std::time::Duration;

use keyfall::embedded::Embedded;
use keyfall::{Outcome, Router, Worker};
use keyfall_testing::patience::eventually;
use keyfall_testing::postgres::Postgres;
use tokio::time::sleep;

use crate::site::Site;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relays_that_are_killed_at_any_time_pass_on_each_row_once() {
    let site = Site::new("crashes-relays").await;
    // What runs twice was passed on twice: jobs are gone when they have run.
    let router = Router::new().route(&format!("{}:{{id}}", site.kind()), async || Outcome::Done);
    let worker = Worker::new(site.client.clone(), router);
    let worker = tokio::spawn(worker.run_until(std::future::pending()));
    let steady = site.relay().await;
    for round in 0..40_u64 {
        let relay = site.relay().await;
        let insert = format!(
            "INSERT INTO keyfall_outbox (key)
                SELECT '{}:{round}-' || n FROM generate_series(1, 300) n",
            site.kind()
        );
        site.sql.execute(&insert, &[]).await.unwrap();
        // Somewhere between the wake and the commit.
        sleep(Duration::from_micros(400 * round)).await;
        relay.kill().await;
    }
    site.is_empty().await;
    eventually("all have run", async || {
        let stats = site.stats().await;
        (stats.pending + stats.leased == 0).then_some(())
    })
    .await;
    let stats = site.stats().await;
    assert_eq!((stats.accepted, stats.done), (12_000, 12_000));
    drop(steady);
    worker.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_was_sent_and_not_noted_is_not_repeated() {
    let site = Site::new("crashes-sent").await;
    let insert = format!(
        "INSERT INTO keyfall_outbox (key, delay)
            SELECT '{}:' || n, '1 hour' FROM generate_series(1, 400) n",
        site.kind()
    );
    site.sql.execute(&insert, &[]).await.unwrap();
    // Rows that are locked cannot be removed: the relay sends them, and waits.
    let blocker = crate::site::connect(&site.url).await;
    let lock = "BEGIN; SELECT id FROM keyfall_outbox FOR UPDATE";
    blocker.batch_execute(lock).await.unwrap();
    let first = site.relay().await;
    eventually("all are sent", async || {
        (site.stats().await.accepted == 400).then_some(())
    })
    .await;
    first.kill().await;
    for id in 1..=400 {
        site.client.cancel(site.key(id)).await.unwrap();
    }
    blocker.batch_execute("ROLLBACK").await.unwrap();
    let _second = site.relay().await;
    site.is_empty().await;
    let stats = site.stats().await;
    assert_eq!(
        (stats.accepted, stats.cancelled, stats.pending),
        (400, 400, 0)
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_wait_while_postgresql_or_redis_is_away() {
    let mut postgres = Postgres::start();
    let mut redis = Embedded::options()
        .args(["--appendonly", "yes"])
        .start()
        .await
        .unwrap();
    let mut site = Site::on(&postgres, &redis.url(), "crashes-away").await;
    site.database().migrate().await.unwrap();
    let _relay = site.relay().await;
    let insert = format!(
        "INSERT INTO keyfall_outbox (key, delay)
            SELECT '{}:' || n || '-' || $1, '1 hour' FROM generate_series(1, 2500) n",
        site.kind()
    );
    for round in ["a", "b"] {
        site.sql.execute(&insert, &[&round]).await.unwrap();
        postgres.kill();
        postgres.begin();
        site.sql = crate::site::connect(&site.url).await;
    }
    site.sql.execute(&insert, &[&"c"]).await.unwrap();
    redis.kill_server().await.unwrap();
    site.sql.execute(&insert, &[&"d"]).await.unwrap();
    redis.restart().await.unwrap();
    site.is_empty().await;
    let stats = site.stats().await;
    assert_eq!(
        (stats.accepted, stats.replaced, stats.pending),
        (10_000, 0, 10_000)
    );
}

/// As at a fail-over to a standby that has not got the last commits.
#[tokio::test]
async fn a_database_that_has_lost_its_last_commits_loses_no_row() {
    let site = Site::new("crashes-lost").await;
    let _relay = site.relay().await;
    let insert = format!(
        "INSERT INTO keyfall_outbox (key, delay)
            SELECT '{}:' || $1 || n, '1 hour' FROM generate_series(1, 10) n",
        site.kind()
    );
    site.sql.execute(&insert, &[&"a"]).await.unwrap();
    site.is_empty().await;
    for round in ["b", "c"] {
        let lose = "UPDATE keyfall_outbox_lanes SET number = number - 1, batch = '{}'";
        site.sql.execute(lose, &[]).await.unwrap();
        site.sql.execute(&insert, &[&round]).await.unwrap();
        site.is_empty().await;
    }
    assert_eq!(site.stats().await.pending, 30);
}

/// Redis refuses numbers above 2^31 - 1, so nobody has sent the batch.
#[tokio::test]
async fn a_noted_batch_with_too_high_a_number_gets_another_name() {
    let site = Site::new("crashes-number").await;
    let note = format!(
        "INSERT INTO keyfall_outbox (key, delay)
            SELECT '{0}:' || n, '1 hour' FROM generate_series(1, 10) n;
        INSERT INTO keyfall_outbox_lanes (kind, lane, number, batch)
            SELECT '{0}', '0123456789abcdef01234567', 2147483648, array_agg(id ORDER BY id)
            FROM keyfall_outbox WHERE kind = '{0}'",
        site.kind()
    );
    site.sql.batch_execute(&note).await.unwrap();
    let _relay = site.relay().await;
    site.is_empty().await;
    assert_eq!(site.stats().await.pending, 10);
}

#[tokio::test]
async fn kinds_that_stand_still_hold_up_no_other() {
    let site = Site::new("crashes-still").await;
    // More than are worked on at the same time, and in front of the other one.
    let still = format!(
        "INSERT INTO keyfall_outbox (key) SELECT '{0}:a' || n || ':job:1'
            FROM generate_series(1, 80) n;
        INSERT INTO keyfall_outbox_lanes (kind, lane, number, relay, taken_until)
            SELECT '{0}:a' || n || ':job', 'x', 1, 'another', now() + interval '1 hour'
            FROM generate_series(1, 80) n",
        site.app
    );
    site.sql.batch_execute(&still).await.unwrap();
    let _relay = site.relay().await;
    let key = format!("{}:z:job:1", site.app);
    let schedule = "SELECT keyfall_schedule($1, delay => '1 hour')";
    site.sql.execute(schedule, &[&key]).await.unwrap();
    eventually("it is passed on", async || {
        site.client.get(&key).await.unwrap()
    })
    .await;
    eventually("its row is gone", async || {
        let left: i64 = site.one("SELECT count(*) FROM keyfall_outbox").await;
        (left == 80).then_some(())
    })
    .await;
}
