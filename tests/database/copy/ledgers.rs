//! What is known of each ledger, and how one that was rolled back is noticed.

use keyfall_database::internals::{Change, LedgerMark, LedgerRow, Lost};

use super::{MARK, ledgers, pending, take};
use crate::site::Site;

impl Site {
    async fn look(&self, changes: &[Change], marks: &[LedgerMark]) -> Vec<LedgerRow> {
        let database = self.database();
        let lock = take(&database).await;
        lock.store(changes, lock.judge(marks).unwrap())
            .await
            .unwrap();
        lock.commit().await.unwrap();
        ledgers(&database).await
    }

    async fn lost(&self, marks: &[LedgerMark]) -> Option<(u16, Lost)> {
        let lock = take(&self.database()).await;
        let lost = lock.judge(marks).err().map(|it| (it.shard, it.lost));
        lock.commit().await.unwrap();
        lost
    }
}

fn on(shard: u16, change: Change) -> Change {
    Change { shard, ..change }
}

#[tokio::test]
async fn a_look_notes_what_redis_will_say_next() {
    let site = Site::new("copy").await;
    let second = LedgerMark {
        shard: 255,
        number: 3,
        fence: 9,
        ..MARK
    };
    let changes = [pending(1, 50), pending(2, 40), on(255, pending(3, 70))];
    let rows = site.look(&changes, &[MARK, second]).await;
    let noted = |it: &LedgerRow| (it.shard, it.epoch, it.number, it.through, it.fence);
    let shown: Vec<_> = rows.iter().map(noted).collect();
    assert_eq!(shown, [(0, 1, 101, 50, 7), (255, 1, 4, 70, 9)]);
    assert_eq!(rows[0].clock_us, MARK.clock_us);
    // Nothing has changed in the first, and Redis has not heard of the last batch of the second.
    let quiet = LedgerMark {
        number: 101,
        fence: 8,
        clock_us: MARK.clock_us + 1,
        ..MARK
    };
    let rows = site.look(&[], &[quiet, second]).await;
    let shown: Vec<_> = rows.iter().map(noted).collect();
    assert_eq!(shown, [(0, 1, 101, 50, 8), (255, 1, 4, 70, 9)]);
    assert_eq!(rows[0].clock_us, MARK.clock_us + 1);
    // The server of the first is away.
    let rows = site.look(&[on(255, pending(4, 80))], &[second]).await;
    let shown: Vec<_> = rows.iter().map(noted).collect();
    assert_eq!(shown, [(0, 1, 101, 50, 8), (255, 1, 4, 80, 9)]);
}

#[tokio::test]
async fn a_redis_that_was_rolled_back_is_noticed_before_anything_is_stored() {
    let site = Site::new("copy").await;
    site.look(&[pending(1, 50)], &[MARK]).await;
    // The acknowledgement is lost, then heard, then forgotten with the batch before.
    assert_eq!(site.lost(&[MARK]).await, None);
    let heard = LedgerMark {
        number: 101,
        ..MARK
    };
    site.look(&[pending(1, 60)], &[heard]).await;
    assert_eq!(site.lost(&[heard]).await, None);
    let batches = Lost::Batches { now: 100, was: 101 };
    assert_eq!(site.lost(&[MARK]).await, Some((0, batches)));
    let older = LedgerMark {
        version: 59,
        ..heard
    };
    let changes = Lost::Changes { now: 59, was: 60 };
    assert_eq!(site.lost(&[older]).await, Some((0, changes)));
    let emptied = LedgerMark {
        epoch: 0,
        number: 0,
        version: 0,
        ..MARK
    };
    let epoch = Lost::Epoch { now: 0, was: 1 };
    assert_eq!(site.lost(&[emptied]).await, Some((0, epoch)));
}

#[tokio::test]
async fn another_number_of_shards_begins_anew_and_keeps_fencing_values() {
    let site = Site::new("copy").await;
    let of = |shard, epoch| LedgerMark {
        shard,
        epoch,
        fence: 100 * u64::from(shard),
        ..MARK
    };
    let four = [of(0, 1), of(1, 1), of(2, 1), of(3, 1)];
    site.look(&[pending(1, 50)], &four).await;
    let one = LedgerMark {
        number: 0,
        version: 10,
        ..of(0, 2)
    };
    let moved = Change {
        epoch: 2,
        ..pending(1, 10)
    };
    let rows = site.look(&[moved], &[one]).await;
    assert_eq!((rows.len(), rows[0].number, rows[0].through), (4, 1, 10));
    assert_eq!(site.versions().await, ["1 10"]);
    let lock = take(&site.database()).await;
    lock.has_shards(1).await.unwrap();
    lock.commit().await.unwrap();
    let lock = take(&site.database()).await;
    let left = lock.ledgers();
    assert_eq!((left.len(), left[0].shard, left[0].fence), (1, 0, 300));
    lock.has_shards(1).await.unwrap();
    lock.commit().await.unwrap();
    let rows = site.look(&[], &[one]).await;
    assert_eq!(rows[0].fence, 300, "it does not fall");
}
