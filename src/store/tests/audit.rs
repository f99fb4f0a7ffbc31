//! `scan.lua` and `audit.lua`: what is wrong in a ledger is found, and mended without a loss.

use std::collections::BTreeSet;

use super::support::{Bench, HEADER, HOUR, State, after, bury, soon, word, words};
use crate::Stats;
use crate::flaw::Flaw;
use crate::record::Record;
use crate::store::{PARTS, Verb};

use State::*;

const REASON: &str = r#"{"v":1,"error":"an audit"}"#;

impl Bench {
    /// Whatever a scan of all parts suspects.
    async fn suspects(&self) -> Vec<String> {
        let mut all = BTreeSet::new();
        for part in PARTS {
            let mut cursor = "0".to_owned();
            loop {
                let page = self.ledger.scan(part, &cursor, soon()).await.unwrap();
                all.extend(page.suspects);
                cursor = page.cursor;
                if cursor == "0" {
                    break;
                }
            }
        }
        all.into_iter().collect()
    }

    async fn flaw(&self, name: &str) -> Option<Flaw> {
        let items = [(name.to_owned(), String::new())];
        self.ledger.audit(&items, false, soon()).await.unwrap()[0]
    }

    async fn mend(&self, name: &str) -> Option<Flaw> {
        let items = [(name.to_owned(), REASON.to_owned())];
        self.ledger.audit(&items, true, soon()).await.unwrap()[0]
    }

    async fn stats(&self) -> Stats {
        self.ledger.tally(soon()).await.unwrap().into()
    }

    /// The flaw is there and is found; looking changes nothing; mended, it is gone, and so is
    /// any difference in the books.
    async fn finds_and_mends(&self, name: &str, flaw: Flaw) {
        let before = self.stats().await;
        let stored = self.snapshot().await;
        assert_eq!(self.suspects().await, [name], "{flaw:?}");
        assert_eq!(self.flaw(name).await, Some(flaw));
        assert_eq!(self.snapshot().await, stored, "{flaw:?}: it only looked");
        assert_eq!(self.mend(name).await, Some(flaw));
        let after = self.stats().await;
        assert_ne!(self.flaw(name).await, Some(flaw), "{flaw:?}: mended");
        assert!(after.is_balanced(), "{flaw:?}: {before:#?} {after:#?}");
        // Again, it finds something else, or nothing.
        let stored = self.snapshot().await;
        if self.mend(name).await.is_none() {
            assert_eq!(self.snapshot().await, stored, "{flaw:?}: twice");
        }
    }

    async fn lose(&self, key: &str, field: &str) {
        let kind: String = self.ask(&["TYPE", key]).await;
        let remove = if kind == "zset" { "ZREM" } else { "HDEL" };
        let gone: u64 = self.ask(&[remove, key, field]).await;
        assert_eq!(gone, 1, "{key} {field}");
    }

    /// The letter that came of it, read.
    async fn letter_of(&self, id: &str) -> Record {
        let letters = self
            .ledger
            .letters(id, None, 1, soon())
            .await
            .unwrap()
            .unwrap();
        Record::parse(letters[0].record.clone()).unwrap()
    }
}

#[tokio::test]
async fn a_sound_ledger_is_not_suspected_whatever_its_jobs_are_doing() {
    let bench = Bench::new().await;
    let jobs = bench.every_state().await;
    let many: Vec<_> = (0..700)
        .map(|n| bench.placement(&format!("{n}"), after(HOUR)))
        .collect();
    for items in many.chunks(100) {
        bench.place(items).await;
    }
    let stored = bench.snapshot().await;
    assert!(bench.suspects().await.is_empty());
    for (id, _) in &jobs {
        assert_eq!(bench.mend(id).await, None, "{id}");
    }
    for name in ["Dead:1", "Dead:2", "missing"] {
        assert_eq!(bench.mend(name).await, None, "{name}");
    }
    assert_eq!(bench.snapshot().await, stored);
    bench.balanced().await;
}

#[tokio::test]
async fn a_due_job_without_a_record_becomes_a_dead_letter() {
    for state in [Pending, Due] {
        let bench = Bench::new().await;
        bench.bring("job", state).await;
        bench.lose(&bench.names().shadow, "job").await;
        bench.finds_and_mends("job", Flaw::DueWithoutRecord).await;
        assert_eq!(bench.state("job").await, Dead);
        let letter = bench.letter_of("job").await;
        assert_eq!(letter.header.error.as_deref(), Some("an audit"));
        assert_eq!(bench.balanced().await.buried, 1);
    }
}

#[tokio::test]
async fn a_record_alone_becomes_a_dead_letter_with_its_payload() {
    for (lost, accepted) in [(true, 1), (false, 1)] {
        let bench = Bench::new().await;
        if lost {
            bench.bring("job", Pending).await;
            bench.lose(&bench.names().due, "job").await;
            assert_eq!(bench.stats().await.difference(), 1);
        } else {
            // It never was a job, for all the books know.
            let record = format!("{HEADER}\n1\njob");
            let shadow = bench.names().shadow.clone();
            let _: u64 = bench.ask(&["HSET", &shadow, "job", &record]).await;
            assert_eq!(bench.stats().await.difference(), 0);
        }
        bench.finds_and_mends("job", Flaw::RecordAlone).await;
        assert_eq!(&bench.letter_of("job").await.payload[..], b"job");
        let stats = bench.balanced().await;
        assert_eq!((stats.accepted, stats.buried, stats.dead), (accepted, 1, 1));
    }
}

#[tokio::test]
async fn what_is_due_beside_a_run_follows_it() {
    for state in [Leased, LeasedNext] {
        let bench = Bench::new().await;
        let token = bench.bring("job", state).await;
        let due = bench.names().due.clone();
        let _: u64 = bench.ask(&["ZADD", &due, "5", "job"]).await;
        let stats = bench.names().stats.clone();
        let _: u64 = bench.ask(&["HINCRBY", &stats, "accepted", "1"]).await;
        bench.finds_and_mends("job", Flaw::DueAndLeased).await;
        assert_eq!(bench.state("job").await, LeasedNext);
        let (next, record) = bench.successor("job").await;
        assert_eq!(next == 5, state == Leased);
        assert_eq!(&record.payload[..], b"job");
        bench.settle("job", &token, Verb::Done).await;
        bench.balanced().await;
    }
}

#[tokio::test]
async fn half_a_lease_becomes_one_that_can_be_taken_over() {
    let bench = Bench::new().await;
    let token = bench.bring("lapsed", Lapsed).await;
    bench.lose(&bench.names().lease, "lapsed").await;
    bench
        .finds_and_mends("lapsed", Flaw::LeaseWithoutHolder)
        .await;
    assert_eq!(
        words(&bench.renew(&[("lapsed", &token)]).await),
        ["foreign"]
    );
    let job = bench.reclaim(&["lapsed"]).await.jobs.remove(0);
    bench.settle("lapsed", &job.token, Verb::Done).await;

    let token = bench.bring("run", Leased).await;
    bench.lose(&bench.names().leased, "run").await;
    bench
        .finds_and_mends("run", Flaw::LeaseWithoutDeadline)
        .await;
    // Whoever holds it is given time to say so.
    assert_eq!(bench.state("run").await, Leased);
    assert_eq!(words(&bench.renew(&[("run", &token)]).await), ["renewed"]);
    bench.settle("run", &token, Verb::Done).await;
    bench.balanced().await;
}

#[tokio::test]
async fn a_run_without_a_record_is_left_alone_until_its_lease_lapses() {
    let bench = Bench::new().await;
    let token = bench.bring("run", Leased).await;
    bench.lose(&bench.names().shadow, "run").await;
    let stored = bench.snapshot().await;
    assert_eq!(bench.suspects().await, ["run"]);
    assert_eq!(bench.mend("run").await, Some(Flaw::RunningWithoutRecord));
    assert_eq!(bench.snapshot().await, stored);
    bench.settle("run", &token, Verb::Done).await;

    for state in [Lapsed, LapsedNext] {
        bench.bring("job", state).await;
        bench.lose(&bench.names().shadow, "job").await;
        bench
            .finds_and_mends("job", Flaw::LapsedWithoutRecord)
            .await;
        let left = bench.state("job").await;
        assert_eq!(left, if state == Lapsed { Dead } else { Pending });
        assert_eq!(
            bench.letter_of("job").await.header.error.as_deref(),
            Some("an audit")
        );
    }
    bench.balanced().await;
}

#[tokio::test]
async fn a_successor_of_nothing_becomes_pending() {
    let bench = Bench::new().await;
    let n = bench.names();
    let token = bench.bring("job", LeasedNext).await;
    for key in [&n.leased, &n.lease, &n.shadow] {
        bench.lose(key, "job").await;
    }
    // The run that was lost with its lease is not to be found any more.
    let stats = n.stats.clone();
    let _: u64 = bench.ask(&["HINCRBY", &stats, "done", "1"]).await;
    bench.finds_and_mends("job", Flaw::SuccessorAlone).await;
    assert_eq!(bench.state("job").await, Pending);

    // Beside one that is pending it is the newer one.
    bench.bring("both", Pending).await;
    let next = format!("7 {HEADER}\n1\nnewer");
    let _: u64 = bench.ask(&["HSET", &n.next, "both", &next]).await;
    let _: u64 = bench.ask(&["HINCRBY", &stats, "accepted", "1"]).await;
    bench.finds_and_mends("both", Flaw::SuccessorAlone).await;
    assert_eq!(bench.due("both").await, Some(7));
    assert_eq!(&bench.record("both").await.payload[..], b"newer");
    assert_eq!(word(bench.settle("job", &token, Verb::Done).await), "gone");
    bench.balanced().await;
}

#[tokio::test]
async fn dead_letters_are_made_whole() {
    let bench = Bench::new().await;
    let n = bench.names();
    for id in ["a", "b", "c"] {
        bench.bring(id, Dead).await;
    }
    bench.lose(&n.grave, "a:1").await;
    bench
        .finds_and_mends("a:1", Flaw::LetterWithoutRecord)
        .await;
    assert_eq!(
        bench.letter_of("a").await.header.error.as_deref(),
        Some("an audit")
    );

    // By the books a letter is missing; or none is.
    bench.lose(&n.dead, "b:2").await;
    assert_eq!(bench.stats().await.letters_difference(), 1);
    assert_eq!(bench.suspects().await, ["b", "b:2"]);
    assert_eq!(bench.mend("b:2").await, Some(Flaw::LetterRecordAlone));
    assert!(bench.suspects().await.is_empty());
    assert_eq!(bench.stats().await.buried, 3);
    let record = format!("{HEADER}\n1\nx");
    let _: u64 = bench.ask(&["HSET", &n.grave, "x:9", &record]).await;
    bench.finds_and_mends("x:9", Flaw::LetterRecordAlone).await;
    assert_eq!(bench.stats().await.buried, 4);

    let _: u64 = bench.ask(&["HSET", &n.grave, "c", "3 8"]).await;
    bench.finds_and_mends("c", Flaw::LetterMisfiled).await;
    assert_eq!(bench.field(&n.grave, "c").await, Some(b"3".to_vec()));
    let _: u64 = bench.ask(&["HSET", &n.grave, "nobody", "8"]).await;
    bench.finds_and_mends("nobody", Flaw::LetterMisfiled).await;
    assert_eq!(bench.field(&n.grave, "nobody").await, None);
    bench.balanced().await;
}

#[tokio::test]
async fn a_difference_that_no_flaw_explains_is_left() {
    let bench = Bench::new().await;
    bench.bring("job", Pending).await;
    let stats = bench.names().stats.clone();
    let _: u64 = bench.ask(&["HINCRBY", &stats, "accepted", "5"]).await;
    assert!(bench.suspects().await.is_empty());
    assert_eq!(bench.mend("job").await, None);
    assert_eq!(bench.stats().await.difference(), 5);
    // A bare job was counted among the pending, so it explains nothing either.
    bench.lose(&bench.names().shadow, "job").await;
    assert_eq!(bench.mend("job").await, Some(Flaw::DueWithoutRecord));
    assert_eq!(bench.stats().await.difference(), 5);
    let _: u64 = bench.ask(&["HINCRBY", &stats, "accepted", "-5"]).await;
    bench.balanced().await;
}

#[tokio::test]
async fn a_job_is_repaired_once_however_often_it_is_named() {
    let bench = Bench::new().await;
    bench.bring("job", Pending).await;
    bench.lose(&bench.names().shadow, "job").await;
    let item = || ("job".to_owned(), REASON.to_owned());
    let found = bench.ledger.audit(&[item(), item()], true, soon()).await;
    assert_eq!(found.unwrap(), [Some(Flaw::DueWithoutRecord); 2]);
    assert_eq!(bench.balanced().await.buried, 1);
    let token = bench.run("next", HOUR).await.token;
    let settled = bench.settle("next", &token, bury()).await;
    assert_eq!(word(settled), "buried");
    assert_eq!(bench.balanced().await.dead, 2);
}
