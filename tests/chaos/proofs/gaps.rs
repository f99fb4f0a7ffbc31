//! Gaps that the suite must not pass over in silence.

use keyfall_testing::sabotage;

use super::Proof;

pub(super) const ALL: &[Proof] = &[("keys that no sabotage is done to", spared_keys)];

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
