//! Counts, the data set, and what is removed.

use std::time::Duration;

use super::{Change, KIND, KindLock, MARK, copy, ended, pending, take};
use crate::site::Site;

#[tokio::test]
async fn kinds_are_counted_and_forgotten() {
    let site = Site::new("copy").await;
    let database = site.database();
    assert_eq!(database.copied_kinds().await.unwrap(), []);
    let changes: Vec<_> = (0..25_000).map(|id| pending(id, 1)).collect();
    copy(&database, &changes).await;
    copy(&database, &[ended(0, 2), ended(1, 2)]).await;
    let keep = "INSERT INTO keyfall_outbox_kept (id, op, key, inserted_at, kind)
        VALUES (1, 'cancel', 'app:m:job:0', now(), 'app:m:job')";
    site.sql.execute(keep, &[]).await.unwrap();
    take(&database).await.commit().await.unwrap();
    let other = KindLock::take(&database, "app:m:jobs").await;
    let other = other.unwrap().unwrap();
    let near = ["app:m:job-x:1", "app:m:jobs:1"].map(|key| Change {
        key: key.into(),
        ..pending("", 1)
    });
    other.store(&near, other.judge(&[]).unwrap()).await.unwrap();
    other.commit().await.unwrap();

    let kinds = database.copied_kinds().await.unwrap();
    let shown = kinds
        .iter()
        .map(|it| (it.kind.as_str(), it.pending, it.kept, it.is_filled));
    let wanted = [(KIND, 24_998, 1, false), ("app:m:jobs", 2, 0, false)];
    assert_eq!(shown.collect::<Vec<_>>(), wanted);
    let clock = kinds[0].clock.unwrap();
    let since = clock.duration_since(std::time::UNIX_EPOCH).unwrap();
    assert_eq!(u128::from(MARK.clock_us), since.as_micros());
    assert!(kinds[0].looked_at.is_some() && kinds[1].looked_at.is_none());
    let lock = take(&database).await;
    lock.filled(0, 1, 0).await.unwrap();
    lock.commit().await.unwrap();
    assert!(database.copied_kinds().await.unwrap()[0].is_filled);

    let lock = take(&database).await;
    assert!(!database.forget_copy(KIND).await.unwrap(), "it is copied");
    lock.commit().await.unwrap();
    assert!(database.forget_copy(KIND).await.unwrap());
    for table in ["", "_ledgers", "_kinds"] {
        let left = format!("SELECT count(*) FROM keyfall_copy{table} WHERE kind = '{KIND}'");
        assert_eq!(site.one::<i64>(&left).await, 0, "{table}");
    }
    let kept = "SELECT count(*) FROM keyfall_outbox_kept";
    assert_eq!(site.one::<i64>(kept).await, 0);
    assert_eq!(database.copied_kinds().await.unwrap(), kinds[1..]);
}

#[tokio::test]
async fn the_first_copier_decides_on_the_data_set_and_a_rebuild_on_the_next() {
    let site = Site::new("copy").await;
    let database = site.database();
    assert_eq!(database.copy_state().await.unwrap(), None);
    let first = database.begin_copy("one").await.unwrap();
    assert_eq!((first.data_set.as_str(), &first.stopped), ("one", &None));
    assert_eq!(database.begin_copy("two").await.unwrap(), first);
    database.stop_copy("it was emptied").await.unwrap();
    database.stop_copy("and again").await.unwrap();
    let stopped = database.copy_state().await.unwrap().unwrap();
    assert_eq!(stopped.stopped.as_deref(), Some("it was emptied"));
    assert_eq!(stopped.since, first.since);
    assert_eq!(database.begin_copy("two").await.unwrap(), stopped);
    database.resume_copy("two").await.unwrap();
    let resumed = database.copy_state().await.unwrap().unwrap();
    assert_eq!(
        (resumed.data_set.as_str(), &resumed.stopped),
        ("two", &None)
    );
    assert!(resumed.since > first.since);
}

#[tokio::test]
async fn tombstones_are_removed_when_they_are_old() {
    let site = Site::new("copy").await;
    let database = site.database();
    let changes: Vec<_> = (0..20_010).map(|id| ended(id, 1)).collect();
    copy(&database, &changes).await;
    copy(&database, &[pending("pending", 1), ended("young", 1)]).await;
    let age = "UPDATE keyfall_copy SET ended_at = now() - interval '2 hours'
            WHERE ended_at IS NOT NULL AND key <> 'app:m:job:young';
        INSERT INTO keyfall_outbox_kept (id, op, key, inserted_at, kind)
            VALUES (1, 'schedule', 'app:m:job:7', now(), 'app:m:job')";
    site.sql.batch_execute(age).await.unwrap();
    let hours = |hours: u64| Duration::from_secs(3_600 * hours);
    assert_eq!(database.sweep_tombstones(hours(3)).await.unwrap(), 0);
    assert_eq!(database.sweep_tombstones(hours(1)).await.unwrap(), 20_009);
    let left = ["7 -1", "pending 1", "young -1"];
    assert_eq!(site.versions().await, left);
    let forget = "DELETE FROM keyfall_outbox_kept";
    site.sql.execute(forget, &[]).await.unwrap();
    assert_eq!(database.sweep_tombstones(hours(1)).await.unwrap(), 1);
}
