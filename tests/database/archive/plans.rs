//! An index serves each search: the rows that it reads are few, however many there are.

use std::time::{Duration, SystemTime};

use keyfall_database::{ArchiveQuery, How};
use keyfall_testing::patience::eventually;

use super::open;
use crate::site::{Site, connect};

/// Jobs of 40 kinds and two times for which they are kept, evenly over so many days until now. One
/// in 25 is buried, one in four of these for the want of a licence.
pub(super) async fn fill(site: &Site, rows: u32, days: u32) {
    let fill = format!(
        "SET synchronous_commit = off;
        SELECT keyfall_archive_prepare(array_agg(keep::smallint), array_agg(day))
            FROM generate_series(now() - interval '{days} days', now(), '1 day') day,
                (VALUES (12), (0)) AS kept(keep);
        INSERT INTO keyfall_archive (ended_at, key, kind, how, keep_months, accepted_at, attempts,
                payload_bytes, error)
            SELECT ended, kind || ':' || n, kind, how, n % 2 * 12, ended - interval '1 hour', 1, 0,
                CASE WHEN how = 'buried' THEN
                    CASE WHEN n % 100 = 0 THEN 'no licence' ELSE 'timeout of a host' END END
            FROM (SELECT n, now() - n * (interval '{days} days' / {rows}) AS ended,
                    'app' || n % 2 || ':m' || n % 4 || ':job' || n % 40 AS kind,
                    CASE WHEN n % 25 = 0 THEN 'buried' WHEN n % 3 = 0 THEN 'cancelled' ELSE 'done' END
                        AS how
                FROM generate_series(0, {rows} - 1) n) generated;
        INSERT INTO keyfall_archive_kinds SELECT DISTINCT kind, how FROM keyfall_archive;
        VACUUM ANALYZE keyfall_archive"
    );
    // A session of its own, which hands its counts in when it ends.
    let sql = connect(&format!("{} application_name=keyfall", site.url)).await;
    for statement in fill.split(';') {
        sql.batch_execute(statement).await.unwrap();
    }
}

/// One search of each shape, for the tests of plans and of rates.
pub(super) fn searches() -> Vec<(&'static str, ArchiveQuery)> {
    let all = || ArchiveQuery::new().limit(20);
    let ago = |days: u64| SystemTime::now() - Duration::from_secs(days * 86_400);
    vec![
        ("everything", all()),
        ("of last year", all().ended_until(ago(365))),
        ("an app", all().prefix("app1:")),
        ("a module", all().prefix("app1:m3:")),
        ("a kind", all().prefix("app1:m3:job7:")),
        (
            "a kind, last year",
            all().prefix("app1:m3:job7:").ended_until(ago(365)),
        ),
        ("buried", all().how(How::Buried)),
        (
            "buried of a kind",
            all().how(How::Buried).prefix("app1:m1:job25:"),
        ),
        ("buried of an app", all().how(How::Buried).prefix("app0:")),
        ("none of an end", all().how(How::Skipped)),
        ("a key", all().key("app1:m3:job7:127".parse().unwrap())),
        ("no such key", all().key("app1:m3:job7:x".parse().unwrap())),
        ("a part of the id", all().prefix("app1:m3:job7:12")),
        ("words", all().error_words("licence no")),
        (
            "words of an app",
            all().error_words("licence").prefix("app0:"),
        ),
        ("no such words", all().error_words("nowhere")),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_page_reads_few_rows_of_many() {
    const ROWS: u32 = 100_000;
    const MOST: i64 = 2_000;
    let site = Site::new("archive").await;
    fill(&site, ROWS, 700).await;
    // By scans of tables and of indexes; a session hands its counts in when it ends.
    let read = "SELECT (SELECT sum(seq_tup_read) FROM pg_stat_user_tables)::bigint
        + (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes)::bigint";
    let sessions = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'keyfall'";
    let counted = async || {
        eventually("the session is over", async || {
            (site.one::<i64>(sessions).await == 0).then_some(())
        })
        .await;
        site.one::<i64>(read).await
    };
    let fresh = || open(&site.url);
    let mut faults = Vec::new();
    for (name, query) in searches() {
        let before = counted().await;
        let page = fresh().archived(&query).await.unwrap();
        let first = counted().await - before;
        if first > MOST {
            faults.push(format!("{name}: {first} rows"));
        }
        if let Some(next) = page.next {
            let before = counted().await;
            fresh().archived(&query.after(next)).await.unwrap();
            let second = counted().await - before;
            if second > MOST {
                faults.push(format!("{name}, second page: {second} rows"));
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}
