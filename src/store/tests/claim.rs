//! `claim.lua`: one winner for each job that is due.

use std::time::Duration;

use super::support::{Bench, HOUR, MOMENT, State, after, at, bury, ids, word, words};
use crate::ErrorKind;
use crate::store::{Claimed, Lane, Verb, Word};

use State::*;

#[tokio::test]
async fn it_takes_due_jobs_and_no_others() {
    let bench = Bench::new().await;
    let jobs = bench.every_state().await;
    let named: Vec<&str> = jobs.iter().map(|(id, _)| id.as_str()).collect();
    let reply = bench.claim(&named, 0).await;
    let table = [
        (Absent, "absent", Absent),
        (Pending, "early", Pending),
        (Due, "claimed", Leased),
        (Retrying, "early", Retrying),
        (Leased, "leased", Leased),
        (LeasedNext, "leased", LeasedNext),
        (CancelledRun, "leased", CancelledRun),
        (CancelledRunNext, "leased", CancelledRunNext),
        // A lapsed lease is taken over by `reclaim` only.
        (Lapsed, "leased", Lapsed),
        (LapsedNext, "leased", LapsedNext),
        (LapsedCancelled, "leased", LapsedCancelled),
        (LapsedCancelledNext, "leased", LapsedCancelledNext),
        (Dead, "absent", Dead),
    ];
    bench.hold_against(table, &reply.answers).await;
    assert_eq!(ids(&reply), ["Due"]);
    bench.balanced().await;
}

#[tokio::test]
async fn an_early_claim_is_told_how_long_to_wait() {
    let bench = Bench::new().await;
    let due = bench.now().await + 3_600_000;
    bench.schedule("early", at(due)).await;
    let reply = bench.claim(&["early"], 10).await;
    let wait = due - reply.now.floor_ms().0;
    assert_eq!(reply.answers[0].answer, Word::Early(wait));
    assert!(reply.jobs.is_empty());
    bench.balanced().await;
}

#[tokio::test]
async fn a_claimed_job_is_leased_with_all_data_for_its_worker() {
    let bench = Bench::new().await;
    bench.bring("due", Due).await;
    let stored_due = bench.due("due").await.unwrap();
    let record = bench.field(&bench.names().shadow, "due").await.unwrap();
    let lane = Lane::new();
    let reply = bench
        .try_claim(&mut lane.rewound(7), &["due"], 0, HOUR)
        .await
        .unwrap();
    let job = &reply.jobs[0];
    let Claimed {
        token,
        claims,
        fence,
        ..
    } = job;
    assert_eq!((token, *claims), (&format!("{}-7", lane.id()).into(), 1));
    assert_eq!((job.due.0, job.cancelled), (stored_due, false));
    assert_eq!(job.record, record);
    assert!(*fence >= reply.now.0);
    let lease = format!("{token} 1 {fence} {stored_due} -");
    assert_eq!(bench.lease("due").await, Some(lease));
    let deadline = reply.now.0.div_ceil(1000) + 3_600_000;
    assert_eq!(bench.deadline("due").await, deadline);
    assert_eq!(bench.due("due").await, None);
    bench.balanced().await;
}

#[tokio::test]
async fn it_fills_up_with_the_oldest_jobs_beside_the_named_ones() {
    let bench = Bench::new().await;
    let now = bench.now().await;
    let ids_by_age = ["a", "b", "c", "d", "e"];
    // `schedule` takes a time in the past as now, so the due times are written by hand.
    for (id, ago) in ids_by_age.into_iter().zip([50, 40, 30, 20, 10]) {
        bench.schedule(id, after(Duration::ZERO)).await;
        let _: u64 = bench
            .ask(&["ZADD", &bench.names().due, &(now - ago).to_string(), id])
            .await;
    }
    bench.bring("far", Pending).await;
    let named = bench.claim(&["b", "d", "far"], 2).await;
    assert_eq!(ids(&named), ["b", "d", "a", "c"]);
    assert_eq!(words(&named.answers), ["claimed", "claimed", "early"]);
    let rest = bench.claim(&[], 100).await;
    assert_eq!(ids(&rest), ["e"]);
    assert!(bench.claim(&[], 100).await.jobs.is_empty());
    bench.balanced().await;
}

#[tokio::test]
async fn a_claim_takes_as_many_jobs_as_its_reply_has_room_for() {
    let bench = Bench::new().await;
    // Records are read sixteen at a time, and sixteen such records are more than one reply holds.
    let large = "x".repeat(300 << 10);
    let named: Vec<String> = (10..28).map(|number| number.to_string()).collect();
    for id in &named {
        bench.schedule(id, after(Duration::ZERO)).await;
        let record = bench.field(&bench.names().shadow, id).await.unwrap();
        let record = String::from_utf8(record.to_vec()).unwrap() + &large;
        let shadow = &bench.names().shadow;
        let _: u64 = bench.ask(&["HSET", shadow, id, &record]).await;
    }
    let named: Vec<&str> = named.iter().map(String::as_str).collect();
    let mut claimed = Vec::new();
    for (named, count) in [(&named[..], 16), (&[], 2), (&[], 0)] {
        let reply = bench.claim(named, 100).await;
        assert_eq!(reply.jobs.len(), count);
        assert!(reply.jobs.iter().all(|job| job.record.len() > large.len()));
        for (answer, id) in reply.answers.iter().zip(named) {
            let is_claimed = ids(&reply).contains(id);
            assert_eq!(answer.answer == Word::Claimed, is_claimed, "{id}");
            assert_eq!(answer.answer == Word::Early(0), !is_claimed, "{id}");
        }
        claimed.extend(ids(&reply).into_iter().map(str::to_owned));
    }
    claimed.sort();
    assert_eq!(claimed, named);
    bench.balanced().await;
}

#[tokio::test]
async fn one_id_twice_is_handed_out_once() {
    let bench = Bench::new().await;
    bench.bring("due", Due).await;
    let reply = bench.claim(&["due", "missing", "due"], 3).await;
    assert_eq!(words(&reply.answers), ["claimed", "absent", "claimed"]);
    assert_eq!(ids(&reply), ["due"]);
    bench.balanced().await;
}

#[tokio::test]
async fn one_of_many_claimers_wins() {
    let bench = Bench::new().await;
    let many = (0..20).map(|i| format!("job-{i}")).collect::<Vec<_>>();
    let place = |id: &String| bench.placement(id, after(Duration::ZERO));
    bench
        .place(&many.iter().map(place).collect::<Vec<_>>())
        .await;
    let named: Vec<&str> = many.iter().map(String::as_str).collect();
    let claims = (0..8).map(|_| bench.claim(&named, 20));
    let replies = futures_util::future::join_all(claims).await;
    let mut won: Vec<&str> = replies.iter().flat_map(ids).collect();
    won.sort_unstable();
    let mut all = named.clone();
    all.sort_unstable();
    assert_eq!(won, all);
    bench.balanced().await;
}

#[tokio::test]
async fn a_repeat_gets_the_jobs_that_are_still_held() {
    let bench = Bench::new().await;
    for id in ["kept", "done", "lost", "marked"] {
        bench.bring(id, Due).await;
    }
    let lane = Lane::new();
    let named = ["kept", "done", "lost", "marked"];
    let first = bench
        .try_claim(&mut lane.rewound(1), &named, 0, MOMENT)
        .await;
    let first = first.unwrap();
    bench.past(bench.deadline("kept").await).await;
    bench.reclaim(&["lost"]).await;
    bench.settle("done", &first.jobs[1].token, Verb::Done).await;
    bench.cancel("marked").await;
    // A repeat does not get a job that fell due after the first call.
    bench.bring("newer", Due).await;

    let repeat = bench
        .try_claim(&mut lane.rewound(1), &named, 9, HOUR)
        .await
        .unwrap();
    assert_eq!(ids(&repeat), ["kept", "marked"]);
    assert!(repeat.answers.is_empty());
    let [kept, marked] = &repeat.jobs[..] else {
        unreachable!()
    };
    assert_eq!(
        (kept.fence, &kept.record),
        (first.jobs[0].fence, &first.jobs[0].record)
    );
    assert_eq!(
        (kept.claims, kept.cancelled, marked.cancelled),
        (1, false, true)
    );
    let deadline = repeat.now.0.div_ceil(1000) + 3_600_000;
    assert_eq!(
        bench.deadline("kept").await,
        deadline,
        "counted from the repeat"
    );
    assert_eq!(bench.state("newer").await, Due);
    bench.balanced().await;
}

#[tokio::test]
async fn a_repeat_and_a_late_original_of_an_empty_claim_claim_nothing() {
    let bench = Bench::new().await;
    let mut lane = Lane::new();
    let claim = bench.try_claim(&mut lane, &["job"], 5, HOUR).await.unwrap();
    assert_eq!(words(&claim.answers), ["absent"]);
    bench.bring("job", Due).await;
    let stored = bench.snapshot().await;
    let repeat = bench
        .try_claim(&mut lane.rewound(1), &["job"], 5, HOUR)
        .await
        .unwrap();
    assert!(repeat.jobs.is_empty() && repeat.answers.is_empty());
    assert_eq!(bench.snapshot().await, stored);
    bench
        .try_claim(&mut lane, &["missing"], 0, HOUR)
        .await
        .unwrap();
    let stored = bench.snapshot().await;
    let late = bench
        .try_claim(&mut lane.rewound(1), &["job"], 5, HOUR)
        .await
        .unwrap_err();
    assert_eq!(late.kind(), ErrorKind::OutcomeUnknown);
    assert_eq!(bench.snapshot().await, stored);
    bench.balanced().await;
}

#[tokio::test]
async fn a_job_without_a_record_is_handed_out_for_burial() {
    let bench = Bench::new().await;
    bench.bring("bare", Due).await;
    let _: u64 = bench.ask(&["HDEL", &bench.names().shadow, "bare"]).await;
    let job = bench.claim(&["bare"], 0).await.jobs.remove(0);
    assert!(job.record.is_empty());
    assert_eq!(
        word(bench.settle("bare", &job.token, bury()).await),
        "buried"
    );
    assert_eq!(bench.state("bare").await, Dead);
    bench.balanced().await;
}

#[tokio::test]
async fn fencing_values_only_grow_in_a_ledger() {
    let bench = Bench::new().await;
    let mut last = 0;
    let mut grows = |jobs: &[Claimed]| {
        let fence = jobs[0].fence;
        assert!(fence > last, "{fence} after {last}");
        assert!(jobs.iter().all(|job| job.fence == fence));
        last = fence;
        last
    };
    for _ in 0..3 {
        for id in ["a", "b"] {
            bench.bring(id, Due).await;
        }
        let first = bench.try_claim(&mut Lane::new(), &[], 9, MOMENT).await;
        let first = first.unwrap();
        assert_eq!(first.jobs.len(), 2);
        grows(&first.jobs);
        // A claim without jobs neither takes a value back nor gives one out.
        bench.claim(&["missing"], 9).await;
        bench.past(bench.deadline("b").await).await;
        let second = bench.reclaim(&["a", "b"]).await;
        assert_eq!(second.jobs.len(), 2);
        let largest = grows(&second.jobs);
        for job in second.jobs {
            bench.settle(&job.id, &job.token, Verb::Done).await;
        }
        let stored: u64 = bench.ask(&["HGET", &bench.names().calls, "fence"]).await;
        assert_eq!(stored, largest);
    }
    // The server's clock was a hundred years ahead, and has been set right.
    let far = last + 100 * 366 * 24 * 3_600_000_000;
    let _: u64 = bench
        .ask(&["HSET", &bench.names().calls, "fence", &far.to_string()])
        .await;
    bench.claim(&["missing"], 0).await;
    let mut fences = Vec::new();
    for _ in 0..2 {
        for id in ["a", "b"] {
            bench.bring(id, Due).await;
        }
        let mut lane = Lane::new();
        let claim = bench.try_claim(&mut lane, &[], 9, MOMENT).await.unwrap();
        bench.past(bench.deadline("b").await).await;
        let reclaim = bench.reclaim(&["a", "b"]).await;
        fences.extend(claim.jobs.iter().chain(&reclaim.jobs).map(|job| job.fence));
        for job in reclaim.jobs {
            bench.settle(&job.id, &job.token, Verb::Done).await;
        }
    }
    let four_claims = (far + 1..=far + 4).flat_map(|fence| [fence, fence]);
    assert_eq!(fences, four_claims.collect::<Vec<_>>());
    bench.balanced().await;
}

#[tokio::test]
async fn the_leases_of_a_crowd_are_in_a_hash_table() {
    let bench = Bench::new().await;
    let lease = bench.names().lease.clone();
    let encoding = async || -> String { bench.ask(&["OBJECT", "ENCODING", &lease]).await };
    for number in 0..20 {
        bench.bring(&format!("{number:02}"), Due).await;
    }
    let few = bench.claim(&[], 15).await;
    assert_eq!(few.jobs.len(), 15);
    assert_ne!(encoding().await, "hashtable");
    // With the leases of the claim before, these are a crowd.
    let more = bench.claim(&[], 1).await;
    assert_eq!(encoding().await, "hashtable");
    let job = &more.jobs[0];
    assert_eq!(job.claims, few.jobs[0].claims);
    let answer = bench.settle(&job.id, &job.token, Verb::Done).await;
    assert_eq!(word(answer), "done");
    bench.balanced().await;
}
