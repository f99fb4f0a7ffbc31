//! Triggers: armed with the due time, moved and removed with the job, and never seized.

use std::time::Duration;

use super::support::{
    Bench, HEADER, HOUR, LATER, MOMENT, NEVER, State, after, at, due_of, later, soon, word, words,
};
use crate::names::MARKER;
use crate::store::ledger::script::{
    CANCEL, RECLAIM, REQUEUE, RESCHEDULE, RESTORE, SCHEDULE, SETTLE,
};
use crate::store::{Answered, Lane, Verb};

use State::*;

impl Bench {
    async fn trigger(&self, id: &str) -> Option<String> {
        self.ask(&["GET", self.key(id).as_str()]).await
    }

    /// Checks that the trigger of a job expires at its due time. The server tells the remaining
    /// time; its clock is read before and after.
    async fn is_armed(&self, id: &str) {
        let due = self.due(id).await.expect("a pending job");
        let before = self.now().await;
        let left: i64 = self.ask(&["PTTL", self.key(id).as_str()]).await;
        let until = self.now().await;
        let left = u64::try_from(left).unwrap_or_else(|_| panic!("{id} has no trigger: {left}"));
        // Redis measures the remaining time from the millisecond in which the call began.
        assert!(
            (before + left - 2..=until + left + 2).contains(&due),
            "{id}"
        );
        assert_eq!(self.trigger(id).await.as_deref(), Some(MARKER));
    }

    async fn try_schedule(&self, id: &str, delay: Duration) -> Answered {
        self.place(&[self.placement(id, after(delay))]).await[0]
    }
}

#[tokio::test]
async fn a_trigger_is_armed_moved_and_removed_with_its_job() {
    let bench = Bench::new().await;
    assert!(!bench.try_schedule("job", HOUR).await.unarmed);
    bench.is_armed("job").await;
    bench.try_schedule("job", LATER).await;
    bench.is_armed("job").await;
    bench.reschedule("job", after(HOUR)).await;
    bench.is_armed("job").await;
    bench.cancel("job").await;
    assert_eq!(bench.trigger("job").await, None);
    bench.balanced().await;
}

#[tokio::test]
async fn a_job_due_at_once_has_no_trigger() {
    let bench = Bench::new().await;
    assert!(!bench.try_schedule("new", Duration::ZERO).await.unarmed);
    assert_eq!(bench.trigger("new").await, None);
    bench.try_schedule("replaced", HOUR).await;
    assert!(!bench.try_schedule("replaced", Duration::ZERO).await.unarmed);
    assert_eq!(bench.trigger("replaced").await, None);
    bench.try_schedule("moved", HOUR).await;
    bench.reschedule("moved", after(Duration::ZERO)).await;
    assert_eq!(bench.trigger("moved").await, None);
    bench.balanced().await;
}

#[tokio::test]
async fn a_run_has_no_trigger_and_its_successor_has_one() {
    let bench = Bench::new().await;
    let token = bench.bring("retried", Leased).await;
    assert_eq!(bench.trigger("retried").await, None);
    bench
        .settle("retried", &token, later(after(HOUR), "failed"))
        .await;
    bench.is_armed("retried").await;

    let token = bench.bring("followed", LeasedNext).await;
    bench.reschedule("followed", after(LATER)).await;
    assert_eq!(bench.trigger("followed").await, None);
    bench.settle("followed", &token, Verb::Done).await;
    bench.is_armed("followed").await;

    bench.bring("lapsed", LapsedNext).await;
    bench.reclaim(&["missing", "lapsed"]).await;
    bench.is_armed("lapsed").await;
    bench.balanced().await;
}

#[tokio::test]
async fn each_item_of_a_batch_has_its_own_trigger() {
    let bench = Bench::new().await;
    let token = bench.bring("running", LeasedNext).await;
    let due = bench.now().await + 90_000;
    let items = [
        bench.placement("running", after(HOUR)),
        bench.placement("a", after(HOUR)),
        bench.placement("twice", after(HOUR)),
        bench.placement("b", at(due)),
        bench.placement("twice", after(LATER)),
    ];
    bench.place(&items).await;
    for id in ["a", "b", "twice"] {
        bench.is_armed(id).await;
    }
    let keys = ["missing", "a", "running"].map(|id| bench.key(id));
    bench
        .ledger
        .cancel(&mut Lane::new(), &keys, soon())
        .await
        .unwrap();
    assert_eq!(bench.trigger("a").await, None);
    bench.is_armed("b").await;
    let settlements = [
        bench.settlement("missing", NEVER, Verb::Done),
        bench.settlement("running", &token, later(after(HOUR), "failed")),
    ];
    assert_eq!(
        words(&bench.settle_all(&settlements).await),
        ["gone", "cancelled"]
    );
    assert_eq!(bench.trigger("running").await, None);
    bench.balanced().await;
}

#[tokio::test]
async fn a_lost_trigger_comes_back_with_the_next_change() {
    let bench = Bench::new().await;
    for id in ["scheduled", "moved", "cancelled"] {
        bench.try_schedule(id, HOUR).await;
        let _: u64 = bench.ask(&["DEL", bench.key(id).as_str()]).await;
    }
    bench.try_schedule("scheduled", HOUR).await;
    bench.is_armed("scheduled").await;
    bench.reschedule("moved", after(LATER)).await;
    bench.is_armed("moved").await;
    assert_eq!(word(bench.cancel("cancelled").await), "cancelled");
    bench.balanced().await;
}

#[tokio::test]
async fn a_foreign_value_is_left_alone_and_reported() {
    let bench = Bench::new().await;
    let string: &[&str] = &["SET", "", "theirs", "EX", "500"];
    let list: &[&str] = &["RPUSH", "", "theirs"];
    // Longer than the marker, and shorter.
    let longer: &[&str] = &["SET", "", "keyfall-settings", "EX", "500"];
    let shorter: &[&str] = &["SET", "", "key", "EX", "500"];
    for (id, write) in [
        ("string", string),
        ("list", list),
        ("longer", longer),
        ("shorter", shorter),
    ] {
        let key = bench.key(id);
        let mut write = write.to_vec();
        write[1] = key.as_str();
        let _: redis::Value = bench.ask(&write).await;
        let dump: Vec<u8> = bench.ask(&["DUMP", key.as_str()]).await;

        for delay in [HOUR, Duration::ZERO, HOUR] {
            let placed = bench.try_schedule(id, delay).await;
            assert!(placed.unarmed, "{id}: {placed:?}");
            assert_eq!(due_of(placed.answer), bench.due(id).await.unwrap());
            let items = [bench.change(id, after(delay), "postponed")];
            let mut lane = Lane::new();
            let moved = bench
                .ledger
                .reschedule(&mut lane, &items, soon())
                .await
                .unwrap();
            assert!(moved[0].unarmed, "{id}: {moved:?}");
            // A repeat has the mark, too.
            let mut again = lane.rewound(1);
            let repeat = bench
                .ledger
                .reschedule(&mut again, &items, soon())
                .await
                .unwrap();
            assert_eq!(repeat, moved);
        }
        // The job runs although it has no trigger.
        bench.reschedule(id, after(Duration::ZERO)).await;
        let job = bench.claim(&[id], 0).await.jobs.remove(0);
        assert!(
            !bench.try_schedule(id, HOUR).await.unarmed,
            "a successor needs none"
        );
        bench.settle(id, &job.token, Verb::Done).await;
        assert_eq!(bench.state(id).await, Pending);
        bench.cancel(id).await;
        let token = bench.bring(id, Leased).await;
        bench.settle(id, &token, later(after(HOUR), "failed")).await;
        assert_eq!(bench.state(id).await, Retrying);
        bench.cancel(id).await;

        let left: Vec<u8> = bench.ask(&["DUMP", key.as_str()]).await;
        assert_eq!(left, dump, "{id}");
        let seconds: i64 = bench.ask(&["TTL", key.as_str()]).await;
        assert_eq!(
            seconds > 0,
            id != "list",
            "its time to live is left alone, too"
        );
    }
    bench.balanced().await;
}

/// On a cluster the trigger is in the slot of its own name, so scripts get no trigger.
#[tokio::test]
async fn the_scripts_work_without_triggers() {
    let bench = Bench::new().await;
    let head = [bench.ledger.wake.as_str(), bench.ledger.subject(), MARKER];
    let with = |rest: &[&'static str]| [&head[..], rest].concat();
    let mut lane = Lane::new();
    let mut call =
        async |script, args: &[&str]| words(&bench.by_hand(script, &mut lane, args).await);

    let place = with(&["set", HEADER, "1", "job", "+3600000", "payload"]);
    assert_eq!(call(&SCHEDULE, &place).await, ["created"]);
    assert_eq!(
        call(&RESCHEDULE, &with(&["job", "+0", "fired"])).await,
        ["moved"]
    );
    assert_eq!(bench.trigger("job").await, None);

    let job = bench.claim(&["job"], 0).await.jobs.remove(0);
    let limits = ["1000", "3600000"];
    let retry = [
        &job.token, "later", "+3600000", "", "failed", "", "", "", "1", "job",
    ];
    assert_eq!(
        call(&SETTLE, &[&head[..], &limits, &retry].concat()).await,
        ["later"]
    );
    assert_eq!(
        (bench.state("job").await, bench.trigger("job").await),
        (Retrying, None)
    );

    bench.bring("lapsed", LapsedNext).await;
    let reclaim = [&["3600000"][..], &head, &["lapsed"]].concat();
    assert_eq!(call(&RECLAIM, &reclaim).await, ["replaced"]);
    assert_eq!(
        (bench.state("lapsed").await, bench.trigger("lapsed").await),
        (Pending, None)
    );

    let letter = bench.die("dead").await.to_string();
    let requeue = [&head[..], &["dead", &letter, "+3600000", HEADER]].concat();
    assert_eq!(call(&REQUEUE, &requeue).await, ["requeued"]);
    assert_eq!(
        (bench.state("dead").await, bench.trigger("dead").await),
        (Pending, None)
    );

    let record = [HEADER, "17", "payload"];
    let restore = [
        &head[..],
        &["back", "pending", "absent", "9999999999999"],
        &record,
    ];
    assert_eq!(call(&RESTORE, &restore.concat()).await, ["created"]);
    assert_eq!(
        (bench.state("back").await, bench.trigger("back").await),
        (Pending, None)
    );

    let cancel = [
        head[0],
        bench.ledger.kind().as_str(),
        MARKER,
        "job",
        "lapsed",
    ];
    // The process that armed the trigger on its node removes it there; the script does not.
    let _: String = bench.ask(&["SET", bench.key("job").as_str(), MARKER]).await;
    assert_eq!(call(&CANCEL, &cancel).await, ["cancelled", "cancelled"]);
    assert_eq!(bench.trigger("job").await.as_deref(), Some(MARKER));
    bench.balanced().await;
}

#[tokio::test]
async fn an_expired_trigger_leaves_the_job_due() {
    let bench = Bench::new().await;
    let due = due_of(bench.schedule("job", after(20 * MOMENT)).await);
    bench.past(due).await;
    assert_eq!(bench.trigger("job").await, None);
    assert_eq!(bench.state("job").await, Due);
    assert_eq!(words(&bench.claim(&["job"], 0).await.answers), ["claimed"]);
    bench.balanced().await;
}
