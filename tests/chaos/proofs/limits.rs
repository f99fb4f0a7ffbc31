//! Jobs of a limited kind.

use super::{Proof, at};
use crate::journal::{Noted, What};
use crate::limited::{Fed, KIND, judge};

pub(super) const ALL: &[Proof] = &[
    ("starts within a limit", fine),
    ("more starts than a limit allows", crowded),
    ("a job that waits for a limit never runs", lost),
    ("more leases than a limit allows", leases),
    ("a limited kind hardly ran", hardly),
];

/// Starts of a hundred jobs, each so many µs after the one before, and a few more at the end.
fn judged(each: u64, more: &[u64], keys: usize, forgets: bool, is_set: bool) -> Vec<String> {
    let regular = (0..100).map(|number| 1_000_000 + number * each);
    let starts = regular.chain(more.iter().copied()).enumerate();
    let lines = starts.map(|(number, fence)| Noted {
        at: at(1.0),
        what: What::Started {
            key: format!("{KIND}:{number:06}"),
            fence,
        },
    });
    let fed = Fed {
        keys: (0..keys)
            .map(|number| format!("{KIND}:{number:06}"))
            .collect(),
        wrong: Vec::new(),
    };
    let journals = [("worker-0.1".to_owned(), lines.collect())];
    judge(&journals, &fed, forgets, is_set)
}

fn fine() {
    let nothing = Vec::<String>::new();
    assert_eq!(judged(25_000, &[], 100, false, false), nothing);
    // Seven more at once: a burst.
    let last = 1_000_000 + 99 * 25_000;
    assert_eq!(judged(25_000, &[last; 7], 100, false, false), nothing);
}

fn crowded() {
    let last = 1_000_000 + 99 * 25_000;
    for (each, more) in [(25_000, &[last; 8][..]), (22_000, &[])] {
        let told = judged(each, more, 100, false, false);
        assert!(
            told.len() == 1 && told[0].contains("started in"),
            "{told:?}"
        );
        assert!(judged(each, more, 100, true, false).is_empty());
        assert!(judged(each, more, 100, false, true).is_empty());
    }
}

fn lost() {
    let told = judged(25_000, &[], 101, false, true);
    assert!(
        told.len() == 1 && told[0].contains("000100 waited"),
        "{told:?}"
    );
    assert!(judged(25_000, &[], 101, true, true).is_empty());
}

fn leases() {
    let fed = Fed {
        wrong: vec!["nine leases".to_owned()],
        ..Fed::default()
    };
    let told = judge(&[], &fed, false, false);
    assert!(told.contains(&"nine leases".to_owned()), "{told:?}");
}

fn hardly() {
    let told = judge(&[], &Fed::default(), false, false);
    assert!(
        told.len() == 1 && told[0].contains("only 0 jobs"),
        "{told:?}"
    );
}
