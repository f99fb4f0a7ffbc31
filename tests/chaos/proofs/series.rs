//! Members of series.

use super::{Proof, at};
use crate::journal::{Noted, What};
use crate::series::{KIND, Standing, Stored, judge};

pub(super) const ALL: &[Proof] = &[
    ("members that ran, and one that was left out", fine),
    ("a member of a series is lost", lost),
    ("a member runs for two dates", two_dates),
    ("a member that was left out runs", left_out),
    ("a series has lost a member", gone),
    ("series hardly ran", hardly),
];

/// Runs of a member of one series, each with its due time, and where the member stands.
fn judged(runs: &[u64], standing: Standing) -> Vec<String> {
    judged_if(runs, standing, false)
}

/// The same, if Redis can forget or not.
fn judged_if(runs: &[u64], standing: Standing, forgets: bool) -> Vec<String> {
    let key = format!("{KIND}:0~-1s");
    let others = (1..100).map(|id| (format!("{KIND}:{id}~-1s"), 1000));
    let others: Vec<(String, u64)> = others.collect();
    let mut stored: Stored = others
        .iter()
        .map(|(key, _)| (key.clone(), Standing::Ended))
        .collect();
    stored.insert(key.clone(), standing);
    let these = runs.iter().map(|due| (key.clone(), *due));
    let lines = others.into_iter().chain(these).map(|(key, due)| Noted {
        at: at(1.0),
        what: What::Came { key, due },
    });
    judge(
        &[("worker-0.1".to_owned(), lines.collect())],
        &stored,
        forgets,
    )
}

#[track_caller]
fn tells(wrong: &[String], text: &str) {
    assert!(
        wrong.len() == 1 && wrong[0].contains(text),
        "{text:?} is not what is told: {wrong:?}"
    );
}

fn fine() {
    // A worker died, and another took over.
    assert_eq!(judged(&[5000, 5000], Standing::Ended), Vec::<String>::new());
    assert_eq!(judged(&[], Standing::LeftOut), Vec::<String>::new());
}

fn lost() {
    for forgets in [false, true] {
        let judged = judged_if(&[], Standing::Ended, forgets);
        tells(&judged, "ended without a run");
    }
}

fn two_dates() {
    tells(&judged(&[5000, 5300], Standing::Ended), "for two dates");
    let forgotten = judged_if(&[5000, 5300], Standing::Ended, true);
    assert_eq!(forgotten, Vec::<String>::new());
}

fn left_out() {
    tells(&judged(&[5000], Standing::LeftOut), "was left out");
}

fn gone() {
    tells(&judged(&[5000], Standing::Gone), "not in its series");
}

fn hardly() {
    tells(&judge(&[], &Stored::new(), false), "only 0 members");
}
