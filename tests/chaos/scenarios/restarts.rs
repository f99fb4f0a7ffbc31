//! A Redis that is killed or shut down, and comes back with what it kept.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tokio::task::JoinHandle;
use tokio::time::{Instant, interval, sleep};

use super::{Punctual, Result, Scenario};
use crate::journal::{Micros, now};
use crate::setting::Setting;
use crate::stage::Stage;

/// Holds the time of the latest write that is known to have come after all that was answered
/// before it: a data set that has gone back says by it to when.
pub(super) const MARK: &str = "chaos-mark";

/// About half a second of writes.
const MOST_CUT: u64 = 300_000;

pub(super) fn all() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "kill Redis, AOF always",
            quick: true,
            setting: || with(&["--appendfsync", "always"]),
            faults: |stage| Box::pin(kill(stage, Disk::KeepsAll)),
            punctual: Punctual::Afterwards,
        },
        Scenario {
            name: "kill Redis, AOF cut",
            quick: true,
            setting: || with(&["--appendfsync", "everysec"]),
            faults: |stage| Box::pin(kill(stage, Disk::LosesTheTail)),
            punctual: Punctual::Afterwards,
        },
        Scenario {
            name: "kill Redis, RDB only",
            quick: false,
            setting: || with(&["--appendonly", "no", "--save", "1 1"]),
            faults: |stage| Box::pin(kill(stage, Disk::KeepsSnapshots)),
            punctual: Punctual::Afterwards,
        },
        Scenario {
            name: "shut Redis down",
            quick: false,
            setting: Setting::default,
            faults: |stage| Box::pin(shut_down(stage)),
            punctual: Punctual::Afterwards,
        },
    ]
}

fn with(redis: &[&'static str]) -> Setting {
    Setting {
        redis: redis.to_vec(),
        ..Setting::default()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Disk {
    /// All that was answered is there after the end of the process.
    KeepsAll,
    /// As after a power failure, which a killed process is not.
    LosesTheTail,
    /// What came after the last snapshot is gone.
    KeepsSnapshots,
}

/// Killed again and again, away for up to two seconds.
async fn kill(stage: &mut Stage, disk: Disk) -> Result {
    let mut short_reads_before = 0;
    let end = stage.until_the_end();
    while Instant::now() < end {
        let marking = mark(stage).await?;
        sleep(stage.some_ms(700..1500)).await;
        stage.strike("Redis is killed");
        stage.site.server().kill_server().await?;
        marking.abort();
        if disk == Disk::LosesTheTail {
            let cut = stage.some_ms(1..MOST_CUT).as_millis();
            cut_tail(
                stage.site.logs().last().ok_or("Redis wrote no log")?,
                cut.try_into()?,
            )?;
        }
        sleep(stage.some_ms(50..2000)).await;
        stage.site.server().restart().await?;
        if disk != Disk::KeepsAll {
            let kept: Option<Micros> = stage.site.command(&["GET", MARK]).await?;
            stage.rolled_back(kept.unwrap_or(0));
        }
        let told = short_reads(stage);
        if told > short_reads_before {
            short_reads_before = told;
            rewrite_log(stage).await?;
        }
    }
    Ok(())
}

/// Writes the mark all the time, until it is aborted or Redis is gone.
pub(super) async fn mark(stage: &Stage) -> Result<JoinHandle<()>> {
    Ok(mark_in(stage.site.redis().await?, MARK.to_owned()))
}

/// The same under a name of one's own.
pub(super) fn mark_in(mut redis: MultiplexedConnection, name: String) -> JoinHandle<()> {
    tokio::spawn(async move {
        let mut ticks = interval(Duration::from_millis(5));
        loop {
            ticks.tick().await;
            let mut set = redis::cmd("SET");
            let answer: redis::RedisResult<()> =
                set.arg(&name).arg(now()).query_async(&mut redis).await;
            if answer.is_err() {
                return;
            }
        }
    })
}

fn cut_tail(file: &Path, bytes: u64) -> Result {
    let file = File::options().write(true).open(file)?;
    let length = file.metadata()?.len();
    file.set_len(length.saturating_sub(bytes))?;
    Ok(())
}

/// How often Redis has found its log to end too soon: after a cut, and also when it was killed
/// in the middle of a large write.
fn short_reads(stage: &mut Stage) -> usize {
    stage.site.server().log().matches("short read").count()
}

/// What an operator has to do then. An end within the writes of a script leaves its beginning
/// in the log, and with it a `MULTI` that nothing ends: the next restart would carry out half a
/// script.
async fn rewrite_log(stage: &Stage) -> Result {
    stage.kept_logs()?;
    let () = stage.site.command(&["BGREWRITEAOF"]).await?;
    loop {
        let state: String = stage.site.command(&["INFO", "persistence"]).await?;
        let is_over = |what: &str| state.contains(&format!("aof_rewrite_{what}:0"));
        if is_over("in_progress") && is_over("scheduled") {
            return Ok(());
        }
        sleep(Duration::from_millis(5)).await;
    }
}

/// As an operator would.
async fn shut_down(stage: &mut Stage) -> Result {
    let end = stage.until_the_end();
    while Instant::now() < end {
        sleep(stage.some_ms(500..1500)).await;
        stage.strike("SHUTDOWN");
        // It has nobody left to answer to.
        let _: redis::RedisResult<()> = stage.site.command(&["SHUTDOWN"]).await;
        sleep(stage.some_ms(50..1500)).await;
        stage.site.server().restart().await?;
    }
    Ok(())
}
