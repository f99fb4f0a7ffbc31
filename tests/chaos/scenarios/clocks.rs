//! Wall clocks that jump by an hour, while everything runs.

use tokio::time::{Instant, sleep};

use super::{Punctual, Result, Scenario};
use crate::adopted::JUMP;
use crate::setting::{Setting, Whose};
use crate::stage::Stage;

const HOUR: i64 = 3600;

pub(super) fn all() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "clocks of workers jump",
            quick: false,
            setting: || with(Whose::Workers),
            faults: |stage| Box::pin(jump(stage, "clocks of workers jump", &[HOUR, -HOUR, 0])),
            punctual: Punctual::Afterwards,
        },
        Scenario {
            name: "the clock of Redis jumps",
            quick: false,
            setting: || with(Whose::Redis),
            // It ends ahead of all that it ever was: what was scheduled by a clock that was
            // ahead is due by then.
            faults: |stage| Box::pin(jump(stage, JUMP, &[-HOUR, 0, HOUR, 0, HOUR])),
            punctual: Punctual::Untold,
        },
    ]
}

fn with(whose: Whose) -> Setting {
    Setting {
        clock: Some(whose),
        ..Setting::default()
    }
}

/// Sets the clock to one after the other, until the time is over; it stays at the last.
async fn jump(stage: &mut Stage, fault: &str, clocks: &[i64]) -> Result {
    let end = stage.until_the_end();
    while Instant::now() < end {
        for seconds in clocks {
            stage.strike(fault);
            stage.clock()?.set(*seconds)?;
            sleep(stage.some_ms(500..2000)).await;
        }
    }
    Ok(())
}
