//! The last of several pushes of one id into several topics wins, for any names of the topics and
//! any clocks.

use futures_util::future::join_all;
use keyfall::embedded::Embedded;
use serde_json::{Value, json};

use super::{Queue, kind, state};
use crate::site::{HOUR, Site, command, connect};

fn job(topic: &str, id: &str, body: &str) -> Value {
    json!({"topic": topic, "id": id, "delay": 3600, "ttr": 60, "body": body})
}

/// The remaining jobs of an id: topics and bodies.
async fn left(site: &Site, topics: &[&str], id: &str) -> Vec<(String, String)> {
    let mut left = Vec::new();
    for topic in topics {
        let key = format!("{}:{id}", kind(site, topic));
        if let Some(job) = site.client.get(key).await.unwrap() {
            let body = String::from_utf8(job.payload().to_vec()).unwrap();
            left.push(((*topic).to_owned(), body));
        }
    }
    left
}

fn only(topic: &str, body: &str) -> Vec<(String, String)> {
    vec![(topic.to_owned(), body.to_owned())]
}

/// Pushes one after the other, as fast as the answers come: to one daemon over one connection, and
/// to two daemons in turn.
#[tokio::test]
async fn the_last_push_wins_in_both_orders_of_topics() {
    let site = Site::new("classic-last").await;
    let daemons = [Queue::start(&site), Queue::start(&site)];
    for number in 0..150 {
        for (topics, names) in [(["b", "a"], "ba"), (["a", "b"], "ab")] {
            let id = format!("{names}-{number}");
            let second = number % 2;
            daemons[0].does("push", job(topics[0], &id, "old")).await;
            daemons[second]
                .does("push", job(topics[1], &id, "new"))
                .await;
            assert_eq!(
                left(&site, &topics, &id).await,
                only(topics[1], "new"),
                "{id}"
            );
        }
    }
    // The order goes round and round.
    for (number, topic) in ["c", "a", "b", "a", "c", "b", "b", "a"].iter().enumerate() {
        let body = number.to_string();
        daemons[number % 2]
            .does("push", job(topic, "x", &body))
            .await;
        assert_eq!(left(&site, &["a", "b", "c"], "x").await, only(topic, &body));
        assert_eq!(daemons[0].get("x").await["body"], body);
    }
    site.assert_balanced().await;
}

/// The older job has a time that is an hour later, as after the clock of Redis was set back, or
/// with topics on servers whose clocks differ.
#[tokio::test]
async fn clocks_do_not_decide_which_push_was_the_last() {
    let site = Site::new("classic-clocks").await;
    let queue = Queue::start(&site);
    for (number, topics) in [["a", "b"], ["b", "a"]].into_iter().enumerate() {
        let id = number.to_string();
        queue.does("push", job(topics[0], &id, "old")).await;
        let shadow = format!("keyfall:{{{}/0}}:shadow", kind(&site, topics[0]));
        let record: String = site.command(&["HGET", &shadow, &id]).await;
        let parts: Vec<&str> = record.splitn(3, '\n').collect();
        let later = parts[1].parse::<u64>().unwrap() + HOUR.as_millis() as u64;
        let record = format!("{}\n{later}\n{}", parts[0], parts[2]);
        let () = site.command(&["HSET", &shadow, &id, &record]).await;
        queue.does("push", job(topics[1], &id, "new")).await;
        assert_eq!(left(&site, &topics, &id).await, only(topics[1], "new"));
    }
    site.assert_balanced().await;
}

/// The state after some fail-overs, and the data of an older version.
#[tokio::test]
async fn the_last_push_wins_where_numbers_are_missing() {
    let site = Site::new("classic-forgot").await;
    let queue = Queue::start(&site);
    let forget = async || {
        let pattern = format!("keyfall:{{{}:queue/*", site.app);
        let keys: Vec<String> = site.command(&["KEYS", &pattern]).await;
        assert_eq!(keys.len(), 1, "one place for this id: {keys:?}");
        let () = site.command(&["DEL", &keys[0]]).await;
    };
    // In another topic, and in the same topic.
    for (number, topic) in ["b", "a", "a", "b"].into_iter().enumerate() {
        for _ in 0..3 {
            queue.does("push", job("b", "x", "before")).await;
        }
        queue.does("push", job("a", "x", "before")).await;
        forget().await;
        let body = number.to_string();
        queue.does("push", job(topic, "x", &body)).await;
        assert_eq!(left(&site, &["a", "b"], "x").await, only(topic, &body));
    }
    // Another interface stores it, so it has no order number.
    for topic in ["a", "b"] {
        let key = format!("{}:y", kind(&site, topic));
        let call = site.client.schedule_bytes(key, "other").after(HOUR);
        call.await.unwrap();
    }
    assert_eq!(left(&site, &["a", "b"], "y").await.len(), 2);
    queue.does("push", job("a", "y", "new")).await;
    assert_eq!(left(&site, &["a", "b"], "y").await, only("a", "new"));
    site.assert_balanced().await;
}

/// Many pushes at the same time, over two daemons and three topics: one job is left, and a later
/// push wins.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn racing_pushes_into_several_topics_leave_one_job() {
    let site = Site::new("classic-three").await;
    let daemons = [Queue::start(&site), Queue::start(&site)];
    let topics = ["a", "b", "c"];
    for round in 0..40 {
        let id = format!("race-{round}");
        let pushes = (0..6).map(|number: usize| {
            let (daemon, topic) = (&daemons[number % 2], topics[(number + round) % 3]);
            daemon.call("push", job(topic, &id, topic))
        });
        for answer in join_all(pushes).await {
            assert_eq!(answer["code"], 0, "{answer}");
        }
        let found = left(&site, &topics, &id).await;
        assert!(
            found.len() == 1 && found[0].0 == found[0].1,
            "{id}: {found:?}"
        );
        let last = topics[round % 3];
        daemons[round % 2]
            .does("push", job(last, &id, "last"))
            .await;
        assert_eq!(left(&site, &topics, &id).await, only(last, "last"));
        daemons[0].does("delete", json!({"id": id})).await;
        assert_eq!(left(&site, &topics, &id).await, []);
    }
    site.assert_balanced().await;
}

/// A delivered job is not delivered again when another topic has a later push.
#[tokio::test]
async fn an_overtaken_delivery_ends_and_the_later_push_follows() {
    let site = Site::new("classic-out").await;
    let queue = Queue::start(&site);
    queue.push("b", "1").await;
    assert_eq!(queue.pop("b").await, "1");
    queue.does("push", job("a", "1", "new")).await;
    assert!(
        site.view(&format!("{}:1", kind(&site, "b")))
            .await
            .is_cancelled()
    );
    // A push back into the first topic follows the delivery in progress, under a later number.
    queue.does("push", job("b", "1", "newer")).await;
    assert_eq!(state(&site, "a", "1").await, None);
    assert_eq!(queue.get("1").await["body"], "newer");
    queue.does("push", job("a", "1", "newest")).await;
    let out = site.view(&format!("{}:1", kind(&site, "b"))).await;
    assert!(out.is_cancelled() && out.successor_due().is_none());
    assert_eq!(queue.get("1").await["body"], "newest");
    queue.does("delete", json!({"id": "1"})).await;
    queue.finish("1").await;
    site.assert_balanced().await;
}

/// A push through a daemon that stored its job late, and died before it saw the newer one.
#[tokio::test]
async fn a_push_that_waits_behind_a_run_counts_by_its_own_number() {
    let site = Site::new("classic-behind").await;
    let queue = Queue::start(&site);
    queue.push("a", "1").await;
    assert_eq!(queue.pop("a").await, "1");
    for body in ["newer", "newest"] {
        queue.does("push", job("a", "1", body)).await;
    }
    let run = site.view(&format!("{}:1", kind(&site, "a"))).await;
    let newest = run.successor().unwrap().order();
    assert_eq!(newest, run.order() + 2);
    let late = format!("{}:1", kind(&site, "b"));
    let late = site.client.schedule_bytes(late, "late").after(HOUR);
    late.ordered(newest - 1).await.unwrap();
    assert_eq!(queue.get("1").await["body"], "newest");
    queue.does("delete", json!({"id": "1"})).await;
    queue.finish("1").await;
    site.assert_balanced().await;
}

/// Topics whose ledgers are on different servers.
#[tokio::test]
async fn the_last_push_wins_over_several_servers() {
    let (one, other) = (
        Embedded::start().await.unwrap(),
        Embedded::start().await.unwrap(),
    );
    let site = Site::on(&format!("{} {}", one.url(), other.url()), "classic-servers").await;
    let daemons = [Queue::start(&site), Queue::start(&site)];
    let topics = ["a", "b", "c", "d"];
    let places = topics.map(|topic| keyfall::server_of(&kind(&site, topic), 0, 2));
    assert!(places.contains(&0) && places.contains(&1), "{places:?}");
    for number in 0..32 {
        let id = format!("x-{}", number % 8);
        let (topic, body) = (topics[number * 7 % 4], number.to_string());
        daemons[number % 2]
            .does("push", job(topic, &id, &body))
            .await;
        assert_eq!(left(&site, &topics, &id).await, only(topic, &body));
    }
    // The counters are spread over the servers, too.
    for server in [&one, &other] {
        let mut redis = connect(&server.url()).await;
        let keys: Vec<String> = command(&mut redis, &["KEYS", "keyfall:{*}:order"]).await;
        assert!(!keys.is_empty(), "{keys:?}");
    }
}
