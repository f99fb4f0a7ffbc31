//! The entries that each script writes into the history, and `keep.lua` and `story.lua`.

use std::time::Duration;

use super::support::{
    Bench, HOUR, MOMENT, PENDING, State, after, at, bury, later, same_when_repeated, soon, suspect,
};
use crate::embedded::Embedded;
use crate::store::ledger::history::{KEPT, Line};
use crate::store::ledger::who;
use crate::store::{Answered, ClaimOrder, ClaimRequest, KeptAs, Lane, Verb, Word};

use State::*;

impl Bench {
    /// All lines of the history, the oldest first.
    async fn told(&self) -> Vec<Line> {
        let stream = self.ledger.stream();
        let store = &self.ledger.store;
        let read = store.last_of_history(&stream, "+", 100_000, soon());
        let entries = read.await.unwrap().into_iter().rev();
        entries.flat_map(|entry| entry.lines(|_| true)).collect()
    }

    /// The entries that a call adds: `what id more`, and the note.
    async fn told_by(&self, call: impl AsyncFnOnce()) -> Vec<String> {
        let before = self.told().await.len();
        call().await;
        let lines = self.told().await;
        assert!(lines.iter().all(|line| line.by == who()), "{lines:?}");
        let short = |line: &Line| {
            let Line {
                what,
                id,
                more,
                note,
                ..
            } = line;
            format!("{what} {id} {more} {note}").trim().to_owned()
        };
        lines[before..].iter().map(short).collect()
    }

    async fn keep(&self, entries: u64) {
        let lane = &mut Lane::new();
        self.ledger.keep(lane, entries, soon()).await.unwrap();
    }

    async fn entries(&self) -> u64 {
        self.ask(&["XLEN", &self.names().history]).await
    }
}

/// Replaces the length of a run in each line by `ms`.
fn at_once(told: Vec<String>) -> Vec<String> {
    let took = regex::Regex::new(r" \d+\b").unwrap();
    let ran = |line: String| took.replace(&line, " ms").into_owned();
    told.into_iter().map(ran).collect()
}

#[tokio::test]
async fn changes_of_series_are_recorded() {
    let bench = Bench::new().await;
    let due = at(bench.now().await + 3_600_000);
    let told = bench
        .told_by(async || {
            for when in [Some(due), Some(due), Some(after(HOUR * 2)), None, None] {
                let jobs = vec![bench.of_series("job", when).await];
                bench.plan(jobs).await;
            }
        })
        .await;
    assert_eq!(
        told,
        [
            "scheduled job -",
            "updated job -",
            "postponed job -",
            "cancelled job -"
        ]
    );
    bench.balanced().await;
}

#[tokio::test]
async fn calls_of_producers_are_recorded() {
    let bench = Bench::new().await;
    let told = bench
        .told_by(async || {
            bench.schedule("job", after(HOUR)).await;
            bench.schedule("job", after(HOUR)).await;
            bench.reschedule("job", after(HOUR)).await;
            let items = [bench.update("job", b"new")];
            let lane = &mut Lane::new();
            bench.ledger.update(lane, &items, soon()).await.unwrap();
            let items = [bench.change("job", after(Duration::ZERO), "fired")];
            bench.ledger.reschedule(lane, &items, soon()).await.unwrap();
            bench.cancel("job").await;
            bench.cancel("job").await;
            bench.reschedule("job", after(HOUR)).await;
        })
        .await;
    let expected = [
        "scheduled job -",
        "replaced job -",
        "postponed job -",
        "updated job -",
        "fired job -",
        "cancelled job -",
    ];
    assert_eq!(told, expected);
    bench.balanced().await;
}

#[tokio::test]
async fn a_due_time_is_recorded_as_it_was_answered() {
    let bench = Bench::new().await;
    let Word::Created(due) = bench.schedule("job", after(HOUR)).await else {
        panic!("not the first");
    };
    let line = bench.told().await.remove(0);
    assert_eq!(line.number, due.to_string());
    let (ms, _) = line.entry.split_once('-').unwrap();
    let ago = bench.now().await - ms.parse::<u64>().unwrap();
    assert!(ago < 60_000, "{ago}");
    bench.balanced().await;
}

#[tokio::test]
async fn runs_are_recorded_with_their_source_and_end() {
    let bench = Bench::new().await;
    // In alphabetical order, so that a claim takes the jobs in this order even if they fall due in
    // one millisecond.
    for id in ["back", "dead", "named", "oldest"] {
        bench.schedule(id, at(1)).await;
    }
    let lane = &mut Lane::new();
    let mut told = bench
        .told_by(async || {
            let claim = bench.ledger.claim(
                lane,
                ClaimRequest {
                    ids: &["named"],
                    found: "p",
                    fill: 9,
                    order: ClaimOrder::Oldest,
                },
                HOUR,
                soon(),
            );
            let jobs = claim.await.unwrap().jobs;
            let token = &jobs[0].token;
            bench.settle("named", token, Verb::Done).await;
            bench.settle("named", token, Verb::Done).await;
            bench.settle("back", token, later(at(7), "returned")).await;
            let header = r#"{"v":1,"attempts":3,"error":"no such host"}"#;
            let failed = Verb::Later {
                when: at(9),
                header: header.into(),
                step: "failed",
            };
            bench.settle("oldest", token, failed).await;
            let header = header.into();
            bench.settle("dead", token, Verb::Bury { header }).await;
        })
        .await;
    let expected = [
        "claimed named p",
        "claimed back b",
        "claimed dead b",
        "claimed oldest b",
        "done named ms",
        "returned back ms",
        "failed oldest ms 3 no such host",
        "buried dead ms 3 no such host",
    ];
    // A due time in the past becomes the present millisecond, which differs from job to job.
    told[1..4].sort();
    assert_eq!(at_once(told), expected);
    let lines = bench.told().await;
    let number = |what: &str| {
        let line = lines.iter().find(|line| line.what == what).unwrap();
        line.number.clone()
    };
    assert!(number("claimed").parse::<u64>().unwrap() > 1_000_000);
    assert_eq!([number("buried"), number("done")], ["1", "-"]);
    bench.balanced().await;
}

#[tokio::test]
async fn a_successor_is_recorded_after_the_end_of_the_run() {
    let bench = Bench::new().await;
    let token = bench.bring("next", LeasedNext).await;
    let told = bench
        .told_by(async || {
            let header = r#"{"v":1,"attempts":1,"error":"no such host"}"#.into();
            let failed = Verb::Later {
                when: at(9),
                header,
                step: "failed",
            };
            bench.settle("next", &token, failed).await;
        })
        .await;
    let expected = [
        "failed next ms 1 no such host",
        "superseded next -",
        "follows next -",
    ];
    assert_eq!(at_once(told), expected);
    let token = bench.bring("again", LeasedNext).await;
    let told = bench
        .told_by(async || {
            bench.settle("again", &token, later(at(9), "again")).await;
        })
        .await;
    assert_eq!(told, ["superseded again -", "follows again -"]);
    let token = bench.bring("stopped", Leased).await;
    let told = bench
        .told_by(async || {
            bench.cancel("stopped").await;
            bench.settle("stopped", &token, bury()).await;
        })
        .await;
    assert_eq!(told, ["stopping stopped -", "cancelled stopped -"]);
    bench.balanced().await;
}

#[tokio::test]
async fn takeovers_are_recorded_with_their_attempt() {
    let bench = Bench::new().await;
    for state in [Lapsed, LapsedNext, LapsedCancelled, Leased] {
        bench.bring(&state.id(), state).await;
    }
    let told = bench
        .told_by(async || {
            let ids = ["Lapsed", "LapsedNext", "LapsedCancelled", "Leased"];
            bench.reclaim(&ids).await;
        })
        .await;
    let expected = [
        "superseded LapsedNext -",
        "follows LapsedNext -",
        "cancelled LapsedCancelled -",
        "lapsed Lapsed 2",
    ];
    assert_eq!(told, expected);
    bench.balanced().await;
}

#[tokio::test]
async fn letters_and_backups_are_recorded() {
    let bench = Bench::new().await;
    let letter = bench.die("job").await;
    let lane = &mut Lane::new();
    let told = bench
        .told_by(async || {
            let items = [bench.revival("job", letter, after(HOUR))];
            bench.ledger.requeue(lane, &items, soon()).await.unwrap();
            bench.restore(&[bench.kept("old", KeptAs::Dead, 9)]).await;
            bench.restore(&[bench.kept("new", PENDING, 9)]).await;
            bench.restore(&[bench.kept("new", PENDING, 9)]).await;
            let items = [bench.discard("old", 2), bench.discard("old", 2)];
            bench.ledger.discard(lane, &items, soon()).await.unwrap();
        })
        .await;
    let expected = [
        "requeued job -",
        "buried old -",
        "restored new -",
        "deleted old -",
    ];
    assert_eq!(told, expected);
    bench.balanced().await;
}

#[tokio::test]
async fn repairs_and_pauses_are_recorded() {
    let bench = Bench::new().await;
    bench.bring("bare", Due).await;
    let _: u64 = bench.ask(&["HDEL", &bench.names().shadow, "bare"]).await;
    let lane = &mut Lane::new();
    let told = bench
        .told_by(async || {
            let items = [(suspect("bare"), String::new())];
            for repair in [false, true, true] {
                bench.ledger.audit(&items, repair, soon()).await.unwrap();
            }
            for _ in 0..2 {
                bench.ledger.pause(lane, None, soon()).await.unwrap();
            }
            for _ in 0..2 {
                bench.ledger.resume(lane, None, soon()).await.unwrap();
            }
        })
        .await;
    let expected = ["repaired bare - bare", "paused  -", "resumed  -"];
    assert_eq!(told, expected);
    bench.balanced().await;
}

#[tokio::test]
async fn a_long_error_is_cut_between_characters() {
    let bench = Bench::new().await;
    let token = bench.bring("job", Leased).await;
    let error = "é".repeat(400);
    let header = format!(r#"{{"v":1,"attempts":1,"error":"{error}"}}"#);
    bench.settle("job", &token, Verb::Bury { header }).await;
    let note = bench.told().await.pop().unwrap().note;
    assert_eq!(note, format!("1 {}…", "é".repeat(99)));
    bench.balanced().await;
}

#[tokio::test]
async fn a_large_batch_is_split_into_entries_without_a_loss() {
    let bench = Bench::new().await;
    let ids: Vec<String> = (0..256)
        .map(|i| format!("{i}-{}", "x".repeat(200)))
        .collect();
    let items: Vec<_> = ids
        .iter()
        .map(|id| bench.placement(id, after(HOUR)))
        .collect();
    bench.place(&items).await;
    let told: Vec<String> = bench.told().await.into_iter().map(|line| line.id).collect();
    assert_eq!(told, ids);
    // Each entry has about a kibibyte of ids.
    let entries = bench.entries().await;
    assert!((32..=128).contains(&entries), "{entries}");
    bench.balanced().await;
}

#[tokio::test]
async fn the_given_number_of_entries_is_kept() {
    let bench = Bench::new().await;
    assert_eq!(bench.ledger.kept(soon()).await.unwrap(), KEPT);
    assert_eq!(
        bench.ledger.story("job", "+", soon()).await.unwrap().kept,
        KEPT
    );
    bench.keep(10).await;
    assert_eq!(bench.ledger.kept(soon()).await.unwrap(), 10);
    for _ in 0..300 {
        bench.schedule("job", after(HOUR)).await;
    }
    // Redis trims whole nodes.
    let entries = bench.entries().await;
    assert!((10..250).contains(&entries), "{entries}");

    bench.keep(0).await;
    assert_eq!(bench.entries().await, 0);
    bench.schedule("job", after(HOUR)).await;
    bench.cancel("job").await;
    assert_eq!(bench.entries().await, 0);
    assert_eq!(
        bench.ledger.story("job", "+", soon()).await.unwrap().kept,
        0
    );
    bench.keep(10).await;
    bench.schedule("job", after(HOUR)).await;
    assert_eq!(bench.entries().await, 1);
    bench.balanced().await;
}

#[tokio::test]
async fn keep_can_be_repeated_and_can_come_late() {
    let bench = Bench::new().await;
    same_when_repeated(&bench, async |lane| {
        let done = bench.ledger.keep(lane, 7, soon()).await;
        done.map(|()| vec![Answered::of(Word::Kept)])
    })
    .await;
    bench.balanced().await;
}

#[tokio::test]
async fn a_full_server_accepts_entries_and_the_end_of_the_history() {
    let server = Embedded::start().await.unwrap();
    let bench = Bench::on(&server).await;
    let token = bench.bring("job", Leased).await;
    let _: String = bench.ask(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let told = bench
        .told_by(async || {
            bench.settle("job", &token, Verb::Done).await;
        })
        .await;
    assert_eq!(at_once(told), ["done job ms"]);
    bench.keep(0).await;
    assert_eq!(bench.entries().await, 0);
    let _: String = bench.ask(&["CONFIG", "SET", "maxmemory", "0"]).await;
    bench.balanced().await;
}

#[tokio::test]
async fn a_story_has_the_events_of_one_job_page_by_page() {
    let bench = Bench::new().await;
    // One id is part of another, and `-` is also a word of the entries.
    for id in ["1", "11", "-"] {
        bench.schedule(id, at(1)).await;
    }
    let ids = ["11", "1", "-"];
    let lane = &mut Lane::new();
    let jobs = bench.try_claim(lane, &ids, 0, MOMENT).await.unwrap().jobs;
    for _ in 0..600 {
        bench.schedule("other", after(HOUR)).await;
    }
    bench.settle("1", &jobs[0].token, Verb::Done).await;
    for (id, expected) in [
        ("1", &["done", "claimed", "scheduled"][..]),
        ("11", &["claimed", "scheduled"]),
        ("-", &["claimed", "scheduled"]),
        ("e", &[]),
    ] {
        let (mut found, mut before, mut pages) = (Vec::new(), "+".to_owned(), 0);
        loop {
            let page = bench.ledger.story(id, &before, soon()).await.unwrap();
            found.extend(page.lines.into_iter().map(|line| line.what));
            pages += 1;
            match page.next {
                Some(next) => before = next,
                None => break,
            }
        }
        assert_eq!(
            (found, pages),
            (expected.iter().map(|it| (*it).to_owned()).collect(), 2),
            "{id}"
        );
    }
    bench.balanced().await;
}

#[tokio::test]
async fn each_job_of_a_call_is_recorded_with_its_own_due_time() {
    let bench = Bench::new().await;
    let now = bench.now().await;
    let dues = [
        ("a", now - 30),
        ("b", now - 20),
        ("c", now - 20),
        ("d", now - 10),
    ];
    for (id, due) in dues {
        bench.schedule(id, after(Duration::ZERO)).await;
        let _: u64 = bench
            .ask(&["ZADD", &bench.names().due, &due.to_string(), id])
            .await;
    }
    bench.claim(&["a", "b", "c"], 1).await;
    let told = bench.told().await.into_iter();
    let claimed = told.filter(|line| line.what == "claimed");
    let claimed: Vec<(String, String, String)> = claimed
        .map(|line| (line.id, line.number, line.more))
        .collect();
    let sources = ["e", "e", "e", "b"];
    let expected = dues.iter().zip(sources);
    let expected: Vec<(String, String, String)> = expected
        .map(|((id, due), source)| ((*id).to_owned(), due.to_string(), source.to_owned()))
        .collect();
    assert_eq!(claimed, expected);
    bench.balanced().await;
}
