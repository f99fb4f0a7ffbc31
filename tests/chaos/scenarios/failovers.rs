//! A primary that sentinels replace by another one.

use std::time::Duration;

use rustix::process::Signal;
use tokio::time::{Instant, sleep};

use super::restarts::{MARK, mark};
use super::{Punctual, Result, Scenario};
use crate::journal::Micros;
use crate::stage::{Setting, Stage};

/// How soon everybody has left an old primary that still answers: what it acknowledges is
/// forgotten, and from then on nothing may be.
const LEFT: Duration = Duration::from_millis(500);

/// For how long one that comes back takes itself for the primary.
const BACK: Duration = Duration::from_secs(2);

/// What happens to the primary.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Killed,
    /// It is to hand over, and answers all the while.
    Relieved,
    /// It hangs, and goes on when there is another one.
    Stopped,
    /// Nobody reaches it, nor does it reach anybody, until there is another one.
    CutOff,
    /// It is killed while one of the sentinels hangs, which then knows the old one.
    KilledUnseen,
}

macro_rules! scenarios {
    ($($name:literal, $quick:literal, $what:expr;)*) => {
        vec![$(Scenario {
            name: $name,
            quick: $quick,
            setting: || Setting {
                sentinels: true,
                network: $what == What::CutOff,
                ..Setting::default()
            },
            faults: |stage| Box::pin(fail_over(stage, $what)),
            punctual: Punctual::Afterwards,
        }),*]
    };
}

pub(super) fn all() -> Vec<Scenario> {
    scenarios! {
        "fail-over, killed", true, What::Killed;
        "fail-over, asked for", false, What::Relieved;
        "fail-over, stopped", false, What::Stopped;
        "fail-over, cut off", false, What::CutOff;
        "fail-over, unseen by one", false, What::KilledUnseen;
    }
}

async fn fail_over(stage: &mut Stage, what: What) -> Result {
    let end = stage.until_the_end();
    while Instant::now() < end {
        let marking = mark(stage).await?;
        sleep(stage.some_ms(700..1500)).await;
        match what {
            What::Killed => {
                stage.strike("the primary is killed");
                stage.server.kill_server().await?;
            }
            What::Relieved => {
                stage.strike("SENTINEL FAILOVER");
                stage.sentinels()?.fail_over().await?;
            }
            What::Stopped => {
                stage.strike("the primary is stopped");
                stage.signal_server(Signal::STOP);
            }
            What::CutOff => {
                stage.strike("the primary is cut off");
                stage.sentinels()?.cut_off();
            }
            What::KilledUnseen => {
                stage.strike("a sentinel is stopped");
                stage.sentinels()?.signal_one(Signal::STOP);
                stage.server.kill_server().await?;
            }
        }
        let old = stage.follow().await?;
        marking.abort();
        let kept: Option<Micros> = stage.command(&["GET", MARK]).await?;
        sleep(LEFT).await;
        stage.rolled_back(kept.unwrap_or(0));
        match what {
            What::Killed => stage.sentinels()?.other(old).restart().await?,
            What::Relieved => {}
            What::Stopped => {
                stage.signal_other(old, Signal::CONT)?;
                sleep(BACK).await;
            }
            What::CutOff => {
                stage.sentinels()?.join();
                sleep(BACK).await;
            }
            What::KilledUnseen => {
                stage.sentinels()?.signal_one(Signal::CONT);
                stage.sentinels()?.other(old).restart().await?;
            }
        }
        stage.rejoin(old).await?;
    }
    Ok(())
}
