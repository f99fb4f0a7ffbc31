//! A role with few rights copies, rebuilds and passes rows on, and can do nothing else.

use std::time::Duration;

use keyfall::Client;
use keyfall_database::Relay;

use super::{MARK, open, pending};
use crate::site::{Running, Site, connect};
use keyfall_database::internals::KindLock;

/// The rights of a daemon that copies, beside those of a relay.
const GRANTS: &str = "
    GRANT SELECT ON keyfall_migrations TO ROLE;
    GRANT SELECT, DELETE ON keyfall_outbox TO ROLE;
    GRANT SELECT, INSERT, UPDATE ON keyfall_outbox_lanes, keyfall_outbox_refused TO ROLE;
    GRANT INSERT ON keyfall_outbox TO ROLE;
    GRANT SELECT, INSERT, DELETE ON keyfall_outbox_kept TO ROLE;
    GRANT SELECT, INSERT, UPDATE, DELETE
        ON keyfall_copy, keyfall_copy_kinds, keyfall_copy_ledgers TO ROLE;
    GRANT SELECT, INSERT, UPDATE ON keyfall_copy_state TO ROLE;
    GRANT USAGE ON keyfall_copy_looks TO ROLE";

#[tokio::test]
async fn a_copier_needs_few_rights() {
    let site = Site::new("copy-rights").await;
    let name = format!("copier_{}", std::process::id());
    let role = format!("REVOKE CREATE ON SCHEMA public FROM PUBLIC; CREATE ROLE {name} LOGIN");
    let grants = GRANTS.replace("ROLE", &name);
    site.sql
        .batch_execute(&format!("{role};{grants}"))
        .await
        .unwrap();
    let url = site.url.replace("user=keyfall", &format!("user={name}"));
    let database = open(&url);
    assert_eq!(database.migrate().await.unwrap(), 0);
    database.begin_copy("it").await.unwrap();
    let kind = site.kind();
    let look = async || {
        let lock = KindLock::take(&database, &kind).await.unwrap().unwrap();
        let (marks, changes) = ([MARK], [pending(1, 1)]);
        lock.store(&changes, lock.judge(&marks).unwrap())
            .await
            .unwrap();
        lock.filled(0, 1, 1).await.unwrap();
        lock.drained().await.unwrap();
        lock.has_shards(1).await.unwrap();
        lock.commit().await.unwrap();
    };
    look().await;
    look().await;
    let client = Client::connect(&site.redis).await.unwrap();
    let _relay = Running::start(Relay::new(client, open(&url)));
    let schedule = "SELECT keyfall_schedule($1, delay => '1 hour')";
    site.sql.execute(schedule, &[&site.key(1)]).await.unwrap();
    site.is_empty().await;
    assert_eq!(database.kept_again(&kind).await.unwrap(), 1);
    site.is_empty().await;
    database.copied_pending(&kind, None, 1).await.unwrap();
    database.copied_kinds().await.unwrap();
    database.stop_copy("why").await.unwrap();
    database.copy_state().await.unwrap();
    database.resume_copy("it").await.unwrap();
    database.sweep_tombstones(Duration::ZERO).await.unwrap();
    assert!(database.forget_copy(&kind).await.unwrap());
    let sql = connect(&url).await;
    for refused in [
        "TRUNCATE keyfall_copy",
        "UPDATE keyfall_outbox_kept SET number = 0",
        "DELETE FROM keyfall_copy_state",
        "SELECT setval('keyfall_copy_looks', 1)",
        "SELECT FROM keyfall_archive",
    ] {
        let error = sql.batch_execute(refused).await.unwrap_err();
        let code = error.code().unwrap_or_else(|| panic!("{refused}: {error}"));
        assert_eq!(code.code(), "42501", "{refused}: {error}");
    }
}
