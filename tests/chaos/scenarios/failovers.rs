//! A primary that sentinels replace.

use std::time::Duration;

use keyfall_testing::journals::Micros;
use rustix::process::Signal;
use tokio::time::{Instant, sleep};

use super::restarts::{MARK, first_mark, mark};
use super::{Punctual, Result, Scenario};
use crate::sentinels::REPLICAS;
use crate::setting::Setting;
use crate::stage::Stage;

/// How soon all clients must have left an old primary that still answers: its acknowledged writes
/// are forgotten, and no later write may be.
pub(super) const LEFT: Duration = Duration::from_millis(500);

/// How long a server that comes back takes itself for the primary.
const BACK: Duration = Duration::from_secs(2);

/// The event that hits the primary.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Killed,
    /// It is told to hand over, and answers all the while.
    Relieved,
    /// It hangs, and goes on when another primary has its place.
    Stopped,
    /// It is cut off from everybody until another primary has its place.
    CutOff,
    /// It is killed while one of the sentinels hangs; this sentinel then knows only the old one.
    KilledUnseen,
    /// It is killed while one of the sentinels is cut off from all servers and from the others, and
    /// keeps naming the old primary to clients.
    KilledBehind,
}

macro_rules! scenarios {
    ($($name:literal, $quick:literal, $functions:literal, $what:expr;)*) => {
        vec![$(Scenario {
            name: $name,
            quick: $quick,
            setting: || Setting {
                sentinels: true,
                functions: $functions,
                network: $what == What::CutOff,
                wires: $what == What::KilledBehind,
                recurring: !$functions,
                ..Setting::default()
            },
            faults: |stage| Box::pin(fail_over(stage, $what)),
            punctual: Punctual::Afterwards,
        }),*]
    };
}

pub(super) fn all() -> Vec<Scenario> {
    let mut all = scenarios! {
        "fail-over, killed", true, false, What::Killed;
        "fail-over, asked for", false, false, What::Relieved;
        "fail-over, stopped", false, false, What::Stopped;
        "fail-over, cut off", false, false, What::CutOff;
        "fail-over, unseen by one", false, false, What::KilledUnseen;
        "fail-over, one cut off", false, false, What::KilledBehind;
        "functions, killed", false, true, What::Killed;
        "functions, asked for", false, true, What::Relieved;
        "functions, stopped", false, true, What::Stopped;
    };
    all.push(Scenario {
        name: "replicas out of reach",
        quick: false,
        setting: || Setting {
            redis: vec![
                "--min-replicas-to-write",
                "1",
                "--min-replicas-max-lag",
                LAG,
            ],
            sentinels: true,
            wires: true,
            ..Setting::default()
        },
        faults: |stage| Box::pin(lose_replicas(stage)),
        punctual: Punctual::Afterwards,
    });
    all
}

/// After so many seconds without its replicas, a primary takes no writes.
const LAG: &str = "2";

/// How long it takes no writes.
const REFUSING: Duration = Duration::from_secs(2);

/// Cuts the primary off from its replicas, but neither from sentinels nor from clients.
async fn lose_replicas(stage: &mut Stage) -> Result {
    let end = stage.until_the_end();
    while Instant::now() < end {
        stage.strike("the replicas are out of reach");
        stage.deployment.sentinels()?.cut_off_replicas()?;
        loop {
            let set: redis::RedisResult<()> = stage.deployment.command(&["SET", MARK, ""]).await;
            match set {
                Err(error) if error.code() == Some("NOREPLICAS") => break,
                Err(error) => return Err(error.into()),
                Ok(()) => sleep(Duration::from_millis(20)).await,
            }
        }
        sleep(REFUSING).await;
        stage.deployment.sentinels()?.join();
        stage.deployment.are_followed().await?;
    }
    Ok(())
}

async fn fail_over(stage: &mut Stage, what: What) -> Result {
    let end = stage.until_the_end();
    while Instant::now() < end {
        let mut redis = stage.deployment.redis().await?;
        let before = first_mark(&mut redis, MARK, REPLICAS).await?;
        let marking = mark(stage).await?;
        sleep(stage.some_ms(700..1500)).await;
        stage
            .deployment
            .sentinels()?
            .are_alert(what != What::Relieved)
            .await?;
        match what {
            What::Killed => {
                stage.strike("the primary is killed");
                stage.deployment.server().kill_server().await?;
            }
            What::Relieved => {
                stage.strike("SENTINEL FAILOVER");
                stage.deployment.sentinels()?.fail_over().await?;
            }
            What::Stopped => {
                stage.strike("the primary is stopped");
                stage.deployment.signal_server(Signal::STOP);
            }
            What::CutOff => {
                stage.strike("the primary is cut off");
                stage.deployment.sentinels()?.cut_off();
            }
            What::KilledUnseen => {
                stage.strike("a sentinel is stopped");
                stage.deployment.sentinels()?.signal_one(Signal::STOP);
                stage.deployment.server().kill_server().await?;
            }
            What::KilledBehind => {
                stage.strike("a sentinel is cut off");
                stage.deployment.sentinels()?.cut_off_one()?;
                stage.deployment.server().kill_server().await?;
            }
        }
        let (old, since) = stage.deployment.follow().await?;
        stage.is_served(since);
        marking.abort();
        let kept: Option<Micros> = stage.deployment.command(&["GET", MARK]).await?;
        sleep(LEFT).await;
        stage.rolled_back(kept, before);
        match what {
            What::Killed => stage.deployment.sentinels()?.other(old).restart().await?,
            What::Relieved => {}
            What::Stopped => {
                stage.deployment.signal_other(old, Signal::CONT)?;
                sleep(BACK).await;
            }
            What::CutOff => {
                stage.deployment.sentinels()?.join();
                sleep(BACK).await;
            }
            What::KilledUnseen => {
                stage.deployment.sentinels()?.signal_one(Signal::CONT);
                stage.deployment.sentinels()?.other(old).restart().await?;
            }
            What::KilledBehind => {
                sleep(BACK).await;
                stage.deployment.sentinels()?.join();
                stage.deployment.sentinels()?.other(old).restart().await?;
            }
        }
        stage.deployment.sentinels()?.are_alert(false).await?;
        stage.deployment.rejoin(old).await?;
    }
    Ok(())
}
