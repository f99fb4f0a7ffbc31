//! Rows of the outbox become jobs.

use std::time::{Duration, SystemTime};

use keyfall_testing::patience::eventually;

use crate::site::Site;

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn what_is_committed_happens_and_what_is_rolled_back_does_not() {
    let mut site = Site::new("outbox-commit").await;
    let _relay = site.relay().await;
    let (yes, no) = (site.key("yes"), site.key("no"));
    let order = site.sql.transaction().await.unwrap();
    let schedule = "SELECT keyfall_schedule($1, '{\"order\": 42}', delay => '1 hour')";
    order.execute(schedule, &[&no]).await.unwrap();
    order.rollback().await.unwrap();
    let order = site.sql.transaction().await.unwrap();
    order.execute(schedule, &[&yes]).await.unwrap();
    order.commit().await.unwrap();
    site.is_empty().await;
    let view = site.view(&yes).await;
    assert_eq!(&view.payload()[..], br#"{"order": 42}"#);
    let left = view.due().duration_since(SystemTime::now()).unwrap();
    assert!(left > HOUR - Duration::from_secs(300) && left <= HOUR + Duration::from_secs(1));
    assert!(site.client.get(&no).await.unwrap().is_none());
    assert_eq!(site.stats().await.accepted, 1);
}

#[tokio::test]
async fn calls_on_a_key_are_passed_on_in_their_order() {
    let site = Site::new("outbox-order").await;
    let insert = "INSERT INTO keyfall_outbox (op, key, payload, delay) VALUES
        ('schedule', $1, 'first', '1 hour'), ('cancel', $1, NULL, NULL),
        ('schedule', $1, 'last', '1 hour'), ('reschedule', $1, NULL, '3 hours'),
        ('schedule', $2, 'gone', '1 hour'), ('cancel', $2, NULL, NULL),
        ('reschedule', $3, NULL, '1 hour')";
    let keys = ["a", "b", "never"].map(|id| site.key(id));
    site.sql
        .execute(insert, &[&keys[0], &keys[1], &keys[2]])
        .await
        .unwrap();
    // They waited for a relay, and their delays are over by as much.
    let _relay = site.relay().await;
    site.is_empty().await;
    let view = site.view(&keys[0]).await;
    assert_eq!(&view.payload()[..], b"last");
    assert!(view.due() > SystemTime::now() + 2 * HOUR);
    assert!(site.client.get(&keys[1]).await.unwrap().is_none());
    assert!(site.client.get(&keys[2]).await.unwrap().is_none());
    let refused: i64 = site
        .one("SELECT count(*) FROM keyfall_outbox_refused")
        .await;
    assert_eq!(refused, 0, "nothing to move is no fault");
}

#[tokio::test]
async fn a_delay_counts_from_the_insert() {
    let site = Site::new("outbox-delay").await;
    let insert = "INSERT INTO keyfall_outbox (key, delay, inserted_at) VALUES
        ($1, '1 hour', clock_timestamp() - interval '30 minutes'),
        ($2, '1 hour', clock_timestamp() - interval '2 hours')";
    let (half, over) = (site.key("half"), site.key("over"));
    site.sql.execute(insert, &[&half, &over]).await.unwrap();
    let _relay = site.relay().await;
    site.is_empty().await;
    let now = SystemTime::now();
    let left = site.view(&half).await.due().duration_since(now).unwrap();
    assert!(left < HOUR / 2 + Duration::from_secs(1), "{left:?}");
    assert!(left > HOUR / 2 - Duration::from_secs(300), "{left:?}");
    assert!(site.view(&over).await.due() <= now + Duration::from_secs(1));
}

#[tokio::test]
async fn terms_are_those_of_the_http_api() {
    let site = Site::new("outbox-terms").await;
    let insert = "SELECT keyfall_schedule($1, '1', due => now() + interval '2 hours',
        terms => '{\"headers\": {\"tenant\": \"acme\"}, \"attempts\": 3, \"retry\": \"15s 3m\",
            \"timeout\": \"30s\", \"max_lateness\": \"1h skip\", \"if\": \"absent\"}')";
    let key = site.key(1);
    site.sql.execute(insert, &[&key]).await.unwrap();
    let _relay = site.relay().await;
    site.is_empty().await;
    let view = site.view(&key).await;
    assert_eq!(view.headers().get("tenant"), Some("acme"));
    // Its condition does not hold any more.
    let other = "SELECT keyfall_schedule($1, '2', terms => '{\"if\": \"absent\"}')";
    site.sql.execute(other, &[&key]).await.unwrap();
    site.is_empty().await;
    assert_eq!(&site.view(&key).await.payload()[..], b"1");
}

#[tokio::test]
async fn a_row_that_is_no_call_is_refused_with_the_reason_and_holds_up_nobody() {
    let site = Site::new("outbox-refused").await;
    let _relay = site.relay().await;
    let insert = "INSERT INTO keyfall_outbox (key, payload, terms, due) VALUES
        ('no key', NULL, NULL, NULL), ($1, NULL, '{\"retri\": \"1s\"}', NULL),
        ($1, NULL, '[1]', NULL), ($1, NULL, NULL, now() + interval '50 years'),
        ($2, NULL, NULL, now() + interval '1 hour')";
    let (bad, good) = (site.key("bad"), site.key("good"));
    site.sql.execute(insert, &[&bad, &good]).await.unwrap();
    site.is_empty().await;
    site.view(&good).await;
    let reasons = "SELECT reason FROM keyfall_outbox_refused ORDER BY id";
    let rows = site.sql.query(reasons, &[]).await.unwrap();
    let reasons: Vec<&str> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(reasons.len(), 4, "{reasons:?}");
    assert!(reasons[0].contains("no key"), "{}", reasons[0]);
    assert!(reasons[1].contains("`retri`"), "{}", reasons[1]);
    assert!(reasons[1].contains("`terms`"), "{}", reasons[1]);
    assert!(reasons[2].contains("`terms`"), "{}", reasons[2]);
    assert!(reasons[3].contains("10 years"), "{}", reasons[3]);
    assert!(site.client.get(&bad).await.unwrap().is_none());
}

#[tokio::test]
async fn what_contradicts_itself_fails_the_insert() {
    let site = Site::new("outbox-contradictions").await;
    for (columns, values, rule) in [
        ("op", "'fire'", "keyfall_op_is_known"),
        ("due, delay", "now(), '1 hour'", "keyfall_due_or_delay"),
        ("due", "'infinity'", "keyfall_due_is_in_range"),
        ("due", "'294276-12-31'", "keyfall_due_is_in_range"),
        (
            "inserted_at",
            "'infinity'",
            "keyfall_inserted_at_is_in_range",
        ),
        ("delay", "'200 years'", "keyfall_delay_is_below_100_years"),
        (
            "op, delay",
            "'cancel', '1 hour'",
            "keyfall_a_cancel_has_no_time",
        ),
        (
            "op, payload",
            "'cancel', 'x'",
            "keyfall_only_a_schedule_has_a_payload_and_terms",
        ),
    ] {
        let insert =
            format!("INSERT INTO keyfall_outbox (key, {columns}) VALUES ('a:b:c:d', {values})");
        let error = site.sql.execute(&insert, &[]).await.unwrap_err();
        let error = error.as_db_error().unwrap();
        assert_eq!(error.constraint(), Some(rule), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_relays_share_thousands_of_rows_of_many_kinds() {
    let site = Site::new("outbox-many").await;
    let _relays = [site.relay().await, site.relay().await, site.relay().await];
    let insert = "INSERT INTO keyfall_outbox (key, payload, delay)
        SELECT $1 || ':it:kind' || n % 70 || ':' || n, 'x', '1 hour'
        FROM generate_series(1, 7000) n";
    site.sql.execute(insert, &[&site.app]).await.unwrap();
    site.is_empty().await;
    for kind in [0, 1, 69] {
        let kind = format!("{}:it:kind{kind}", site.app);
        let stats = site.client.stats(&kind).await.unwrap();
        assert_eq!(
            (stats.accepted, stats.replaced, stats.pending),
            (100, 0, 100)
        );
    }
    // All of one kind, in batches.
    let insert = "INSERT INTO keyfall_outbox (key, payload, delay)
        SELECT $1 || ':it:job:' || n, 'x', '1 hour' FROM generate_series(1, 5000) n";
    site.sql.execute(insert, &[&site.app]).await.unwrap();
    eventually("all are passed on", async || {
        (site.stats().await.pending == 5000).then_some(())
    })
    .await;
    site.is_empty().await;
    let stats = site.stats().await;
    assert_eq!((stats.accepted, stats.replaced), (5000, 0));
}
