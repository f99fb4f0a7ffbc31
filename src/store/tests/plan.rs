//! `plan.lua`: the jobs of a series, stored, moved and removed as a whole.

use bytes::Bytes;

use super::support::{Bench, HOUR, State, after, same_when_repeated, soon, word};
use crate::store::{Lane, SeriesCall};

use State::*;

#[tokio::test]
async fn a_job_that_runs_keeps_its_series_as_it_is() {
    for (state, put, removed) in [
        (Absent, "planned", "planned"),
        (Pending, "planned", "planned"),
        (Due, "planned", "planned"),
        (Retrying, "planned", "planned"),
        (Leased, "changed", "changed"),
        (LeasedNext, "changed", "changed"),
        (Lapsed, "changed", "changed"),
        (LapsedNext, "changed", "changed"),
        (Dead, "planned", "planned"),
    ] {
        let bench = Bench::new().await;
        bench.bring("job", state).await;
        for (when, answer) in [(None, removed), (Some(after(HOUR)), put)] {
            let before = bench.state("job").await;
            let jobs = vec![
                bench.of_series("new", when).await,
                bench.of_series("job", when).await,
            ];
            let answered = bench.plan(jobs).await;
            assert_eq!(word(answered.answer), answer, "{state:?}");
            let stored = match (answer, when) {
                ("planned", Some(_)) => (Pending, Pending),
                ("planned", None) if state == Dead => (Absent, Dead),
                ("planned", None) => (Absent, Absent),
                _ => (Absent, before),
            };
            let found = (bench.state("new").await, bench.state("job").await);
            assert_eq!(found, stored, "{state:?}, {when:?}");
        }
        bench.balanced().await;
    }
}

#[tokio::test]
async fn one_job_that_has_changed_keeps_all_from_being_written() {
    let bench = Bench::new().await;
    for id in ["plan", "one", "two"] {
        bench.schedule(id, after(HOUR)).await;
    }
    let mut jobs = Vec::new();
    for id in ["plan", "one", "two", "new"] {
        jobs.push(bench.of_series(id, Some(after(2 * HOUR))).await);
    }
    for (id, other) in [
        ("two", "rescheduled"),
        ("new", "scheduled"),
        ("one", "gone"),
    ] {
        match other {
            "rescheduled" => drop(bench.reschedule(id, after(HOUR)).await),
            "scheduled" => drop(bench.schedule(id, after(HOUR)).await),
            _ => drop(bench.cancel(id).await),
        }
        let jobs_but_plan = bench.snapshot().await;
        let answered = bench.plan(jobs.clone()).await;
        assert_eq!(word(answered.answer), "changed", "{other}");
        let names = bench.names();
        let is_kept = |(key, _): &(&String, &String)| {
            !key.contains(&names.calls) && !key.contains(&names.lanes)
        };
        let now = bench.snapshot().await;
        let kept: Vec<_> = now.iter().filter(is_kept).collect();
        let before: Vec<_> = jobs_but_plan.iter().filter(is_kept).collect();
        assert_eq!(kept, before, "{other}");
        let mut place = jobs.iter_mut();
        let seen = place.find(|job| job.key.id() == id).unwrap();
        seen.seen = bench.of_series(id, None).await.seen;
    }
    assert_eq!(word(bench.plan(jobs).await.answer), "planned");
    bench.balanced().await;
}

#[tokio::test]
async fn a_job_that_stays_keeps_its_time_of_acceptance_and_its_payload() {
    let bench = Bench::new().await;
    bench.schedule("job", after(HOUR)).await;
    let before = bench.record("job").await;
    let mut job = bench.of_series("job", Some(after(2 * HOUR))).await;
    job.put.as_mut().unwrap().payload = None;
    bench.plan(vec![job]).await;
    let moved = bench.record("job").await;
    assert_eq!(
        (moved.accepted, &moved.payload),
        (before.accepted, &before.payload)
    );
    assert_eq!(moved.steps.last().unwrap().what, "postponed");
    // At the same time.
    let due = bench.due("job").await.unwrap();
    let job = bench.of_series("job", Some(super::support::at(due))).await;
    bench.plan(vec![job]).await;
    let updated = bench.record("job").await;
    assert_eq!(&updated.payload[..], b"member");
    assert_eq!(updated.steps.last().unwrap().what, "updated");
    assert_eq!(bench.due("job").await, Some(due));
    bench.balanced().await;
}

#[tokio::test]
async fn several_series_in_one_call_are_independent() {
    let bench = Bench::new().await;
    bench.schedule("two", after(HOUR)).await;
    let mut items = Vec::new();
    for id in ["one", "two", "three"] {
        let mut job = bench.of_series(id, Some(after(2 * HOUR))).await;
        if id == "two" {
            job.seen.as_mut().unwrap().opening = Bytes::from_static(b"{\"v\":1}\n7\n");
        }
        items.push(SeriesCall {
            key: job.key.clone(),
            jobs: vec![job],
        });
    }
    let mut lane = Lane::new();
    let answers = bench.ledger.plan(&mut lane, &items, soon()).await.unwrap();
    let answers: Vec<_> = answers.iter().map(|it| word(it.answer)).collect();
    assert_eq!(answers, ["planned", "changed", "planned"]);
    let repeated = [items[2].clone()];
    same_when_repeated(&bench, async |lane: &mut Lane| {
        bench.ledger.plan(lane, &repeated, soon()).await
    })
    .await;
    bench.balanced().await;
}

#[tokio::test]
async fn a_series_of_64_members_is_moved_by_one_call() {
    let bench = Bench::new().await;
    for hours in [1, 2] {
        let mut jobs = vec![bench.of_series("42", Some(after(9 * HOUR))).await];
        for member in 1..=64 {
            let id = format!("42~-{member}d");
            jobs.push(bench.of_series(&id, Some(after(hours * HOUR))).await);
        }
        assert_eq!(word(bench.plan(jobs).await.answer), "planned");
    }
    let now = bench.now().await;
    for member in 1..=64 {
        let due = bench.due(&format!("42~-{member}d")).await.unwrap();
        assert!(due > now + 5_400_000, "{due}");
    }
    bench.balanced().await;
}
