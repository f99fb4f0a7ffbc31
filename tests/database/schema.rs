//! The tables: made, checked, and used with few rights.

use keyfall::Client;
use keyfall_database::{Database, Error, Relay, Settings};
use keyfall_testing::patience::eventually;

use crate::site::{Running, Site};

#[tokio::test]
async fn several_programs_make_the_tables_once() {
    let site = Site::bare("schema-once").await;
    let databases = [site.database(), site.database(), site.database()];
    let made = databases.iter().map(Database::migrate);
    for made in futures_util::future::join_all(made).await {
        made.unwrap();
    }
    let steps: i64 = site.one("SELECT count(*) FROM keyfall_migrations").await;
    assert_eq!(steps, 3);
    site.database().migrate().await.unwrap();
}

/// Whatever isolation the database has as its default.
#[tokio::test]
async fn a_program_that_has_waited_for_another_finds_its_tables() {
    // Held while the tables are changed.
    const LOCK: i64 = 0x006b_6579_6661_6c6c;
    let site = Site::bare("schema-strict").await;
    site.sql.batch_execute("BEGIN").await.unwrap();
    let hold = "SELECT pg_advisory_xact_lock($1)";
    site.sql.execute(hold, &[&LOCK]).await.unwrap();
    let strict = format!(
        "{} options='-c default_transaction_isolation=serializable'",
        site.url
    );
    let making = [(), ()].map(|()| {
        let database = Database::open(&Settings::new(&strict)).unwrap();
        tokio::spawn(async move { database.migrate().await })
    });
    let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'advisory'
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
    eventually("both have looked for tables, and wait", async || {
        (site.one::<i64>(waiting).await == 2).then_some(())
    })
    .await;
    site.sql.batch_execute("COMMIT").await.unwrap();
    let mut steps = 0;
    for made in making {
        steps += made.await.unwrap().unwrap();
    }
    assert_eq!(steps, 3, "one of them makes the tables");
}

#[tokio::test]
async fn tables_that_are_missing_or_changed_are_refused_with_the_reason() {
    let site = Site::bare("schema-changed").await;
    let told = async || site.database().check().await.unwrap_err().to_string();
    assert!(told().await.contains("keyfall_outbox is not"), "none yet");
    site.database().migrate().await.unwrap();
    for (change, why) in [
        (
            "ALTER TABLE keyfall_copy_ledgers ALTER through TYPE integer",
            "the table keyfall_copy_ledgers is not the one that Keyfall uses: its column through is a \
             integer, not a bigint",
        ),
        (
            "ALTER TABLE keyfall_copy DROP look",
            "the table keyfall_copy is not the one that Keyfall uses: it has no column look",
        ),
        (
            "ALTER TABLE keyfall_archive DROP worker",
            "the table keyfall_archive is not the one that Keyfall uses: it has no column worker",
        ),
        (
            "ALTER TABLE keyfall_outbox_refused ALTER refused_at TYPE text",
            "its column refused_at is a text, not a timestamp with time zone",
        ),
        (
            "ALTER TABLE keyfall_outbox_lanes DROP relay",
            "it has no column relay",
        ),
        (
            "DROP TABLE keyfall_outbox_lanes",
            "keyfall_outbox_lanes is not the one that Keyfall uses: it does not exist",
        ),
    ] {
        site.sql.batch_execute(change).await.unwrap();
        let told = told().await;
        assert!(told.contains(why), "{told}");
        assert!(told.contains("keyfall database migrate"), "{told}");
    }
    let error = site.database().migrate().await.unwrap_err();
    assert!(matches!(error, Error::Schema(_)), "{error}");
}

#[tokio::test]
async fn tables_of_a_newer_version_are_used_as_long_as_they_have_what_this_one_needs() {
    let site = Site::bare("schema-newer").await;
    site.database().migrate().await.unwrap();
    let newer = "INSERT INTO keyfall_migrations (number, name) VALUES (99, 'further');
        ALTER TABLE keyfall_outbox ADD further text";
    site.sql.batch_execute(newer).await.unwrap();
    assert_eq!(site.database().migrate().await.unwrap(), 0);
    let taken_away = "ALTER TABLE keyfall_outbox_lanes DROP relay";
    site.sql.batch_execute(taken_away).await.unwrap();
    for told in [
        site.database().migrate().await.unwrap_err(),
        site.database().check().await.unwrap_err(),
    ] {
        assert!(matches!(told, Error::Schema(_)), "{told}");
        let told = told.to_string();
        for part in ["no column relay", "step 99", "use the newer version"] {
            assert!(told.contains(part), "{told}");
        }
    }
}

#[tokio::test]
async fn a_caller_and_a_relay_need_few_rights() {
    let site = Site::new("schema-rights").await;
    let (caller, relay) = (
        format!("caller_{}", std::process::id()),
        format!("relay_{}", std::process::id()),
    );
    let grants = format!(
        "CREATE ROLE {caller} LOGIN; CREATE ROLE {relay} LOGIN;
        GRANT INSERT ON keyfall_outbox TO {caller};
        GRANT SELECT (id) ON keyfall_outbox TO {caller};
        GRANT SELECT, DELETE ON keyfall_outbox TO {relay};
        GRANT SELECT, INSERT, UPDATE ON keyfall_outbox_lanes TO {relay};
        GRANT SELECT, INSERT, UPDATE ON keyfall_outbox_refused TO {relay};
        GRANT SELECT ON keyfall_copy_kinds TO {relay};
        GRANT INSERT ON keyfall_outbox_kept TO {relay};
        GRANT USAGE ON keyfall_copy_looks TO {relay};
        GRANT SELECT ON keyfall_migrations TO {relay}"
    );
    site.sql.batch_execute(&grants).await.unwrap();
    let as_role = |role: &str| site.url.replace("user=keyfall", &format!("user={role}"));
    let database = Database::open(&Settings::new(as_role(&relay))).unwrap();
    database.migrate().await.unwrap();
    let client = Client::connect(&site.redis).await.unwrap();
    let _relay = Running::start(Relay::new(client, database));
    let sql = crate::site::connect(&as_role(&caller)).await;
    for call in [
        "SELECT keyfall_schedule($1, delay => '1 hour')",
        "SELECT keyfall_reschedule($1, delay => '2 hours')",
    ] {
        sql.execute(call, &[&site.key(1)]).await.unwrap();
    }
    let refused = "INSERT INTO keyfall_outbox (key) VALUES ('no key')";
    sql.execute(refused, &[]).await.unwrap();
    site.is_empty().await;
    site.view(&site.key(1)).await;
    let error = sql.execute("DELETE FROM keyfall_outbox", &[]).await;
    assert!(error.is_err(), "a caller removes nothing");
}

#[tokio::test]
async fn wrong_settings_name_the_remedy() {
    let told = |url: &str| match Database::open(&Settings::new(url)) {
        Ok(_) => panic!("{url} is accepted"),
        Err(error) => error.to_string(),
    };
    let error = told("postgresql://host/db?sslmod=require");
    assert!(error.contains("sslmod"), "{error}");
    assert!(
        error.contains("postgresql://user@host:5432/name"),
        "{error}"
    );
    let settings = Settings::new("postgresql://host/db").ca_file("/nowhere/ca.pem");
    let error = Database::open(&settings).err().unwrap().to_string();
    assert!(error.contains("/nowhere/ca.pem"), "{error}");
    let nobody = Settings::new("host=/nowhere user=keyfall dbname=x");
    let error = Database::open(&nobody).unwrap().check().await.unwrap_err();
    assert!(matches!(error, Error::Unreachable(_)), "{error}");
}
