//! A node of a Redis Cluster: a real process. Each suite makes a cluster of them as it needs one.

use keyfall::embedded::{Embedded, Options};
use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, RedisResult};
use tokio::time::Instant;

use crate::patience::PATIENCE;
use crate::ports::{BUS, free_port};
use crate::server::connect;

pub const SLOTS: usize = 16_384;

/// A server of a cluster, and the address at which other nodes find it.
pub struct ClusterNode {
    pub server: Embedded,
    pub port: u16,
    pub bus: u16,
    pub id: String,
}

impl ClusterNode {
    /// Starts a node with these options; `listens` makes further arguments from its port.
    ///
    /// # Errors
    /// If the node does not start on any of the tried ports.
    pub async fn start(
        options: &Options,
        listens: impl Fn(u16) -> Vec<String>,
    ) -> Result<Self, String> {
        let deadline = Instant::now() + PATIENCE;
        let (server, port) = loop {
            let port = free_port();
            let options = options
                .clone()
                .args(["--bind", "127.0.0.1"])
                .args(listens(port))
                .args(["--cluster-enabled", "yes"])
                .args(["--cluster-require-full-coverage", "no"])
                .args(["--cluster-allow-replica-migration", "no"])
                .args(["--repl-diskless-sync-delay", "0"]);
            match options.start().await {
                Ok(server) => break (server, port),
                // Another process may have taken the port meanwhile.
                Err(error) if Instant::now() > deadline => return Err(error.to_string()),
                Err(_) => {}
            }
        };
        let mut node = ClusterNode {
            server,
            port,
            bus: port + BUS,
            id: String::new(),
        };
        let id = node.try_ask("CLUSTER MYID").await;
        node.id = id.map_err(|error| error.to_string())?;
        Ok(node)
    }

    /// A direct connection, past any network between this node and the others.
    pub async fn connection(&self) -> RedisResult<MultiplexedConnection> {
        connect(&self.server.url()).await
    }

    /// A command, its words separated by blanks; `{empty}` is a word without a letter.
    pub async fn try_ask<T: FromRedisValue>(&self, text: &str) -> RedisResult<T> {
        let mut cmd = redis::Cmd::new();
        let words = text.split(' ').map(|word| match word {
            "{empty}" => "",
            word => word,
        });
        cmd.arg(words.collect::<Vec<_>>());
        cmd.query_async(&mut self.connection().await?).await
    }

    /// The same.
    ///
    /// # Panics
    /// If it is refused.
    pub async fn ask<T: FromRedisValue>(&self, text: &str) -> T {
        self.try_ask(text).await.unwrap()
    }

    /// Whether the node's answer to `question` contains this line.
    pub async fn says(&self, question: &str, line: &str) -> bool {
        let told: RedisResult<String> = self.try_ask(question).await;
        told.is_ok_and(|told| told.lines().any(|one| one == line))
    }

    /// Makes it known to the cluster of another.
    pub async fn meet(&self, other: &ClusterNode) -> RedisResult<()> {
        let (port, bus) = (other.port, other.bus);
        self.try_ask(&format!("CLUSTER MEET 127.0.0.1 {port} {bus}"))
            .await
    }

    /// The port of the primary that serves a slot, as far as it knows one.
    pub async fn primary_of(&self, slot: u16) -> Option<u16> {
        let told: RedisResult<Vec<Vec<redis::Value>>> = self.try_ask("CLUSTER SLOTS").await;
        let number = |value: &redis::Value| redis::from_redis_value::<u16>(value.clone()).ok();
        let range = told.ok()?.into_iter().find(|range| {
            let ends = number(&range[0]).zip(number(&range[1]));
            ends.is_some_and(|(first, last)| (first..=last).contains(&slot))
        })?;
        // Host, port, and further fields that depend on the version.
        let primary: Vec<redis::Value> = redis::from_redis_value(range[2].clone()).ok()?;
        number(&primary[1])
    }

    /// Both know that a slot is on its way to another primary, and no key has left yet.
    pub async fn open_to_move(&self, slot: u16, to: &ClusterNode) -> RedisResult<()> {
        let importing = format!("CLUSTER SETSLOT {slot} IMPORTING {}", self.id);
        let () = to.try_ask(&importing).await?;
        self.try_ask(&format!("CLUSTER SETSLOT {slot} MIGRATING {}", to.id))
            .await
    }

    /// Both know that a slot has moved to another primary.
    pub async fn close_moved(&self, slot: u16, to: &ClusterNode) -> RedisResult<()> {
        let there = format!("CLUSTER SETSLOT {slot} NODE {}", to.id);
        let () = to.try_ask(&there).await?;
        self.try_ask(&there).await
    }
}
