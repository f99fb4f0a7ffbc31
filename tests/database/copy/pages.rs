//! An index serves each page.

use keyfall_testing::patience::eventually;

use super::{KIND, open};
use crate::site::Site;

#[tokio::test]
async fn a_page_reads_few_rows_of_many() {
    let site = Site::new("copy").await;
    // Tombstones and other kinds lie between.
    let fill = "INSERT INTO keyfall_copy
            (key, kind, shard, epoch, version, due_at, record, look, changed_at, ended_at)
        SELECT kind || ':' || md5(n::text), kind, 0, 1, n, due, record, 1, now(), ended
        FROM generate_series(1, 60000) n,
            LATERAL (SELECT CASE n % 3 WHEN 0 THEN 'app:m:jo' ELSE 'app:m:job' END) k(kind),
            LATERAL (SELECT CASE WHEN n % 10 > 0 THEN now() END,
                CASE WHEN n % 10 > 0 THEN 'x'::bytea END,
                CASE n % 10 WHEN 0 THEN now() END) s(due, record, ended)";
    site.sql.execute(fill, &[]).await.unwrap();
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
    // As the planner finds them: without counts of rows, and with them.
    for analyze in ["SELECT 1", "ANALYZE keyfall_copy"] {
        site.sql.batch_execute(analyze).await.unwrap();
        let before = counted().await;
        let database = open(&site.url);
        let mut after = None;
        for _ in 0..10 {
            let page = database.copied_pending(KIND, after.as_deref(), 100);
            let page = page.await.unwrap();
            assert_eq!(page.len(), 100);
            after = Some(page[99].key.clone());
        }
        drop(database);
        let rows = counted().await - before;
        assert!(rows < 3_000, "{rows} rows were read after {analyze}");
    }
}
