//! The ground of a phase: one Redis or several, which holds only data of this phase.

use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use keyfall::embedded::Embedded;
use keyfall::{Client, ErrorKind};
use redis::aio::{Monitor, MultiplexedConnection, PubSubStream};
use tokio::time::sleep;

use super::args::Options;
use super::nodes::{Node, Nodes};
use super::usage::{Server, Usage};

/// How long workers that were stopped hard may take to disappear.
const FAREWELL: Duration = Duration::from_secs(3);

/// A delay longer than any phase.
const FAR: Duration = Duration::from_secs(3600);

/// How long a server may take for an answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// A private server, or a namespace of its own on the servers that the user names.
pub(super) struct Ground {
    /// `None` on servers of the user.
    embedded: Option<Embedded>,
    url: String,
    namespace: String,
    /// The first segment of all job keys.
    app: String,
    pub(super) nodes: Nodes,
    pub(super) client: Client,
}

/// One instant on two clocks, Redis' and this machine's.
#[derive(Clone, Copy)]
pub(super) struct Moment {
    pub(super) server: SystemTime,
    pub(super) here: Instant,
}

impl Ground {
    /// Starts a private server without persistence, or takes the servers at `url`.
    pub(super) async fn new(url: Option<&str>) -> anyhow::Result<Self> {
        let Some(url) = url else {
            let options = Embedded::options();
            let server = options.args(["--save", "", "--appendonly", "no"]);
            let server = server.start().await?;
            let url = server.url();
            return Ground::at(url, Some(server), "keyfall".into(), "app1".into()).await;
        };
        let name = format!("bench{:08x}", rand::random::<u32>());
        Ground::at(url.to_owned(), None, name.clone(), name).await
    }

    /// Connects to the servers at `url`.
    async fn at(
        url: String,
        embedded: Option<Embedded>,
        namespace: String,
        app: String,
    ) -> anyhow::Result<Self> {
        let client = Client::builder(&url)
            .namespace(&namespace)
            .connect()
            .await?;
        let nodes = Nodes::find(&url).await?;
        Ok(Ground {
            embedded,
            url,
            namespace,
            app,
            nodes,
            client,
        })
    }

    /// Sets shards and history of the measured kinds, if the options name them.
    pub(super) async fn prepare(&self, options: &Options, kinds: u16) -> anyhow::Result<()> {
        if options.shards.is_none() && options.history.is_none() {
            return Ok(());
        }
        for kind in self.kinds(kinds) {
            // Settings of a kind need a kind that was used before.
            let first = key(&kind, 0);
            self.client.schedule(&*first, "").after(FAR).await?;
            self.client.cancel(first).await?;
            if let Some(shards) = options.shards {
                self.client.reshard(&kind, shards).await?;
            }
        }
        if let Some(entries) = options.history {
            let all = self.client.prefix(&format!("{}:", self.app));
            all.keep_history(entries).await?;
        }
        Ok(())
    }

    /// The URL of the servers, and the namespace of the jobs.
    pub(super) fn place(&self) -> (&str, &str) {
        (&self.url, &self.namespace)
    }

    /// A client with connections of its own.
    pub(super) async fn another_client(&self) -> keyfall::Result<Client> {
        let builder = Client::builder(&self.url).namespace(&self.namespace);
        builder.connect().await
    }

    /// The kind that most phases measure.
    pub(super) fn kind(&self) -> String {
        format!("{}:trans:notice", self.app)
    }

    /// `count` kinds, [`kind`](Self::kind) first.
    pub(super) fn kinds(&self, count: u16) -> impl Iterator<Item = String> {
        let further = (1..count).map(|number| format!("{}:trans{number}:notice", self.app));
        std::iter::once(self.kind()).chain(further)
    }

    /// The job key with this number, of the measured kind.
    pub(super) fn key(&self, number: usize) -> String {
        key(&self.kind(), number)
    }

    /// A connection to the first server, for questions that any of several servers can answer.
    pub(super) fn redis(&self) -> MultiplexedConnection {
        self.nodes.first().redis()
    }

    /// The commands that each server receives from now on, by MONITOR.
    pub(super) async fn monitors(&self) -> anyhow::Result<Vec<Monitor>> {
        let mut monitors = Vec::new();
        for node in self.nodes.all() {
            let monitor = redis::Client::open(node.url())?.get_async_monitor().await;
            monitors.push(monitor.context("the server cannot be watched with MONITOR")?);
        }
        Ok(monitors)
    }

    /// The names of keys that expire from now on, in database 0 of the first server.
    pub(super) async fn expired_events(&self) -> anyhow::Result<PubSubStream> {
        let redis = redis::Client::open(self.nodes.first().url())?;
        let mut subscription = redis.get_async_pubsub().await?;
        subscription.subscribe("__keyevent@0__:expired").await?;
        Ok(subscription.into_on_message())
    }

    /// The usage of all servers together since they started.
    pub(super) async fn usage(&self) -> anyhow::Result<Usage> {
        let mut usage = Usage::default();
        for node in self.nodes.all() {
            usage = usage.plus(Usage::read(&info(node).await?));
        }
        Ok(usage)
    }

    /// The name and the version of the first server, and the number of all servers.
    pub(super) async fn server(&self) -> anyhow::Result<Server> {
        let count = self.nodes.all().len();
        Ok(Server::read(&info(self.nodes.first()).await?, count))
    }

    /// Whether this error means that a phase cannot run on several servers.
    pub(super) fn refuses(&self, error: &anyhow::Error) -> bool {
        let error = error.downcast_ref::<keyfall::Error>();
        let kind = error.map(keyfall::Error::kind);
        let refused = [ErrorKind::InvalidSetting, ErrorKind::Incompatible];
        self.nodes.all().len() > 1 && kind.is_some_and(|kind| refused.contains(&kind))
    }

    /// The time of Redis now. The quickest of five answers counts, since it is the most exact one.
    pub(super) async fn time(&self) -> anyhow::Result<Moment> {
        let mut best: Option<(Duration, Moment)> = None;
        for _ in 0..5 {
            let asked = Instant::now();
            let time = redis::cmd("TIME").query_async(&mut self.redis()).await;
            let (seconds, micros): (u64, u64) = time.context("the server's TIME cannot be read")?;
            let took = asked.elapsed();
            let since = Duration::from_secs(seconds) + Duration::from_micros(micros);
            let moment = Moment {
                server: SystemTime::UNIX_EPOCH + since,
                here: asked + took / 2,
            };
            if best.is_none_or(|(least, _)| took < least) {
                best = Some((took, moment));
            }
        }
        Ok(best.expect("asked more than once").1)
    }

    /// Ends the private server, or removes all data of the benchmark from the servers of the user.
    pub(super) async fn end(self) -> anyhow::Result<()> {
        match self.embedded {
            Some(server) => Ok(server.stop().await?),
            None => self.clear().await.with_context(|| {
                format!(
                    "what begins with {:?} could not be removed from the server: cancel and \
                     delete it there",
                    self.namespace
                )
            }),
        }
    }

    /// Cancels all jobs, and removes all names of the namespace.
    async fn clear(&self) -> anyhow::Result<()> {
        let patience = Instant::now() + FAREWELL;
        while !self.client.instances().await?.is_empty() && Instant::now() < patience {
            sleep(Duration::from_millis(50)).await;
        }
        let all = format!("{}:", self.app);
        self.client.prefix(&all).cancel().await?;
        for node in self.nodes.all() {
            self.remove_names(node).await?;
        }
        Ok(())
    }

    /// Removes the keys that are left after all jobs are gone: counters of ledgers, and the few
    /// keys of every namespace.
    async fn remove_names(&self, node: &Node) -> anyhow::Result<()> {
        let (mut redis, mut cursor) = (node.redis(), 0_u64);
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor).arg("MATCH");
            scan.arg(format!("{}:*", self.namespace));
            scan.arg("COUNT").arg(1000);
            let (next, names): (u64, Vec<String>) = scan.query_async(&mut redis).await?;
            if !names.is_empty() {
                // One command for each: on a cluster they are in different slots.
                let mut unlink = redis::pipe();
                for name in names {
                    unlink.cmd("UNLINK").arg(name).ignore();
                }
                let () = unlink.query_async(&mut redis).await?;
            }
            if next == 0 {
                return Ok(());
            }
            cursor = next;
        }
    }
}

/// The answer of a server to `INFO all`.
async fn info(node: &Node) -> anyhow::Result<String> {
    let mut info = redis::cmd("INFO");
    let text = info.arg("all").query_async(&mut node.redis()).await;
    text.context("the server's INFO cannot be read")
}

impl Moment {
    /// The instant that is later by `time`.
    pub(super) fn plus(self, time: Duration) -> Self {
        Moment {
            server: self.server + time,
            here: self.here + time,
        }
    }
}

/// The job key with this number, at least six digits, so that keys sort by number.
pub(super) fn key(kind: &str, number: usize) -> String {
    format!("{kind}:{number:06}")
}

/// The number of such a key.
pub(super) fn number(key: &str) -> Option<usize> {
    key.rsplit(':').next()?.parse().ok()
}
