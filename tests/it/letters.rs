//! Calls on the dead letters of one job.

use keyfall::embedded::Embedded;
use keyfall::{ErrorKind, JobState, Notice, Outcome, Requeued, RetryPolicy, Router};
use tokio::sync::mpsc;

use crate::runs::{eventually, recorder};
use crate::site::{HOUR, Running, Site, assert_about, ms, steps};

/// A handler that buries the job until its payload is good.
fn picky(job: &keyfall::Job) -> Outcome {
    match &job.payload()[..] {
        b"\"good\"" => Outcome::Done,
        bad => Outcome::bury(format!("{} is bad", String::from_utf8_lossy(bad))),
    }
}

#[tokio::test]
async fn a_requeued_job_gets_all_its_attempts_and_keeps_the_rest() {
    let site = Site::new("let-requeue").await;
    let (log, mut runs) = recorder();
    let twice = RetryPolicy::fixed(std::time::Duration::ZERO)
        .unwrap()
        .attempts(2);
    let handler = log.then(|_| Outcome::retry("never mind"));
    let worker = site.serve(Router::new().route(&site.pattern(), handler));
    let key = site.key(1);
    let call = site.client.schedule(&key, "kept").header("tenant", "acme");
    call.retry(twice.clone()).await.unwrap();
    let first = runs.take(2).await.remove(0);
    let dead = site.reaches(&key, JobState::Dead).await;
    assert_eq!((dead.attempts(), dead.letter()), (2, Some(1)));

    let answer = site.client.requeue(&key).after(HOUR).await.unwrap();
    let Requeued::Requeued(due) = answer else {
        panic!("{answer:?}")
    };
    assert_about(due, HOUR);
    let view = site.view(&key).await;
    assert_eq!((view.state(), view.due()), (JobState::Pending, due));
    assert_eq!(
        (view.attempts(), view.last_error(), view.letter()),
        (0, None, None)
    );
    assert_eq!(
        (view.headers().get("tenant"), view.retry()),
        (Some("acme"), Some(&twice))
    );
    assert_eq!(view.first_scheduled_at(), dead.first_scheduled_at());
    assert_eq!(steps(&view), ["failed", "buried", "requeued"]);

    site.client.fire_now(&key).await.unwrap();
    for (job, attempt) in runs.take(2).await.iter().zip(1..) {
        assert_eq!((job.attempt(), job.payload()), (attempt, first.payload()));
        assert_eq!(job.headers().get("tenant"), Some("acme"));
    }
    let dead = site.reaches(&key, JobState::Dead).await;
    assert_eq!(dead.letter(), Some(2));
    worker.stop().await;
    runs.assert_no_more();
    let stats = site.stats().await;
    assert_eq!((stats.buried, stats.requeued, stats.dead), (2, 1, 1));
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_letter_is_chosen_by_its_number_and_the_latest_without_one() {
    let site = Site::new("let-number").await;
    let (log, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), log.then(picky)));
    let (client, key) = (&site.client, site.key(1));
    assert_eq!(client.requeue(&key).await.unwrap(), Requeued::Absent);
    assert!(!client.delete_dead_letter(&key).await.unwrap());
    assert!(client.dead_letters(&key).await.unwrap().is_empty());
    client.schedule(&key, "good").after(HOUR).await.unwrap();
    assert_eq!(client.requeue(&key).await.unwrap(), Requeued::Present);
    let first = client.requeue(&key).letter(1).await.unwrap();
    assert_eq!(first, Requeued::Absent, "that letter is not there");
    client.cancel(&key).await.unwrap();
    for payload in ["a", "b", "c"] {
        client.schedule(&key, payload).await.unwrap();
        runs.next().await;
        site.all_ended().await;
    }
    let letters = client.dead_letters(&key).await.unwrap();
    let numbers: Vec<_> = letters
        .iter()
        .map(|letter| letter.letter().unwrap())
        .collect();
    assert_eq!(numbers, [3, 2, 1]);
    assert_eq!(letters[0].last_error(), Some("\"c\" is bad"));
    assert!(
        letters
            .iter()
            .all(|letter| letter.state() == JobState::Dead)
    );

    // A letter gets a corrected payload before it runs again.
    let requeue = client.requeue(&key).letter(2).after(HOUR).await.unwrap();
    assert!(matches!(requeue, Requeued::Requeued(_)), "{requeue:?}");
    assert_eq!(site.view(&key).await.json::<String>().unwrap(), "b");
    assert_eq!(client.requeue(&key).await.unwrap(), Requeued::Present);
    assert_eq!(
        client.requeue(&key).letter(2).await.unwrap(),
        Requeued::Absent
    );
    client.update_payload(&key, "good").await.unwrap();
    client.fire_now(&key).await.unwrap();
    assert_eq!(&runs.next().await.payload()[..], b"\"good\"");
    assert_eq!(site.all_ended().await.done, 1);

    assert!(!client.delete_dead_letter(&key).letter(2).await.unwrap());
    assert!(client.delete_dead_letter(&key).await.unwrap());
    assert_eq!(
        site.view(&key).await.letter(),
        Some(1),
        "the latest is gone"
    );
    assert!(client.delete_dead_letter(&key).letter(1).await.unwrap());
    assert!(client.get(&key).await.unwrap().is_none());
    worker.stop().await;
    runs.assert_no_more();
    let stats = site.stats().await;
    assert_eq!((stats.requeued, stats.deleted, stats.dead), (1, 2, 0));
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_many_simultaneous_requeues_succeeds() {
    let site = Site::new("let-race").await;
    let (log, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), log.then(picky)));
    let key = site.key(1);
    site.client.schedule(&key, "bad").await.unwrap();
    runs.next().await;
    site.reaches(&key, JobState::Dead).await;
    worker.stop().await;
    let calls = (0..20).map(|_| {
        let (client, key) = (site.client.clone(), key.clone());
        tokio::spawn(async move { client.requeue(key).after(HOUR).await.unwrap() })
    });
    let answers = futures_util::future::try_join_all(calls).await.unwrap();
    let won = |answer: &&Requeued| matches!(answer, Requeued::Requeued(_));
    assert_eq!(answers.iter().filter(won).count(), 1, "{answers:?}");
    assert_eq!(site.stats().await.requeued, 1);
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_letter_of_a_newer_version_is_left_alone() {
    let site = Site::new("let-newer").await;
    let key = site.key("1");
    let grave = format!("keyfall:{{{}/0}}:grave", site.kind());
    let dead = format!("keyfall:{{{}/0}}:dead", site.kind());
    let stats = format!("keyfall:{{{}/0}}:stats", site.kind());
    let record = "{\"v\":99}\n1763712345678\npayload";
    // So that its kind is known.
    site.client.schedule(&key, "").after(HOUR).await.unwrap();
    site.client.cancel(&key).await.unwrap();
    let _: i64 = site
        .command(&["HSET", &grave, "1", "1", "1:1", record])
        .await;
    let _: i64 = site.command(&["ZADD", &dead, "1763712345678", "1:1"]).await;
    let counted = ["HSET", &stats, "accepted", "2", "buried", "1"];
    let _: i64 = site.command(&counted).await;
    let error = site.client.requeue(&key).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Damaged);
    assert!(error.to_string().contains("version 99"), "{error}");
    assert!(site.client.delete_dead_letter(&key).await.unwrap());
    site.assert_balanced().await;
}

#[tokio::test]
async fn letters_beyond_their_age_are_trimmed_and_reported() {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "letters-age").await;
    let router = || Router::new().route(&site.pattern(), async || Outcome::bury("no"));
    let worker = site.serve(router());
    for key in site.keys(3) {
        site.client.schedule(&key, &()).await.unwrap();
        site.reaches(&key, JobState::Dead).await;
    }
    worker.stop().await;
    // A worker without a route for the kind leaves its letters alone, with any limits.
    let (tell, mut none) = mpsc::unbounded_channel();
    let other = Router::new().route(&format!("{}:it:other:*", site.app), async || {});
    let worker = site
        .worker(other.fallback(async || {}))
        .dead_letters(1, ms(1));
    let worker = Running::start(worker.on_notice(move |notice| drop(tell.send(notice.clone()))));
    let key = format!("{}:it:stray:1", site.app);
    site.client.schedule(&key, &()).await.unwrap();
    eventually("it has looked about", async || {
        site.client.get(&key).await.unwrap().is_none().then_some(())
    })
    .await;
    worker.stop().await;
    while let Ok(notice) = none.try_recv() {
        assert!(!matches!(notice, Notice::Trimmed { .. }), "{notice:?}");
    }
    // A worker with a shorter limit, and no job to bury.
    let (tell, mut notices) = mpsc::unbounded_channel();
    let worker = site.worker(router()).dead_letters(1000, ms(1));
    let worker = Running::start(worker.on_notice(move |notice| drop(tell.send(notice.clone()))));
    match notices.recv().await.unwrap() {
        Notice::Trimmed { kind, letters } => {
            assert_eq!((kind.as_str(), letters), (&*site.kind(), 3))
        }
        other => panic!("{other:?}"),
    }
    let stats = site.stats().await;
    assert_eq!((stats.buried, stats.trimmed, stats.dead), (3, 3, 0));
    worker.stop().await;
    site.assert_balanced().await;
}
