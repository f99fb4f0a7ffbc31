//! What schedule, reschedule, cancel and get do in each state of a job.

use std::future::IntoFuture;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::try_join_all;
use keyfall::{
    Cancelled, Client, ClientBuilder, Error, ErrorKind, Handler, IfAbsent, JobState, JobView,
    Outcome, Placed, Rescheduled, RetryPolicy, Router, Worker,
};

use crate::runs::{Gate, ids, recorder};
use crate::site::{HOUR, Running, Site, ms, shared_redis};

const MINUTE: Duration = Duration::from_secs(60);

/// The time lies about so far ahead; a minute more or less is the same.
#[track_caller]
fn assert_about(due: SystemTime, ahead: Duration) {
    let expected = SystemTime::now() + ahead;
    let apart = due
        .duration_since(expected)
        .unwrap_or_else(|e| e.duration());
    assert!(apart < MINUTE, "{apart:?} apart");
}

fn present(answer: IfAbsent) -> JobView {
    match answer {
        IfAbsent::Present(job) => *job,
        other => panic!("{other:?}"),
    }
}

fn steps(view: &JobView) -> Vec<&str> {
    view.steps().iter().map(|step| step.what.as_str()).collect()
}

fn fails_slowly() -> RetryPolicy {
    RetryPolicy::fixed(HOUR).unwrap()
}

#[tokio::test]
async fn the_newest_schedule_wins_with_its_payload_its_time_and_its_headers() {
    let site = Site::new("pro-newest").await;
    let key = site.key(1);
    let first = site.client.schedule(&key, "old").header("a", "1");
    let first = first.after(HOUR).await.unwrap();
    assert_eq!(first.placed, Placed::Created);
    assert_about(first.due, HOUR);
    let second = site.client.schedule(&key, "new").header("b", "2");
    let second = second.after(2 * HOUR).await.unwrap();
    assert_eq!(second.placed, Placed::Replaced);
    assert_about(second.due, 2 * HOUR);
    let view = site.view(&key).await;
    assert_eq!(view.json::<String>().unwrap(), "new");
    assert_eq!((view.state(), view.due()), (JobState::Pending, second.due));
    assert_eq!(
        view.headers().iter().collect::<Vec<_>>(),
        [("b", "2")],
        "headers are replaced too"
    );

    let (log, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    let third = site.client.schedule(&key, "newest").await.unwrap();
    assert_eq!(third.placed, Placed::Replaced);
    assert_eq!(&runs.next().await.payload()[..], b"\"newest\"");
    let stats = site.all_ended().await;
    assert_eq!((stats.accepted, stats.replaced, stats.done), (3, 2, 1));
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn if_absent_answers_with_whatever_job_is_there() {
    let site = Site::new("pro-absent").await;
    let (log, mut runs) = recorder();
    let gate = Gate::closed();
    let key = site.key(1);
    let offer = async |payload: &str| {
        let call = site.client.schedule(&key, payload).after(HOUR);
        call.if_absent().await.unwrap()
    };

    let IfAbsent::Scheduled(scheduled) = offer("first").await else {
        panic!("there was none")
    };
    assert_eq!(scheduled.placed, Placed::Created);
    let pending = present(offer("second").await);
    assert_eq!(pending.state(), JobState::Pending);
    assert_eq!(pending.json::<String>().unwrap(), "first");

    let fail = {
        let gate = gate.clone();
        async move |job: keyfall::Job| -> Result<(), &str> {
            log.note(&job);
            gate.passed().await;
            Err("no")
        }
    };
    let policy = fails_slowly().attempts(2);
    let worker = site.serve(Router::new().route(&site.pattern(), fail.retry(policy)));
    site.client.reschedule(&key).await.unwrap();
    runs.next().await;
    assert_eq!(present(offer("third").await).state(), JobState::Running);
    gate.open();
    site.reaches(&key, JobState::Retrying).await;
    let retrying = present(offer("fourth").await);
    assert_eq!(
        (retrying.state(), retrying.attempts()),
        (JobState::Retrying, 1)
    );
    site.client.reschedule(&key).await.unwrap();
    runs.next().await;
    site.reaches(&key, JobState::Dead).await;
    // A dead letter is no job.
    assert!(matches!(offer("fifth").await, IfAbsent::Scheduled(_)));
    assert_eq!(
        site.view(&key).await.json::<String>().unwrap(),
        "fifth",
        "the job comes before the letter"
    );
    assert_eq!(
        site.client.cancel(&key).await.unwrap(),
        Cancelled::Cancelled
    );
    worker.stop().await;
    runs.assert_no_more();
    let stats = site.stats().await;
    assert_eq!((stats.accepted, stats.dead, stats.cancelled), (2, 1, 1));
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_job_is_rescheduled_forwards_and_back() {
    let site = Site::new("pro-move").await;
    let (log, mut runs) = recorder();
    let key = site.key(1);
    let client = &site.client;
    assert_eq!(
        client.reschedule(&key).after(HOUR).await.unwrap(),
        Rescheduled::Absent
    );
    let call = client.schedule(&key, "kept").header("kept", "too");
    call.after(ms(300)).await.unwrap();
    let Rescheduled::Moved(due) = client.reschedule(&key).after(2 * HOUR).await.unwrap() else {
        panic!("it is pending")
    };
    assert_about(due, 2 * HOUR);
    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    // One that is due when the first one would have been runs; the one moved does not.
    client
        .schedule(site.key("probe"), "")
        .after(ms(400))
        .await
        .unwrap();
    assert_eq!(runs.next().await.key().id(), "probe");
    let later = SystemTime::now() + HOUR;
    assert!(matches!(
        client.reschedule(&key).at(later).await.unwrap(),
        Rescheduled::Moved(_)
    ));
    let view = site.view(&key).await;
    assert_eq!(steps(&view), ["postponed", "postponed"]);
    assert_about(view.due(), HOUR);
    assert!(matches!(
        client.reschedule(&key).after(ms(100)).await.unwrap(),
        Rescheduled::Moved(_)
    ));
    let job = runs.next().await;
    assert_eq!(&job.payload()[..], b"\"kept\"");
    assert_eq!(job.headers().get("kept"), Some("too"));
    site.all_ended().await;
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_pending_job_that_is_cancelled_never_runs() {
    let site = Site::new("pro-cancel").await;
    let (log, mut runs) = recorder();
    let client = &site.client;
    let key = site.key("cancelled");
    assert_eq!(client.cancel(&key).await.unwrap(), Cancelled::Absent);
    client.schedule(&key, "").after(ms(300)).await.unwrap();
    client
        .schedule(site.key("probe"), "")
        .after(ms(500))
        .await
        .unwrap();
    assert_eq!(client.cancel(&key).await.unwrap(), Cancelled::Cancelled);
    assert_eq!(client.cancel(&key).await.unwrap(), Cancelled::Absent);
    assert!(client.get(&key).await.unwrap().is_none());
    let exists: bool = site.command(&["EXISTS", &key]).await;
    assert!(!exists, "its trigger is gone too");
    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    assert_eq!(runs.next().await.key().id(), "probe");
    let stats = site.all_ended().await;
    assert_eq!((stats.cancelled, stats.done), (1, 1));
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_cancel_that_races_with_the_start_prevents_it_or_says_that_it_did_not() {
    let site = Site::new("pro-race").await;
    let (log, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    let mut cancelled = 0;
    for round in 0..10 {
        let keys: Vec<String> = (0..20)
            .map(|n| site.key(format_args!("{round}-{n}")))
            .collect();
        let calls = keys.iter().map(|key| {
            let call = site.client.schedule(key, "").after(ms(5));
            call.into_future()
        });
        try_join_all(calls).await.unwrap();
        let answers = try_join_all(keys.iter().map(|key| site.client.cancel(key))).await;
        for (key, answer) in keys.iter().zip(answers.unwrap()) {
            if answer == Cancelled::Cancelled {
                cancelled += 1;
                assert!(site.client.get(key).await.unwrap().is_none());
            }
        }
    }
    let stats = site.all_ended().await;
    worker.stop().await;
    assert_eq!(runs.rest().len(), 200 - cancelled);
    assert_eq!(stats.cancelled, cancelled as u64);
    assert_eq!(stats.done, 200 - stats.cancelled);
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_running_job_that_is_cancelled_hears_of_it_and_is_not_retried() {
    let site = Site::new("pro-halt").await;
    let (log, mut runs) = recorder();
    let handler = log.until_stopped(|| Outcome::retry("told to stop"));
    let worker = site.serve(Router::new().route(&site.pattern(), handler));
    let key = site.key(1);
    site.client.schedule(&key, "").await.unwrap();
    runs.next().await;
    // What was to follow it goes with it.
    let next = site.client.schedule(&key, "next").await.unwrap();
    assert_eq!(next.placed, Placed::Succeeds);
    assert_eq!(site.client.cancel(&key).await.unwrap(), Cancelled::Running);
    let stats = site.all_ended().await;
    assert_eq!((stats.cancelled, stats.failed, stats.done), (2, 0, 0));
    assert!(site.client.get(&key).await.unwrap().is_none());
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_cancelled_run_that_ends_well_all_the_same_is_done() {
    let site = Site::new("pro-halt-done").await;
    let (log, mut runs) = recorder();
    let gate = Gate::closed();
    let worker = site.serve(Router::new().route(&site.pattern(), log.behind(&gate)));
    let key = site.key(1);
    site.client.schedule(&key, "").await.unwrap();
    runs.next().await;
    assert_eq!(site.client.cancel(&key).await.unwrap(), Cancelled::Running);
    assert!(site.view(&key).await.is_cancelled());
    gate.open();
    let stats = site.all_ended().await;
    assert_eq!((stats.cancelled, stats.done), (0, 1));
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn what_is_scheduled_while_the_job_runs_follows_it_instead_of_its_retries() {
    let site = Site::new("pro-next").await;
    let (log, mut runs) = recorder();
    let gate = Gate::closed();
    let handler = {
        let gate = gate.clone();
        async move |job: keyfall::Job| {
            log.note(&job);
            match &job.payload()[..] {
                b"\"first\"" => {
                    gate.passed().await;
                    Outcome::retry_after(Duration::ZERO, "to be superseded")
                }
                _ => Outcome::Done,
            }
        }
    };
    let worker = site.serve(Router::new().route(&site.pattern(), handler));
    let key = site.key(1);
    site.client.schedule(&key, "first").await.unwrap();
    let first = runs.next().await;
    for payload in ["second", "third"] {
        let next = site.client.schedule(&key, payload).await.unwrap();
        assert_eq!(next.placed, Placed::Succeeds);
    }
    let view = site.view(&key).await;
    assert_eq!(view.state(), JobState::Running);
    assert_eq!(
        view.json::<String>().unwrap(),
        "first",
        "the run keeps what it was given"
    );
    assert!(view.successor_due().is_some());
    assert_eq!(site.stats().await.successors, 1);
    runs.assert_no_more();
    gate.open();
    let third = runs.next().await;
    assert_eq!(
        (&third.payload()[..], third.attempt()),
        (&b"\"third\""[..], 1)
    );
    assert!(first.fence() < third.fence());
    let stats = site.all_ended().await;
    // The second by the third, the first by its successor.
    assert_eq!((stats.replaced, stats.failed, stats.done), (2, 0, 1));
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_run_that_dies_or_ends_well_makes_way_for_its_successor() {
    let site = Site::new("pro-way").await;
    let (log, mut runs) = recorder();
    let gate = Gate::closed();
    let handler = {
        let gate = gate.clone();
        async move |job: keyfall::Job| {
            log.note(&job);
            gate.passed().await;
            match &job.payload()[..] {
                b"\"dies\"" => Outcome::bury("it had to"),
                _ => Outcome::Done,
            }
        }
    };
    let worker = site.serve(Router::new().route(&site.pattern(), handler));
    for payload in ["dies", "ends well"] {
        site.client
            .schedule(site.key(payload.len()), payload)
            .await
            .unwrap();
        runs.next().await;
        site.client
            .schedule(site.key(payload.len()), "next")
            .await
            .unwrap();
    }
    gate.open();
    for job in runs.take(2).await {
        assert_eq!(&job.payload()[..], b"\"next\"");
    }
    let stats = site.all_ended().await;
    assert_eq!((stats.done, stats.dead, stats.replaced), (3, 1, 0));
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_reschedule_moves_the_successor_of_a_running_job_and_never_the_run() {
    let site = Site::new("pro-move-next").await;
    let (log, mut runs) = recorder();
    let gate = Gate::closed();
    let worker = site.serve(Router::new().route(&site.pattern(), log.behind(&gate)));
    let key = site.key(1);
    let client = &site.client;
    client.schedule(&key, "first").await.unwrap();
    runs.next().await;
    assert_eq!(
        client.reschedule(&key).after(HOUR).await.unwrap(),
        Rescheduled::Running
    );
    assert!(site.view(&key).await.successor_due().is_none());
    client.schedule(&key, "second").await.unwrap();
    let answer = client.reschedule(&key).after(HOUR).await.unwrap();
    let Rescheduled::SuccessorMoved(due) = answer else {
        panic!("{answer:?}")
    };
    assert_about(due, HOUR);
    assert_eq!(site.view(&key).await.successor_due(), Some(due));
    gate.open();
    let view = site.reaches(&key, JobState::Pending).await;
    assert_eq!(view.json::<String>().unwrap(), "second");
    assert_eq!((view.due(), steps(&view)), (due, vec!["postponed"]));
    client.reschedule(&key).await.unwrap();
    assert_eq!(&runs.next().await.payload()[..], b"\"second\"");
    site.all_ended().await;
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_job_can_be_looked_at_in_every_state() {
    let site = Site::new("pro-get").await;
    let (log, mut runs) = recorder();
    let gate = Gate::closed();
    let handler = {
        let gate = gate.clone();
        async move |job: keyfall::Job| {
            log.note(&job);
            match job.attempt() {
                1 => Outcome::retry("the first time"),
                _ => {
                    gate.passed().await;
                    Outcome::bury("the second time")
                }
            }
        }
    };
    let router = Router::new().route(&site.pattern(), handler.retry(fails_slowly()));
    let key = site.key(1);
    let client = &site.client;
    assert!(client.get(&key).await.unwrap().is_none());

    let scheduled = client.schedule(&key, &[1, 2]).after(HOUR).await.unwrap();
    let view = site.view(&key).await;
    assert_eq!((view.state(), view.attempts()), (JobState::Pending, 0));
    assert_eq!((view.due(), view.last_error()), (scheduled.due, None));
    assert_eq!(view.key().as_str(), key);
    assert_eq!(view.json::<Vec<u8>>().unwrap(), [1, 2]);
    assert!(view.steps().is_empty());
    assert_about(view.first_scheduled_at(), Duration::ZERO);
    let fault = view.json::<String>().unwrap_err();
    assert_eq!(fault.kind(), ErrorKind::InvalidPayload);

    let worker = site.serve(router);
    client.reschedule(&key).await.unwrap();
    runs.next().await;
    let view = site.reaches(&key, JobState::Retrying).await;
    assert_eq!(
        (view.attempts(), view.last_error()),
        (1, Some("the first time"))
    );
    assert_eq!(steps(&view), ["postponed", "failed"]);
    assert_about(view.due(), HOUR);

    client.reschedule(&key).await.unwrap();
    runs.next().await;
    let view = site.view(&key).await;
    assert_eq!((view.state(), view.attempts()), (JobState::Running, 2));
    assert!(!view.is_cancelled());
    assert!(view.successor_due().is_none());

    gate.open();
    let view = site.reaches(&key, JobState::Dead).await;
    assert_eq!(
        (view.attempts(), view.last_error()),
        (2, Some("the second time"))
    );
    assert_eq!(steps(&view), ["postponed", "failed", "postponed", "buried"]);
    assert_about(view.due(), Duration::ZERO);
    // It is a letter now, and no job.
    assert_eq!(client.cancel(&key).await.unwrap(), Cancelled::Absent);
    assert_eq!(client.reschedule(&key).await.unwrap(), Rescheduled::Absent);
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[track_caller]
fn assert_refused<T: std::fmt::Debug>(result: Result<T, Error>, kind: ErrorKind, names: &[&str]) {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), kind, "{error}");
    assert!(!error.is_retryable());
    for part in names {
        assert!(error.to_string().contains(part), "{part:?} in {error}");
    }
}

#[tokio::test]
async fn what_breaks_a_limit_is_refused_with_the_rule() {
    let site = Site::new("pro-limits").await;
    let small = Client::builder(shared_redis()).payload_limit(10);
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
    let unwritable = std::collections::HashMap::from([((1, 2), 3)]);
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
    // What was refused changed nothing.
    let view = site.view(&key).await;
    assert_eq!((&view.payload()[..], view.steps().len()), (&b"\"\""[..], 0));
    site.assert_balanced().await;
}

#[tokio::test]
async fn what_is_no_job_key_is_refused_by_every_call() {
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
    }
    assert_refused(
        client.stats("a:b").await,
        ErrorKind::InvalidKey,
        &["2 segments", "three"],
    );
    // Whatever an id may hold goes all the way.
    let odd = site.key("Ünï-©ode@example.org/42?x=%20&y='\"\\[]()+#~|");
    client.schedule(&odd, "").after(HOUR).await.unwrap();
    assert_eq!(site.view(&odd).await.key().as_str(), odd);
    assert_eq!(client.cancel(&odd).await.unwrap(), Cancelled::Cancelled);
    site.assert_balanced().await;
}

#[tokio::test]
async fn settings_that_make_no_sense_stop_the_start() {
    let site = Site::new("pro-settings").await;
    let kind = ErrorKind::InvalidSetting;
    let client = |change: fn(ClientBuilder) -> ClientBuilder| {
        change(Client::builder(shared_redis())).connect()
    };
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedules_from_many_tasks_all_land() {
    let site = Site::new("pro-many").await;
    let tasks = (0..64).map(|task| {
        let (client, kind) = (site.client.clone(), site.kind());
        tokio::spawn(async move {
            for n in 0..25 {
                let key = format!("{kind}:{task}-{n}");
                let scheduled = client.schedule(key, &n).after(HOUR).await.unwrap();
                assert_eq!(scheduled.placed, Placed::Created);
            }
        })
    });
    try_join_all(tasks).await.unwrap();
    let stats = site.stats().await;
    assert_eq!((stats.accepted, stats.pending), (1600, 1600));
    assert_eq!(
        site.view(&site.key("63-24")).await.json::<u32>().unwrap(),
        24
    );
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedules_of_one_key_from_many_tasks_leave_one_job() {
    let site = Site::new("pro-one").await;
    let key = site.key(1);
    let tasks = (0..50).map(|task| {
        let (client, key) = (site.client.clone(), key.clone());
        let call = async move {
            client
                .schedule(key, &task)
                .after(HOUR)
                .await
                .unwrap()
                .placed
        };
        tokio::spawn(call)
    });
    let placed = try_join_all(tasks).await.unwrap();
    let created = placed.iter().filter(|p| **p == Placed::Created).count();
    assert_eq!(created, 1, "{placed:?}");
    let stats = site.stats().await;
    assert_eq!((stats.pending, stats.accepted, stats.replaced), (1, 50, 49));
    let (log, mut runs) = recorder();
    let worker = Running::start(site.worker(Router::new().route(&site.pattern(), log.done())));
    site.client.reschedule(&key).await.unwrap();
    assert_eq!(ids(&[runs.next().await]), ["1"]);
    site.all_ended().await;
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}
