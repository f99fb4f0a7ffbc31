//! The fate of each version of a job.

use super::{KEY, Proof, Run, Trial, at, fence_at, run};
use crate::journal::{Answer, Ask, CLOCK, STOPPED, What};
use crate::kept::KeptAs;
use crate::leases::Claim;

pub(super) const ALL: &[Proof] = &[
    ("a job that is done five times", five_runs),
    (
        "a job that is done twice, and why",
        two_runs_that_are_explained,
    ),
    (
        "a job that is done twice, and a lapse that does not explain it",
        a_lapse_of_before,
    ),
    (
        "a job that is done again where clocks were set",
        lapses_at_unknown_times,
    ),
    ("a job that is gone when another one is created", gone),
    (
        "a job that is gone, and a cancel of the next one",
        gone_and_then_cancelled,
    ),
    (
        "a job that is gone, by the answer to a cancel",
        gone_by_an_answer,
    ),
    (
        "a job that another one replaces, follows or may replace",
        ended_by_another,
    ),
    (
        "a job whose payload is changed while it runs, and that is gone",
        changed_in_a_run,
    ),
    (
        "a retry after a cancel of a run that had ended",
        a_retry_after_a_cancel,
    ),
    (
        "a retry after a cancel where clocks were set",
        a_retry_where_clocks_were_set,
    ),
    (
        "a run after a cancel that was claimed before",
        claimed_before_a_cancel,
    ),
    (
        "a run after a cancel that was claimed later",
        claimed_after_a_cancel,
    ),
    ("a job that is buried for no reason", buried),
    ("runs that begin when their lease is over", stale_runs),
];

const TWICE: &str = "was run to its end after";

fn five_runs() {
    let scheduled = Trial::default().schedule(1.0, 7, Answer::Done);
    let runs = (1..=5).map(|number: u32| run(7, number.into(), f64::from(number) + 1.0));
    let row = runs.fold(scheduled, Trial::run).check();
    row.tells(TWICE);
    assert_eq!(row.violations.len(), 4);
    // Nor does it without an answer of Redis about them.
    let scheduled = Trial::default().schedule(1.0, 7, Answer::Done);
    let runs = (1..=5).map(|number: u32| Run {
        process: "consumer-0.1",
        taken: None,
        ..run(7, number.into(), f64::from(number) + 1.0)
    });
    assert_eq!(runs.fold(scheduled, Trial::run).check().violations.len(), 4);
}

/// Two runs; the first ended in this way.
fn two_runs(first: Run) -> Trial {
    let trial = Trial::default().schedule(1.0, 7, Answer::Done).run(first);
    trial.run(run(7, 20, 5.0))
}

fn first(taken: Option<bool>) -> Run {
    Run {
        process: "worker-1.1",
        taken,
        ..run(7, 10, 2.0)
    }
}

fn requeue(trial: Trial, seconds: f64) -> Trial {
    trial.call(seconds, Ask::Requeue { version: 7 }, Answer::Done)
}

fn two_runs_that_are_explained() {
    two_runs(first(Some(true))).check().tells(TWICE);
    two_runs(first(None)).check().tells(TWICE);
    two_runs(first(Some(false))).check().passes();
    requeue(two_runs(first(Some(true))), 4.0).check().passes();
    requeue(two_runs(first(Some(true))), 6.0)
        .check()
        .tells(TWICE);
    let unheard = |fence| What::Unheard {
        key: KEY.into(),
        fence,
    };
    let doubted = two_runs(first(None)).note("worker-1.1", 3.0, unheard(10));
    doubted.check().passes();
    let gone = What::Gone {
        process: "worker-1.1".into(),
    };
    let killed = two_runs(first(None)).note("harness", 3.0, gone.clone());
    killed.check().passes();
    let killed_later = two_runs(first(None)).note("harness", 6.0, gone);
    killed_later.check().tells(TWICE);
    let stopped = two_runs(first(None)).fault(2.05, STOPPED, Some("worker-1.1"));
    stopped.check().passes();
    let another = two_runs(first(None)).fault(2.05, STOPPED, Some("worker-2.1"));
    another.check().tells(TWICE);
    let back = |kept, to: f64| {
        let what = What::RolledBack {
            kept: Some(at(kept)),
            since: at(1.0),
            of: None,
            undone: None,
        };
        two_runs(first(Some(true))).note("harness", to, what)
    };
    back(1.9, 3.0).check().passes();
    back(2.5, 3.0).check().tells(TWICE);
    back(5.5, 6.0).check().tells(TWICE);
}

/// Consumers without a fencing value, in a trial in which a clock was set: each lapse explains one
/// further run, whenever it was, and no more.
fn lapses_at_unknown_times() {
    let runs = |count: u32| {
        let trial = Trial::default().schedule(1.0, 7, Answer::Done);
        let runs = (1..=count).map(|number: u32| Run {
            process: "consumer-0.1",
            taken: None,
            ..run(7, number.into(), f64::from(number) + 1.0)
        });
        runs.fold(trial, Trial::run)
    };
    let set = |trial: Trial| trial.fault(1.5, CLOCK, None);
    set(lapsed(runs(2), FENCE)).check().passes();
    set(lapsed(lapsed(runs(3), FENCE), FENCE + 1))
        .check()
        .passes();
    lapsed(runs(2), FENCE).check().tells(TWICE);
    set(runs(2)).check().tells(TWICE);
    let row = set(lapsed(runs(3), FENCE)).check();
    row.tells(TWICE);
    assert_eq!(row.violations.len(), 1);
    // If the claims of both are known, an earlier lapse is no excuse.
    let trial = Trial::default().schedule(1.0, 7, Answer::Done);
    let known = |fence, began| Run {
        taken: None,
        ..run(7, fence, began)
    };
    let trial = trial
        .run(known(FENCE + 10, 2.0))
        .run(known(FENCE + 20, 3.0));
    set(lapsed(trial, FENCE)).check().tells(TWICE);
}

/// Gives the run with this fencing value a lease that replaced a lapsed one.
fn lapsed(mut trial: Trial, fence: u64) -> Trial {
    let claims = trial.leases.claims.entry(KEY.into()).or_default();
    claims.push(Claim {
        fence,
        at: 1,
        lapsed: Some(1),
        error: None,
    });
    trial
}

const FENCE: u64 = 1_700_000_000_000_000;

fn a_lapse_of_before() {
    let trial = || {
        let trial = Trial::default().schedule(1.0, 7, Answer::Done);
        let first = Run {
            fence: FENCE + 10,
            ..first(None)
        };
        trial.run(first).run(run(7, FENCE + 20, 5.0))
    };
    let failed = |error: &str| {
        let mut trial = trial();
        let error = Some(error.to_owned());
        let claim = Claim {
            fence: FENCE + 10,
            at: 1,
            lapsed: None,
            error,
        };
        trial.leases.claims.insert(KEY.into(), vec![claim]);
        trial.check()
    };
    failed("127.0.0.1:80 did not answer within 1s").passes();
    failed("127.0.0.1:80 answered 204 No Content").tells(TWICE);
    lapsed(trial(), FENCE + 5).check().tells(TWICE);
    lapsed(trial(), FENCE + 10).check().tells(TWICE);
    lapsed(trial(), FENCE + 15).check().passes();
    lapsed(trial(), FENCE + 20).check().passes();
}

fn gone() {
    let trial = Trial::default().schedule(1.0, 7, Answer::Done);
    let trial = trial.schedule(2.0, 8, Answer::Done).run(run(8, 1, 3.0));
    let row = trial.check();
    row.tells("version 7 is lost");
    assert_eq!(row.lost, 1);
}

fn gone_and_then_cancelled() {
    let trial = Trial::default().schedule(1.0, 7, Answer::Done);
    let trial = trial.schedule(2.0, 8, Answer::Done);
    let row = trial.call(3.0, Ask::Cancel, Answer::Cancelled).check();
    row.tells("version 7 is lost");
    row.does_not_tell("version 8 is lost");
}

fn gone_by_an_answer() {
    for ask in [Ask::Cancel, Ask::Move, Ask::Update { version: 8 }] {
        let trial = Trial::default().schedule(1.0, 7, Answer::Done);
        let trial = trial.call(2.0, ask, Answer::Absent);
        let trial = trial.call(3.0, Ask::Cancel, Answer::Unknown("no answer".into()));
        trial.check().tells("version 7 is lost");
    }
    // The job was there until it had run.
    let trial = Trial::default().schedule(1.0, 7, Answer::Done);
    let trial = trial.run(run(7, 1, 1.5));
    trial
        .call(2.0, Ask::Cancel, Answer::Absent)
        .check()
        .passes();
}

fn ended_by_another() {
    let unknown = || Answer::Unknown("no answer".into());
    for answer in [Answer::Replaced, Answer::Follows, Answer::Placed, unknown()] {
        let trial = Trial::default().schedule(1.0, 7, Answer::Done);
        let trial = trial.schedule(2.0, 8, answer).run(run(8, 1, 3.0));
        trial.check().passes();
    }
}

/// A job that gets another payload while its first run is under way, which breaks off.
fn changed_in_a_run() {
    let update = |version| Ask::Update { version };
    let changed = || {
        let trial = Trial::default().schedule(1.0, 7, Answer::Done);
        let trial = trial.run(Run {
            last: false,
            taken: None,
            ..run(7, 10, 1.5)
        });
        trial.call(1.55, update(8), Answer::Running)
    };
    changed().check().tells("version 7 is lost");
    changed().run(run(7, 20, 3.0)).check().passes();
    changed().run(run(8, 20, 3.0)).check().passes();
    changed().keep(8, KeptAs::Pending).check().passes();
    changed()
        .call(3.0, Ask::Cancel, Answer::Cancelled)
        .check()
        .passes();
    // It was changed in its second run, too.
    let twice = || {
        let trial = changed().run(Run {
            last: false,
            taken: None,
            ..run(8, 20, 3.0)
        });
        trial.call(3.05, update(9), Answer::Running)
    };
    twice().check().tells("version 7 is lost");
    twice().run(run(9, 30, 5.0)).check().passes();
    // The run ended well; nothing shows the new payload.
    let trial = Trial::default().schedule(1.0, 7, Answer::Done);
    let trial = trial.run(run(7, 10, 1.5));
    trial
        .call(1.55, update(8), Answer::Running)
        .check()
        .passes();
}

/// A run that asked for another run, a cancel that is answered `running` a second later, and the
/// second run.
fn cancelled_between(fence: impl Fn(f64) -> u64) -> Trial {
    let trial = Trial::default().schedule(1.0, 7, Answer::Done);
    let trial = trial.run(Run {
        last: false,
        ..run(7, fence(1.9), 2.0)
    });
    let trial = trial.call(3.0, Ask::Cancel, Answer::Running);
    trial.run(Run {
        attempt: 2,
        ..run(7, fence(3.5), 4.0)
    })
}

fn a_retry_after_a_cancel() {
    let row = cancelled_between(at).check();
    row.tells("it started after");
    assert_eq!(row.after_cancel, 1);
}

fn a_retry_where_clocks_were_set() {
    let began = |second| {
        let trial = Trial::default().schedule(1.0, 7, Answer::Done);
        let trial = trial.fault(1.5, CLOCK, None).run(Run {
            last: false,
            ..run(7, fence_at(1.9), 2.0)
        });
        let trial = trial.call(3.0, Ask::Cancel, Answer::Running);
        trial.run(Run {
            attempt: 2,
            ..run(7, fence_at(2.9), second)
        })
    };
    began(6.0).check().tells("it started after");
    began(3.5).check().passes();
    // The run that the cancel was told of had not begun yet.
    let trial = Trial::default().schedule(1.0, 7, Answer::Done);
    let trial = trial.fault(1.5, CLOCK, None);
    let trial = trial.call(2.0, Ask::Cancel, Answer::Running);
    trial.run(run(7, fence_at(1.9), 6.0)).check().passes();
}

fn claimed_before_a_cancel() {
    let fence = |seconds| match seconds > 3.0 {
        true => fence_at(2.9),
        false => fence_at(seconds),
    };
    cancelled_between(fence).check().passes();
    // The first run, too.
    let trial = Trial::default().schedule(1.0, 7, Answer::Done);
    let trial = trial.call(2.0, Ask::Cancel, Answer::Running);
    trial.run(run(7, 1, 2.1)).check().passes();
}

fn claimed_after_a_cancel() {
    cancelled_between(fence_at)
        .check()
        .tells("it started after");
    let trial = Trial::default().schedule(1.0, 7, Answer::Done);
    let trial = trial.call(2.0, Ask::Cancel, Answer::Running);
    let row = trial.run(run(7, fence_at(2.5), 3.0)).check();
    row.tells("it started after");
}

fn buried() {
    let dead = || KeptAs::Dead("its lease lapsed in attempt 2".into());
    let told = "version 7 is a dead letter for no reason";
    let job = || Trial::default().schedule(1.0, 7, Answer::Done);
    job().keep(7, dead()).check().tells(told);
    job().keep(7, KeptAs::Pending).check().passes();
    let deadly = Ask::Schedule {
        version: 7,
        deadly: true,
        after: 0,
    };
    let trial = || Trial::default().call(1.0, deadly.clone(), Answer::Done);
    trial().keep(7, dead()).check().passes();
    // Its payload was changed, and it can only end as a dead letter.
    let update = Ask::Update { version: 8 };
    let updated = trial().call(1.5, update, Answer::Done);
    updated.keep(8, dead()).check().passes();
}

/// Two runs: the first begins after the second has begun; and scripts were flushed, twice.
fn late_run() -> Trial {
    let trial = Trial::default().schedule(1.0, 7, Answer::Done);
    let trial = trial.fault(1.0, "SCRIPT FLUSH", None);
    let trial = trial.fault(1.1, "CLIENT KILL", None);
    let trial = trial.weather(1.0, 2.0).run(run(7, 20, 3.0));
    trial.run(Run {
        taken: Some(false),
        last: false,
        process: "worker-1.1",
        ..run(7, 10, 3.2)
    })
}

fn stale_runs() {
    let told = "1 runs began when their lease was over, and 0 processes were stopped";
    late_run().judge("scripts are flushed").tells(told);
    // Setting a clock excuses the loss of a fresh lease, not of one that was held for long.
    for at in [1.1, 3.1] {
        let set = late_run().fault(at, CLOCK, None);
        set.judge("scripts are flushed").tells(told);
    }
    let set = late_run().fault(2.5, CLOCK, None);
    set.judge("scripts are flushed")
        .does_not_tell("began when their lease was over");
    let stopped = late_run().fault(1.5, STOPPED, Some("worker-1.1"));
    stopped
        .judge("stop a worker")
        .does_not_tell("began when their lease was over");
}
