//! `copy.lua`, `changes.lua` and `copied.lua`, and the changes that calls note. That each call notes
//! all that it changes is shown by the random sequences of `model`.

use super::support::{Bench, HOUR, State, after, soon};
use crate::error::ErrorKind;
use crate::keeping::{CopyTerms, KindTerms};
use crate::shards::Layout;
use crate::store::ledger::changes::CopyStep;
use crate::store::{ChangesPage, Lane, Noted, TermsRule, Verb};
use crate::time::UnixMs;

impl Bench {
    /// Begins to note changes, and forgets those of the jobs that are there.
    async fn copy(&self, waiting: u64) {
        let mut cursor = None;
        loop {
            let step = self.copy_step(waiting, cursor.as_deref()).await;
            cursor = step.cursor;
            if cursor.is_none() {
                break;
            }
        }
        let page = self.changes().await;
        self.forget(1, &page).await;
    }

    async fn copy_step(&self, waiting: u64, cursor: Option<&str>) -> CopyStep {
        let terms = CopyTerms::of_rule(&format!("{waiting} 0 x")).unwrap().0;
        let step = self.ledger.copy(terms, (0, 0), 0, cursor, soon());
        step.await.unwrap()
    }

    async fn changes(&self) -> ChangesPage {
        self.ledger.changes(1000, &[], soon()).await.unwrap()
    }

    async fn forget(&self, number: u64, page: &ChangesPage) {
        let read = page.jobs.iter().map(|job| (&*job.id, job.version));
        self.ledger.copied(number, read, soon()).await.unwrap();
    }

    /// The ids of the changed jobs, and whether they are to run.
    async fn changed(&self) -> Vec<(String, bool)> {
        let page = self.changes().await;
        let mut changed: Vec<_> = page
            .jobs
            .into_iter()
            .map(|it| (it.id, it.job.is_some()))
            .collect();
        changed.sort();
        changed
    }

    async fn copy_terms(&self, terms: Option<CopyTerms>) {
        let rule = TermsRule {
            terms,
            set: UnixMs(self.now().await),
            by: "anna".into(),
        };
        let (store, kind) = (&self.ledger.store, self.ledger.kind());
        let told = store.give_terms(kind, Layout::FIRST, &rule, soon());
        assert!(told.await.unwrap().is_none());
    }
}

fn is(id: &str, is_there: bool) -> (String, bool) {
    (id.to_owned(), is_there)
}

#[tokio::test]
async fn a_kind_without_a_copy_notes_nothing() {
    let bench = Bench::new().await;
    bench.schedule("job", after(HOUR)).await;
    bench.cancel("job").await;
    let page = bench.changes().await;
    assert_eq!((page.waiting, page.noted, page.terms), (0, None, None));
    bench.balanced().await;
}

#[tokio::test]
async fn the_jobs_that_are_there_at_the_beginning_are_noted() {
    let bench = Bench::new().await;
    let states = [
        State::Pending,
        State::Leased,
        State::LeasedNext,
        State::CancelledRun,
        State::Dead,
    ];
    for state in states {
        bench.bring(&state.id(), state).await;
    }
    let first = bench.copy_step(100, None).await;
    assert_eq!((first.noted, first.cursor.as_deref()), (1, Some("lease 0")));
    let second = bench.copy_step(100, Some("lease 0")).await;
    assert_eq!((second.noted, second.cursor), (3, None));
    assert!(second.version > first.version);
    let expected = [
        is(&State::CancelledRun.id(), false),
        is(&State::Leased.id(), true),
        is(&State::LeasedNext.id(), true),
        is(&State::Pending.id(), true),
    ];
    assert_eq!(bench.changed().await, expected);
    bench.balanced().await;
}

#[tokio::test]
async fn a_running_job_is_copied_as_it_is_after_its_lease() {
    let bench = Bench::new().await;
    bench.copy(100).await;
    let due = bench.now().await + 3_600_000;
    bench.bring("next", State::LeasedNext).await;
    bench.bring("runs", State::Leased).await;
    let page = bench.changes().await;
    let job = |id: &str| page.jobs.iter().find(|it| it.id == id).unwrap().job.clone();
    let (next_due, _) = job("next").unwrap();
    assert!(
        next_due.0 >= due,
        "the successor takes the place of the run"
    );
    let (run_due, record) = job("runs").unwrap();
    assert!(run_due.0 < due && !record.is_empty());
    bench.balanced().await;
}

#[tokio::test]
async fn a_claim_notes_nothing_and_the_end_of_the_run_does() {
    let bench = Bench::new().await;
    bench.copy(100).await;
    let job = bench.run("job", HOUR).await;
    let page = bench.changes().await;
    bench.forget(2, &page).await;
    assert_eq!(bench.changed().await, []);
    bench.settle("job", &job.token, Verb::Done).await;
    assert_eq!(bench.changed().await, [is("job", false)]);
    bench.balanced().await;
}

#[tokio::test]
async fn a_job_that_changes_again_meanwhile_is_not_forgotten() {
    let bench = Bench::new().await;
    bench.copy(100).await;
    bench.schedule("a", after(HOUR)).await;
    bench.schedule("b", after(HOUR)).await;
    let page = bench.changes().await;
    bench.cancel("a").await;
    bench.forget(2, &page).await;
    bench.forget(2, &page).await;
    assert_eq!(bench.changed().await, [is("a", false)]);
    let noted = bench.changes().await.noted.unwrap();
    assert!(noted.is_on && noted.number == 2, "{noted:?}");
    // A late acknowledgement lowers no number.
    bench.forget(1, &page).await;
    assert_eq!(bench.changes().await.noted.unwrap().number, 2);
    bench.balanced().await;
}

#[tokio::test]
async fn versions_grow_even_if_the_clock_steps_back() {
    let bench = Bench::new().await;
    bench.copy(100).await;
    let ahead = bench.now_us().await + 3_600_000_000;
    let noted = format!("100 {ahead} 1");
    let _: u64 = bench
        .ask(&["HSET", &bench.names().calls, "changes", &noted])
        .await;
    bench.schedule("job", after(HOUR)).await;
    let page = bench.changes().await;
    assert_eq!(page.jobs[0].version, ahead + 1);
    bench.balanced().await;
}

#[tokio::test]
async fn too_many_changes_end_the_noting_until_a_copy_begins_anew() {
    let bench = Bench::new().await;
    bench.copy(3).await;
    for id in ["a", "b", "c"] {
        bench.schedule(id, after(HOUR)).await;
    }
    assert_eq!(bench.changes().await.waiting, 3);
    bench.schedule("d", after(HOUR)).await;
    let page = bench.changes().await;
    let version = match page.noted {
        Some(Noted {
            is_on: false,
            version,
            number: 1,
        }) => version,
        other => panic!("{other:?}"),
    };
    assert_eq!(page.waiting, 0);
    bench.cancel("a").await;
    assert_eq!(bench.changes().await.waiting, 0);
    bench.copy_step(100, None).await;
    let page = bench.changes().await;
    let noted = page.noted.unwrap();
    assert!(
        noted.is_on && noted.version > version && noted.number == 1,
        "{noted:?}"
    );
    assert_eq!(
        bench.changed().await,
        [is("b", true), is("c", true), is("d", true)]
    );
    bench.balanced().await;
}

/// What was noted before is lost, and a later step of the same copy would not note it again.
#[tokio::test]
async fn too_many_changes_between_two_steps_of_a_copy_end_it() {
    let bench = Bench::new().await;
    bench.schedule("a", after(HOUR)).await;
    let cursor = bench.copy_step(4, None).await.cursor;
    for id in ["b", "c", "d", "e"] {
        bench.schedule(id, after(HOUR)).await;
    }
    let step = bench.copy_step(4, cursor.as_deref()).await;
    assert_eq!((step.cursor, step.noted), (cursor, 0));
    let page = bench.changes().await;
    assert_eq!((page.noted.unwrap().is_on, page.waiting), (false, 0));
    bench.copy(100).await;
    assert!(bench.changes().await.noted.unwrap().is_on);
    bench.balanced().await;
}

#[tokio::test]
async fn new_terms_say_how_many_changes_may_wait_from_now_on() {
    let bench = Bench::new().await;
    bench.copy_terms(Some(CopyTerms::new())).await;
    bench.copy(100).await;
    let (noted, fewest) = (bench.changes().await.noted, CopyTerms::new().waiting(1_000));
    bench.copy_terms(Some(fewest)).await;
    assert_eq!(bench.changes().await.noted, noted);
    let field: String = bench.ask(&["HGET", &bench.names().calls, "changes"]).await;
    assert!(field.starts_with("1000 "), "{field}");
    bench.balanced().await;
}

#[tokio::test]
async fn a_change_that_cannot_be_noted_ends_the_noting_and_not_the_call() {
    let server = crate::embedded::Embedded::start().await.unwrap();
    let bench = Bench::on(&server).await;
    bench.copy(100).await;
    bench.schedule("job", after(HOUR)).await;
    let user = ["ACL", "SETUSER", "default"];
    let _: String = bench.ask(&[&user[..], &["-zadd"]].concat()).await;
    bench.cancel("job").await;
    let _: String = bench.ask(&[&user[..], &["+zadd"]].concat()).await;
    let page = bench.changes().await;
    assert!(!page.noted.unwrap().is_on);
    assert_eq!(page.waiting, 0);
    bench.balanced().await;
}

#[tokio::test]
async fn terms_that_are_removed_end_the_noting_and_keep_the_version() {
    let bench = Bench::new().await;
    bench.copy_terms(Some(CopyTerms::new())).await;
    bench.copy(100).await;
    bench.schedule("job", after(HOUR)).await;
    let before = bench.changes().await;
    assert_eq!(before.terms, Some(CopyTerms::new()));
    bench.copy_terms(None).await;
    let page = bench.changes().await;
    let noted = page.noted.unwrap();
    assert_eq!((page.terms, page.waiting, noted.is_on), (None, 0, false));
    assert_eq!(noted.version, before.noted.unwrap().version);
    bench.balanced().await;
}

#[tokio::test]
async fn a_copy_raises_the_fencing_values_on_request() {
    let bench = Bench::new().await;
    let fence = bench.now_us().await + 3_600_000_000;
    let begun = bench
        .ledger
        .copy(CopyTerms::new(), (7, 3), fence, None, soon());
    begun.await.unwrap();
    let job = bench.run("job", HOUR).await;
    assert_eq!(job.fence, fence + 1);
    let noted = bench.changes().await.noted.unwrap();
    assert_eq!(noted.number, 3);
    bench.balanced().await;
}

#[tokio::test]
async fn a_named_job_tells_whether_its_change_is_copied() {
    let bench = Bench::new().await;
    bench.copy(100).await;
    bench.schedule("job", after(HOUR)).await;
    let ask = async || {
        bench
            .ledger
            .changes(0, &["job", "none"], soon())
            .await
            .unwrap()
            .jobs
    };
    let jobs = ask().await;
    assert!(jobs[0].version > 0 && jobs[0].job.is_some(), "{jobs:?}");
    assert!(jobs[1].version == 0 && jobs[1].job.is_none(), "{jobs:?}");
    let page = bench.changes().await;
    bench.forget(2, &page).await;
    assert_eq!(ask().await[0].version, 0);
    bench.balanced().await;
}

/// The changes that were noted are lost with the key, so that the copy begins anew.
#[tokio::test]
async fn a_key_of_changes_with_another_type_is_moved_aside_and_the_copy_begins_anew() {
    let bench = Bench::new().await;
    bench.schedule("job", after(HOUR)).await;
    bench.copy_terms(Some(CopyTerms::new())).await;
    bench.copy(1_000).await;
    bench.cancel("job").await;
    let key = bench.names().of_waiting()[2].clone();
    let before = bench.changes().await.noted.unwrap();
    let _: u64 = bench.ask(&["DEL", &key]).await;
    bench.ask::<()>(&["SET", &key, "theirs"]).await;
    let (store, mut lane) = (&bench.ledger.store, Lane::new());
    let items = [bench.placement("other", after(HOUR))];
    let refused = bench.ledger.schedule(&mut lane, &items, soon()).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Damaged);
    for wrong in bench.ledger.wrong_keys(soon()).await.unwrap() {
        store.mend(&wrong, soon()).await.unwrap();
    }
    assert!(bench.ledger.wrong_keys(soon()).await.unwrap().is_empty());
    let page = bench.changes().await;
    let noted = Noted {
        is_on: false,
        ..before
    };
    assert_eq!((page.waiting, page.noted), (0, Some(noted)));
    bench.schedule("other", after(HOUR)).await;
    bench.copy(1_000).await;
    assert_eq!(bench.changes().await.noted.map(|it| it.is_on), Some(true));
    bench.balanced().await;
}
