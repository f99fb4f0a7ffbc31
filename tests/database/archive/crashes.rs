//! PostgreSQL is killed while rows are stored, and a repeat stores each once.

use std::time::Duration;

use keyfall_testing::patience::eventually;
use keyfall_testing::postgres::Postgres;
use tokio::time::sleep;

use super::{HOUR, NOON, row};
use crate::site::{Site, connect};
use keyfall_database::Error;
use keyfall_database::internals::{Row, store};

fn rows(round: i64) -> Vec<Row> {
    let large = Row {
        payload: Some(vec![b'x'; 20_000].into()),
        ..row("a:b:c:x", NOON)
    };
    let key = |n| format!("a:b:c:{round}-{n}").parse().unwrap();
    (0..1_000)
        .map(|n| Row {
            key: key(n),
            ended_us: NOON + n * HOUR,
            ..large.clone()
        })
        .collect()
}

/// At moments from the first byte of the copy to the answer of the commit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgresql_that_is_killed_at_any_time_stores_each_row_once() {
    let mut postgres = Postgres::start();
    let site = Site::beside(&postgres, "archive").await;
    let mut cut = 0;
    for round in 0..10 {
        let rows = rows(round);
        let (database, first) = (site.database().clone(), rows.clone());
        let first = tokio::spawn(async move { store(&database, &first).await });
        sleep(Duration::from_millis(15 * round.unsigned_abs())).await;
        postgres.kill();
        let first = first.await.unwrap();
        cut += usize::from(first.is_err());
        postgres.begin();
        let again = eventually("the rows are stored", async || {
            store(&site.database(), &rows).await.ok()
        })
        .await;
        let sql = connect(&site.url).await;
        let count = "SELECT count(*) FROM keyfall_archive";
        let stored: i64 = sql.query_one(count, &[]).await.unwrap().get(0);
        assert_eq!(
            stored,
            1_000 * (round + 1),
            "round {round}: {first:?}, then {again}"
        );
    }
    assert!(cut > 0, "no call was cut off");
}

/// The server has committed, and its answer is lost.
#[tokio::test]
async fn a_commit_whose_answer_is_lost_is_not_repeated() {
    let site = Site::new("archive").await;
    let rows = rows(0);
    // The commit waits here: the trigger runs within it.
    let wait = "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END';
        CREATE CONSTRAINT TRIGGER wait AFTER INSERT ON keyfall_archive_kinds
            DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION wait()";
    site.sql.batch_execute(wait).await.unwrap();
    site.sql
        .batch_execute("SELECT pg_advisory_lock(1)")
        .await
        .unwrap();
    let (database, first) = (site.database().clone(), rows.clone());
    let first = tokio::spawn(async move { store(&database, &first).await });
    let waiting = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event = 'advisory' AND query = 'COMMIT'";
    eventually("the commit waits", async || {
        (site.one::<i64>(waiting).await == 1).then_some(())
    })
    .await;
    first.abort();
    site.sql
        .batch_execute("SELECT pg_advisory_unlock(1)")
        .await
        .unwrap();
    eventually("it is committed", async || {
        (site.archived_rows().await == 1_000).then_some(())
    })
    .await;
    assert_eq!(store(&site.database(), &rows).await.unwrap(), 0);
    assert_eq!(site.archived_rows().await, 1_000);
}

#[tokio::test]
async fn a_write_that_takes_too_long_is_given_up_and_holds_nothing() {
    let site = Site::new("archive").await;
    let slow = super::open(&format!("{} options='-c lock_timeout=100ms'", site.url));
    store(&slow, &[row("a:b:c:1", NOON)]).await.unwrap();
    let hold = "BEGIN; LOCK TABLE keyfall_archive_12_2026_11";
    site.sql.batch_execute(hold).await.unwrap();
    let error = store(&slow, &[row("a:b:c:2", NOON)]).await.unwrap_err();
    assert!(matches!(error, Error::Unreachable(_)), "{error}");
    site.sql.batch_execute("ROLLBACK").await.unwrap();
    let both = [row("a:b:c:2", NOON), row("a:b:c:1", NOON)];
    assert_eq!(store(&slow, &both).await.unwrap(), 1);
}
