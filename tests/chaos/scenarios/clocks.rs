//! Wall clocks that jump by an hour, while everything runs; and clocks of two servers that differ.

use std::time::Duration;

use keyfall_testing::journals::{Micros, now};
use tokio::time::{Instant, sleep};

use super::{Punctual, Result, Scenario};
use crate::adopted::JUMP;
use crate::journal::{CLOCK, Part};
use crate::load::LOAD;
use crate::setting::{Setting, Whose};
use crate::stage::Stage;
use crate::target::Transport;

const HOUR: i64 = 3600;

/// The offsets of one of several clocks in turn, in seconds.
const OFF: [i64; 4] = [3, -2, 4, -3];

/// Enough that each kind is on all servers, and on all primaries.
const SHARDS: u16 = 4;

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
            // The clock ends ahead of all its earlier times: a job that was scheduled by a clock
            // ahead is due by then.
            faults: |stage| Box::pin(jump(stage, JUMP, &[-HOUR, 0, HOUR, 0, HOUR])),
            punctual: Punctual::Untold,
        },
        Scenario {
            name: "cluster, clocks differ",
            quick: false,
            setting: || Setting {
                cluster: true,
                ..with_one()
            },
            faults: |stage| Box::pin(differ_on_a_cluster(stage)),
            punctual: Punctual::ByLedgers,
        },
        Scenario {
            name: "servers, clocks differ",
            quick: false,
            setting: || Setting {
                servers: Some(2),
                ..with_one()
            },
            faults: |stage| Box::pin(differ_on_servers(stage)),
            punctual: Punctual::ByLedgers,
        },
        Scenario {
            name: "the classic interface, clocks differ",
            quick: false,
            setting: || Setting {
                servers: Some(2),
                target: Some(Transport::Classic),
                ..with_one()
            },
            faults: |stage| Box::pin(differ_under_shared_ids(stage)),
            // The clients of this interface are not told when a job was due.
            punctual: Punctual::Untold,
        },
    ]
}

fn with_one() -> Setting {
    Setting {
        shards: Some(SHARDS),
        ..with(Whose::OneServer)
    }
}

fn with(whose: Whose) -> Setting {
    Setting {
        clock: Some(whose),
        ..Setting::default()
    }
}

/// Sets the clock to each value in turn, until the time is over; it stays at the last.
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

async fn differ_on_a_cluster(stage: &mut Stage) -> Result {
    let cluster = stage.deployment.cluster()?;
    // After a clock was set, a node takes its latest message for an old one.
    cluster.is_patient().await?;
    let tags = cluster.ledgers_on(0, LOAD).await?;
    differ(stage, stage.part(&tags)).await
}

async fn differ_on_servers(stage: &mut Stage) -> Result {
    let part = stage.part_on(0)?;
    differ(stage, part).await
}

async fn differ_under_shared_ids(stage: &mut Stage) -> Result {
    stage
        .sharing_ids(async |stage| differ_on_servers(stage).await)
        .await?
}

/// Sets the clock of the servers of these ledgers again and again, ahead of the others and behind
/// them. In the end it is off.
async fn differ(stage: &mut Stage, part: Part) -> Result {
    let end = stage.until_the_end();
    // It may be behind from the last time.
    let mut before = *OFF.iter().min().expect("there are some");
    for off in OFF.iter().cycle() {
        stage.strike(CLOCK);
        let ahead = u64::try_from(off - before).unwrap_or(0);
        let since = now() - Duration::from_secs(ahead).as_micros() as Micros;
        stage.clock()?.set(*off)?;
        // Jobs that would have been due in the skipped time are due at once, and late by that
        // clock.
        stage.suffered(part.clone(), since);
        before = *off;
        sleep(stage.some_ms(1000..2000)).await;
        if Instant::now() > end {
            break;
        }
    }
    Ok(())
}
