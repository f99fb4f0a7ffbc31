//! Ids that topics share.

use super::{Proof, Run, Trial, run};
use crate::journal::{Answer, Ask};

pub(super) const ALL: &[Proof] = &[
    (
        "a job that ends with the job of another topic",
        ended_by_another_topic,
    ),
    ("a job that another topic hides", hidden),
];

const ID: &str = "chaos:load:common:common-1";

/// A job is pushed into one topic, and, while a consumer has it, another one into another topic.
fn pushed() -> Trial {
    let push = |trial: Trial, seconds, version| {
        let ask = Ask::Schedule {
            version,
            deadly: false,
            after: 0,
        };
        trial.call_of(ID, (seconds, seconds + 0.01), ask, Answer::Placed)
    };
    let first = push(Trial::default(), 1.0, 7).run_of(ID, consumed(7, 1, 1.1));
    push(first, 1.2, 8)
}

fn consumed(version: u64, fence: u64, began: f64) -> Run {
    Run {
        process: "consumer-0.1",
        taken: None,
        ..run(version, fence, began)
    }
}

fn ended_by_another_topic() {
    let given_up = || {
        pushed().run_of(
            ID,
            Run {
                last: false,
                ..consumed(8, 2, 1.3)
            },
        )
    };
    given_up().check().tells("version 8 is lost");
    given_up().run_of(ID, consumed(8, 3, 3.5)).check().passes();
}

fn hidden() {
    let looked = |answer| {
        let trial = pushed().run_of(ID, consumed(8, 2, 3.0));
        trial.call_of(ID, (2.0, 2.01), Ask::Look, answer)
    };
    looked(Answer::Found(8)).check().passes();
    let told = "version 8 is hidden";
    looked(Answer::Found(7)).check().tells(told);
    looked(Answer::Absent).check().tells(told);
    // It had ended by then.
    let ended = pushed().run_of(ID, consumed(8, 2, 1.3));
    let ended = ended.call_of(ID, (2.0, 2.01), Ask::Look, Answer::Absent);
    ended.check().passes();
}
