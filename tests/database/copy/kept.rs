//! The outbox keeps what it has passed on until the copy has it, and passes it on again if Redis was
//! lost before.

use std::time::{Duration, SystemTime};

use keyfall::Client;
use keyfall::embedded::Embedded;
use keyfall_database::Database;
use keyfall_database::internals::{Change, KindLock};
use keyfall_testing::patience::eventually;

use super::{MARK, pending};
use crate::site::{Site, connect};

/// One look at the kind of the site; whether it leaves nothing to copy.
async fn look(site: &Site, changes: &[&str], is_drained: bool) -> u64 {
    let lock = take(site, &site.database()).await;
    let changes: Vec<Change> = changes
        .iter()
        .map(|id| Change {
            key: site.key(id),
            ..pending(id, 1)
        })
        .collect();
    let marks = [MARK];
    let judged = lock.judge(&marks).unwrap();
    lock.store(&changes, judged).await.unwrap();
    let gone = match is_drained {
        true => lock.drained().await.unwrap(),
        false => 0,
    };
    lock.commit().await.unwrap();
    gone
}

async fn take(site: &Site, database: &Database) -> KindLock {
    let lock = KindLock::take(database, &site.kind()).await.unwrap();
    lock.expect("no other copier works on the kind")
}

impl Site {
    async fn write(&self, op: &str, ids: &[&str]) {
        for id in ids {
            let insert = "INSERT INTO keyfall_outbox (op, key, delay)
                VALUES ($1, $2, CASE $1 WHEN 'schedule' THEN interval '1 hour' END)";
            let written = self.sql.execute(insert, &[&op, &self.key(id)]).await;
            written.unwrap();
        }
    }

    /// The ids of the keys that are kept, in the order of their rows.
    async fn kept(&self) -> Vec<String> {
        let read = "SELECT substring(key FROM '[^:]*$') FROM keyfall_outbox_kept ORDER BY id";
        let rows = self.sql.query(read, &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    async fn is_scheduled(&self, id: &str) -> bool {
        self.client.get(&self.key(id)).await.unwrap().is_some()
    }
}

#[tokio::test]
async fn rows_of_a_copied_kind_are_kept_until_a_later_look_has_found_nothing_left() {
    let site = Site::new("copy-kept").await;
    let _relay = site.relay().await;
    site.write("schedule", &["before"]).await;
    site.is_empty().await;
    assert_eq!(site.kept().await.len(), 0, "its kind is not copied");
    assert_eq!(look(&site, &[], true).await, 0);

    site.write("schedule", &["a", "b"]).await;
    let refused = "INSERT INTO keyfall_outbox (key, delay, terms)
        VALUES ($1, '1 hour', '{\"no\": \"such term\"}'), ('no key', '1 hour', NULL)";
    let written = site.sql.execute(refused, &[&site.key("refused")]).await;
    written.unwrap();
    site.is_empty().await;
    assert_eq!(site.kept().await, ["a", "b"]);

    // This look may have read Redis before the row was passed on.
    let early = take(&site, &site.database()).await;
    site.write("cancel", &["c"]).await;
    site.is_empty().await;
    assert_eq!(early.drained().await.unwrap(), 2);
    early.commit().await.unwrap();
    assert_eq!(site.kept().await, ["c"]);
    assert_eq!(look(&site, &[], false).await, 0, "changes are left");
    assert_eq!(look(&site, &[], true).await, 1);
    assert_eq!(site.kept().await.len(), 0);
}

#[tokio::test]
async fn after_the_loss_of_redis_kept_rows_are_passed_on_again_in_their_order() {
    let forgetful = Embedded::options().args(["--appendonly", "no"]);
    let (mut redis, site) = Site::alone_with(forgetful, "copy-again").await;
    let relay = site.relay().await;
    look(&site, &[], true).await;
    site.write("schedule", &["copied", "lost", "cancelled", "twice"])
        .await;
    let late = "INSERT INTO keyfall_outbox (key, payload, delay, inserted_at)
        VALUES ($1, 'it', '1 hour', now() - interval '40 minutes')";
    let written = site.sql.execute(late, &[&site.key("late")]).await;
    written.unwrap();
    site.write("cancel", &["cancelled"]).await;
    site.is_empty().await;
    // The copy has two of them, and knows nothing of what comes later.
    look(&site, &["copied", "twice"], false).await;
    site.write("cancel", &["twice"]).await;
    site.is_empty().await;
    assert_eq!(site.kept().await.len(), 7);

    relay.kill().await;
    site.write("cancel", &["lost"]).await;
    site.write("schedule", &["waiting"]).await;
    redis.kill_server().await.unwrap();
    redis.restart().await.unwrap();
    eventually("it is empty", async || {
        let job = site.client.get(&site.key("late")).await.ok()?;
        job.is_none().then_some(())
    })
    .await;
    let client = Client::connect(&site.redis).await.unwrap();
    client
        .schedule(site.key("twice"), &"from the copy")
        .after(Duration::from_secs(3_600))
        .await
        .unwrap();
    let database = site.database();
    assert_eq!(database.kept_again(&site.kind()).await.unwrap(), 5);
    assert_eq!(database.kept_again(&site.kind()).await.unwrap(), 0);
    assert_eq!(database.kept_again("app:m:other").await.unwrap(), 0);
    let _relay = site.relay().await;
    site.is_empty().await;
    for (id, is_scheduled) in [
        ("late", true),
        ("waiting", true),
        ("copied", false),
        ("lost", false),
        ("cancelled", false),
        ("twice", false),
    ] {
        assert_eq!(site.is_scheduled(id).await, is_scheduled, "{id}");
    }
    let view = site.view(&site.key("late")).await;
    assert_eq!(&view.payload()[..], b"it");
    let left = view.due().duration_since(SystemTime::now()).unwrap();
    assert!(left < Duration::from_secs(1_800), "its delay began then");
    // They are kept once more.
    assert_eq!(site.kept().await.len(), 9);
    assert_eq!(look(&site, &[], true).await, 9);
}

/// A relay has sent a batch and was killed: sent again under its number, it would be carried out before
/// the older rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_on_their_way_follow_those_that_are_put_back() {
    let site = Site::new("copy-way").await;
    look(&site, &[], true).await;
    let relay = site.relay().await;
    site.write("schedule", &["a"]).await;
    site.is_empty().await;
    let blocker = connect(&site.url).await;
    site.write("schedule", &["sign"]).await;
    site.is_empty().await;
    relay.kill().await;
    site.write("cancel", &["a", "sign"]).await;
    let lock = "BEGIN; SELECT id FROM keyfall_outbox FOR UPDATE";
    blocker.batch_execute(lock).await.unwrap();
    let relay = site.relay().await;
    eventually("the batch is sent", async || {
        (!site.is_scheduled("sign").await).then_some(())
    })
    .await;
    relay.kill().await;
    blocker.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(site.database().kept_again(&site.kind()).await.unwrap(), 2);
    let _relay = site.relay().await;
    site.is_empty().await;
    assert!(!site.is_scheduled("a").await);
    assert!(!site.is_scheduled("sign").await);
    assert_eq!(site.stats().await.accepted, 4, "both were scheduled twice");
}
