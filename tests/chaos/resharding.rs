//! Gives kinds another number of shards, by the command, as a process of its own.

use std::process::ExitStatus;
use std::time::Duration;

use keyfall_testing::process::LoggedProcess;
use tokio::time::{Instant, sleep};

use crate::load::KINDS;
use crate::roles::keyfall;
use crate::stage::Stage;

/// The time limit of the whole change.
const PATIENCE: Duration = Duration::from_secs(40);

/// Gives a kind so many shards. The first command is killed on its way, and others finish its work.
async fn reshard(stage: &mut Stage, kind: &str, shards: u16) -> Result<(), String> {
    stage.strike("resharding is begun and killed");
    let mut process = start(stage, kind, shards);
    sleep(stage.some_ms(10..400)).await;
    process.kill();
    finish(stage, kind, shards).await
}

/// Gives a kind so many shards, or continues such a change, until the kind has them.
pub(crate) async fn finish(stage: &Stage, kind: &str, shards: u16) -> Result<(), String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match end_of(start(stage, kind, shards), deadline).await {
            Some(status) if status.success() => return Ok(()),
            // A fault may hit the connection to Redis at the time.
            Some(_) if Instant::now() < deadline => {}
            Some(status) => return Err(format!("keyfall reshard: {status}")),
            None => return Err(format!("{kind} does not come to have {shards} shards")),
        }
    }
}

/// Tries to give a kind so many shards while that is impossible.
pub(crate) async fn is_refused(stage: &Stage, kind: &str, shards: u16) -> Result<(), String> {
    match end_of(start(stage, kind, shards), Instant::now() + PATIENCE).await {
        Some(status) if status.success() => Err(format!("{kind} was resharded all the same")),
        Some(_) => Ok(()),
        None => Err("keyfall reshard does not end while a server is away".into()),
    }
}

/// The exit status, if the process ends in time.
async fn end_of(mut process: LoggedProcess, deadline: Instant) -> Option<ExitStatus> {
    loop {
        match process.ended() {
            None if Instant::now() < deadline => sleep(Duration::from_millis(20)).await,
            ended => return ended,
        }
    }
}

pub(crate) fn start(stage: &Stage, kind: &str, shards: u16) -> LoggedProcess {
    let mut command = keyfall();
    command.args(["reshard", kind, "--to", &shards.to_string()]);
    command.args(["--redis-url", &stage.deployment.url()]);
    LoggedProcess::spawn(command, "reshard", stage.dir())
}

/// Gives each kind another number again and again, while workers are killed, and each round one of
/// `more`.
pub(crate) async fn go_on(stage: &mut Stage, numbers: &[u16], more: &[&str]) -> Result<(), String> {
    let end = stage.until_the_end();
    let mut turns = numbers.iter().cycle().skip(1);
    let mut more = more.iter().copied().cycle();
    while Instant::now() < end {
        let shards = *turns.next().expect("it is a circle");
        for kind in KINDS.into_iter().chain(more.next()) {
            let number = stage.some_worker();
            stage.kill(number);
            reshard(stage, kind, shards).await?;
            stage.start(number);
        }
    }
    Ok(())
}
