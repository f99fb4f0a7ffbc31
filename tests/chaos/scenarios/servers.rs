//! A fault of one of several independent servers: its shards suffer, and no others.

use std::time::Duration;

use keyfall_testing::journals::now;
use rustix::process::Signal;
use tokio::time::{Instant, sleep};

use super::{Punctual, Result, Scenario};
use crate::load::KINDS;
use crate::resharding;
use crate::setting::Setting;
use crate::several::Number;
use crate::stage::Stage;

/// Enough that each kind is on all servers.
const SHARDS: u16 = 4;

/// The numbers of shards that kinds get in turn. No job changes its server by that, between two
/// servers.
const NUMBERS: [u16; 2] = [2, SHARDS];

/// How many ms a server is away: longer than a lease, and than any wait for an answer.
const AWAY: std::ops::Range<u64> = 3500..5000;

/// How long all servers are there before the next one is taken away: the jobs of the last one are
/// judged again by then.
const THERE: Duration = Duration::from_secs(3);

/// The event that hits the server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    /// It is killed; its disk keeps all acknowledged writes.
    Killed,
    /// It hangs.
    Stopped,
    /// Its network is cut.
    CutOff,
}

macro_rules! scenarios {
    ($($name:literal, $quick:literal, $servers:literal, $what:expr, |$stage:ident| $faults:expr;)*) => {
        vec![$(Scenario {
            name: $name,
            quick: $quick,
            setting: || Setting {
                redis: vec!["--appendfsync", "always"],
                servers: Some($servers),
                network: $what == What::CutOff,
                shards: Some(SHARDS),
                ..Setting::default()
            },
            faults: |$stage| Box::pin($faults),
            punctual: Punctual::Afterwards,
        }),*]
    };
}

pub(super) fn all() -> Vec<Scenario> {
    scenarios! {
        "servers, one killed", true, 3, What::Killed, |stage| take_away(stage, What::Killed);
        "servers, one stopped", false, 2, What::Stopped, |stage| take_away(stage, What::Stopped);
        "servers, one cut off", false, 2, What::CutOff, |stage| take_away(stage, What::CutOff);
        "servers, shards", false, 2, What::Killed, |stage| reshard(stage);
    }
}

/// Takes away another server each time, chosen by chance.
async fn take_away(stage: &mut Stage, what: What) -> Result {
    let end = stage.until_the_end();
    loop {
        let place = some_server(stage)?;
        let since = now();
        match what {
            What::Killed => {
                stage.strike("a server is killed");
                stage
                    .deployment
                    .several()?
                    .server(place)
                    .kill_server()
                    .await?;
            }
            What::Stopped => {
                stage.strike("a server is stopped");
                stage.deployment.several()?.signal(place, Signal::STOP);
            }
            What::CutOff => {
                stage.strike("a server is cut off");
                stage.deployment.several()?.cut(place, true)?;
            }
        }
        sleep(stage.some_ms(AWAY)).await;
        let several = stage.deployment.several()?;
        match what {
            What::Killed => several.server(place).restart().await?,
            What::Stopped => several.signal(place, Signal::CONT),
            What::CutOff => several.cut(place, false)?,
        }
        let part = stage.part_on(place)?;
        stage.suffered(part, since);
        if Instant::now() > end {
            return Ok(());
        }
        sleep(THERE).await;
    }
}

fn some_server(stage: &mut Stage) -> Result<Number> {
    let count = stage.deployment.several()?.count();
    Ok(stage.some(count.into()).try_into()?)
}

/// A server is killed while kinds get another number of shards. The change needs all servers: it
/// stops, is refused, and goes on when the server is there again.
async fn reshard(stage: &mut Stage) -> Result {
    let end = stage.until_the_end();
    let mut turns = NUMBERS.iter().cycle();
    loop {
        let shards = *turns.next().expect("it is a circle");
        for kind in KINDS {
            let place = some_server(stage)?;
            stage.strike("resharding is begun, and a server is killed");
            let on_its_way = now();
            let begun = resharding::start(stage, kind, shards);
            sleep(stage.some_ms(10..400)).await;
            let since = now();
            stage
                .deployment
                .several()?
                .server(place)
                .kill_server()
                .await?;
            drop(begun);
            resharding::is_refused(stage, kind, shards).await?;
            stage.deployment.several()?.server(place).restart().await?;
            let part = stage.part_on(place)?;
            stage.suffered(part, since);
            resharding::finish(stage, kind, shards).await?;
            // A job on its way from one server to another needs both.
            stage.suffered(stage.part_of_kind(kind), on_its_way);
        }
        if shards == SHARDS && Instant::now() > end {
            return Ok(());
        }
    }
}
