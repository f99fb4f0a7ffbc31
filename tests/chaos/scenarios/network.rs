//! The network between Redis and its clients.

use std::time::Duration;

use keyfall_testing::proxies::{Ill, Weather};
use tokio::time::{Instant, sleep};

use super::{Punctual, Result, Scenario};
use crate::order::Plan;
use crate::setting::Setting;
use crate::stage::Stage;

/// From this length on, the faults go on until they have hit every script.
const LONG: Duration = Duration::from_secs(5);

/// The longest extension. Services seldom make some of the calls.
const MORE: Duration = Duration::from_secs(40);

macro_rules! scenarios {
    ($($name:literal, $quick:literal, $delay:literal ms, $ill:expr;)*) => {
        vec![$(Scenario {
            name: $name,
            quick: $quick,
            setting: || Setting {
                network: true,
                // The leases of these jobs are renewed.
                special: vec![(Plan::Slow(2500), 100)],
                ..Setting::default()
            },
            faults: |stage| Box::pin(suffer(stage, Weather {
                delay: Duration::from_millis($delay),
                ill: $ill,
                cut: false,
            })),
            punctual: Punctual::Afterwards,
        }),*]
    };
}

pub(super) fn all() -> Vec<Scenario> {
    scenarios! {
        "replies are delayed", false, 300 ms, None;
        "requests are lost", false, 0 ms, each(Ill::LosesRequest, 250);
        "replies are swallowed", true, 0 ms, each(Ill::SwallowsReply, 250);
        "originals come late", true, 0 ms, each(Ill::DeliversLate, 250);
        "half-open connections", false, 0 ms, each(Ill::HalfOpen, 1000);
    }
}

fn each(ill: Ill, ms: u64) -> Option<(Ill, Duration)> {
    Some((ill, Duration::from_millis(ms)))
}

async fn suffer(stage: &mut Stage, weather: Weather) -> Result {
    stage.strike("the network");
    stage.deployment.network()?.set(weather);
    let end = stage.until_the_end();
    // A connection that is dead for seconds makes few calls.
    let meets_all = stage.span > LONG && weather.ill.is_some_and(|(ill, _)| ill != Ill::HalfOpen);
    let is_over = |spared: &[String]| {
        let patience = if meets_all && !spared.is_empty() {
            MORE
        } else {
            Duration::ZERO
        };
        Instant::now() > end + patience
    };
    let mut spared = stage.deployment.network()?.spared();
    while !is_over(&spared) {
        // Another worker takes over the claims of this one, and begins by trimming.
        let number = stage.some_worker();
        stage.kill(number);
        stage.start(number);
        sleep(Duration::from_secs(4)).await;
        spared = stage.deployment.network()?.spared();
    }
    stage.deployment.network()?.set(Weather::default());
    if meets_all && !spared.is_empty() {
        return Err(format!("these scripts were never met: {spared:?}").into());
    }
    Ok(())
}
