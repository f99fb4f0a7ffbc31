//! Gaps that the suite must not pass over in silence.

use keyfall_testing::sabotage;

use super::Proof;
use crate::report::Row;
use crate::trial::NO_HOSTS;

pub(super) const ALL: &[Proof] = &[
    ("a scenario that is not played is not judged", not_played),
    ("keys that no sabotage is done to", spared_keys),
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
