//! `update.lua`: another payload, all else kept.

use super::support::{Bench, HOUR, State, after, bury, later, same_when_repeated, soon, words};
use crate::store::{Lane, Update, Verb, Word};

use State::*;

async fn update(bench: &Bench, items: &[Update]) -> Vec<Word> {
    let answers = bench
        .ledger
        .update(&mut Lane::new(), items, soon())
        .await
        .unwrap();
    answers.iter().map(|answered| answered.answer).collect()
}

#[tokio::test]
async fn it_changes_the_payload_of_the_next_run_only() {
    let bench = Bench::new().await;
    let jobs = bench.every_state().await;
    let stored = bench.snapshot().await;
    let item = |(id, _): &(String, String)| bench.update(id, b"new");
    let items: Vec<_> = jobs.iter().map(item).collect();
    let mut lane = Lane::new();
    let answers = bench.ledger.update(&mut lane, &items, soon()).await;
    let answers = answers.unwrap();
    let table = [
        (Absent, "absent", Absent),
        (Pending, "updated", Pending),
        (Due, "updated", Due),
        (Retrying, "updated", Retrying),
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
    for ((id, _), answered) in jobs.iter().zip(&answers) {
        let record = match answered.answer {
            Word::Absent => continue,
            Word::Updated(due) => {
                assert_eq!(bench.due(id).await, Some(due.0));
                bench.record(id).await
            }
            Word::SuccessorMoved(due) => {
                assert_eq!(&bench.record(id).await.payload[..], id.as_bytes());
                let (next, record) = bench.successor(id).await;
                assert_eq!(next, due.0);
                record
            }
            _ => bench.record(id).await,
        };
        assert_eq!(&record.payload[..], b"new", "{id}");
        assert_eq!(record.steps.last().unwrap().what, "updated", "{id}");
    }
    // The call changes only the records, and the memory of calls.
    let mut left = bench.snapshot().await;
    let names = bench.names();
    let written = [
        &names.shadow,
        &names.next,
        &names.calls,
        &names.lanes,
        &names.history,
    ];
    left.retain(|name, value| stored.get(name) != Some(value));
    for name in left.keys() {
        let key = name.split(' ').next().unwrap();
        assert!(written.iter().any(|key_of| *key_of == key), "{name}");
    }
    bench.balanced().await;
}

#[tokio::test]
async fn a_payload_updated_during_a_run_goes_to_the_retry_and_the_letter() {
    let bench = Bench::new().await;
    let job = bench.run("job", HOUR).await;
    let header = r#"{"v":1,"attempts":1,"error":"no"}"#;
    assert_eq!(
        update(&bench, &[bench.update("job", b"a\nb")]).await,
        [Word::Running]
    );
    let retry = Verb::Later {
        when: after(std::time::Duration::ZERO),
        header: header.into(),
        step: "failed",
    };
    bench.settle("job", &job.token, retry).await;
    let record = bench.record("job").await;
    assert_eq!(&record.payload[..], b"a\nb");
    assert_eq!(
        record.header.to_line(),
        header,
        "what the run wrote is kept, too"
    );

    let job = bench.claim(&["job"], 0).await.jobs.remove(0);
    assert!(job.record.ends_with(b"\na\nb"));
    update(&bench, &[bench.update("job", b"last")]).await;
    bench.settle("job", &job.token, bury()).await;
    let letters = bench
        .ledger
        .letters("job", None, 1, soon())
        .await
        .unwrap()
        .unwrap();
    assert!(letters[0].record.ends_with(b"\nlast"));
    bench.balanced().await;
}

#[tokio::test]
async fn a_taken_over_or_returned_run_gets_the_new_payload() {
    let bench = Bench::new().await;
    let lapsed = bench.lapse("lapsed").await;
    let back = bench.run("back", HOUR).await;
    let items = ["lapsed", "back"].map(|id| bench.update(id, b"new"));
    assert_eq!(update(&bench, &items).await, [Word::Running, Word::Running]);
    let again = bench.reclaim(&["lapsed"]).await.jobs.remove(0);
    assert_ne!(again.token, lapsed.token);
    assert!(again.record.ends_with(b"\nnew"));
    bench
        .settle("back", &back.token, later(after(HOUR), "returned"))
        .await;
    assert_eq!(&bench.record("back").await.payload[..], b"new");
    bench.balanced().await;
}

#[tokio::test]
async fn one_id_twice_in_a_batch_counts_as_two_calls_in_order() {
    let bench = Bench::new().await;
    for (id, state) in [("pending", Pending), ("running", LeasedNext)] {
        bench.bring(id, state).await;
        update(&bench, &[bench.update(id, b"1"), bench.update(id, b"2")]).await;
        let record = match state {
            Pending => bench.record(id).await,
            _ => bench.successor(id).await.1,
        };
        assert_eq!(&record.payload[..], b"2");
        assert_eq!(record.steps.len(), 2);
    }
    bench.balanced().await;
}

#[tokio::test]
async fn a_repeat_gets_the_first_answer_and_a_late_original_is_refused() {
    let bench = Bench::new().await;
    for (id, state) in [
        ("pending", Pending),
        ("running", Leased),
        ("next", LeasedNext),
    ] {
        bench.bring(id, state).await;
    }
    let ids = ["pending", "running", "next", "missing"];
    let items = ids.map(|id| bench.update(id, b"new"));
    same_when_repeated(&bench, async |lane| {
        bench.ledger.update(lane, &items, soon()).await
    })
    .await;
    bench.balanced().await;
}

#[tokio::test]
async fn a_job_without_a_record_is_buried_with_its_new_payload() {
    let bench = Bench::new().await;
    bench.bring("job", Due).await;
    let _: u64 = bench.ask(&["HDEL", &bench.names().shadow, "job"]).await;
    let answers = update(&bench, &[bench.update("job", b"new")]).await;
    assert!(matches!(answers[..], [Word::Updated(_)]), "{answers:?}");
    let job = bench.claim(&["job"], 0).await.jobs.remove(0);
    assert!(crate::record::Record::parse(job.record).is_err());
    let buried = [bench.settlement("job", &job.token, bury())];
    assert_eq!(words(&bench.settle_all(&buried).await), ["buried"]);
    let letters = bench
        .ledger
        .letters("job", None, 1, soon())
        .await
        .unwrap()
        .unwrap();
    assert!(letters[0].record.ends_with(b"\nnew"));
    bench.balanced().await;
}
