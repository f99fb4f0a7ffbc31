//! Requests for jobs, and the outcome of each answer, in a worker.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use keyfall::{Handler, JobState, Limit, RetryPolicy, Router, target};

use super::receiver::{Receiver, says};
use crate::runs::eventually;
use crate::site::{HOUR, Site, assert_about, ms, steps};

#[tokio::test]
async fn a_request_has_all_that_a_handler_gets() {
    let site = Site::new("cb-sent").await;
    let mut receiver = Receiver::always("204 No Content", "").await;
    let url = receiver.url("/orders?shop=7");
    let worker = site.serve(Router::new().route(&site.pattern(), target::http(url)));
    let key = site.key("order-7/ä");
    let call = site.client.schedule(&key, &serde_json::json!({"order": 7}));
    let call = call
        .header("traceparent", "00-4bf9-00f0-01")
        .header("host", "elsewhere");
    call.after(ms(50)).await.unwrap();
    let received = receiver.next().await;
    assert_eq!(received.path, "/orders?shop=7");
    assert_eq!(received.body, br#"{"order":7}"#);
    assert_eq!(received.header("host"), receiver.address.to_string());
    assert_eq!(received.header("content-type"), "application/json");
    assert_eq!(received.header("traceparent"), "00-4bf9-00f0-01");
    assert!(received.header("user-agent").starts_with("keyfall/"));
    assert_eq!(
        received.header("keyfall-key"),
        "cb-sent:it:job:order-7/%C3%A4"
    );
    assert_eq!(received.header("keyfall-attempt"), "1");
    assert_eq!(received.header("keyfall-max-attempts"), "10");
    for name in ["keyfall-due", "keyfall-first-scheduled"] {
        let time: jiff::Timestamp = received.header(name).parse().unwrap();
        assert_about(SystemTime::from(time), Duration::ZERO);
    }
    for name in ["keyfall-lag-ms", "keyfall-fence"] {
        received.header(name).parse::<u64>().unwrap();
    }
    assert!(!received.headers.contains_key("webhook-signature"));
    site.all_ended().await;
    assert_eq!(site.stats().await.done, 1);
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn retries_repeat_the_message_id_and_differ_in_the_attempt() {
    let site = Site::new("cb-retried").await;
    let mut receiver = Receiver::start(|received| match received.header("keyfall-attempt") {
        "3" => says("200 OK", "", ""),
        _ => says("500 Internal Server Error", "", "the shop is\nclosed"),
    })
    .await;
    let target = target::http(receiver.url("/")).secret(super::signing::SECRET);
    let quickly = RetryPolicy::ladder([Duration::ZERO, HOUR]).unwrap();
    let worker = site.serve(Router::new().route(&site.pattern(), target.retry(quickly)));
    let key = site.key(1);
    site.client.schedule(&key, "").await.unwrap();
    let (first, second) = (receiver.next().await, receiver.next().await);
    let view = site.reaches(&key, JobState::Retrying).await;
    assert_eq!(view.attempts(), 2);
    let error = format!(
        "{} answered 500 Internal Server Error: the shop is closed",
        receiver.address
    );
    assert_eq!(view.last_error(), Some(&*error));
    site.client.fire_now(&key).await.unwrap();
    let third = receiver.next().await;
    let all = [&first, &second, &third];
    let distinct = |name: &str| {
        all.map(|it| it.header(name))
            .into_iter()
            .collect::<BTreeSet<_>>()
    };
    assert_eq!(distinct("webhook-id").len(), 1);
    assert_eq!(distinct("keyfall-first-scheduled").len(), 1);
    assert_eq!(distinct("keyfall-attempt").len(), 3);
    assert_eq!(distinct("keyfall-fence").len(), 3);
    assert_eq!(distinct("keyfall-idempotency-key").len(), 1);
    site.all_ended().await;
    // All requests used one connection.
    assert_eq!(receiver.connections(), 1);
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn an_answer_of_410_buries_the_job() {
    let site = Site::new("cb-gone").await;
    let receiver = Receiver::always("410 Gone", "").await;
    let worker = site.serve(Router::new().route(&site.pattern(), target::http(receiver.url("/"))));
    let key = site.key(1);
    site.client.schedule(&key, "").await.unwrap();
    let view = site.reaches(&key, JobState::Dead).await;
    assert_eq!(view.attempts(), 1);
    let reason = format!("{} answered 410 Gone: so it is", receiver.address);
    assert_eq!(view.last_error(), Some(&*reason));
    worker.stop().await;
    site.assert_balanced().await;
}

/// Two workers: the answer that one of them gets holds the jobs of both.
#[tokio::test]
async fn a_receiver_that_asks_for_a_pause_holds_all_jobs_of_the_kind() {
    let site = Site::new("cb-hold").await;
    let mut receiver =
        Receiver::start(
            |received| match received.header("keyfall-key").ends_with(":first") {
                true => says("429 Too Many Requests", "retry-after: 1800\r\n", ""),
                false => says("200 OK", "", ""),
            },
        )
        .await;
    let target = target::http(receiver.url("/")).hold_kind(HOUR);
    let workers = [(); 2].map(|()| {
        let router = Router::new().route(&site.pattern(), target.clone());
        site.serve(router)
    });
    let limit = Limit::new().concurrency(5);
    site.client.limit(&site.kind(), limit).await.unwrap();
    site.client.schedule(site.key("first"), "").await.unwrap();
    receiver.next().await;
    let is_held = async || {
        let limit = site.client.get_limit(&site.kind()).await.unwrap().unwrap();
        (limit.room == 0 && limit.leased == 0).then_some(())
    };
    for id in ["second", "third"] {
        // The hold is under way: the first of them may start before it.
        site.client.schedule(site.key(id), "").await.unwrap();
        eventually("the kind is on hold, and idle", is_held).await;
    }
    let limit = site.client.get_limit(&site.kind()).await.unwrap().unwrap();
    assert!(limit.held() >= 1 && limit.room == 0, "{limit:?}");
    let next = limit.next_start.unwrap();
    assert!(next > SystemTime::now() + ms(1_500_000), "{limit:?}");
    let job = site.client.get(site.key("third")).await.unwrap().unwrap();
    assert_eq!((job.state(), job.attempts()), (JobState::Pending, 0));
    // Setting the limit anew ends it.
    site.client.limit(&site.kind(), limit.limit).await.unwrap();
    let ended = async || (site.stats().await.done == 2).then_some(());
    eventually("the other jobs ran", ended).await;
    for worker in workers {
        worker.stop().await;
    }
    site.assert_balanced().await;
}

/// The delay that an answer with this `Retry-After` gives a job.
async fn asked(app: &str, status: &'static str, after: String, ahead: Duration) {
    let site = Site::new(app).await;
    let head = format!("retry-after: {after}\r\n");
    let receiver = Receiver::start(move |_| says(status, &head, "")).await;
    let policy = RetryPolicy::ladder([60 * Duration::from_secs(10), 2 * HOUR]).unwrap();
    let target = target::http(receiver.url("/")).retry(policy);
    let worker = site.serve(Router::new().route(&site.pattern(), target));
    let key = site.key(1);
    site.client.schedule(&key, "").await.unwrap();
    crate::runs::eventually("it has failed", async || {
        let view = site.client.get(&key).await.unwrap()?;
        steps(&view).contains(&"failed").then_some(view)
    })
    .await;
    assert_about(site.view(&key).await.due(), ahead);
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn retry_after_delays_the_retry_within_the_policy() {
    let in_an_hour = jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1);
    let date = in_an_hour.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
    asked("cb-later", "429 Too Many Requests", "3600".into(), HOUR).await;
    asked("cb-date", "503 Service Unavailable", date, HOUR).await;
    asked("cb-soon", "503 Service Unavailable", "1".into(), HOUR / 6).await;
    asked("cb-never", "500 Oh", "99999999".into(), 2 * HOUR).await;
}

#[tokio::test]
async fn a_job_can_bring_its_own_url_ladder_and_timeout() {
    let site = Site::new("cb-own").await;
    let mut route = Receiver::always("200 OK", "").await;
    let mut own = Receiver::start(|received| match received.header("keyfall-attempt") {
        "1" => super::receiver::Reply::Hangs,
        _ => says("500 Oh", "", ""),
    })
    .await;
    let target = target::http(route.url("/route"))
        .job_urls([own.url("")])
        .networks(["127.0.0.0/8"]);
    let worker = site.serve(Router::new().route(&site.pattern(), target));
    let (key, plain) = (site.key("own"), site.key("plain"));
    let call = site
        .client
        .schedule(&key, "")
        .header("url", own.url("/own"));
    let call = call
        .timeout(ms(3000))
        .retry(RetryPolicy::fixed(ms(10)).unwrap().attempts(2));
    call.await.unwrap();
    site.client.schedule(&plain, "").await.unwrap();
    let view = site.reaches(&key, JobState::Dead).await;
    assert_eq!(view.attempts(), 2);
    for _ in 0..2 {
        let received = own.next().await;
        assert_eq!(received.path, "/own");
        assert_eq!(received.header("keyfall-max-attempts"), "2");
        assert!(!received.headers.contains_key("url"));
    }
    assert_eq!(route.next().await.header("keyfall-key"), plain);
    site.all_ended().await;
    assert!(own.rest().is_empty() && route.rest().is_empty());
    worker.stop().await;
    site.assert_balanced().await;
}
