//! A role with few rights stores and searches, and can do nothing else.

use super::{NOON, open, row};
use crate::site::{Site, connect};
use keyfall_database::Error;
use keyfall_database::internals::{Row, store};

/// The rights on the page about the database.
const GRANTS: &str = "
    GRANT SELECT ON keyfall_migrations TO ROLE;
    GRANT SELECT, INSERT ON keyfall_archive, keyfall_archive_kinds TO ROLE;
    GRANT EXECUTE ON FUNCTION keyfall_archive_prepare(smallint[], timestamptz[]),
        keyfall_archive_drop_expired() TO ROLE";

async fn role(site: &Site, name: &str, grants: &str) -> String {
    let name = format!("{name}_{}", std::process::id());
    // As an owner of a database who is careful does.
    let made = format!("REVOKE CREATE ON SCHEMA public FROM PUBLIC; CREATE ROLE {name} LOGIN");
    site.sql.batch_execute(&made).await.unwrap();
    site.sql
        .batch_execute(&grants.replace("ROLE", &name))
        .await
        .unwrap();
    site.url.replace("user=keyfall", &format!("user={name}"))
}

#[tokio::test]
async fn an_archiver_needs_few_rights() {
    let site = Site::new("archive").await;
    let archiver = role(&site, "archiver", GRANTS).await;
    let database = open(&archiver);
    assert_eq!(database.migrate().await.unwrap(), 0);
    let old = Row {
        keep_months: 1,
        ..row("a:b:c:2", NOON - 100 * 86_400_000_000)
    };
    let rows = [row("a:b:c:1", NOON), old];
    assert_eq!(store(&database, &rows).await.unwrap(), 2);
    assert_eq!(store(&database, &rows).await.unwrap(), 0);
    database.drop_expired().await.unwrap();
    let sql = connect(&archiver).await;
    for refused in [
        "DELETE FROM keyfall_archive",
        "UPDATE keyfall_archive SET how = 'done'",
        "TRUNCATE keyfall_archive",
        "DROP TABLE keyfall_archive_12_2026_11",
        "CREATE TABLE keyfall_archive_x (LIKE keyfall_archive)",
        "SELECT keyfall_archive_attach('keyfall_archive', 'x', 'IN (9)', '')",
        "DELETE FROM keyfall_archive_kinds",
        "SELECT FROM keyfall_outbox",
    ] {
        let error = sql.batch_execute(refused).await.unwrap_err();
        let code = error.code().unwrap_or_else(|| panic!("{refused}: {error}"));
        assert_eq!(code.code(), "42501", "{refused}: {error}");
    }
    // Names of its own do not mislead the functions that run as the owner.
    let mislead = "CREATE TEMPORARY TABLE keyfall_archive (keep_months smallint);
        SET search_path = pg_temp, public;
        SELECT public.keyfall_archive_prepare('{7}', '{2026-11-01}')";
    sql.batch_execute(mislead).await.unwrap();
    assert!(
        site.partitions()
            .await
            .contains(&"keyfall_archive_7_2026_11".to_owned())
    );
    // Nor does a call make partitions without end.
    sql.batch_execute("SELECT public.keyfall_archive_prepare('{30000}', '{2026-11-01}')")
        .await
        .unwrap();
    assert!(
        !site
            .partitions()
            .await
            .iter()
            .any(|it| it.contains("30000"))
    );
}

#[tokio::test]
async fn without_rights_the_error_names_the_page() {
    let site = Site::new("archive").await;
    let stranger = role(&site, "stranger", "SELECT 'ROLE'").await;
    let error = store(&open(&stranger), &[row("a:b:c:1", NOON)])
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Refused { .. }), "{error}");
    assert!(
        error.to_string().contains("the rights of each role"),
        "{error}"
    );
    let sql = connect(&stranger).await;
    for call in [
        "SELECT keyfall_archive_prepare('{1}', '{2026-11-01}')",
        "SELECT keyfall_archive_drop_expired()",
    ] {
        let error = sql.batch_execute(call).await.unwrap_err();
        assert_eq!(error.code().map(|it| it.code()), Some("42501"), "{call}");
    }
}
