//! `sweep.lua`, `get.lua` and `stats.lua`, which change nothing.

use std::time::Duration;

use super::support::{Bench, HOUR, State, after, at, soon};
use crate::record::Record;
use crate::store::{Found, Verb};
use crate::time::UnixMs;

use State::*;

#[tokio::test]
async fn get_reports_every_state() {
    let bench = Bench::new().await;
    let jobs = bench.every_state().await;
    let stored = bench.snapshot().await;
    for (state, (id, token)) in State::ALL.into_iter().zip(&jobs) {
        let found = bench.ledger.get(id, soon()).await.unwrap();
        match (state, found) {
            (Absent, Found::Absent) => {}
            (Pending | Due | Retrying, Found::Pending { due, record }) => {
                assert_eq!(Some(due.0), bench.due(id).await);
                assert_eq!(&Record::parse(record).unwrap().payload[..], id.as_bytes());
            }
            (
                Dead,
                Found::Dead {
                    died,
                    number,
                    record,
                },
            ) => {
                assert!(died.0 <= bench.now().await && number == 1);
                assert_eq!(&Record::parse(record).unwrap().payload[..], id.as_bytes());
            }
            (
                _,
                Found::Leased {
                    now,
                    deadline,
                    lease,
                    record,
                    successor,
                },
            ) => {
                let name = format!("{state:?}");
                assert!(now.0 / 1000 <= bench.now().await);
                assert_eq!(deadline.0, bench.deadline(id).await);
                assert_eq!(deadline <= now.floor_ms(), name.starts_with("Lapsed"));
                assert!(lease.starts_with(&format!("{token} ")));
                assert_eq!(lease.ends_with(" cancelled"), name.contains("Cancelled"));
                assert_eq!(successor.is_empty(), !name.ends_with("Next"));
                assert_eq!(&Record::parse(record).unwrap().payload[..], id.as_bytes());
            }
            (state, found) => panic!("{state:?} is told as {found:?}"),
        }
    }
    assert_eq!(bench.snapshot().await, stored);
    bench.balanced().await;
}

#[tokio::test]
async fn get_prefers_live_jobs_to_dead_letters() {
    let bench = Bench::new().await;
    bench.bring("job", Dead).await;
    bench.schedule("job", after(HOUR)).await;
    let found = bench.ledger.get("job", soon()).await.unwrap();
    assert!(matches!(found, Found::Pending { .. }), "{found:?}");
    bench.cancel("job").await;
    let found = bench.ledger.get("job", soon()).await.unwrap();
    assert!(matches!(found, Found::Dead { number: 1, .. }), "{found:?}");
    bench.balanced().await;
}

#[tokio::test]
async fn stats_count_every_state_and_every_transition() {
    let bench = Bench::new().await;
    let empty = bench.ledger.tally(soon()).await.unwrap();
    assert_eq!((empty.pending, empty.counters.len()), (0, 0));
    assert_eq!(empty.overdue_for, Duration::ZERO);
    bench.every_state().await;
    let stored = bench.snapshot().await;
    let stats = bench.balanced().await;
    let counts = [
        stats.pending,
        stats.overdue,
        stats.leased,
        stats.successors,
        stats.dead,
    ];
    assert_eq!(counts, [3, 1, 8, 4, 1]);
    assert_eq!((stats.accepted, stats.failed, stats.buried), (16, 1, 1));
    assert!(stats.overdue_for > Duration::ZERO && stats.overdue_for < HOUR);
    assert_eq!(bench.snapshot().await, stored);
}

#[tokio::test]
async fn pending_jobs_are_counted_by_the_span_in_which_they_fall_due() {
    let bench = Bench::new().await;
    let now = bench.now().await;
    let (base, minute) = (now + 3_600_000, 60_000);
    // Two that are due, one before the first span, and one or more at the edges of the others.
    let dues = [
        now - 5,
        now - 1,
        base - 1,
        base,
        base + minute - 1,
        base + minute,
    ];
    let dues = dues
        .into_iter()
        .chain([base + 4 * minute, base + 4 * minute, base + 9 * minute]);
    for (id, due) in dues.enumerate() {
        bench
            .schedule(&format!("job{id}"), at(base + 99 * minute))
            .await;
        let _: u64 = bench
            .ask(&[
                "ZADD",
                &bench.names().due,
                &due.to_string(),
                &format!("job{id}"),
            ])
            .await;
    }
    let count = async |from: u64, spans| {
        let minute = Duration::from_millis(minute);
        let counted = bench
            .ledger
            .upcoming(UnixMs(now), UnixMs(from), minute, spans, soon());
        let it = counted.await.unwrap();
        (it.pending, it.overdue, it.earlier, it.spans)
    };
    assert_eq!(count(base, 5).await, (9, 2, 1, vec![2, 1, 0, 0, 2]));
    assert_eq!(count(base, 2).await, (9, 2, 1, vec![2, 1]));
    // The last spans are empty, and so is everything after them.
    assert_eq!(count(base, 100).await.3, [2, 1, 0, 0, 2, 0, 0, 0, 0, 1]);
    // Overdue jobs are in no span, even if one covers their due time.
    assert_eq!(count(now - minute, 2).await, (9, 2, 0, vec![0, 0]));
    let tally = bench.ledger.tally(soon()).await.unwrap();
    // The job at the edge is in the hour as well, since some time has passed.
    assert_eq!(tally.due_within, [0, 2, 7]);
    bench.balanced().await;
}

#[tokio::test]
async fn a_sweep_finds_overdue_jobs_lapsed_leases_and_the_next_times() {
    let bench = Bench::new().await;
    let empty = bench
        .ledger
        .sweep(Duration::ZERO, (0, 0), 100, soon())
        .await
        .unwrap();
    assert!(empty.overdue.is_empty() && empty.lapsed.is_empty());
    assert_eq!((empty.next_due, empty.next_lapse), (None, None));

    bench.every_state().await;
    let stored = bench.snapshot().await;
    let sweep = bench
        .ledger
        .sweep(Duration::ZERO, (0, 0), 100, soon())
        .await
        .unwrap();
    assert_eq!(sweep.overdue, ["Due"]);
    let mut lapsed = sweep.lapsed;
    lapsed.sort_unstable();
    assert_eq!(
        lapsed,
        [
            "Lapsed",
            "LapsedCancelled",
            "LapsedCancelledNext",
            "LapsedNext"
        ]
    );
    let pending = bench.due("Pending").await.unwrap();
    assert_eq!(sweep.next_due, Some(UnixMs(pending)));
    let leased = bench.deadline("Leased").await;
    assert_eq!(sweep.next_lapse, Some(UnixMs(leased)));
    assert_eq!(bench.snapshot().await, stored);
    bench.balanced().await;
}

#[tokio::test]
async fn a_sweep_is_bounded_and_starts_with_the_oldest() {
    let bench = Bench::new().await;
    let now = bench.now().await;
    for (id, ago) in [("c", 3_000), ("a", 90_000), ("b", 80_000), ("d", 2_000)] {
        bench.schedule(id, after(Duration::ZERO)).await;
        let past = (now - ago).to_string();
        let _: u64 = bench.ask(&["ZADD", &bench.names().due, &past, id]).await;
        let run = bench.run(&format!("run-{id}"), HOUR).await;
        let _: u64 = bench
            .ask(&["ZADD", &bench.names().leased, &past, &run.id])
            .await;
    }
    bench.schedule("next", at(now + 80_000)).await;
    bench.schedule("after", at(now + 90_000)).await;
    let minute = Duration::from_secs(60);
    for (overdue, skip, limit, found) in [
        (Duration::ZERO, 0, 100, &["a", "b", "c", "d"][..]),
        (Duration::ZERO, 0, 2, &["a", "b"]),
        (Duration::ZERO, 1, 2, &["b", "c"]),
        (Duration::ZERO, 3, 2, &["d"]),
        (Duration::ZERO, 9, 2, &[]),
        (minute, 0, 100, &["a", "b"]),
        (minute, 1, 100, &["b"]),
    ] {
        let sweep = bench
            .ledger
            .sweep(overdue, (skip, 0), limit, soon())
            .await
            .unwrap();
        assert_eq!(sweep.overdue, found, "{overdue:?}, {skip}, {limit}");
        let lapsed = ["run-a", "run-b", "run-c", "run-d"];
        assert_eq!(sweep.lapsed, lapsed[..limit.min(4)]);
        // The next due time includes jobs that are due, but not yet overdue.
        let next = if overdue.is_zero() {
            now + 80_000
        } else {
            now - 3_000
        };
        assert_eq!(sweep.next_due, Some(UnixMs(next)));
    }
    for id in ["run-a", "run-b", "run-c", "run-d"] {
        let job = bench.reclaim(&[id]).await.jobs.remove(0);
        bench.settle(id, &job.token, Verb::Done).await;
    }
    bench.balanced().await;
}
