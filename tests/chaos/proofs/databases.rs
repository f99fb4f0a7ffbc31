//! The archive, the rows of the outbox, and the copy.

use super::{Proof, Run, Trial, run};
use crate::database::{Accounts, Archived, Copied, KINDS, Op, Order, Pending, PendingJob, judge};
use crate::journal::{Version, What};

pub(super) const ALL: &[Proof] = &[
    (
        "orders whose jobs ended, and an archive that has them",
        fine,
    ),
    ("an ended job is not in the archive", not_archived),
    ("an ended job is twice in the archive", archived_twice),
    ("the archive has a run that no handler began", nobody_ran),
    ("a committed row was not passed on", not_passed_on),
    ("a committed row was passed on twice", passed_on_twice),
    ("rows of a key were passed on out of order", out_of_order),
    ("a cancel was not passed on", not_cancelled),
    ("a reschedule was not passed on", not_moved),
    ("the job of a transaction that was rolled back", rolled_back),
    ("a row that is a call was refused", refused),
    ("the database was hardly used", hardly),
    ("a copy that has what the ledgers have", copied),
    ("a pending job is not in the copy", not_copied),
    ("the copy has a job that has ended", copied_after_its_end),
    ("the copy has a due time from before", copied_as_it_was),
    (
        "the copy has a payload from before",
        copied_with_another_payload,
    ),
    ("the copy was stopped without a loss", stopped),
    ("the copy was hardly used", hardly_copied),
    ("Redis has lost jobs, and rows are passed on again", lost),
    (
        "a job of a transaction is lost with Redis",
        not_passed_on_again,
    ),
    (
        "a cancel of a transaction is lost with Redis",
        a_lost_cancel,
    ),
];

const KEY: &str = "chaos:orders:remind:0-1";
const LOADED: &str = "chaos:load:notice:1";

/// Accounts with many orders, all of which are right.
struct Case {
    trial: Trial,
    accounts: Accounts,
}

impl Case {
    fn new() -> Self {
        let case = Case {
            trial: Trial::default(),
            accounts: Accounts::default(),
        };
        (100..150).fold(case, |case, version| {
            let key = format!("{}:0-{version}", KINDS[1]);
            case.order(&key, Op::Soon(version))
                .ends(&key, version, "done")
        })
    }

    /// A row that was committed.
    fn order(mut self, key: &str, op: Op) -> Self {
        let id = self.accounts.orders.len() as i64;
        self.accounts.accepted += u64::from(op.version().is_some());
        self.accounts.orders.push(Order {
            id,
            key: key.to_owned(),
            op,
        });
        self
    }

    /// The end of a job of the clerk, which all agree on.
    fn ends(mut self, key: &str, version: Version, how: &str) -> Self {
        let fence = version + 1000;
        if how == "done" {
            let what = What::Reminded {
                key: key.to_owned(),
                version,
                fence,
            };
            self.trial = self.trial.note("worker-0.1", 1.0, what);
        }
        self.counts(key, how).archives(Archived {
            key: key.to_owned(),
            how: how.to_owned(),
            fence: (how == "done").then_some(fence),
            accepted: version as i64,
            version: Some(version),
        })
    }

    /// An end that the ledger has counted.
    fn counts(mut self, key: &str, how: &str) -> Self {
        let (kind, _) = key.rsplit_once(':').expect("it is a key");
        let all = keyfall::JobEnd::ALL.map(keyfall::JobEnd::as_str);
        let how = all.into_iter().find(|it| *it == how).expect("it is an end");
        *self
            .accounts
            .ended
            .entry((kind.to_owned(), how))
            .or_default() += 1;
        self
    }

    fn archives(mut self, row: Archived) -> Self {
        self.accounts.archive.push(row);
        self
    }

    /// A job of the load that a worker ran to its end.
    fn runs(mut self, it: Run) -> Self {
        self.trial = self.trial.run_of(LOADED, it);
        self.counts(LOADED, "done")
    }

    fn judged(self) -> Vec<String> {
        let journals = self.trial.journals.into_iter();
        let journals: Vec<_> = journals
            .map(|(process, lines)| (process.to_owned(), lines))
            .collect();
        judge(&journals, &self.accounts)
    }

    #[track_caller]
    fn passes(self) {
        assert_eq!(self.judged(), Vec::<String>::new());
    }

    #[track_caller]
    fn tells(self, text: &str) {
        let wrong = self.judged();
        assert!(
            wrong.iter().any(|it| it.contains(text)),
            "{text:?} is not told: {wrong:?}"
        );
    }
}

fn of_load(fence: u64) -> Archived {
    Archived {
        key: LOADED.to_owned(),
        how: "done".to_owned(),
        fence: Some(fence),
        accepted: 1,
        version: None,
    }
}

fn fine() {
    let case = Case::new().runs(run(1, 7, 1.0)).archives(of_load(7));
    let case = [Op::Far(1), Op::Soon(2), Op::Soon(3)]
        .into_iter()
        .fold(case, |case, op| case.order(KEY, op));
    let case = case.ends(KEY, 1, "replaced").ends(KEY, 2, "done");
    let mut case = case.ends(KEY, 3, "done").order("no key", Op::Bad);
    case.accounts.refused = vec![case.accounts.orders.len() as i64 - 1];
    case.accounts.withdrawn.insert(99);
    case.passes();
    let far = [Op::Far(1), Op::Cancel, Op::Far(2)];
    let mut case = far
        .into_iter()
        .fold(Case::new(), |case, op| case.order(KEY, op));
    case.accounts.pending.insert(2);
    case.ends(KEY, 1, "cancelled").passes();
}

fn not_archived() {
    let case = || Case::new().runs(run(1, 7, 1.0));
    case().tells("1 jobs of chaos:load:notice are done, and 0 in the archive");
    case().tells("is 0 times in the archive");
    // Redis took another run of the job.
    let other = case().archives(of_load(8));
    other.tells("is 0 times in the archive");
}

fn archived_twice() {
    let case = Case::new().runs(run(1, 7, 1.0));
    let case = case.archives(of_load(7)).archives(of_load(7));
    case.tells("is 2 times in the archive");
}

fn nobody_ran() {
    let case = Case::new().counts(LOADED, "done").archives(of_load(7));
    case.tells("no handler ran");
}

fn not_passed_on() {
    let case = || Case::new().order(KEY, Op::Soon(1));
    case().tells("version 1 of chaos:orders:remind:0-1 is []");
    let mut less = case();
    less.accounts.accepted -= 1;
    less.tells("51 jobs were committed, and 50 accepted");
}

fn passed_on_twice() {
    // It replaced itself, and then ran.
    let case = Case::new().order(KEY, Op::Soon(1)).ends(KEY, 1, "replaced");
    case.ends(KEY, 1, "done")
        .tells(r#"is ["replaced", "done"]"#);
}

fn out_of_order() {
    let two = || Case::new().order(KEY, Op::Far(1)).order(KEY, Op::Soon(2));
    let mut case = two();
    case.accounts.pending.insert(1);
    let case = case.ends(KEY, 2, "replaced");
    case.tells(r#"version 2 of chaos:orders:remind:0-1 is ["replaced"]"#);
    let mut case = two().ends(KEY, 1, "replaced").ends(KEY, 2, "done");
    let last = case.accounts.archive.last_mut().expect("it is there");
    last.accepted = 0;
    case.tells("came before an earlier row of its key");
}

fn not_cancelled() {
    let mut case = Case::new().order(KEY, Op::Far(1)).order(KEY, Op::Cancel);
    case.accounts.pending.insert(1);
    case.tells(r#"is ["pending"], and should be one of ["cancelled"]"#);
}

fn not_moved() {
    let case = Case::new().order(KEY, Op::Far(1));
    let mut case = case.order(KEY, Op::Reschedule);
    case.accounts.pending.insert(1);
    case.tells(r#"is ["pending"], and should be one of ["done"]"#);
}

fn rolled_back() {
    let case = || {
        let mut case = Case::new();
        case.accounts.withdrawn.insert(1);
        case
    };
    case()
        .ends(KEY, 1, "done")
        .tells("version 1, which was rolled back");
    let mut pending = case();
    pending.accounts.pending.insert(1);
    pending.tells("version 1, which was rolled back");
    case()
        .order(KEY, Op::Soon(1))
        .tells("was rolled back, and is there");
    Case::new()
        .ends(KEY, 1, "done")
        .tells("version 1, which was not committed");
}

fn refused() {
    let mut case = Case::new();
    case.accounts.refused = vec![3];
    case.tells("[3] were refused");
    Case::new()
        .order("no key", Op::Bad)
        .tells("and [] were refused");
}

fn hardly() {
    let judged = judge(&[], &Accounts::default());
    assert!(judged[0].contains("only 0 orders"), "{judged:?}");
}

fn pending(due: u64, payload: &str) -> PendingJob {
    PendingJob {
        due,
        payload: payload.to_owned(),
    }
}

/// A copy of many jobs, and what the ledgers have of them.
fn with_copy(change: impl FnOnce(&mut Copied)) -> Case {
    let pending: Pending = (0..50)
        .map(|at| (format!("{KEY}{at}"), pending(1000 + at, "new")))
        .collect();
    let mut copied = Copied {
        copy: pending.clone(),
        ledgers: pending,
        ..Copied::default()
    };
    change(&mut copied);
    let mut case = Case::new();
    case.accounts.copied = Some(copied);
    case
}

fn copied() {
    with_copy(|_| {}).passes();
    with_copy(|it| {
        it.copy.clear();
        it.ledgers.clear();
        it.ended = 50;
    })
    .passes();
}

fn not_copied() {
    let key = format!("{KEY}7");
    let case = with_copy(|it| {
        it.copy.remove(&key);
    });
    case.tells(&format!("the copy lacks {key}"));
}

fn copied_after_its_end() {
    let key = format!("{KEY}7");
    let case = with_copy(|it| {
        it.ledgers.remove(&key);
    });
    case.tells(&format!(
        "{key} is due at 1007 in the copy, and in Redis at None"
    ));
}

fn copied_as_it_was() {
    let key = format!("{KEY}7");
    let case = with_copy(|it| {
        it.ledgers.insert(key.clone(), pending(9, "new"));
    });
    case.tells(&format!(
        "{key} is due at 1007 in the copy, and in Redis at Some(9)"
    ));
}

fn copied_with_another_payload() {
    let key = format!("{KEY}7");
    let case = with_copy(|it| {
        it.copy.insert(key.clone(), pending(1007, "old"));
    });
    case.tells(&format!("{key} is {:?} in the copy", pending(1007, "old")));
}

fn stopped() {
    let case = with_copy(|it| it.stopped = Some("it was emptied".into()));
    case.tells("the copy is stopped, and Redis has lost nothing since: it was emptied");
}

fn hardly_copied() {
    let case = with_copy(|it| {
        it.copy.clear();
        it.ledgers.clear();
    });
    case.tells("the copy has had 0 jobs, and not 30");
}

/// Redis has lost jobs, and its snapshot can have had a job of the first order.
fn with_a_loss(orders: &[Op]) -> Case {
    let mut case = orders
        .iter()
        .fold(Case::new(), |case, op| case.order(KEY, *op));
    case.accounts.lost = Some(0);
    case
}

fn lost() {
    let twice = with_a_loss(&[Op::Far(1), Op::Soon(2)]).ends(KEY, 2, "done");
    twice.ends(KEY, 2, "done").passes();
    let mut far = with_a_loss(&[Op::Far(1), Op::Cancel, Op::Far(2)]);
    far.accounts.pending.insert(2);
    far.passes();
}

fn not_passed_on_again() {
    let soon = with_a_loss(&[Op::Far(1), Op::Soon(2)]);
    soon.tells("version 2 of chaos:orders:remind:0-1 never ran");
    let far = with_a_loss(&[Op::Far(1)]);
    far.tells("version 1 of chaos:orders:remind:0-1 is not pending");
    let mut old = with_a_loss(&[Op::Far(1)]);
    old.accounts.lost = Some(50);
    old.passes();
}

fn a_lost_cancel() {
    let cancelled = || with_a_loss(&[Op::Far(1), Op::Cancel]);
    let mut pending = cancelled();
    pending.accounts.pending.insert(1);
    pending.tells("version 1 of chaos:orders:remind:0-1 is pending");
    let ran = cancelled().ends(KEY, 1, "done");
    ran.tells("version 1 of chaos:orders:remind:0-1 ran");
}
