//! Daemons that are killed, their consumers, and the servers between them.

use std::time::Duration;

use rustix::process::Signal;
use tokio::time::{Instant, sleep};

use super::{Punctual, Result, Scenario};
use crate::daemons::DAEMONS;
use crate::journal::STOPPED;
use crate::setting::Setting;
use crate::stage::{Stage, WORKERS};
use crate::target::Transport;

/// The least number of faults: each once.
const TURNS: usize = 5;

macro_rules! scenarios {
    ($($name:literal, $quick:literal, $target:ident, $punctual:ident;)*) => {
        vec![$(Scenario {
            name: $name,
            quick: $quick,
            setting: || Setting {
                target: Some(Transport::$target),
                ..Setting::default()
            },
            faults: |stage| Box::pin(faults(stage, Transport::$target)),
            punctual: Punctual::$punctual,
        }),*]
    };
}

pub(super) fn all() -> Vec<Scenario> {
    let mut all = scenarios! {
        "kill daemons", true, Pull, Afterwards;
        "callbacks", false, Callback, Afterwards;
        "an acknowledged list", true, List, Afterwards;
        "an acknowledged stream", false, Stream, Afterwards;
        // The clients of this interface are not told when a job was due.
        "the classic interface", false, Classic, FromOutside;
    };
    all.push(Scenario {
        name: "topics share their ids",
        quick: false,
        setting: || Setting {
            target: Some(Transport::Classic),
            // The shared ids are the load.
            stories: Some(40.0),
            ..Setting::default()
        },
        faults: |stage| Box::pin(share(stage)),
        punctual: Punctual::FromOutside,
    });
    all.push(Scenario {
        name: "a list that is forgotten",
        quick: false,
        setting: || forgetful(Transport::List, None),
        faults: |stage| Box::pin(forget(stage)),
        punctual: Punctual::Afterwards,
    });
    all.push(Scenario {
        name: "a stream that is forgotten",
        quick: true,
        setting: || forgetful(Transport::Stream, None),
        faults: |stage| Box::pin(forget(stage)),
        punctual: Punctual::Afterwards,
    });
    all.push(Scenario {
        name: "a stream that is forgotten, a minute",
        quick: false,
        setting: || forgetful(Transport::Stream, Some(Duration::from_secs(60))),
        faults: |stage| Box::pin(forget(stage)),
        // A forgotten job comes again after a minute.
        punctual: Punctual::Untold,
    });
    all
}

fn forgetful(target: Transport, lease: Option<Duration>) -> Setting {
    Setting {
        target: Some(target),
        outlet_forgets: true,
        lease,
        ..Setting::default()
    }
}

/// Runs the faults. In the classic interface, ids that topics share are pushed meanwhile.
async fn faults(stage: &mut Stage, target: Transport) -> Result {
    match target {
        Transport::Classic => {
            stage
                .sharing_ids(async |stage| kill(stage, target).await)
                .await?
        }
        _ => kill(stage, target).await,
    }
}

/// Runs the faults while topics have ids in common.
async fn share(stage: &mut Stage) -> Result {
    let target = Transport::Classic;
    let kill = async |stage: &mut Stage| kill(stage, target).await;
    stage.using_common_ids(kill).await?
}

/// While nobody reads, the Redis of the list or the stream is killed and goes back to a snapshot, or
/// comes back empty, or a replica that lags behind takes its place, again and again. Then consumers
/// read new entries.
async fn forget(stage: &mut Stage) -> Result {
    let end = stage.until_the_end();
    for turn in 0.. {
        if turn >= TURNS && Instant::now() >= end {
            return Ok(());
        }
        (0..WORKERS).for_each(|number| stage.kill(number));
        match turn % 3 {
            0 => stage.outlet()?.save().await?,
            1 => {}
            _ => stage.outlet()?.cut_off().await?,
        }
        // Redis forgets these jobs.
        sleep(stage.some_ms(300..1000)).await;
        stage.kill_outlet().await?;
        match turn % 3 {
            0 => stage.outlet()?.restart().await?,
            1 => {
                stage.outlet()?.lose_all()?;
                stage.outlet()?.restart().await?;
            }
            _ => stage.outlet()?.fail_over().await?,
        }
        (0..WORKERS).for_each(|number| stage.start(number));
        sleep(stage.some_ms(1000..2000)).await;
    }
    Ok(())
}

/// One of two daemons is killed, or one of three consumers, or all daemons and a consumer, or all
/// consumers and the Redis between them and the daemons, again and again; all come back after a
/// moment. A receiver is stopped, too, for longer than a call may take.
async fn kill(stage: &mut Stage, target: Transport) -> Result {
    let end = stage.until_the_end();
    for turn in 0.. {
        if turn >= TURNS && Instant::now() >= end {
            return Ok(());
        }
        let one = stage.some_worker();
        let (daemons, consumers) = match turn % TURNS {
            0 => (vec![turn % DAEMONS], vec![]),
            1 => (vec![], vec![one]),
            2 => ((0..DAEMONS).collect(), vec![one]),
            3 => (vec![], (0..WORKERS).collect()),
            _ if target == Transport::Callback => {
                hang(stage, one).await;
                continue;
            }
            _ => continue,
        };
        let all = consumers.len() == WORKERS;
        daemons.iter().for_each(|number| stage.kill_daemon(*number));
        consumers.iter().for_each(|number| stage.kill(*number));
        if all {
            stage.kill_outlet().await?;
        }
        sleep(stage.some_ms(50..700)).await;
        if all {
            stage.restart_outlet().await?;
        }
        daemons
            .iter()
            .for_each(|number| stage.start_daemon(*number));
        consumers.iter().for_each(|number| stage.start(*number));
        sleep(stage.some_ms(300..1000)).await;
    }
    Ok(())
}

/// Stops a receiver, so that nobody gets an answer from it.
async fn hang(stage: &mut Stage, number: usize) {
    stage.signal(number, Signal::STOP, STOPPED);
    sleep(Duration::from_secs(1) + stage.some_ms(100..700)).await;
    stage.signal(number, Signal::CONT, "continued");
    sleep(stage.some_ms(300..1000)).await;
}
