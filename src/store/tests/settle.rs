//! `settle.lua`: the end of a lease.

use std::time::Duration;

use super::support::{
    Bench, HOUR, KEPT, NEVER, State, after, at, bury, due_of, foreign_tokens, later,
    same_when_repeated, soon, word, words,
};
use crate::record::Record;
use crate::store::{Answered, Found, Next, Settlement, Verb};
use crate::time::UnixMs;

use State::*;

async fn settle_all(bench: &Bench, jobs: &[(String, String)], verb: Verb) -> Vec<Answered> {
    let items = jobs
        .iter()
        .map(|(id, token)| bench.settlement(id, token, verb.clone()));
    bench.settle_all(&items.collect::<Vec<_>>()).await
}

/// The row of a table for a state without a lease to settle.
fn nothing_to_settle(state: State) -> (State, &'static str, State) {
    (state, "gone", state)
}

#[tokio::test]
async fn done_ends_a_run_and_lets_its_successor_in() {
    let bench = Bench::new().await;
    let jobs = bench.every_state().await;
    let answers = settle_all(&bench, &jobs, Verb::Done).await;
    let table = State::ALL.map(|state| match state {
        Leased | CancelledRun | Lapsed | LapsedCancelled => (state, "done", Absent),
        LeasedNext | CancelledRunNext | LapsedNext | LapsedCancelledNext => {
            (state, "done", Pending)
        }
        other => nothing_to_settle(other),
    });
    bench.hold_against(table, &answers).await;
    assert_eq!(bench.counted("done").await, 8);
    bench.balanced().await;
}

#[tokio::test]
async fn later_retries_unless_the_job_was_cancelled_or_superseded() {
    let bench = Bench::new().await;
    let jobs = bench.every_state().await;
    let answers = settle_all(&bench, &jobs, later(after(HOUR), "failed")).await;
    let table = State::ALL.map(|state| match state {
        Leased | Lapsed => (state, "later", Retrying),
        LeasedNext | LapsedNext => (state, "replaced", Pending),
        CancelledRun | LapsedCancelled => (state, "cancelled", Absent),
        CancelledRunNext | LapsedCancelledNext => (state, "cancelled", Pending),
        other => nothing_to_settle(other),
    });
    bench.hold_against(table, &answers).await;
    assert_eq!(bench.counted("replaced").await, 2);
    assert_eq!(bench.counted("cancelled").await, 4);
    // Two failed attempts were retried, two were superseded, and one had failed on the way to
    // `Retrying`.
    assert_eq!(bench.counted("failed").await, 2 + 2 + 1);
    bench.balanced().await;
}

#[tokio::test]
async fn bury_leaves_a_dead_letter_unless_the_job_was_cancelled() {
    let bench = Bench::new().await;
    let jobs = bench.every_state().await;
    let answers = settle_all(&bench, &jobs, bury()).await;
    let table = State::ALL.map(|state| match state {
        Leased | Lapsed => (state, "buried", Dead),
        LeasedNext | LapsedNext => (state, "buried", Pending),
        CancelledRun | LapsedCancelled => (state, "cancelled", Absent),
        CancelledRunNext | LapsedCancelledNext => (state, "cancelled", Pending),
        other => nothing_to_settle(other),
    });
    bench.hold_against(table, &answers).await;
    assert_eq!(bench.counted("buried").await, 4 + 1);
    bench.balanced().await;
}

#[tokio::test]
async fn a_skipped_job_is_gone_and_its_successor_takes_its_place() {
    let bench = Bench::new().await;
    let jobs = bench.every_state().await;
    let note = "1h late".to_owned();
    let answers = settle_all(&bench, &jobs, Verb::Skip { note }).await;
    let table = State::ALL.map(|state| match state {
        Leased | Lapsed => (state, "skipped", Absent),
        LeasedNext | LapsedNext => (state, "skipped", Pending),
        CancelledRun | LapsedCancelled => (state, "cancelled", Absent),
        CancelledRunNext | LapsedCancelledNext => (state, "cancelled", Pending),
        other => nothing_to_settle(other),
    });
    bench.hold_against(table, &answers).await;
    assert_eq!(bench.counted("unrun").await, 4);
    bench.balanced().await;
}

#[tokio::test]
async fn a_foreign_token_settles_nothing() {
    for (verb, kind) in [Verb::Done, later(after(HOUR), "failed"), bury()]
        .into_iter()
        .flat_map(|verb| (0..3).map(move |kind| (verb.clone(), kind)))
    {
        let bench = Bench::new().await;
        let mut jobs = bench.every_state().await;
        for (_, token) in &mut jobs {
            *token = foreign_tokens(token)[kind].clone();
        }
        let mut stored = bench.snapshot().await;
        let answers = settle_all(&bench, &jobs, verb).await;
        let table = State::ALL.map(|state| match state {
            Absent | Pending | Due | Retrying | Dead => nothing_to_settle(state),
            held => (held, "foreign", held),
        });
        bench.hold_against(table, &answers).await;
        let mut left = bench.snapshot().await;
        for all in [&mut stored, &mut left] {
            all.retain(|name, _| !name.contains(":calls ") && !name.contains(":lanes "));
        }
        assert_eq!(left, stored);
        bench.balanced().await;
    }
}

#[tokio::test]
async fn a_retry_keeps_payload_and_acceptance_and_takes_the_header_of_its_worker() {
    let bench = Bench::new().await;
    let first = bench.run("job", HOUR).await;
    let before = Record::parse(first.record).unwrap();
    let header = r#"{"v":1,"attempts":1,"error":"no luck"}"#;
    let due = bench.now().await + 90_000;
    let verb = Verb::Later {
        when: at(due),
        header: header.into(),
        step: "failed",
    };
    let answer = bench.settle("job", &first.token, verb).await;
    assert_eq!((due_of(answer), bench.due("job").await), (due, Some(due)));
    let record = bench.record("job").await;
    assert_eq!(
        (record.accepted, &record.payload),
        (before.accepted, &before.payload)
    );
    assert_eq!(record.header.to_line(), header);
    assert_eq!(record.steps[0].what, "failed");

    // An empty header keeps the present one.
    bench.reschedule("job", after(Duration::ZERO)).await;
    let second = bench.claim(&["job"], 0).await.jobs.remove(0);
    bench
        .settle("job", &second.token, later(after(HOUR), "again"))
        .await;
    let record = bench.record("job").await;
    assert_eq!(record.header.to_line(), header);
    let steps: Vec<&str> = record.steps.iter().map(|step| step.what.as_str()).collect();
    assert_eq!(steps, ["failed", "postponed", "again"]);
    bench.balanced().await;
}

#[tokio::test]
async fn every_reason_for_a_delay_has_a_counter() {
    let bench = Bench::new().await;
    for step in ["failed", "again", "snoozed", "returned"] {
        let job = bench.run(step, HOUR).await;
        bench
            .settle(step, &job.token, later(after(HOUR), step))
            .await;
        assert_eq!(bench.counted(step).await, 1);
        assert_eq!(bench.record(step).await.steps[0].what, step);
    }
    bench.balanced().await;
}

#[tokio::test]
async fn a_successor_takes_over_with_its_own_time_and_record() {
    for verb in [Verb::Done, later(after(HOUR), "failed"), bury()] {
        let bench = Bench::new().await;
        let token = bench.bring("job", LeasedNext).await;
        let (due, record) = bench.successor("job").await;
        bench.settle("job", &token, verb).await;
        assert_eq!(bench.due("job").await, Some(due));
        let promoted = bench.record("job").await;
        assert_eq!(
            (promoted.accepted, promoted.payload),
            (record.accepted, record.payload)
        );
        assert!(promoted.steps.is_empty());
        bench.balanced().await;
    }
}

#[tokio::test]
async fn a_repeat_gets_the_first_answer_and_a_late_original_is_refused() {
    for verb in [Verb::Done, later(after(HOUR), "failed"), bury()] {
        let bench = Bench::new().await;
        let running = bench.run("running", HOUR).await.token;
        let lapsed = bench.lapse("lapsed").await.token;
        let followed = bench.bring("followed", LeasedNext).await;
        let items = [
            bench.settlement("running", &running, verb.clone()),
            bench.settlement("lapsed", &lapsed, verb.clone()),
            bench.settlement("followed", &followed, verb.clone()),
            bench.settlement("missing", &running, verb),
        ];
        same_when_repeated(&bench, async |lane| {
            let settled = bench.ledger.settle(lane, &items, KEPT, soon()).await;
            settled.map(|(answers, _)| answers)
        })
        .await;
        bench.balanced().await;
    }
}

#[tokio::test]
async fn one_id_twice_is_settled_once() {
    for (verb, word) in [(Verb::Done, "done"), (bury(), "buried")] {
        let bench = Bench::new().await;
        let job = bench.run("job", HOUR).await;
        let items = [
            bench.settlement("job", &job.token, verb.clone()),
            bench.settlement("job", &job.token, later(after(HOUR), "failed")),
            bench.settlement("job", &job.token, verb),
        ];
        assert_eq!(
            words(&bench.settle_all(&items).await),
            [word, "gone", "gone"]
        );
        bench.balanced().await;
    }
}

#[tokio::test]
async fn a_batch_is_settled_item_by_item() {
    let bench = Bench::new().await;
    let mut tokens = Vec::new();
    for id in ["done", "later", "buried", "foreign"] {
        tokens.push(bench.run(id, HOUR).await.token);
    }
    let items = [
        bench.settlement("done", &tokens[0], Verb::Done),
        bench.settlement("later", &tokens[1], later(after(HOUR), "again")),
        bench.settlement("buried", &tokens[2], bury()),
        bench.settlement("foreign", NEVER, Verb::Done),
        bench.settlement("gone", NEVER, Verb::Done),
    ];
    let answers = bench.settle_all(&items).await;
    assert_eq!(
        words(&answers),
        ["done", "later", "buried", "foreign", "gone"]
    );
    let found = bench.ledger.get("buried", soon()).await.unwrap();
    let Found::Dead { record, .. } = found else {
        panic!("{found:?}")
    };
    let record = Record::parse(record).unwrap();
    assert_eq!(record.header.error.as_deref(), Some("no"));
    assert_eq!(record.steps[0].what, "buried");
    assert_eq!(&record.payload[..], b"buried");
    let foreign = bench.settle("foreign", &tokens[3], Verb::Done).await;
    assert_eq!(word(foreign), "done");
    bench.balanced().await;
}

#[tokio::test]
async fn a_job_that_goes_back_stays_as_overdue_as_it_was() {
    let bench = Bench::new().await;
    bench.schedule("old", after(Duration::ZERO)).await;
    let past = bench.now().await - 7_200_000;
    let due = bench.names().due.clone();
    let _: u64 = bench.ask(&["ZADD", &due, &past.to_string(), "old"]).await;
    let run = bench.claim(&["old"], 0).await.jobs.remove(0);
    let back = later(at(past), "returned");
    assert_eq!(due_of(bench.settle("old", &run.token, back).await), past);
    assert_eq!(bench.due("old").await, Some(past));
    bench.balanced().await;
}

#[tokio::test]
async fn jobs_of_several_claims_are_done_by_their_own_tokens() {
    let bench = Bench::new().await;
    let one = bench.run("one", HOUR).await;
    let other = bench.run("other", HOUR).await;
    assert_ne!(one.token, other.token);
    let jobs = [("one", one.token), ("other", other.token)];
    let jobs = jobs.map(|(id, token)| (id.to_owned(), token.to_string()));
    let answers = settle_all(&bench, &jobs, Verb::Done).await;
    assert_eq!(words(&answers), ["done", "done"]);
    bench.balanced().await;
}

/// The header of an occurrence.
fn occurrence(number: u64) -> String {
    let recurring = format!(r#"{{"rule":{{"every":"1h"}},"n":{number},"at":1,"due":1}}"#);
    format!(r#"{{"recur":{recurring},"v":2}}"#)
}

#[tokio::test]
async fn each_recurring_job_of_a_batch_is_followed_by_its_own_occurrence() {
    let bench = Bench::new().await;
    let ids = ["a", "b", "last"];
    let placements = ids.map(|id| {
        let mut placement = bench.placement(id, after(Duration::ZERO));
        placement.header = occurrence(1).into();
        placement
    });
    bench.place(&placements).await;
    let token = bench.claim(&ids, 0).await.jobs[0].token.clone();
    // A caller that knows nothing of the rule ends nothing.
    for verb in [Verb::Done, bury()] {
        assert_eq!(word(bench.settle("a", &token, verb).await), "recurs");
    }
    let far = bench.now().await + 1_000_000;
    let ends: Vec<Settlement> = [(far, 2), (far + 5, 7), (0, 0)]
        .iter()
        .zip(ids)
        .map(|((due, number), id)| Settlement {
            next: match number {
                0 => Next::Nothing,
                number => Next::At(UnixMs(*due), occurrence(*number)),
            },
            ..bench.settlement(id, &token, Verb::Done)
        })
        .collect();
    let answers = words(&bench.settle_all(&ends).await);
    assert_eq!(answers, ["done", "done", "done"]);
    for (id, due, number) in [("a", far, 2), ("b", far + 5, 7)] {
        let found = bench.ledger.get(id, soon()).await.unwrap();
        let Found::Pending { due: stored, .. } = found else {
            panic!("{found:?}");
        };
        assert_eq!(stored, UnixMs(due));
        let header = bench.record(id).await.header;
        assert_eq!(header.recur().unwrap().view().number, number);
    }
    assert_eq!(bench.state("last").await, Absent);
    assert_eq!(bench.counted("accepted").await, 5);
    bench.balanced().await;
}
