//! Gaps that the suite must not pass over in silence, and processes that end by themselves.

use keyfall_testing::sabotage;

use super::{Proof, Run, Trial, run};
use crate::journal::{Answer, What};
use crate::report::Row;
use crate::trial::NO_HOSTS;

pub(super) const ALL: &[Proof] = &[
    ("a scenario that is not played is not judged", not_played),
    ("keys that no sabotage is done to", spared_keys),
    ("a worker that ends by itself, and why", died),
];

fn not_played() {
    let row = Row::skipped("partition", NO_HOSTS);
    assert_eq!(
        row.to_string(),
        format!(
            "| {:25} | not played, and not judged: {NO_HOSTS} |",
            "partition"
        )
    );
    assert_eq!(
        Row::sum(&[row]).summary(),
        format!("0 violations, 0 bounds kept; not judged: all of it ({NO_HOSTS}): partition")
    );
}

fn spared_keys() {
    let keys = [
        "keyfall:{a:b:c/0}:due",
        "keyfall:{a:b:c/0}:novel",
        "keyfall:{a:b:c/0}:due:aside:1",
        "keyfall:novel",
        "keyfall:kinds",
        "theirs",
    ];
    let keys = keys.map(str::to_owned);
    assert_eq!(
        sabotage::spared(&keys),
        ["keyfall:{a:b:c/0}:novel", "keyfall:novel"]
    );
}

fn died() {
    let judged = |scenario| {
        let died = What::Died {
            process: "worker-0.1".into(),
            status: "exit status: 101".into(),
        };
        let trial = Trial::default().schedule(1.0, 7, Answer::Done);
        let trial = trial.run(run(7, 1, 2.0)).note("harness", 3.0, died);
        trial.judge(scenario)
    };
    let told = "worker-0.1 ended by itself: exit status: 101";
    judged("kill one worker").tells(told);
    // There handlers kill their workers.
    judged("handlers that kill").does_not_tell(told);
    // Its runs have ended with it.
    let died = What::Died {
        process: "worker-1.1".into(),
        status: "signal: 9 (SIGKILL)".into(),
    };
    let trial = Trial::default().schedule(1.0, 7, Answer::Done);
    let trial = trial.run(Run {
        process: "worker-1.1",
        taken: None,
        ..run(7, 10, 2.0)
    });
    let trial = trial.run(run(7, 20, 5.0));
    trial.note("harness", 3.0, died).check().passes();
}
