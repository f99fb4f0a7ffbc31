//! `schedule.lua`: create, replace, succeed.

use std::time::Duration;

use super::support::{
    Bench, HEADER, HOUR, LATER, MOMENT, State, after, at, bury, due_of, later, same_when_repeated,
    soon, word, words,
};
use crate::key::MAX_ID_BYTES;
use crate::record::Record;
use crate::store::ledger::script::SCHEDULE;
use crate::store::{Found, Lane, Mode, Placement};
use crate::time::UnixMs;

use State::*;

/// One placement for each state, in the order of [`State::ALL`].
async fn in_every_state(bench: &Bench, mode: Mode) -> Vec<Placement> {
    let jobs = bench.every_state().await;
    let placements = jobs.iter().map(|(id, _)| Placement {
        mode,
        ..bench.carrying(id, after(HOUR), b"newer")
    });
    placements.collect()
}

#[tokio::test]
async fn set_creates_replaces_or_succeeds() {
    let bench = Bench::new().await;
    let items = in_every_state(&bench, Mode::Set).await;
    let before = bench.now().await;
    let answers = bench.place(&items).await;
    let table = [
        (Absent, "created", Pending),
        (Pending, "replaced", Pending),
        (Due, "replaced", Pending),
        (Retrying, "replaced", Pending),
        (Leased, "succeeds", LeasedNext),
        (LeasedNext, "succeeds", LeasedNext),
        (CancelledRun, "succeeds", CancelledRunNext),
        (CancelledRunNext, "succeeds", CancelledRunNext),
        (Lapsed, "succeeds", LapsedNext),
        (LapsedNext, "succeeds", LapsedNext),
        (LapsedCancelled, "succeeds", LapsedCancelledNext),
        (LapsedCancelledNext, "succeeds", LapsedCancelledNext),
        (Dead, "created", Pending),
    ];
    bench.hold_against(table, &answers).await;
    for (state, answered) in State::ALL.into_iter().zip(&answers) {
        let due = due_of(answered.answer);
        assert!(due >= before + 3_600_000, "{state:?}: early");
        let (stored, record) = match bench.due(&state.id()).await {
            Some(stored) => (stored, bench.record(&state.id()).await),
            None => bench.successor(&state.id()).await,
        };
        assert_eq!(stored, due, "{state:?}");
        assert_eq!(&record.payload[..], b"newer", "{state:?}");
        assert!(record.accepted >= UnixMs(before) && record.steps.is_empty());
    }
    // Three pending jobs and four successors; a run is replaced only if it would be retried.
    assert_eq!(bench.counted("replaced").await, 3 + 4);
    let stats = bench.balanced().await;
    assert_eq!((stats.pending, stats.leased, stats.successors), (5, 8, 8));
    assert_eq!(stats.dead, 1, "a dead letter stays beside the new job");
}

#[tokio::test]
async fn absent_leaves_a_present_job_as_it_is() {
    let bench = Bench::new().await;
    let items = in_every_state(&bench, Mode::Absent).await;
    let before = bench.snapshot().await;
    let answers = bench.place(&items).await;
    let table = State::ALL.map(|state| match state {
        Absent | Dead => (state, "created", Pending),
        there => (there, "exists", there),
    });
    bench.hold_against(table, &answers).await;
    let mut after = bench.snapshot().await;
    after.retain(|name, value| before.get(name) != Some(value));
    let changed: Vec<_> = after
        .keys()
        .filter(|name| name.contains("shadow"))
        .collect();
    assert_eq!(changed.len(), 2, "{changed:?}");
    bench.balanced().await;
}

/// No operation of the crate uses this mode yet, so the test calls the script itself.
#[tokio::test]
async fn present_creates_nothing() {
    let bench = Bench::new().await;
    let jobs = bench.every_state().await;
    let count = jobs.len().to_string();
    let mut args = vec!["wake", "subject", "keyfall", "present", HEADER, &count];
    for (id, _) in &jobs {
        args.extend([id, "+3600000", "newer"]);
    }
    let answers = bench.by_hand(&SCHEDULE, &mut Lane::new(), &args).await;
    let table = State::ALL.map(|state| match state {
        Absent | Dead => (state, "absent", state),
        Pending | Due | Retrying => (state, "replaced", Pending),
        Leased | LeasedNext => (state, "succeeds", LeasedNext),
        CancelledRun | CancelledRunNext => (state, "succeeds", CancelledRunNext),
        Lapsed | LapsedNext => (state, "succeeds", LapsedNext),
        LapsedCancelled | LapsedCancelledNext => (state, "succeeds", LapsedCancelledNext),
    });
    bench.hold_against(table, &answers).await;
    bench.balanced().await;
}

#[tokio::test]
async fn a_repeat_gets_the_first_answer_and_a_late_original_is_refused() {
    let bench = Bench::new().await;
    let running = bench.bring("running", Leased).await;
    let items = [
        bench.placement("new", after(HOUR)),
        bench.placement("running", after(HOUR)),
    ];
    same_when_repeated(&bench, async |lane| {
        bench.ledger.schedule(lane, &items, soon()).await
    })
    .await;
    assert_eq!(bench.counted("accepted").await, 3);
    // A repeat gets the same answers even if the jobs have changed since.
    let mut lane = Lane::new();
    bench
        .ledger
        .schedule(&mut lane, &items, soon())
        .await
        .unwrap();
    bench.cancel("new").await;
    bench
        .settle("running", &running, later(after(HOUR), "failed"))
        .await;
    bench.cancel("running").await;
    let mut again = lane.rewound(1);
    let repeat = bench
        .ledger
        .schedule(&mut again, &items, soon())
        .await
        .unwrap();
    assert_eq!(words(&repeat), ["replaced", "succeeds"]);
    assert_eq!(bench.state("new").await, Absent);
    assert_eq!(bench.state("running").await, Absent);
    bench.balanced().await;
}

#[tokio::test]
async fn one_id_twice_in_a_batch_counts_as_two_calls_in_order() {
    let bench = Bench::new().await;
    bench.bring("running", Leased).await;
    let absent = |id| Placement {
        mode: Mode::Absent,
        ..bench.placement(id, after(HOUR))
    };
    let items = [
        bench.carrying("new", after(HOUR), b"first"),
        bench.carrying("new", after(LATER), b"second"),
        absent("new"),
        bench.carrying("running", after(HOUR), b"first"),
        bench.carrying("running", after(LATER), b"second"),
        absent("free"),
        absent("free"),
    ];
    let answers = bench.place(&items).await;
    assert_eq!(
        words(&answers),
        [
            "created", "replaced", "exists", "succeeds", "succeeds", "created", "exists"
        ]
    );
    assert_eq!(bench.due("new").await, Some(due_of(answers[1].answer)));
    assert_eq!(&bench.record("new").await.payload[..], b"second");
    let (due, record) = bench.successor("running").await;
    assert_eq!(
        (due, &record.payload[..]),
        (due_of(answers[4].answer), &b"second"[..])
    );
    assert_eq!(bench.counted("replaced").await, 2);
    bench.balanced().await;
}

#[tokio::test]
async fn a_ledger_begins_with_its_first_job_and_again_in_an_emptied_database() {
    let bench = Bench::new().await;
    let send = async |mode| {
        let items = ["a", "b"].map(|id| Placement {
            mode,
            ..bench.placement(id, after(HOUR))
        });
        let answers = bench.place(&items).await;
        assert_eq!(answers[0].unlisted, answers[1].unlisted);
        answers[0].unlisted
    };
    // A call that stores nothing creates no ledger.
    assert_eq!(send(Mode::Present).await, None);
    let begun = send(Mode::Set).await.expect("it is new");
    assert_eq!(send(Mode::Set).await, Some(begun));
    let (store, kind) = (&bench.ledger.store, bench.ledger.kind());
    store.take_mark_off(kind, begun, soon()).await.unwrap();
    assert_eq!(send(Mode::Set).await, None);
    bench.balanced().await;

    let n = bench.names();
    let all = [&n.due, &n.shadow, &n.stats, &n.calls, &n.lanes].map(String::as_str);
    let _: u64 = bench.ask(&[&["DEL"], &all[..]].concat()).await;
    assert!(send(Mode::Set).await.is_some_and(|anew| anew != begun));
    bench.balanced().await;
}

#[tokio::test]
async fn neighbours_in_a_batch_keep_their_own_modes_and_headers() {
    let bench = Bench::new().await;
    let placement = |id: &str, mode, tenant: &str| Placement {
        mode,
        header: format!(r#"{{"v":1,"headers":{{"tenant":"{tenant}"}}}}"#).into(),
        ..bench.placement(id, after(HOUR))
    };
    let items = [
        placement("a", Mode::Set, "1"),
        placement("b", Mode::Set, "1"),
        placement("c", Mode::Set, "2"),
        placement("d", Mode::Present, "2"),
        placement("e", Mode::Absent, "2"),
        placement("f", Mode::Absent, "3"),
    ];
    bench.place(&items).await;
    let mut tenants = Vec::new();
    for item in &items {
        let found = bench.ledger.get(item.key.id(), soon()).await.unwrap();
        let Found::Pending { record, .. } = found else {
            continue;
        };
        let record = Record::parse(record).unwrap();
        tenants.push((
            item.key.id(),
            record.header.headers.get("tenant").unwrap().to_owned(),
        ));
    }
    let expected = [("a", "1"), ("b", "1"), ("c", "2"), ("e", "2"), ("f", "3")];
    assert_eq!(
        tenants,
        expected.map(|(id, tenant)| (id, tenant.to_owned()))
    );
    bench.balanced().await;
}

/// The idempotency key of a job is made of this time.
#[tokio::test]
async fn a_record_has_the_microsecond_of_its_acceptance() {
    let bench = Bench::new().await;
    for id in ["a", "b", "c", "d", "e"] {
        let before = bench.now_us().await;
        bench.schedule(id, after(HOUR)).await;
        let after = bench.now_us().await;
        let Found::Pending { record, .. } = bench.ledger.get(id, soon()).await.unwrap() else {
            panic!("{id} is not pending");
        };
        let accepted = Record::parse(record).unwrap().first_scheduled_at();
        let accepted = accepted.duration_since(std::time::UNIX_EPOCH).unwrap();
        let range = before..=after;
        assert!(
            range.contains(&(accepted.as_micros() as u64)),
            "{accepted:?} {range:?}"
        );
    }
    bench.balanced().await;
}

#[tokio::test]
async fn a_full_batch_is_scheduled_claimed_and_settled() {
    let bench = Bench::new().await;
    let ids: Vec<String> = (0..256).map(|i| format!("job-{i}")).collect();
    let soonest = bench.now().await - 1000;
    let placement = |(i, id): (u64, &String)| bench.placement(id, at(soonest + i));
    let items: Vec<Placement> = (0..).zip(&ids).map(placement).collect();
    assert_eq!(words(&bench.place(&items).await), ["created"; 256]);
    let named: Vec<&str> = ids.iter().map(String::as_str).collect();
    let claimed = bench.claim(&named, 0).await;
    assert_eq!(words(&claimed.answers), ["claimed"; 256]);
    let settle = |job: &crate::store::Claimed| {
        bench.settlement(&job.id, &job.token, later(after(Duration::ZERO), "again"))
    };
    let settlements: Vec<_> = claimed.jobs.iter().map(settle).collect();
    assert_eq!(words(&bench.settle_all(&settlements).await), ["later"; 256]);
    let keys: Vec<_> = items.iter().map(|item| item.key.clone()).collect();
    let mut lane = Lane::new();
    let cancelled = bench.ledger.cancel(&mut lane, &keys, soon()).await.unwrap();
    assert_eq!(words(&cancelled), ["cancelled"; 256]);
    bench.balanced().await;
}

#[tokio::test]
async fn a_payload_comes_back_byte_for_byte() {
    let bench = Bench::new().await;
    let all: Vec<u8> = (0..=255).collect();
    let payloads: [&[u8]; 7] = [
        b"",
        b"\n",
        b"\n\n1 2@3\n",
        b"\0",
        b"\xff\xfe",
        b"%1 %d %s %% @ @ @ @ @ @ @ @ @ @",
        &all,
    ];
    for (i, payload) in payloads.into_iter().enumerate() {
        let id = format!("bytes-{i}");
        bench
            .place(&[bench.carrying(&id, after(HOUR), payload)])
            .await;
        bench.reschedule(&id, after(Duration::ZERO)).await;
        // The successor of a run is stored in another form.
        let first = bench.claim(&[&id], 0).await.jobs.remove(0);
        bench
            .place(&[bench.carrying(&id, after(HOUR), payload)])
            .await;
        bench.reschedule(&id, after(Duration::ZERO)).await;
        let again = later(after(Duration::ZERO), "again");
        assert_eq!(
            word(bench.settle(&id, &first.token, again).await),
            "replaced"
        );
        for job in [first, bench.claim(&[&id], 0).await.jobs.remove(0)] {
            let record = crate::record::Record::parse(job.record).unwrap();
            assert_eq!(&record.payload[..], payload, "{i}");
        }
    }
    bench.balanced().await;
}

#[tokio::test]
async fn ids_at_their_limits_stay_distinct() {
    let bench = Bench::new().await;
    let longest = "x".repeat(MAX_ID_BYTES);
    let longer = format!("{}y", "x".repeat(MAX_ID_BYTES - 1));
    // The second bytes of `à` and of `…` are blanks or controls in some locales.
    let ids = [
        "0", "-", "ok", "à…", "fence", "1@2!%d", "\\\"'", &longest, &longer,
    ];
    let place = |id: &&str| bench.placement(id, after(Duration::ZERO));
    bench
        .place(&ids.iter().map(place).collect::<Vec<_>>())
        .await;
    let sweep = bench
        .ledger
        .sweep(Duration::ZERO, (0, 0), 100, soon())
        .await
        .unwrap();
    assert_eq!(sweep.overdue.len(), ids.len());
    let lane = Lane::new();
    for _ in 0..2 {
        let claim = bench.try_claim(&mut lane.rewound(1), &ids, 0, HOUR).await;
        assert_eq!(super::support::ids(&claim.unwrap()), ids);
    }
    for id in ids {
        let settled = bench.settle(id, &format!("{}-1", lane.id()), bury()).await;
        assert_eq!(word(settled), "buried");
        assert_eq!(bench.state(id).await, Dead);
    }
    bench.balanced().await;
}

#[tokio::test]
async fn a_past_due_time_means_now() {
    let bench = Bench::new().await;
    let before = bench.now().await;
    let past = due_of(bench.schedule("past", at(5)).await);
    let now = due_of(bench.schedule("now", after(Duration::ZERO)).await);
    let until = bench.now().await;
    assert!(before <= past && past <= now && now <= until);
    let named = due_of(bench.schedule("named", at(until + 90_000)).await);
    assert_eq!(named, until + 90_000);
    bench.balanced().await;
}

#[tokio::test]
async fn a_delay_is_rounded_up_so_that_no_job_is_early() {
    let bench = Bench::new().await;
    // The rounding depends on the position of the call in its millisecond, so the test repeats it.
    for _ in 0..50 {
        for delay in [Duration::from_nanos(1), 2 * MOMENT, HOUR] {
            let before = Duration::from_micros(bench.now_us().await);
            let due = due_of(bench.schedule("job", after(delay)).await);
            assert!(Duration::from_millis(due) >= before + delay);
            assert!(due <= bench.now().await + 2 + u64::try_from(delay.as_millis()).unwrap());
        }
    }
    bench.balanced().await;
}

/// A schedule that waits for a silence of `quiet`, but no longer than `most` after the first one.
fn debounced(bench: &Bench, id: &str, quiet: Duration, most: Duration, text: &[u8]) -> Placement {
    Placement {
        mode: Mode::Debounce(most),
        ..bench.carrying(id, after(quiet), text)
    }
}

fn throttled(bench: &Bench, id: &str, span: Duration, text: &[u8]) -> Placement {
    Placement {
        mode: Mode::Throttle(span),
        ..bench.carrying(id, after(Duration::ZERO), text)
    }
}

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test]
async fn debounced_calls_wait_for_silence_but_not_for_ever() {
    let bench = Bench::new().await;
    let first = bench
        .place(&[debounced(&bench, "job", HOUR, LATER, b"1")])
        .await;
    assert_eq!(words(&first), ["created"]);
    let accepted = bench.record("job").await.accepted;
    bench.past(accepted.0 + 3).await;
    let again = bench
        .place(&[debounced(&bench, "job", HOUR, LATER, b"2")])
        .await;
    assert_eq!(words(&again), ["replaced"]);
    assert!(
        due_of(again[0].answer) > due_of(first[0].answer),
        "it waits anew"
    );
    let record = bench.record("job").await;
    assert_eq!(
        (record.accepted, &record.payload[..]),
        (accepted, &b"2"[..])
    );
    // The first call was an hour and a half too early for the last one.
    let last = bench
        .place(&[debounced(&bench, "job", LATER, HOUR, b"3")])
        .await;
    assert_eq!(due_of(last[0].answer), accepted.0 + 3_600_000);
    // Never in the past.
    let now = bench.now().await;
    let last = bench
        .place(&[debounced(&bench, "job", HOUR, MOMENT, b"4")])
        .await;
    assert!(due_of(last[0].answer) >= now);
    assert_eq!(bench.counted("replaced").await, 3);
    bench.balanced().await;
}

#[tokio::test]
async fn a_debounced_call_begins_anew_after_a_run_or_a_failure() {
    let bench = Bench::new().await;
    let long_ago = at(1);
    let items = [
        bench.placement("retry", long_ago),
        bench.placement("run", long_ago),
    ];
    bench.place(&items).await;
    let reply = bench.claim(&["retry", "run"], 0).await;
    let retry = reply.jobs.iter().find(|job| job.id == "retry").unwrap();
    let failed = later(after(LATER), "failed");
    bench.settle("retry", &retry.token, failed).await;
    bench.past(bench.now().await + 3).await;
    let now = bench.now().await;
    let items = ["retry", "run", "run"].map(|id| debounced(&bench, id, HOUR, HOUR, b"new"));
    let answers = bench.place(&items).await;
    assert_eq!(words(&answers), ["replaced", "succeeds", "succeeds"]);
    for answered in &answers {
        assert!(due_of(answered.answer) >= now + 3_600_000);
    }
    let (_, record) = bench.successor("run").await;
    assert!(record.accepted >= UnixMs(now));
    bench.balanced().await;
}

#[tokio::test]
async fn throttled_jobs_are_due_so_long_after_each_other() {
    let bench = Bench::new().await;
    let now = bench.now().await;
    let first = bench.place(&[throttled(&bench, "job", HOUR, b"1")]).await;
    let begun = due_of(first[0].answer);
    assert!(words(&first) == ["created"] && begun >= now && begun <= bench.now().await);
    // It waits for its worker: the next call is gathered in it.
    let same = bench.place(&[throttled(&bench, "job", HOUR, b"2")]).await;
    assert_eq!(
        (words(&same)[0], due_of(same[0].answer)),
        ("replaced", begun)
    );
    let run = bench.claim(&["job"], 0).await.jobs.remove(0);
    assert!(run.record.ends_with(b"\n2"));
    let next = bench.place(&[throttled(&bench, "job", HOUR, b"3")]).await;
    assert_eq!(words(&next), ["succeeds"]);
    assert_eq!(due_of(next[0].answer), begun + 3_600_000);
    bench
        .settle("job", &run.token, crate::store::Verb::Done)
        .await;
    let next = bench.place(&[throttled(&bench, "job", HOUR, b"4")]).await;
    assert_eq!(
        (words(&next)[0], due_of(next[0].answer)),
        ("replaced", begun + 3_600_000)
    );
    // Also if nothing of it is left.
    bench.cancel("job").await;
    let next = bench.place(&[throttled(&bench, "job", LATER, b"5")]).await;
    assert_eq!(
        (words(&next)[0], due_of(next[0].answer)),
        ("created", begun + 10_800_000)
    );
    // A job that was scheduled for later by other means is due in time.
    bench.schedule("other", after(LATER)).await;
    let now = bench.now().await;
    let other = bench.place(&[throttled(&bench, "other", HOUR, b"6")]).await;
    let due = due_of(other[0].answer);
    assert!(due >= now && due <= bench.now().await);
    // The last due time is kept for as long as it counts.
    let spaced = bench.names().due.replace(":due", ":spaced:job");
    let left: u64 = bench.ask(&["PTTL", &spaced]).await;
    assert!(left > 3_600_000 && left <= 18_000_001, "{left}");
    let _: u64 = bench.ask(&["DEL", &spaced]).await;
    bench.balanced().await;
}

#[tokio::test]
async fn a_damaged_memory_of_a_throttle_counts_as_none() {
    let bench = Bench::new().await;
    let spaced = bench.names().due.replace(":due", ":spaced:job");
    let _: u64 = bench.ask(&["RPUSH", &spaced, "a list"]).await;
    let now = bench.now().await;
    let placed = bench.place(&[throttled(&bench, "job", SECOND, b"1")]).await;
    assert!(due_of(placed[0].answer) <= bench.now().await && due_of(placed[0].answer) >= now);
    let _: u64 = bench.ask(&["DEL", &spaced]).await;
    bench.balanced().await;
}
