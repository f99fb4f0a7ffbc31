//! A PostgreSQL beside Redis that is killed, cut off or slow, and daemons between them that are killed.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{Punctual, Result, Scenario};
use crate::daemons::DAEMONS;
use crate::setting::Setting;
use crate::stage::{PATIENCE, Stage};

/// How many stories begin in a second: unoptimised daemons and PostgreSQL work beside them.
const STORIES: f64 = 40.0;

/// The moments at which PostgreSQL is killed, in turn.
const MOMENTS: [Moment; 4] = [
    Moment::InCopy,
    Moment::BeforeCommit,
    Moment::AfterCommit,
    Moment::Any,
];

/// How long each reply of a slow database takes: a batch needs a dozen of them.
const SLOW: Duration = Duration::from_millis(150);

/// The ways to lose a connection, each once at the least.
const WAYS: usize = 3;

pub(super) fn all() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "kill PostgreSQL",
            quick: true,
            setting: || beside(&[]),
            faults: |stage| Box::pin(kill(stage)),
            punctual: Punctual::Throughout,
        },
        Scenario {
            name: "cut PostgreSQL off",
            quick: false,
            setting: || beside(&[]),
            faults: |stage| Box::pin(cut_off(stage)),
            punctual: Punctual::Throughout,
        },
        Scenario {
            name: "a slow PostgreSQL",
            quick: false,
            setting: || beside(&[]),
            faults: |stage| Box::pin(slow_down(stage)),
            punctual: Punctual::Throughout,
        },
        Scenario {
            name: "kill relays and archivers",
            quick: false,
            setting: || beside(&[]),
            faults: |stage| Box::pin(kill_daemons(stage)),
            punctual: Punctual::Throughout,
        },
        Scenario {
            name: "kill copiers and Redis",
            quick: false,
            setting: || Setting {
                copy: true,
                ..beside(&["--appendfsync", "always"])
            },
            faults: |stage| Box::pin(kill_copiers(stage)),
            punctual: Punctual::Afterwards,
        },
        Scenario {
            name: "kill Redis beside PostgreSQL",
            quick: false,
            setting: || beside(&["--appendfsync", "always"]),
            faults: |stage| Box::pin(kill_redis(stage)),
            punctual: Punctual::Afterwards,
        },
    ]
}

pub(super) fn beside(redis: &[&'static str]) -> Setting {
    Setting {
        redis: redis.to_vec(),
        stories: Some(STORIES),
        database: true,
        ..Setting::default()
    }
}

/// When PostgreSQL is killed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Moment {
    /// A daemon copies rows for the archive.
    InCopy,
    /// A daemon asks for a commit, and the server has not heard of it.
    BeforeCommit,
    /// The server has heard of it, and may have carried it out; its answer is lost.
    AfterCommit,
    Any,
}

/// Kills PostgreSQL at each of these moments, again and again.
async fn kill(stage: &mut Stage) -> Result {
    let end = stage.until_the_end();
    for turn in 0.. {
        if turn >= MOMENTS.len() && Instant::now() >= end {
            break;
        }
        kill_at(stage, MOMENTS[turn % MOMENTS.len()]).await?;
        sleep(stage.some_ms(50..700)).await;
        stage.begin_postgres().await?;
        sleep(stage.some_ms(200..800)).await;
    }
    Ok(())
}

async fn kill_at(stage: &mut Stage, moment: Moment) -> Result {
    let network = &stage.database()?.network;
    match moment {
        // The head of a copy in the binary format.
        Moment::InCopy => network.freeze_before("PGCOPY"),
        Moment::BeforeCommit => network.freeze_before("COMMIT"),
        Moment::AfterCommit => network.freeze_after("COMMIT"),
        Moment::Any => {}
    }
    let deadline = Instant::now() + PATIENCE;
    while moment != Moment::Any && !stage.database()?.network.is_frozen() {
        if Instant::now() > deadline {
            return Err("no daemon stores anything".into());
        }
        sleep(Duration::from_millis(1)).await;
    }
    sleep(stage.some_ms(0..10)).await;
    stage.kill_postgres().await?;
    stage.database()?.network.thaw();
    Ok(())
}

/// The connections of the daemons end, or nothing passes on them any more and nobody is told, or the
/// answer to a commit is lost, again and again.
async fn cut_off(stage: &mut Stage) -> Result {
    let end = stage.until_the_end();
    for turn in 0.. {
        if turn >= WAYS && Instant::now() >= end {
            break;
        }
        stage.strike("the network to PostgreSQL fails");
        let network = &stage.database()?.network;
        match turn % WAYS {
            0 => network.lose("COMMIT"),
            1 => network.cut(),
            _ => network.forget_connections(),
        }
        sleep(stage.some_ms(200..1500)).await;
    }
    Ok(())
}

/// Each answer takes long, all the time.
async fn slow_down(stage: &mut Stage) -> Result {
    stage.strike("PostgreSQL is slow");
    stage.database()?.network.slow_down(SLOW);
    sleep(stage.span).await;
    stage.database()?.network.slow_down(Duration::ZERO);
    Ok(())
}

/// Kills one of two daemons, or both, at any time; they come back after a moment.
async fn kill_daemons(stage: &mut Stage) -> Result {
    let end = stage.until_the_end();
    for turn in 0.. {
        if turn > DAEMONS && Instant::now() >= end {
            break;
        }
        let those = match turn % (DAEMONS + 1) {
            DAEMONS => 0..DAEMONS,
            one => one..one + 1,
        };
        for number in those.clone() {
            stage.kill_relay(number)?;
        }
        sleep(stage.some_ms(0..500)).await;
        for number in those {
            stage.start_relay(number)?;
        }
        sleep(stage.some_ms(200..1200)).await;
    }
    Ok(())
}

/// Kills each copier before or after a commit arrives, or at any time, and then Redis, which keeps all
/// answered writes.
async fn kill_copiers(stage: &mut Stage) -> Result {
    let end = stage.until_the_end();
    for turn in 0.. {
        if turn >= 2 * DAEMONS && Instant::now() >= end {
            break;
        }
        let number = turn % DAEMONS;
        let patience = stage.some_ms(100..400);
        if stage.some(4) == 0 {
            // The answer to a commit is lost: Redis is never told of it by this copier.
            stage.database()?.network.lose("COMMIT");
            sleep(patience).await;
            stage.kill_relay(number)?;
        } else {
            // A commit never arrives: Redis must not have been told of it. The whole statement is named,
            // as a copier begins with `READ COMMITTED`.
            stage.database()?.network.freeze_before("COMMIT\0");
            sleep(patience).await;
            stage.kill_relay(number)?;
            stage.database()?.network.cut();
            stage.database()?.network.thaw();
        }
        sleep(stage.some_ms(0..500)).await;
        stage.strike("Redis is killed");
        stage.deployment.server().kill_server().await?;
        sleep(stage.some_ms(50..800)).await;
        stage.deployment.server().restart().await?;
        stage.start_relay(number)?;
        sleep(stage.some_ms(500..1500)).await;
    }
    Ok(())
}

/// Kills Redis, which keeps all answered writes; now and then together with PostgreSQL and a daemon.
async fn kill_redis(stage: &mut Stage) -> Result {
    let end = stage.until_the_end();
    for turn in 0.. {
        if turn > 1 && Instant::now() >= end {
            break;
        }
        let is_all = turn % 2 == 1;
        stage.strike("Redis is killed");
        stage.deployment.server().kill_server().await?;
        if is_all {
            stage.kill_relay(0)?;
            stage.kill_postgres().await?;
        }
        sleep(stage.some_ms(50..1000)).await;
        stage.deployment.server().restart().await?;
        if is_all {
            stage.start_relay(0)?;
            stage.begin_postgres().await?;
        }
        sleep(stage.some_ms(700..1500)).await;
    }
    Ok(())
}
