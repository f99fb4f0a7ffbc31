//! `discard.lua`: it deletes dead letters, and nothing else.

use super::support::{Bench, State, same_when_repeated, soon, words};
use crate::store::Lane;

use State::*;

#[tokio::test]
async fn discard_deletes_the_letter_and_leaves_the_live_job_alone() {
    let bench = Bench::new().await;
    let mut items = Vec::new();
    for state in State::ALL {
        let letter = bench.die(&state.id()).await;
        bench.bring(&state.id(), state).await;
        items.push(bench.discard(&state.id(), letter));
    }
    let mut lane = Lane::new();
    let answers = bench.ledger.discard(&mut lane, &items, soon()).await;
    assert_eq!(words(&answers.unwrap()), ["deleted"; State::ALL.len()]);
    for state in State::ALL {
        // The job in the state `Dead` died twice, so it has a letter left.
        assert_eq!(bench.state(&state.id()).await, state);
    }
    let stats = bench.balanced().await;
    assert_eq!((stats.deleted, stats.dead), (13, 1));
}

#[tokio::test]
async fn discard_deletes_the_numbered_letter_once() {
    let bench = Bench::new().await;
    let first = bench.die("job").await;
    let second = bench.die("job").await;
    let items = [
        bench.discard("job", first),
        bench.discard("job", first),
        bench.discard("job", 99),
        bench.discard("missing", second),
    ];
    let mut lane = Lane::new();
    let answers = bench.ledger.discard(&mut lane, &items, soon()).await;
    assert_eq!(
        words(&answers.unwrap()),
        ["deleted", "absent", "absent", "absent"]
    );
    let left = bench
        .ledger
        .letters("job", None, 9, soon())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].number, second);
    assert_eq!(bench.balanced().await.deleted, 1);
}

#[tokio::test]
async fn a_repeat_gets_the_first_answer_and_a_late_original_is_refused() {
    let bench = Bench::new().await;
    let letter = bench.die("job").await;
    let items = [bench.discard("job", letter), bench.discard("missing", 1)];
    same_when_repeated(&bench, async |lane| {
        bench.ledger.discard(lane, &items, soon()).await
    })
    .await;
    assert_eq!(bench.state("job").await, Absent);
    bench.balanced().await;
}
