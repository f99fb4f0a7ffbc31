//! One copier works on a kind at a time, and what was not committed has not happened.

use std::time::Duration;

use keyfall_database::internals::KindLock;
use keyfall_testing::patience::eventually;
use keyfall_testing::postgres::Postgres;
use tokio::time::sleep;

use super::{Change, KIND, LedgerMark, MARK, copy, open, pending, take};
use crate::site::{Site, connect};

#[tokio::test]
async fn one_copier_works_on_a_kind_and_the_others_pass_it_by() {
    let site = Site::new("copy").await;
    let (one, other) = (site.database(), site.database());
    let lock = take(&one).await;
    for _ in 0..3 {
        assert!(KindLock::take(&other, KIND).await.unwrap().is_none());
    }
    let second = KindLock::take(&other, "app:m:other").await.unwrap();
    assert!(second.is_some(), "another kind is free");
    let marks = [MARK];
    lock.store(&[pending(1, 1)], lock.judge(&marks).unwrap())
        .await
        .unwrap();
    // Dropped, it has done nothing, and the kind is free.
    drop(lock);
    let free = eventually("the kind is free", async || {
        KindLock::take(&other, KIND).await.unwrap()
    });
    let lock = free.await;
    assert_eq!(lock.ledgers(), []);
    assert_eq!(site.versions().await.len(), 0);
    lock.commit().await.unwrap();
}

/// Whatever isolation the database has as its default.
#[tokio::test]
async fn a_copier_sees_what_was_committed_until_it_had_the_lock() {
    let site = Site::new("copy").await;
    let hold = "BEGIN; LOCK TABLE keyfall_copy_ledgers;
        INSERT INTO keyfall_copy_ledgers
            (kind, shard, epoch, number, through, fence, clock, looked_at)
            VALUES ('app:m:job', 0, 1, 2, 3, 4, now(), now())";
    site.sql.batch_execute(hold).await.unwrap();
    let strict = "options='-c default_transaction_isolation=serializable'";
    let database = open(&format!("{} {strict}", site.url));
    let taking = tokio::spawn(async move { take(&database).await });
    let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted
        AND relation = 'keyfall_copy_ledgers'::regclass";
    eventually("it has the kind and waits", async || {
        (site.one::<i64>(waiting).await == 1).then_some(())
    })
    .await;
    site.sql.batch_execute("COMMIT").await.unwrap();
    assert_eq!(taking.await.unwrap().ledgers()[0].through, 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_copiers_leave_the_newest_of_each_key() {
    let site = Site::new("copy").await;
    let copiers = (0..6_u64).map(|copier| {
        let database = site.database();
        tokio::spawn(async move {
            let mut looks = 0;
            while looks < 10 {
                let Some(lock) = KindLock::take(&database, KIND).await.unwrap() else {
                    tokio::task::yield_now().await;
                    continue;
                };
                // As Redis does, which counts when it is told.
                let number = lock.ledgers().first().map_or(0, |row| row.number);
                let marks = [LedgerMark { number, ..MARK }];
                let version = number * 10 + copier;
                let changes: Vec<Change> = (0..50).map(|id| pending(id, version)).collect();
                let judged = lock.judge(&marks).unwrap();
                lock.store(&changes, judged).await.unwrap();
                lock.commit().await.unwrap();
                looks += 1;
            }
        })
    });
    for copier in futures_util::future::join_all(copiers).await {
        copier.unwrap();
    }
    let lock = take(&site.database()).await;
    let row = lock.ledgers()[0];
    assert_eq!(row.number, 60, "each look came after the other");
    let rows = site.copied().await;
    assert_eq!(rows.len(), 50);
    assert!(rows.iter().all(|job| job.version == row.through));
}

/// At moments from the first statement to the answer of the commit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgresql_that_is_killed_at_any_time_has_all_of_a_batch_or_nothing() {
    let mut postgres = Postgres::start();
    let site = Site::beside(&postgres, "copy").await;
    let mut cut = 0;
    for round in 1..=10_u64 {
        let large = vec![b'x'; 20_000];
        let changes: Vec<Change> = (0..1_500)
            .map(|id| {
                let mut change = pending(id, round);
                change.job.as_mut().unwrap().record = large.clone().into();
                change
            })
            .collect();
        let (database, first) = (site.database(), changes.clone());
        let first = tokio::spawn(async move { copy(&database, &first).await });
        sleep(Duration::from_millis(20 * (round - 1))).await;
        postgres.kill();
        cut += usize::from(first.await.is_err());
        postgres.begin();
        let sql = connect(&site.url).await;
        let state = "SELECT coalesce(min(version), 0), coalesce(max(version), 0), count(*),
                (SELECT coalesce(max(through), 0) FROM keyfall_copy_ledgers)
            FROM keyfall_copy";
        let found = eventually("it answers", async || sql.query_one(state, &[]).await.ok()).await;
        let (least, most): (i64, i64) = (found.get(0), found.get(1));
        assert_eq!(least, most, "round {round} is whole");
        assert_eq!(found.get::<_, i64>(3), most, "its ledger goes with it");
        assert!(found.get::<_, i64>(2) == 1_500 || most == 0);
        // Nobody has told Redis, so it hands the same over again.
        copy(&site.database(), &changes).await;
        let again = sql.query_one(state, &[]).await.unwrap();
        assert_eq!(again.get::<_, i64>(0).cast_unsigned(), round);
    }
    assert!(cut > 0, "no look was cut off");
}
