//! Lists as targets: handed over, and acknowledged.

use std::collections::HashSet;
use std::time::Duration;

use keyfall::embedded::Embedded;
use keyfall::target::{List, list};
use keyfall::{Client, ErrorKind, Handler, JobState, Outcome, RetryPolicy, Route, Router, Settled};
use keyfall_testing::proxies::FreezingProxy;
use redis::aio::MultiplexedConnection;
use serde_json::{Value, json};

use crate::runs::eventually;
use crate::site::{HOUR, Site, command, connect, ms};

/// As short as a lease can be.
const SHORT: Duration = Duration::from_secs(1);

fn route(target: impl Handler<keyfall::target::Lists, ()>) -> Route {
    target.lease(HOUR)
}

/// Takes the next document from a list.
async fn pop(redis: &mut MultiplexedConnection, list: &str) -> Value {
    eventually("a document", async || {
        let text: Option<String> = command(redis, &["LPOP", list]).await;
        text.map(|text| serde_json::from_str(&text).unwrap())
    })
    .await
}

fn text<'a>(document: &'a Value, field: &str) -> &'a str {
    document[field].as_str().unwrap()
}

impl Site {
    fn list(&self) -> String {
        format!("{}-list", self.app)
    }

    fn done(&self) -> String {
        format!("{}:done", self.list())
    }

    fn acknowledged(&self) -> List {
        list(&self.url, &self.list()).acknowledged()
    }
}

#[tokio::test]
async fn a_job_is_done_when_it_is_written() {
    let site = Site::new("list-over").await;
    let target = list(&site.url, &site.list());
    let worker = site.serve(Router::new().route(&site.pattern(), target));
    let key = site.key("1");
    let schedule = site.client.schedule(&key, &json!({"a": [1, null]}));
    schedule.header("tenant", "7").await.unwrap();
    let document = pop(&mut site.redis(), &site.list()).await;
    let names: Vec<&String> = document.as_object().unwrap().keys().collect();
    let expected = [
        "attempt",
        "due",
        "fence",
        "first_scheduled_at",
        "headers",
        "idempotency_key",
        "key",
        "lag_ms",
        "max_attempts",
        "payload",
    ];
    assert_eq!(names, expected);
    assert_eq!(document["key"], key);
    assert_eq!(document["payload"], json!({"a": [1, null]}));
    assert_eq!(document["headers"], json!({"tenant": "7"}));
    assert_eq!(document["attempt"], 1);
    assert_eq!(site.all_ended().await.done, 1);
    site.client
        .schedule_bytes(site.key("2"), &b"\xff"[..])
        .await
        .unwrap();
    let document = pop(&mut site.redis(), &site.list()).await;
    assert_eq!(document["payload_base64"], "/w==");
    assert_eq!(site.all_ended().await.done, 2);
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_job_that_is_cancelled_in_time_is_not_written() {
    let site = Site::new("list-cancel").await;
    let worker = site.serve(Router::new().route(&site.pattern(), list(&site.url, &site.list())));
    let (early, late) = (site.key("early"), site.key("late"));
    // No job begins before the cancel, however long the cancel takes.
    let kind = site.kind();
    site.client.prefix(&kind).pause().await.unwrap();
    for (key, payload) in [(&early, 1), (&late, 2)] {
        site.client.schedule(key, &payload).await.unwrap();
    }
    site.client.cancel(&early).await.unwrap();
    site.client.prefix(&kind).resume().await.unwrap();
    assert_eq!(pop(&mut site.redis(), &site.list()).await["payload"], 2);
    assert_eq!(site.all_ended().await.cancelled, 1);
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_failed_write_to_the_target_is_a_failed_attempt() {
    let site = Site::new("list-fails").await;
    let other = Embedded::start().await.unwrap();
    let mut redis = connect(&other.url()).await;
    let server = Client::builder(&other.url()).call_timeout(SHORT);
    let target = List::on(&server, "mails");
    let quick = RetryPolicy::fixed(ms(100)).unwrap();
    let route = target.retry(quick.attempts(1000));
    let worker = site.serve(Router::new().route(&site.pattern(), route));
    let fails = async |id: &str, why: &str| {
        let key = site.key(id);
        site.client.schedule(&key, &id).await.unwrap();
        eventually(why, async || {
            let view = site.client.get(&key).await.unwrap()?;
            view.last_error()?.contains(why).then_some(())
        })
        .await;
    };
    let () = command(&mut redis, &["SET", "mails", "x"]).await;
    fails("type", "`mails` in the Redis at").await;
    let _: u64 = command(&mut redis, &["DEL", "mails"]).await;
    assert_eq!(pop(&mut redis, "mails").await["payload"], "type");
    let () = command(&mut redis, &["CONFIG", "SET", "maxmemory", "1"]).await;
    fails("full", "maxmemory").await;
    let () = command(&mut redis, &["CONFIG", "SET", "maxmemory", "0"]).await;
    assert_eq!(pop(&mut redis, "mails").await["payload"], "full");
    let () = command(&mut redis, &["REPLICAOF", "127.0.0.1", "1"]).await;
    fails("replica", "replica").await;
    let () = command(&mut redis, &["REPLICAOF", "NO", "ONE"]).await;
    assert_eq!(pop(&mut redis, "mails").await["payload"], "replica");
    let () = command(&mut redis, &["CLIENT", "PAUSE", "4000", "ALL"]).await;
    fails("silent", "did not answer").await;
    eventually("it is back", async || {
        let length: u64 = command(&mut redis, &["LLEN", "mails"]).await;
        (length > 0).then_some(())
    })
    .await;
    drop((redis, other));
    fails("gone", "is it running").await;
    site.client.cancel(site.key("gone")).await.unwrap();
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn an_invalid_target_is_refused_by_the_router() {
    let refused = |target: List| {
        let error = Router::<()>::new()
            .try_route("a:b:c:*", target)
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidSetting);
        error.to_string()
    };
    let error = refused(list("http://localhost", "mails"));
    assert!(
        error.contains("list `mails` cannot be reached: the Redis URL"),
        "{error}"
    );
    let error = refused(list("redis://localhost", ""));
    assert!(error.contains("list has no name"), "{error}");
}

#[tokio::test]
async fn a_job_is_done_when_its_consumer_acknowledges_it() {
    let site = Site::new("list-ack").await;
    let worker = site.serve(Router::new().route(&site.pattern(), route(site.acknowledged())));
    let mut redis = site.redis();
    for key in site.keys(3) {
        site.client.schedule(&key, &1).await.unwrap();
    }
    let mut leases = Vec::new();
    for _ in 0..3 {
        leases.push(text(&pop(&mut redis, &site.list()).await, "lease").to_owned());
    }
    eventually("all are leased", async || {
        (site.stats().await.leased == 3).then_some(())
    })
    .await;
    // Garbage, an unknown lease, and a repeated lease.
    let nobody = format!("{}@ab-1", site.key("none"));
    for receipt in ["?", &*nobody, &leases[0], &leases[0], &leases[1]] {
        let _: u64 = command(&mut redis, &["RPUSH", &site.done(), receipt]).await;
    }
    // HTTP passes it on in the same way.
    let lease = leases[2].parse().unwrap();
    site.client
        .settle(&lease, Outcome::bury("no"))
        .await
        .unwrap();
    let stats = site.all_ended().await;
    assert_eq!((stats.done, stats.dead), (2, 1));
    eventually("all receipts are dealt with", async || {
        let left: u64 = command(&mut redis, &["LLEN", &site.done()]).await;
        (left == 0).then_some(())
    })
    .await;
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn an_unacknowledged_job_comes_again_and_ends_as_a_dead_letter() {
    let site = Site::new("list-lapse").await;
    let policy = RetryPolicy::fixed(ms(10)).unwrap().attempts(2);
    let route = site.acknowledged().lease(SHORT).retry(policy);
    let worker = site.serve(Router::new().route(&site.pattern(), route));
    let key = site.key("1");
    site.client.schedule(&key, &1).await.unwrap();
    let mut redis = site.redis();
    let first = pop(&mut redis, &site.list()).await;
    let second = pop(&mut redis, &site.list()).await;
    assert_eq!(
        (&first["attempt"], &second["attempt"]),
        (&json!(1), &json!(2))
    );
    assert_eq!(first["idempotency_key"], second["idempotency_key"]);
    assert_ne!(first["lease"], second["lease"]);
    let view = site.reaches(&key, JobState::Dead).await;
    assert!(view.last_error().unwrap().contains("lapsed"), "{view:?}");
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn receipts_outlast_workers_and_any_worker_reads_them() {
    let site = Site::new("list-outlast").await;
    let router = || Router::new().route(&site.pattern(), route(site.acknowledged()));
    let first = site.serve(router());
    let mut redis = site.redis();
    for key in site.keys(20) {
        site.client.schedule(&key, &1).await.unwrap();
    }
    let mut leases = Vec::new();
    for _ in 0..20 {
        leases.push(text(&pop(&mut redis, &site.list()).await, "lease").to_owned());
    }
    // No worker is running when the consumer is done.
    first.drop_it().await;
    for lease in &leases {
        let _: u64 = command(&mut redis, &["RPUSH", &site.done(), lease]).await;
    }
    let (second, third) = (site.serve(router()), site.serve(router()));
    assert_eq!(site.all_ended().await.done, 20);
    second.stop().await;
    third.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_malformed_receipt_is_dropped_and_the_following_count() {
    let site = Site::new("list-nonsense").await;
    let worker = site.serve(Router::new().route(&site.pattern(), route(site.acknowledged())));
    let mut redis = site.redis();
    site.client.schedule(site.key("1"), &1).await.unwrap();
    let document = pop(&mut redis, &site.list()).await;
    let lease = text(&document, "lease");
    // A lease that was never given out, for an absent job, counts as an ended lease.
    let strange = format!("{}@ab-1", site.key("none"));
    for receipt in ["", "nonsense", "\u{1F4E6}", &strange, lease, lease] {
        let _: u64 = command(&mut redis, &["RPUSH", &site.done(), receipt]).await;
    }
    assert_eq!(site.all_ended().await.done, 1);
    eventually("all are dealt with", async || {
        let left: u64 = site.command(&["LLEN", &site.done()]).await;
        (left == 0).then_some(())
    })
    .await;
    // A foreign value under the key is reported, and the end of the fault, too.
    let () = command(&mut redis, &["SET", &site.done(), "x"]).await;
    site.client.schedule(site.key("2"), &1).await.unwrap();
    let document = pop(&mut redis, &site.list()).await;
    let _: u64 = command(&mut redis, &["DEL", &site.done()]).await;
    let receipt = ["RPUSH", &site.done(), text(&document, "lease")];
    let _: u64 = command(&mut redis, &receipt).await;
    assert_eq!(site.all_ended().await.done, 2);
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn the_limit_of_the_route_bounds_the_written_jobs() {
    let site = Site::new("list-limit").await;
    let limited = route(site.acknowledged()).concurrency(3);
    let worker = site.serve(Router::new().route(&site.pattern(), limited));
    for key in site.keys(10) {
        site.client.schedule(&key, &1).await.unwrap();
    }
    let mut redis = site.redis();
    let mut seen = HashSet::new();
    for round in 0..10 {
        let document = pop(&mut redis, &site.list()).await;
        assert!(seen.insert(text(&document, "key").to_owned()));
        let out = site.stats().await.leased;
        assert!(out <= 3, "{out} are out in round {round}");
        let _: u64 = command(
            &mut redis,
            &["RPUSH", &site.done(), text(&document, "lease")],
        )
        .await;
    }
    assert_eq!(site.all_ended().await.done, 10);
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn an_unreachable_ledger_loses_no_receipt() {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "list-away").await;
    let shared = Site::new("list-away-target").await;
    let target = list(&shared.url, &shared.list()).acknowledged();
    let worker = site.serve(Router::new().route(&site.pattern(), route(target)));
    site.client.schedule(site.key("1"), &1).await.unwrap();
    let mut redis = shared.redis();
    let document = pop(&mut redis, &shared.list()).await;
    let () = command(&mut site.redis(), &["CLIENT", "PAUSE", "3000", "ALL"]).await;
    let _: u64 = command(
        &mut redis,
        &["RPUSH", &shared.done(), text(&document, "lease")],
    )
    .await;
    assert_eq!(site.all_ended().await.done, 1);
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_ledger_that_refuses_calls_for_a_while_loses_no_receipt() {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "list-refused").await;
    let shared = Site::new("list-refused-target").await;
    let target = list(&shared.url, &shared.list()).acknowledged();
    let worker = site.serve(Router::new().route(&site.pattern(), target.lease(HOUR)));
    site.client.schedule(site.key("1"), &1).await.unwrap();
    let mut redis = shared.redis();
    let document = pop(&mut redis, &shared.list()).await;
    let rights = async |scripts: &str| {
        let () = site.command(&["ACL", "SETUSER", "default", scripts]).await;
    };
    rights("-@scripting").await;
    let _: u64 = command(
        &mut redis,
        &["RPUSH", &shared.done(), text(&document, "lease")],
    )
    .await;
    eventually("it was tried", async || {
        let log: Vec<redis::Value> = site.command(&["ACL", "LOG"]).await;
        (!log.is_empty()).then_some(())
    })
    .await;
    let left: u64 = command(&mut redis, &["LLEN", &shared.done()]).await;
    assert_eq!(left, 1);
    rights("+@scripting").await;
    assert_eq!(site.all_ended().await.done, 1);
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn an_acknowledged_write_with_a_lost_answer_is_not_repeated() {
    let site = Site::new("list-once").await;
    let other = Embedded::start().await.unwrap();
    let proxy = FreezingProxy::to(&other).await;
    let server = Client::builder(&proxy.url).call_timeout(SHORT);
    let target = List::on(&server, "orders").acknowledged();
    let worker = site.serve(Router::new().route(&site.pattern(), route(target)));
    proxy.freeze_after("RPUSH");
    site.client.schedule(site.key("1"), &1).await.unwrap();
    let mut redis = connect(&other.url()).await;
    let document = pop(&mut redis, "orders").await;
    // The answer never comes.
    proxy.forget_connections();
    proxy.thaw();
    worker.stop().await;
    let stats = site.stats().await;
    assert_eq!((stats.leased, stats.failed, stats.pending), (1, 0, 0));
    let left: u64 = command(&mut redis, &["LLEN", "orders"]).await;
    assert_eq!(left, 0);
    let lease = text(&document, "lease").parse().unwrap();
    let settled = site.client.settle(&lease, Outcome::Done).await.unwrap();
    assert_eq!(settled, Settled::Done);
    site.assert_balanced().await;
}

/// The worker learns at once that the answer is lost, and has time to repeat the write.
#[tokio::test]
async fn a_write_whose_connection_breaks_is_left_to_its_lease() {
    let site = Site::new("list-broken").await;
    let other = Embedded::start().await.unwrap();
    let proxy = FreezingProxy::to(&other).await;
    let mut redis = connect(&other.url()).await;
    // So the answer to the write differs from all other answers.
    let filler = [&["RPUSH", "orders"][..], &["-"; 4320]].concat();
    let _: u64 = command(&mut redis, &filler).await;
    proxy.lose(":4321\r");
    let target = list(&proxy.url, "orders").acknowledged();
    let policy = RetryPolicy::fixed(ms(10)).unwrap();
    let route = target.lease(SHORT).retry(policy);
    let worker = site.serve(Router::new().route(&site.pattern(), route));
    site.client.schedule(site.key("1"), &1).await.unwrap();
    eventually("the answer is lost", async || {
        proxy.is_clear().then_some(())
    })
    .await;
    let () = command(&mut redis, &["LTRIM", "orders", "4320", "-1"]).await;
    let first = pop(&mut redis, "orders").await;
    let second = pop(&mut redis, "orders").await;
    assert_ne!(
        first["lease"], second["lease"],
        "two consumers hold one lease"
    );
    assert_eq!(
        (&first["attempt"], &second["attempt"]),
        (&json!(1), &json!(2))
    );
    // The first attempt did not fail: its lease lapsed.
    assert_eq!(site.stats().await.failed, 0);
    worker.drop_it().await;
}

#[tokio::test]
async fn a_write_into_a_dead_connection_is_repeated_at_once() {
    let site = Site::new("list-idle").await;
    let other = Embedded::start().await.unwrap();
    let proxy = FreezingProxy::to(&other).await;
    let target = list(&proxy.url, "orders").acknowledged();
    let worker = site.serve(Router::new().route(&site.pattern(), route(target)));
    let mut redis = connect(&other.url()).await;
    for key in site.keys(3) {
        // By then the connection has been silent for a while.
        site.client.schedule(&key, &1).after(ms(100)).await.unwrap();
        let document = pop(&mut redis, "orders").await;
        assert_eq!(document["key"], key);
        // As if a device on the way had forgotten the connection.
        proxy.forget_connections();
    }
    worker.drop_it().await;
}
