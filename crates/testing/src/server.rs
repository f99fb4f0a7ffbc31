//! Private servers: connections to them, and signals for their processes.

use std::path::PathBuf;

use keyfall::embedded::Embedded;
use redis::RedisResult;
use redis::aio::MultiplexedConnection;
use rustix::process::{Pid, Signal, kill_process};

use crate::patience::PATIENCE;

/// The program that all servers and sentinels are.
pub fn redis_server() -> String {
    std::env::var("KEYFALL_REDIS_BIN").unwrap_or_else(|_| "redis-server".to_owned())
}

/// The default gives up after half a second, which a busy machine may need.
pub async fn connect(url: &str) -> RedisResult<MultiplexedConnection> {
    let config = redis::AsyncConnectionConfig::new()
        .set_connection_timeout(Some(PATIENCE))
        .set_response_timeout(Some(PATIENCE));
    let client = redis::Client::open(url)?;
    client
        .get_multiplexed_async_connection_with_config(&config)
        .await
}

/// The file of its socket.
pub fn socket_of(server: &Embedded) -> PathBuf {
    server.url().trim_start_matches("redis+unix://").into()
}

/// # Panics
/// If it was ended.
pub fn process_of(server: &Embedded) -> Pid {
    let pid = server.pid().and_then(|pid| pid.try_into().ok());
    pid.and_then(Pid::from_raw).expect("the server runs")
}

/// Sends the server a signal, such as one that stops it.
pub fn signal_to(server: &Embedded, signal: Signal) {
    // Fails only if it has ended.
    let _ = kill_process(process_of(server), signal);
}
