//! Lateness, and bounds that were not judged.

use keyfall_testing::journals::Micros;

use super::{Proof, Trial, run};
use crate::bounds::{LEAST, TOO_BUSY};
use crate::journal::{Answer, Ask, CLOCK, Noted, Part, What};
use crate::report::Row;
use crate::strain::Strain;

pub(super) const ALL: &[Proof] = &[
    ("jobs that are late, and do not say so", late_from_outside),
    ("jobs that are moved are not late", moved),
    ("a job that begins before its time, and why", early),
    ("too few jobs are judged, on a busy machine", too_few),
    ("a bound that is not judged is reported", not_judged),
];

/// Many jobs, after the faults, each of which claims to be on time and begins so late.
fn many(count: usize, late: f64, moved: bool) -> Trial {
    let mut trial = Trial::default()
        .weather(1.0, 2.0)
        .fault(1.0, "handlers", None);
    for number in 0..count {
        let (call, version) = (number as u64, number as u64);
        let key = || format!("chaos:load:notice:{number}");
        let mut note = |process, seconds: f64, what| {
            let at = super::at(seconds);
            let journal = trial.journals.entry(process).or_default();
            journal.push(Noted { at, what });
        };
        let ask = Ask::Schedule {
            version,
            deadly: false,
            after: 2000,
        };
        let key_ = key();
        note(
            "producer-0",
            5.0,
            What::Sent {
                call,
                key: key_,
                ask,
            },
        );
        let answer = Answer::Done;
        note("producer-0", 5.1, What::Answered { call, answer });
        if moved {
            let (call, key, ask) = (call + 1_000_000, key(), Ask::Move);
            note("producer-0", 5.2, What::Sent { call, key, ask });
            let answer = Answer::Done;
            note("producer-0", 5.3, What::Answered { call, answer });
        }
        let began = What::Began {
            key: key(),
            version,
            attempt: 1,
            fence: 1,
            late: 0,
        };
        note("worker-0.1", 7.1 + late, began);
        let (key, fence) = (key(), 1);
        let ended = What::Ended {
            key: key.clone(),
            fence,
            last: true,
        };
        note("worker-0.1", 7.2 + late, ended);
        let taken = true;
        note(
            "worker-0.1",
            7.3 + late,
            What::Settled { key, fence, taken },
        );
    }
    trial
}

/// A scenario without plain keys.
const SCENARIO: &str = "fail-over, killed";

fn late_from_outside() {
    many(LEAST, 0.5, false).judge(SCENARIO).passes();
    let row = many(LEAST, 4.0, false).judge(SCENARIO);
    row.tells("p99 late from outside");
    row.tells("4.0s late from outside");
    row.does_not_tell("late after the faults");
}

fn moved() {
    many(LEAST, 4.0, true).judge(SCENARIO).passes();
}

/// A job that is scheduled at 1 s, for two seconds later, runs then.
fn early() {
    let ran = |began| {
        let ask = Ask::Schedule {
            version: 7,
            deadly: false,
            after: 2000,
        };
        let trial = Trial::default().call(1.0, ask, Answer::Done);
        trial.run(run(7, 1, began))
    };
    let told = "it began before its time";
    ran(2.9).check().tells(told);
    ran(3.0).check().passes();
    for answer in [Answer::Done, Answer::Unknown("no answer".into())] {
        ran(2.9).call(1.5, Ask::Move, answer).check().passes();
    }
    // It was moved by another call, and too late.
    ran(2.9)
        .call(3.5, Ask::Move, Answer::Absent)
        .check()
        .tells(told);
    ran(2.9).fault(0.5, CLOCK, None).check().passes();
    // The clock of a worker decides nothing.
    ran(2.9)
        .fault(0.5, "clocks of workers jump", None)
        .check()
        .tells(told);
}

/// Such strain that lateness means nothing.
fn busy() -> Strain {
    Strain(vec![TOO_BUSY.as_micros() as Micros; 100])
}

fn too_few() {
    let mut trial = many(LEAST - 1, 0.1, false);
    trial.strain = busy();
    let row = trial.judge(SCENARIO);
    row.tells("49 first starts after the faults were measured, and not 50");
    let mut trial = many(LEAST - 1, 0.1, false);
    trial.strain = busy();
    let part = Part {
        shards: 1,
        ledgers: vec!["chaos:load:refund/0".into()],
    };
    let since = super::at(1.0);
    let trial = trial.note("harness", 8.0, What::Suffered { part, since });
    let row = trial.judge(SCENARIO);
    row.tells("49 first starts on the other servers were judged, and not 50");
}

fn not_judged() {
    let last_line = |trial: Trial| {
        let row = trial.judge(SCENARIO);
        Row::sum(&[row]).summary()
    };
    let told = last_line(many(LEAST, 0.1, false));
    assert_eq!(
        told,
        "0 violations, 4 bounds kept; not judged: until it ran again (nothing was measured): \
         fail-over, killed"
    );
    let mut trial = many(LEAST, 10.0, false);
    trial.strain = busy();
    let told = last_line(trial);
    assert!(
        told.starts_with("0 violations, 0 bounds kept; not judged: "),
        "{told}"
    );
    assert!(told.ends_with("late from outside (the machine was too busy): fail-over, killed"));
}
