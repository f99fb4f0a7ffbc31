//! A job with its own retry policy, attempts, timeout and headers.

use std::time::Duration;

use keyfall::{ErrorKind, Handler, JobState, Outcome, RetryPolicy, Router};

use crate::limits::assert_refused;
use crate::runs::recorder;
use crate::site::{HOUR, Site, assert_about, fails_slowly, ms};

fn at_once() -> RetryPolicy {
    RetryPolicy::fixed(Duration::ZERO).unwrap()
}

#[tokio::test]
async fn the_policy_of_a_job_overrides_its_route() {
    let site = Site::new("ter-policy").await;
    let (log, mut runs) = recorder();
    let handler = log.then(|_| Outcome::retry("no"));
    let router = Router::new().route(&site.pattern(), handler.retry(RetryPolicy::none()));
    let key = site.key(1);
    let policy = RetryPolicy::ladder([Duration::ZERO, HOUR]).unwrap();
    let call = site.client.schedule(&key, "").retry(policy.clone());
    call.after(HOUR).await.unwrap();
    let view = site.view(&key).await;
    assert_eq!(
        (view.retry(), view.max_attempts(), view.timeout()),
        (Some(&policy), None, None)
    );
    let worker = site.serve(router);
    site.client.fire_now(&key).await.unwrap();
    let jobs = runs.take(2).await;
    let attempts: Vec<_> = jobs
        .iter()
        .map(|job| (job.attempt(), job.max_attempts()))
        .collect();
    assert_eq!(attempts, [(1, 3), (2, 3)]);
    let view = site.reaches(&key, JobState::Retrying).await;
    assert_about(view.due(), HOUR);
    // The policy stays with the job to its end.
    assert_eq!(view.retry(), Some(&policy));
    site.client.fire_now(&key).await.unwrap();
    assert_eq!(runs.next().await.attempt(), 3);
    assert_eq!(site.reaches(&key, JobState::Dead).await.attempts(), 3);
    // A job without a policy has the policy of its route.
    site.client.schedule(site.key(2), "").await.unwrap();
    assert_eq!(runs.next().await.max_attempts(), 1);
    site.reaches(&site.key(2), JobState::Dead).await;
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn the_attempts_of_a_job_limit_any_policy() {
    let site = Site::new("ter-attempts").await;
    let (log, mut runs) = recorder();
    let handler = log.then(|_| Outcome::retry("no"));
    let router = Router::new().route(&site.pattern(), handler.retry(at_once()));
    let worker = site.serve(router);
    let (of_route, of_job) = (site.key("of-route"), site.key("of-job"));
    let call = site.client.schedule(&of_route, "").attempts(2);
    call.await.unwrap();
    for job in runs.take(2).await {
        assert_eq!(job.max_attempts(), 2);
    }
    let call = site.client.schedule(&of_job, "").attempts(3);
    call.retry(at_once().attempts(5)).await.unwrap();
    for job in runs.take(3).await {
        assert_eq!(job.max_attempts(), 3);
    }
    for (key, attempts) in [(of_route, 2), (of_job, 3)] {
        let letter = site.reaches(&key, JobState::Dead).await;
        assert_eq!(
            (letter.attempts(), letter.max_attempts()),
            (attempts, Some(attempts))
        );
    }
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn the_timeout_of_a_job_overrides_its_route() {
    let site = Site::new("ter-timeout").await;
    let (log, mut runs) = recorder();
    let handler = log.until_stopped(|| Outcome::retry("told to stop"));
    let router = Router::new().route(&site.pattern(), handler.timeout(HOUR).retry(fails_slowly()));
    let worker = site.serve(router);
    let key = site.key(1);
    let call = site.client.schedule(&key, "").timeout(ms(50));
    call.await.unwrap();
    runs.next().await;
    let view = site.reaches(&key, JobState::Retrying).await;
    assert_eq!(view.timeout(), Some(ms(50)));
    assert_eq!(view.last_error(), Some("told to stop"));
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn headers_survive_retries_updates_moves_and_death() {
    let site = Site::new("ter-headers").await;
    let (log, mut runs) = recorder();
    let handler = log.then(|job| match job.attempt() {
        1 => Outcome::retry("once more"),
        _ => Outcome::bury("enough"),
    });
    let worker = site.serve(Router::new().route(&site.pattern(), handler.retry(at_once())));
    let (client, key) = (&site.client, site.key(1));
    let call = client.schedule(&key, "").header("tenant", "acme");
    call.header("trace", "7f").after(HOUR).await.unwrap();
    client.update_payload(&key, "other").await.unwrap();
    client.reschedule(&key).await.unwrap();
    let mut jobs = runs.take(2).await;
    site.reaches(&key, JobState::Dead).await;
    client.requeue(&key).await.unwrap();
    jobs.extend(runs.take(2).await);
    for job in jobs {
        let headers: Vec<_> = job.headers().iter().collect();
        assert_eq!(headers, [("tenant", "acme"), ("trace", "7f")]);
        assert_eq!(&job.payload()[..], b"\"other\"");
    }
    site.reaches(&key, JobState::Dead).await;
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn terms_and_headers_beyond_their_limits_are_refused() {
    let site = Site::new("ter-limits").await;
    let key = site.key(1);
    let call = || site.client.schedule(&key, "").after(HOUR);
    let setting = ErrorKind::InvalidSetting;
    assert_refused(
        call().attempts(0).await,
        setting,
        &["`attempts`", "1 or more", &key],
    );
    let too_long = 3654 * 24 * HOUR;
    for timeout in [Duration::ZERO, Duration::from_micros(999), too_long] {
        let refused = call().timeout(timeout).await;
        assert_refused(refused, setting, &["`timeout`", "1 ms to 10 years", &key]);
    }
    let headers = ErrorKind::InvalidHeaders;
    let many =
        |count: u32| (0..count).fold(call(), |call, n| call.header(format!("header-{n}"), "x"));
    assert_refused(
        many(65).await,
        headers,
        &["65 headers", "limit is 64", &key],
    );
    let large = |bytes: usize| call().header("name", "x".repeat(bytes - 4));
    assert_refused(
        large(8193).await,
        headers,
        &["8193 bytes", "limit is 8192", "payload"],
    );
    assert_refused(call().header("", "x").await, headers, &["no name"]);
    assert!(site.client.get(&key).await.unwrap().is_none());
    many(64).await.unwrap();
    large(8192).attempts(1).timeout(ms(1)).await.unwrap();
    let view = site.view(&key).await;
    assert_eq!(
        (view.max_attempts(), view.timeout()),
        (Some(1), Some(ms(1)))
    );
    assert_eq!(view.headers().get("name").unwrap().len(), 8188);
    site.assert_balanced().await;
}
