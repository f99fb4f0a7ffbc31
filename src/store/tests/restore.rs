//! `restore.lua`: jobs and dead letters come back from a backup.

use super::support::{
    Bench, Ears, HOUR, PENDING, State, bury, same_when_repeated, soon, word, words,
};
use crate::names::MARKER;
use crate::store::{BackupItem, KeptAs, Lane, Word};

use State::*;

/// Due times far ahead and long past.
const AHEAD: u64 = 9_999_999_999_999;
const PAST: u64 = 1_000_000_000_000;

const REPLACING: KeptAs = KeptAs::Pending { replace: true };

async fn everywhere(bench: &Bench, what: KeptAs) -> Vec<crate::store::Answered> {
    let items: Vec<BackupItem> = State::ALL
        .iter()
        .map(|state| bench.kept(&state.id(), what, AHEAD))
        .collect();
    bench.restore(&items).await
}

#[tokio::test]
async fn a_job_is_restored_if_its_name_is_free() {
    let bench = Bench::new().await;
    bench.every_state().await;
    let answers = everywhere(&bench, PENDING).await;
    let table = [
        (Absent, "created", Retrying),
        (Pending, "exists", Pending),
        (Due, "exists", Due),
        (Retrying, "exists", Retrying),
        (Leased, "running", Leased),
        (LeasedNext, "running", LeasedNext),
        (CancelledRun, "running", CancelledRun),
        (CancelledRunNext, "running", CancelledRunNext),
        (Lapsed, "running", Lapsed),
        (LapsedNext, "running", LapsedNext),
        (LapsedCancelled, "running", LapsedCancelled),
        (LapsedCancelledNext, "running", LapsedCancelledNext),
        (Dead, "created", Retrying),
    ];
    bench.hold_against(table, &answers).await;
    bench.balanced().await;
}

#[tokio::test]
async fn in_mode_set_it_replaces_a_pending_job() {
    let bench = Bench::new().await;
    bench.every_state().await;
    let answers = everywhere(&bench, REPLACING).await;
    let table = [
        (Absent, "created", Retrying),
        (Pending, "replaced", Retrying),
        (Due, "replaced", Retrying),
        (Retrying, "replaced", Retrying),
        (Leased, "running", Leased),
        (LeasedNext, "running", LeasedNext),
        (CancelledRun, "running", CancelledRun),
        (CancelledRunNext, "running", CancelledRunNext),
        (Lapsed, "running", Lapsed),
        (LapsedNext, "running", LapsedNext),
        (LapsedCancelled, "running", LapsedCancelled),
        (LapsedCancelledNext, "running", LapsedCancelledNext),
        (Dead, "created", Retrying),
    ];
    bench.hold_against(table, &answers).await;
    bench.balanced().await;
}

#[tokio::test]
async fn a_letter_is_restored_beside_any_job_of_its_name() {
    let bench = Bench::new().await;
    bench.every_state().await;
    let stats = bench.balanced().await;
    let answers = everywhere(&bench, KeptAs::Dead).await;
    assert!(words(&answers).iter().all(|word| *word == "buried"));
    for state in State::ALL {
        let expected = if state == Absent { Dead } else { state };
        assert_eq!(bench.state(&state.id()).await, expected);
    }
    let after = bench.balanced().await;
    assert_eq!(after.dead, stats.dead + 13);
    assert_eq!(after.accepted, stats.accepted + 13);
    let again = everywhere(&bench, KeptAs::Dead).await;
    assert!(words(&again).iter().all(|word| *word == "exists"));
    assert_eq!(bench.balanced().await.dead, after.dead);
}

#[tokio::test]
async fn all_parts_of_a_record_are_restored() {
    let bench = Bench::new().await;
    let mut ears = Ears::of(&bench).await;
    let items = [
        bench.kept("job", PENDING, AHEAD),
        bench.kept("late", PENDING, PAST),
    ];
    let answers = bench.restore(&items).await;
    assert_eq!(words(&answers), ["created", "created"]);
    assert_eq!(bench.due("job").await, Some(AHEAD));
    assert_eq!(bench.due("late").await, Some(PAST), "as overdue as it was");
    let record = bench.record("job").await;
    assert_eq!(record.accepted.0, 17);
    assert_eq!(record.header.attempts, 2);
    assert_eq!(record.header.error.as_deref(), Some("503"));
    let steps: Vec<&str> = record.steps.iter().map(|step| step.what.as_str()).collect();
    assert_eq!(steps, ["failed", "failed"]);
    assert_eq!(&record.payload[..], b"job");
    let trigger: String = bench.ask(&["GET", bench.key("job").as_str()]).await;
    assert_eq!(trigger, MARKER);
    let subject = bench.ledger.subject();
    let woken = [
        format!("now {subject} late"),
        format!("due {subject} {AHEAD}"),
    ];
    assert_eq!(ears.heard(&bench).await, woken);
    let job = bench.claim(&["late"], 0).await.jobs.remove(0);
    assert_eq!(job.claims, 1, "beside the attempts that have ended");
    bench.balanced().await;
}

#[tokio::test]
async fn a_job_without_a_story_is_accepted_now() {
    let bench = Bench::new().await;
    let item = BackupItem {
        story: String::new(),
        ..bench.kept("job", PENDING, AHEAD)
    };
    bench.restore(&[item]).await;
    let record = bench.record("job").await;
    let now = bench.now().await;
    assert!(record.accepted.0 > 17 && record.accepted.0 <= now, "{now}");
    assert!(record.steps.is_empty());
    bench.balanced().await;
}

#[tokio::test]
async fn letters_of_one_name_are_ordered_by_time_of_death() {
    let bench = Bench::new().await;
    let latest = bench.die("job").await;
    let dead = |at| bench.kept("job", KeptAs::Dead, at);
    let answers = bench
        .restore(&[dead(PAST + 2), dead(PAST), dead(PAST + 2)])
        .await;
    assert_eq!(words(&answers), ["buried", "buried", "exists"]);
    let number = |at: usize| match answers[at].answer {
        Word::Buried(number) => number,
        other => panic!("{other:?}"),
    };
    let found = bench
        .ledger
        .letters("job", None, 9, soon())
        .await
        .unwrap()
        .unwrap();
    let found: Vec<(u64, u64)> = found
        .iter()
        .map(|letter| (letter.number, letter.died.0))
        .collect();
    assert_eq!(found[0].0, latest);
    assert_eq!(found[1..], [(number(0), PAST + 2), (number(1), PAST)]);
    // Of forty letters the id leads to the last sixteen only, and the others are stored all the
    // same.
    let many: Vec<BackupItem> = (0..40).map(|at| dead(PAST + 100 + at)).collect();
    bench.restore(&many).await;
    let found = bench
        .ledger
        .letters("job", None, 99, soon())
        .await
        .unwrap()
        .unwrap();
    assert_eq!((found.len(), found[0].number), (16, latest));
    assert_eq!(bench.balanced().await.dead, 43);
}

#[tokio::test]
async fn a_repeat_finds_the_letters_that_their_id_does_not_lead_to() {
    let bench = Bench::new().await;
    let dead = |id: &str, at: u64| bench.kept(id, KeptAs::Dead, PAST + at);
    let letters: Vec<BackupItem> = (0..20).map(|at| dead("job", at)).collect();
    assert_eq!(words(&bench.restore(&letters).await), ["buried"; 20]);
    // It takes the place of another one among those that the id leads to.
    let latest = [dead("job", 20)];
    assert_eq!(words(&bench.restore(&latest).await), ["buried"]);
    assert_eq!(words(&bench.restore(&letters).await), ["exists"; 20]);
    // Other ids have a letter of the same time of death.
    let others = [dead("jo", 0), dead("job1", 0)];
    assert_eq!(words(&bench.restore(&others).await), ["buried"; 2]);
    assert_eq!(words(&bench.restore(&others).await), ["exists"; 2]);
    assert_eq!(bench.balanced().await.dead, 23);
}

#[tokio::test]
async fn the_same_job_twice_in_a_call_counts_as_two_calls() {
    let bench = Bench::new().await;
    let items = [
        bench.kept("job", PENDING, AHEAD),
        bench.kept("job", PENDING, PAST),
        bench.kept("job", REPLACING, PAST),
    ];
    let answers = bench.restore(&items).await;
    assert_eq!(word(answers[1].answer), "exists");
    assert_eq!(word(answers[2].answer), "replaced");
    assert_eq!(bench.due("job").await, Some(PAST));
    let stats = bench.balanced().await;
    assert_eq!((stats.accepted, stats.replaced), (2, 1));
}

#[tokio::test]
async fn a_repeat_gets_the_first_answer_and_a_late_original_is_refused() {
    let bench = Bench::new().await;
    bench.bring("present", Pending).await;
    let items = [
        bench.kept("job", PENDING, AHEAD),
        bench.kept("present", PENDING, AHEAD),
        bench.kept("dead", KeptAs::Dead, PAST),
    ];
    same_when_repeated(&bench, async |lane| {
        bench.ledger.restore(lane, &items, soon()).await
    })
    .await;
    // A repeat as a new call changes nothing, either.
    let answers = bench.restore(&items).await;
    assert_eq!(words(&answers), ["exists", "exists", "exists"]);
    assert_eq!(bench.balanced().await.accepted, 3);
}

#[tokio::test]
async fn a_foreign_value_under_its_name_is_left_alone_and_reported() {
    let bench = Bench::new().await;
    let _: String = bench
        .ask(&["SET", bench.key("job").as_str(), "theirs"])
        .await;
    let items = [bench.kept("job", PENDING, AHEAD)];
    let answers = bench.ledger.restore(&mut Lane::new(), &items, soon()).await;
    assert!(answers.unwrap()[0].unarmed);
    let left: String = bench.ask(&["GET", bench.key("job").as_str()]).await;
    assert_eq!(left, "theirs");
    bench.balanced().await;
}

#[tokio::test]
async fn a_restored_job_dies_and_is_requeued_like_any_other() {
    let bench = Bench::new().await;
    bench.restore(&[bench.kept("job", PENDING, PAST)]).await;
    let job = bench.claim(&["job"], 0).await.jobs.remove(0);
    bench.settle("job", &job.token, bury()).await;
    bench
        .restore(&[bench.kept("job", KeptAs::Dead, PAST)])
        .await;
    let found = bench
        .ledger
        .letters("job", None, 9, soon())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(found.len(), 2);
    let item = bench.revival("job", found[1].number, super::support::after(HOUR));
    let requeued = bench
        .ledger
        .requeue(&mut Lane::new(), &[item], soon())
        .await;
    assert_eq!(words(&requeued.unwrap()), ["requeued"]);
    bench.balanced().await;
}
