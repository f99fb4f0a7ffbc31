//! Handlers that misbehave.

use super::{Punctual, Result, Scenario};
use crate::order::Plan;
use crate::setting::Setting;
use crate::stage::Stage;

pub(super) fn all() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "handlers that misbehave",
            quick: true,
            setting: || {
                with(vec![
                    (Plan::Hang, 50),
                    (Plan::Panic, 100),
                    (Plan::Slow(5000), 50),
                ])
            },
            faults: |stage| Box::pin(only_handlers(stage)),
            punctual: Punctual::Throughout,
        },
        Scenario {
            name: "handlers that block",
            quick: false,
            setting: || with(vec![(Plan::Block(3500), 10)]),
            faults: |stage| Box::pin(only_handlers(stage)),
            punctual: Punctual::Throughout,
        },
        Scenario {
            name: "handlers that kill",
            quick: false,
            setting: || with(vec![(Plan::Kill, 4)]),
            faults: |stage| Box::pin(only_handlers(stage)),
            punctual: Punctual::Throughout,
        },
    ]
}

fn with(special: Vec<(Plan, u32)>) -> Setting {
    Setting {
        special,
        ..Setting::default()
    }
}

/// The misbehaviour of the handlers is the only fault. Where they kill their workers, other workers
/// take their places.
async fn only_handlers(stage: &mut Stage) -> Result {
    stage.strike("handlers");
    stage.live_for(stage.span).await;
    Ok(())
}
