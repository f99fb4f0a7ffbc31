//! `terms.lua`, `ended.lua` and `archived.lua`, and the records that jobs leave when they end.

use std::time::Duration;

use bytes::Bytes;

use super::support::{
    Bench, HEADER, HOUR, KEPT, PENDING, State, after, at, bury, later, soon, suspect, word,
};
use crate::Stats;
use crate::client::{EndedJob, JobEnd};
use crate::error::{ErrorKind, Result};
use crate::keeping::ArchiveTerms;
use crate::shards::Layout;
use crate::store::kinds::moving::{Item, MoveBatch};
use crate::store::{Change, EndedPage, EndsRead, Lane, Next, Settlement, TermsRule, Verb, Why};
use crate::time::UnixMs;

use State::*;

impl Bench {
    /// Has jobs leave records by these terms, set now.
    pub(super) async fn archive(&self, terms: ArchiveTerms) -> Result<()> {
        let set = UnixMs(self.now().await);
        self.archive_since(Some(terms), set).await
    }

    async fn archive_since(&self, terms: Option<ArchiveTerms>, set: UnixMs) -> Result<()> {
        let rule = TermsRule {
            terms,
            set,
            by: "anna".into(),
        };
        let (store, kind) = (&self.ledger.store, self.ledger.kind());
        let told = store.give_terms(kind, Layout::FIRST, &rule, soon());
        told.await.map(drop)
    }

    async fn ended(&self) -> EndedPage {
        self.ledger.ended(1000, soon()).await.unwrap()
    }

    /// The records that wait.
    async fn records(&self) -> Vec<EndedJob> {
        let records = self.ended().await.all().into_iter();
        let kind = self.ledger.kind();
        let read = |record: Bytes| EndedJob::parse(kind, &record).unwrap();
        records.map(read).collect()
    }

    /// Which jobs left records, and of which ends.
    async fn ends(&self) -> Vec<(String, JobEnd)> {
        let ends = self.records().await.into_iter();
        let mut ends: Vec<_> = ends.map(|it| (it.key.id().to_owned(), it.end)).collect();
        ends.sort();
        ends
    }

    /// As [`balanced`](Self::balanced); and each ended job has left one record.
    async fn archived(&self) -> Stats {
        let stats = self.balanced().await;
        let ends = self.ends().await;
        let count = |end| ends.iter().filter(|it| it.1 == end).count() as u64;
        assert_eq!(count(JobEnd::Done), stats.done, "{ends:?}");
        assert_eq!(count(JobEnd::Cancelled), stats.cancelled, "{ends:?}");
        assert_eq!(count(JobEnd::Replaced), stats.replaced, "{ends:?}");
        assert_eq!(count(JobEnd::Buried), stats.buried, "{ends:?}");
        assert_eq!(count(JobEnd::Skipped), stats.skipped, "{ends:?}");
        stats
    }
}

impl EndedPage {
    /// The records of both lists.
    pub(super) fn all(&self) -> Vec<Bytes> {
        let lists = self.lists.iter();
        lists.flat_map(|list| list.records.clone()).collect()
    }

    /// How far it reaches.
    pub(super) fn whole(&self) -> [EndsRead; 2] {
        std::array::from_fn(|at| self.lists[at].read(self.lists[at].records.len()))
    }
}

fn of(id: &str, end: JobEnd) -> (String, JobEnd) {
    (id.to_owned(), end)
}

#[tokio::test]
async fn a_kind_without_terms_leaves_no_records() {
    let bench = Bench::new().await;
    let job = bench.run("done", HOUR).await;
    bench.settle("done", &job.token, Verb::Done).await;
    bench.schedule("cancelled", after(HOUR)).await;
    bench.cancel("cancelled").await;
    bench.die("dead").await;
    let page = bench.ended().await;
    assert_eq!(
        (page.waiting, page.waiting_bytes, page.is_archived),
        (0, 0, false)
    );
    let calls = &bench.names().calls;
    let fields: u64 = bench.ask(&["HEXISTS", calls, "waiting"]).await;
    assert_eq!(fields, 0);
    bench.balanced().await;
}

#[tokio::test]
async fn a_done_job_leaves_all_that_was_known_of_it() {
    let bench = Bench::new().await;
    bench
        .archive(ArchiveTerms::new().payload(100).keep_months(24))
        .await
        .unwrap();
    let due = bench.now().await;
    let mut item = bench.carrying("job", at(due), b"the payload");
    item.header = r#"{"v":1,"headers":{"tenant":"acme"}}"#.into();
    bench.place(&[item]).await;
    let first = bench.claim(&["job"], 0).await.jobs.remove(0);
    let failed = Verb::Later {
        when: at(due),
        header: r#"{"v":1,"attempts":1,"error":"503","headers":{"tenant":"acme"}}"#.into(),
        step: "failed",
    };
    bench.settle("job", &first.token, failed).await;
    let job = bench.claim(&["job"], 0).await.jobs.remove(0);
    bench.settle("job", &job.token, Verb::Done).await;
    let record = bench.records().await.remove(0);
    let micros = |time: std::time::SystemTime| {
        time.duration_since(std::time::SystemTime::UNIX_EPOCH)
            .unwrap()
            .as_micros() as u64
    };
    assert_eq!((record.key.id(), record.end), ("job", JobEnd::Done));
    // The header of the failure has left the microseconds out.
    assert!(micros(record.accepted_at) / 1000 >= due);
    assert!(micros(record.ended_at) >= job.fence);
    assert_eq!(micros(record.due_at.unwrap()), due * 1000);
    assert_eq!(micros(record.begun_at.unwrap()), job.fence);
    assert_eq!((record.fence, record.attempts), (Some(job.fence), 2));
    assert_eq!(record.error.as_deref(), Some("503"));
    assert_eq!(record.headers.get("tenant"), Some("acme"));
    assert_eq!(record.payload.as_deref(), Some(&b"the payload"[..]));
    assert_eq!(
        (record.payload_bytes, record.keep_months, record.letter),
        (11, 24, None)
    );
    assert_eq!(record.by, crate::store::this_process());
    bench.archived().await;
}

#[tokio::test]
async fn a_payload_that_is_too_long_is_left_out_whole() {
    let bench = Bench::new().await;
    bench.archive(ArchiveTerms::new().payload(4)).await.unwrap();
    for (id, payload) in [("short", &b"1234"[..]), ("long", b"12345"), ("none", b"")] {
        bench
            .place(&[bench.carrying(id, after(HOUR), payload)])
            .await;
        bench.cancel(id).await;
    }
    let records = bench.records().await;
    let payloads = records
        .iter()
        .map(|it| (it.payload.as_deref(), it.payload_bytes));
    let expected = [(Some(&b"1234"[..]), 4), (None, 5), (Some(&b""[..]), 0)];
    assert_eq!(payloads.collect::<Vec<_>>(), expected);
    bench.archived().await;
}

#[tokio::test]
async fn each_way_to_settle_leaves_the_record_of_its_end() {
    let bench = Bench::new().await;
    bench
        .archive(ArchiveTerms::new().payload(99).keep_dead_months(7))
        .await
        .unwrap();
    for (state, verb) in [
        (Leased, Verb::Done),
        (LeasedNext, Verb::Done),
        (CancelledRun, Verb::Done),
    ] {
        let id = &state.id();
        let token = bench.bring(id, state).await;
        assert_eq!(word(bench.settle(id, &token, verb).await), "done");
    }
    let skip = || Verb::Skip {
        note: "1 h late".into(),
    };
    let failed = || later(after(HOUR), "failed");
    for (id, state, verb, said) in [
        ("skip", Leased, skip(), "skipped"),
        ("skip-cancelled", CancelledRun, skip(), "cancelled"),
        ("later", Leased, failed(), "later"),
        ("later-next", LeasedNext, failed(), "replaced"),
        ("later-cancelled", CancelledRunNext, failed(), "cancelled"),
        ("bury", Leased, bury(), "buried"),
        ("bury-next", LeasedNext, bury(), "buried"),
        ("bury-cancelled", CancelledRun, bury(), "cancelled"),
    ] {
        let token = bench.bring(id, state).await;
        assert_eq!(word(bench.settle(id, &token, verb).await), said, "{id}");
    }
    let stats = bench.archived().await;
    assert_eq!(
        (stats.done, stats.buried, stats.cancelled, stats.replaced),
        (3, 2, 3, 1)
    );
    let records = bench.records().await;
    let dead = records.iter().find(|it| it.key.id() == "bury").unwrap();
    assert_eq!((dead.letter, dead.error.as_deref()), (Some(1), Some("no")));
    assert_eq!(
        (dead.keep_months, dead.payload.as_deref()),
        (7, Some(&b"bury"[..]))
    );
    let alive = records.iter().find(|it| it.key.id() == "skip").unwrap();
    assert_eq!(alive.keep_months, 0);
}

#[tokio::test]
async fn one_settlement_of_many_jobs_leaves_a_record_of_each() {
    let bench = Bench::new().await;
    bench.archive(ArchiveTerms::new()).await.unwrap();
    let names: Vec<String> = (0..1500).map(|at| format!("job{at}")).collect();
    let items: Vec<_> = names
        .iter()
        .map(|id| bench.placement(id, after(Duration::ZERO)))
        .collect();
    bench.place(&items).await;
    let jobs = bench.claim(&[], 1500).await.jobs;
    assert_eq!(jobs.len(), 1500);
    let ends: Vec<Settlement> = jobs
        .iter()
        .map(|job| bench.settlement(&job.id, &job.token, Verb::Done))
        .collect();
    bench.settle_all(&ends).await;
    assert_eq!(bench.ended().await.waiting, 1500);
    let page = bench.ledger.ended(100, soon()).await.unwrap();
    assert_eq!((page.all().len(), page.waiting), (100, 1500));
    bench.balanced().await;
}

#[tokio::test]
async fn an_occurrence_that_is_followed_leaves_a_record() {
    let bench = Bench::new().await;
    bench.archive(ArchiveTerms::new()).await.unwrap();
    let job = bench.run("job", HOUR).await;
    let mut end = bench.settlement("job", &job.token, Verb::Done);
    end.next = Next::At(UnixMs(bench.now().await + 9_000_000), HEADER.into());
    assert_eq!(word(bench.settle_all(&[end]).await[0].answer), "done");
    assert_eq!(bench.ends().await, [of("job", JobEnd::Done)]);
    bench.archived().await;
}

#[tokio::test]
async fn cancels_leave_the_records_of_jobs_and_successors() {
    let bench = Bench::new().await;
    bench
        .archive(ArchiveTerms::new().payload(99))
        .await
        .unwrap();
    bench.bring("pending", Pending).await;
    bench.bring("retrying", Retrying).await;
    bench.bring("running", Leased).await;
    bench.bring("followed", LeasedNext).await;
    let items = [
        "pending", "retrying", "running", "followed", "absent", "pending",
    ];
    let items = items.map(|id| bench.key(id));
    let mut lane = Lane::new();
    let cancelled = bench.ledger.cancel(&mut lane, &items, soon());
    cancelled.await.unwrap();
    // The runs end later.
    let expected = ["followed", "pending", "retrying"].map(|id| of(id, JobEnd::Cancelled));
    assert_eq!(bench.ends().await, expected);
    bench.archived().await;
}

#[tokio::test]
async fn a_schedule_leaves_the_record_of_the_job_that_it_replaces() {
    let bench = Bench::new().await;
    bench
        .archive(ArchiveTerms::new().payload(99))
        .await
        .unwrap();
    bench.bring("running", LeasedNext).await;
    bench.schedule("pending", after(HOUR)).await;
    let items = ["pending", "running", "new", "pending", "running", "new"];
    let items: Vec<_> = items
        .into_iter()
        .enumerate()
        .map(|(at, id)| bench.carrying(id, after(HOUR), at.to_string().as_bytes()))
        .collect();
    bench.place(&items).await;
    let mut found: Vec<_> = bench
        .records()
        .await
        .into_iter()
        .map(|it| (it.key.id().to_owned(), it.payload.unwrap()))
        .collect();
    found.sort();
    // Each call replaces the one before it, also within one batch.
    let payload = |text: &'static str| Bytes::from_static(text.as_bytes());
    let expected = [
        ("new", "2"),
        ("pending", "0"),
        ("pending", "pending"),
        ("running", "1"),
        ("running", "running"),
    ];
    assert_eq!(
        found,
        expected.map(|(id, text)| (id.to_owned(), payload(text)))
    );
    bench.archived().await;
}

#[tokio::test]
async fn a_takeover_leaves_the_records_of_runs_that_end_with_it() {
    let bench = Bench::new().await;
    bench.archive(ArchiveTerms::new()).await.unwrap();
    for state in [Lapsed, LapsedNext, LapsedCancelled, LapsedCancelledNext] {
        bench.bring(&state.id(), state).await;
    }
    let ids = [Lapsed, LapsedNext, LapsedCancelled, LapsedCancelledNext].map(|it| it.id());
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    bench.reclaim(&ids).await;
    let expected = [
        of("LapsedCancelled", JobEnd::Cancelled),
        of("LapsedCancelledNext", JobEnd::Cancelled),
        of("LapsedNext", JobEnd::Replaced),
    ];
    assert_eq!(bench.ends().await, expected);
    let records = bench.records().await;
    assert!(
        records
            .iter()
            .all(|it| it.attempts == 1 && it.begun_at.is_some())
    );
    bench.archived().await;
}

#[tokio::test]
async fn series_restores_and_audits_leave_records() {
    let bench = Bench::new().await;
    bench.archive(ArchiveTerms::new()).await.unwrap();
    bench.bring("member", Pending).await;
    let jobs = vec![bench.of_series("member", None).await];
    bench.plan(jobs).await;
    bench.bring("restored", Pending).await;
    let replacing = crate::store::KeptAs::Pending { replace: true };
    bench
        .restore(&[
            bench.kept("restored", replacing, 7),
            bench.kept("new", PENDING, 7),
        ])
        .await;
    bench.bring("bare", Pending).await;
    let _: u64 = bench.ask(&["HDEL", &bench.names().shadow, "bare"]).await;
    let items = [(suspect("bare"), HEADER.to_owned())];
    bench.ledger.audit(&items, true, soon()).await.unwrap();
    let expected = [
        of("bare", JobEnd::Buried),
        of("member", JobEnd::Cancelled),
        of("restored", JobEnd::Replaced),
    ];
    assert_eq!(bench.ends().await, expected);
    bench.archived().await;
}

#[tokio::test]
async fn a_plain_key_that_changes_or_goes_leaves_the_record_of_its_job() {
    let bench = Bench::new().await;
    bench.archive(ArchiveTerms::new().payload(9)).await.unwrap();
    let set = async |id: &str, value: &str| {
        let key = bench.key(id);
        let _: String = bench.ask(&["SET", key.as_str(), value, "EX", "3600"]).await;
    };
    let look = async |id: &str, why: Why| {
        let items = [(bench.key(id), why)];
        bench.ledger.adopt(&items, |_| 9, soon()).await.unwrap()[0].answer
    };
    set("key", "one").await;
    assert_eq!(word(look("key", Why::Seen).await), "created");
    set("key", "two").await;
    assert_eq!(word(look("key", Why::Seen).await), "replaced");
    let key = bench.key("key");
    let _: u64 = bench.ask(&["DEL", key.as_str()]).await;
    assert_eq!(word(look("key", Why::Gone).await), "cancelled");
    let records = bench.records().await;
    let found: Vec<_> = records
        .iter()
        .map(|it| (it.end, it.payload.as_deref()))
        .collect();
    let expected = [
        (JobEnd::Replaced, Some(&b"one"[..])),
        (JobEnd::Cancelled, Some(&b"two"[..])),
    ];
    assert_eq!(found, expected);
    bench.archived().await;
}

#[tokio::test]
async fn a_job_that_comes_from_another_ledger_too_late_leaves_a_record() {
    let bench = Bench::new().await;
    bench.archive(ArchiveTerms::new()).await.unwrap();
    bench.bring("job", Pending).await;
    let items = vec![Item {
        what: "job".to_owned(),
        id: "job".to_owned(),
        number: String::new(),
        at: "1".to_owned(),
        record: b"{\"v\":1}\n1795000000000\nold".to_vec(),
    }];
    let batch = MoveBatch {
        number: 1,
        fence: 1,
        items,
    };
    let items: Vec<&Item> = batch.items.iter().collect();
    bench
        .ledger
        .put("elsewhere", &batch, &items, soon())
        .await
        .unwrap();
    assert_eq!(bench.ends().await, [of("job", JobEnd::Replaced)]);
    bench.archived().await;
}

#[tokio::test]
async fn a_repeated_call_leaves_no_second_record() {
    let bench = Bench::new().await;
    bench.archive(ArchiveTerms::new()).await.unwrap();
    let job = bench.run("job", HOUR).await;
    let items = [bench.settlement("job", &job.token, Verb::Done)];
    let lane = Lane::new();
    for _ in 0..2 {
        let repeat = &mut lane.rewound(1);
        let settled = bench.ledger.settle(repeat, &items, KEPT, soon()).await;
        assert_eq!(word(settled.unwrap().0[0].answer), "done");
    }
    // Neither does a settlement that comes too late.
    bench.settle("job", &job.token, Verb::Done).await;
    bench.archived().await;
}

#[tokio::test]
async fn records_go_when_they_were_read_and_no_others() {
    let bench = Bench::new().await;
    bench.archive(ArchiveTerms::new()).await.unwrap();
    let end = async |id: &str| {
        bench.schedule(id, after(HOUR)).await;
        bench.cancel(id).await;
    };
    end("first").await;
    bench.die("dead").await;
    let first = bench.ended().await;
    end("second").await;
    bench.die("dead").await;
    let both = bench.ended().await;
    assert_eq!((first.all().len(), both.all().len()), (2, 4));
    // Two archivers have read the first ones. A call may come twice, and be late.
    let forget =
        async |page: &EndedPage| bench.ledger.archived(&page.whole(), soon()).await.unwrap();
    assert_eq!([forget(&first).await, forget(&first).await], [2, 0]);
    let left = bench.ended().await;
    assert_eq!(left.all(), [both.all()[1].clone(), both.all()[3].clone()]);
    assert_eq!([forget(&both).await, forget(&first).await], [2, 0]);
    let left = bench.ended().await;
    assert_eq!((left.waiting, left.waiting_bytes), (0, 0));
    end("third").await;
    assert_eq!(forget(&both).await, 0);
    assert_eq!(bench.ended().await.all().len(), 1);
    bench.balanced().await;
}

#[tokio::test]
async fn the_oldest_records_are_dropped_beyond_the_bound_but_no_dead_letters() {
    let bench = Bench::new().await;
    let terms = ArchiveTerms::new().payload(30_000).waiting(64 * 1024);
    bench.archive(terms).await.unwrap();
    let end = async |id: &str| {
        bench
            .place(&[bench.carrying(id, after(HOUR), &[b'x'; 20_000])])
            .await;
        bench.cancel(id).await;
    };
    for id in ["a", "b", "c"] {
        end(id).await;
    }
    let full = bench.ended().await;
    assert_eq!((full.waiting, full.dropped), (3, 0));
    end("d").await;
    let ends = [
        of("b", JobEnd::Cancelled),
        of("c", JobEnd::Cancelled),
        of("d", JobEnd::Cancelled),
    ];
    assert_eq!(bench.ends().await, ends);
    let page = bench.ended().await;
    assert_eq!((page.waiting, page.dropped), (3, 1));
    assert!(page.waiting_bytes <= 64 * 1024);
    // The archiver that has read the dropped one as well takes none of the others for it.
    assert_eq!(
        bench.ledger.archived(&full.whole(), soon()).await.unwrap(),
        2
    );
    assert_eq!(bench.ends().await, [of("d", JobEnd::Cancelled)]);
    for id in 0..5 {
        let id = &format!("dead{id}");
        bench
            .place(&[bench.carrying(id, after(Duration::ZERO), &[b'x'; 20_000])])
            .await;
        let job = bench.claim(&[id], 0).await.jobs.remove(0);
        bench.settle(id, &job.token, bury()).await;
    }
    let page = bench.ended().await;
    assert_eq!((page.waiting, page.dropped), (6, 1));
    assert!(page.waiting_bytes > 100_000);
    bench.balanced().await;
}

#[tokio::test]
async fn the_newest_terms_hold_and_records_that_wait_stay() {
    let bench = Bench::new().await;
    let now = UnixMs(bench.now().await);
    let terms = ArchiveTerms::new().keep_months(1);
    bench.archive_since(Some(terms), now).await.unwrap();
    bench
        .archive_since(Some(terms.keep_months(2)), UnixMs(now.0 - 1))
        .await
        .unwrap();
    bench.bring("job", Pending).await;
    bench.cancel("job").await;
    assert_eq!(bench.records().await[0].keep_months, 1);
    bench.archive_since(None, UnixMs(now.0 + 2)).await.unwrap();
    // Late.
    bench
        .archive_since(Some(terms), UnixMs(now.0 + 1))
        .await
        .unwrap();
    bench.bring("unrecorded", Pending).await;
    bench.cancel("unrecorded").await;
    let page = bench.ended().await;
    assert_eq!((page.waiting, page.is_archived), (1, false));
    assert_eq!(
        bench.ledger.archived(&page.whole(), soon()).await.unwrap(),
        1
    );
    bench.balanced().await;
}

#[tokio::test]
async fn a_kind_whose_records_wait_is_in_use() {
    let bench = Bench::new().await;
    bench.archive(ArchiveTerms::new()).await.unwrap();
    bench.bring("job", Pending).await;
    bench.cancel("job").await;
    let razed = bench.ledger.raze(soon()).await.unwrap();
    assert!(matches!(razed, crate::store::Razed::Held(1)), "{razed:?}");
    let page = bench.ended().await;
    bench.ledger.archived(&page.whole(), soon()).await.unwrap();
    let razed = bench.ledger.raze(soon()).await.unwrap();
    assert!(matches!(razed, crate::store::Razed::Gone), "{razed:?}");
    let fields: Vec<String> = bench.ask(&["HKEYS", &bench.names().calls]).await;
    assert!(
        !fields.iter().any(|it| it == "archive" || it == "waiting"),
        "{fields:?}"
    );
    bench.balanced().await;
}

/// A list of another type stops each call that would write to it, before anything is written.
#[tokio::test]
async fn damaged_lists_stop_calls_before_they_write() {
    let bench = Bench::new().await;
    bench.archive(ArchiveTerms::new()).await.unwrap();
    bench.bring("pending", Pending).await;
    let lapsed = bench.lapse("lapsed").await;
    let start = bench.names().calls.replace(":calls", ":");
    for list in ["ended", "died"] {
        let key = format!("{start}{list}");
        let _: String = bench.ask(&["SET", &key, "not ours"]).await;
        let stored = bench.snapshot().await;
        let lane = &mut Lane::new();
        let ledger = &bench.ledger;
        let items = [bench.placement("pending", after(HOUR))];
        let change = [Change {
            key: bench.key("pending"),
            when: at(1),
            step: "postponed",
        }];
        let errors = [
            ledger.schedule(lane, &items, soon()).await.map(drop),
            ledger
                .cancel(lane, &[bench.key("pending")], soon())
                .await
                .map(drop),
            ledger
                .settle(
                    lane,
                    &[bench.settlement("lapsed", &lapsed.token, Verb::Done)],
                    KEPT,
                    soon(),
                )
                .await
                .map(drop),
            bench.try_reclaim(lane, &["lapsed"]).await.map(drop),
            bench.restore_error().await,
            ledger.ended(9, soon()).await.map(drop),
        ];
        for error in errors {
            assert_eq!(error.unwrap_err().kind(), ErrorKind::Damaged);
        }
        assert_eq!(bench.snapshot().await, stored);
        // A call that ends no job does not look at them.
        ledger.reschedule(lane, &change, soon()).await.unwrap();
        // The audit finds it, and moves it out of the way.
        let wrong = ledger.wrong_keys(soon()).await.unwrap();
        assert_eq!((wrong.len(), &wrong[0].key), (1, &key));
        ledger.store.mend(&wrong[0], soon()).await.unwrap();
        ledger.ended(9, soon()).await.unwrap();
    }
    bench.cancel("pending").await;
    assert_eq!(bench.ended().await.waiting, 1);
    bench.balanced().await;
}

impl Bench {
    async fn restore_error(&self) -> Result<()> {
        let items = [self.kept("pending", PENDING, 7)];
        let mut lane = Lane::new();
        let restored = self.ledger.restore(&mut lane, &items, soon());
        restored.await.map(drop)
    }
}

/// Without its numbers the archiver begins anew, and nothing is lost.
#[tokio::test]
async fn lost_numbers_begin_anew_and_remove_nothing() {
    let bench = Bench::new().await;
    bench.archive(ArchiveTerms::new()).await.unwrap();
    bench.bring("job", Pending).await;
    bench.cancel("job").await;
    let before = bench.ended().await;
    let _: u64 = bench.ask(&["HDEL", &bench.names().calls, "waiting"]).await;
    let lost = bench.ended().await;
    assert_eq!(lost.all(), before.all());
    assert_eq!(
        bench.ledger.archived(&lost.whole(), soon()).await.unwrap(),
        0
    );
    assert_eq!(
        bench
            .ledger
            .archived(&before.whole(), soon())
            .await
            .unwrap(),
        0
    );
    let again = bench.ended().await;
    assert_eq!(again.all(), before.all());
    assert_eq!(
        bench.ledger.archived(&again.whole(), soon()).await.unwrap(),
        1
    );
    assert_eq!(bench.ended().await.waiting, 0);
    bench.balanced().await;
}

/// A server that has lost its last writes gives their numbers to other records.
#[tokio::test]
async fn an_archiver_that_read_lost_records_removes_no_others() {
    let bench = Bench::new().await;
    bench.archive(ArchiveTerms::new()).await.unwrap();
    for id in ["a", "b"] {
        bench.bring(id, Pending).await;
        bench.cancel(id).await;
    }
    let read = bench.ended().await.whole();
    // The second record is lost.
    let list = bench.names().calls.replace(":calls", ":ended");
    let _: String = bench.ask(&["RPOP", &list]).await;
    bench.bring("c", Pending).await;
    bench.cancel("c").await;
    assert_eq!(bench.ledger.archived(&read, soon()).await.unwrap(), 0);
    let ends = [of("a", JobEnd::Cancelled), of("c", JobEnd::Cancelled)];
    assert_eq!(bench.ends().await, ends);
    bench.balanced().await;
}

/// A size that no longer fits the list drops no record.
#[tokio::test]
async fn the_size_of_a_list_that_was_deleted_is_forgotten() {
    let bench = Bench::new().await;
    bench.archive(ArchiveTerms::new()).await.unwrap();
    let end = async |id: &str| {
        bench.bring(id, Pending).await;
        bench.cancel(id).await;
    };
    end("a").await;
    let names = bench.names();
    let list = names.calls.replace(":calls", ":ended");
    let _: u64 = bench.ask(&["DEL", &list]).await;
    let damaged = "1 9999999999 1 0 0";
    let _: u64 = bench.ask(&["HSET", &names.calls, "waiting", damaged]).await;
    end("b").await;
    let page = bench.ended().await;
    assert_eq!((page.waiting, page.dropped), (1, 0));
    bench.balanced().await;
}

#[tokio::test]
async fn two_ends_of_a_name_in_one_call_are_told_apart() {
    let bench = Bench::new().await;
    bench.archive(ArchiveTerms::new()).await.unwrap();
    let items = [(); 4].map(|()| bench.placement("job", after(HOUR)));
    bench.place(&items).await;
    let mut ends = bench.records().await;
    assert_eq!(ends.len(), 3);
    ends.sort_by_key(|end| end.ended_at);
    ends.dedup_by_key(|end| (end.ended_at, end.accepted_at));
    assert_eq!(ends.len(), 3);
    bench.archived().await;
}

/// A name with a deadline and no lease stops no takeover of others.
#[tokio::test]
async fn a_damaged_lease_stops_no_takeover() {
    let bench = Bench::new().await;
    bench.archive(ArchiveTerms::new()).await.unwrap();
    bench.bring("sound", LapsedNext).await;
    bench.bring("damaged", LapsedNext).await;
    let names = bench.names();
    let _: u64 = bench.ask(&["HDEL", &names.lease, "damaged"]).await;
    let taken = bench.reclaim(&["sound", "damaged"]).await;
    assert_eq!(taken.answers.len(), 2);
    let ends = bench.ends().await;
    assert!(ends.contains(&of("sound", JobEnd::Replaced)), "{ends:?}");
    bench.balanced().await;
}

#[tokio::test]
async fn a_user_who_may_not_write_records_ends_no_job() {
    let server = crate::embedded::Embedded::start().await.unwrap();
    let bench = Bench::on(&server).await;
    bench.archive(ArchiveTerms::new()).await.unwrap();
    bench.schedule("cancel", after(HOUR)).await;
    bench.schedule("replace", after(HOUR)).await;
    let job = bench.run("settle", HOUR).await;
    let dying = bench.run("bury", HOUR).await;
    let user = ["ACL", "SETUSER", "default"];
    let _: String = bench.ask(&[&user[..], &["-rpush"]].concat()).await;
    // A counter that was raised and lowered again is there.
    let there = async || {
        let mut there = bench.snapshot().await;
        there.retain(|name, value| !name.contains(":stats ") || value != "0");
        there
    };
    let before = there().await;
    let ends = [
        bench.settlement("settle", &job.token, Verb::Done),
        bench.settlement("bury", &dying.token, bury()),
    ];
    let mut refusals = Vec::new();
    for end in &ends {
        let end = std::slice::from_ref(end);
        let settled = bench
            .ledger
            .settle(&mut Lane::new(), end, KEPT, soon())
            .await;
        refusals.push(settled.map(drop));
    }
    let keys = [bench.key("cancel")];
    let cancelled = bench.ledger.cancel(&mut Lane::new(), &keys, soon()).await;
    refusals.push(cancelled.map(drop));
    let items = [bench.placement("replace", after(HOUR))];
    let replaced = bench
        .ledger
        .schedule(&mut Lane::new(), &items, soon())
        .await;
    refusals.push(replaced.map(drop));
    for refused in refusals {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    }
    assert_eq!(there().await, before);
    let _: String = bench.ask(&[&user[..], &["+rpush"]].concat()).await;
    bench.settle("settle", &job.token, Verb::Done).await;
    bench.settle("bury", &dying.token, bury()).await;
    bench.archived().await;
}
