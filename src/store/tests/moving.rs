//! `take.lua`, `put.lua`, `drop.lua`: jobs on their way from one ledger to another.

use std::sync::Arc;

use super::support::{Bench, HOUR, State, after, soon};
use crate::shards::{Layout, shard_of};
use crate::store::kinds::layout::Expected;
use crate::store::{COUNTERS, Lane, Ledger, Part, Word};
use crate::time::UnixMs;

/// A bench whose ledger is being resharded to two, the second ledger, the layout, and the id of a
/// job that moves to the second one.
async fn on_the_way() -> (Bench, Arc<Ledger>, Layout, String) {
    on_the_way_in(State::Pending).await
}

/// As `on_the_way`, with the job in this state.
async fn on_the_way_in(state: State) -> (Bench, Arc<Ledger>, Layout, String) {
    let bench = Bench::new().await;
    let id = (0..).map(|number| format!("job{number}"));
    let id = id.into_iter().find(|id| shard_of(id, 2) == 1).unwrap();
    bench.bring(&id, state).await;
    let (store, kind) = (&bench.ledger.store, bench.ledger.kind());
    let layout = Layout::FIRST.to(2);
    store.spread(kind, layout, 2, soon()).await.unwrap();
    let other = store.ledger(kind, layout.place(1));
    (bench, other, layout, id)
}

/// The handle of the ledger that the job leaves, by this layout.
fn old(bench: &Bench, layout: Layout, id: &str) -> Arc<Ledger> {
    let place = layout.old_place_of(id).expect("it leaves");
    bench.ledger.store.ledger(bench.ledger.kind(), place)
}

async fn pending(ledger: &Ledger) -> u64 {
    ledger.tally(soon()).await.unwrap().pending
}

#[tokio::test]
async fn a_batch_that_is_put_repeatedly_or_late_arrives_once() {
    let (bench, other, layout, id) = on_the_way().await;
    let old = old(&bench, layout, &id);
    old.move_out(std::slice::from_ref(&id), layout, soon())
        .await
        .unwrap()
        .unwrap();
    assert_eq!((pending(&old).await, pending(&other).await), (0, 1));
    let calls = &other.names.calls;
    let from = format!("from/{}", old.subject());
    let number: u64 = bench.ask(&["HGET", calls, &from]).await;
    // Restores the batch, as a rollback of the server of the first ledger would: it is kept aside
    // again.
    let _: u64 = bench
        .ask(&["HSET", &old.names.leaving, &id, "1 {\"v\":1}\n1\nold"])
        .await;
    old.push_on(layout, soon()).await.unwrap();
    let again: u64 = bench.ask(&["HGET", calls, &from]).await;
    assert_eq!((again, pending(&other).await), (number, 1));
    bench.balanced().await;
}

/// Otherwise the copy takes the later changes for older ones, and keeps a job that has ended.
#[tokio::test]
async fn the_version_of_a_job_grows_when_it_comes_from_a_ledger_whose_clock_is_ahead() {
    let (bench, other, layout, id) = on_the_way().await;
    let ahead = bench.now_us().await + 3_600_000_000;
    let batch = ahead.to_string();
    let calls = &bench.names().calls;
    let _: u64 = bench.ask(&["HSET", calls, "batch", &batch]).await;
    let noted = "100 1 1";
    let _: u64 = bench
        .ask(&["HSET", &other.names.calls, "changes", noted])
        .await;
    let old = old(&bench, layout, &id);
    let moved = old.move_out(std::slice::from_ref(&id), layout, soon());
    moved.await.unwrap().unwrap();
    let mut versions = vec![ahead];
    for _ in 0..2 {
        let page = other.changes(1000, &[], soon()).await.unwrap();
        versions.push(page.jobs[0].version);
        let mut lane = Lane::new();
        other
            .cancel(&mut lane, &[bench.key(&id)], soon())
            .await
            .unwrap();
    }
    assert!(
        versions.is_sorted_by(|one, next| one < next),
        "{versions:?}"
    );
    bench.balanced().await;
}

#[tokio::test]
async fn a_batch_that_is_refused_stays_with_its_sender() {
    let (bench, other, layout, id) = on_the_way().await;
    let old = old(&bench, layout, &id);
    let calls = &other.names.calls;
    let told: String = bench.ask(&["HGET", calls, "layout"]).await;
    let _: u64 = bench.ask(&["HSET", calls, "layout", "8 77"]).await;
    let refused = old
        .move_out(std::slice::from_ref(&id), layout, soon())
        .await;
    assert_eq!(refused.unwrap(), None);
    let kept: usize = bench.ask(&["HLEN", &old.names.leaving]).await;
    assert!(kept > 0, "the batch is gone");
    let _: u64 = bench.ask(&["HSET", calls, "layout", &told]).await;
    assert!(old.push_on(layout, soon()).await.unwrap());
    assert_eq!((pending(&old).await, pending(&other).await), (0, 1));
    bench.balanced().await;
}

#[tokio::test]
async fn a_job_that_its_new_ledger_has_stays_as_it_is_there() {
    for is_running in [false, true] {
        let (bench, other, layout, id) = on_the_way().await;
        let old = old(&bench, layout, &id);
        // As if the old ledger had gone back to a time before the job moved.
        let names = &other.names;
        let _: u64 = bench.ask(&["HSET", &names.shadow, &id, "newer"]).await;
        let place = if is_running {
            vec![
                "HSET",
                &names.lease,
                &id,
                "ffffffffffffffffffffffff-1 1 1 1 -",
            ]
        } else {
            vec!["ZADD", &names.due, "1", &id]
        };
        let _: u64 = bench.ask(&place).await;
        let moved = old.move_out(std::slice::from_ref(&id), layout, soon());
        assert_eq!(moved.await.unwrap().unwrap()[0].answer, Word::Taken);
        let due: Option<u64> = bench.ask(&["ZSCORE", &names.due, &id]).await;
        assert_eq!(due, (!is_running).then_some(1), "running: {is_running}");
        let record: String = bench.ask(&["HGET", &names.shadow, &id]).await;
        assert_eq!(record, "newer");
        let counted: [u64; 2] = bench
            .ask(&["HMGET", &names.stats, "moved_in", "replaced"])
            .await;
        assert_eq!(counted, [1, 1]);
        // This ledger has given the job away.
        bench.balanced().await;
    }
}

#[tokio::test]
async fn the_permanent_data_stay_when_all_jobs_have_left() {
    let (bench, other, layout, id) = on_the_way().await;
    let old = old(&bench, layout, &id);
    for shard in [0, 1] {
        let founded = bench
            .ledger
            .server
            .found_one(bench.ledger.kind(), shard, soon());
        founded.await.unwrap();
    }
    for name in [&id, COUNTERS] {
        let names = [name.to_owned()];
        let moved = old.move_out(&names, layout, soon()).await.unwrap().unwrap();
        assert_eq!(moved[0].answer, Word::Taken, "{name}");
    }
    for ledger in [&old, &other] {
        let words = [&["EXISTS"], &ledger.names.all()[..]].concat();
        assert_eq!(bench.ask::<usize>(&words).await, words.len() - 1);
        for part in [Part::Jobs, Part::Letters] {
            let (_, names) = ledger.names_in(part, "0", soon()).await.unwrap();
            assert!(names.iter().all(|name| *name == id), "{names:?}");
        }
    }
    let tally = old.tally(soon()).await.unwrap();
    assert_eq!((tally.pending, tally.records), (0, 0));
    // The counters moved to the first ledger, which is this one.
    assert_eq!(tally.counters["moved_out"], 1, "{tally:?}");
    assert_eq!(pending(&other).await, 1);
    let extents = [
        old.extent("pending", soon()),
        other.extent("pending", soon()),
    ];
    let [left, right] = futures_util::future::join_all(extents)
        .await
        .try_into()
        .unwrap();
    assert_eq!(left.unwrap(), (0, UnixMs(0)));
    assert_eq!(right.unwrap().0, 1);
    bench.balanced().await;
}

#[tokio::test]
async fn a_ledger_that_lost_its_latest_numbers_loses_no_batch() {
    let (bench, other, layout, id) = on_the_way().await;
    let old = old(&bench, layout, &id);
    let from = format!("from/{}", old.subject());
    let ahead = bench.now_us().await + u64::try_from(HOUR.as_micros()).unwrap();
    let _: u64 = bench
        .ask(&["HSET", &other.names.calls, &from, &ahead.to_string()])
        .await;
    old.move_out(std::slice::from_ref(&id), layout, soon())
        .await
        .unwrap()
        .unwrap();
    assert_eq!((pending(&old).await, pending(&other).await), (0, 1));
    let number: u64 = bench.ask(&["HGET", &other.names.calls, &from]).await;
    assert_eq!(number, ahead + 1);
    let left: u64 = bench.ask(&["EXISTS", &old.names.leaving]).await;
    assert_eq!(left, 0);
    bench.balanced().await;
}

#[tokio::test]
async fn a_call_by_another_layout_is_refused_and_learns_the_layout() {
    let (bench, _, layout, id) = on_the_way().await;
    let placed = bench
        .ledger
        .schedule(
            &mut crate::store::Lane::new(),
            &[bench.placement(&id, after(HOUR))],
            soon(),
        )
        .await
        .unwrap();
    assert_eq!(placed[0].answer, crate::store::Word::Stale);
    let store = &bench.ledger.store;
    assert_eq!(store.layout_of(bench.ledger.kind().as_str()), layout);
    assert_eq!(pending(&bench.ledger).await, 1);
    bench.balanced().await;
}

/// A ledger with an older layout than the call, as after a rollback of its server.
#[tokio::test]
async fn a_call_by_a_newer_layout_than_that_of_the_ledger_is_refused() {
    let (bench, other, layout, id) = on_the_way().await;
    let calls = &other.names.calls;
    for older in [None, Some(Layout::FIRST.to(2).to_string())] {
        let _: u64 = bench.ask(&["DEL", calls]).await;
        let newer = match &older {
            None => layout,
            Some(older) => {
                let _: u64 = bench.ask(&["HSET", calls, "layout", older]).await;
                layout.settled().to(2)
            }
        };
        let place = newer.place(1);
        let caller = bench.ledger.store.ledger(bench.ledger.kind(), place);
        let items = [bench.placement(&id, after(HOUR))];
        let mut lane = crate::store::Lane::new();
        let placed = caller.schedule(&mut lane, &items, soon());
        let placed = placed.await.unwrap();
        assert_eq!(placed[0].answer, Word::Stale, "{older:?}");
        assert_eq!(pending(&caller).await, 0);
    }
    bench.balanced().await;
}

#[tokio::test]
async fn a_late_drop_leaves_a_later_batch() {
    let (bench, _, layout, id) = on_the_way().await;
    let old = old(&bench, layout, &id);
    let names = &old.names;
    let _: u64 = bench.ask(&["HSET", &names.calls, "batch", "8"]).await;
    let _: u64 = bench
        .ask(&["HSET", &names.leaving, &id, "1 {\"v\":1}\n1\nold"])
        .await;
    for (number, left) in [(7, 1), (9, 1), (8, 0)] {
        old.drop_batch(number, soon()).await.unwrap();
        let leaving: u64 = bench.ask(&["HLEN", &names.leaving]).await;
        assert_eq!(leaving, left, "{number}");
    }
    bench.balanced().await;
}

#[tokio::test]
async fn a_dead_letter_that_is_put_twice_arrives_once() {
    let (bench, other, layout, id) = on_the_way_in(State::Dead).await;
    let old = old(&bench, layout, &id);
    let names = &old.names;
    let taken = old.take(std::slice::from_ref(&id), Default::default(), soon());
    taken.await.unwrap();
    let batch: Vec<String> = bench.ask(&["HGETALL", &names.leaving]).await;
    assert!(!batch.is_empty());
    let mut arrived = Vec::new();
    for _ in 0..2 {
        old.push_on(layout, soon()).await.unwrap();
        let letters: Vec<String> = bench.ask(&["HGETALL", &other.names.grave]).await;
        let counters: Vec<String> = bench.ask(&["HGETALL", &other.names.stats]).await;
        arrived.push((letters, counters));
        let batch: Vec<&str> = batch.iter().map(String::as_str).collect();
        let again = [&["HSET", &*names.leaving], &batch[..]].concat();
        let _: u64 = bench.ask(&again).await;
    }
    assert_eq!(arrived[0], arrived[1]);
    assert_eq!(other.tally(soon()).await.unwrap().dead, 1);
    let _: u64 = bench.ask(&["DEL", &names.leaving]).await;
    bench.balanced().await;
}

#[tokio::test]
async fn an_older_layout_that_arrives_late_changes_nothing() {
    let bench = Bench::new().await;
    let server = &bench.ledger.server;
    let calls = bench.names().calls.clone();
    let moving = Layout::FIRST.to(2);
    let all = [moving, moving.settled(), moving.settled().to(4)];
    let tell = async |layout: Layout| {
        let nothing = Default::default();
        let told = server.set_layout(
            &calls,
            "layout",
            layout,
            Expected::Anything,
            &nothing,
            soon(),
        );
        told.await.unwrap()
    };
    for (place, newest) in all.into_iter().enumerate() {
        assert_eq!(tell(newest).await, newest);
        for earlier in &all[..place] {
            assert_eq!(tell(*earlier).await, newest, "after {earlier}");
        }
    }
    bench.balanced().await;
}
