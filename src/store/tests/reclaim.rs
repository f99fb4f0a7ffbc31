//! `reclaim.lua`: the fate of a job whose lease has lapsed.

use super::support::{Bench, HOUR, MOMENT, State, after, ids, later, word, words};
use crate::ErrorKind;
use crate::store::{Lane, Verb};

use State::*;

#[tokio::test]
async fn it_takes_over_lapsed_jobs_and_ends_jobs_that_must_not_run_again() {
    let bench = Bench::new().await;
    let jobs = bench.every_state().await;
    let named: Vec<&str> = jobs.iter().map(|(id, _)| id.as_str()).collect();
    let reply = bench.reclaim(&named).await;
    let table = [
        (Absent, "absent", Absent),
        (Pending, "absent", Pending),
        (Due, "absent", Due),
        (Retrying, "absent", Retrying),
        (Leased, "leased", Leased),
        (LeasedNext, "leased", LeasedNext),
        (CancelledRun, "leased", CancelledRun),
        (CancelledRunNext, "leased", CancelledRunNext),
        (Lapsed, "claimed", Leased),
        (LapsedNext, "replaced", Pending),
        (LapsedCancelled, "cancelled", Absent),
        (LapsedCancelledNext, "cancelled", Pending),
        (Dead, "absent", Dead),
    ];
    bench.hold_against(table, &reply.answers).await;
    assert_eq!(ids(&reply), ["Lapsed"]);
    for (counter, times) in [("lapsed", 1), ("replaced", 1), ("cancelled", 2)] {
        assert_eq!(bench.counted(counter).await, times, "{counter}");
    }
    bench.balanced().await;
}

#[tokio::test]
async fn an_attempt_taken_over_is_counted_in_its_lease_and_not_in_its_record() {
    let bench = Bench::new().await;
    let mut job = bench.lapse("job").await;
    let record = job.record.clone();
    for claims in 2..5 {
        let lane = Lane::new();
        let keys = [bench.key("job")];
        let mut first = lane.rewound(1);
        let reply = bench
            .ledger
            .reclaim(&mut first, &keys, MOMENT, super::support::soon())
            .await;
        let reply = reply.unwrap();
        let again = &reply.jobs[0];
        assert_eq!(
            (again.claims, again.due, &again.record),
            (claims, job.due, &record)
        );
        assert_eq!(*again.token, *format!("{}-1", lane.id()));
        assert!(again.fence > job.fence);
        let lease = format!("{} {claims} {} {} -", again.token, again.fence, job.due);
        assert_eq!(bench.lease("job").await, Some(lease));
        let deadline = reply.now.0.div_ceil(1000) + 1;
        assert_eq!(bench.deadline("job").await, deadline);
        bench.past(deadline).await;
        job = reply.jobs.into_iter().next().unwrap();
    }
    // The settlement writes the record, and so the count in the lease begins anew.
    bench
        .settle(
            "job",
            &job.token,
            later(after(std::time::Duration::ZERO), "failed"),
        )
        .await;
    assert_eq!(bench.claim(&["job"], 0).await.jobs[0].claims, 1);
    assert_eq!(bench.counted("lapsed").await, 3);
    bench.balanced().await;
}

#[tokio::test]
async fn a_slow_worker_finds_another_owner() {
    let bench = Bench::new().await;
    let slow = bench.lapse("job").await;
    let quick = bench.reclaim(&["job"]).await.jobs.remove(0);
    assert_eq!(words(&bench.reclaim(&["job"]).await.answers), ["leased"]);
    assert_eq!(
        words(&bench.renew(&[("job", &slow.token)]).await),
        ["foreign"]
    );
    assert_eq!(
        word(bench.settle("job", &slow.token, Verb::Done).await),
        "foreign"
    );
    assert_eq!(bench.state("job").await, Leased);
    assert_eq!(
        word(bench.settle("job", &quick.token, Verb::Done).await),
        "done"
    );
    assert_eq!(
        word(bench.settle("job", &slow.token, Verb::Done).await),
        "gone"
    );
    bench.balanced().await;
}

#[tokio::test]
async fn a_renewed_lease_is_not_taken_over() {
    let bench = Bench::new().await;
    let job = bench.lapse("job").await;
    assert_eq!(
        words(&bench.renew(&[("job", &job.token)]).await),
        ["renewed"]
    );
    let reply = bench.reclaim(&["job"]).await;
    assert_eq!(
        (words(&reply.answers), reply.jobs.len()),
        (vec!["leased"], 0)
    );
    bench.balanced().await;
}

#[tokio::test]
async fn a_successor_takes_its_place_with_its_own_time_and_record() {
    let bench = Bench::new().await;
    bench.bring("job", LapsedNext).await;
    let (due, record) = bench.successor("job").await;
    bench.reclaim(&["job"]).await;
    assert_eq!(bench.due("job").await, Some(due));
    let promoted = bench.record("job").await;
    assert_eq!(
        (promoted.accepted, promoted.payload),
        (record.accepted, record.payload)
    );
    bench.balanced().await;
}

#[tokio::test]
async fn a_repeat_gets_the_same_jobs_and_a_late_original_is_refused() {
    let bench = Bench::new().await;
    for state in [Lapsed, LapsedNext, LapsedCancelled] {
        bench.bring(&state.id(), state).await;
    }
    bench.lapse("settled").await;
    let named = ["Lapsed", "LapsedNext", "LapsedCancelled", "settled"];
    let mut lane = Lane::new();
    let first = bench.try_reclaim(&mut lane, &named).await.unwrap();
    assert_eq!(
        words(&first.answers),
        ["claimed", "replaced", "cancelled", "claimed"]
    );
    bench
        .settle("settled", &first.jobs[1].token, Verb::Done)
        .await;
    // A repeat changes the deadlines only.
    let mut stored = bench.snapshot().await;
    let repeat = bench
        .try_reclaim(&mut lane.rewound(1), &named)
        .await
        .unwrap();
    assert_eq!(ids(&repeat), ["Lapsed"]);
    assert_eq!(repeat.jobs[0].claims, 2);
    let mut left = bench.snapshot().await;
    for all in [&mut stored, &mut left] {
        all.retain(|name, _| !name.contains(":leased "));
    }
    assert_eq!(left, stored);

    bench.try_reclaim(&mut lane, &["missing"]).await.unwrap();
    bench.lapse("other").await;
    let stored = bench.snapshot().await;
    let late = bench
        .try_reclaim(&mut lane.rewound(1), &["other"])
        .await
        .unwrap_err();
    assert_eq!(late.kind(), ErrorKind::OutcomeUnknown);
    assert_eq!(bench.snapshot().await, stored);
    bench.balanced().await;
}

#[tokio::test]
async fn one_id_twice_is_answered_twice_and_handed_out_once() {
    let bench = Bench::new().await;
    for state in [Leased, Lapsed, LapsedNext, LapsedCancelled] {
        bench.bring(&state.id(), state).await;
    }
    let once = [
        "Leased",
        "Lapsed",
        "LapsedNext",
        "LapsedCancelled",
        "missing",
    ];
    let reply = bench.reclaim(&[once, once].concat()).await;
    let answers = ["leased", "claimed", "replaced", "cancelled", "absent"];
    assert_eq!(words(&reply.answers), [answers, answers].concat());
    assert_eq!(ids(&reply), ["Lapsed"]);
    assert_eq!(bench.counted("lapsed").await, 1);
    bench.balanced().await;
}

#[tokio::test]
async fn a_lease_without_a_token_is_taken_over_too() {
    let bench = Bench::new().await;
    bench.lapse("job").await;
    let names = bench.names();
    for damage in ["", "what is this"] {
        let _: u64 = bench.ask(&["HSET", &names.lease, "job", damage]).await;
        let past = (bench.now().await - 1).to_string();
        let _: u64 = bench.ask(&["ZADD", &names.leased, &past, "job"]).await;
        let job = bench.reclaim(&["job"]).await.jobs.remove(0);
        assert_eq!(job.claims, 2);
        assert_eq!(
            words(&bench.renew(&[("job", &job.token)]).await),
            ["renewed"]
        );
    }
    bench.schedule("job", after(HOUR)).await;
    bench.balanced().await;
}
