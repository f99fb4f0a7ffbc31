//! A Redis that is killed or shut down, and comes back with a part of its data.

use std::collections::HashSet;
use std::fs::File;
use std::path::Path;
use std::time::Duration;

use keyfall_testing::journals::{Micros, now};
use keyfall_testing::resp;
use redis::aio::MultiplexedConnection;
use tokio::task::JoinHandle;
use tokio::time::{Instant, interval, sleep};

use super::{Punctual, Result, Scenario};
use crate::setting::Setting;
use crate::stage::Stage;

/// The key that holds the time of the latest write that is known to have come after all earlier
/// answers: after a rollback the key tells the time of the restored state.
pub(super) const MARK: &str = "chaos-mark";

/// How many ms to wait for replicas.
const WAIT: u64 = 20_000;

/// About half a second of writes.
const MOST_CUT: u64 = 300_000;

pub(super) fn all() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "kill Redis, AOF always",
            quick: true,
            setting: || Setting {
                recurring: true,
                ..with(&["--appendfsync", "always"])
            },
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
            name: "kill Redis, an older snapshot",
            quick: false,
            setting: || Setting {
                keys_to_jobs: Some(0.2),
                ..with(&["--appendonly", "no", "--save", ""])
            },
            faults: |stage| Box::pin(go_back(stage)),
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
    /// All answered writes are there after the end of the process.
    KeepsAll,
    /// The end of the log is lost, as after a power failure; a kill alone does not lose it.
    LosesTheTail,
    /// Everything after the last snapshot is lost.
    KeepsSnapshots,
}

/// Kills Redis again and again, for up to two seconds each.
async fn kill(stage: &mut Stage, disk: Disk) -> Result {
    let mut short_reads_before = 0;
    let end = stage.until_the_end();
    while Instant::now() < end {
        let mut since = first_mark(&mut stage.deployment.redis().await?, MARK, 0).await?;
        if disk == Disk::KeepsSnapshots {
            save(stage).await?;
        }
        let marking = mark(stage).await?;
        sleep(stage.some_ms(700..1500)).await;
        stage.strike("Redis is killed");
        stage.deployment.server().kill_server().await?;
        marking.abort();
        if disk == Disk::LosesTheTail {
            let cut = stage.some_ms(1..MOST_CUT).as_millis();
            let log = stage.deployment.logs().pop().ok_or("Redis wrote no log")?;
            since = cut_tail(&log, cut.try_into()?)?;
        }
        sleep(stage.some_ms(50..2000)).await;
        stage.deployment.server().restart().await?;
        if disk != Disk::KeepsAll {
            let kept: Option<Micros> = stage.deployment.command(&["GET", MARK]).await?;
            stage.rolled_back(kept, since);
        }
        let told = short_reads(stage);
        if told > short_reads_before {
            short_reads_before = told;
            rewrite_log(stage).await?;
        } else if disk == Disk::LosesTheTail {
            return Err("Redis tells of no short read of its log: is that read right?".into());
        }
    }
    Ok(())
}

/// Kills Redis a while after a snapshot, again and again: plain keys are set, changed and removed in
/// between, expire, and their jobs run. All of that is undone, and the keys are as they were.
async fn go_back(stage: &mut Stage) -> Result {
    let end = stage.until_the_end();
    while Instant::now() < end {
        let since = first_mark(&mut stage.deployment.redis().await?, MARK, 0).await?;
        let marking = mark(stage).await?;
        sleep(stage.some_ms(300..1000)).await;
        let () = stage.deployment.command(&["SAVE"]).await?;
        let saved = now();
        sleep(stage.some_ms(500..2500)).await;
        stage.strike("Redis is killed");
        stage.deployment.server().kill_server().await?;
        let gone = now();
        marking.abort();
        sleep(stage.some_ms(50..1500)).await;
        stage.deployment.server().restart().await?;
        let kept: Option<Micros> = stage.deployment.command(&["GET", MARK]).await?;
        stage.restored(kept, since, (saved, gone));
    }
    Ok(())
}

/// Writes the mark once, on at least so many replicas. A server with the mark has all writes that
/// were answered before this time.
pub(super) async fn first_mark(
    redis: &mut MultiplexedConnection,
    name: &str,
    replicas: usize,
) -> Result<Micros> {
    let at = now();
    let mut set = redis::cmd("SET");
    let () = set.arg(name).arg(at).query_async(redis).await?;
    let mut wait = redis::cmd("WAIT");
    let had: usize = wait.arg(replicas).arg(WAIT).query_async(redis).await?;
    if had < replicas {
        let mut info = redis::cmd("INFO");
        let told: String = info.arg("replication").query_async(redis).await?;
        return Err(format!("{had} replicas have the mark, and not {replicas}: {told}").into());
    }
    Ok(at)
}

/// Makes a snapshot that has all writes that were answered before.
async fn save(stage: &Stage) -> Result {
    // Another snapshot may be under way.
    while stage
        .deployment
        .command::<String>(&["BGSAVE"])
        .await
        .is_err()
    {
        sleep(Duration::from_millis(5)).await;
    }
    loop {
        let state: String = stage.deployment.command(&["INFO", "persistence"]).await?;
        if state.contains("rdb_bgsave_in_progress:0") {
            break;
        }
        sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// Writes the mark all the time, until the task is aborted or Redis is gone.
pub(super) async fn mark(stage: &Stage) -> Result<JoinHandle<()>> {
    Ok(mark_in(stage.deployment.redis().await?, MARK.to_owned()))
}

/// The same under another key.
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

/// Cuts so many bytes from the end of a log, in the middle of a write, but leaves a mark in it.
/// Returns the last mark that is left: all writes that were answered before are there.
fn cut_tail(file: &Path, bytes: usize) -> Result<Micros> {
    let text = std::fs::read(file)?;
    let mut rest = &text[..];
    let mut marks = Vec::new();
    let mut ends = HashSet::new();
    while let Some(write) = resp::next(&mut rest) {
        let end = text.len() - rest.len();
        ends.insert(end);
        if let [command, key, value] = &write[..]
            && command.eq_ignore_ascii_case(b"SET")
            && key == MARK.as_bytes()
        {
            let value: Micros = std::str::from_utf8(value)?.parse()?;
            marks.push((end, value));
        }
    }
    let (first, _) = marks.first().ok_or("the log shows no mark")?;
    let mut length = text.len().saturating_sub(bytes).max(*first);
    length += usize::from(ends.contains(&length));
    let file = File::options().write(true).open(file)?;
    file.set_len(length.try_into()?)?;
    let mut left = marks.iter().rev();
    let last = left.find(|(end, _)| *end <= length);
    Ok(last.expect("one is left").1)
}

/// The number of times that Redis found the end of its log missing: after a cut, and also after a
/// kill in the middle of a large write.
fn short_reads(stage: &mut Stage) -> usize {
    stage
        .deployment
        .server()
        .log()
        .matches("short read")
        .count()
}

/// The operator's duty after that. An end within the writes of a script leaves its beginning in the
/// log, and with it a `MULTI` that nothing ends: the next restart would carry out half a script.
async fn rewrite_log(stage: &Stage) -> Result {
    stage.kept_logs()?;
    let () = stage.deployment.command(&["BGREWRITEAOF"]).await?;
    loop {
        let state: String = stage.deployment.command(&["INFO", "persistence"]).await?;
        let is_over = |what: &str| state.contains(&format!("aof_rewrite_{what}:0"));
        if is_over("in_progress") && is_over("scheduled") {
            return Ok(());
        }
        sleep(Duration::from_millis(5)).await;
    }
}

/// Shuts Redis down as an operator does.
async fn shut_down(stage: &mut Stage) -> Result {
    let end = stage.until_the_end();
    while Instant::now() < end {
        sleep(stage.some_ms(500..1500)).await;
        stage.strike("SHUTDOWN");
        // The connection ends without an answer.
        let _: redis::RedisResult<()> = stage.deployment.command(&["SHUTDOWN"]).await;
        sleep(stage.some_ms(50..1500)).await;
        stage.deployment.server().restart().await?;
    }
    Ok(())
}
