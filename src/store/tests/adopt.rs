//! `adopt.lua`: plain commands on keys create and change jobs.

use std::time::{Duration, Instant};

use super::support::{
    Bench, HOUR, LATER, PENDING, State, after, bury, due_of, later, soon, word, words,
};
use crate::embedded::Embedded;
use crate::error::ErrorKind;
use crate::names::MARKER;
use crate::store::{Lane, Why, Word};

use State::*;
use Why::{Asked, Begun, Gone, Heard, Lost, Missed, Over, Seen};

const MOST: usize = 1024;

/// The look at a key whose expiry was heard just now.
fn over() -> Why {
    Over(Instant::now())
}

impl Bench {
    async fn adopt_all(&self, ids: &[(&str, Why)]) -> Vec<&'static str> {
        let items: Vec<_> = ids.iter().map(|(id, why)| (self.key(id), *why)).collect();
        words(&self.ledger.adopt(&items, |_| MOST, soon()).await.unwrap())
    }

    async fn adopt(&self, id: &str, why: Why) -> Word {
        let items = [(self.key(id), why)];
        self.ledger.adopt(&items, |_| MOST, soon()).await.unwrap()[0].answer
    }

    /// Sends a command of another program on the key of a job.
    async fn theirs(&self, command: &str, id: &str, rest: &[&str]) {
        let key = self.key(id).to_string();
        let _: redis::Value = self.ask(&[&[command, &key], rest].concat()).await;
    }

    async fn set(&self, id: &str, value: &str, seconds: &str) {
        self.theirs("SET", id, &[value, "EX", seconds]).await;
    }

    /// Sets a key that expires in an hour, and adopts it. Returns the due time of its job.
    async fn adopted(&self, id: &str) -> u64 {
        self.set(id, "v", "3600").await;
        let answer = self.adopt(id, Seen).await;
        assert!(matches!(answer, Word::Created(_)), "{answer:?}");
        due_of(answer)
    }

    async fn expiry(&self, id: &str) -> u64 {
        let key = self.key(id).to_string();
        let left: u64 = self.ask(&["PTTL", &key]).await;
        self.now().await + left
    }
}

#[tokio::test]
async fn a_value_with_an_expiry_creates_replaces_or_succeeds() {
    let bench = Bench::new().await;
    bench.every_state().await;
    let ids = State::ALL.map(State::id);
    let mut items = Vec::new();
    for id in &ids {
        bench.set(id, "theirs", "7200").await;
        items.push((bench.key(id), Seen));
    }
    let answers = bench.ledger.adopt(&items, |_| MOST, soon()).await.unwrap();
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
    for (id, answered) in ids.iter().zip(&answers) {
        let due = due_of(answered.answer);
        // Time passes between the two reads.
        assert!(due.abs_diff(bench.expiry(id).await) < 60_000, "{id}");
        let record = match bench.due(id).await {
            Some(_) => bench.record(id).await,
            None => bench.successor(id).await.1,
        };
        assert_eq!(&record.payload[..], b"theirs", "{id}");
        let there: String = bench.ask(&["GET", &bench.key(id).to_string()]).await;
        assert_eq!(there, "theirs", "{id}");
    }
    let before = bench.snapshot().await;
    let again = bench.ledger.adopt(&items, |_| MOST, soon()).await.unwrap();
    assert_eq!(words(&again), ["same"; 13]);
    assert_eq!(bench.snapshot().await, before);
    bench.balanced().await;
}

#[tokio::test]
async fn a_new_expiry_moves_the_job_and_a_new_value_replaces_it() {
    let bench = Bench::new().await;
    let due = bench.adopted("a").await;
    let record = bench.record("a").await;
    for (seconds, later) in [("7200", true), ("1800", false)] {
        bench.theirs("EXPIRE", "a", &[seconds]).await;
        let moved = bench.adopt("a", Seen).await;
        assert_eq!(word(moved), "moved");
        assert_eq!(due_of(moved) > due, later);
        assert_eq!(bench.due("a").await, Some(due_of(moved)));
        assert_eq!(bench.adopt("a", Seen).await, Word::Same);
    }
    assert_eq!(bench.record("a").await.accepted, record.accepted);
    let due = bench.due("a").await;
    bench.theirs("SET", "a", &["w", "KEEPTTL"]).await;
    assert_eq!(word(bench.adopt("a", Seen).await), "replaced");
    assert_eq!(bench.due("a").await, due);
    assert_eq!(&bench.record("a").await.payload[..], b"w");
    assert_eq!(bench.counted("replaced").await, 1);
    bench.balanced().await;
}

#[tokio::test]
async fn a_key_that_is_persisted_or_deleted_cancels_its_job() {
    let bench = Bench::new().await;
    for (id, command, rest, why) in [
        ("persisted", "PERSIST", &[][..], Seen),
        ("overwritten", "SET", &["w"], Seen),
        ("deleted", "DEL", &[], Gone),
        ("missed", "DEL", &[], Missed),
        ("found-missing", "DEL", &[], Lost),
        ("found-lasting", "PERSIST", &[], Begun),
    ] {
        bench.adopted(id).await;
        bench.theirs(command, id, rest).await;
        assert_eq!(bench.adopt(id, why).await, Word::Cancelled, "{id}");
        assert_eq!(bench.state(id).await, Absent, "{id}");
        assert_eq!(bench.adopt(id, why).await, Word::Absent, "{id}");
    }
    assert_eq!(bench.counted("cancelled").await, 6);
    // None of these reasons for a look says that the key was deleted.
    for (id, why) in [("seen", Seen), ("over", over()), ("begun", Begun)] {
        bench.adopted(id).await;
        bench.theirs("DEL", id, &[]).await;
        let (why, answer) = match why {
            Over(_) => (over(), "moved"),
            _ => (why, "absent"),
        };
        assert_eq!(word(bench.adopt(id, why).await), answer, "{id}");
        assert!(matches!(bench.state(id).await, Pending | Due), "{id}");
    }
    bench.balanced().await;
}

#[tokio::test]
async fn a_job_whose_key_is_missing_after_its_time_runs() {
    let bench = Bench::new().await;
    bench.adopted("a").await;
    let past = (bench.now().await - 1).to_string();
    for set in [&bench.names().due, &bench.names().adopted] {
        let _: u64 = bench.ask(&["ZADD", set, &past, "a"]).await;
    }
    bench.theirs("DEL", "a", &[]).await;
    for why in [Gone, Missed, Lost, Seen, Over(std::time::Instant::now())] {
        assert_eq!(bench.adopt("a", why).await, Word::Absent, "{why:?}");
        assert!(bench.due("a").await.is_some(), "{why:?}");
    }
    bench.balanced().await;
}

#[tokio::test]
async fn keys_do_not_cancel_jobs_that_were_scheduled_by_other_means() {
    let bench = Bench::new().await;
    bench.schedule("ours", after(HOUR)).await;
    for why in [Seen, over(), Begun] {
        assert_eq!(bench.adopt("ours", why).await, Word::Same, "{why:?}");
    }
    let trigger: String = bench.ask(&["GET", &bench.key("ours").to_string()]).await;
    assert_eq!(trigger, MARKER);
    bench.theirs("DEL", "ours", &[]).await;
    for why in [Seen, Gone, over(), Begun, Asked, Heard, Lost] {
        assert_eq!(bench.adopt("ours", why).await, Word::Absent, "{why:?}");
    }
    bench.theirs("SET", "ours", &["lasting"]).await;
    assert_eq!(bench.adopt("ours", Seen).await, Word::Absent);
    assert_eq!(bench.state("ours").await, Pending);
    bench.balanced().await;
}

#[tokio::test]
async fn a_key_that_expires_sooner_than_known_makes_its_job_due_now() {
    let bench = Bench::new().await;
    let due = bench.adopted("a").await;
    bench.theirs("PEXPIRE", "a", &["1"]).await;
    bench.past(bench.now().await + 2).await;
    let moved = bench.adopt("a", over()).await;
    assert_eq!(word(moved), "moved");
    assert!(due_of(moved) < due && due_of(moved) <= bench.now().await);
    // A job that another call has postponed does not fall due when its key expires.
    bench.adopted("b").await;
    bench.reschedule("b", after(LATER)).await;
    bench.theirs("DEL", "b", &[]).await;
    assert_eq!(bench.adopt("b", over()).await, Word::Absent);
    bench.balanced().await;
}

#[tokio::test]
async fn a_change_by_another_call_stands_until_the_key_changes() {
    let bench = Bench::new().await;
    for id in ["cancelled", "moved", "updated", "scheduled", "run"] {
        bench.adopted(id).await;
    }
    bench.cancel("cancelled").await;
    bench.reschedule("moved", after(LATER)).await;
    let update = [bench.update("updated", b"newer")];
    let mut lane = Lane::new();
    bench
        .ledger
        .update(&mut lane, &update, soon())
        .await
        .unwrap();
    bench.schedule("scheduled", after(LATER)).await;
    bench.reschedule("run", after(Duration::ZERO)).await;
    let run = bench.claim(&["run"], 0).await.jobs.remove(0);
    let before = bench.snapshot().await;
    let all = ["cancelled", "moved", "updated", "scheduled", "run"];
    assert_eq!(
        bench.adopt_all(&all.map(|id| (id, Seen))).await,
        ["same"; 5]
    );
    assert_eq!(
        bench.adopt_all(&all.map(|id| (id, Begun))).await,
        ["same"; 5]
    );
    assert_eq!(bench.snapshot().await, before);
    bench
        .settle("run", &run.token, crate::store::Verb::Done)
        .await;
    assert_eq!(bench.adopt("run", Seen).await, Word::Same);

    for id in all {
        bench.theirs("EXPIRE", id, &["1800"]).await;
    }
    let changed = bench.adopt_all(&all.map(|id| (id, Seen))).await;
    assert_eq!(
        changed,
        ["created", "moved", "moved", "replaced", "created"]
    );
    assert_eq!(&bench.record("updated").await.payload[..], b"newer");
    bench.balanced().await;
}

#[tokio::test]
async fn setting_the_key_again_restarts_a_job_that_waits_for_a_retry() {
    let bench = Bench::new().await;
    bench.adopted("a").await;
    bench.reschedule("a", after(Duration::ZERO)).await;
    let run = bench.claim(&["a"], 0).await.jobs.remove(0);
    bench.theirs("DEL", "a", &[]).await;
    let retry = later(after(HOUR), "failed");
    bench.settle("a", &run.token, retry).await;
    // The ledger knows of the expiry by the time in `adopted`, so that has to be past.
    let gone = bench.names().adopted.clone();
    let _: u64 = bench.ask(&["ZADD", &gone, "XX", "1", "a"]).await;
    bench.set("a", "v", "60").await;
    assert_eq!(word(bench.adopt("a", Seen).await), "replaced");
    assert!(bench.record("a").await.steps.is_empty());
    bench.balanced().await;
}

#[tokio::test]
async fn a_successor_is_adopted_moved_replaced_and_dropped() {
    let bench = Bench::new().await;
    bench.bring("a", Leased).await;
    bench.set("a", "v", "3600").await;
    assert_eq!(word(bench.adopt("a", Seen).await), "succeeds");
    bench.theirs("EXPIRE", "a", &["60"]).await;
    assert_eq!(word(bench.adopt("a", Seen).await), "successor");
    bench.set("a", "w", "60").await;
    assert_eq!(word(bench.adopt("a", Seen).await), "succeeds");
    assert_eq!(&bench.successor("a").await.1.payload[..], b"w");
    bench.theirs("DEL", "a", &[]).await;
    assert_eq!(bench.adopt("a", Gone).await, Word::Cancelled);
    assert_eq!(bench.state("a").await, Leased, "the run is left alone");
    bench.balanced().await;
}

#[tokio::test]
async fn a_claimed_job_is_taken_back_if_its_key_changed() {
    let bench = Bench::new().await;
    let mut tokens = Vec::new();
    let ids = ["same", "missing", "lost", "persisted", "postponed", "other"];
    for id in ids {
        bench.adopted(id).await;
        bench.reschedule(id, after(Duration::ZERO)).await;
        tokens.push(bench.claim(&[id], 0).await.jobs.remove(0).token);
    }
    bench.theirs("DEL", "missing", &[]).await;
    bench.theirs("DEL", "lost", &[]).await;
    bench.theirs("PERSIST", "persisted", &[]).await;
    bench.theirs("EXPIRE", "postponed", &["7200"]).await;
    bench.set("other", "w", "60").await;
    let whys = [Begun, Begun, Lost, Begun, Begun, Begun];
    let items: Vec<_> = ids.into_iter().zip(whys).collect();
    let answers = bench.adopt_all(&items).await;
    let told = [
        "same",
        "absent",
        "cancelled",
        "cancelled",
        "succeeds",
        "succeeds",
    ];
    assert_eq!(answers, told);
    for ((id, token), ended) in
        ids.iter()
            .zip(&tokens)
            .skip(2)
            .zip(["cancelled", "cancelled", "replaced", "replaced"])
    {
        let back = later(after(Duration::ZERO), "returned");
        assert_eq!(word(bench.settle(id, token, back).await), ended, "{id}");
    }
    assert_eq!(&bench.record("postponed").await.payload[..], b"v");
    assert_eq!(&bench.record("other").await.payload[..], b"w");
    bench.balanced().await;
}

#[tokio::test]
async fn an_expiry_heard_before_the_key_was_set_again_does_not_count() {
    let bench = Bench::new().await;
    // So long ago that the way to Redis takes less.
    let earlier = Over(Instant::now() - Duration::from_secs(10));
    let due = bench.adopted("ahead").await;
    bench.theirs("DEL", "ahead", &[]).await;
    assert_eq!(bench.adopt("ahead", earlier).await, Word::Absent);
    assert_eq!(bench.due("ahead").await, Some(due));
    for id in ["deleted", "expired"] {
        bench.adopted(id).await;
        bench.theirs("DEL", id, &[]).await;
        // Makes the time of the key and of its job seem past.
        let names = bench.names();
        let _: u64 = bench.ask(&["ZADD", &names.adopted, "2", id]).await;
        let _: u64 = bench.ask(&["ZADD", &names.due, "XX", "2", id]).await;
        bench.past(bench.now().await + 2).await;
        let heard = if id == "expired" { over() } else { earlier };
        assert_eq!(bench.adopt(id, heard).await, Word::Absent);
    }
    bench.claim(&["deleted", "expired"], 0).await;
    let looks = [("deleted", Asked), ("expired", Asked)];
    assert_eq!(bench.adopt_all(&looks).await, ["missing", "absent"]);
    bench.balanced().await;
}

#[tokio::test]
async fn a_job_whose_key_was_renewed_after_its_claim_runs_once() {
    let bench = Bench::new().await;
    bench.adopted("a").await;
    let names = bench.names();
    let _: u64 = bench.ask(&["ZADD", &names.due, "XX", "1", "a"]).await;
    let run = bench.claim(&["a"], 0).await.jobs.remove(0);
    bench.theirs("EXPIRE", "a", &["1800"]).await;
    let renewed = bench.adopt("a", Seen).await;
    assert_eq!(word(renewed), "succeeds");
    // Makes the new expiry of the key seem past, too.
    let waits: String = bench.ask(&["HGET", &names.next, "a"]).await;
    let over = waits.replacen(&due_of(renewed).to_string(), "2", 1);
    let _: u64 = bench.ask(&["HSET", &names.next, "a", &over]).await;
    let _: u64 = bench.ask(&["ZADD", &names.adopted, "2", "a"]).await;
    bench.theirs("DEL", "a", &[]).await;
    assert_eq!(word(bench.adopt("a", Begun).await), "successor");
    let back = later(after(Duration::ZERO), "returned");
    let ended = bench.settle("a", &run.token, back).await;
    assert_eq!(word(ended), "replaced");
    bench.claim(&["a"], 0).await;
    assert_eq!(bench.adopt("a", Begun).await, Word::Absent);
    bench.balanced().await;
}

#[tokio::test]
async fn a_claimed_job_goes_back_while_its_key_is_there() {
    let bench = Bench::new().await;
    let due = bench.adopted("a").await.to_string();
    let names = bench.names();
    let _: u64 = bench.ask(&["ZADD", &names.due, "XX", "1", "a"]).await;
    bench.claim(&["a"], 0).await;
    assert_eq!(bench.adopt("a", Begun).await, Word::Same);
    // Makes the claim seem to come in the millisecond in which the key falls due.
    let lease: String = bench.ask(&["HGET", &names.lease, "a"]).await;
    let mut parts: Vec<&str> = lease.split(' ').collect();
    parts[3] = &due;
    let _: u64 = bench
        .ask(&["HSET", &names.lease, "a", &parts.join(" ")])
        .await;
    for why in [Begun, Asked, Heard, Lost] {
        assert_eq!(word(bench.adopt("a", why).await), "moved", "{why:?}");
    }
    bench.balanced().await;
}

#[tokio::test]
async fn a_missing_key_is_lost_only_if_its_expiry_is_not_known() {
    let bench = Bench::new().await;
    let ids = ["nobody", "heard", "begun", "moved", "retried"];
    let mut last = 0;
    for id in ids {
        bench.set(id, "v", "2").await;
        last = due_of(bench.adopt(id, Seen).await);
    }
    bench.theirs("DEL", "nobody", &[]).await;
    bench.past(last + 10).await;
    assert_eq!(bench.adopt("heard", over()).await, Word::Absent);
    bench
        .reschedule("moved", after(Duration::from_millis(1)))
        .await;
    bench.past(bench.due("moved").await.unwrap()).await;
    for id in ids {
        // Redis keeps a key whose time is over until a client looks at it.
        bench.theirs("EXISTS", id, &[]).await;
    }
    let mut tokens = Vec::new();
    for id in ids {
        tokens.push(bench.claim(&[id], 0).await.jobs.remove(0).token);
    }
    let retry = later(after(Duration::ZERO), "failed");
    bench.settle("retried", &tokens[4], retry).await;
    tokens[4] = bench.claim(&["retried"], 0).await.jobs.remove(0).token;
    let before = bench.snapshot().await;
    let answers = bench.adopt_all(&ids.map(|id| (id, Asked))).await;
    let told = ["missing", "absent", "missing", "absent", "absent"];
    assert_eq!(answers, told);
    assert_eq!(bench.snapshot().await, before);
    assert_eq!(bench.adopt("begun", Heard).await, Word::Absent);
    let answers = bench.adopt_all(&ids.map(|id| (id, Lost))).await;
    let told = ["cancelled", "absent", "absent", "absent", "absent"];
    assert_eq!(answers, told);
    bench.balanced().await;
}

#[tokio::test]
async fn a_claimed_job_whose_key_was_postponed_does_not_run() {
    let bench = Bench::new().await;
    for id in ["postponed", "other"] {
        bench.adopted(id).await;
        bench.reschedule(id, after(Duration::ZERO)).await;
        bench.claim(&[id], 0).await;
    }
    bench.theirs("EXPIRE", "postponed", &["7200"]).await;
    bench.set("other", "w", "7200").await;
    let items = [("postponed", Seen), ("other", Seen)];
    assert_eq!(bench.adopt_all(&items).await, ["succeeds", "succeeds"]);
    let items = [("postponed", Begun), ("other", Lost)];
    assert_eq!(bench.adopt_all(&items).await, ["successor", "successor"]);
    let items = [("postponed", Seen), ("other", Seen)];
    assert_eq!(bench.adopt_all(&items).await, ["same", "same"]);
    bench.balanced().await;
}

/// Such calls come from a consumer that ends the job over HTTP, or from an operator.
#[tokio::test]
async fn calls_that_adopt_nothing_leave_the_key_alone() {
    let bench = Bench::new().await;
    let ids = ["moved", "retried", "requeued", "restored", "lapsed"];
    for id in ids {
        bench.adopted(id).await;
    }
    let header = bench.record("moved").await.header.to_line().into_owned();
    assert!(header.contains(r#""adopted":""#), "{header}");
    for id in ids {
        bench.theirs("DEL", id, &[]).await;
    }
    assert_eq!(word(bench.reschedule("moved", after(LATER)).await), "moved");

    let lease = async |id| {
        bench.reschedule(id, after(Duration::ZERO)).await;
        bench.claim(&[id], 0).await.jobs.remove(0).token
    };
    let retry = later(after(HOUR), "failed");
    let token = lease("retried").await;
    assert_eq!(word(bench.settle("retried", &token, retry).await), "later");

    let token = lease("requeued").await;
    let Word::Buried(letter) = bench.settle("requeued", &token, bury()).await else {
        panic!("it is no dead letter");
    };
    let mut revival = bench.revival("requeued", letter, after(HOUR));
    revival.header = header.clone().into();
    let (mut lane, revivals) = (Lane::new(), [revival]);
    let revived = bench.ledger.requeue(&mut lane, &revivals, soon()).await;
    assert_eq!(words(&revived.unwrap()), ["requeued"]);

    bench.cancel("restored").await;
    let mut kept = bench.kept("restored", PENDING, bench.now().await + 3_600_000);
    kept.header = header.into();
    assert_eq!(words(&bench.restore(&[kept]).await), ["created"]);

    bench.cancel("lapsed").await;
    bench.lapse("lapsed").await;
    bench.set("lapsed", "w", "3600").await;
    assert_eq!(word(bench.adopt("lapsed", Seen).await), "succeeds");
    bench.theirs("DEL", "lapsed", &[]).await;
    assert_eq!(
        words(&bench.reclaim(&["lapsed"]).await.answers),
        ["replaced"]
    );

    for id in ids {
        assert!(matches!(bench.state(id).await, Pending | Retrying), "{id}");
        let key = bench.key(id).to_string();
        let there: u64 = bench.ask(&["EXISTS", &key]).await;
        assert_eq!(there, 0, "{id}");
    }
    bench.balanced().await;
}

#[tokio::test]
async fn a_header_named_adopted_does_not_make_a_job_adopted() {
    let bench = Bench::new().await;
    let mut placement = bench.placement("ours", after(HOUR));
    placement.header = r#"{"v":1,"headers":{"adopted":"ff"}}"#.into();
    bench.place(&[placement]).await;
    bench.theirs("DEL", "ours", &[]).await;
    assert_eq!(bench.adopt("ours", Gone).await, Word::Absent);
    assert_eq!(word(bench.reschedule("ours", after(LATER)).await), "moved");
    let there: String = bench.ask(&["GET", &bench.key("ours").to_string()]).await;
    assert_eq!(there, MARKER);
    bench.balanced().await;
}

/// Redis keeps a key whose time is over until a client looks at it.
#[tokio::test]
async fn a_key_that_expires_during_a_look_is_not_deleted() {
    let (_server, bench) = Bench::of_lazy_expiry().await;
    let all = [("there", Lost), ("asked", Asked), ("deleted", Lost)];
    let ids = all.map(|(id, _)| id);
    let mut due = 0;
    for id in ids {
        bench.set(id, "v", "2").await;
        due = due_of(bench.adopt(id, Seen).await);
    }
    bench.theirs("DEL", "deleted", &[]).await;
    bench.past(due + 10).await;
    assert_eq!(bench.claim(&ids, 0).await.jobs.len(), 3);
    let answers = bench.adopt_all(&all).await;
    assert_eq!(answers, ["absent", "absent", "cancelled"]);

    bench.adopted("forward").await;
    bench.theirs("PEXPIRE", "forward", &["1"]).await;
    bench.past(bench.now().await + 10).await;
    assert_eq!(word(bench.adopt("forward", Gone).await), "moved");
    bench.balanced().await;
}

#[tokio::test]
async fn a_value_that_cannot_be_a_payload_is_stored_with_the_reason() {
    let bench = Bench::new().await;
    bench.theirs("RPUSH", "list", &["1"]).await;
    bench.theirs("EXPIRE", "list", &["3600"]).await;
    bench.set("large", &"x".repeat(MOST + 1), "3600").await;
    let items = [("list", Seen), ("large", Seen)];
    assert_eq!(bench.adopt_all(&items).await, ["created", "created"]);
    for (id, reason) in [
        ("list", "the key held no string: list"),
        (
            "large",
            "the value of the key had 1025 bytes, more than 1024",
        ),
    ] {
        let record = bench.record(id).await;
        assert_eq!(record.header.unusable.as_deref(), Some(reason));
        assert!(record.payload.is_empty());
    }
    assert_eq!(bench.adopt_all(&items).await, ["same", "same"]);
    bench.set("list", "better", "3600").await;
    assert_eq!(word(bench.adopt("list", Seen).await), "replaced");
    assert_eq!(bench.record("list").await.header.unusable, None);
    bench.balanced().await;
}

#[tokio::test]
async fn any_expiry_that_redis_accepts_is_a_due_time() {
    let bench = Bench::new().await;
    // The second is the largest that Redis 6.2 accepts, too: it counts from now.
    for (id, ms) in [
        ("decades", "631152000000"),
        ("for-ever", "9220000000000000000"),
    ] {
        bench.theirs("SET", id, &["v", "PX", ms]).await;
        let due = due_of(bench.adopt(id, Seen).await);
        assert!(due > bench.now().await + 600_000_000_000, "{id}: {due}");
        assert_eq!(bench.due(id).await, Some(due));
        assert_eq!(bench.adopt(id, Seen).await, Word::Same);
        assert_eq!(bench.state(id).await, Pending);
    }
    bench.balanced().await;
}

#[tokio::test]
async fn a_call_reads_a_bounded_number_of_bytes_and_leaves_the_rest() {
    let bench = Bench::new().await;
    let large = "x".repeat(3 << 20);
    let ids = ["a", "b", "c"];
    for id in ids {
        bench.set(id, &large, "3600").await;
    }
    let items = ids.map(|id| (bench.key(id), Seen));
    let answers = bench
        .ledger
        .adopt(&items, |_| 4 << 20, soon())
        .await
        .unwrap();
    assert_eq!(words(&answers), ["created", "created", "unread"]);
    bench.balanced().await;
}

#[tokio::test]
async fn a_full_server_refuses_new_jobs_and_accepts_all_other_changes() {
    let server = Embedded::start().await.unwrap();
    let bench = Bench::on(&server).await;
    for id in ["moved", "persisted", "deleted"] {
        bench.adopted(id).await;
    }
    bench.set("new", "v", "3600").await;
    bench.set("newer", "v", "3600").await;
    bench.theirs("EXPIRE", "moved", &["60"]).await;
    bench.theirs("PERSIST", "persisted", &[]).await;
    bench.theirs("DEL", "deleted", &[]).await;
    let _: String = bench.ask(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let before = bench.snapshot().await;
    for more in [&[][..], &["newer"]] {
        let ids = ["new"].iter().chain(more);
        let items: Vec<_> = ids.map(|id| (bench.key(id), Seen)).collect();
        let refused = bench
            .ledger
            .adopt(&items, |_| MOST, soon())
            .await
            .unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Full);
    }
    assert_eq!(bench.snapshot().await, before);
    let all = ["new", "moved", "persisted", "deleted"].map(|id| {
        let why = if id == "deleted" { Gone } else { Seen };
        (id, why)
    });
    assert_eq!(
        bench.adopt_all(&all).await,
        ["unread", "moved", "cancelled", "cancelled"]
    );
    bench.balanced().await;
}

#[tokio::test]
async fn expired_keys_are_forgotten() {
    let bench = Bench::new().await;
    let adopted = bench.names().adopted.clone();
    for number in 0..100 {
        let _: u64 = bench
            .ask(&["ZADD", &adopted, "1", &number.to_string()])
            .await;
    }
    for id in ["a", "b", "c", "d", "e", "f"] {
        bench.adopted(id).await;
    }
    let left: u64 = bench.ask(&["ZCARD", &adopted]).await;
    assert_eq!(left, 6);
    // Jobs that have not ended keep their keys in `adopted`: two of them run, and the others wait.
    for id in ["a", "b"] {
        bench.reschedule(id, after(Duration::ZERO)).await;
        bench.claim(&[id], 0).await;
    }
    for id in ["a", "b", "c", "d", "e"] {
        let _: u64 = bench.ask(&["ZADD", &adopted, "XX", "1", id]).await;
    }
    bench.cancel("e").await;
    bench.adopted("g").await;
    let left: Vec<String> = bench.ask(&["ZRANGE", &adopted, "0", "-1"]).await;
    assert_eq!(left, ["a", "b", "c", "d", "f", "g"]);
    bench.balanced().await;
}
