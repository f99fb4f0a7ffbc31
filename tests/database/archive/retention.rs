//! Months are dropped when their time is over, and no sooner.

use futures_util::future::join_all;
use jiff::{Timestamp, ToSpan, tz::TimeZone};

use super::{open, row};
use crate::site::Site;
use keyfall_database::Database;
use keyfall_database::internals::{Row, store};

/// The first of the month so many months ago, and its partition.
fn month(keep: u16, ago: i32) -> (i64, String) {
    let first = Timestamp::now()
        .to_zoned(TimeZone::UTC)
        .first_of_month()
        .unwrap();
    let first = first.start_of_day().unwrap() - ago.months();
    let name = format!("keyfall_archive_{keep}_{}", first.strftime("%Y_%m"));
    (first.timestamp().as_microsecond(), name)
}

#[tokio::test]
async fn months_whose_time_is_over_are_dropped_and_no_others() {
    let site = Site::new("archive").await;
    let (mut rows, mut over, mut kept) = (Vec::new(), Vec::new(), Vec::new());
    for (keep, agos) in [(1, [0, 1, 2, 3]), (3, [0, 3, 4, 9]), (0, [0, 1, 30, 60])] {
        for ago in agos {
            let (first, name) = month(keep, ago);
            rows.push(Row {
                keep_months: keep,
                ..row("a:b:c:1", first)
            });
            // The month itself, and then its time.
            let is_over = keep > 0 && ago > i32::from(keep);
            if is_over {
                over.push(name)
            } else {
                kept.push(name)
            }
        }
    }
    for absurd in [0, i64::MAX] {
        rows.push(row("a:b:c:1", absurd));
    }
    kept.extend([
        "keyfall_archive_12_before_2020".to_owned(),
        "keyfall_archive_12_after_2099".to_owned(),
    ]);
    store(&site.database(), &rows).await.unwrap();
    let mut dropped = site.database().drop_expired().await.unwrap();
    dropped.sort();
    over.sort();
    kept.sort();
    assert_eq!(dropped, over);
    assert_eq!(over.len(), 4);
    assert_eq!(site.partitions().await, kept);
    assert_eq!(site.database().drop_expired().await.unwrap(), [""; 0]);
    // What comes late is stored, and dropped again.
    store(&site.database(), &rows).await.unwrap();
    let several = [open(&site.url), open(&site.url), open(&site.url)];
    let dropped = join_all(several.iter().map(Database::drop_expired)).await;
    let mut dropped: Vec<String> = dropped.into_iter().flat_map(Result::unwrap).collect();
    dropped.extend(site.database().drop_expired().await.unwrap());
    dropped.sort();
    assert_eq!(dropped, over);
}

#[tokio::test]
async fn a_month_that_a_query_reads_is_left_until_later() {
    let site = Site::new("archive").await;
    let (first, name) = month(1, 5);
    let old = Row {
        keep_months: 1,
        ..row("a:b:c:1", first)
    };
    store(&site.database(), &[old]).await.unwrap();
    let read = "BEGIN; SELECT count(*) FROM keyfall_archive";
    site.sql.batch_execute(read).await.unwrap();
    assert_eq!(site.database().drop_expired().await.unwrap(), [""; 0]);
    site.sql.batch_execute("COMMIT").await.unwrap();
    assert_eq!(site.database().drop_expired().await.unwrap(), [name]);
}
