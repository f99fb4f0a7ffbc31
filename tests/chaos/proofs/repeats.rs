//! Functions that are called again under their ids.

use super::{KEY, Proof, Trial, at, run};
use crate::journal::{Answer, Ask, What};

pub(super) const ALL: &[Proof] = &[
    ("a call that all replicas had is forgotten", kept_and_lost),
    (
        "a cancel that all replicas had is forgotten",
        kept_and_started,
    ),
    ("a repeat that is a new call", answered_anew),
    ("no repeat reached another primary", no_repeat),
];

/// A call that is answered, with all replicas or without; Redis then goes back to a time before it.
fn forgotten(ask: Ask, answer: Answer, kept: bool) -> Trial {
    let back = What::RolledBack {
        kept: Some(at(0.5)),
        since: at(0.4),
        of: None,
        undone: None,
    };
    Trial::default()
        .call(1.0, ask, answer)
        .note("producer-0", 1.1, replied("created 5", kept))
        .note("harness", 3.0, back)
}

fn replied(reply: &str, kept: bool) -> What {
    let reply = reply.to_owned();
    What::Replied {
        call: 0,
        reply,
        kept,
    }
}

fn schedule() -> Ask {
    Ask::Schedule {
        version: 7,
        deadly: false,
        after: 0,
    }
}

fn kept_and_lost() {
    let row = forgotten(schedule(), Answer::Done, true).check();
    row.tells("version 7 is lost");
    assert_eq!((row.lost, row.forgotten), (1, 0));
    let row = forgotten(schedule(), Answer::Done, false).check();
    row.passes();
    assert_eq!((row.lost, row.forgotten), (0, 1));
}

fn kept_and_started() {
    let cancelled = |kept| {
        let trial = forgotten(Ask::Cancel, Answer::Cancelled, kept);
        let trial = trial.call_of(KEY, (0.1, 0.2), schedule(), Answer::Done);
        trial.run(run(7, 1, 4.0)).check()
    };
    cancelled(true).tells("it started after");
    cancelled(false).does_not_tell("it started after");
}

/// The replies to one call, each with its time, and whether all replicas had it.
fn called(replies: &[(f64, &str, bool)]) -> Trial {
    let trial = Trial::default().call(1.0, schedule(), Answer::Done);
    let trial = trial.run(run(7, 1, 1.5));
    let replies = replies.iter();
    replies.fold(trial, |trial, (seconds, reply, kept)| {
        trial.note("producer-0", *seconds, replied(reply, *kept))
    })
}

fn answered_anew() {
    let told = "a repeat under the same id was answered \"replaced 6\" after \"created 5\"";
    called(&[(1.1, "created 5", true), (2.0, "replaced 6", false)])
        .check()
        .tells(told);
    called(&[(1.1, "created 5", true), (2.0, "created 5", false)])
        .check()
        .passes();
    // Redis may have forgotten the first one.
    called(&[(1.1, "created 5", false), (2.0, "replaced 6", true)])
        .check()
        .passes();
}

fn no_repeat() {
    let told = "no call of a function was repeated under its id at another primary";
    let served = |seconds| {
        let replies = [(1.1, "created 5", true), (2.0, "created 5", false)];
        let trial = called(&replies).fault(1.0, "the primary is killed", None);
        let trial = trial.note("harness", seconds, What::Served);
        trial.judge("functions, killed")
    };
    served(2.5).tells(told);
    served(1.05).tells(told);
    served(1.5).does_not_tell(told);
}
