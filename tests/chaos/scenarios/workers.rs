//! Worker processes that are killed or stopped.

use std::time::Duration;

use rustix::process::Signal;
use tokio::time::{Instant, sleep};

use super::{Punctual, Result, Scenario};
use crate::journal::STOPPED;
use crate::order::Plan;
use crate::setting::Setting;
use crate::stage::{Stage, WORKERS};
use crate::worker::LEASE;

/// How long no worker is there.
const AWAY: Duration = Duration::from_secs(20);

pub(super) fn all() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "kill one worker",
            quick: true,
            setting: with_recurring,
            faults: |stage| Box::pin(kill_one(stage)),
            punctual: Punctual::Throughout,
        },
        Scenario {
            name: "kill all workers",
            quick: true,
            setting: with_recurring,
            faults: |stage| Box::pin(kill_all(stage)),
            punctual: Punctual::Afterwards,
        },
        Scenario {
            name: "stop a worker",
            quick: true,
            setting: || Setting {
                // Their leases end while they are stopped; when they go on they settle at once,
                // while other workers run the same jobs.
                special: vec![(Plan::Slow(4000), 200), (Plan::Block(300), 50)],
                ..with_recurring()
            },
            faults: |stage| Box::pin(stop_one(stage)),
            punctual: Punctual::Throughout,
        },
    ]
}

fn with_recurring() -> Setting {
    Setting {
        recurring: true,
        ..Setting::default()
    }
}

/// Kills one of three workers, again and again; it comes back after a moment.
async fn kill_one(stage: &mut Stage) -> Result {
    let end = stage.until_the_end();
    while Instant::now() < end {
        let number = stage.some_worker();
        stage.kill(number);
        sleep(stage.some_ms(50..700)).await;
        stage.start(number);
        sleep(stage.some_ms(300..1000)).await;
    }
    Ok(())
}

/// Kills all workers, while jobs fall due and others are scheduled.
async fn kill_all(stage: &mut Stage) -> Result {
    for number in 0..WORKERS {
        stage.kill(number);
    }
    let is_long = stage.span > Duration::from_secs(8);
    sleep(if is_long { AWAY } else { stage.span }).await;
    for number in 0..WORKERS {
        stage.start(number);
    }
    Ok(())
}

/// Stops a worker for longer than its lease, which it cannot know when it goes on.
async fn stop_one(stage: &mut Stage) -> Result {
    let end = stage.until_the_end();
    while Instant::now() < end {
        let number = stage.some_worker();
        stage.signal(number, Signal::STOP, STOPPED);
        sleep(LEASE + stage.some_ms(300..2000)).await;
        stage.signal(number, Signal::CONT, "continued");
        sleep(stage.some_ms(200..1500)).await;
    }
    Ok(())
}
