//! Data that Redis has lost, and jobs that were brought back from the copy.

use super::{Proof, Trial, at, run};
use crate::journal::{Answer, Ask, What};

pub(super) const ALL: &[Proof] = &[
    ("a job that was in the copy is not brought back", lost),
    ("a job comes back whose end was in the copy", comes_back),
    ("the name of a lost job was used again", used_again),
    ("a dead letter is lost with Redis", a_letter),
];

/// Redis lost its data after 4 s, and all was brought back at 5 s. The copy had the changes of the
/// first so many seconds.
fn rebuilt(trial: Trial, copied: f64, snapshot: Option<(f64, f64)>) -> Trial {
    let what = What::Rebuilt {
        snapshot: snapshot.map(|(began, saved)| (at(began), at(saved))),
        copied: at(copied),
    };
    trial.note("harness", 5.0, what)
}

fn lost() {
    let job = || Trial::default().schedule(1.0, 7, Answer::Done);
    rebuilt(job(), 2.0, None).check().tells("version 7 is lost");
    let row = rebuilt(job(), 0.9, None).check();
    row.passes();
    assert_eq!(row.forgotten, 1);
    // It is newer than the snapshot.
    let newer = rebuilt(job(), 2.0, Some((0.5, 0.6))).check();
    newer.tells("version 7 is lost");
    let replaced = job().schedule(1.5, 8, Answer::Replaced);
    rebuilt(replaced, 2.0, Some((1.1, 1.2))).check().passes();
}

fn comes_back() {
    let cancelled = || {
        let job = Trial::default().schedule(1.0, 7, Answer::Done);
        job.call(1.5, Ask::Cancel, Answer::Cancelled)
            .run(run(7, 1, 6.0))
    };
    let row = rebuilt(cancelled(), 2.0, None).check();
    row.tells("it started after");
    rebuilt(cancelled(), 1.2, None).check().passes();
    // The snapshot has the job, and not the cancel.
    let old = rebuilt(cancelled(), 2.0, Some((1.2, 1.3))).check();
    old.passes();
    let done = || {
        let job = Trial::default().schedule(1.0, 7, Answer::Done);
        job.run(run(7, 1, 1.5)).run(run(7, 2, 6.0))
    };
    let row = rebuilt(done(), 2.0, None).check();
    row.tells("was run to its end after");
    rebuilt(done(), 1.2, None).check().passes();
}

fn used_again() {
    let both = |seconds| {
        let job = Trial::default().schedule(1.0, 7, Answer::Done);
        let other = job.schedule(seconds, 8, Answer::Done);
        rebuilt(other.run(run(8, 1, 6.0)), 2.0, None)
    };
    both(4.5).check().passes();
    both(5.5).check().tells("version 7 is lost");
}

fn a_letter() {
    let ask = Ask::Schedule {
        version: 7,
        deadly: true,
        after: 0,
    };
    let buried = |seconds| {
        let job = Trial::default().call(seconds, ask.clone(), Answer::Done);
        rebuilt(job.run(run(7, 1, seconds + 0.5)), 2.0, None)
    };
    buried(1.0).check().passes();
    let later = buried(6.0).check();
    later.tells("version 7 is not a dead letter");
}
