//! One scenario from its first process to its row in the table.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::checker;
use crate::kept::Kept;
use crate::leases::{self, Leases};
use crate::report::Row;
use crate::scenarios::Scenario;
use crate::stage::Stage;
use crate::strain::Gauge;

/// Good weather, before and after the bad: enough for a p99.
const BEFORE: Duration = Duration::from_secs(2);
const AFTER: Duration = Duration::from_secs(4);

/// Plays a scenario whose faults go on for `span`. Its journals stay in `dir`.
pub(crate) async fn play(scenario: &Scenario, dir: PathBuf, seed: u64, span: Duration) -> Row {
    let gauge = Gauge::start();
    match try_to_play(scenario, &dir, seed, span).await {
        Ok(end) => {
            let strain = gauge.stop();
            let mut row = checker::check(scenario.name, &dir, &end.kept, &end.leases, &strain);
            row.leases += end.leases.wrong.len();
            row.strain = strain;
            row.violations.extend(end.leases.wrong);
            row.violations.extend(end.wrong);
            scenario.expect(&mut row);
            row
        }
        Err(error) => {
            let mut row = Row::new(scenario.name);
            row.violations.push(error);
            row
        }
    }
}

/// What is left of a trial.
struct End {
    kept: Kept,
    /// What the log of Redis shows.
    leases: Leases,
    /// What went wrong on the way.
    wrong: Vec<String>,
}

async fn try_to_play(
    scenario: &Scenario,
    dir: &Path,
    seed: u64,
    span: Duration,
) -> Result<End, String> {
    let setting = (scenario.setting)();
    let mut stage = Stage::set(setting, dir.to_owned(), seed, span).await?;
    stage.produce();
    stage.live_for(BEFORE).await;
    stage.weather(true);
    let mut wrong = Vec::new();
    if let Err(error) = (scenario.faults)(&mut stage).await {
        wrong.push(format!("the fault could not be made: {error}"));
    }
    stage.weather(false);
    stage.live_for(AFTER).await;
    wrong.extend(stage.stop_producing().await);
    let client = stage.client().await?;
    wrong.extend(stage.drain(&client).await.err());
    wrong.extend(stage.stop_working().await);
    let mut redis = match stage.site.is_one_place() {
        true => Some(
            stage
                .site
                .redis()
                .await
                .map_err(|error| error.to_string())?,
        ),
        false => None,
    };
    let kept = Kept::read(&client, redis.as_mut()).await;
    let kept = kept.map_err(|error| format!("what is left cannot be read: {error:?}"))?;
    let logs = stage.kept_logs().map_err(|error| error.to_string())?;
    let leases = leases::read(&logs)?;
    Ok(End {
        kept,
        leases,
        wrong,
    })
}
