//! Ids, which are unique over all topics, on one daemon or several.

use futures_util::future::join_all;
use keyfall::JobState;
use serde_json::{Value, json};

use super::{Queue, kind, state};
use crate::runs::eventually;
use crate::site::Site;

#[tokio::test]
async fn an_id_is_unique_over_all_topics() {
    let site = Site::new("classic-unique").await;
    let queue = Queue::start(&site);
    let push = |topic: &str, body: &str| json!({"topic": topic, "id": "7", "delay": 3600, "ttr": 60, "body": body});
    queue.does("push", push("a", "one")).await;
    queue.does("push", push("a", "two")).await;
    assert_eq!(queue.get("7").await["body"], "two");
    queue.does("push", push("b", "three")).await;
    assert_eq!(state(&site, "a", "7").await, None);
    let seen = queue.get("7").await;
    assert_eq!(
        (&seen["topic"], &seen["body"]),
        (&json!("b"), &json!("three"))
    );

    let refusing = Queue::with(&site, &["--classic-existing", "refuse"]);
    for topic in ["a", "b"] {
        let answer = refusing.call("push", push(topic, "four")).await;
        assert_eq!(answer["code"], 2, "{answer}");
        assert!(
            answer["message"].as_str().unwrap().contains("topic \"b\""),
            "{answer}"
        );
    }
    assert_eq!(queue.get("7").await["body"], "three");

    // While a consumer has the old job, the new one follows, and a finish ends only the old one.
    site.client
        .fire_now(format!("{}:7", kind(&site, "b")))
        .await
        .unwrap();
    assert_eq!(queue.pop("b").await, "7");
    queue.does("push", push("b", "four")).await;
    assert_eq!(queue.get("7").await["body"], "four");
    queue.finish("7").await;
    assert_eq!(state(&site, "b", "7").await, Some(JobState::Pending));
    let answer = queue.call("finish", json!({"id": "7"})).await;
    assert_eq!(answer["code"], 3, "{answer}");

    // The same holds for another topic: the old job is not delivered again.
    site.client
        .fire_now(format!("{}:7", kind(&site, "b")))
        .await
        .unwrap();
    assert_eq!(queue.pop("b").await, "7");
    queue.does("push", push("c", "five")).await;
    assert!(
        site.view(&format!("{}:7", kind(&site, "b")))
            .await
            .is_cancelled()
    );
    assert_eq!(queue.get("7").await["body"], "five");
    queue.finish("7").await;
    assert_eq!(state(&site, "b", "7").await, None);
    queue.does("delete", json!({"id": "7"})).await;
    assert_eq!(state(&site, "c", "7").await, None);
    site.assert_balanced().await;
}

/// Two daemons make many pushes of the same id into several topics at the same time: one job is
/// left.

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn racing_pushes_of_one_id_leave_one_job() {
    let site = Site::new("classic-race").await;
    let queues = [Queue::start(&site), Queue::start(&site)];
    // The topics exist, so both daemons find them.
    for topic in ["a", "b"] {
        queues[0].push(topic, topic).await;
        assert_eq!(queues[0].pop(topic).await, topic);
        queues[0].finish(topic).await;
    }
    for round in 0..50 {
        let id = format!("race-{round}");
        let push = |topic: &str| json!({"topic": topic, "id": id, "delay": 3600, "ttr": 60, "body": topic});
        // One daemon takes any number of pushes at a time; over two daemons, one push each.
        if round % 2 == 0 {
            tokio::join!(
                queues[0].does("push", push("a")),
                queues[1].does("push", push("b"))
            );
        } else {
            let pushes = ["a", "b", "a", "b", "a"].map(|topic| queues[0].does("push", push(topic)));
            join_all(pushes).await;
        }
        let states = [state(&site, "a", &id).await, state(&site, "b", &id).await];
        let left = states.iter().flatten().count();
        assert_eq!(left, 1, "{id}: {states:?}");
        queues[1].does("delete", json!({"id": id})).await;
    }
    site.assert_balanced().await;
}

/// Where a push of an existing id is refused, one daemon stores one of many simultaneous pushes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_racing_pushes_one_is_stored_where_existing_ids_are_refused() {
    let site = Site::new("classic-refuse").await;
    let queue = Queue::with(&site, &["--classic-existing", "refuse"]);
    for round in 0..30 {
        let id = format!("race-{round}");
        let push = |topic: &str| json!({"topic": topic, "id": id, "delay": 3600, "ttr": 60, "body": topic});
        let pushes = ["a", "b", "c"].map(|topic| queue.call("push", push(topic)));
        let answers = join_all(pushes).await;
        let stored = answers.iter().filter(|answer| answer["code"] == 0).count();
        assert_eq!(stored, 1, "{answers:?}");
        queue.does("delete", json!({"id": id})).await;
    }
    site.assert_balanced().await;
}

/// While a consumer has the job of one topic, another topic gets the id, and another consumer that
/// job.
#[tokio::test]
async fn a_finish_in_one_topic_leaves_the_job_of_another_topic_out() {
    let site = Site::new("classic-shared").await;
    let queues = [Queue::start(&site), Queue::start(&site)];
    for (round, (popped, finished)) in [(0, 0), (0, 1), (1, 0), (1, 1)].into_iter().enumerate() {
        let id = round.to_string();
        queues[0].push("a", &id).await;
        assert_eq!(queues[0].pop("a").await, id);
        queues[1].push("b", &id).await;
        assert_eq!(queues[popped].pop("b").await, id);
        queues[finished].finish(&id).await;
        assert_eq!(state(&site, "a", &id).await, None, "{id}");
        assert_eq!(
            state(&site, "b", &id).await,
            Some(JobState::Running),
            "{id}"
        );
        queues[finished].finish(&id).await;
        assert_eq!(state(&site, "b", &id).await, None, "{id}");
    }
    site.assert_balanced().await;
}

#[tokio::test]
async fn two_daemons_are_one_queue() {
    let site = Site::new("classic-two").await;
    let (one, other) = (Queue::start(&site), Queue::start(&site));
    one.push("a", "1").await;
    assert_eq!(other.pop("a").await, "1");
    one.finish("1").await;
    assert_eq!(state(&site, "a", "1").await, None);

    // A job that is deleted while a consumer has it is not delivered again, and finishing it
    // succeeds.
    one.does(
        "push",
        json!({"topic": "a", "id": "2", "delay": 0, "ttr": 1, "body": ""}),
    )
    .await;
    assert_eq!(one.pop("a").await, "2");
    other.does("delete", json!({"id": "2"})).await;
    assert_eq!(other.get("2").await, Value::Null);
    let third = json!({"topic": "a", "id": "3", "delay": 0, "ttr": 1, "body": ""});
    let (popped, ()) = tokio::join!(other.pop("a"), async {
        eventually("it ends with its ttr", async || {
            state(&site, "a", "2").await.is_none().then_some(())
        })
        .await;
        one.finish("2").await;
        one.does("push", third).await;
    });
    assert_eq!(popped, "3");

    // A late finish ends the current delivery, by any daemon.
    assert_eq!(one.pop("a").await, "3");
    other.finish("3").await;
    assert_eq!(state(&site, "a", "3").await, None);
    let stats = site.client.stats(&kind(&site, "a")).await.unwrap();
    assert_eq!((stats.done, stats.cancelled, stats.buried), (2, 1, 0));
    site.assert_balanced().await;
}
