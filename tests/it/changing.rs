//! The effects of reschedule, fire_now and update_payload in each state of a job.

use std::time::{Duration, SystemTime};

use keyfall::{Handler, JobState, Outcome, Rescheduled, Router, Updated};

use crate::runs::{Gate, recorder};
use crate::site::{HOUR, Site, assert_about, fails_slowly, ms, steps};

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
    // A job that is due at the old time of the first job runs; the moved job does not.
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
async fn a_job_in_any_waiting_state_can_be_fired_now() {
    let site = Site::new("chg-fire").await;
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
                    Outcome::Done
                }
            }
        }
    };
    let worker = site.serve(Router::new().route(&site.pattern(), handler.retry(fails_slowly())));
    let (client, key) = (&site.client, site.key(1));
    assert_eq!(client.fire_now(&key).await.unwrap(), Rescheduled::Absent);
    client.schedule(&key, "first").after(HOUR).await.unwrap();
    let Rescheduled::Moved(due) = client.fire_now(&key).await.unwrap() else {
        panic!("it was pending")
    };
    assert_about(due, Duration::ZERO);
    runs.next().await;
    let view = site.reaches(&key, JobState::Retrying).await;
    assert_eq!(steps(&view), ["fired", "failed"]);
    client.fire_now(&key).await.unwrap();
    assert_eq!(runs.next().await.attempt(), 2, "its attempts are kept");
    assert_eq!(client.fire_now(&key).await.unwrap(), Rescheduled::Running);
    client.schedule(&key, "second").after(HOUR).await.unwrap();
    let answer = client.fire_now(&key).await.unwrap();
    assert!(
        matches!(answer, Rescheduled::SuccessorMoved(_)),
        "{answer:?}"
    );
    gate.open();
    assert_eq!(&runs.next().await.payload()[..], b"\"second\"");
    // The second attempt fails, too, and the job is fired a last time.
    site.reaches(&key, JobState::Retrying).await;
    client.fire_now(&key).await.unwrap();
    runs.next().await;
    site.all_ended().await;
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn an_updated_payload_reaches_the_next_run() {
    let site = Site::new("chg-update").await;
    let (log, mut runs) = recorder();
    let gate = Gate::closed();
    let handler = {
        let gate = gate.clone();
        async move |job: keyfall::Job| {
            log.note(&job);
            gate.passed().await;
            match job.attempt() {
                1 => Outcome::retry("the first time"),
                _ => Outcome::Done,
            }
        }
    };
    let worker = site.serve(Router::new().route(&site.pattern(), handler.retry(fails_slowly())));
    let (client, key) = (&site.client, site.key(1));
    assert_eq!(
        client.update_payload(&key, "").await.unwrap(),
        Updated::Absent
    );
    let due = client.schedule(&key, "1").after(HOUR).await.unwrap().due;
    assert_eq!(
        client.update_payload(&key, "2").await.unwrap(),
        Updated::Updated(due)
    );
    let view = site.view(&key).await;
    assert_eq!((view.due(), steps(&view)), (due, vec!["updated"]));
    client.fire_now(&key).await.unwrap();
    assert_eq!(&runs.next().await.payload()[..], b"\"2\"");
    // The run keeps its old payload, and the retry gets the new one.
    let raw = vec![0, 10, 255];
    let running = client
        .update_payload_bytes(&key, raw.clone())
        .await
        .unwrap();
    assert_eq!(running, Updated::Running);
    gate.open();
    let view = site.reaches(&key, JobState::Retrying).await;
    assert_eq!(
        (view.payload()[..].to_vec(), view.attempts()),
        (raw.clone(), 1)
    );
    assert_eq!(view.last_error(), Some("the first time"));
    client.fire_now(&key).await.unwrap();
    let again = runs.next().await;
    assert_eq!((again.payload()[..].to_vec(), again.attempt()), (raw, 2));
    site.all_ended().await;
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn an_update_during_a_run_changes_only_its_successor() {
    let site = Site::new("chg-update-next").await;
    let (log, mut runs) = recorder();
    let gate = Gate::closed();
    let worker = site.serve(Router::new().route(&site.pattern(), log.behind(&gate)));
    let (client, key) = (&site.client, site.key(1));
    client.schedule(&key, "run").await.unwrap();
    runs.next().await;
    let due = client.schedule(&key, "next").after(HOUR).await.unwrap().due;
    let answer = client.update_payload(&key, "newer").await.unwrap();
    assert_eq!(answer, Updated::SuccessorUpdated(due));
    assert_eq!(site.view(&key).await.json::<String>().unwrap(), "run");
    gate.open();
    let view = site.reaches(&key, JobState::Pending).await;
    assert_eq!(
        (view.json::<String>().unwrap(), view.due()),
        ("newer".into(), due)
    );
    client.cancel(&key).await.unwrap();
    worker.stop().await;
    site.assert_balanced().await;
}
