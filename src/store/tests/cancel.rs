//! `cancel.lua`: pending jobs go, running jobs are not retried.

use super::support::{Bench, HOUR, State, after, later, same_when_repeated, soon, word, words};
use crate::store::{Answered, CancelIf, Condition, JobVersion, Lane, Mode, Verb, VersionState};

use State::*;

#[tokio::test]
async fn it_removes_pending_jobs_and_marks_running_ones() {
    let bench = Bench::new().await;
    let jobs = bench.every_state().await;
    let deadline = bench.deadline("Leased").await;
    let keys: Vec<_> = jobs.iter().map(|(id, _)| bench.key(id)).collect();
    let mut lane = Lane::new();
    let answers = bench.ledger.cancel(&mut lane, &keys, soon()).await.unwrap();
    let table = [
        (Absent, "absent", Absent),
        (Pending, "cancelled", Absent),
        (Due, "cancelled", Absent),
        (Retrying, "cancelled", Absent),
        (Leased, "running", CancelledRun),
        (LeasedNext, "running", CancelledRun),
        (CancelledRun, "running", CancelledRun),
        (CancelledRunNext, "running", CancelledRun),
        (Lapsed, "running", LapsedCancelled),
        (LapsedNext, "running", LapsedCancelled),
        (LapsedCancelled, "running", LapsedCancelled),
        (LapsedCancelledNext, "running", LapsedCancelled),
        (Dead, "absent", Dead),
    ];
    bench.hold_against(table, &answers).await;
    assert_eq!(
        bench.deadline("Leased").await,
        deadline,
        "the lease runs on"
    );
    // Three pending jobs, and four successors.
    assert_eq!(bench.counted("cancelled").await, 3 + 4);
    let stats = bench.balanced().await;
    assert_eq!((stats.pending, stats.leased, stats.successors), (0, 8, 0));
}

#[tokio::test]
async fn the_lease_of_a_cancelled_run_keeps_all_but_the_flag() {
    let bench = Bench::new().await;
    bench.bring("running", Leased).await;
    let lease = bench.lease("running").await.unwrap();
    for _ in 0..2 {
        assert_eq!(word(bench.cancel("running").await), "running");
        let marked = bench.lease("running").await.unwrap();
        assert_eq!(marked.strip_suffix("cancelled"), lease.strip_suffix('-'));
    }
    bench.balanced().await;
}

#[tokio::test]
async fn a_cancelled_run_is_not_retried_and_a_later_schedule_runs() {
    let bench = Bench::new().await;
    let retry = || later(after(HOUR), "failed");
    let token = bench.bring("gone", CancelledRun).await;
    assert_eq!(
        word(bench.settle("gone", &token, retry()).await),
        "cancelled"
    );
    assert_eq!(bench.state("gone").await, Absent);
    let token = bench.bring("followed", CancelledRunNext).await;
    assert_eq!(
        word(bench.settle("followed", &token, retry()).await),
        "cancelled"
    );
    assert_eq!(bench.state("followed").await, Pending);
    let token = bench.bring("done", CancelledRun).await;
    assert_eq!(word(bench.settle("done", &token, Verb::Done).await), "done");
    bench.balanced().await;
}

#[tokio::test]
async fn a_repeat_gets_the_first_answer_and_a_late_original_is_refused() {
    let bench = Bench::new().await;
    bench.bring("pending", Pending).await;
    bench.bring("running", LeasedNext).await;
    let keys = [
        bench.key("pending"),
        bench.key("running"),
        bench.key("missing"),
    ];
    same_when_repeated(&bench, async |lane| {
        bench.ledger.cancel(lane, &keys, soon()).await
    })
    .await;
    // A repeat of the first call does not cancel a newer job of the same name.
    let mut lane = Lane::new();
    bench.ledger.cancel(&mut lane, &keys, soon()).await.unwrap();
    bench.schedule("pending", after(HOUR)).await;
    let mut again = lane.rewound(1);
    let repeat = bench
        .ledger
        .cancel(&mut again, &keys, soon())
        .await
        .unwrap();
    assert_eq!(words(&repeat), ["absent", "running", "absent"]);
    assert_eq!(bench.state("pending").await, Pending);
    bench.balanced().await;
}

#[tokio::test]
async fn one_id_twice_in_a_batch_counts_as_two_calls_in_order() {
    let bench = Bench::new().await;
    bench.bring("pending", Pending).await;
    bench.bring("running", LeasedNext).await;
    let keys = ["pending", "pending", "running", "running"].map(|id| bench.key(id));
    let mut lane = Lane::new();
    let answers = bench.ledger.cancel(&mut lane, &keys, soon()).await.unwrap();
    assert_eq!(
        words(&answers),
        ["cancelled", "absent", "running", "running"]
    );
    assert_eq!(bench.counted("cancelled").await, 2);
    bench.balanced().await;
}

/// Cancels a job with this order number, or without one.
async fn ordered(bench: &Bench, id: &str, order: u64) -> &'static str {
    let mut item = bench.placement(id, after(HOUR));
    item.mode = Mode::Ordered;
    item.header = format!("{{\"v\":1,\"order\":{order}}}").into();
    word(bench.place(&[item]).await[0].answer)
}

async fn cancel_if(bench: &Bench, items: &[CancelIf]) -> Vec<Answered> {
    let mut lane = Lane::new();
    let answers = bench.ledger.cancel_if(&mut lane, items, soon());
    answers.await.unwrap()
}

async fn outdated(bench: &Bench, id: &str, below: u64) -> &'static str {
    let key = bench.key(id);
    let condition = Condition::OrderBelow(below);
    word(cancel_if(bench, &[CancelIf { key, condition }]).await[0].answer)
}

#[tokio::test]
async fn an_overtaken_call_changes_nothing() {
    let bench = Bench::new().await;
    assert_eq!(outdated(&bench, "a", 5).await, "absent");
    assert_eq!(ordered(&bench, "a", 5).await, "created");
    assert_eq!(ordered(&bench, "a", 4).await, "overtaken");
    for below in [1, 4, 5] {
        assert_eq!(outdated(&bench, "a", below).await, "overtaken");
    }
    assert_eq!(ordered(&bench, "a", 5).await, "replaced");
    assert_eq!(bench.counted("accepted").await, 2);
    assert_eq!(outdated(&bench, "a", 6).await, "cancelled");
    // For a running job, the order number of its successor counts.
    let token = bench.bring("run", Leased).await;
    assert_eq!(ordered(&bench, "run", 7).await, "succeeds");
    assert_eq!(ordered(&bench, "run", 6).await, "overtaken");
    assert_eq!(outdated(&bench, "run", 7).await, "overtaken");
    assert_eq!(outdated(&bench, "run", 8).await, "running");
    assert_eq!(bench.state("run").await, CancelledRun);
    let settled = bench.settle("run", &token, later(after(HOUR), "failed"));
    assert_eq!(word(settled.await), "cancelled");
    // If one item of a call is overtaken, the next item is still carried out.
    ordered(&bench, "b", 9).await;
    let key = bench.key("b");
    let items = [8, 10].map(|below| CancelIf {
        key: key.clone(),
        condition: Condition::OrderBelow(below),
    });
    let answers = cancel_if(&bench, &items).await;
    assert_eq!(words(&answers), ["overtaken", "cancelled"]);
    bench.balanced().await;
}

#[tokio::test]
async fn a_job_that_has_changed_since_it_was_seen_is_not_cancelled() {
    let bench = Bench::new().await;
    for state in [State::Pending, State::Leased, State::LeasedNext] {
        bench.bring(&state.id(), state).await;
    }
    let send = async |id: &str, seen: &JobVersion| {
        let item = CancelIf {
            key: bench.key(id),
            condition: Condition::Seen(seen.clone()),
        };
        word(cancel_if(&bench, &[item]).await[0].answer)
    };
    let changed = "changed";
    for (id, answer) in [
        ("Pending", "cancelled"),
        ("Leased", "running"),
        ("LeasedNext", "running"),
    ] {
        let seen = bench.seen(id).await;
        for state in [
            VersionState::Pending,
            VersionState::Leased,
            VersionState::Successor,
        ] {
            if state != seen.state {
                let other = JobVersion {
                    state,
                    ..seen.clone()
                };
                assert_eq!(send(id, &other).await, changed, "{id} as {state:?}");
            }
        }
        // Another call has stored a job with the same header in the meantime.
        bench.place(&[bench.placement(id, after(HOUR))]).await;
        assert_eq!(send(id, &seen).await, changed, "{id}");
        let seen = bench.seen(id).await;
        assert_eq!(send(id, &seen).await, answer, "{id}");
    }
    let gone = bench.key("Pending");
    let absent = JobVersion {
        state: VersionState::Pending,
        opening: "{}".into(),
    };
    assert_eq!(send(gone.id(), &absent).await, "absent");
    bench.balanced().await;
}
