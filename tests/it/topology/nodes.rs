//! Servers with a port: a primary, and its replicas.

use keyfall::embedded::Embedded;
use keyfall_testing::ports::free_port;
use keyfall_testing::server::process_of;
use rustix::process::{Signal, kill_process};

use crate::runs::eventually;
use crate::site::{command, connect};

/// A server with a port.
pub(super) struct Node {
    pub(super) server: Embedded,
    pub(super) port: u16,
}

impl Node {
    pub(super) async fn start(primary: Option<u16>) -> Self {
        Node::with(primary, &[]).await
    }

    /// Starts a server with these further arguments.
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

    /// Waits until this number of replicas follow the server.
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
        kill_process(process_of(&self.server), signal).unwrap();
    }
}
