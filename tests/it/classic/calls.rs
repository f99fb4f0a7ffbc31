//! The answers to the calls. The jobs are jobs like any other.

use std::time::{SystemTime, UNIX_EPOCH};

use keyfall::{Cancelled, JobState};
use serde_json::{Value, json};

use super::{Queue, answered, kind, state};
use crate::site::Site;

#[tokio::test]
async fn a_pushed_job_is_a_job_like_any_other() {
    let site = Site::new("classic-one").await;
    let queue = Queue::start(&site);
    // The body comes back unchanged, white space included.
    let body = " {\"order\":  42}\n\u{1F4E6}";
    let job = json!({"topic": "order.close", "id": "42", "delay": 3600, "ttr": 90, "body": body});
    assert_eq!(queue.does("push", job).await, Value::Null);

    let seen = queue.get("42").await;
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let due = seen["delay"].as_u64().unwrap();
    assert!((now + 3590..now + 3610).contains(&due), "{seen}");
    let expected =
        json!({"topic": "order.close", "id": "42", "delay": due, "ttr": 90, "body": body});
    assert_eq!(seen, expected);

    // Other interfaces see the job, and can change it.
    let key = format!("{}:42", kind(&site, "order.close"));
    let view = site.view(&key).await;
    assert_eq!(view.payload(), body.as_bytes());
    assert_eq!(view.headers().get("ttr"), Some("90"));
    let counted = queue
        .http
        .get(format!("{}/v1/jobs/count?prefix={}:", queue.api, site.app));
    let counted: Value =
        serde_json::from_str(&counted.send().await.unwrap().text().await.unwrap()).unwrap();
    assert_eq!(counted["pending"], 1, "{counted}");
    site.client.fire_now(&key).await.unwrap();

    let popped = queue.does("pop", json!({"topic": "order.close"})).await;
    assert_eq!(popped, json!({"id": "42", "body": body}));
    assert_eq!(
        state(&site, "order.close", "42").await,
        Some(JobState::Running)
    );
    queue.finish("42").await;
    assert_eq!(queue.get("42").await, Value::Null);
    let stats = site
        .client
        .stats(&kind(&site, "order.close"))
        .await
        .unwrap();
    assert_eq!((stats.done, stats.leased, stats.pending), (1, 0, 0));

    // A job that another client scheduled there is delivered, too; a cancelled job is not.
    queue.push("order.close", "43").await;
    let cancelled = site
        .client
        .cancel(format!("{}:43", kind(&site, "order.close")))
        .await;
    assert_eq!(cancelled.unwrap(), Cancelled::Cancelled);
    site.client
        .schedule_bytes(format!("{}:44", kind(&site, "order.close")), "x")
        .await
        .unwrap();
    assert_eq!(queue.pop("order.close").await, "44");
    queue.finish("44").await;
    site.assert_balanced().await;
}

/// Each request gets an answer.

#[tokio::test]
async fn every_call_is_answered_as_in_the_table() {
    let site = Site::new("classic-table").await;
    let queue = Queue::with(&site, &["--http-body-limit", "2000B"]);
    let push = |field: &str, value: Value| {
        let mut job = json!({"topic": "a", "id": "1", "delay": 3600, "ttr": 60, "body": "x"});
        job[field] = value;
        job.to_string()
    };
    let (missing, id) = (Value::Null, json!({"id": "1"}).to_string());
    for (name, body, code, message) in [
        ("push", push("id", json!("1")), 0, "pushed"),
        ("push", push("id", json!(" 1 ")), 0, "pushed"),
        ("push", push("body", missing.clone()), 0, "pushed"),
        ("push", push("ttr", missing.clone()), 0, "pushed"),
        ("push", push("ttr", json!(0)), 0, "pushed"),
        ("push", push("ttr", json!(86400)), 0, "pushed"),
        ("push", push("more", json!(7)), 0, "pushed"),
        (
            "push",
            push("topic", missing.clone()),
            1,
            "topic: it is missing",
        ),
        ("push", push("topic", json!(" ")), 1, "topic: it is missing"),
        ("push", push("topic", json!("x".repeat(65))), 1, "topic: "),
        ("push", push("topic", json!(7)), 1, "topic: invalid type"),
        ("push", push("id", missing.clone()), 1, "id: it is missing"),
        ("push", push("id", json!("x".repeat(257))), 1, "id: "),
        ("push", push("id", json!(7)), 1, "id: invalid type"),
        (
            "push",
            push("delay", missing.clone()),
            1,
            "delay: it is missing",
        ),
        (
            "push",
            push("delay", json!(-1)),
            1,
            "delay: -1 is out of range",
        ),
        (
            "push",
            push("delay", json!(1_u64 << 31)),
            1,
            "delay: 2147483648 is out of range",
        ),
        ("push", push("delay", json!(1_900_000_000)), 1, ""),
        ("push", push("delay", json!("5")), 1, "delay: invalid type"),
        ("push", push("delay", json!(1.5)), 1, "delay: invalid type"),
        ("push", push("ttr", json!(-1)), 1, "ttr: -1 is out of range"),
        (
            "push",
            push("ttr", json!(86401)),
            1,
            "ttr: 86401 is out of range",
        ),
        (
            "push",
            push("body", json!({"a": 1})),
            1,
            "body: invalid type",
        ),
        (
            "push",
            push("body", json!("x".repeat(2000))),
            4,
            "the body has more than 2000 bytes",
        ),
        ("push", "{".into(), 1, "body: EOF"),
        ("push", "[]".into(), 1, "body: this is a list"),
        ("push", String::new(), 1, "topic: it is missing"),
        ("pop", "{}".into(), 1, "topic: it is missing"),
        (
            "pop",
            json!({"topic": " , ,"}).to_string(),
            1,
            "topic: there are 0",
        ),
        (
            "pop",
            json!({"topic": "x,".repeat(101)}).to_string(),
            1,
            "topic: there are 101",
        ),
        (
            "pop",
            json!({"topic": "x".repeat(65)}).to_string(),
            1,
            "topic: ",
        ),
        ("get", id.clone(), 0, "found"),
        ("get", "{}".into(), 1, "id: it is missing"),
        ("finish", "{}".into(), 1, "id: it is missing"),
        ("finish", id.clone(), 3, "id: no consumer has this job"),
        ("delete", "{}".into(), 1, "id: it is missing"),
        ("delete", id.clone(), 0, "deleted"),
        ("delete", id.clone(), 0, "there is no job"),
        ("finish", id.clone(), 0, "there is no job"),
        ("get", id, 0, "there is no job"),
        ("shove", "{}".into(), 8, "the calls are POST to /push"),
        ("", "{}".into(), 8, "the calls are POST to /push"),
    ] {
        let answer = answered(&queue.http, &queue.url, name, body.clone()).await;
        let said = answer["message"].as_str().unwrap();
        assert!(
            answer["code"] == code && said.starts_with(message),
            "{name} {body}: {answer}"
        );
        assert!(name == "get" || answer["data"].is_null(), "{answer}");
    }
    let response = queue
        .http
        .get(format!("{}/push", queue.url))
        .header("x-request-id", "me-7");
    let response = response.send().await.unwrap();
    assert_eq!(
        (
            response.status().as_u16(),
            &response.headers()["x-request-id"]
        ),
        (200, &"me-7".parse().unwrap())
    );
    assert!(response.text().await.unwrap().contains("\"code\":8"));
    site.assert_balanced().await;
}

#[tokio::test]
async fn topics_and_ids_with_any_characters_come_back_unchanged() {
    let site = Site::new("classic-odd").await;
    let queue = Queue::start(&site);
    let ids = [
        "a:b",
        "100%",
        "100%25",
        "{x}*",
        "tab\there",
        "订单 42",
        "a/b?c#d",
        "\u{1F4E6}",
        "..%.2E",
    ];
    for topic in ["order:close", "a/b c", "v1.10", "订单", "%2F", "{t}"] {
        for id in ids {
            let id = format!("{id}-{topic}");
            let job = json!({"topic": topic, "id": id, "delay": 0, "ttr": 60, "body": id});
            queue.does("push", job).await;
            let seen = queue.get(&id).await;
            assert_eq!((&seen["topic"], &seen["id"]), (&json!(topic), &json!(id)));
            let popped = queue.does("pop", json!({"topic": topic})).await;
            assert_eq!(popped, json!({"id": id, "body": id}));
            queue.finish(&id).await;
            assert_eq!(queue.get(&id).await, Value::Null);
        }
    }
    // A job that another client scheduled has a name, too, by which it can be finished.
    for id in ["x%2Fy", "x%252Fy", "%FF"] {
        let key = format!("{}:{id}", kind(&site, "order"));
        site.client.schedule_bytes(key, "").await.unwrap();
        let popped = queue.pop("order").await;
        assert_eq!(queue.get(&popped).await["id"], popped);
        queue.finish(&popped).await;
        assert_eq!(queue.get(&popped).await, Value::Null);
    }
    site.assert_balanced().await;
}
