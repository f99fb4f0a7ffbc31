//! The effect of schedule with its conditions, and the view that get returns.

use futures_util::future::try_join_all;
use keyfall::{
    Cancelled, ErrorKind, Handler, IfAbsent, IfPresent, JobState, JobView, Outcome, Placed,
    Rescheduled, Router,
};
use std::time::Duration;

use crate::runs::{Gate, ids, recorder};
use crate::site::{HOUR, Running, Site, assert_about, fails_slowly, steps};

fn present(answer: IfAbsent) -> JobView {
    match answer {
        IfAbsent::Present(job) => *job,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn the_newest_schedule_wins_with_payload_time_and_headers() {
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
async fn if_absent_answers_with_the_existing_job() {
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
    // A dead letter is not a job.
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedules_from_many_tasks_all_succeed() {
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

#[tokio::test]
async fn a_job_can_be_viewed_in_every_state() {
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
    // It is a dead letter now, and not a job.
    assert_eq!(client.cancel(&key).await.unwrap(), Cancelled::Absent);
    assert_eq!(client.reschedule(&key).await.unwrap(), Rescheduled::Absent);
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn if_present_replaces_or_succeeds_and_creates_nothing() {
    let site = Site::new("sch-present").await;
    let (log, mut runs) = recorder();
    let gate = Gate::closed();
    let key = site.key(1);
    let offer = async |payload: &str| {
        let call = site.client.schedule(&key, payload).after(HOUR);
        call.if_present().await.unwrap()
    };
    let took = |answer| match answer {
        IfPresent::Scheduled(scheduled) => Some(scheduled.placed),
        IfPresent::Absent => None,
    };
    assert_eq!(took(offer("nobody").await), None);
    assert!(site.client.get(&key).await.unwrap().is_none());
    site.client
        .schedule(&key, "first")
        .after(HOUR)
        .await
        .unwrap();
    assert_eq!(took(offer("second").await), Some(Placed::Replaced));
    assert_eq!(site.view(&key).await.json::<String>().unwrap(), "second");

    let handler = {
        let gate = gate.clone();
        async move |job: keyfall::Job| {
            log.note(&job);
            gate.passed().await;
            Outcome::bury("no more")
        }
    };
    let worker = site.serve(Router::new().route(&site.pattern(), handler));
    site.client.fire_now(&key).await.unwrap();
    runs.next().await;
    assert_eq!(took(offer("third").await), Some(Placed::Succeeds));
    gate.open();
    assert_eq!(
        site.reaches(&key, JobState::Pending)
            .await
            .json::<String>()
            .unwrap(),
        "third"
    );
    site.client.fire_now(&key).await.unwrap();
    runs.next().await;
    site.reaches(&key, JobState::Dead).await;
    // A dead letter is not a job.
    assert_eq!(took(offer("fourth").await), None);
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_view_prints_readably_and_without_the_payload() {
    let site = Site::new("sch-debug").await;
    let key = site.key(1);
    let call = site
        .client
        .schedule(&key, "secret")
        .header("token", "secret");
    call.after(HOUR).await.unwrap();
    site.client.reschedule(&key).after(2 * HOUR).await.unwrap();
    // A fixed due time, so the text is the same on every day.
    let due = format!("keyfall:{{{}/0}}:due", site.kind());
    let _: i64 = site.command(&["ZADD", &due, "4102444800123", "1"]).await;
    let written = format!("{:?}", site.view(&key).await);
    let expected = format!(
        "JobView {{ key: {key}, state: Pending, due: 2100-01-01T00:00:00.123Z, attempts: 0, \
         steps: [\"postponed\"], payload_bytes: 8, .. }}"
    );
    assert_eq!(written, expected);
    site.assert_balanced().await;
}
