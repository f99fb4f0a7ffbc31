//! A Redis that runs, and does not work as it should.

use rustix::process::Signal;
use tokio::time::{Instant, sleep};

use super::{Punctual, Result, Scenario};
use crate::adopted::EVICTION;
use crate::setting::Setting;
use crate::stage::Stage;
use crate::witness::SILENCING;

macro_rules! scenarios {
    ($($name:literal, $quick:literal, $faults:ident;)*) => {
        vec![$(Scenario {
            name: $name,
            quick: $quick,
            setting: Setting::default,
            faults: |stage| Box::pin($faults(stage)),
            punctual: Punctual::Afterwards,
        }),*]
    };
}

pub(super) fn all() -> Vec<Scenario> {
    scenarios! {
        "Redis stalls", true, stall;
        "writes are paused", false, pause_writes;
        "connections are cut", false, cut_connections;
        "scripts are flushed", false, flush_scripts;
        "notifications are off", false, no_notifications;
        "Redis is read-only", false, read_only;
        "Redis is full", true, full;
        "triggers are evicted", false, evict;
        "subscribers are cut off", false, overflow_subscribers;
        "a foreign script", false, foreign_script;
        "scripts are killed", false, kill_scripts;
    }
}

/// Stops Redis, as a slow disk or a busy host does, at times for longer than a lease.
async fn stall(stage: &mut Stage) -> Result {
    let end = stage.until_the_end();
    while Instant::now() < end {
        stage.strike("Redis is stopped");
        stage.deployment.signal_server(Signal::STOP);
        sleep(stage.some_ms(100..3500)).await;
        stage.deployment.signal_server(Signal::CONT);
        sleep(stage.some_ms(300..1500)).await;
    }
    Ok(())
}

/// Pauses writes, as a fail-over does; nothing expires meanwhile.
async fn pause_writes(stage: &mut Stage) -> Result {
    let end = stage.until_the_end();
    while Instant::now() < end {
        let pause = stage.some_ms(100..3000);
        let ms = pause.as_millis().to_string();
        stage.strike("CLIENT PAUSE");
        let () = stage
            .deployment
            .command(&["CLIENT", "PAUSE", &ms, "WRITE"])
            .await?;
        sleep(pause + stage.some_ms(300..1200)).await;
    }
    Ok(())
}

async fn cut_connections(stage: &mut Stage) -> Result {
    let end = stage.until_the_end();
    for kind in ["pubsub", "normal"].iter().cycle() {
        if Instant::now() > end {
            break;
        }
        let args = ["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"];
        stage.strike("CLIENT KILL");
        let _: u32 = stage.deployment.command(&args).await?;
        sleep(stage.some_ms(5..150)).await;
    }
    Ok(())
}

async fn flush_scripts(stage: &mut Stage) -> Result {
    let end = stage.until_the_end();
    while Instant::now() < end {
        stage.strike("SCRIPT FLUSH");
        let () = stage.deployment.command(&["SCRIPT", "FLUSH"]).await?;
        sleep(stage.some_ms(1..100)).await;
    }
    Ok(())
}

/// Turns notifications off by hand, although the workers set them.
async fn no_notifications(stage: &mut Stage) -> Result {
    let end = stage.until_the_end();
    while Instant::now() < end {
        stage.strike(SILENCING);
        set(stage, "notify-keyspace-events", "").await?;
        sleep(stage.some_ms(50..500)).await;
    }
    Ok(())
}

/// Makes Redis a replica of a server that does not exist.
async fn read_only(stage: &mut Stage) -> Result {
    let end = stage.until_the_end();
    while Instant::now() < end {
        stage.strike("REPLICAOF");
        let () = stage
            .deployment
            .command(&["REPLICAOF", "127.0.0.1", "1"])
            .await?;
        sleep(stage.some_ms(200..2500)).await;
        let () = stage
            .deployment
            .command(&["REPLICAOF", "NO", "ONE"])
            .await?;
        sleep(stage.some_ms(300..1000)).await;
    }
    Ok(())
}

async fn full(stage: &mut Stage) -> Result {
    let end = stage.until_the_end();
    while Instant::now() < end {
        stage.strike("Redis is full");
        set(stage, "maxmemory", "1mb").await?;
        sleep(stage.some_ms(200..2000)).await;
        set(stage, "maxmemory", "0").await?;
        sleep(stage.some_ms(200..800)).await;
    }
    Ok(())
}

/// `volatile-ttl` may evict triggers and nothing else.
async fn evict(stage: &mut Stage) -> Result {
    set(stage, "maxmemory-policy", "volatile-ttl").await?;
    let end = stage.until_the_end();
    while Instant::now() < end {
        let memory: String = stage.deployment.command(&["INFO", "memory"]).await?;
        let used = memory
            .lines()
            .find_map(|line| line.strip_prefix("used_memory:"));
        let used: u64 = used.ok_or("INFO says nothing of memory")?.trim().parse()?;
        stage.strike(EVICTION);
        set(stage, "maxmemory", &(used - 50_000).to_string()).await?;
        sleep(stage.some_ms(20..200)).await;
        set(stage, "maxmemory", "0").await?;
        sleep(stage.some_ms(50..300)).await;
    }
    set(stage, "maxmemory-policy", "noeviction").await?;
    Ok(())
}

/// Publishes more at once than Redis keeps for a subscriber.
async fn overflow_subscribers(stage: &mut Stage) -> Result {
    let limit = "client-output-buffer-limit";
    set(stage, limit, "pubsub 32kb 0 0").await?;
    let much = "x".repeat(200_000);
    let end = stage.until_the_end();
    while Instant::now() < end {
        stage.strike("more than a subscriber may hold");
        let _: u32 = stage
            .deployment
            .command(&["PUBLISH", "keyfall:wake:0", &much])
            .await?;
        sleep(stage.some_ms(50..400)).await;
    }
    set(stage, limit, "pubsub 256mb 128mb 60").await?;
    Ok(())
}

/// A script that holds Redis up for so many seconds: it tells other clients `BUSY`.
const LONG: &str = "
    if ARGV[2] == 'writes' then redis.call('SET', 'chaos-foreign', 'half of it') end
    local function now() local t = redis.call('TIME') return t[1] + t[2] / 1e6 end
    local till = now() + ARGV[1]
    while now() < till do end";

/// The time in ms after which Redis answers `BUSY`.
const PATIENCE_OF_REDIS: &str = "50";

async fn foreign_script(stage: &mut Stage) -> Result {
    set(stage, "lua-time-limit", PATIENCE_OF_REDIS).await?;
    let end = stage.until_the_end();
    while Instant::now() < end {
        let seconds = stage.some_ms(200..2500).as_secs_f64().to_string();
        stage.strike("a foreign script");
        let () = stage
            .deployment
            .command(&["EVAL", LONG, "0", &seconds])
            .await?;
        sleep(stage.some_ms(300..1000)).await;
    }
    Ok(())
}

/// Ends scripts half-way: by `SCRIPT KILL`; or, once they have written, with the whole server.
async fn kill_scripts(stage: &mut Stage) -> Result {
    let end = stage.until_the_end();
    for does in ["reads", "writes"].into_iter().cycle() {
        if Instant::now() > end {
            break;
        }
        set(stage, "lua-time-limit", PATIENCE_OF_REDIS).await?;
        // A client that connects while it runs is told `BUSY`, too.
        let (mut caller, mut killer) = (
            stage.deployment.redis().await?,
            stage.deployment.redis().await?,
        );
        stage.strike("a foreign script");
        let running = tokio::spawn(async move {
            let mut eval = redis::cmd("EVAL");
            eval.arg(LONG).arg(0).arg(60).arg(does);
            let _: redis::RedisResult<()> = eval.query_async(&mut caller).await;
        });
        sleep(stage.some_ms(200..1500)).await;
        stage.strike("it is killed");
        let mut kill = redis::cmd("SCRIPT");
        let killed: redis::RedisResult<()> = kill.arg("KILL").query_async(&mut killer).await;
        if killed.is_err() {
            // The script has written. Redis never comes back from this with an answer.
            let mut shutdown = redis::cmd("SHUTDOWN");
            let shutdown = shutdown.arg("NOSAVE");
            let _: redis::RedisResult<()> = shutdown.query_async(&mut killer).await;
            stage.deployment.server().restart().await?;
        }
        running.await?;
        sleep(stage.some_ms(300..1000)).await;
    }
    set(stage, "lua-time-limit", "5000").await
}

async fn set(stage: &Stage, name: &str, value: &str) -> Result {
    let () = stage
        .deployment
        .command(&["CONFIG", "SET", name, value])
        .await?;
    Ok(())
}
