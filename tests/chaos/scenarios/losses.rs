//! A Redis that loses jobs of which PostgreSQL has a copy, and the operator who brings them back.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use keyfall::{Kind, Shards};
use keyfall_testing::journals::{Micros, now};
use tokio::time::{Instant, sleep};

use super::databases::beside;
use super::{Punctual, Result, Scenario};
use crate::database::KINDS;
use crate::load;
use crate::roles::keyfall;
use crate::setting::Setting;
use crate::stage::{PATIENCE, Stage};

/// The pause between two looks at the database.
const PAUSE: Duration = Duration::from_millis(20);

pub(super) fn all() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "rebuild after FLUSHALL",
            quick: false,
            setting: with_a_copy,
            faults: |stage| Box::pin(lose(stage, Loss::Everything)),
            punctual: Punctual::Afterwards,
        },
        Scenario {
            name: "rebuild, older snapshot",
            quick: false,
            setting: with_a_copy,
            faults: |stage| Box::pin(lose(stage, Loss::SinceASnapshot)),
            punctual: Punctual::Afterwards,
        },
    ]
}

/// What Redis loses.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Loss {
    Everything,
    SinceASnapshot,
}

fn with_a_copy() -> Setting {
    Setting {
        copy: true,
        loses: true,
        ..beside(&["--appendonly", "no", "--save", ""])
    }
}

/// Redis loses jobs, the daemons notice it, and an operator brings the jobs back, again and again.
async fn lose(stage: &mut Stage, loss: Loss) -> Result {
    let end = stage.until_the_end();
    loop {
        until_each_kind_is_copied(stage).await?;
        let mut snapshot = None;
        if loss == Loss::SinceASnapshot {
            snapshot = Some(save(stage).await?);
            sleep(stage.some_ms(1000..2500)).await;
        }
        let copied = stage.mark_copy().await?;
        sleep(stage.some_ms(0..1500)).await;
        let fences = fences(stage).await?;
        match loss {
            Loss::Everything => {
                stage.strike("Redis is emptied");
                let () = stage.deployment.command(&["FLUSHALL"]).await?;
            }
            Loss::SinceASnapshot => {
                stage.strike("Redis is killed");
                stage.deployment.server().kill_server().await?;
                sleep(stage.some_ms(50..1500)).await;
                stage.deployment.server().restart().await?;
            }
        }
        let database = stage.database()?;
        database.lost = Some(database.lost.unwrap_or(0));
        until_it_is_noticed(stage).await?;
        let place = ["--redis-url", &stage.deployment.url()].map(str::to_owned);
        let copy = ["--database-url", stage.database()?.url()].map(str::to_owned);
        operate(&["rebuild"], &[&place[..], &copy].concat()).await?;
        operate(&["rebuild", "--yes"], &[&place[..], &copy].concat()).await?;
        stage.rebuilt(snapshot, copied);
        let raised = are_raised(&fences, stage).await;
        // First, as nothing comes to rest before.
        operate(&["resume", "chaos:"], &place).await?;
        raised?;
        if Instant::now() >= end {
            return Ok(());
        }
    }
}

/// The kinds that are judged.
fn kinds() -> Vec<&'static str> {
    [&load::KINDS[..], &KINDS].concat()
}

async fn until_each_kind_is_copied(stage: &mut Stage) -> Result {
    let sql = stage.database()?.connect().await?;
    let filled =
        "SELECT count(DISTINCT kind) FROM keyfall_copy_ledgers WHERE filled AND kind = ANY($1)";
    let deadline = Instant::now() + PATIENCE;
    loop {
        let filled: i64 = sql.query_one(filled, &[&kinds()]).await?.get(0);
        if filled == kinds().len() as i64 {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("{filled} kinds are copied").into());
        }
        sleep(PAUSE).await;
    }
}

/// Makes a snapshot. Returns the times before and after.
async fn save(stage: &mut Stage) -> Result<(Micros, Micros)> {
    let began = now();
    let () = stage.deployment.command(&["SAVE"]).await?;
    let saved = now();
    let database = stage.database()?;
    let last = "SELECT coalesce(max(id), 0) FROM orders";
    let last = database.connect().await?.query_one(last, &[]).await?;
    database.lost = Some(last.get(0));
    Ok((began, saved))
}

async fn until_it_is_noticed(stage: &mut Stage) -> Result {
    let sql = stage.database()?.connect().await?;
    let is_stopped = "SELECT stopped IS NOT NULL FROM keyfall_copy_state";
    let deadline = Instant::now() + PATIENCE;
    while !sql.query_one(is_stopped, &[]).await?.get::<_, bool>(0) {
        if Instant::now() > deadline {
            return Err("nobody notices that Redis has lost jobs".into());
        }
        sleep(PAUSE).await;
    }
    Ok(())
}

/// Runs the command `keyfall` with these arguments.
async fn operate(words: &[&str], flags: &[String]) -> Result {
    let mut command = keyfall();
    command.args(words).args(flags);
    let output = tokio::task::spawn_blocking(move || command.output()).await??;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{words:?}: {}", String::from_utf8_lossy(&output.stderr)).into()),
    }
}

/// The largest fencing value that each kind has given out.
async fn fences(stage: &Stage) -> Result<BTreeMap<&'static str, u64>> {
    let client = stage.client().await?;
    let mut fences = BTreeMap::new();
    for kind in kinds() {
        let changes = client.changes(&Kind::parse(kind)?, Shards::All, 0).await?;
        let fence = changes.shards.iter().map(|it| it.fence).max();
        fences.insert(kind, fence.unwrap_or(0));
    }
    Ok(fences)
}

/// Fails unless each kind gives out higher values than these, and so high ones that they are higher even
/// if the clock of Redis is behind that of its predecessor.
async fn are_raised(before: &BTreeMap<&'static str, u64>, stage: &Stage) -> Result {
    for (kind, fence) in fences(stage).await? {
        let clock = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        let before = before[kind].max(clock.as_micros().try_into()?);
        if fence <= before {
            return Err(
                format!("{kind} may have given out {before}, and goes on at {fence}").into(),
            );
        }
    }
    Ok(())
}
