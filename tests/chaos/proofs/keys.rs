//! Judgements on adopted keys.

use super::{Proof, Trial, at};
use crate::journal::{Answer, Ask, What};
use crate::report::Row;

pub(super) const ALL: &[Proof] = &[(
    "a key that expires and cancels its job, and one whose time was over at once",
    a_short_time,
)];

const KEY: &str = "chaos:plain:cancel:1";
const DAY: u64 = 24 * 3600 * 1000;

/// A key whose job is brought forward by so many ms; then nothing is left of it. A listener was
/// there all the time.
fn brought_forward(ms: u64, answered: f64) -> Row {
    let set = Ask::Set {
        version: 7,
        ms: Some(7 * DAY),
    };
    let expire = Ask::Expire { ms, named: false };
    let looks = (0..100).map(|number| f64::from(number) / 10.0);
    let mut trial = looks.fold(Trial::default(), |trial, seconds| {
        let looked = What::Looked {
            sent: at(seconds),
            able: true,
            listeners: vec![1],
        };
        trial.note("witness", seconds, looked)
    });
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
