//! Members of series.

use super::{Proof, at};
use crate::journal::{Noted, What};
use crate::series::{KIND, Moved, Standing, Stored, judge};

pub(super) const ALL: &[Proof] = &[
    ("members that ran, and one that was left out", fine),
    ("a member of a series is lost", lost),
    ("a member runs for two dates", two_dates),
    ("a member runs for a date that no move gave it", misdated),
    ("a date passes while a call waits for Redis", passed),
    ("a member runs for a date from which it was moved", moved),
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
    // The second move comes too late for the first date.
    let moves = [(6000, 900, 1000), (6300, 4400, 4500)];
    judged_after(&moves, runs, standing, (forgets, false))
}

/// The same, after these moves: each with the anchor, a second after the date of the member, and
/// with the times of its call and of the answer; and if the clock of Redis was set or not.
fn judged_after(
    moves: &[(u64, u64, u64)],
    runs: &[u64],
    standing: Standing,
    (forgets, is_set): (bool, bool),
) -> Vec<String> {
    let key = format!("{KIND}:0~-1s");
    let others = (1..100).map(|id| (format!("{KIND}:{id}~-1s"), 1000));
    let others: Vec<(String, u64)> = others.collect();
    let mut stored = Stored::default();
    for (place, (key, _)) in (1..).zip(&others) {
        stored.members.insert(key.clone(), Standing::Ended);
        let made = Moved {
            anchor: 2000,
            asked: 0,
            answered: 0,
        };
        stored.moves.insert(format!("{KIND}:{place}"), vec![made]);
    }
    stored.members.insert(key.clone(), standing);
    let moves = moves.iter().map(|(anchor, asked, answered)| Moved {
        anchor: *anchor,
        asked: *asked,
        answered: *answered,
    });
    stored.moves.insert(format!("{KIND}:0"), moves.collect());
    let these = runs.iter().map(|due| (key.clone(), *due));
    let lines = others.into_iter().chain(these).map(|(key, due)| Noted {
        at: at(1.0),
        what: What::Came { key, due },
    });
    judge(
        &[("worker-0.1".to_owned(), lines.collect())],
        &stored,
        forgets,
        is_set,
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

fn misdated() {
    let told = judged(&[5001], Standing::Ended);
    tells(&told, "which no move gave it");
    let forgotten = judged_if(&[5001], Standing::Ended, true);
    tells(&forgotten, "which no move gave it");
}

fn passed() {
    let judged = |asked, due, is_set| {
        let moves = [(6000, asked, 5700)];
        judged_after(&moves, &[due], Standing::Ended, (false, is_set))
    };
    // The last one by a clock that was set ahead.
    let fine = [
        judged(4900, 5001, false),
        judged(4900, 5700, false),
        judged(4900, 8000, true),
    ];
    assert!(fine.iter().all(Vec::is_empty), "{fine:?}");
    let wrong = [
        judged(4900, 4999, false),
        judged(4900, 5701, false),
        // It had passed before the call began, so the member is left out.
        judged(5000, 5001, false),
        judged(5000, 8000, true),
        judged(4900, 4999, true),
    ];
    for told in wrong {
        tells(&told, "which no move gave it");
    }
}

fn moved() {
    let after = |answered, due, causes| {
        let moves = [(6000, 900, 1000), (6300, 1100, answered)];
        judged_after(&moves, &[due], Standing::Ended, causes)
    };
    tells(&after(3900, 5000, (false, false)), "had been moved by then");
    let fine = [
        after(3900, 5300, (false, false)),
        after(4100, 5000, (false, false)),
        after(3900, 5000, (true, false)),
        after(3900, 5000, (false, true)),
    ];
    assert!(fine.iter().all(Vec::is_empty), "{fine:?}");
}

fn left_out() {
    tells(&judged(&[5000], Standing::LeftOut), "was left out");
}

fn gone() {
    tells(&judged(&[5000], Standing::Gone), "not in its series");
}

fn hardly() {
    tells(
        &judge(&[], &Stored::default(), false, false),
        "only 0 members",
    );
}
