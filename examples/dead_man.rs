//! Tells when a host falls silent: a dead-man's switch, whose heartbeat is `EXPIRE key 30`.
//!
//! The route adopts plain keys, so hosts need no library but one for Redis. It needs a Redis, at
//! `KEYFALL_REDIS_URL` or else at `redis://127.0.0.1:6379`, and ends when one host has fallen
//! silent and come back, and both are retired. `docs/guides/dead-man.md` says what holds.
//!
//! ```sh
//! cargo run --example dead_man
//! ```

use std::error::Error;
use std::time::Duration;

use keyfall::{Client, Handler, MissingKey, Router, Segments, State, Worker};
use redis::AsyncCommands;
use redis::aio::MultiplexedConnection;
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

/// For how long nothing is heard of a host before somebody is told. A short one, so that there is
/// something to see.
const SILENCE: i64 = 5;

/// Three in each silence, so that two may be lost.
const BEAT: Duration = Duration::from_millis(1500);

/// A host beats: what its program does, in any language.
async fn beat(redis: &mut MultiplexedConnection, host: &str) -> redis::RedisResult<()> {
    let key = format!("app1:host:silent:{host}");
    // No key: this is the first beat, or the first after a silence.
    if !redis.expire(&key, SILENCE).await? {
        let () = redis.set_ex(&key, host, SILENCE as u64).await?;
        println!("{host} begins to beat");
    }
    Ok(())
}

/// A host is switched off on purpose.
async fn retire(redis: &mut MultiplexedConnection, host: &str) -> redis::RedisResult<()> {
    let () = redis.del(format!("app1:host:silent:{host}")).await?;
    println!("{host} is retired");
    Ok(())
}

/// Runs when a host has not beaten for `SILENCE`.
async fn silent(Segments(host): Segments<String>, State(told): State<mpsc::Sender<String>>) {
    println!("{host} is silent");
    let _ = told.send(host).await;
}

/// Waits until nothing is waited for any more.
async fn forgotten(client: &Client, host: &str) -> keyfall::Result<()> {
    while client
        .get(format!("app1:host:silent:{host}"))
        .await?
        .is_some()
    {
        sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("KEYFALL_REDIS_URL");
    let url = url.as_deref().unwrap_or("redis://127.0.0.1:6379");
    let client = Client::connect(url).await?;
    let redis = redis::Client::open(url)?;
    let mut redis = redis.get_multiplexed_async_connection().await?;

    let (tell, mut told) = mpsc::channel(1);
    // A host that nobody heard of for a while is one to look after: so `Run`.
    let routes = Router::new()
        .route("app1:host:silent:{host}", silent.adopt(MissingKey::Run))
        .with_state(tell);
    let (stop, stopped) = oneshot::channel::<()>();
    let worker = Worker::new(client.clone(), routes).run_until(async { _ = stopped.await });
    let worker = tokio::spawn(worker);

    for _ in 0..3 {
        beat(&mut redis, "web-1").await?;
        beat(&mut redis, "web-2").await?;
        sleep(BEAT).await;
    }
    // web-1 dies. web-2 goes on for longer than the silence may last, and is not told of.
    while told.is_empty() {
        beat(&mut redis, "web-2").await?;
        sleep(BEAT).await;
    }
    assert_eq!(told.recv().await.as_deref(), Some("web-1"));

    beat(&mut redis, "web-1").await?;
    sleep(BEAT).await;
    for host in ["web-1", "web-2"] {
        retire(&mut redis, host).await?;
        forgotten(&client, host).await?;
    }
    drop(stop);
    worker.await??;
    assert!(told.is_empty(), "nobody else was silent");
    println!("nobody else was silent");
    Ok(())
}
