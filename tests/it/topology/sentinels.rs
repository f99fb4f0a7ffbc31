//! A primary, its replicas, and sentinels that watch them: real processes.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use super::nodes::{Node, free_port};
use crate::runs::eventually;
use crate::site::{command, connect};

/// What the sentinels call the primary.
const NAME: &str = "main";

struct Sentinel {
    child: Child,
    port: u16,
}

/// One primary, two replicas, three sentinels.
pub(super) struct Sentineled {
    pub(super) nodes: Vec<Node>,
    sentinels: Vec<Sentinel>,
    files: PathBuf,
}

impl Sentinel {
    fn start(files: &std::path::Path, primary: u16) -> Self {
        let port = free_port();
        let path = files.join(format!("sentinel-{port}.conf"));
        let config = format!(
            "port {port}\nbind 127.0.0.1\n\
             sentinel monitor {NAME} 127.0.0.1 {primary} 2\n\
             sentinel down-after-milliseconds {NAME} 1000\n\
             sentinel failover-timeout {NAME} 5000\n"
        );
        std::fs::write(&path, config).unwrap();
        let binary = std::env::var("KEYFALL_REDIS_BIN").unwrap_or("redis-server".to_owned());
        let child = Command::new(binary)
            .arg(&path)
            .arg("--sentinel")
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Sentinel { child, port }
    }
}

impl Sentineled {
    pub(super) async fn start() -> Self {
        let files = std::env::temp_dir().join(format!("keyfall-{:016x}", rand::random::<u64>()));
        std::fs::create_dir(&files).unwrap();
        let primary = Node::start(None).await;
        let port = primary.port;
        let nodes = vec![
            primary,
            Node::start(Some(port)).await,
            Node::start(Some(port)).await,
        ];
        let sentinels = (0..3).map(|_| Sentinel::start(&files, port)).collect();
        let it = Sentineled {
            nodes,
            sentinels,
            files,
        };
        it.are_agreed(port).await;
        it
    }

    /// Waits until each sentinel knows the primary, both replicas and the other sentinels.
    async fn are_agreed(&self, port: u16) {
        for sentinel in &self.sentinels {
            eventually("the sentinels know each other", async || {
                let told = sentinel.knows().await?;
                let is = |name: &str, value: &str| told.get(name).is_some_and(|is| is == value);
                (is("port", &port.to_string())
                    && is("num-slaves", "2")
                    && is("num-other-sentinels", "2")
                    && is("flags", "master"))
                .then_some(())
            })
            .await;
        }
    }

    /// Where clients find the primary.
    pub(super) fn url(&self) -> String {
        let places = self.sentinels.iter();
        let places: Vec<String> = places.map(|it| format!("127.0.0.1:{}", it.port)).collect();
        format!("redis+sentinel://{}/{NAME}", places.join(","))
    }

    /// The place in `nodes` of what most sentinels take for the primary.
    pub(super) async fn primary(&self) -> usize {
        let mut ports = Vec::new();
        for sentinel in &self.sentinels {
            let told = sentinel.knows().await.unwrap_or_default();
            ports.extend(told.get("port").and_then(|port| port.parse::<u16>().ok()));
        }
        let of = |port: u16| ports.iter().filter(|known| **known == port).count();
        let places = 0..self.nodes.len();
        places
            .max_by_key(|place| of(self.nodes[*place].port))
            .unwrap()
    }

    /// Waits until there is another primary than this node.
    pub(super) async fn fails_over_from(&self, old: usize) -> usize {
        eventually("a fail-over", async || {
            let now = self.primary().await;
            (now != old).then_some(now)
        })
        .await
    }

    /// Asks for a fail-over though nothing is wrong.
    pub(super) async fn fail_over(&self) {
        eventually("a fail-over is begun", async || {
            let url = format!("redis://127.0.0.1:{}", self.sentinels[0].port);
            let mut sentinel = connect(&url).await;
            let mut cmd = redis::cmd("SENTINEL");
            cmd.arg("FAILOVER").arg(NAME);
            cmd.query_async::<()>(&mut sentinel).await.ok()
        })
        .await;
    }
}

impl Sentinel {
    async fn knows(&self) -> Option<std::collections::HashMap<String, String>> {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.port)).unwrap();
        let mut redis = client.get_multiplexed_async_connection().await.ok()?;
        Some(command(&mut redis, &["SENTINEL", "MASTER", NAME]).await)
    }
}

impl Drop for Sentineled {
    fn drop(&mut self) {
        for sentinel in &mut self.sentinels {
            let _ = sentinel.child.kill();
            let _ = sentinel.child.wait();
        }
        let _ = std::fs::remove_dir_all(&self.files);
    }
}
