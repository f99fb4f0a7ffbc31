//! The network between Redis and everybody else.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{Promises, Result, Scenario};
use crate::order::Plan;
use crate::proxy::{Ill, Weather};
use crate::stage::{Setting, Stage};

/// Called where something is damaged, and every five minutes: not here.
const RARE: [&str; 2] = ["audit", "trim"];

/// After this time everything has been called often enough.
const LONG: Duration = Duration::from_secs(10);

macro_rules! scenarios {
    ($($name:literal, $quick:literal, $delay:literal ms, $ill:expr;)*) => {
        vec![$(Scenario {
            name: $name,
            quick: $quick,
            setting: || Setting {
                network: true,
                // Their leases are renewed.
                special: vec![(Plan::Slow(2500), 100)],
                ..Setting::default()
            },
            faults: |stage| Box::pin(suffer(stage, Weather {
                delay: Duration::from_millis($delay),
                ill: $ill,
            })),
            promises: Promises::USUAL,
        }),*]
    };
}

pub(super) fn all() -> Vec<Scenario> {
    scenarios! {
        "replies are delayed", false, 300 ms, None;
        "requests are lost", false, 0 ms, each(Ill::LosesRequest, 500);
        "replies are swallowed", true, 0 ms, each(Ill::SwallowsReply, 500);
        "originals come late", true, 0 ms, each(Ill::DeliversLate, 500);
        "half-open connections", false, 0 ms, each(Ill::HalfOpen, 3000);
    }
}

fn each(ill: Ill, ms: u64) -> Option<(Ill, Duration)> {
    Some((ill, Duration::from_millis(ms)))
}

async fn suffer(stage: &mut Stage, weather: Weather) -> Result {
    stage.strike("the network");
    stage.network()?.set(weather);
    let end = stage.until_the_end();
    while Instant::now() < end {
        // What it leaves is taken over.
        let number = stage.some_worker();
        stage.kill(number);
        stage.start(number);
        sleep(Duration::from_secs(3).min(end - Instant::now())).await;
    }
    let spared = stage.network()?.spared();
    stage.network()?.set(Weather::default());
    let spared: Vec<&String> = spared
        .iter()
        .filter(|name| !RARE.contains(&name.as_str()))
        .collect();
    if weather.ill.is_some() && stage.span >= LONG && !spared.is_empty() {
        return Err(format!("these scripts were never met: {spared:?}").into());
    }
    Ok(())
}
