//! A primary that is cut off from its replicas and from most sentinels, together with a sentinel and
//! some clients: packets are lost, and nobody is told.

use std::time::Duration;

use keyfall_testing::journals::Micros;
use tokio::time::{Instant, sleep};

use super::failovers::LEFT;
use super::restarts::{MARK, first_mark, mark};
use super::{Punctual, Result, Scenario};
use crate::sentinels::{Lost, REPLICAS};
use crate::setting::Setting;
use crate::stage::Stage;

/// After so many seconds without its replicas, a primary takes no writes: before there is another
/// one.
const LAG: &str = "2";

/// How long both sides go on by themselves.
const APART: Duration = Duration::from_secs(2);

macro_rules! scenarios {
    ($($name:literal, $lost:expr;)*) => {
        vec![$(Scenario {
            name: $name,
            quick: false,
            setting: || Setting {
                redis: vec![
                    "--min-replicas-to-write",
                    "1",
                    "--min-replicas-max-lag",
                    LAG,
                ],
                sentinels: true,
                hosts: true,
                ..Setting::default()
            },
            faults: |stage| Box::pin(part(stage, $lost)),
            punctual: Punctual::Afterwards,
        }),*]
    };
}

pub(super) fn all() -> Vec<Scenario> {
    scenarios! {
        "partition", Lost::All;
        "partition, nothing gets out", Lost::Out;
        "partition, nothing gets in", Lost::In;
    }
}

async fn part(stage: &mut Stage, lost: Lost) -> Result {
    let end = stage.until_the_end();
    while Instant::now() < end {
        let mut redis = stage.deployment.redis().await?;
        let before = first_mark(&mut redis, MARK, REPLICAS).await?;
        let marking = mark(stage).await?;
        sleep(stage.some_ms(700..1500)).await;
        stage.deployment.sentinels()?.are_alert(true).await?;
        stage.strike("packets are lost");
        stage.deployment.sentinels()?.part(lost)?;
        let (old, since) = stage.deployment.follow().await?;
        stage.is_served(since);
        let kept: Option<Micros> = stage.deployment.command(&["GET", MARK]).await?;
        // While the old primary hears its replicas, it takes writes that none of them gets.
        stage.deployment.sentinels()?.refuses(old).await?;
        marking.abort();
        sleep(LEFT).await;
        stage.rolled_back(kept, before);
        sleep(APART).await;
        stage.deployment.sentinels()?.unite()?;
        stage.deployment.sentinels()?.are_alert(false).await?;
        stage.deployment.rejoin(old).await?;
    }
    Ok(())
}
