//! Daemons that are killed, and those who pull from them.

use tokio::time::{Instant, sleep};

use super::{Punctual, Result, Scenario};
use crate::stage::{DAEMONS, Setting, Stage};

pub(super) fn all() -> Vec<Scenario> {
    vec![Scenario {
        name: "kill daemons",
        quick: true,
        setting: || Setting {
            daemons: true,
            ..Setting::default()
        },
        faults: |stage| Box::pin(kill(stage)),
        punctual: Punctual::Afterwards,
    }]
}

/// One of two daemons is killed, or one of three consumers, or all at once, again and again; all
/// come back after a moment.
async fn kill(stage: &mut Stage) -> Result {
    let end = stage.until_the_end();
    for turn in 0.. {
        if turn > 2 && Instant::now() >= end {
            return Ok(());
        }
        let consumer = stage.some_worker();
        let daemons = match turn % 3 {
            0 => vec![turn % DAEMONS],
            1 => vec![],
            _ => (0..DAEMONS).collect(),
        };
        daemons.iter().for_each(|number| stage.kill_daemon(*number));
        if turn % 3 > 0 {
            stage.kill(consumer);
        }
        sleep(stage.some_ms(50..700)).await;
        daemons
            .iter()
            .for_each(|number| stage.start_daemon(*number));
        if turn % 3 > 0 {
            stage.start(consumer);
        }
        sleep(stage.some_ms(300..1000)).await;
    }
    Ok(())
}
