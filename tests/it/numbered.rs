//! Numbered batches: sent again, by whomever, they do nothing twice.

use std::time::Duration;

use keyfall::{
    Client, ErrorKind, JobState, LaneId, NewJob, NumberedAnswer, NumberedCall, Outcome, Result,
    Router,
};

use crate::runs::eventually;
use crate::site::{HOUR, Site};

fn schedule(key: String, payload: &str) -> NumberedCall {
    NumberedCall::schedule(NewJob::new(key, payload).after(HOUR))
}

fn words(answers: Vec<Result<NumberedAnswer>>) -> Vec<NumberedAnswer> {
    answers.into_iter().map(Result::unwrap).collect()
}

const DONE: NumberedAnswer = NumberedAnswer::Done;
const NOTHING: NumberedAnswer = NumberedAnswer::Nothing;
const REPEATED: NumberedAnswer = NumberedAnswer::Repeated;

/// How many calls travel together.
const PART: usize = 32;

#[tokio::test]
async fn a_batch_that_is_sent_again_runs_nothing_twice() {
    let site = Site::new("numbered-again").await;
    let lane = LaneId::new();
    let calls = || vec![NumberedCall::schedule(NewJob::new(site.key("once"), "now"))];
    assert_eq!(
        words(site.client.send_numbered(&lane, 1, calls()).await),
        [DONE]
    );
    let worker = site.serve(Router::new().route(&site.pattern(), async || Outcome::Done));
    eventually("it has run", async || {
        (site.stats().await.done == 1).then_some(())
    })
    .await;
    // Another process goes on with what the first one has stored.
    let lane = LaneId::parse(&lane.to_string()).unwrap();
    let other = Client::connect(&site.url).await.unwrap();
    assert_eq!(words(other.send_numbered(&lane, 1, calls()).await), [DONE]);
    let next = vec![schedule(site.key("next"), "")];
    assert_eq!(words(other.send_numbered(&lane, 2, next).await), [DONE]);
    // The first process wakes up.
    let late = site.client.send_numbered(&lane, 1, calls()).await;
    assert_eq!(words(late), [REPEATED]);
    worker.stop().await;
    let stats = site.stats().await;
    assert_eq!((stats.accepted, stats.done, stats.pending), (2, 1, 1));
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_large_batch_goes_on_after_the_part_that_was_carried_out() {
    let site = Site::new("numbered-large").await;
    let lane = LaneId::new();
    let calls = |count: usize| -> Vec<NumberedCall> {
        site.keys(count).map(|key| schedule(key, "")).collect()
    };
    // As if the process had been killed after the first three parts.
    let first = site.client.send_numbered(&lane, 7, calls(3 * PART)).await;
    assert_eq!(words(first), [DONE; 3 * PART]);
    let again = words(site.client.send_numbered(&lane, 7, calls(1000)).await);
    assert_eq!(
        again[..2 * PART],
        [REPEATED; 2 * PART],
        "of these two, a later one is known"
    );
    assert_eq!(again[2 * PART..], [DONE; 1000 - 2 * PART]);
    let stats = site.stats().await;
    assert_eq!((stats.accepted, stats.replaced), (1000, 0));
    site.assert_balanced().await;
}

#[tokio::test]
async fn calls_on_one_key_are_carried_out_in_order() {
    let site = Site::new("numbered-order").await;
    let key = |id: &str| site.key(id);
    let calls = vec![
        NumberedCall::cancel(key("a")),
        schedule(key("a"), "first"),
        schedule(key("b"), "gone"),
        NumberedCall::reschedule_after(key("a"), 2 * HOUR),
        NumberedCall::cancel(key("b")),
        schedule(key("c"), "old"),
        schedule(key("c"), "new"),
        NumberedCall::reschedule_now(key("d")),
    ];
    let answers = site.client.send_numbered(&LaneId::new(), 1, calls).await;
    assert_eq!(
        words(answers),
        [NOTHING, DONE, DONE, DONE, DONE, DONE, DONE, NOTHING]
    );
    let a = site.view(&key("a")).await;
    assert_eq!(a.json::<String>().unwrap(), "first");
    let c = site.view(&key("c")).await;
    assert_eq!(c.json::<String>().unwrap(), "new");
    assert!(a.due() > c.due() + Duration::from_secs(1800));
    assert!(site.client.get(key("b")).await.unwrap().is_none());
    site.assert_balanced().await;
}

#[tokio::test]
async fn an_invalid_call_is_refused_alone() {
    let site = Site::new("numbered-invalid").await;
    let other = format!("{}:other:kind:1", site.app);
    let calls = vec![
        schedule("no key".into(), ""),
        schedule(site.key(1), ""),
        NumberedCall::cancel("a:b:c"),
        NumberedCall::reschedule_after(site.key(1), 100_000 * HOUR),
        schedule(other.clone(), ""),
    ];
    let answers = site.client.send_numbered(&LaneId::new(), 1, calls).await;
    let kinds: Vec<_> = answers
        .iter()
        .map(|it| it.as_ref().map_err(keyfall::Error::kind))
        .collect();
    assert_eq!(
        kinds,
        [
            Err(ErrorKind::InvalidKey),
            Ok(&DONE),
            Err(ErrorKind::InvalidKey),
            Err(ErrorKind::InvalidTime),
            Ok(&DONE),
        ]
    );
    assert_eq!(site.view(&other).await.state(), JobState::Pending);
    let many = (0..1001).map(|id| schedule(site.key(id), "")).collect();
    let answers = site.client.send_numbered(&LaneId::new(), 1, many).await;
    assert_eq!(answers.len(), 1001);
    let error = answers[0].as_ref().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidSetting);
    assert!(error.to_string().contains("1000 is the limit"), "{error}");
    let error = LaneId::parse("0123").unwrap_err();
    assert!(error.to_string().contains("24 hexadecimal"), "{error}");
}

/// Such as a key that an older version refuses, and a newer one accepts.
#[tokio::test]
async fn a_call_that_becomes_valid_does_not_shift_the_others() {
    let site = Site::new("numbered-valid").await;
    let lane = LaneId::new();
    let calls = |middle: NumberedCall| {
        let mut calls: Vec<NumberedCall> = site.keys(600).map(|key| schedule(key, "")).collect();
        calls.insert(100, middle);
        calls
    };
    let invalid = NumberedCall::invalid("not known here");
    let first = site.client.send_numbered(&lane, 1, calls(invalid)).await;
    let error = first[100].as_ref().unwrap_err();
    assert!(error.is_refusal() && error.to_string() == "not known here");
    assert_eq!(first.iter().filter(|it| it.is_ok()).count(), 600);
    let valid = schedule(site.key("valid"), "");
    let again = site.client.send_numbered(&lane, 1, calls(valid)).await;
    assert_eq!(words(again)[..9 * PART], [REPEATED; 9 * PART]);
    let stats = site.stats().await;
    assert_eq!((stats.accepted, stats.replaced), (600, 0));
    // A payload that travels alone does not shift them either.
    let large = schedule(site.key("large"), &"x".repeat(10_000));
    words(site.client.send_numbered(&lane, 2, calls(large)).await);
    assert_eq!(site.stats().await.pending, 601);
    let far = 1 << 31;
    let answers = site.client.send_numbered(&lane, far, vec![]).await;
    assert!(answers.is_empty());
    let one = vec![schedule(site.key(1), "")];
    let error = site.client.send_numbered(&lane, far, one).await;
    let error = error[0].as_ref().unwrap_err();
    assert!(error.to_string().contains("is the limit"), "{error}");
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_batch_that_is_repeated_after_a_reshard_loses_nothing() {
    let site = Site::new("numbered-repeat").await;
    let lane = LaneId::new();
    let calls =
        |count| -> Vec<NumberedCall> { site.keys(count).map(|key| schedule(key, "")).collect() };
    // As if the process had been killed after two parts, before the kind got more shards.
    words(site.client.send_numbered(&lane, 1, calls(2 * PART)).await);
    site.client.reshard(&site.kind(), 4).await.unwrap();
    let other = Client::connect(&site.url).await.unwrap();
    words(other.send_numbered(&lane, 1, calls(1000)).await);
    assert_eq!(site.stats().await.pending, 1000);
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_batch_finds_its_jobs_after_a_reshard() {
    let site = Site::new("numbered-reshard").await;
    let lane = LaneId::new();
    // This client has not heard of the new layout.
    let old = Client::connect(&site.url).await.unwrap();
    let calls = || {
        site.keys(40)
            .map(|key| schedule(key, ""))
            .collect::<Vec<_>>()
    };
    words(old.send_numbered(&lane, 1, calls()).await);
    site.client.reshard(&site.kind(), 4).await.unwrap();
    let cancels = site.keys(40).map(NumberedCall::cancel).collect();
    assert_eq!(
        words(old.send_numbered(&lane, 2, cancels).await),
        [DONE; 40]
    );
    let stats = site.stats().await;
    assert_eq!((stats.pending, stats.cancelled), (0, 40));
    site.assert_balanced().await;
}
