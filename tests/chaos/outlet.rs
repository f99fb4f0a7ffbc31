//! The Redis of lists and streams, with a replica: clients reach the present primary at one
//! address, as with an address that moves from host to host.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::time::Duration;

use keyfall::embedded::Embedded;
use keyfall_testing::ports::free_port;
use keyfall_testing::server::socket_of;
use redis::FromRedisValue;
use tokio::time::{Instant, sleep};

type Result<T = (), E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

/// How long a replica may take to follow.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Outlet {
    /// The servers with their ports. The first is the primary; a second exists if they may forget.
    servers: Vec<(Embedded, u16)>,
    address: PathBuf,
}

impl Outlet {
    /// Starts the server. One that forgets keeps snapshots of `SAVE` only, and has a replica.
    pub(crate) async fn start(forgets: bool) -> Result<Self> {
        let mut servers = Vec::new();
        for _ in 0..=usize::from(forgets) {
            let port = free_port();
            let mut options = Embedded::options();
            if forgets {
                options = options
                    .args(["--appendonly", "no", "--save", ""])
                    .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
                    .args(["--repl-diskless-sync-delay", "0"]);
            }
            servers.push((options.start().await?, port));
        }
        let it = Outlet {
            address: socket_of(&servers[0].0).with_file_name("address.sock"),
            servers,
        };
        it.is_at_its_address()?;
        if forgets {
            it.follows().await?;
        }
        Ok(it)
    }

    pub(crate) fn url(&self) -> String {
        format!("redis+unix://{}", self.address.display())
    }

    pub(crate) async fn kill(&mut self) -> Result {
        Ok(self.servers[0].0.kill_server().await?)
    }

    /// Starts the server again, with the data that it has kept.
    pub(crate) async fn restart(&mut self) -> Result {
        Ok(self.servers[0].0.restart().await?)
    }

    pub(crate) async fn save(&self) -> Result {
        self.ask(0, &["SAVE"]).await
    }

    /// Removes the kept data, while the server is down.
    pub(crate) fn lose_all(&self) -> Result {
        let kept = socket_of(&self.servers[0].0).with_file_name("dump.rdb");
        match fs::remove_file(kept) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Cuts the replica off: it learns nothing more.
    pub(crate) async fn cut_off(&self) -> Result {
        self.is_followed().await?;
        self.ask(1, &["REPLICAOF", "NO", "ONE"]).await
    }

    /// The replica takes the place of the primary, which was killed and becomes the replica.
    pub(crate) async fn fail_over(&mut self) -> Result {
        self.servers.swap(0, 1);
        self.is_at_its_address()?;
        self.servers[1].0.restart().await?;
        self.follows().await
    }

    fn is_at_its_address(&self) -> Result {
        let new = self.address.with_extension("new");
        symlink(socket_of(&self.servers[0].0), &new)?;
        Ok(fs::rename(new, &self.address)?)
    }

    async fn follows(&self) -> Result {
        let port = self.servers[0].1.to_string();
        self.ask(1, &["REPLICAOF", "127.0.0.1", &port]).await
    }

    async fn is_followed(&self) -> Result {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let info: String = self.ask(1, &["INFO", "replication"]).await?;
            if info.contains("master_link_status:up") {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("the replica does not follow: {info}").into());
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    async fn ask<T: FromRedisValue>(&self, server: usize, words: &[&str]) -> Result<T> {
        let client = redis::Client::open(self.servers[server].0.url())?;
        let mut redis = client.get_multiplexed_async_connection().await?;
        Ok(redis::Cmd::new().arg(words).query_async(&mut redis).await?)
    }
}
