//! Refused values: each error names the field, the rule and the remedy.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use keyfall::{Cancelled, Client, ClientBuilder, Error, ErrorKind, NewJob, Router, Worker};

use crate::runs::recorder;
use crate::site::{HOUR, Site, ms};

#[track_caller]
pub(crate) fn assert_refused<T: std::fmt::Debug>(
    result: Result<T, Error>,
    kind: ErrorKind,
    names: &[&str],
) {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    assert!(!error.is_retryable());
    for part in names {
        assert!(error.to_string().contains(part), "{part:?} in {error}");
    }
}

#[tokio::test]
async fn a_value_beyond_its_limit_is_refused_with_the_rule() {
    let site = Site::new("pro-limits").await;
    let small = Client::builder(&site.url).payload_limit(10);
    let small = small.connect().await.unwrap();
    let key = site.key(1);
    small.schedule_bytes(&key, vec![0; 10]).await.unwrap();
    assert_refused(
        small.schedule_bytes(&key, vec![0; 11]).await,
        ErrorKind::InvalidPayload,
        &["11 bytes", "the limit is 10", "payload_limit", &key],
    );
    let large = vec![7; 1024 * 1024];
    site.client
        .schedule_bytes(&key, large.clone())
        .after(HOUR)
        .await
        .unwrap();
    assert_eq!(site.view(&key).await.payload()[..], large);
    assert_refused(
        site.client
            .schedule_bytes(&key, vec![0; 1024 * 1024 + 1])
            .await,
        ErrorKind::InvalidPayload,
        &["1048577 bytes"],
    );
    assert_refused(
        small.update_payload_bytes(&key, vec![0; 11]).await,
        ErrorKind::InvalidPayload,
        &["11 bytes", "the limit is 10", &key],
    );
    let unwritable = std::collections::HashMap::from([((1, 2), 3)]);
    assert_refused(
        site.client.update_payload(&key, &unwritable).await,
        ErrorKind::InvalidPayload,
        &["cannot be written as JSON"],
    );
    assert_refused(
        site.client.schedule(&key, &unwritable).await,
        ErrorKind::InvalidPayload,
        &["cannot be written as JSON"],
    );

    let days = |count: u32| count * 24 * HOUR;
    let far = site.client.schedule(&key, "").after(days(3653)).await;
    far.unwrap();
    assert_refused(
        site.client.schedule(&key, "").after(days(3654)).await,
        ErrorKind::InvalidTime,
        &["10 years"],
    );
    let too_far = SystemTime::now() + days(3655);
    assert_refused(
        site.client.schedule(&key, "").at(too_far).await,
        ErrorKind::InvalidTime,
        &["10 years"],
    );
    let before = UNIX_EPOCH - Duration::from_secs(1);
    assert_refused(
        site.client.schedule(&key, "").at(before).await,
        ErrorKind::InvalidTime,
        &["1970"],
    );
    assert_refused(
        site.client.reschedule(&key).at(before).await,
        ErrorKind::InvalidTime,
        &["1970"],
    );
    assert_refused(
        site.client.reschedule(&key).after(Duration::MAX).await,
        ErrorKind::InvalidTime,
        &["10 years"],
    );
    assert_refused(
        site.client.requeue(&key).after(Duration::MAX).await,
        ErrorKind::InvalidTime,
        &["10 years"],
    );
    // Refused calls changed nothing.
    let view = site.view(&key).await;
    assert_eq!((&view.payload()[..], view.steps().len()), (&b"\"\""[..], 0));
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_malformed_job_key_is_refused_by_every_call() {
    let site = Site::new("pro-keys").await;
    let long = format!("a:b:c:{}", "x".repeat(257));
    let cases: [(&str, &[&str]); 9] = [
        ("", &["1 segment", "four"]),
        ("a:b:c", &["3 segments", "four"]),
        ("a:b:c:d:e", &["5 segments", "four"]),
        ("a::c:d", &["`module` is empty"]),
        ("ä:b:c:d", &["`app`", "ASCII"]),
        ("a:b:c:d e", &["`id`", "white space"]),
        ("a:b:c:*", &["`id`", "'*'"]),
        ("a:b:c:{d}", &["`id`"]),
        (&long, &["257 bytes", "256"]),
    ];
    let client = &site.client;
    for (key, rule) in cases {
        let kind = ErrorKind::InvalidKey;
        assert_refused(client.schedule(key, "").await, kind, rule);
        assert_refused(client.schedule(key, "").if_absent().await, kind, rule);
        assert_refused(client.reschedule(key).await, kind, rule);
        assert_refused(client.cancel(key).await, kind, rule);
        assert_refused(client.get(key).await, kind, rule);
        assert_refused(client.schedule(key, "").if_present().await, kind, rule);
        assert_refused(client.fire_now(key).await, kind, rule);
        assert_refused(client.update_payload(key, "").await, kind, rule);
        assert_refused(client.requeue(key).await, kind, rule);
        assert_refused(client.delete_dead_letter(key).await, kind, rule);
        assert_refused(client.dead_letters(key).await, kind, rule);
        let mut many = client.schedule_many([NewJob::new(key, "")]).await;
        assert_refused(many.remove(0), kind, rule);
    }
    assert_refused(
        client.stats("a:b").await,
        ErrorKind::InvalidKey,
        &["2 segments", "three"],
    );
    // All characters that an id may hold work everywhere.
    let odd = site.key("Ünï-©ode@example.org/42?x=%20&y='\"\\[]()+#~|");
    client.schedule(&odd, "").after(HOUR).await.unwrap();
    assert_eq!(site.view(&odd).await.key().as_str(), odd);
    assert_eq!(client.cancel(&odd).await.unwrap(), Cancelled::Cancelled);
    site.assert_balanced().await;
}

#[tokio::test]
async fn invalid_settings_stop_the_start() {
    let site = Site::new("pro-settings").await;
    let kind = ErrorKind::InvalidSetting;
    let client =
        |change: fn(ClientBuilder) -> ClientBuilder| change(Client::builder(&site.url)).connect();
    let (zero, long) = (Duration::ZERO, Duration::from_secs(3601));
    for (result, names) in [
        (client(|b| b.namespace("")).await, ["namespace", "1 to 64"]),
        (client(|b| b.namespace("{x}")).await, ["namespace", "ASCII"]),
        (client(|b| b.payload_limit(0)).await, ["payload_limit", "0"]),
        (
            client(|b| b.call_timeout(Duration::ZERO)).await,
            ["call_timeout", "1 ms"],
        ),
        (
            client(|b| b.connect_timeout(Duration::ZERO)).await,
            ["connect_timeout", "1 ms"],
        ),
        (
            client(|b| b.response_timeout(Duration::from_secs(3601))).await,
            ["response_timeout", "1 h"],
        ),
        (
            Client::connect("http://localhost").await,
            ["URL", "redis://"],
        ),
    ] {
        assert_refused(result, kind, &names);
    }

    let worker = |change: &dyn Fn(Worker) -> Worker| {
        let (log, _) = recorder();
        let router = Router::new().route(&site.pattern(), log.done());
        change(site.worker(router)).run_until(std::future::pending())
    };
    for (result, names) in [
        (
            worker(&|w| w.concurrency(0)).await,
            ["concurrency", "1 or more"],
        ),
        (worker(&|w| w.lease(ms(999))).await, ["lease", "1 s"]),
        (worker(&|w| w.lease(24 * long)).await, ["lease", "1 day"]),
        (worker(&|w| w.timeout(zero)).await, ["timeout", "zero"]),
        (
            worker(&|w| w.dead_letters(0, HOUR)).await,
            ["dead_letters", "at least one"],
        ),
    ] {
        assert_refused(result, kind, &names);
    }
}
