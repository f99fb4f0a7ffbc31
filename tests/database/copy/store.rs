//! The newest version of each key wins.

use super::{Change, KIND, MARK, Stored, copy, ended, ledgers, pending, take};
use crate::site::Site;

#[tokio::test]
async fn a_job_is_stored_as_it_is() {
    let site = Site::new("copy").await;
    let job = Change {
        shard: 255,
        epoch: u64::from(u32::MAX),
        job: Some(Stored {
            due_ms: 1_795_780_800_123,
            record: b"{\"v\":1}\n\0\xff".as_slice().into(),
        }),
        ..pending("it", 1_795_780_800_123_456)
    };
    let empty = Change {
        job: Some(Stored {
            due_ms: 0,
            record: b"".as_slice().into(),
        }),
        ..pending("jt", 1)
    };
    copy(&site.database(), &[job.clone(), empty.clone()]).await;
    for (found, stored) in site.copied().await.into_iter().zip([job, empty]) {
        let found = Change {
            key: found.key,
            shard: found.shard,
            epoch: found.epoch,
            version: found.version,
            job: Some(found.job),
        };
        assert_eq!(found, stored);
    }
    let due: String = site
        .one("SELECT due_at AT TIME ZONE 'UTC' || '' FROM keyfall_copy WHERE due_at > 'epoch'")
        .await;
    assert_eq!(due, "2026-11-27 12:00:00.123");
}

#[tokio::test]
async fn the_newest_wins_in_every_order() {
    let site = Site::new("copy").await;
    let database = site.database();
    let reshard = Change {
        epoch: 2,
        shard: 3,
        ..pending("", 5)
    };
    let changes = [pending("", 10), ended("", 20), pending("", 30), reshard];
    let of = |key: &str, at: usize| Change {
        key: format!("{}{key}", changes[at].key),
        ..changes[at].clone()
    };
    let mut orders = Vec::new();
    for a in 0..4 {
        for b in 0..4 {
            for c in 0..4 {
                orders.push([a, b, c]);
            }
        }
    }
    // One by one, each order with a key of its own, and then all of an order in one batch.
    for step in 0..3 {
        let one = |order: &[usize; 3]| of(&format!("x{order:?}"), order[step]);
        copy(&database, &orders.iter().map(one).collect::<Vec<_>>()).await;
    }
    let batches = orders.iter().flat_map(|order| {
        let key = format!("y{order:?}");
        order.map(|at| of(&key, at))
    });
    copy(&database, &batches.collect::<Vec<_>>()).await;
    let shown = |at: usize| match at {
        1 => " -20".to_owned(),
        at => format!(" {}", changes[at].version),
    };
    let wanted = ["x", "y"].iter().flat_map(|name| {
        let last = |order: &[usize; 3]| shown(*order.iter().max().unwrap());
        orders
            .iter()
            .map(move |order| format!("{name}{order:?}{}", last(order)))
    });
    assert_eq!(site.versions().await, wanted.collect::<Vec<_>>());
}

#[tokio::test]
async fn what_is_handed_over_again_changes_nothing() {
    let site = Site::new("copy").await;
    let changes: Vec<Change> = (0..2_500)
        .map(|id| match id % 3 {
            0 => ended(id, 100 + id),
            _ => pending(id, 100 + id),
        })
        .collect();
    copy(&site.database(), &changes).await;
    let all = "SELECT md5(string_agg(c::text, ',' ORDER BY key)) FROM keyfall_copy c";
    let before: String = site.one(all).await;
    for replay in [&changes[..], &changes[1_000..1_500], &changes[2_499..]] {
        copy(&site.database(), replay).await;
        assert_eq!(site.one::<String>(all).await, before);
    }
    assert_eq!(site.copied().await.len(), 1_666);
}

#[tokio::test]
async fn every_id_and_every_size_is_stored() {
    let site = Site::new("copy").await;
    let mut ids = [
        "'",
        "\\",
        "\"",
        "%",
        "_",
        "$1",
        "NULL",
        "--",
        "é",
        "e\u{301}",
        "É",
        "ß",
        "\u{10ffff}",
        "\u{feff}",
        "~a",
        "a~b",
    ]
    .map(String::from)
    .to_vec();
    ids.push("x".repeat(256));
    ids.push("\u{1f980}".repeat(64));
    let changes: Vec<Change> = ids.iter().map(|id| pending(id, 1)).collect();
    copy(&site.database(), &changes).await;
    ids.sort_unstable();
    let found = site.copied().await;
    let found: Vec<&str> = found.iter().map(|row| &row.key[10..]).collect();
    assert_eq!(found, ids, "in the order of their bytes");
    // More than one statement has.
    let large = |id: u64| Change {
        job: Some(Stored {
            due_ms: u64::MAX,
            record: vec![id as u8; 5 << 20].into(),
        }),
        ..pending(format!("{id}-large"), id)
    };
    let changes: Vec<Change> = (1..6).map(large).collect();
    copy(&site.database(), &changes).await;
    let (database, mut after, mut sizes) = (site.database(), None, Vec::new());
    loop {
        let page = database.copied_pending(KIND, after.as_deref(), 1_000);
        let page = page.await.unwrap();
        let Some(last) = page.last() else {
            break;
        };
        after = Some(last.key.clone());
        sizes.push(page.len());
    }
    assert_eq!(sizes.iter().sum::<usize>(), ids.len() + 5);
    assert!(sizes.len() > 1, "30 MiB are more than a page: {sizes:?}");
}

#[tokio::test]
async fn what_a_fill_has_not_met_has_ended() {
    let site = Site::new("copy").await;
    let database = site.database();
    let other = Change {
        shard: 1,
        ..pending("other", 5)
    };
    let ahead = Change {
        epoch: 2,
        ..pending("ahead", 5)
    };
    let old = [
        pending("a", 5),
        pending("b", 6),
        ended("c", 7),
        other,
        ahead,
    ];
    copy(&database, &old).await;
    let lock = take(&database).await;
    let marks = [MARK];
    assert!(!lock.ledgers()[0].filled);
    let judged = lock.judge(&marks).unwrap();
    let met = [pending("b", 100), pending("d", 100)];
    lock.store(&met, judged).await.unwrap();
    assert_eq!(lock.filled(0, 1, 100).await.unwrap(), 1);
    lock.commit().await.unwrap();
    let left = ["a -5", "ahead 5", "b 100", "c -7", "d 100", "other 5"];
    assert_eq!(site.versions().await, left);
    assert!(ledgers(&database).await[0].filled);
    // It was wrong about a job: a newer version brings it back.
    copy(&database, &[pending("a", 101)]).await;
    assert_eq!(site.versions().await[0], "a 101");
    assert!(ledgers(&database).await[0].filled, "it stays filled");
}
