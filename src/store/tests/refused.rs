//! A server that refuses calls: at its memory limit new work, while present work goes on; as a
//! replica all work; and the calls that an ACL forbids.

use std::time::Duration;

use super::support::{
    Bench, HOUR, KEPT, PENDING, State, after, bury, later, soon, suspect, word, words,
};
use crate::ErrorKind;
use crate::embedded::Embedded;
use crate::flaw::Flaw;
use crate::store::{KeptAs, Lane, Mode, Placement, SeriesCall, Verb};

use State::*;

/// A server for this test, with jobs in every state, that is at its memory limit.
async fn full() -> (Embedded, Bench, Vec<(String, String)>) {
    let server = Embedded::start().await.unwrap();
    let bench = Bench::on(&server).await;
    let jobs = bench.every_state().await;
    let _: String = bench.ask(&["CONFIG", "SET", "maxmemory", "1"]).await;
    (server, bench, jobs)
}

#[tokio::test]
async fn schedule_is_refused_and_writes_nothing() {
    let (_server, bench, jobs) = full().await;
    let stored = bench.snapshot().await;
    let absent = |id| Placement {
        mode: Mode::Absent,
        ..bench.placement(id, after(HOUR))
    };
    let mut calls: Vec<Vec<Placement>> = Vec::new();
    for (id, _) in &jobs {
        calls.push(vec![bench.placement(id, after(HOUR))]);
        calls.push(vec![absent(id)]);
    }
    calls.push(calls.concat());
    let mut lane = Lane::new();
    for items in calls {
        let error = bench
            .ledger
            .schedule(&mut lane, &items, soon())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full, "{error}");
        assert_eq!(bench.snapshot().await, stored);
        let triggers: u64 = bench.ask(&["EXISTS", bench.key("Absent").as_str()]).await;
        assert_eq!(triggers, 0);
    }
    // Once there is room again, the same lane goes on.
    let _: String = bench.ask(&["CONFIG", "SET", "maxmemory", "0"]).await;
    let items = [bench.placement("new", after(HOUR))];
    let answers = bench
        .ledger
        .schedule(&mut lane, &items, soon())
        .await
        .unwrap();
    assert_eq!(words(&answers), ["created"]);
    bench.balanced().await;
}

#[tokio::test]
async fn reschedule_is_refused_and_writes_nothing() {
    let (_server, bench, jobs) = full().await;
    let stored = bench.snapshot().await;
    for (id, _) in &jobs {
        let items = [bench.change(id, after(HOUR), "postponed")];
        let mut lane = Lane::new();
        let error = bench
            .ledger
            .reschedule(&mut lane, &items, soon())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full, "{error}");
        assert_eq!(bench.snapshot().await, stored);
    }
    bench.balanced().await;
}

#[tokio::test]
async fn update_is_refused_and_writes_nothing() {
    let (_server, bench, jobs) = full().await;
    let stored = bench.snapshot().await;
    for (id, _) in &jobs {
        let items = [bench.update(id, b"new")];
        let mut lane = Lane::new();
        let error = bench.ledger.update(&mut lane, &items, soon()).await;
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Full);
        assert_eq!(bench.snapshot().await, stored);
    }
    bench.balanced().await;
}

#[tokio::test]
async fn amend_is_refused_and_writes_nothing() {
    let (_server, bench, jobs) = full().await;
    let stored = bench.snapshot().await;
    let there = |(id, _): &&(String, _)| ![Absent, Dead].iter().any(|state| state.id() == *id);
    for (id, _) in jobs.iter().filter(there) {
        let items = [bench.amendment(id, after(HOUR)).await];
        let mut lane = Lane::new();
        let error = bench.ledger.amend(&mut lane, &items, soon()).await;
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Full);
        assert_eq!(bench.snapshot().await, stored);
    }
    bench.balanced().await;
}

#[tokio::test]
async fn plan_is_refused_unless_it_only_removes_jobs() {
    let (_server, bench, _) = full().await;
    let stored = bench.snapshot().await;
    let send = async |jobs: Vec<_>| {
        let key = bench.key("Pending");
        let items = [SeriesCall { key, jobs }];
        let mut lane = Lane::new();
        bench.ledger.plan(&mut lane, &items, soon()).await
    };
    for id in ["Pending", "Absent"] {
        let jobs = vec![bench.of_series(id, Some(after(HOUR))).await];
        assert_eq!(send(jobs).await.unwrap_err().kind(), ErrorKind::Full);
        assert_eq!(bench.snapshot().await, stored);
    }
    let jobs = vec![bench.of_series("Pending", None).await];
    assert_eq!(words(&send(jobs).await.unwrap()), ["planned"]);
    assert_eq!(bench.state("Pending").await, Absent);
    bench.balanced().await;
}

#[tokio::test]
async fn requeue_is_refused_and_writes_nothing() {
    let (_server, bench, _) = full().await;
    let stored = bench.snapshot().await;
    let items = [bench.revival("Dead", 1, after(HOUR))];
    let mut lane = Lane::new();
    let error = bench.ledger.requeue(&mut lane, &items, soon()).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Full);
    assert_eq!(bench.snapshot().await, stored);
    bench.balanced().await;
}

#[tokio::test]
async fn restore_is_refused_and_writes_nothing() {
    let (_server, bench, _) = full().await;
    let stored = bench.snapshot().await;
    for what in [PENDING, KeptAs::Dead] {
        let items = [bench.kept("Absent", what, 1)];
        let mut lane = Lane::new();
        let error = bench.ledger.restore(&mut lane, &items, soon()).await;
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Full);
        assert_eq!(bench.snapshot().await, stored);
    }
    bench.balanced().await;
}

#[tokio::test]
async fn touch_works() {
    let (_server, bench, _) = full().await;
    let mut lane = Lane::new();
    let nobody = [bench.key("Absent")];
    let cancelled = bench.ledger.cancel(&mut lane, &nobody, soon()).await;
    cancelled.unwrap();
    let reached = bench.ledger.reached(&lane, 0.into(), soon()).await;
    assert!(reached.unwrap().unwrap().is_met);
    bench.balanced().await;
}

#[tokio::test]
async fn discard_works() {
    let (_server, bench, _) = full().await;
    let items = [bench.discard("Dead", 1), bench.discard("Absent", 1)];
    let mut lane = Lane::new();
    let answers = bench.ledger.discard(&mut lane, &items, soon()).await;
    assert_eq!(words(&answers.unwrap()), ["deleted", "absent"]);
    assert_eq!(bench.state("Dead").await, Absent);
    bench.balanced().await;
}

#[tokio::test]
async fn cancel_works() {
    let (_server, bench, _) = full().await;
    for (state, answer) in [
        (Absent, "absent"),
        (Pending, "cancelled"),
        (Leased, "running"),
        (LeasedNext, "running"),
    ] {
        assert_eq!(word(bench.cancel(&state.id()).await), answer);
    }
    assert_eq!(bench.state("LeasedNext").await, CancelledRun);
    bench.balanced().await;
}

#[tokio::test]
async fn claim_and_reclaim_work() {
    let (_server, bench, _) = full().await;
    let lane = Lane::new();
    for answers in [&["absent", "claimed"][..], &[]] {
        let claim = bench
            .try_claim(&mut lane.rewound(1), &["Absent", "Due"], 5, HOUR)
            .await;
        let claim = claim.unwrap();
        assert_eq!(
            (words(&claim.answers), claim.jobs.len()),
            (answers.to_vec(), 1)
        );
    }
    // A full Redis also remembers a claim without jobs.
    assert!(bench.claim(&[], 5).await.jobs.is_empty());
    let reply = bench
        .reclaim(&["Lapsed", "LapsedNext", "LapsedCancelled", "Leased"])
        .await;
    assert_eq!(
        words(&reply.answers),
        ["claimed", "replaced", "cancelled", "leased"]
    );
    assert_eq!(bench.state("LapsedNext").await, Pending);
    assert!(bench.reclaim(&["Absent"]).await.jobs.is_empty());
    bench.balanced().await;
}

#[tokio::test]
async fn pause_is_refused_and_resume_works() {
    let (_server, bench, _) = full().await;
    let stored = bench.snapshot().await;
    let lane = &mut Lane::new();
    let error = bench.ledger.pause(lane, None, soon()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full, "{error}");
    assert_eq!(bench.snapshot().await, stored);
    let _: String = bench.ask(&["CONFIG", "SET", "maxmemory", "0"]).await;
    bench.ledger.pause(lane, None, soon()).await.unwrap();
    let _: String = bench.ask(&["CONFIG", "SET", "maxmemory", "1"]).await;
    assert!(bench.claim(&["Due"], 0).await.paused);
    bench.ledger.resume(lane, None, soon()).await.unwrap();
    assert!(!bench.claim(&["Due"], 0).await.paused);
    bench.balanced().await;
}

#[tokio::test]
async fn audit_works() {
    let (_server, bench, _) = full().await;
    let shadow = bench.names().shadow.clone();
    for id in ["Pending", "Lapsed"] {
        let _: u64 = bench.ask(&["HDEL", &shadow, id]).await;
    }
    let names = ["Pending", "Lapsed", "LapsedNext"];
    let items = names.map(|name| (suspect(name), String::new()));
    let found = bench.ledger.audit(&items, true, soon()).await.unwrap();
    let flaws = [Flaw::DueWithoutRecord, Flaw::LapsedWithoutRecord].map(Some);
    let found: Vec<_> = found.iter().map(|it| it.map(|it| it.flaw)).collect();
    assert_eq!(found, [flaws[0], flaws[1], None]);
    assert_eq!(bench.state("Pending").await, Dead);
    bench.balanced().await;
}

#[tokio::test]
async fn renew_works() {
    let (_server, bench, jobs) = full().await;
    for (state, (id, token)) in State::ALL.iter().zip(&jobs) {
        let answer = match state {
            Leased | LeasedNext | Lapsed | LapsedNext => "renewed",
            CancelledRun | CancelledRunNext | LapsedCancelled | LapsedCancelledNext => "cancelled",
            _ => "gone",
        };
        assert_eq!(words(&bench.renew(&[(id, token)]).await), [answer]);
    }
    assert_eq!(bench.state("Lapsed").await, Leased);
    bench.balanced().await;
}

#[tokio::test]
async fn settle_works() {
    for verb in [Verb::Done, later(after(HOUR), "failed"), bury()] {
        let (_server, bench, jobs) = full().await;
        for (id, token) in &jobs {
            bench.settle(id, token, verb.clone()).await;
        }
        let stats = bench.balanced().await;
        assert_eq!((stats.leased, stats.successors), (0, 0));
        let trigger: u64 = bench
            .ask(&["EXISTS", bench.key("LeasedNext").as_str()])
            .await;
        assert_eq!(trigger, 1, "what is pending again has its trigger");
    }
}

#[tokio::test]
async fn a_full_server_that_forgot_the_scripts_gets_them_again() {
    let (_server, bench, _) = full().await;
    let _: String = bench.ask(&["SCRIPT", "FLUSH"]).await;
    let due = bench.claim(&["Due"], 0).await.jobs.remove(0);
    let _: String = bench.ask(&["SCRIPT", "FLUSH"]).await;
    assert_eq!(
        words(&bench.renew(&[("Due", &due.token)]).await),
        ["renewed"]
    );
    let _: String = bench.ask(&["SCRIPT", "FLUSH"]).await;
    let items = [bench.settlement("Due", &due.token, Verb::Done)];
    let mut lane = Lane::new();
    let settled = bench
        .ledger
        .settle(&mut lane, &items, KEPT, soon())
        .await
        .unwrap();
    assert_eq!(words(&settled.0), ["done"]);
    let _: String = bench.ask(&["SCRIPT", "FLUSH"]).await;
    let sweep = bench
        .ledger
        .sweep(Duration::ZERO, (0, 0), 10, soon())
        .await
        .unwrap();
    assert!(sweep.overdue.is_empty());
    let _: String = bench.ask(&["SCRIPT", "FLUSH"]).await;
    bench.balanced().await;
}

#[tokio::test]
async fn the_error_of_a_replica_or_an_acl_names_who_must_mend_it() {
    let server = Embedded::start().await.unwrap();
    let bench = Bench::on(&server).await;
    bench.bring("job", Pending).await;
    let stored = bench.snapshot().await;

    let rights = [
        "ACL", "SETUSER", "meek", "on", ">secret", "~*", "&*", "+@all", "-hincrby",
    ];
    let _: String = bench.ask(&rights).await;
    let url = format!("{}?user=meek&pass=secret", server.url());
    let meek = Bench::of(&url, bench.ledger.kind().clone()).await;
    let _: String = bench.ask(&["REPLICAOF", "127.0.0.1", "1"]).await;
    for (who, kind) in [(&bench, ErrorKind::ReadOnly), (&meek, ErrorKind::Denied)] {
        let items = [bench.placement("job", after(HOUR))];
        let mut lane = Lane::new();
        let error = who
            .ledger
            .schedule(&mut lane, &items, soon())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        if kind == ErrorKind::ReadOnly {
            let _: String = bench.ask(&["REPLICAOF", "NO", "ONE"]).await;
        }
    }
    assert_eq!(bench.snapshot().await, stored);
    meek.balanced().await;
    bench.balanced().await;
}

#[tokio::test]
async fn a_ledger_that_cannot_get_all_its_keys_says_so() {
    let (_server, bench, _) = full().await;
    let (server, kind) = (&bench.ledger.server, bench.ledger.kind());
    let refused = server.found_one(kind, 1, soon()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Full, "{refused}");
    let _: String = bench.ask(&["CONFIG", "SET", "maxmemory", "0"]).await;
    server.found_one(kind, 1, soon()).await.unwrap();
    bench.balanced().await;
}
