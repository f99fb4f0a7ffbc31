//! One of several independent servers: it takes its shards with it, and nothing else.

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

/// So that each kind is on all of them.
const SHARDS: u16 = 4;

/// What the kinds are given in turn. Between two servers, no job changes its own by that.
const NUMBERS: [u16; 2] = [2, SHARDS];

/// For how many ms one of them is away: longer than a lease, and than anybody waits for an answer.
const AWAY: std::ops::Range<u64> = 3500..5000;

/// For how long all of them are there before the next one is taken away: what it has is judged again
/// by then.
const THERE: Duration = Duration::from_secs(3);

/// What happens to it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    /// Its disk keeps what was acknowledged.
    Killed,
    /// It hangs.
    Stopped,
    /// Nobody reaches it.
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

/// Each time another one, as chance has it.
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

/// A server is killed while kinds are given another number of shards. That needs all of them: it stops,
/// is refused, and goes on when the server is there again.
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
            // What is on its way from one server to another needs both.
            stage.suffered(stage.part_of_kind(kind), on_its_way);
        }
        if shards == SHARDS && Instant::now() > end {
            return Ok(());
        }
    }
}
