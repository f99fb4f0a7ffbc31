//! One scenario from its first process to its row in the table.

use std::path::{Path, PathBuf};
use std::time::Duration;

use keyfall_testing::journals::{Micros, read_all};
use tokio::time::Instant;

use crate::bounds::LEAST;
use crate::checker;
use crate::database::{self, Accounts, Clerk};
use crate::history::History;
use crate::hosts::Hosts;
use crate::kept::Kept;
use crate::leases::{self, Leases};
use crate::limited::{self, Feeder};
use crate::recurring;
use crate::report::Row;
use crate::scenarios::Scenario;
use crate::series::{self, Mover};
use crate::stage::{PATIENCE, Stage};
use crate::strain::Gauge;

/// The time without faults, before and after them: enough for a p99.
const BEFORE: Duration = Duration::from_secs(2);
const AFTER: Duration = Duration::from_secs(4);

/// How much longer the faults go on if too little was measured of the spared jobs: on a busy
/// machine less happens.
const MORE: Duration = Duration::from_secs(120);

/// Why scenarios with hosts are not played where they cannot be made.
pub(crate) const NO_HOSTS: &str = "no network namespace may be made here";

/// Plays a scenario whose faults go on for `span`. Its journals stay in `dir`.
pub(crate) async fn play(scenario: &Scenario, dir: PathBuf, seed: u64, span: Duration) -> Row {
    if (scenario.setting)().hosts
        && let Some(told) = Hosts::are_refused()
    {
        eprintln!("{}: {told}", scenario.name);
        return Row::skipped(scenario.name, NO_HOSTS);
    }
    let gauge = Gauge::start();
    match try_to_play(scenario, &dir, seed, span, &gauge).await {
        Ok(end) => {
            let (strain, journals) = (gauge.read(), read_all(&dir));
            let mut row = checker::check(scenario.name, &journals, &end.kept, &end.leases, &strain);
            row.leases += end.leases.wrong.len();
            row.strain = strain;
            row.violations.extend(end.leases.wrong);
            if let Some(stored) = &end.recurring {
                let wrong = recurring::judge(&journals, stored, end.forgets);
                row.violations.extend(wrong);
            }
            if let Some(stored) = &end.series {
                let wrong = series::judge(&journals, stored, end.forgets, end.is_set);
                row.violations.extend(wrong);
            }
            if let Some(fed) = &end.limited {
                let wrong = limited::judge(&journals, fed, end.forgets, end.is_set);
                row.violations.extend(wrong);
            }
            if let Some(accounts) = &end.accounts {
                row.violations.extend(database::judge(&journals, accounts));
            }
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

/// The remains of a trial.
struct TrialEnd {
    kept: Kept,
    /// The leases in the log of Redis.
    leases: Leases,
    /// The recurring jobs, if there were some.
    recurring: Option<recurring::Stored>,
    /// The members of series, if there were some.
    series: Option<series::Stored>,
    /// The jobs of the limited kind, if there were some.
    limited: Option<limited::Fed>,
    /// The rows of the outbox and of the archive, if there was a database.
    accounts: Option<Accounts>,
    /// Whether Redis could forget.
    forgets: bool,
    /// Whether the clock of Redis was set.
    is_set: bool,
    /// Failures on the way.
    wrong: Vec<String>,
}

async fn try_to_play(
    scenario: &Scenario,
    dir: &Path,
    seed: u64,
    span: Duration,
    gauge: &Gauge,
) -> Result<TrialEnd, String> {
    let setting = (scenario.setting)();
    let (recurs, forgets) = (setting.recurring, setting.forgets());
    let is_set = setting.clock.is_some();
    let mut stage = Stage::set(setting, dir.to_owned(), seed, span).await?;
    if recurs {
        let begun = recurring::begin(&stage.client().await?).await;
        begun.map_err(|error| error.to_string())?;
    }
    let mover = match recurs {
        true => Some(Mover::begin(stage.client().await?)),
        false => None,
    };
    let feeder = match recurs {
        true => {
            let begun = Feeder::begin(stage.client().await?).await;
            Some(begun.map_err(|error| error.to_string())?)
        }
        false => None,
    };
    let clerk = match &stage.database {
        Some(database) => {
            let begun = Clerk::begin(database.url(), seed).await;
            Some(begun.map_err(|error| error.to_string())?)
        }
        None => None,
    };
    stage.produce();
    stage.until_at_work().await?;
    stage.live_for(BEFORE).await;
    stage.weather(true);
    let mut wrong = Vec::new();
    let enough = Instant::now() + span + MORE;
    loop {
        if let Err(error) = (scenario.faults)(&mut stage).await {
            wrong.push(format!("while faults were made: {error}"));
            break;
        }
        let spared = measured(dir, gauge).spared;
        if spared.is_none_or(|spared| spared.starts() >= LEAST) || Instant::now() > enough {
            break;
        }
    }
    stage.weather(false);
    stage.live_for(AFTER).await;
    wrong.extend(stage.stop_producing().await);
    let client = stage.client().await?;
    let mut members = None;
    if let Some(mover) = mover {
        let ended = tokio::time::timeout(PATIENCE, mover.end(&client)).await;
        let ended = ended.map_err(|_| "the series do not come to rest")?;
        members = Some(ended.map_err(|error| error.to_string())?);
    }
    let mut limited = None;
    if let Some(feeder) = feeder {
        let ended = tokio::time::timeout(PATIENCE, feeder.end(&client)).await;
        let ended = ended.map_err(|_| "the jobs of the limited kind do not come to rest")?;
        limited = Some(ended.map_err(|error| error.to_string())?);
    }
    let mut recurring = None;
    if recurs {
        let ended = tokio::time::timeout(PATIENCE, recurring::end(&client)).await;
        let ended = ended.map_err(|_| "the recurring jobs do not come to rest")?;
        recurring = Some(ended.map_err(|error| error.to_string())?);
    }
    let withdrawn = match clerk {
        Some(clerk) => clerk.end().await,
        None => Default::default(),
    };
    wrong.extend(stage.drain(&client).await.err());
    let mut accounts = None;
    if let Some(database) = &stage.database {
        let read = Accounts::read(database, &client, withdrawn).await;
        accounts = Some(read.map_err(|error| {
            // An earlier failure may be the reason.
            wrong.push(format!("the accounts cannot be read: {error}"));
            wrong.join("; ")
        })?);
    }
    wrong.extend(stage.stop_working().await);
    let mut redis = match stage.deployment.is_one_place() {
        true => Some(
            stage
                .deployment
                .redis()
                .await
                .map_err(|error| error.to_string())?,
        ),
        false => None,
    };
    let kept = Kept::read(&client, redis.as_mut()).await;
    let kept = kept.map_err(|error| {
        // An earlier failure may be the reason.
        wrong.push(format!("the remaining data cannot be read: {error:?}"));
        wrong.join("; ")
    })?;
    let leases = match stage.keeps_a_log {
        true => leases::read(&stage.kept_logs().map_err(|error| error.to_string())?)?,
        false => Leases::default(),
    };
    Ok(TrialEnd {
        kept,
        leases,
        recurring,
        series: members,
        limited,
        accounts,
        forgets,
        is_set,
        wrong,
    })
}

/// The lateness measured so far.
fn measured(dir: &Path, gauge: &Gauge) -> Row {
    let allowance = gauge.read().allowance().as_micros() as Micros;
    let mut row = Row::default();
    History::read(&read_all(dir), allowance).measure(&Leases::default(), &mut row);
    row
}
