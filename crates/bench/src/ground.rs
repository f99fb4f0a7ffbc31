//! Where a phase is measured: a Redis, or several, with nothing on it that the phase has not put
//! there.

use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use keyfall::embedded::Embedded;
use keyfall::{Client, ErrorKind};
use redis::aio::{Monitor, MultiplexedConnection, PubSubStream};
use tokio::time::sleep;

use super::args::Options;
use super::nodes::{Node, Nodes};
use super::usage::{Server, Usage};

/// Workers that were stopped hard need a moment to give back what they hold.
const FAREWELL: Duration = Duration::from_secs(3);

/// Beyond what any phase measures.
const FAR: Duration = Duration::from_secs(3600);

/// How long the server may take for an answer.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// A private server, or a namespace of its own on somebody's.
pub(super) struct Ground {
    embedded: Option<Embedded>,
    url: String,
    namespace: String,
    app: String,
    pub(super) nodes: Nodes,
    pub(super) client: Client,
}

/// The same instant on two clocks.
#[derive(Clone, Copy)]
pub(super) struct Moment {
    pub(super) server: SystemTime,
    pub(super) here: Instant,
}

impl Ground {
    /// `url` is that of somebody's server, if there is one.
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

    /// Sets up the kinds that are measured as the options say.
    pub(super) async fn prepare(&self, options: &Options, kinds: u16) -> anyhow::Result<()> {
        if options.shards.is_none() && options.history.is_none() {
            return Ok(());
        }
        for kind in self.kinds(kinds) {
            // Of a kind that nobody has used yet nothing can be said.
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

    /// Where the server is, and in which namespace the jobs are.
    pub(super) fn place(&self) -> (&str, &str) {
        (&self.url, &self.namespace)
    }

    /// A client with connections of its own.
    pub(super) async fn another_client(&self) -> keyfall::Result<Client> {
        let builder = Client::builder(&self.url).namespace(&self.namespace);
        builder.connect().await
    }

    pub(super) fn kind(&self) -> String {
        format!("{}:trans:notice", self.app)
    }

    /// So many kinds, with [`kind`](Self::kind) in front.
    pub(super) fn kinds(&self, count: u16) -> impl Iterator<Item = String> {
        let further = (1..count).map(|number| format!("{}:trans{number}:notice", self.app));
        std::iter::once(self.kind()).chain(further)
    }

    pub(super) fn key(&self, number: usize) -> String {
        key(&self.kind(), number)
    }

    /// For what Keyfall itself never asks, where any of several servers can answer.
    pub(super) fn redis(&self) -> MultiplexedConnection {
        self.nodes.first().redis()
    }

    /// All that each server is asked from now on.
    pub(super) async fn monitors(&self) -> anyhow::Result<Vec<Monitor>> {
        let mut monitors = Vec::new();
        for node in self.nodes.all() {
            let monitor = redis::Client::open(node.url())?.get_async_monitor().await;
            monitors.push(monitor.context("the server cannot be watched with MONITOR")?);
        }
        Ok(monitors)
    }

    /// The names of the keys that expire from now on, in the first database.
    pub(super) async fn expired_events(&self) -> anyhow::Result<PubSubStream> {
        let redis = redis::Client::open(self.nodes.first().url())?;
        let mut subscription = redis.get_async_pubsub().await?;
        subscription.subscribe("__keyevent@0__:expired").await?;
        Ok(subscription.into_on_message())
    }

    /// What all servers together have used since they started.
    pub(super) async fn usage(&self) -> anyhow::Result<Usage> {
        let mut usage = Usage::default();
        for node in self.nodes.all() {
            usage = usage.plus(Usage::read(&info(node).await?));
        }
        Ok(usage)
    }

    pub(super) async fn server(&self) -> anyhow::Result<Server> {
        let count = self.nodes.all().len();
        Ok(Server::read(&info(self.nodes.first()).await?, count))
    }

    /// Whether an error says that something does not work on several servers.
    pub(super) fn refuses(&self, error: &anyhow::Error) -> bool {
        let error = error.downcast_ref::<keyfall::Error>();
        let kind = error.map(keyfall::Error::kind);
        let refused = [ErrorKind::InvalidSetting, ErrorKind::Incompatible];
        self.nodes.all().len() > 1 && kind.is_some_and(|kind| refused.contains(&kind))
    }

    /// What time it is there: the answer that came soonest tells it best.
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

    /// Ends the private server, or removes all that was put on somebody's.
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

    /// The counters of the ledgers, and the few names that every namespace has.
    async fn remove_names(&self, node: &Node) -> anyhow::Result<()> {
        let (mut redis, mut cursor) = (node.redis(), 0_u64);
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor).arg("MATCH");
            scan.arg(format!("{}:*", self.namespace));
            scan.arg("COUNT").arg(1000);
            let (next, names): (u64, Vec<String>) = scan.query_async(&mut redis).await?;
            if !names.is_empty() {
                // One by one: on a cluster they are in different slots.
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

async fn info(node: &Node) -> anyhow::Result<String> {
    let mut info = redis::cmd("INFO");
    let text = info.arg("all").query_async(&mut node.redis()).await;
    text.context("the server's INFO cannot be read")
}

impl Moment {
    /// So much later.
    pub(super) fn plus(self, time: Duration) -> Self {
        Moment {
            server: self.server + time,
            here: self.here + time,
        }
    }
}

/// A name as the README has them, with six digits.
pub(super) fn key(kind: &str, number: usize) -> String {
    format!("{kind}:{number:06}")
}

/// The digits of such a name.
pub(super) fn number(key: &str) -> Option<usize> {
    key.rsplit(':').next()?.parse().ok()
}
