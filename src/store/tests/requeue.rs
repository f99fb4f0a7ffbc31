//! `requeue.lua`: dead letters become jobs again.

use std::time::Duration;

use super::support::{
    Bench, Ears, HOUR, LATER, State, after, at, due_of, same_when_repeated, soon, word, words,
};
use crate::names::MARKER;
use crate::store::{Lane, Revival, Word};

use State::*;

async fn requeue(bench: &Bench, items: &[Revival]) -> Vec<Word> {
    let answers = bench
        .ledger
        .requeue(&mut Lane::new(), items, soon())
        .await
        .unwrap();
    answers.iter().map(|answered| answered.answer).collect()
}

#[tokio::test]
async fn a_letter_becomes_a_job_unless_its_name_is_taken() {
    let bench = Bench::new().await;
    let mut items = Vec::new();
    for state in State::ALL {
        let letter = bench.die(&state.id()).await;
        bench.bring(&state.id(), state).await;
        items.push(bench.revival(&state.id(), letter, after(HOUR)));
    }
    let mut lane = Lane::new();
    let answers = bench.ledger.requeue(&mut lane, &items, soon()).await;
    let table = [
        (Absent, "requeued", Pending),
        (Pending, "present", Pending),
        (Due, "present", Due),
        (Retrying, "present", Retrying),
        (Leased, "present", Leased),
        (LeasedNext, "present", LeasedNext),
        (CancelledRun, "present", CancelledRun),
        (CancelledRunNext, "present", CancelledRunNext),
        (Lapsed, "present", Lapsed),
        (LapsedNext, "present", LapsedNext),
        (LapsedCancelled, "present", LapsedCancelled),
        (LapsedCancelledNext, "present", LapsedCancelledNext),
        (Dead, "requeued", Pending),
    ];
    bench.hold_against(table, &answers.unwrap()).await;
    let stats = bench.balanced().await;
    // There is one letter for each of 13 names, and a second one for `Dead`; two letters are
    // requeued.
    assert_eq!((stats.requeued, stats.dead), (2, 14 - 2));
}

#[tokio::test]
async fn without_the_letter_the_answer_is_absent_in_every_state() {
    let bench = Bench::new().await;
    let jobs = bench.every_state().await;
    let item = |(id, _): &(String, String)| bench.revival(id, 99, after(HOUR));
    let items: Vec<_> = jobs.iter().map(item).collect();
    let answers = requeue(&bench, &items).await;
    assert!(answers.iter().all(|answer| *answer == Word::Absent));
    for state in State::ALL {
        assert_eq!(bench.state(&state.id()).await, state);
    }
    assert_eq!(bench.balanced().await.requeued, 0);
}

#[tokio::test]
async fn it_keeps_everything_but_the_header() {
    let bench = Bench::new().await;
    let letter = bench.die("job").await;
    let stored = bench
        .ledger
        .letters("job", None, 1, soon())
        .await
        .unwrap()
        .unwrap();
    let died = crate::record::Record::parse(stored[0].record.clone()).unwrap();
    let revival = Revival::of(bench.key("job"), &stored[0], after(HOUR)).unwrap();
    assert_eq!((revival.letter, &*revival.header), (letter, r#"{"v":1}"#));
    let mut ears = Ears::of(&bench).await;
    let answers = requeue(&bench, &[revival]).await;

    let due = due_of(answers[0]);
    assert_eq!(bench.due("job").await, Some(due));
    let record = bench.record("job").await;
    assert_eq!(
        (record.accepted, &record.payload),
        (died.accepted, &died.payload)
    );
    assert_eq!((record.header.attempts, &record.header.error), (0, &None));
    let steps: Vec<&str> = record.steps.iter().map(|step| step.what.as_str()).collect();
    assert_eq!(steps, ["buried", "requeued"]);
    let trigger: String = bench.ask(&["GET", bench.key("job").as_str()]).await;
    assert_eq!(trigger, MARKER);
    let wake = format!("due {} {due}", bench.ledger.subject());
    assert_eq!(ears.heard(&bench).await, [wake]);
    assert!(
        bench
            .ledger
            .letters("job", None, 9, soon())
            .await
            .unwrap()
            .unwrap()
            .is_empty()
    );
    bench.balanced().await;
}

#[tokio::test]
async fn the_letter_with_the_number_is_taken() {
    let bench = Bench::new().await;
    let [first, second, third] = [
        bench.die("job").await,
        bench.die("job").await,
        bench.die("job").await,
    ];
    let items = [
        bench.revival("job", second, after(HOUR)),
        bench.revival("job", second, after(LATER)),
        bench.revival("job", third, after(LATER)),
    ];
    let answers = requeue(&bench, &items).await;
    let said: Vec<&str> = answers.iter().map(|answer| word(*answer)).collect();
    assert_eq!(said, ["requeued", "absent", "present"]);
    assert_eq!(bench.due("job").await, Some(due_of(answers[0])));
    let left = bench
        .ledger
        .letters("job", None, 9, soon())
        .await
        .unwrap()
        .unwrap();
    let left: Vec<u64> = left.iter().map(|letter| letter.number).collect();
    assert_eq!(left, [third, first]);
    bench.balanced().await;
}

#[tokio::test]
async fn a_job_due_at_once_can_be_claimed_and_counts_its_attempts_anew() {
    let bench = Bench::new().await;
    let letter = bench.die("job").await;
    requeue(&bench, &[bench.revival("job", letter, at(0))]).await;
    let job = bench.claim(&["job"], 0).await.jobs.remove(0);
    assert_eq!(job.claims, 1);
    assert_eq!(bench.record("job").await.header.attempts, 0);
    bench.balanced().await;
}

#[tokio::test]
async fn a_repeat_gets_the_first_answer_and_a_late_original_is_refused() {
    let bench = Bench::new().await;
    let letter = bench.die("dead").await;
    let other = bench.die("present").await;
    bench.bring("present", Pending).await;
    let items = [
        bench.revival("dead", letter, after(HOUR)),
        bench.revival("present", other, after(HOUR)),
        bench.revival("missing", 7, after(HOUR)),
    ];
    same_when_repeated(&bench, async |lane| {
        bench.ledger.requeue(lane, &items, soon()).await
    })
    .await;
    assert_eq!(bench.balanced().await.requeued, 1);
}

#[tokio::test]
async fn a_foreign_value_under_its_name_is_left_alone_and_reported() {
    let bench = Bench::new().await;
    let letter = bench.die("job").await;
    let _: String = bench
        .ask(&["SET", bench.key("job").as_str(), "theirs"])
        .await;
    let items = [bench.revival("job", letter, after(HOUR))];
    let answers = bench
        .ledger
        .requeue(&mut Lane::new(), &items, soon())
        .await
        .unwrap();
    assert_eq!(words(&answers), ["requeued"]);
    assert!(answers[0].unarmed);
    let left: String = bench.ask(&["GET", bench.key("job").as_str()]).await;
    assert_eq!(left, "theirs");
    bench.balanced().await;
}

#[tokio::test]
async fn a_letter_without_a_record_cannot_be_requeued() {
    let bench = Bench::new().await;
    let letter = bench.die("job").await;
    let name = format!("job:{letter}");
    let _: u64 = bench.ask(&["HDEL", &bench.names().grave, &name]).await;
    let items = [bench.revival("job", letter, after(Duration::ZERO))];
    assert_eq!(requeue(&bench, &items).await, [Word::Absent]);
    let discarded = [bench.discard("job", letter)];
    let mut lane = Lane::new();
    let answers = bench.ledger.discard(&mut lane, &discarded, soon()).await;
    assert_eq!(
        words(&answers.unwrap()),
        ["deleted"],
        "and can be swept away"
    );
    bench.balanced().await;
}
