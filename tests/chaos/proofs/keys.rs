//! Judgements on adopted keys.

use super::{Proof, Trial, at, fence_at, run};
use crate::journal::{Answer, Ask, What};
use crate::kept::KeptAs;
use crate::report::Row;

pub(super) const ALL: &[Proof] = &[
    (
        "a key that expires and cancels its job, and one whose time was over at once",
        a_short_time,
    ),
    ("a key that expires while the programs start", a_start),
    (
        "a key that expires, does not run, and is set anew",
        set_anew,
    ),
    (
        "a key that a snapshot brings back, and that does not run",
        a_key_comes_back,
    ),
    (
        "a value that a snapshot takes back, and that comes again",
        a_value_comes_again,
    ),
    (
        "a key that runs before its time, which a snapshot takes back",
        an_early_run,
    ),
    ("a key whose job is buried for no reason", buried),
    ("commands that race no key", no_race),
];

const KEY: &str = "chaos:plain:cancel:1";
const DAY: u64 = 24 * 3600 * 1000;

/// This listener was there all the time, in tenths of a second.
fn heard(trial: Trial, span: std::ops::Range<u32>, listener: u64) -> Trial {
    let looks = span.map(|number| f64::from(number) / 10.0);
    looks.fold(trial, |trial, seconds| {
        let looked = What::Looked {
            sent: at(seconds),
            able: true,
            listeners: vec![listener],
        };
        trial.note("witness", seconds, looked)
    })
}

fn set(trial: Trial, seconds: f64, (version, ms): (u64, u64), answer: Answer) -> Trial {
    let ms = Some(ms);
    let ask = Ask::Set { version, ms };
    trial.call_of(KEY, (seconds, seconds + 0.01), ask, answer)
}

/// A run that was claimed, and began, at this time.
fn ran(trial: Trial, version: u64, seconds: f64) -> Trial {
    let run = run(version, fence_at(seconds), seconds);
    trial.run_of(KEY, run)
}

/// A key whose job is brought forward by so many ms; then nothing is left of it. A listener was
/// there all the time.
fn brought_forward(ms: u64, answered: f64) -> Row {
    let set = Ask::Set {
        version: 7,
        ms: Some(7 * DAY),
    };
    let expire = Ask::Expire { ms, named: false };
    let mut trial = heard(Trial::default(), 0..100, 1);
    trial.leases.stored.insert(7);
    trial
        .call_of(KEY, (1.0, 1.01), set, Answer::Done)
        .call_of(KEY, (2.0, 2.0 + answered), expire, Answer::Done)
        .check()
}

fn a_short_time() {
    brought_forward(3, 0.0005).tells("is lost");
    brought_forward(300, 0.02).tells("is lost");
    // Then the time may have been over when the command was carried out.
    brought_forward(3, 0.02).does_not_tell("is lost");
}

/// The listener has just started, and still loads its scripts.
fn a_start() {
    let expires = |seconds, begun| {
        let trial = set(
            heard(Trial::default(), 0..150, 1),
            seconds,
            (7, 1500),
            Answer::Done,
        );
        let trial = trial.note("harness", begun, What::Begun);
        trial.note("harness", begun + 0.3, What::AtWork).check()
    };
    expires(0.5, 0.1).does_not_tell("is lost");
    expires(0.5, 9.0).tells("is lost");
    expires(3.0, 0.1).tells("is lost");
}

fn set_anew() {
    // It expires at 3 s.
    let expired = || {
        set(
            heard(Trial::default(), 0..150, 1),
            1.0,
            (7, 2000),
            Answer::Done,
        )
    };
    let anew = |trial, seconds| set(trial, seconds, (8, 1000), Answer::Done);
    let told = "expired, and had not run when its key was set anew";
    ran(anew(expired(), 7.0), 8, 8.1).check().tells(told);
    ran(anew(ran(expired(), 7, 3.1), 7.0), 8, 8.1)
        .check()
        .passes();
    // Then the job may still have been about to begin.
    ran(anew(expired(), 5.0), 8, 6.1).check().passes();
}

/// A key that is set at 1 s, for 5 s; Redis goes back at 4 s to a snapshot of 2.3 s, and serves
/// from 4.5 s on.
fn restored(between: impl Fn(Trial) -> Trial) -> Trial {
    let trial = heard(heard(Trial::default(), 0..40, 1), 45..150, 2);
    let trial = between(set(trial, 1.0, (7, 5000), Answer::Done));
    let back = What::RolledBack {
        kept: Some(at(2.2)),
        since: at(2.0),
        of: None,
        undone: Some((at(2.3), at(4.0))),
    };
    trial.note("harness", 4.5, back)
}

fn a_key_comes_back() {
    let deleted = |trial: Trial| trial.call_of(KEY, (3.0, 3.01), Ask::Delete, Answer::Done);
    restored(deleted).check().tells("version 7 is lost");
    ran(restored(deleted), 7, 6.1).check().passes();
    // It was deleted before the snapshot.
    let deleted = |trial: Trial| trial.call_of(KEY, (1.5, 1.51), Ask::Delete, Answer::Done);
    restored(deleted).check().passes();
    ran(restored(deleted), 7, 6.1)
        .check()
        .tells("was deleted, and that counts");
}

fn a_value_comes_again() {
    let replaced = |trial| set(trial, 3.0, (8, 3000), Answer::Replaced);
    let both = || ran(restored(replaced), 7, 6.1);
    both().check().passes();
    let told = "version 8 was set after the snapshot";
    ran(both(), 8, 6.2).check().tells(told);
    both().keep(8, KeptAs::Pending).check().tells(told);
    // It ran while Redis had it.
    let soon = |trial| ran(set(trial, 3.0, (8, 300), Answer::Replaced), 8, 3.4);
    ran(restored(soon), 7, 6.1).check().passes();
}

fn an_early_run() {
    let expire = |ms| Ask::Expire { ms, named: false };
    let postponed = |trial: Trial| trial.call_of(KEY, (3.0, 3.01), expire(60_000), Answer::Done);
    ran(restored(postponed), 7, 6.1).check().passes();
    let early = |trial: Trial| ran(postponed(trial), 7, 3.5);
    let told = "ran before its time";
    ran(restored(early), 7, 6.1).check().tells(told);
    ran(restored(postponed), 7, 5.0).check().tells(told);
}

fn buried() {
    let dead = |reason: &str| {
        let trial = heard(Trial::default(), 0..100, 1);
        let trial = set(trial, 1.0, (7, 2000), Answer::Done);
        trial.keep(7, KeptAs::Dead(reason.to_owned())).check()
    };
    dead("its lease lapsed in attempt 2").tells("version 7 is a dead letter for no reason");
    dead("no more").passes();
    dead("127.0.0.1:80 answered 410 Gone: no more").passes();
}

fn no_race() {
    let told = "of the commands close to the time of their key";
    let all = |off: f64| {
        (0..40_u32).fold(Trial::default(), |trial, number| {
            let key = format!("{KEY}{number}");
            let sent = 1.0 + f64::from(number) / 10.0;
            let set = Ask::Set {
                version: number.into(),
                ms: Some(300),
            };
            let (off, answer) = match number % 2 {
                0 => (-off, Answer::Done),
                _ => (off, Answer::Absent),
            };
            let deleted = sent + 0.3 + off;
            trial
                .call_of(&key, (sent, sent + 0.0005), set, Answer::Done)
                .call_of(&key, (deleted, deleted + 0.0005), Ask::Delete, answer)
        })
    };
    all(0.01).judge("keys race their time").tells(told);
    all(0.001).judge("keys race their time").does_not_tell(told);
}
