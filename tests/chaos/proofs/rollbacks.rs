//! Data that Redis may forget.

use super::{Proof, Trial, at, run};
use crate::journal::{Answer, Ask, What};
use crate::kept::KeptAs;

pub(super) const ALL: &[Proof] = &[
    (
        "a dead letter that vanishes, and a rollback before",
        a_letter_that_vanishes,
    ),
    ("a version that is there twice, and a rollback", twice),
    ("Redis comes back without its mark", no_mark),
    ("Redis forgets more than its fault explains", too_far_back),
];

fn rolled_back(trial: Trial, seconds: f64, kept: Option<f64>, since: f64) -> Trial {
    let what = What::RolledBack {
        kept: kept.map(at),
        since: at(since),
        of: None,
        undone: None,
    };
    trial.note("harness", seconds, what)
}

fn a_letter_that_vanishes() {
    let buried = || {
        let trial = rolled_back(Trial::default(), 2.0, Some(1.5), 1.0);
        let ask = Ask::Schedule {
            version: 7,
            deadly: true,
            after: 0,
        };
        trial.call(3.0, ask, Answer::Done).run(run(7, 1, 3.5))
    };
    buried().check().tells("version 7 is not a dead letter");
    // Redis cannot forget a letter without forgetting its job, either.
    let later = rolled_back(buried(), 6.0, Some(5.0), 4.0);
    later.check().tells("version 7 is not a dead letter");
    let forgotten = rolled_back(buried(), 6.0, Some(2.9), 2.5);
    forgotten.check().passes();
    let dead = KeptAs::Dead("no more".into());
    buried().keep(7, dead).check().passes();
    buried()
        .call(4.0, Ask::Discard, Answer::Done)
        .check()
        .passes();
}

fn twice() {
    let told = "version 7 is there twice";
    let kept = |one: KeptAs, other: KeptAs| {
        let mut trial = lost().keep(7, other.clone());
        trial.kept.twice.push((7, one, other));
        trial
    };
    let pending = || kept(KeptAs::Pending, KeptAs::Pending);
    let dead = || kept(KeptAs::Pending, KeptAs::Dead("no more".into()));
    pending().check().tells(told);
    dead().check().tells(told);
    let back = |trial| rolled_back(trial, 6.0, Some(5.0), 4.0);
    back(pending()).check().tells(told);
    back(dead()).check().does_not_tell(told);
    let leased = kept(KeptAs::Leased, KeptAs::Leased);
    leased.check().does_not_tell(told);
}

/// A job that is lost, and was scheduled before the last turn of the faults.
fn lost() -> Trial {
    Trial::default().schedule(1.0, 7, Answer::Done)
}

fn no_mark() {
    let row = rolled_back(lost(), 5.0, None, 4.0).check();
    row.tells("Redis came back without its mark");
    row.tells("version 7 is lost");
}

fn too_far_back() {
    let row = rolled_back(lost(), 5.0, Some(0.5), 4.0).check();
    row.tells("Redis went back to");
    row.tells("version 7 is lost");
    let row = rolled_back(lost(), 5.0, Some(0.5), 0.4).check();
    row.passes();
    assert_eq!(row.forgotten, 1);
}
