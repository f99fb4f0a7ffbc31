//! Kinds that get another number of shards under load, while workers, and the processes that make
//! the change, are killed.

use super::{Punctual, Scenario};
use crate::resharding::go_on;
use crate::setting::Setting;
use crate::{recurring, series};

/// The numbers in turn.
const NUMBERS: [u16; 4] = [1, 4, 2, 5];
const NUMBERS_ON_A_CLUSTER: [u16; 3] = [4, 8, 3];

/// The kinds of the recurring jobs and of the series.
const AGAIN: [&str; 2] = [recurring::KIND, series::KIND];

pub(super) fn all() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "shards",
            quick: true,
            setting: || Setting {
                shards: Some(NUMBERS[0]),
                recurring: true,
                ..Setting::default()
            },
            faults: |stage| Box::pin(async { Ok(go_on(stage, &NUMBERS, &AGAIN).await?) }),
            punctual: Punctual::Afterwards,
        },
        Scenario {
            name: "cluster, shards",
            quick: false,
            setting: || Setting {
                cluster: true,
                shards: Some(NUMBERS_ON_A_CLUSTER[0]),
                recurring: true,
                ..Setting::default()
            },
            faults: |stage| {
                Box::pin(async { Ok(go_on(stage, &NUMBERS_ON_A_CLUSTER, &AGAIN).await?) })
            },
            punctual: Punctual::Afterwards,
        },
    ]
}
