//! Plain commands that come within two milliseconds of the time of their key, while workers die and
//! Redis looks for dead keys more often or less.

use tokio::time::{Instant, sleep};

use super::{Punctual, Result, Scenario};
use crate::setting::Setting;
use crate::stage::Stage;

pub(super) fn all() -> Vec<Scenario> {
    vec![Scenario {
        name: "keys race their time",
        quick: false,
        setting: || Setting {
            keys_to_jobs: Some(0.2),
            races: true,
            ..Setting::default()
        },
        faults: |stage| Box::pin(race(stage)),
        punctual: Punctual::Throughout,
    }]
}

/// Redis looks for dead keys once in a second, so that only clients make them expire, and then
/// every other millisecond; and one of three workers is killed.
async fn race(stage: &mut Stage) -> Result {
    let end = stage.until_the_end();
    let usual: Vec<String> = stage.deployment.command(&["CONFIG", "GET", "hz"]).await?;
    while Instant::now() < end {
        for hz in ["1", "500"] {
            stage.strike("CONFIG SET hz");
            set_hz(stage, hz).await?;
            sleep(stage.some_ms(300..1000)).await;
        }
        let number = stage.some_worker();
        stage.kill(number);
        sleep(stage.some_ms(50..700)).await;
        stage.start(number);
        sleep(stage.some_ms(300..1000)).await;
    }
    set_hz(stage, &usual[1]).await
}

async fn set_hz(stage: &Stage, hz: &str) -> Result {
    let set = ["CONFIG", "SET", "hz", hz];
    Ok(stage.deployment.command(&set).await?)
}
