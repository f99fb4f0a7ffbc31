//! Occurrences of recurring jobs.

use super::{Proof, at};
use crate::journal::{Noted, What};
use crate::recurring::{KIND, Seen, Stored, judge};

pub(super) const ALL: &[Proof] = &[
    ("occurrences in order", in_order),
    ("an occurrence is lost", lost),
    ("no occurrence is pending", nothing_pending),
    ("an occurrence that ran is pending", pending_again),
    ("an occurrence has two times", two_times),
    ("a time of a rule is left out and not counted", uncounted),
    ("a time of a rule comes twice", same_time),
    (
        "the times of a rule drift by less than its interval",
        drifting,
    ),
    ("recurring jobs hardly ran", hardly),
];

/// Occurrences of one job, each with its second and the number of times left out before.
fn judged(begun: &[(u64, u64, u64)], pending: Option<u64>) -> Vec<String> {
    let begun = begun.iter();
    let begun = begun.map(|(number, second, skipped)| (*number, second * 1000, *skipped));
    judged_to_the_ms(&begun.collect::<Vec<_>>(), pending)
}

/// The same, each with its time in ms.
fn judged_to_the_ms(begun: &[(u64, u64, u64)], pending: Option<u64>) -> Vec<String> {
    let key = format!("{KIND}:0");
    let seen = |(number, at, skipped): (u64, u64, u64)| Seen {
        number,
        at,
        skipped,
    };
    // Enough other runs, so that these few are not too few.
    let others = (1..100).map(|number| (format!("{KIND}:1"), seen((number, number * 1000, 0))));
    let these = begun.iter().map(|one| (key.clone(), seen(*one)));
    let lines = others.chain(these).map(|(key, seen)| Noted {
        at: at(1.0),
        what: What::Recurred {
            key,
            number: seen.number,
            at: seen.at,
            skipped: seen.skipped,
        },
    });
    let journals = [("worker-0.1".to_owned(), lines.collect())];
    judge(&journals, &Stored::from([(key, pending)]), false)
}

#[track_caller]
fn tells(wrong: &[String], text: &str) {
    assert!(
        wrong.len() == 1 && wrong[0].contains(text),
        "{text:?} is not what is told: {wrong:?}"
    );
}

fn in_order() {
    let begun = [(1, 10, 0), (2, 11, 0), (2, 11, 0), (3, 15, 3), (4, 16, 3)];
    assert_eq!(judged(&begun, Some(5)), Vec::<String>::new());
}

fn lost() {
    let begun = [(1, 10, 0), (3, 12, 0)];
    tells(&judged(&begun, Some(4)), "occurrence 2 is lost");
    tells(&judged(&begun[..1], Some(3)), "occurrence 2 is lost");
}

fn nothing_pending() {
    tells(&judged(&[(1, 10, 0)], None), "no occurrence is pending");
}

fn pending_again() {
    let begun = [(1, 10, 0), (2, 11, 0)];
    tells(&judged(&begun, Some(2)), "is pending, and has run");
}

fn two_times() {
    let begun = [(1, 10, 0), (1, 11, 0)];
    tells(&judged(&begun, Some(2)), "one occurrence was");
}

fn uncounted() {
    let begun = [(1, 10, 0), (2, 12, 0)];
    tells(&judged(&begun, Some(3)), "does not follow");
}

fn same_time() {
    let begun = [(1, 10, 0), (2, 10, 0)];
    tells(&judged(&begun, Some(3)), "does not follow");
}

fn drifting() {
    let drifts = [(1, 10_000, 0), (2, 11_400, 0)];
    tells(&judged_to_the_ms(&drifts, Some(3)), "does not follow");
    let on_its_grid = [(1, 10_400, 0), (2, 11_400, 0)];
    let told = judged_to_the_ms(&on_its_grid, Some(3));
    assert_eq!(told, Vec::<String>::new());
}

fn hardly() {
    tells(&judge(&[], &Stored::new(), false), "only 0 occurrences");
}
