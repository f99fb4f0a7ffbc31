//! Servers with a port: a primary, and its replicas.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};

use keyfall::embedded::Embedded;
use rustix::process::{Pid, Signal, kill_process};

use crate::runs::eventually;
use crate::site::{command, connect};

/// A server with a port.
pub(super) struct Node {
    pub(super) server: Embedded,
    pub(super) port: u16,
}

/// How far the port of the cluster's bus is from that for clients.
const BUS: u16 = 10_000;

/// A port that is free, as that of the bus is, and that nobody is given beside: below those that the
/// system gives to connections, and none twice.
pub(super) fn free_port() -> u16 {
    const FIRST: u16 = 11_000;
    static GIVEN: AtomicU16 = AtomicU16::new(0);
    // Other processes of these tests begin elsewhere.
    let start = std::process::id() as u16;
    let is_free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
    loop {
        let next = start.wrapping_add(GIVEN.fetch_add(1, Ordering::Relaxed));
        let port = FIRST + next % BUS;
        if is_free(port) && is_free(port + BUS) {
            return port;
        }
    }
}

impl Node {
    pub(super) async fn start(primary: Option<u16>) -> Self {
        Node::with(primary, &[]).await
    }

    /// With these arguments beside its own.
    pub(super) async fn with(primary: Option<u16>, args: &[&str]) -> Self {
        let port = free_port();
        let mut options = Embedded::options()
            .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
            .args(["--repl-diskless-sync-delay", "0"])
            .args(args);
        if let Some(primary) = primary {
            options = options.args(["--replicaof", "127.0.0.1", &primary.to_string()]);
        }
        let server = options.start().await.unwrap();
        Node { server, port }
    }

    /// Waits until so many replicas follow it.
    pub(super) async fn is_followed_by(&self, replicas: usize) {
        let mut redis = connect(&self.server.url()).await;
        eventually("all replicas follow", async || {
            let info: String = command(&mut redis, &["INFO", "replication"]).await;
            (info.matches("state=online").count() == replicas).then_some(())
        })
        .await;
    }

    /// Sends its process a signal, such as one that stops it.
    pub(super) fn signal(&self, signal: Signal) {
        let pid = self.server.pid().unwrap().try_into().unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }
}
