//! Consumers that wait, come back too late, or go away.

use std::collections::HashSet;
use std::time::Instant;

use futures_util::future::join_all;
use keyfall::JobState;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::{Queue, answered, kind, state};
use crate::runs::eventually;
use crate::site::{Site, ms, redis_time};
use crate::workers::SECOND;

#[tokio::test]
async fn a_job_that_is_not_finished_within_its_ttr_comes_again() {
    let site = Site::new("classic-ttr").await;
    let queue = Queue::with(
        &site,
        &["--classic-ttr", "30s", "--classic-deliveries", "3"],
    );
    let began = Instant::now();
    let job =
        |id: &str, ttr: u64| json!({"topic": "a", "id": id, "delay": 0, "ttr": ttr, "body": ""});
    queue.does("push", job("short", 1)).await;
    for delivery in 1..=3 {
        assert_eq!(queue.pop("a").await, "short");
        assert!(began.elapsed() >= (delivery - 1) * SECOND);
    }
    // Three deliveries were allowed. A waiting consumer gets the next job.
    let (popped, ()) = tokio::join!(queue.pop("a"), async {
        eventually("buried", async || {
            (state(&site, "a", "short").await == Some(JobState::Dead)).then_some(())
        })
        .await;
        queue.push("a", "next").await;
    });
    assert_eq!(popped, "next");
    queue.finish("next").await;
    assert_eq!(queue.get("short").await, Value::Null);

    // A header that another client wrote does no harm.
    for (ttr, known) in [(u64::MAX.to_string(), 86_400), ("soon".into(), 30)] {
        let key = format!("{}:odd", kind(&site, "a"));
        let odd = site.client.schedule_bytes(key, "").header("ttr", ttr);
        odd.await.unwrap();
        assert_eq!(queue.get("odd").await["ttr"], known);
        assert_eq!(queue.pop("a").await, "odd");
        queue.finish("odd").await;
    }

    // A longer lease than the route has, and the lease of the route.
    for (id, ttr, range) in [("long", 7200, 7100..7201), ("default", 0, 20..31)] {
        queue.does("push", job(id, ttr)).await;
        assert_eq!(queue.pop("a").await, id);
        let leased = format!("keyfall:{{{}/0}}:leased", kind(&site, "a"));
        eventually("its lease is its own", async || {
            let now = redis_time(&mut site.redis()).await / 1000;
            let until: f64 = site.command(&["ZSCORE", &leased, id]).await;
            let left = (until as u64).saturating_sub(now as u64) / 1000;
            range.contains(&left).then_some(())
        })
        .await;
        queue.finish(id).await;
    }
    site.assert_balanced().await;
}

/// The daemon that handed the job out first knows only the lease that has lapsed.
#[tokio::test]
async fn a_finish_through_any_daemon_ends_the_latest_delivery() {
    let site = Site::new("classic-late").await;
    let flags = ["--classic-ttr", "3s", "--worker-lease", "3s"];
    let (first, second) = (Queue::with(&site, &flags), Queue::with(&site, &flags));
    let job = json!({"topic": "a", "id": "late", "delay": 0, "ttr": 1, "body": ""});
    first.does("push", job).await;
    assert_eq!(first.pop("a").await, "late");
    assert_eq!(second.pop("a").await, "late");
    first.finish("late").await;
    assert_eq!(state(&site, "a", "late").await, None);
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_consumer_of_several_topics_gets_no_job_of_another_topic() {
    let site = Site::new("classic-topics").await;
    let queue = Queue::start(&site);
    queue.push("orders", "other").await;
    let (popped, ()) = tokio::join!(queue.pop("order, remind ,,"), async {
        // The consumer waits once the daemon has its request; then comes an unused topic.
        queue.push("remind", "r").await;
    });
    assert_eq!(popped, "r");
    queue.push("order", "o").await;
    assert_eq!(queue.pop("remind,order").await, "o");
    assert_eq!(
        state(&site, "orders", "other").await,
        Some(JobState::Pending)
    );
    for id in ["r", "o"] {
        queue.finish(id).await;
    }
    queue.does("delete", json!({"id": "other"})).await;
    assert_eq!(state(&site, "orders", "other").await, None);
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_consumer_that_disconnects_while_waiting_loses_no_job() {
    let site = Site::new("classic-gone").await;
    let queue = Queue::start(&site);
    let mut at_once = 0;
    for number in 0..20 {
        let id = number.to_string();
        let mut stream = TcpStream::connect(queue.address()).await.unwrap();
        let request =
            "POST /pop HTTP/1.1\r\nhost: x\r\ncontent-length: 13\r\n\r\n{\"topic\":\"a\"}";
        stream.write_all(request.as_bytes()).await.unwrap();
        // A consumer that leaves with the job holds it for a shorter time than a pop waits here.
        let job = json!({"topic": "a", "id": id, "delay": 0, "ttr": 20, "body": id});
        let push = queue.does("push", job);
        // The consumer leaves before the job exists, and while it is on its way.
        if number % 2 == 0 {
            drop(stream);
            push.await;
        } else {
            tokio::join!(push, async { drop(stream) });
        }
        assert_eq!(queue.pop("a").await, id);
        // A completely written answer could have been read: on a busy machine the daemon may hear
        // of the job before it hears that the consumer has left.
        let attempts = site
            .view(&format!("{}:{id}", kind(&site, "a")))
            .await
            .attempts();
        assert!(attempts <= 2, "{attempts}");
        at_once += u32::from(attempts == 1);
        queue.finish(&id).await;
    }
    assert!(at_once > 0, "each waited for its lease to lapse");
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_held_pops_get_a_job_each() {
    const HELD: usize = 1000;
    let site = Site::new("classic-thousand").await;
    let queue = Queue::with(&site, &["--http-access-log=false"]);
    let pops = (0..HELD).map(|_| {
        let (http, url) = (queue.http.clone(), queue.url.clone());
        tokio::spawn(async move {
            let body = json!({"topic": "a"}).to_string();
            let answer = answered(&http, &url, "pop", body).await;
            let id = answer["data"]["id"].as_str().unwrap().to_owned();
            let body = json!({"id": id}).to_string();
            assert_eq!(
                answered(&http, &url, "finish", body).await["message"],
                "finished"
            );
            id
        })
    });
    let pops: Vec<_> = pops.collect();
    let ids: Vec<String> = (0..HELD).map(|id| id.to_string()).collect();
    for some in ids.chunks(50) {
        join_all(some.iter().map(|id| queue.push("a", id))).await;
    }
    let popped: HashSet<String> = join_all(pops)
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    assert_eq!(popped, ids.into_iter().collect());
    let stats = site.client.stats(&kind(&site, "a")).await.unwrap();
    assert_eq!((stats.done, stats.lapsed), (HELD as u64, 0));
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_stop_ends_the_calls_of_waiting_consumers() {
    let site = Site::new("classic-stop").await;
    let queue = Queue::start(&site);
    let pops = (0..20).map(|_| {
        let (http, url) = (queue.http.clone(), queue.url.clone());
        tokio::spawn(async move { answered(&http, &url, "pop", "{\"topic\":\"a\"}".into()).await })
    });
    let pops: Vec<_> = pops.collect();
    // At least one of them has waited.
    queue.push("a", "1").await;
    eventually("one is served", async || {
        pops.iter().any(|pop| pop.is_finished()).then_some(())
    })
    .await;
    queue.finish("1").await;
    // The others have been heard by now, or are refused a connection, which is allowed on a busy
    // machine.
    tokio::time::sleep(ms(300)).await;
    let Queue { process, .. } = queue;
    process.stop();
    let answers = join_all(pops).await;
    let (empty, served): (Vec<&Value>, Vec<&Value>) = answers
        .iter()
        .flatten()
        .partition(|answer| answer["data"].is_null());
    assert_eq!(served.len(), 1);
    assert!(!empty.is_empty());
    assert!(empty.iter().all(|answer| answer["code"] == 0), "{empty:?}");
    site.assert_balanced().await;
}
