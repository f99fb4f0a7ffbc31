//! `pause.lua` and `resume.lua`, and the effect of a pause on claims.

use std::time::Duration;

use super::support::{
    Bench, Ears, HOUR, MOMENT, State, after, ids, same_when_repeated, soon, word, words,
};
use crate::store::{Answered, Lane, Verb, Word};
use crate::time::UnixMs;

use State::*;

impl Bench {
    async fn pause(&self) {
        self.ledger
            .pause(&mut Lane::new(), None, soon())
            .await
            .unwrap();
    }

    async fn resume(&self) {
        self.ledger
            .resume(&mut Lane::new(), None, soon())
            .await
            .unwrap();
    }

    async fn is_paused(&self) -> bool {
        self.ledger.paused_since(soon()).await.unwrap().is_some()
    }
}

#[tokio::test]
async fn a_paused_ledger_hands_out_nothing_and_says_so() {
    let bench = Bench::new().await;
    let jobs = bench.every_state().await;
    bench.pause().await;
    let named: Vec<&str> = jobs.iter().map(|(id, _)| id.as_str()).collect();
    let reply = bench.claim(&named, 10).await;
    let table = [
        (Absent, "absent", Absent),
        (Pending, "early", Pending),
        (Due, "paused", Due),
        (Retrying, "early", Retrying),
        (Leased, "leased", Leased),
        (LeasedNext, "leased", LeasedNext),
        (CancelledRun, "leased", CancelledRun),
        (CancelledRunNext, "leased", CancelledRunNext),
        (Lapsed, "leased", Lapsed),
        (LapsedNext, "leased", LapsedNext),
        (LapsedCancelled, "leased", LapsedCancelled),
        (LapsedCancelledNext, "leased", LapsedCancelledNext),
        (Dead, "absent", Dead),
    ];
    bench.hold_against(table, &reply.answers).await;
    assert!(reply.paused && reply.jobs.is_empty());
    assert!(bench.claim(&[], 10).await.paused);
    let sweep = bench.ledger.sweep(Duration::ZERO, (0, 0), 10, soon()).await;
    let sweep = sweep.unwrap();
    assert!(sweep.paused && sweep.overdue.is_empty() && sweep.lapsed.is_empty());
    assert!(sweep.next_due.is_some(), "the pacer goes on");

    // A lapsed job that must not run again still ends.
    let reply = bench.reclaim(&named).await;
    let table = [
        (Absent, "absent", Absent),
        (Pending, "absent", Pending),
        (Due, "absent", Due),
        (Retrying, "absent", Retrying),
        (Leased, "leased", Leased),
        (LeasedNext, "leased", LeasedNext),
        (CancelledRun, "leased", CancelledRun),
        (CancelledRunNext, "leased", CancelledRunNext),
        (Lapsed, "paused", Lapsed),
        (LapsedNext, "replaced", Pending),
        (LapsedCancelled, "cancelled", Absent),
        (LapsedCancelledNext, "cancelled", Pending),
        (Dead, "absent", Dead),
    ];
    bench.hold_against(table, &reply.answers).await;
    assert!(reply.paused && reply.jobs.is_empty());
    assert!(bench.balanced().await.paused);
    assert_eq!(bench.counted("lapsed").await, 0);

    bench.resume().await;
    let reply = bench.claim(&[], 10).await;
    assert!(!reply.paused);
    assert_eq!(ids(&reply), ["Due"]);
    assert_eq!(ids(&bench.reclaim(&["Lapsed"]).await), ["Lapsed"]);
    assert!(!bench.balanced().await.paused);
}

#[tokio::test]
async fn all_other_calls_work_in_a_pause() {
    let (paused, other) = (Bench::new().await, Bench::new().await);
    let mut tokens = Vec::new();
    for bench in [&paused, &other] {
        tokens.push(bench.every_state().await);
    }
    paused.pause().await;
    let mut said = Vec::new();
    for (bench, jobs) in [(&paused, &tokens[0]), (&other, &tokens[1])] {
        let mut answers = Vec::new();
        for (id, token) in jobs {
            answers.push(word(bench.reschedule(id, after(HOUR)).await));
            answers.push(words(&bench.renew(&[(id, token)]).await)[0]);
            answers.push(word(bench.settle(id, token, Verb::Done).await));
            answers.push(word(bench.schedule(id, after(HOUR)).await));
            answers.push(word(bench.cancel(id).await));
        }
        said.push(answers);
        bench.balanced().await;
    }
    assert_eq!(said[0], said[1]);
}

#[tokio::test]
async fn a_repeated_claim_gets_the_jobs_claimed_before_the_pause() {
    let bench = Bench::new().await;
    bench.bring("mine", Due).await;
    let lane = Lane::new();
    let claim = async |number, id, fill, lease| {
        let mut lane = lane.rewound(number);
        let reply = bench.try_claim(&mut lane, &[id], fill, lease).await;
        reply.unwrap()
    };
    assert_eq!(ids(&claim(1, "mine", 0, HOUR).await), ["mine"]);
    bench.pause().await;
    bench.bring("due", Due).await;
    assert_eq!(ids(&claim(1, "mine", 5, HOUR).await), ["mine"]);

    // A claim of a paused ledger is remembered: after the pause its repeat claims nothing.
    assert!(claim(2, "due", 5, MOMENT).await.paused);
    bench.resume().await;
    assert!(claim(2, "due", 5, MOMENT).await.jobs.is_empty());
    assert_eq!(bench.state("due").await, Due);
    bench.balanced().await;
}

#[tokio::test]
async fn pause_and_resume_can_be_repeated_and_come_late() {
    let bench = Bench::new().await;
    let answered = |answer| vec![Answered::of(answer)];
    same_when_repeated(&bench, async |lane| {
        let done = bench.ledger.pause(lane, None, soon()).await;
        done.map(|()| answered(Word::Paused))
    })
    .await;
    assert!(bench.is_paused().await);
    same_when_repeated(&bench, async |lane| {
        let done = bench.ledger.resume(lane, None, soon()).await;
        done.map(|()| answered(Word::Resumed))
    })
    .await;
    assert!(!bench.is_paused().await);
    bench.balanced().await;
}

#[tokio::test]
async fn a_second_pause_does_not_change_the_start() {
    let bench = Bench::new().await;
    bench.pause().await;
    let since = bench.ledger.paused_since(soon()).await.unwrap().unwrap();
    bench.past(since.0).await;
    bench.pause().await;
    let again = bench.ledger.paused_since(soon()).await.unwrap();
    assert_eq!(again, Some(since));
    bench.resume().await;
    bench.pause().await;
    let anew = bench.ledger.paused_since(soon()).await.unwrap();
    assert!(anew > Some(since));
    bench.balanced().await;
}

#[tokio::test]
async fn pause_and_resume_are_announced() {
    let bench = Bench::new().await;
    let mut ears = Ears::of(&bench).await;
    bench.pause().await;
    bench.resume().await;
    let kind = bench.ledger.kind();
    let announced = [format!("pause {kind}"), format!("resume {kind}")];
    assert_eq!(ears.heard(&bench).await, announced);
    bench.balanced().await;
}

#[tokio::test]
async fn a_new_kind_is_paused_by_the_rule_that_covers_it() {
    use crate::prefix::Prefix;

    let bench = Bench::new().await;
    let (store, kind) = (bench.ledger.store.clone(), bench.ledger.kind());
    let rule = Prefix::parse(kind.as_str().split_once(':').unwrap().0).unwrap();
    store
        .add_pause_rule(&rule, None, "me", soon())
        .await
        .unwrap();
    store.register(kind, None, soon()).await.unwrap();
    assert!(bench.is_paused().await);
    // A kind that was resumed by name stays resumed, whichever client registers it again.
    bench.resume().await;
    store.register(kind, None, soon()).await.unwrap();
    assert!(!bench.is_paused().await);
    store.remove_pause_rules(&rule, None, soon()).await.unwrap();
    let left = store.pause_rules(soon()).await.unwrap();
    assert!(left.iter().all(|(text, _)| text != rule.as_str()));
    bench.balanced().await;
}

#[tokio::test]
async fn a_kind_that_is_half_founded_is_still_paused_by_the_rule_that_covers_it() {
    use crate::prefix::Prefix;
    use crate::shards::Layout;

    let bench = Bench::new().await;
    let (store, server) = (bench.ledger.store.clone(), &bench.ledger.server);
    let (kind, calls) = (bench.ledger.kind(), &bench.names().calls);
    let rule = Prefix::parse(kind.as_str().split_once(':').unwrap().0).unwrap();
    store
        .add_pause_rule(&rule, None, "me", soon())
        .await
        .unwrap();
    let is_founding = async || server.has_field(calls, "founding", soon()).await.unwrap();
    let several = Layout::FIRST.to(4).settled();
    server.start(kind, several, soon()).await.unwrap();
    assert!(is_founding().await);
    // Another client completes what the first one had begun when it was killed.
    store.register(kind, Some(4), soon()).await.unwrap();
    assert!(!is_founding().await);
    for shard in 0..4 {
        let calls = &store.names.ledger(kind, shard).calls;
        assert!(server.has_field(calls, "paused", soon()).await.unwrap());
    }
    // A late repeat of `start` sets no mark.
    server.start(kind, several, soon()).await.unwrap();
    assert!(!is_founding().await);
    store.remove_pause_rules(&rule, None, soon()).await.unwrap();
    bench.balanced().await;
}

#[tokio::test]
async fn a_late_call_changes_nothing_that_was_done_since() {
    let bench = Bench::new().await;
    let lane = &mut Lane::new();
    let turn = |number| Some(UnixMs(number));
    bench.ledger.pause(lane, turn(3), soon()).await.unwrap();
    bench.ledger.resume(lane, turn(2), soon()).await.unwrap();
    assert!(bench.is_paused().await);
    bench.ledger.resume(lane, turn(4), soon()).await.unwrap();
    assert!(!bench.is_paused().await);
    bench.ledger.pause(lane, turn(3), soon()).await.unwrap();
    assert!(!bench.is_paused().await);
    bench.ledger.pause(lane, turn(5), soon()).await.unwrap();
    assert!(bench.is_paused().await);
    // On a single server, pauses and resumes have no numbers, and the latest call counts.
    bench.ledger.resume(lane, None, soon()).await.unwrap();
    assert!(!bench.is_paused().await);
    bench.balanced().await;
}
