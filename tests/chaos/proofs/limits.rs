//! Jobs of a limited kind.

use super::{Proof, at};
use crate::journal::{Noted, What};
use crate::limited::{Fed, GROUPED, KIND, LeaseCounts, TOGETHER, judge};

pub(super) const ALL: &[Proof] = &[
    ("starts within a limit", fine),
    ("more starts than a limit allows", crowded),
    (
        "more starts than the limit of a group allows",
        crowded_group,
    ),
    (
        "more starts than the limit of two kinds together allows",
        crowded_together,
    ),
    ("a job that waits for a limit never runs", lost),
    ("more leases than a limit allows", leases),
    ("leases that nobody counts", uncounted),
    ("a limited kind hardly ran", hardly),
];

/// Starts of a hundred jobs of each kind, those of one so many µs after the one before, and a few
/// more at the end.
fn judged(each: u64, more: &[u64], keys: usize, forgets: bool, is_set: bool) -> Vec<String> {
    let regular = (0..100).map(|number| 1_000_000 + number * each);
    let starts = regular.chain(more.iter().copied()).enumerate();
    let limited = starts.map(|(number, fence)| (format!("{KIND}:{number:06}"), fence));
    let grouped = [1, 2].into_iter().flat_map(of_group);
    let starts = limited.chain(grouped).chain(of_both(0));
    told(starts, keys, forgets, is_set)
}

/// Starts of forty jobs of two kinds in turn, as many as they may have together, and of so many more
/// at the end.
fn of_both(more: u64) -> impl Iterator<Item = (String, u64)> {
    (0..40 + more).map(|number| {
        let key = format!("{}:{number:06}", TOGETHER[number as usize % 2]);
        (key, 1_000_000 + number.min(39) * 41_667)
    })
}

/// Starts of fifty jobs of a group, in two kinds in turn: as many as its limit allows.
fn of_group(group: u64) -> impl Iterator<Item = (String, u64)> {
    let kind = |number: u64| GROUPED[number as usize % 2];
    let key = move |number| format!("{}:{group}/{number:06}", kind(number));
    (0..50).map(move |number| (key(number), 1_000_000 + number * 62_500))
}

fn told(
    starts: impl Iterator<Item = (String, u64)>,
    keys: usize,
    forgets: bool,
    is_set: bool,
) -> Vec<String> {
    let lines = starts.map(|(key, fence)| Noted {
        at: at(1.0),
        what: What::Started { key, fence },
    });
    let fed = Fed {
        keys: (0..keys)
            .map(|number| format!("{KIND}:{number:06}"))
            .collect(),
        counts: many_counts(),
    };
    let journals = [("worker-0.1".to_owned(), lines.collect())];
    judge(&journals, &fed, forgets, is_set)
}

/// Counts of leases in which nothing was wrong.
fn many_counts() -> LeaseCounts {
    LeaseCounts {
        made: [50; 3],
        ..LeaseCounts::default()
    }
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

fn crowded_group() {
    // As many again of one group, at the same times.
    let limited = (0..100).map(|number| (format!("{KIND}:{number:06}"), number * 25_000));
    let starts = limited
        .chain(of_group(1))
        .chain(of_group(2))
        .chain(of_group(2))
        .chain(of_both(0));
    let told = told(starts, 100, false, false);
    let group = "chaos:grouped:2: ";
    assert!(told.len() == 1 && told[0].starts_with(group), "{told:?}");
}

fn crowded_together() {
    let others = || {
        let limited = (0..100).map(|number| (format!("{KIND}:{number:06}"), number * 25_000));
        limited.chain(of_group(1)).chain(of_group(2))
    };
    assert!(told(others().chain(of_both(7)), 100, false, false).is_empty());
    let told = told(others().chain(of_both(8)), 100, false, false);
    assert!(
        told.len() == 1 && told[0].starts_with("chaos:together:: "),
        "{told:?}"
    );
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
        counts: LeaseCounts {
            wrong: vec!["nine leases".to_owned()],
            ..many_counts()
        },
        ..Fed::default()
    };
    let told = judge(&[], &fed, false, false);
    assert!(told.contains(&"nine leases".to_owned()), "{told:?}");
}

fn uncounted() {
    let counted = |made, forgets| {
        let counts = LeaseCounts {
            made,
            ..LeaseCounts::default()
        };
        let fed = Fed {
            counts,
            ..Fed::default()
        };
        let told = judge(&[], &fed, forgets, false);
        let seldom = told.into_iter().filter(|it| it.contains("were counted"));
        seldom.collect::<Vec<_>>()
    };
    assert_eq!(counted([5; 3], false), Vec::<String>::new());
    assert_eq!(counted([0; 3], true), Vec::<String>::new());
    assert_eq!(
        counted([5, 4, 5], false),
        ["the leases of chaos:together: were counted 4 times, and not 5"]
    );
}

fn hardly() {
    let fed = Fed {
        counts: many_counts(),
        ..Fed::default()
    };
    let told = judge(&[], &fed, false, false);
    assert!(
        told.len() == 5 && told.iter().all(|it| it.contains("only 0 jobs")),
        "{told:?}"
    );
}
