//! `scan.lua` and `audit.lua`: they find the flaws of a ledger, and repair them without a loss.

use std::collections::{BTreeMap, BTreeSet};

use super::support::{Bench, HEADER, HOUR, State, after, bury, soon, suspect, word, words};
use crate::Stats;
use crate::flaw::Flaw;
use crate::record::Record;
use crate::store::ledger::script::{ASIDE, SCAN};
use crate::store::{PARTS, Verb};

use State::*;

const REASON: &str = r#"{"v":1,"error":"an audit"}"#;

impl Bench {
    /// The names that a scan of all parts suspects.
    async fn suspects(&self) -> Vec<String> {
        let mut all = BTreeSet::new();
        for part in PARTS {
            let mut cursor = "0".to_owned();
            loop {
                let page = self.ledger.scan(part, &cursor, soon()).await.unwrap();
                let names = page.suspects.into_iter();
                all.extend(names.map(|it| String::from_utf8(it.name).unwrap()));
                cursor = page.cursor;
                if cursor == "0" {
                    break;
                }
            }
        }
        all.into_iter().collect()
    }

    async fn flaw(&self, name: &str) -> Option<Flaw> {
        let items = [(suspect(name), String::new())];
        let found = self.ledger.audit(&items, false, soon()).await.unwrap();
        found[0].map(|found| found.flaw)
    }

    async fn mend(&self, name: &str) -> Option<Flaw> {
        let items = [(suspect(name), REASON.to_owned())];
        let found = self.ledger.audit(&items, true, soon()).await.unwrap();
        found[0].map(|found| found.flaw)
    }

    async fn stats(&self) -> Stats {
        self.ledger.tally(soon()).await.unwrap().into()
    }

    /// Checks that a scan and an audit find this flaw of this name and change nothing, and that a
    /// repair removes the flaw, and any difference in the books with it.
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
        // A repeat finds another flaw, or none.
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

    /// The record of the last dead letter of this job.
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
async fn a_sound_ledger_is_not_suspected_in_any_state_of_its_jobs() {
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
async fn a_scan_returns_the_opening_of_a_record_unless_it_has_only_a_time() {
    let bench = Bench::new().await;
    let openings = [
        ("{\"v\":1}\n1\n", true),
        ("{\"v\":1,\"us\":7}\n1\n", true),
        ("{\"v\":1,\"us\":999}\n1763712345678\n", true),
        // A plain record that is suspected all the same, one in a thousand: otherwise the pattern
        // would accept 07 as a number.
        ("{\"v\":1,\"us\":0}\n1\n", false),
        ("{\"v\":1,\"us\":7,\"attempts\":1}\n1\n", false),
        ("{\"v\":4,\"us\":7}\n1\n", false),
        ("{\"v\":1,\"us\":7}\nsoon\n", false),
        // The following headers are not JSON.
        ("{\"v\":1,\"us\":}\n1\n", false),
        ("{\"v\":1,\"us\":07}\n1\n", false),
    ];
    let shadow = &bench.names().shadow;
    let mut expected = BTreeMap::new();
    for (number, (opening, is_passed_over)) in openings.into_iter().enumerate() {
        let (name, record) = (number.to_string(), format!("{opening}payload"));
        let _: u64 = bench.ask(&["HSET", shadow, &name, &record]).await;
        let shown = if is_passed_over { "" } else { opening };
        expected.insert(name, shown.to_owned());
        assert!(
            !is_passed_over || Record::parse(record).is_ok(),
            "{opening}"
        );
    }
    let mut cmd = bench
        .ledger
        .call(&SCAN, &bench.names().of_jobs(), [].into_iter());
    cmd.arg("shadow").arg("0").arg(openings.len());
    let mut reply = bench.ledger.eval(&SCAN, &cmd, soon()).await.unwrap().reply;
    let [_cursor, _looked, _highest] = [(); 3].map(|()| reply.text().unwrap());
    let mut told = BTreeMap::new();
    while !reply.is_exhausted() {
        let [name, _fault, opening] = [(); 3].map(|()| reply.text().unwrap());
        told.insert(name, opening);
    }
    assert_eq!(told, expected);
    let _: u64 = bench.ask(&["DEL", shadow]).await;
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
async fn an_orphaned_record_becomes_a_dead_letter_with_its_payload() {
    for (lost, accepted) in [(true, 1), (false, 1)] {
        let bench = Bench::new().await;
        if lost {
            bench.bring("job", Pending).await;
            bench.lose(&bench.names().due, "job").await;
            assert_eq!(bench.stats().await.difference(), 1);
        } else {
            // A record that the books do not count as a job.
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
async fn a_due_job_beside_a_run_becomes_its_successor() {
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
async fn half_a_lease_becomes_a_lease_that_can_be_taken_over() {
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
    // The holder of the lease gets time to settle.
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
async fn a_successor_without_a_run_becomes_pending() {
    let bench = Bench::new().await;
    let n = bench.names();
    let token = bench.bring("job", LeasedNext).await;
    for key in [&n.leased, &n.lease, &n.shadow] {
        bench.lose(key, "job").await;
    }
    // By the books, the run that was lost with its lease has ended.
    let stats = n.stats.clone();
    let _: u64 = bench.ask(&["HINCRBY", &stats, "done", "1"]).await;
    bench.finds_and_mends("job", Flaw::SuccessorAlone).await;
    assert_eq!(bench.state("job").await, Pending);

    // A successor without a run is newer than a pending job of its name, and replaces it.
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
async fn incomplete_dead_letters_are_completed() {
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

    // First the books miss a letter, then they miss none.
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

/// Repairs the names that a scan of all parts suspects, with the scan's judgements; returns the
/// answers.
async fn repaired(bench: &Bench) -> Vec<(Flaw, bool)> {
    let mut found = Vec::new();
    for part in PARTS {
        let page = bench.ledger.scan(part, "0", soon()).await.unwrap();
        for suspect in page.suspects {
            let items = [(suspect, REASON.to_owned())];
            let answer = bench.ledger.audit(&items, true, soon()).await.unwrap()[0];
            found.extend(answer.map(|it| (it.flaw, it.is_left)));
        }
    }
    found
}

#[tokio::test]
async fn an_impossible_due_time_makes_a_dead_letter() {
    for (score, was_counted) in [("inf", 0), ("-inf", 1), ("-5", 1), ("1e300", 1)] {
        let bench = Bench::new().await;
        bench.bring("job", Pending).await;
        let due = bench.names().due.clone();
        let _: u64 = bench.ask(&["ZADD", &due, score, "job"]).await;
        assert_eq!(bench.stats().await.pending, was_counted, "{score}");
        bench.finds_and_mends("job", Flaw::DueAtNoTime).await;
        assert_eq!(&bench.letter_of("job").await.payload[..], b"job");
        assert_eq!(bench.balanced().await.accepted, 1, "{score}");
    }
}

#[tokio::test]
async fn an_impossible_deadline_counts_as_missing() {
    let bench = Bench::new().await;
    let token = bench.bring("run", Leased).await;
    let leased = bench.names().leased.clone();
    for score in ["inf", "-5"] {
        let _: u64 = bench.ask(&["ZADD", &leased, score, "run"]).await;
        bench
            .finds_and_mends("run", Flaw::LeaseWithoutDeadline)
            .await;
    }
    bench.settle("run", &token, Verb::Done).await;
    bench.bring("run", Leased).await;
    let lease = bench.names().lease.clone();
    let _: u64 = bench.ask(&["HSET", &lease, "run", "no lease"]).await;
    bench.finds_and_mends("run", Flaw::LeaseWithoutHolder).await;
    bench.balanced().await;
}

#[tokio::test]
async fn an_unreadable_record_becomes_a_readable_letter() {
    for (record, payload) in [
        ("not ours", "not ours"),
        ("{\"v\":1}\nsoon\nkept", "kept"),
        ("{\"v\":1,\"headers\":7}\n1\nkept", "kept"),
        ("a\nb\nc", "a\nb\nc"),
    ] {
        let bench = Bench::new().await;
        let n = bench.names();
        bench.bring("due", Pending).await;
        bench.bring("run", LeasedNext).await;
        bench.bring("dead", Dead).await;
        let next = format!("7 {record}");
        for (key, name, value) in [
            (&n.shadow, "due", record),
            (&n.next, "run", &next),
            (&n.grave, "dead:1", record),
        ] {
            let _: u64 = bench.ask(&["HSET", key, name, value]).await;
        }
        let found = repaired(&bench).await;
        let (letter, job) = (Flaw::LetterUnreadable, Flaw::RecordUnreadable);
        assert_eq!(
            found,
            [(letter, false), (job, false), (job, false)],
            "{record}"
        );
        for id in ["due", "run", "dead"] {
            let letter = bench.letter_of(id).await;
            assert_eq!(letter.header.error.as_deref(), Some("an audit"));
            assert_eq!(&letter.payload[..], payload.as_bytes(), "{id}");
        }
        assert_eq!(repaired(&bench).await, []);
        assert_eq!(bench.balanced().await.buried, 3);
    }
}

#[tokio::test]
async fn a_run_with_an_unreadable_record_is_left_to_its_worker() {
    let bench = Bench::new().await;
    let token = bench.bring("run", Leased).await;
    let shadow = bench.names().shadow.clone();
    let _: u64 = bench.ask(&["HSET", &shadow, "run", "not ours"]).await;
    assert_eq!(repaired(&bench).await, [(Flaw::RecordUnreadable, true)]);
    bench.settle("run", &token, Verb::Done).await;
    bench.balanced().await;
}

#[tokio::test]
async fn data_under_an_impossible_name_are_kept_under_another() {
    let bench = Bench::new().await;
    let n = bench.names();
    let record = format!("{HEADER}\n1\nkept");
    let next = format!("7 {HEADER}\n1\nnext");
    let _: u64 = bench.ask(&["HSET", &n.shadow, "a b", &record]).await;
    let _: u64 = bench.ask(&["ZADD", &n.due, "99999999999999", "a b"]).await;
    let _: u64 = bench.ask(&["HSET", &n.next, "c:d", &next]).await;
    let _: u64 = bench.ask(&["HSET", &n.grave, "e f", "who knows"]).await;
    let (letter, nothing) = ((Flaw::NameOfNoJob, false), (Flaw::NameAlone, false));
    assert_eq!(repaired(&bench).await, [letter; 3]);
    for (id, payload) in [("a_b", "kept"), ("c_d", "next"), ("e_f", "who knows")] {
        assert_eq!(&bench.letter_of(id).await.payload[..], payload.as_bytes());
    }
    // Names with only a time or only a lease leave no record to keep.
    let _: u64 = bench.ask(&["ZADD", &n.due, "99999999999999", "a:1"]).await;
    let _: u64 = bench.ask(&["ZADD", &n.dead, "5", "no number"]).await;
    let _: u64 = bench
        .ask(&["HSET", &n.lease, "\u{200b} ", "nobody 1 1 1 -"])
        .await;
    assert_eq!(repaired(&bench).await, [nothing; 3]);
    assert_eq!(repaired(&bench).await, []);
    assert_eq!(bench.balanced().await.accepted, 3);
}

#[tokio::test]
async fn a_repair_makes_the_placeholder_the_last_entry() {
    let bench = Bench::new().await;
    bench.bring("job", Pending).await;
    let due = bench.names().due.clone();
    let _: u64 = bench.ask(&["ZADD", &due, "5", ":"]).await;
    assert_eq!(repaired(&bench).await, [(Flaw::NameAlone, false)]);
    assert_eq!(bench.ask::<String>(&["ZSCORE", &due, ":"]).await, "inf");
    assert_eq!(repaired(&bench).await, []);
    bench.balanced().await;
}

#[tokio::test]
async fn a_flaw_that_needs_a_damaged_counter_is_left_and_the_rest_is_mended() {
    let bench = Bench::new().await;
    let n = bench.names();
    bench.bring("due", Pending).await;
    bench.bring("run", Leased).await;
    bench.lose(&n.shadow, "due").await;
    bench.lose(&n.lease, "run").await;
    for counter in ["buried", "skipped"] {
        let _: u64 = bench.ask(&["HSET", &n.stats, counter, "many"]).await;
        let found = repaired(&bench).await;
        assert!(found.contains(&(Flaw::DueWithoutRecord, true)), "{found:?}");
        let lease = (Flaw::LeaseWithoutHolder, false);
        assert_eq!(found.contains(&lease), counter == "buried", "{found:?}");
        let _: u64 = bench.ask(&["HDEL", &n.stats, counter]).await;
    }
    assert_eq!(repaired(&bench).await, [(Flaw::DueWithoutRecord, false)]);
    bench.balanced().await;
}

#[tokio::test]
async fn the_books_may_miss_one_of_two_impossible_names() {
    let bench = Bench::new().await;
    let n = bench.names();
    bench.bring("job", Pending).await;
    let _: u64 = bench.ask(&["HINCRBY", &n.stats, "accepted", "1"]).await;
    let record = format!("{HEADER}\n1\nkept");
    let words = ["HSET", &n.shadow, "a b", &record, "c d", &record];
    let _: u64 = bench.ask(&words).await;
    let page = bench.ledger.scan("shadow", "0", soon()).await.unwrap();
    let suspects = page.suspects.into_iter();
    let items: Vec<_> = suspects.map(|it| (it, REASON.to_owned())).collect();
    assert_eq!(items.len(), 2);
    bench.ledger.audit(&items, true, soon()).await.unwrap();
    assert_eq!(bench.balanced().await.buried, 2);
}

#[tokio::test]
async fn a_record_that_has_become_readable_is_left_alone() {
    let bench = Bench::new().await;
    bench.bring("job", Pending).await;
    let shadow = bench.names().shadow.clone();
    let record: String = bench.ask(&["HGET", &shadow, "job"]).await;
    let _: u64 = bench.ask(&["HSET", &shadow, "job", "not ours"]).await;
    let page = bench.ledger.scan("shadow", "0", soon()).await.unwrap();
    let _: u64 = bench.ask(&["HSET", &shadow, "job", &record]).await;
    for suspect in page.suspects {
        let items = [(suspect, REASON.to_owned())];
        let found = bench.ledger.audit(&items, true, soon()).await.unwrap();
        assert_eq!(found, [None]);
    }
    assert_eq!(bench.balanced().await.pending, 1);
}

#[tokio::test]
async fn a_key_that_has_got_its_type_back_stays_where_it_is() {
    let bench = Bench::new().await;
    bench.bring("job", Pending).await;
    let due = bench.names().due.clone();
    let kept = format!("{due}:kept");
    let () = bench.ask(&["RENAME", &due, &kept]).await;
    let () = bench.ask(&["SET", &due, "theirs"]).await;
    let wrong = bench.ledger.wrong_keys(soon()).await.unwrap();
    assert_eq!(wrong.len(), 1);
    let () = bench.ask(&["RENAME", &kept, &due]).await;
    bench.ledger.store.mend(&wrong[0], soon()).await.unwrap();
    assert_eq!(bench.balanced().await.pending, 1);
}

#[tokio::test]
async fn a_value_that_has_changed_since_it_was_found_stays() {
    let bench = Bench::new().await;
    bench.bring("job", Pending).await;
    let calls = bench.names().calls.clone();
    let _: u64 = bench.ask(&["HSET", &calls, "turn", "x"]).await;
    let wrong = bench.ledger.wrong_marks(soon()).await.unwrap();
    let _: u64 = bench.ask(&["HSET", &calls, "turn", "7"]).await;
    bench.ledger.store.mend(&wrong[0], soon()).await.unwrap();
    assert_eq!(bench.field(&calls, "turn").await, Some(b"7".to_vec()));
    bench.balanced().await;
}

#[tokio::test]
async fn letters_without_an_entry_under_their_id_get_one() {
    let bench = Bench::new().await;
    bench.bring("job", Dead).await;
    bench.lose(&bench.names().grave, "job").await;
    bench.finds_and_mends("job:1", Flaw::LetterUnfiled).await;
    assert_eq!(&bench.letter_of("job").await.payload[..], b"job");
    bench.balanced().await;
}

#[tokio::test]
async fn an_unexplained_difference_is_left() {
    let bench = Bench::new().await;
    bench.bring("job", Pending).await;
    let stats = bench.names().stats.clone();
    let _: u64 = bench.ask(&["HINCRBY", &stats, "accepted", "5"]).await;
    assert!(bench.suspects().await.is_empty());
    assert_eq!(bench.mend("job").await, None);
    assert_eq!(bench.stats().await.difference(), 5);
    // The books count a pending job without a record, so its repair explains no difference.
    bench.lose(&bench.names().shadow, "job").await;
    assert_eq!(bench.mend("job").await, Some(Flaw::DueWithoutRecord));
    assert_eq!(bench.stats().await.difference(), 5);
    let _: u64 = bench.ask(&["HINCRBY", &stats, "accepted", "-5"]).await;
    bench.balanced().await;
}

#[tokio::test]
async fn a_job_that_is_named_twice_is_repaired_once() {
    let bench = Bench::new().await;
    bench.bring("job", Pending).await;
    bench.lose(&bench.names().shadow, "job").await;
    let item = || (suspect("job"), REASON.to_owned());
    let found = bench.ledger.audit(&[item(), item()], true, soon()).await;
    for found in found.unwrap() {
        let found = found.unwrap();
        assert_eq!((found.flaw, found.is_left), (Flaw::DueWithoutRecord, false));
    }
    assert_eq!(bench.balanced().await.buried, 1);
    let token = bench.run("next", HOUR).await.token;
    let settled = bench.settle("next", &token, bury()).await;
    assert_eq!(word(settled), "buried");
    assert_eq!(bench.balanced().await.dead, 2);
}

#[tokio::test]
async fn a_key_that_is_moved_aside_overwrites_none_that_was_moved_before() {
    let bench = Bench::new().await;
    let (server, due) = (&bench.ledger.server, &bench.names().due);
    let to = format!("{due}:aside:1");
    for value in ["first", "second"] {
        let _: String = bench.ask(&["SET", due, value]).await;
        let mut call = ASIDE.call(1);
        call.arg(due).arg("zset").arg(&to);
        let moved = server.eval(&ASIDE, &call, &server.clock, due, soon());
        moved.await.unwrap();
        let kept: String = bench.ask(&["GET", &to]).await;
        assert_eq!(kept, "first");
    }
    let there: String = bench.ask(&["GET", due]).await;
    assert_eq!(there, "second");
    let _: u64 = bench.ask(&["DEL", due, &to]).await;
    bench.balanced().await;
}
