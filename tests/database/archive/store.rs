//! Each row is stored once, whatever it holds.

use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use tokio_postgres::types::Json;

use super::{HOUR, NOON, open, row};
use crate::site::Site;
use keyfall_database::How;
use keyfall_database::internals::{Row, store};

#[tokio::test]
async fn a_row_is_stored_as_it_is() {
    let site = Site::new("archive").await;
    let full = Row {
        how: How::Buried,
        error: Some("the host has timed out".into()),
        headers: [("tenant".to_owned(), "acme".to_owned())].into(),
        header: Some(r#"{"v":1,"max_attempts":3,"order":18446744073709551615}"#.into()),
        payload: Some(b"\0\xff{}".as_slice().into()),
        payload_bytes: 4,
        fence: Some(u64::MAX - 1),
        letter: Some(9_007_199_254_740_993),
        occurrence_us: Some(NOON - 1),
        ..row("app:trans:notice:ü_%1", NOON + 1)
    };
    assert_eq!(store(&site.database(), &[full]).await.unwrap(), 1);
    let it = "SELECT * FROM keyfall_archive";
    let it = site.sql.query_one(it, &[]).await.unwrap();
    let time = |us: i64| SystemTime::UNIX_EPOCH + Duration::from_micros(us.unsigned_abs());
    assert_eq!(it.get::<_, SystemTime>("ended_at"), time(NOON + 1));
    assert_eq!(
        it.get::<_, SystemTime>("accepted_at"),
        time(NOON + 1 - HOUR)
    );
    assert_eq!(it.get::<_, SystemTime>("occurrence_at"), time(NOON - 1));
    assert_eq!(it.get::<_, &str>("key"), "app:trans:notice:ü_%1");
    assert_eq!(it.get::<_, &str>("kind"), "app:trans:notice");
    assert_eq!(it.get::<_, &str>("how"), "buried");
    assert_eq!(it.get::<_, i64>("lag_ms"), 3);
    assert_eq!(it.get::<_, i64>("duration_ms"), 2);
    assert_eq!(it.get::<_, &[u8]>("payload"), b"\0\xff{}");
    assert_eq!(it.get::<_, i64>("fence").cast_unsigned(), u64::MAX - 1);
    assert_eq!(it.get::<_, i64>("letter"), 9_007_199_254_740_993);
    let header: Json<serde_json::Value> = it.get("header");
    assert_eq!(header.0["order"], u64::MAX);
    let tenant: String = site
        .one("SELECT headers->>'tenant' FROM keyfall_archive")
        .await;
    assert_eq!(tenant, "acme");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_are_handed_in_again_and_by_several_writers_are_stored_once() {
    let site = Site::new("archive").await;
    // Six kinds, three months, two times for which they are kept; each in an order of its own.
    let rows: Vec<Row> = (0..3_000)
        .map(|n| Row {
            keep_months: if n % 2 == 0 { 12 } else { 0 },
            ..row(&format!("app:m:kind{}:{n}", n % 6), NOON - n * HOUR / 2)
        })
        .collect();
    let writers = (0..6).map(|writer| {
        let (database, mut rows) = (open(&site.url), rows.clone());
        async move {
            let mut new = 0;
            for round in 0..4 {
                rows.rotate_left(211 * (writer + round));
                for batch in rows.chunks(500 + 100 * writer) {
                    new += store(&database, batch).await.unwrap();
                }
            }
            new
        }
    });
    let new: Vec<u64> = join_all(writers.map(tokio::spawn))
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    assert_eq!(new.iter().sum::<u64>(), 3_000, "{new:?}");
    assert_eq!(site.archived_rows().await, 3_000);
    let kinds = "SELECT count(*) FROM keyfall_archive_kinds WHERE how = 'done'";
    assert_eq!(site.one::<i64>(kinds).await, 6);
    // Against each other, as large batches of a kind that is known.
    let rows: Vec<Row> = (0..10_000)
        .map(|n| row(&format!("app:m:kind0:x{n}"), NOON))
        .collect();
    let backwards: Vec<Row> = rows.iter().rev().cloned().collect();
    let (one, other) = (open(&site.url), open(&site.url));
    let (one, other) = tokio::join!(
        tokio::spawn(async move { store(&one, &rows).await }),
        tokio::spawn(async move { store(&other, &backwards).await }),
    );
    assert_eq!(one.unwrap().unwrap() + other.unwrap().unwrap(), 10_000);
    // A row that is twice in one batch, and the next job of its name.
    let twice = [
        row("a:b:c:1", NOON),
        row("a:b:c:1", NOON),
        Row {
            accepted_us: NOON - 1,
            ..row("a:b:c:1", NOON)
        },
    ];
    assert_eq!(store(&site.database(), &twice).await.unwrap(), 2);
}

#[tokio::test]
async fn months_end_at_midnight_utc_and_times_that_cannot_be_share_two_partitions() {
    let site = Site::new("archive").await;
    let us = |text: &str| text.parse::<jiff::Timestamp>().unwrap().as_microsecond();
    let times = [
        "1970-01-01T00:00:00Z",
        "2019-12-31T23:59:59.999999Z",
        "2020-01-01T00:00:00Z",
        "2024-02-29T23:59:59.999999Z",
        "2024-03-01T00:00:00Z",
        "2026-12-31T23:59:59.999999Z",
        "2027-01-01T00:00:00Z",
        "2099-12-31T23:59:59.999999Z",
        "2100-01-01T00:00:00Z",
    ];
    let mut rows: Vec<Row> = times.iter().map(|at| row("a:b:c:1", us(at))).collect();
    rows.push(row("a:b:c:2", i64::MAX));
    rows.push(row("a:b:c:2", i64::MIN + HOUR));
    rows.push(Row {
        keep_months: u16::MAX,
        ..row("a:b:c:3", NOON)
    });
    // The settings of the caller have no say.
    let strange = open(&format!(
        "{} options='-c TimeZone=Asia/Tokyo -c DateStyle=German'",
        site.url
    ));
    assert_eq!(store(&strange, &rows).await.unwrap(), 12);
    let read = "SELECT tableoid::regclass::text || ' ' || count(*) FROM keyfall_archive GROUP BY tableoid ORDER BY 1";
    let rows = site.sql.query(read, &[]).await.unwrap();
    let found: Vec<&str> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(
        found,
        [
            "keyfall_archive_1200_2026_11 1",
            "keyfall_archive_12_2020_01 1",
            "keyfall_archive_12_2024_02 1",
            "keyfall_archive_12_2024_03 1",
            "keyfall_archive_12_2026_12 1",
            "keyfall_archive_12_2027_01 1",
            "keyfall_archive_12_2099_12 1",
            "keyfall_archive_12_after_2099 2",
            "keyfall_archive_12_before_2020 3",
        ]
    );
    assert_eq!(site.partitions().await.len(), 9);
}

#[tokio::test]
async fn no_text_stops_the_archive() {
    let site = Site::new("archive").await;
    let long = "é".repeat(600_000);
    let nested = "[".repeat(100_000);
    let rows = [
        Row {
            error: Some("a\0b".into()),
            worker: Some("\0".into()),
            ..row("a:b:c:nul", NOON)
        },
        Row {
            error: Some(format!("x{long}")),
            ..row("a:b:c:long", NOON)
        },
        Row {
            error: Some("w".repeat(5_000)),
            ..row("a:b:c:word", NOON)
        },
        Row {
            header: Some(r#"{"v":1,"error":"a\u0000b","\u0000":["\u0000"]}"#.into()),
            ..row("a:b:c:escape", NOON)
        },
        Row {
            header: Some(r#"{"v":1,"error":"\ud800"}"#.into()),
            ..row("a:b:c:surrogate", NOON)
        },
        Row {
            header: Some(r#"{"v":1e999}"#.into()),
            ..row("a:b:c:number", NOON)
        },
        Row {
            header: Some(nested),
            ..row("a:b:c:nested", NOON)
        },
        Row {
            headers: [("\0".to_owned(), "\0".to_owned())].into(),
            ..row("a:b:c:headers", NOON)
        },
        Row {
            attempts: u32::MAX,
            payload_bytes: u64::MAX,
            due_us: Some(i64::MIN),
            begun_us: Some(i64::MAX),
            ..row("a:b:c:numbers", NOON)
        },
    ];
    assert_eq!(store(&site.database(), &rows).await.unwrap(), 9);
    let text = async |sql: &str, id: &str| -> String {
        let sql = format!("SELECT {sql} FROM keyfall_archive WHERE key = 'a:b:c:{id}'");
        site.one(&sql).await
    };
    assert_eq!(text("error || worker", "nul").await, "a␀b␀");
    let cut = text("error", "long").await;
    assert!(cut.ends_with("éé…") && cut.len() < 66_000, "{}", cut.len());
    assert_eq!(text("header->>'error'", "escape").await, "a␀b");
    assert_eq!(text("header->>'␀'", "escape").await, "[\"␀\"]");
    assert_eq!(
        text("header #>> '{}'", "surrogate").await,
        r#"{"v":1,"error":"\ud800"}"#
    );
    assert_eq!(text("header #>> '{}'", "number").await, r#"{"v":1e999}"#);
    assert_eq!(text("headers->>'␀'", "headers").await, "␀");
}
