//! Jobs are found by key, prefix, end, time and words, page by page.

use std::time::{Duration, SystemTime};

use keyfall_database::internals::{Row, store};
use keyfall_database::{ArchiveQuery, Database, Error, How};

use super::{HOUR, NOON, row};
use crate::site::Site;

async fn keys(database: &Database, query: ArchiveQuery) -> Vec<String> {
    let page = database.archived(&query).await.unwrap();
    page.jobs.into_iter().map(|job| job.key).collect()
}

fn time(us: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(us.unsigned_abs())
}

#[tokio::test]
async fn a_prefix_finds_keys_that_begin_with_it_and_no_others() {
    let site = Site::new("archive").await;
    let ends = [
        "app:m:job:a_1",
        "app:m:job:ab1",
        "app:m:job:a%1",
        "app:m:job:a\\1",
        "app:m:job2:a_1",
        "app:m2:job:1",
        "app2:m:job:1",
        "app:m:job:é1",
        "app:m:job:\u{10ffff}1",
    ];
    let rows: Vec<Row> = ends
        .iter()
        .zip(0..)
        .map(|(key, n)| row(key, NOON - n * HOUR))
        .collect();
    let database = site.database();
    store(&database, &rows).await.unwrap();
    for (prefix, found) in [
        ("app:m:job:a_", &ends[..1]),
        ("app:m:job:a%", &ends[2..3]),
        ("app:m:job:a\\", &ends[3..4]),
        ("app:m:job:a", &ends[..4]),
        ("app:m:job:é", &ends[7..8]),
        ("app:m:job:\u{10ffff}", &ends[8..]),
        ("app:m:job2:", &ends[4..5]),
        ("app:m2:", &ends[5..6]),
        ("app2:", &ends[6..7]),
        ("app:m:job:%", &[]),
        ("a__:", &[]),
        ("a%", &[]),
        ("app:m:j%b:", &[]),
        ("none:", &[]),
    ] {
        assert_eq!(
            keys(&database, ArchiveQuery::new().prefix(prefix)).await,
            found,
            "{prefix}"
        );
    }
    assert_eq!(
        keys(&database, ArchiveQuery::new().prefix("app:m:job"))
            .await
            .len(),
        7
    );
    assert_eq!(
        keys(&database, ArchiveQuery::new().prefix("app:m:job:"))
            .await
            .len(),
        6
    );
    assert_eq!(keys(&database, ArchiveQuery::new().prefix("")).await, ends);
    let one = ArchiveQuery::new().key("app:m:job:a_1".parse().unwrap());
    assert_eq!(keys(&database, one).await, ends[..1]);
    let error = database
        .archived(&ArchiveQuery::new().prefix("a:b:c:d:e"))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Search(_)), "{error}");
}

#[tokio::test]
async fn all_that_is_asked_for_holds_of_a_job_that_is_found() {
    let site = Site::new("archive").await;
    let error = |text: &str| Some(text.to_owned());
    let rows = [
        Row {
            how: How::Buried,
            error: error("Timeout of host db.internal"),
            ..row("app:m:a:1", NOON)
        },
        Row {
            how: How::Buried,
            error: error("timeouts"),
            ..row("app:m:a:2", NOON - HOUR)
        },
        Row {
            how: How::Cancelled,
            error: error("the host had a timeout"),
            ..row("app:m:b:3", NOON - 40 * 24 * HOUR)
        },
        Row {
            keep_months: 0,
            payload: Some("x".into()),
            payload_bytes: 1,
            ..row("app:m:b:4", NOON - 3_000 * 24 * HOUR)
        },
        row("app:m:b:5", i64::MAX),
        row("app:m:b:6", 0),
    ];
    let database = site.database();
    store(&database, &rows).await.unwrap();
    let all = ArchiveQuery::new;
    for (query, found) in [
        (all(), "512346"),
        (all().error_words("timeout HOST"), "13"),
        (all().error_words("db.internal"), "1"),
        (all().error_words("host").how(How::Cancelled), "3"),
        (all().error_words("host").prefix("app:m:a:"), "1"),
        (all().error_words("host").prefix("app:m:b:3"), "3"),
        (all().error_words("nowhere"), ""),
        (all().how(How::Buried), "12"),
        (all().how(How::Buried).how(How::Cancelled), "123"),
        (all().how(How::Done).prefix("app:"), "546"),
        (all().how(How::Done).prefix("app:m:b:4"), "4"),
        (all().how(How::Skipped), ""),
        (all().ended_from(time(NOON)), "51"),
        (all().ended_until(time(NOON)), "2346"),
        (
            all()
                .ended_from(time(NOON - HOUR))
                .ended_until(time(NOON + 1))
                .prefix("app:m:"),
            "12",
        ),
        (all().key("app:m:b:4".parse().unwrap()), "4"),
        (all().key("app:m:b:4".parse().unwrap()).how(How::Buried), ""),
    ] {
        let keys = keys(&database, query.clone()).await;
        let ids: String = keys.iter().map(|key| &key[8..]).collect();
        assert_eq!(ids, found, "{query:?}");
    }
    let four = all().prefix("app:m:b:4");
    assert_eq!(
        database.archived(&four).await.unwrap().jobs[0].payload,
        None
    );
    let four = database
        .archived(&four.with_payloads())
        .await
        .unwrap()
        .jobs
        .remove(0);
    assert_eq!(four.payload.as_deref(), Some(b"x".as_slice()));
    assert_eq!(
        (four.payload_bytes, four.keep_months, four.lag_ms),
        (1, 0, Some(3))
    );
    let json = serde_json::to_value(&four).unwrap();
    assert_eq!(json["ended"], "2018-09-10T12:00:00Z");
    assert_eq!(json["header"]["v"], 1);
}

#[tokio::test]
async fn pages_have_each_job_once_while_others_come_in() {
    let site = Site::new("archive").await;
    let database = site.database();
    // Ends of one instant, of two kinds, and two jobs of one name; in three months.
    let mut rows: Vec<Row> = (0..120)
        .map(|n| {
            row(
                &format!("app:m:{}:{n:03}", n % 2),
                NOON - n / 40 * 35 * 24 * HOUR,
            )
        })
        .collect();
    rows.push(Row {
        accepted_us: NOON - 2 * HOUR,
        ..row("app:m:0:000", NOON)
    });
    store(&database, &rows).await.unwrap();
    for query in [
        ArchiveQuery::new(),
        ArchiveQuery::new().prefix("app:m:"),
        ArchiveQuery::new().how(How::Done),
        ArchiveQuery::new().prefix("app:m:0:").limit(5),
        ArchiveQuery::new().prefix("app:m:0:0"),
        ArchiveQuery::new()
            .key("app:m:0:000".parse().unwrap())
            .limit(1),
    ] {
        let whole = keys(&database, query.clone().limit(1_000)).await;
        let mut paged = Vec::new();
        let (mut asked, mut new) = (query.clone().limit(7), 0);
        loop {
            let page = database.archived(&asked).await.unwrap();
            assert!(page.jobs.len() <= 7);
            paged.extend(page.jobs.into_iter().map(|job| job.key));
            let Some(next) = page.next else { break };
            asked = query.clone().limit(7).after(next);
            // Newer ones, which no later page has.
            new += 1;
            let newer = Row {
                accepted_us: NOON + new,
                ..row("app:m:0:000", NOON + 2 * HOUR)
            };
            store(&database, &[newer]).await.unwrap();
        }
        assert_eq!(paged, whole, "{query:?}");
        site.sql
            .execute(
                "DELETE FROM keyfall_archive WHERE ended_at > '2026-11-27 12:00+00'",
                &[],
            )
            .await
            .unwrap();
    }
    for cursor in [
        "",
        "1",
        "1.2",
        "x.2.a:b:c:d",
        "99999999999999999999999.1.a:b:c:d",
    ] {
        let error = database
            .archived(&ArchiveQuery::new().after(cursor))
            .await
            .unwrap_err();
        assert!(
            error.to_string().contains("begin with the first page"),
            "{error}"
        );
    }
    let last = ArchiveQuery::new()
        .after(format!("{}.0.x", i64::MAX))
        .limit(1);
    assert_eq!(keys(&database, last).await.len(), 1);
    let far = SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 50);
    let far = ArchiveQuery::new()
        .ended_from(SystemTime::UNIX_EPOCH - Duration::from_secs(1 << 50))
        .ended_until(far);
    assert_eq!(keys(&database, far.limit(1)).await.len(), 1);
}

#[tokio::test]
async fn a_search_that_takes_too_long_says_how_to_narrow_it() {
    let site = Site::new("archive").await;
    store(&site.database(), &[row("a:b:c:1", NOON)])
        .await
        .unwrap();
    let settings = keyfall_database::Settings::new(&site.url);
    let hurried = Database::open(&settings.statement_timeout(Duration::from_millis(100))).unwrap();
    site.sql
        .batch_execute("BEGIN; LOCK TABLE keyfall_archive")
        .await
        .unwrap();
    let error = hurried.archived(&ArchiveQuery::new()).await.unwrap_err();
    assert!(matches!(error, Error::Search(_)), "{error}");
    assert!(
        error
            .to_string()
            .contains("name a key, a kind or a shorter time"),
        "{error}"
    );
}
