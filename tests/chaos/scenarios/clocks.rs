//! Wall clocks that jump by an hour, while everything runs; and clocks of several servers that
//! differ, where one takes the place of another, too.

use std::time::Duration;

use keyfall_testing::journals::{Micros, now};
use tokio::time::{Instant, sleep};

use super::failovers::LEFT;
use super::restarts::{MARK, first_mark, mark};
use super::{Punctual, Result, Scenario};
use crate::adopted::JUMP;
use crate::journal::{CLOCK, Part};
use crate::load::LOAD;
use crate::sentinels::{REPLICAS, SERVERS};
use crate::setting::{Setting, Whose};
use crate::stage::Stage;
use crate::target::Transport;

const HOUR: i64 = 3600;

/// How far the clock of the next primary differs, and to which offset it is set later.
#[derive(Clone, Copy)]
struct Steps {
    before: i64,
    after: i64,
}

const AHEAD: Steps = Steps {
    before: 3 * MINUTE,
    after: -2 * MINUTE,
};
const BEHIND: Steps = Steps {
    before: -3 * MINUTE,
    after: 4 * MINUTE,
};
const MINUTE: i64 = 60;

/// Ahead of all these clocks: each job that was scheduled by one of them is due by then.
const PAST_ALL: i64 = 10 * MINUTE;

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
            name: "fail-over, clock ahead",
            quick: false,
            setting: with_sentinels,
            faults: |stage| Box::pin(fail_over(stage, AHEAD)),
            punctual: Punctual::Untold,
        },
        Scenario {
            name: "fail-over, clock behind",
            quick: false,
            setting: with_sentinels,
            faults: |stage| Box::pin(fail_over(stage, BEHIND)),
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

fn with_sentinels() -> Setting {
    Setting {
        sentinels: true,
        ..with(Whose::EachServer)
    }
}

fn with(whose: Whose) -> Setting {
    Setting {
        clock: Some(whose),
        recurring: matches!(whose, Whose::Redis | Whose::Workers),
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

/// A primary is killed, a server with another clock takes its place, and that clock is set as well;
/// a worker dies with the primary.
async fn fail_over(stage: &mut Stage, steps: Steps) -> Result {
    let end = stage.until_the_end();
    while Instant::now() < end {
        let replicas = stage.deployment.sentinels()?.other_places();
        for place in replicas {
            stage.clock()?.of_server(place).set(steps.before)?;
        }
        // A replica may take its primary for lost because of that.
        stage.deployment.are_followed().await?;
        let mut redis = stage.deployment.redis().await?;
        let before = first_mark(&mut redis, MARK, REPLICAS).await?;
        let marking = mark(stage).await?;
        sleep(stage.some_ms(700..1500)).await;
        stage.deployment.sentinels()?.are_alert(true).await?;
        let worker = stage.some_worker();
        stage.kill(worker);
        stage.strike("the primary is killed");
        stage.deployment.server().kill_server().await?;
        let (old, since) = stage.deployment.follow().await?;
        stage.has_another_clock(since);
        marking.abort();
        let kept: Option<Micros> = stage.deployment.command(&["GET", MARK]).await?;
        sleep(LEFT).await;
        stage.rolled_back(kept, before);
        stage.start(worker);
        sleep(stage.some_ms(500..1500)).await;
        let place = stage.deployment.sentinels()?.place();
        stage.strike(JUMP);
        stage.clock()?.of_server(place).set(steps.after)?;
        sleep(stage.some_ms(500..1500)).await;
        stage.deployment.sentinels()?.other(old).restart().await?;
        stage.deployment.sentinels()?.are_alert(false).await?;
        stage.deployment.rejoin(old).await?;
    }
    stage.strike(JUMP);
    for place in SERVERS {
        stage.clock()?.of_server(place).set(PAST_ALL)?;
    }
    Ok(stage.deployment.are_followed().await?)
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
