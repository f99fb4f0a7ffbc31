//! `reschedule.lua`: another due time, all else kept.

use std::time::Duration;

use super::support::{
    Bench, HOUR, LATER, State, after, at, due_of, same_when_repeated, soon, word, words,
};
use crate::store::{Lane, When};

use State::*;

#[tokio::test]
async fn it_moves_pending_jobs_and_successors() {
    let bench = Bench::new().await;
    let jobs = bench.every_state().await;
    let change = |(id, _): &(String, String)| bench.change(id, after(HOUR), "postponed");
    let items: Vec<_> = jobs.iter().map(change).collect();
    let mut lane = Lane::new();
    let answers = bench
        .ledger
        .reschedule(&mut lane, &items, soon())
        .await
        .unwrap();
    let table = [
        (Absent, "absent", Absent),
        (Pending, "moved", Pending),
        (Due, "moved", Pending),
        (Retrying, "moved", Retrying),
        (Leased, "running", Leased),
        (LeasedNext, "successor", LeasedNext),
        (CancelledRun, "running", CancelledRun),
        (CancelledRunNext, "successor", CancelledRunNext),
        (Lapsed, "running", Lapsed),
        (LapsedNext, "successor", LapsedNext),
        (LapsedCancelled, "running", LapsedCancelled),
        (LapsedCancelledNext, "successor", LapsedCancelledNext),
        (Dead, "absent", Dead),
    ];
    bench.hold_against(table, &answers).await;
    for (state, answered) in State::ALL.into_iter().zip(&answers) {
        let id = state.id();
        let (due, record) = match word(answered.answer) {
            "moved" => (bench.due(&id).await.unwrap(), bench.record(&id).await),
            "successor" => bench.successor(&id).await,
            _ => continue,
        };
        assert_eq!(due, due_of(answered.answer), "{id}");
        assert_eq!(record.steps.last().unwrap().what, "postponed", "{id}");
        assert_eq!(&record.payload[..], id.as_bytes());
    }
    bench.balanced().await;
}

#[tokio::test]
async fn it_touches_only_the_jobs_that_it_moves() {
    let bench = Bench::new().await;
    for state in [Absent, Leased, CancelledRun, Lapsed, LapsedCancelled, Dead] {
        let id = state.id();
        bench.bring(&id, state).await;
        let mut stored = bench.snapshot().await;
        bench.reschedule(&id, after(LATER)).await;
        let mut left = bench.snapshot().await;
        for all in [&mut stored, &mut left] {
            // The memory of the call is no change of the job.
            all.retain(|name, _| !name.contains(":calls ") && !name.contains(":lanes "));
        }
        assert_eq!(stored, left, "{state:?}");
    }
    bench.balanced().await;
}

#[tokio::test]
async fn a_repeat_gets_the_first_answer_and_a_late_original_is_refused() {
    let bench = Bench::new().await;
    bench.bring("pending", Pending).await;
    bench.bring("running", LeasedNext).await;
    let items = [
        bench.change("pending", after(LATER), "postponed"),
        bench.change("running", after(LATER), "postponed"),
        bench.change("missing", after(LATER), "postponed"),
    ];
    same_when_repeated(&bench, async |lane| {
        bench.ledger.reschedule(lane, &items, soon()).await
    })
    .await;
    assert_eq!(bench.record("pending").await.steps.len(), 1);
    bench.balanced().await;
}

#[tokio::test]
async fn one_id_twice_in_a_batch_counts_as_two_calls_in_order() {
    let bench = Bench::new().await;
    let now = bench.now().await;
    for (id, state) in [("pending", Pending), ("running", LeasedNext)] {
        bench.bring(id, state).await;
        let items = [
            bench.change(id, at(now + 90_000), "postponed"),
            bench.change(id, at(now + 80_000), "fired"),
        ];
        let mut lane = Lane::new();
        let answers = bench
            .ledger
            .reschedule(&mut lane, &items, soon())
            .await
            .unwrap();
        let dues: Vec<u64> = answers.iter().map(|a| due_of(a.answer)).collect();
        assert_eq!(dues, [now + 90_000, now + 80_000]);
        let (due, record) = match state {
            Pending => (bench.due(id).await.unwrap(), bench.record(id).await),
            _ => bench.successor(id).await,
        };
        assert_eq!(due, now + 80_000);
        let steps: Vec<&str> = record.steps.iter().map(|step| step.what.as_str()).collect();
        assert_eq!(steps, ["postponed", "fired"]);
    }
    bench.balanced().await;
}

#[tokio::test]
async fn the_record_keeps_eight_steps_and_the_time_of_acceptance() {
    let bench = Bench::new().await;
    bench.schedule("moved", after(HOUR)).await;
    let accepted = bench.record("moved").await.accepted;
    bench.past(accepted.0).await;
    let names = [
        "s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10", "s11",
    ];
    for (count, name) in names.into_iter().enumerate() {
        let items = [bench.change("moved", after(HOUR), name)];
        let mut lane = Lane::new();
        bench
            .ledger
            .reschedule(&mut lane, &items, soon())
            .await
            .unwrap();
        let record = bench.record("moved").await;
        let steps: Vec<&str> = record.steps.iter().map(|step| step.what.as_str()).collect();
        assert_eq!(steps, names[(count + 1).saturating_sub(8)..=count]);
        assert_eq!(record.accepted, accepted);
        assert_eq!(&record.payload[..], b"moved");
    }
    bench.balanced().await;
}

#[tokio::test]
async fn now_makes_a_job_due_at_once() {
    let bench = Bench::new().await;
    bench.bring("waiting", Retrying).await;
    bench.reschedule("waiting", after(Duration::ZERO)).await;
    assert_eq!(bench.state("waiting").await, Due);
    assert_eq!(
        words(&bench.claim(&["waiting"], 0).await.answers),
        ["claimed"]
    );
    bench.balanced().await;
}

#[tokio::test]
async fn an_overdue_job_that_is_fired_keeps_its_place() {
    let bench = Bench::new().await;
    bench.bring("old", Due).await;
    let past = bench.now().await - 7_200_000;
    let due = bench.names().due.clone();
    let _: u64 = bench.ask(&["ZADD", &due, &past.to_string(), "old"]).await;
    let moved = bench.reschedule("old", after(Duration::ZERO)).await;
    assert_eq!(due_of(moved), past);
    assert_eq!(bench.due("old").await, Some(past));
    bench.balanced().await;
}

#[tokio::test]
async fn a_shift_counts_from_the_due_time_of_each_job() {
    let bench = Bench::new().await;
    let by = |id: &str| bench.change(id, When::By(HOUR), "postponed");
    for state in [Pending, Due, Retrying] {
        bench.bring(&state.id(), state).await;
        let own = bench.due(&state.id()).await.unwrap();
        // The same job twice in one call; the items are carried out in order.
        let items = [by(&state.id()), by(&state.id())];
        let mut lane = Lane::new();
        let answers = bench.ledger.reschedule(&mut lane, &items, soon()).await;
        let dues: Vec<u64> = answers.unwrap().iter().map(|a| due_of(a.answer)).collect();
        assert_eq!(dues, [own + 3_600_000, own + 7_200_000], "{state:?}");
        assert_eq!(bench.due(&state.id()).await, Some(own + 7_200_000));
    }
    bench.bring("run", LeasedNext).await;
    let (own, _) = bench.successor("run").await;
    let mut lane = Lane::new();
    let items = [by("run")];
    let answers = bench.ledger.reschedule(&mut lane, &items, soon()).await;
    assert_eq!(due_of(answers.unwrap()[0].answer), own + 3_600_000);
    bench.balanced().await;
}

#[tokio::test]
async fn a_job_still_overdue_after_a_shift_keeps_its_place() {
    let bench = Bench::new().await;
    bench.bring("old", Due).await;
    let past = bench.now().await - 7_200_000;
    let due = bench.names().due.clone();
    let _: u64 = bench.ask(&["ZADD", &due, &past.to_string(), "old"]).await;
    let items = [bench.change("old", When::By(HOUR), "postponed")];
    let mut lane = Lane::new();
    bench
        .ledger
        .reschedule(&mut lane, &items, soon())
        .await
        .unwrap();
    assert_eq!(bench.due("old").await, Some(past + 3_600_000));
    assert_eq!(words(&bench.claim(&["old"], 0).await.answers), ["claimed"]);
    bench.balanced().await;
}
