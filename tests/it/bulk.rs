//! Many jobs in one call of schedule_many.

use std::time::Duration;

use keyfall::embedded::Embedded;
use keyfall::{Client, ErrorKind, JobState, NewJob, Placed, Router, Scheduled};

use crate::runs::recorder;
use crate::site::{HOUR, Site};

fn placed(answers: &[keyfall::Result<Option<Scheduled>>]) -> Vec<Option<Placed>> {
    let placed = answers.iter().map(|answer| answer.as_ref().unwrap());
    placed
        .map(|answer| answer.map(|scheduled| scheduled.placed))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tens_of_thousands_are_answered_in_order() {
    let site = Site::new("bulk-many").await;
    let keys: Vec<String> = site.keys(30_000).collect();
    let due = |n: usize| HOUR + Duration::from_secs(n as u64);
    let jobs = keys
        .iter()
        .zip(0..)
        .map(|(key, n)| NewJob::new(key, &n).after(due(n)));
    let answers = site.client.schedule_many(jobs).await;
    assert_eq!(answers.len(), keys.len());
    let dues: Vec<_> = answers
        .iter()
        .map(|answer| answer.as_ref().unwrap().unwrap().due)
        .collect();
    // Each job is due a second after the job before it, give or take the duration of the call.
    assert!(
        dues.windows(100).all(|some| some[0] < some[99]),
        "answers in order"
    );
    let stats = site.stats().await;
    assert_eq!((stats.accepted, stats.pending), (30_000, 30_000));
    for n in [0, 255, 256, 29_999] {
        let view = site.view(&keys[n]).await;
        assert_eq!((view.json::<usize>().unwrap(), view.due()), (n, dues[n]));
    }
    site.assert_balanced().await;
}

#[tokio::test]
async fn an_invalid_job_fails_alone_and_kinds_may_be_mixed() {
    let site = Site::new("bulk-mixed").await;
    let client = Client::builder(&site.url)
        .payload_limit(10)
        .connect()
        .await
        .unwrap();
    let other = format!("{}:other:kind:1", site.app);
    let jobs = [
        NewJob::new(site.key(1), "a")
            .header("tenant", "acme")
            .attempts(3),
        NewJob::new("no key", "b"),
        NewJob::from_bytes(&other, vec![0, 10, 255]).after(HOUR),
        NewJob::from_bytes(site.key(2), vec![0; 11]),
        NewJob::new(site.key(3), "c").after(Duration::MAX),
        NewJob::new(site.key(4), "d").attempts(0),
        NewJob::new(site.key(5), "e"),
    ];
    let answers = client.schedule_many(jobs).await;
    let kinds: Vec<_> = answers
        .iter()
        .map(|answer| answer.as_ref().err().map(keyfall::Error::kind))
        .collect();
    let expected = [
        None,
        Some(ErrorKind::InvalidKey),
        None,
        Some(ErrorKind::InvalidPayload),
        Some(ErrorKind::InvalidTime),
        Some(ErrorKind::InvalidSetting),
        None,
    ];
    assert_eq!(kinds, expected);
    assert_eq!(site.stats().await.accepted, 2);
    let view = site.view(&site.key(1)).await;
    assert_eq!(
        (view.headers().get("tenant"), view.max_attempts()),
        (Some("acme"), Some(3))
    );
    assert_eq!(&site.view(&other).await.payload()[..], [0, 10, 255]);
    let none: [NewJob; 0] = [];
    assert!(client.schedule_many(none).await.is_empty());
    site.assert_balanced().await;
}

#[tokio::test]
async fn repeated_keys_count_as_calls_in_order() {
    let site = Site::new("bulk-twice").await;
    let keys: Vec<String> = site.keys(1000).collect();
    let jobs = (0..3).flat_map(|round| {
        keys.iter()
            .map(move |key| NewJob::new(key, &round).after(HOUR))
    });
    let answers = placed(&site.client.schedule_many(jobs).await);
    assert!(
        answers[..1000]
            .iter()
            .all(|placed| *placed == Some(Placed::Created))
    );
    assert!(
        answers[1000..]
            .iter()
            .all(|placed| *placed == Some(Placed::Replaced))
    );
    for key in keys.iter().step_by(97) {
        assert_eq!(
            site.view(key).await.json::<u32>().unwrap(),
            2,
            "the last one wins"
        );
    }
    let stats = site.stats().await;
    assert_eq!(
        (stats.accepted, stats.replaced, stats.pending),
        (3000, 2000, 1000)
    );
    site.assert_balanced().await;
}

#[tokio::test]
async fn conditions_hold_for_each_job_separately() {
    let site = Site::new("bulk-if").await;
    let [old, new, neither] = ["old", "new", "neither"].map(|id| site.key(id));
    site.client.schedule(&old, "old").after(HOUR).await.unwrap();
    let job = |key: &String| NewJob::new(key, "bulk").after(HOUR);
    let jobs = [
        job(&old).if_absent(),
        job(&new).if_absent(),
        job(&neither).if_present(),
        job(&old).if_present(),
    ];
    let answers = placed(&site.client.schedule_many(jobs).await);
    assert_eq!(
        answers,
        [None, Some(Placed::Created), None, Some(Placed::Replaced)]
    );
    assert!(site.client.get(&neither).await.unwrap().is_none());
    site.assert_balanced().await;
}

#[tokio::test]
async fn large_payloads_travel_in_smaller_batches_and_all_run() {
    let site = Site::new("bulk-large").await;
    let (log, mut runs) = recorder();
    let jobs = site
        .keys(40)
        .map(|key| NewJob::from_bytes(key, vec![7; 300_000]));
    let answers = site.client.schedule_many(jobs).await;
    assert_eq!(placed(&answers), [Some(Placed::Created); 40]);
    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    for job in runs.take(40).await {
        assert_eq!(job.payload().len(), 300_000);
    }
    site.all_ended().await;
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_refusing_or_missing_server_fails_each_job_and_the_call_ends() {
    let mut server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "bulk-gone").await;
    let timeout = Duration::from_secs(1);
    let client = Client::builder(&site.url)
        .call_timeout(timeout)
        .connect()
        .await
        .unwrap();
    let jobs = || site.keys(5000).map(|key| NewJob::new(key, "").after(HOUR));
    let _: String = site.command(&["CONFIG", "SET", "maxmemory", "1"]).await;
    for answer in client.schedule_many(jobs()).await {
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::Full);
    }
    let _: String = site.command(&["CONFIG", "SET", "maxmemory", "0"]).await;
    assert_eq!(site.stats().await.accepted, 0);
    site.assert_balanced().await;

    server.kill_server().await.unwrap();
    let began = std::time::Instant::now();
    let answers = client.schedule_many(jobs()).await;
    assert_eq!(answers.len(), 5000);
    for answer in answers {
        let error = answer.unwrap_err();
        assert!(error.is_retryable(), "{error}");
    }
    // The twenty batches did not wait for each other, even if the machine stood still for long.
    assert!(began.elapsed() < 15 * timeout, "{:?}", began.elapsed());
}

/// A client repeats what may be repeated.
#[tokio::test]
async fn a_postponement_by_a_while_that_fails_on_the_way_is_not_one_to_repeat() {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "bulk-half").await;
    for kind in ["a", "b"] {
        let key = format!("bulk-half:it:{kind}:1");
        site.client.schedule(key, "").after(HOUR).await.unwrap();
    }
    let before = site.view("bulk-half:it:a:1").await.due();
    let due = "keyfall:{bulk-half:it:b/0}:due";
    let _: () = site.command(&["RENAME", due, "aside"]).await;
    let _: () = site.command(&["SET", due, "of another program"]).await;

    let jobs = site.client.prefix("bulk-half:it:");
    let error = jobs.postpone().by(HOUR).dry_run().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged);
    let jobs = site.client.prefix("bulk-half:it:");
    let error = jobs.postpone().by(HOUR).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
    assert!(error.to_string().contains("1 jobs were done"), "{error}");
    assert_eq!(site.view("bulk-half:it:a:1").await.due(), before + HOUR);
    let jobs = site.client.prefix("bulk-half:it:");
    let error = jobs.postpone().after(HOUR).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged);

    let _: () = site.command(&["RENAME", "aside", due]).await;
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn simultaneous_and_dropped_calls_leave_the_books_balanced() {
    let site = Site::new("bulk-crowd").await;
    let tasks = (0..6).map(|task| {
        let (client, kind) = (site.client.clone(), site.kind());
        tokio::spawn(async move {
            let jobs = (0..3000).map(|n| NewJob::new(format!("{kind}:{task}-{n}"), &n).after(HOUR));
            let answers = client.schedule_many(jobs).await;
            assert!(answers.iter().all(Result::is_ok));
        })
    });
    let tasks: Vec<_> = tasks.collect();
    for _ in 0..20 {
        let jobs = site
            .keys(2000)
            .map(|key| NewJob::new(key, "dropped").after(HOUR));
        let call = site.client.schedule_many(jobs);
        let _ = tokio::time::timeout(Duration::from_millis(1), call).await;
    }
    for task in tasks {
        task.await.unwrap();
    }
    let jobs = site
        .keys(2000)
        .map(|key| NewJob::new(key, "last").after(HOUR));
    assert!(
        site.client
            .schedule_many(jobs)
            .await
            .iter()
            .all(Result::is_ok)
    );
    let view = site.view(&site.key("01999")).await;
    assert_eq!(
        (view.state(), view.json::<String>().unwrap()),
        (JobState::Pending, "last".into())
    );
    assert_eq!(site.stats().await.pending, 20_000);
    site.assert_balanced().await;
}
