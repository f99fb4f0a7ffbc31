//! `raze.lua`: an empty ledger goes with all its keys, and its memory of calls outlives it.

use super::support::{Bench, HOUR, State, after, soon, words};
use crate::limit::Limit;
use crate::store::{KeptAs, Lane, Razed, Word};

use State::*;

impl Bench {
    async fn raze(&self) -> Razed {
        self.ledger.raze(soon()).await.unwrap()
    }

    /// How many keys of the ledger exist.
    async fn keys_there(&self) -> u64 {
        self.ask(&[&["EXISTS"], &self.names().all()[..]].concat())
            .await
    }

    /// Whether `calls` and `lanes` expire.
    async fn is_passing(&self) -> [bool; 2] {
        let mut passing = [false; 2];
        for (key, is) in [&self.names().calls, &self.names().lanes]
            .into_iter()
            .zip(&mut passing)
        {
            let left: i64 = self.ask(&["PTTL", key]).await;
            *is = left > 3_600_000;
        }
        passing
    }

    /// Makes all remembered calls of the ledger this many minutes old.
    async fn grow_older(&self, minutes: u64) {
        let calls = &self.names().calls;
        let all: Vec<(String, String)> = self.ask(&["HGETALL", calls]).await;
        let at = (self.now().await - minutes * 60_000).to_string();
        for (lane, value) in all {
            let words: Vec<&str> = value.splitn(3, ' ').collect();
            if let [number, _, reply] = words[..] {
                let aged = format!("{number} {at} {reply}");
                let _: u64 = self.ask(&["HSET", calls, &lane, &aged]).await;
            }
        }
    }
}

#[tokio::test]
async fn a_ledger_that_is_not_empty_stays_as_it_is() {
    for state in [Pending, Due, Retrying, Leased, LeasedNext, Lapsed, Dead] {
        let bench = Bench::new().await;
        bench.bring("job", state).await;
        let there = bench.keys_there().await;
        assert!(matches!(bench.raze().await, Razed::Held(1..)), "{state:?}");
        assert_eq!(bench.keys_there().await, there, "{state:?}");
        assert_eq!(bench.state("job").await, state);
        bench.balanced().await;
    }
    // Changes that were too many to be noted are not copied yet.
    let bench = Bench::new().await;
    let calls = &bench.names().calls;
    let copy = ["HSET", calls, "copy", "1000 5 anna", "changes"];
    let _: u64 = bench.ask(&[&copy[..], &["over 7 1"]].concat()).await;
    assert_eq!(bench.raze().await, Razed::Held(1));
    let _: u64 = bench.ask(&[&copy[..], &["1000 7 1"]].concat()).await;
    assert_eq!(bench.raze().await, Razed::Gone);
    bench.balanced().await;
    let bench = Bench::new().await;
    bench.bring("job", Pending).await;
    bench.cancel("job").await;
    // One adopted key is still to expire, and another one has expired.
    let adopted = &bench.names().adopted;
    let ahead = (bench.now().await + 60_000).to_string();
    let _: u64 = bench
        .ask(&["ZADD", adopted, "1", "old", &ahead, "key"])
        .await;
    assert_eq!(bench.raze().await, Razed::Held(1));
    let _: u64 = bench.ask(&["ZREM", adopted, "key"]).await;
    // A job that is in a batch on its way to another ledger.
    let leaving = &bench.names().leaving;
    let _: u64 = bench.ask(&["HSET", leaving, "job", "its parts"]).await;
    assert_eq!(bench.raze().await, Razed::Held(1));
    let _: u64 = bench.ask(&["HDEL", leaving, "job"]).await;
    assert_eq!(bench.raze().await, Razed::Gone);
    bench.balanced().await;
}

/// A call that can change nothing is not sent to a ledger that counts as absent.
#[tokio::test]
async fn each_part_of_a_ledger_shows_that_it_is_there() {
    let bench = Bench::new().await;
    let (store, kind, names) = (&bench.ledger.store, bench.ledger.kind(), bench.names());
    assert!(!store.has_any_of(kind, soon()).await.unwrap());
    for part in [
        &names.due,
        &names.shadow,
        &names.lease,
        &names.next,
        &names.grave,
        &names.stats,
        &names.calls,
    ] {
        let command = if *part == names.due { "ZADD" } else { "HSET" };
        let _: u64 = bench.ask(&[command, part, "1", "job"]).await;
        assert!(store.has_any_of(kind, soon()).await.unwrap(), "{part}");
        let _: u64 = bench.ask(&["DEL", part]).await;
    }
    bench.balanced().await;
}

/// The ledger knows a new layout: its kind has got more ledgers.
#[tokio::test]
async fn a_ledger_of_another_layout_stays_as_it_is() {
    let bench = Bench::new().await;
    bench.bring("job", Pending).await;
    bench.cancel("job").await;
    let calls = &bench.names().calls;
    let _: u64 = bench.ask(&["HSET", calls, "layout", "4 1"]).await;
    let there = bench.keys_there().await;
    assert!(matches!(bench.raze().await, Razed::Stale(_)));
    assert_eq!(bench.keys_there().await, there);
    assert!(bench.field(calls, "layout").await.is_some());
    bench.balanced().await;
}

#[tokio::test]
async fn a_ledger_used_long_ago_leaves_nothing() {
    let bench = Bench::new().await;
    bench.bring("job", Dead).await;
    let items = [bench.discard("job", 1)];
    let mut lane = Lane::new();
    bench
        .ledger
        .discard(&mut lane, &items, soon())
        .await
        .unwrap();
    bench.grow_older(61).await;
    assert_eq!(bench.raze().await, Razed::Gone);
    assert_eq!(bench.keys_there().await, 0);
    // A repeat, now that the ledger is absent.
    assert_eq!(bench.raze().await, Razed::Gone);
    assert_eq!(bench.keys_there().await, 0);
    bench.balanced().await;
}

#[tokio::test]
async fn a_call_repeated_after_the_removal_does_nothing() {
    let bench = Bench::new().await;
    let mut lane = Lane::new();
    let items = [bench.placement("job", after(HOUR))];
    let ledger = &bench.ledger;
    let first = ledger.schedule(&mut lane, &items, soon()).await.unwrap();
    assert_eq!(words(&first), ["created"]);
    // The reply of the schedule is lost. Another client cancels the job, and gets an answer.
    assert_eq!(bench.cancel("job").await, Word::Cancelled);
    assert_eq!(bench.raze().await, Razed::Gone);
    assert_eq!(
        bench.keys_there().await,
        2,
        "what was called in the last hour"
    );
    assert_eq!(bench.is_passing().await, [true, true]);
    let mut again = lane.rewound(1);
    let answers = ledger.schedule(&mut again, &items, soon()).await.unwrap();
    assert_eq!(words(&answers), ["created"], "as it was answered");
    assert_eq!(
        bench.state("job").await,
        Absent,
        "and it does not come again"
    );
    // A ledger that begins anew keeps its memory for good.
    bench.schedule("other", after(HOUR)).await;
    assert_eq!(bench.is_passing().await, [false, false]);
    let mut again = lane.rewound(1);
    ledger.schedule(&mut again, &items, soon()).await.unwrap();
    assert_eq!(bench.state("job").await, Absent);
    let stats = bench.balanced().await;
    assert_eq!(
        (stats.accepted, stats.pending),
        (1, 1),
        "its books begin anew"
    );
}

/// The layout, the length of the history and the number of the batch go with the ledger.
#[tokio::test]
async fn only_calls_pauses_and_the_fencing_value_outlive_the_ledger() {
    let bench = Bench::new().await;
    bench.bring("job", Pending).await;
    bench.cancel("job").await;
    let calls = &bench.names().calls;
    let passing = ["layout", "1 0", "history", "5", "batch", "x"];
    let _: u64 = bench
        .ask(&[&["HSET", calls.as_str()], &passing[..]].concat())
        .await;
    assert_eq!(bench.raze().await, Razed::Gone);
    let mut fields: Vec<String> = bench.ask(&["HKEYS", calls]).await;
    let lanes: Vec<String> = bench
        .ask(&["ZRANGE", &bench.names().lanes, "0", "-1"])
        .await;
    fields.retain(|field| !lanes.contains(field));
    assert_eq!(fields, ["fence"]);
    bench.balanced().await;
}

#[tokio::test]
async fn a_pause_outlives_the_ledger() {
    let bench = Bench::new().await;
    bench.bring("job", Pending).await;
    bench.cancel("job").await;
    bench
        .ledger
        .pause(&mut Lane::new(), None, soon())
        .await
        .unwrap();
    bench.grow_older(61).await;
    assert_eq!(bench.raze().await, Razed::Gone);
    assert!(bench.is_passing().await[0]);
    bench.bring("job", Due).await;
    let claim = bench.claim(&["job"], 1).await;
    assert!(claim.jobs.is_empty(), "{claim:?}");
    bench.balanced().await;
}

#[tokio::test]
async fn a_call_that_finds_nothing_is_remembered_for_a_while_only() {
    let bench = Bench::new().await;
    assert_eq!(bench.cancel("job").await, Word::Absent);
    assert_eq!(bench.keys_there().await, 2);
    assert_eq!(bench.is_passing().await, [true, true]);
    let claim = bench.claim(&["job"], 1).await;
    assert!(claim.jobs.is_empty(), "{claim:?}");
    assert_eq!(bench.is_passing().await, [true, true]);
    bench.schedule("job", after(HOUR)).await;
    assert_eq!(bench.is_passing().await, [false, false]);
    // A ledger with jobs remembers this call as long as the ledger exists.
    assert_eq!(bench.cancel("other").await, Word::Absent);
    assert_eq!(bench.is_passing().await, [false, false]);
    bench.balanced().await;
}

#[tokio::test]
async fn a_kind_leaves_the_list_only_if_it_was_not_made_known_since() {
    let bench = Bench::new().await;
    let (store, kind) = (&bench.ledger.store, bench.ledger.kind());
    let mark = async |mark| store.mark_dropping(kind, mark, soon()).await.unwrap();
    let unlist = async |mark| store.unlist(kind, mark, soon()).await.unwrap();
    let knows = async || store.knows(kind, soon()).await.unwrap();
    store.keep_listed(kind, "one", soon()).await.unwrap();
    assert!(!unlist("one").await, "not marked");
    mark("one").await;
    store.keep_listed(kind, "one", soon()).await.unwrap();
    assert!(!unlist("one").await && knows().await, "kept");
    mark("one").await;
    store.register(kind, None, soon()).await.unwrap();
    assert!(!unlist("one").await && knows().await, "known again");
    // Of two clients that drop a kind at the same time, the later one takes it off the list.
    mark("one").await;
    mark("two").await;
    assert!(!unlist("one").await && knows().await);
    store.keep_listed(kind, "one", soon()).await.unwrap();
    assert!(unlist("two").await && !knows().await);
    bench.balanced().await;
}

/// Every client that stores a job in a new ledger is told to register the kind, until one has done
/// so.
#[tokio::test]
async fn a_new_ledger_reports_itself_until_its_kind_is_known() {
    let bench = Bench::new().await;
    let (store, kind) = (&bench.ledger.store, bench.ledger.kind());
    let schedule_by = async |lane: &mut Lane, id: &str| {
        let items = [bench.placement(id, after(HOUR))];
        let answers = bench.ledger.schedule(lane, &items, soon()).await;
        answers.unwrap()[0].unlisted
    };
    let schedule = async |id: &str| schedule_by(&mut Lane::new(), id).await;
    let restore = async |id: &str| {
        let items = [bench.kept(id, KeptAs::Dead, 1)];
        bench.restore(&items).await[0].unlisted
    };
    let mut lane = Lane::new();
    let begun = schedule_by(&mut lane, "job").await.expect("it is new");
    assert_eq!(schedule_by(&mut lane.rewound(1), "job").await, Some(begun));
    assert_eq!(schedule("job").await, Some(begun), "replaced");
    assert_eq!(schedule("other").await, Some(begun));
    assert_eq!(restore("letter").await, Some(begun));
    bench.cancel("job").await;
    bench.cancel("other").await;
    // An empty ledger keeps the mark, too.
    assert_eq!(schedule("job").await, Some(begun));
    bench.cancel("job").await;
    let letter = [bench.discard("letter", 1)];
    let discarded = bench.ledger.discard(&mut lane, &letter, soon()).await;
    assert_eq!(words(&discarded.unwrap()), ["deleted"]);
    assert_eq!(bench.raze().await, Razed::Gone);

    let anew = restore("letter").await.expect("new again");
    assert_ne!(anew, begun);
    // A late client takes off the mark of the earlier ledger.
    store.take_mark_off(kind, begun, soon()).await.unwrap();
    let mut lane = Lane::new();
    assert_eq!(schedule_by(&mut lane, "job").await, Some(anew));
    for _ in 0..2 {
        store.take_mark_off(kind, anew, soon()).await.unwrap();
        assert_eq!(schedule("job").await, None);
        assert_eq!(schedule_by(&mut lane.rewound(1), "job").await, None);
        assert_eq!(restore("third").await, None);
    }
    bench.balanced().await;
}

#[tokio::test]
async fn a_limit_that_is_set_again_keeps_its_ledger() {
    let bench = Bench::new().await;
    let limit = || Some(Limit::new().concurrency(1));
    bench.set_limit(limit(), 1).await;
    assert!(matches!(bench.raze().await, Razed::Gone));
    assert_eq!(bench.is_passing().await, [true; 2]);
    assert!(bench.set_limit(limit(), 1).await);
    assert_eq!(bench.is_passing().await, [false; 2]);
    bench.balanced().await;
}
