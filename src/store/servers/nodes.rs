//! The nodes of a cluster, for questions that each node must be asked. A single server counts as
//! one node.

use std::time::{Duration, Instant};

#[cfg(feature = "worker")]
use redis::aio::PubSub;
use redis::{Cmd, Value};

use crate::error::Result;
use crate::shards::slot_of;
use crate::store::connections::cluster::Node;
#[cfg(feature = "worker")]
use crate::store::connections::fault::Fault;
use crate::store::connections::link::Request;
use crate::store::servers::requirements::Info;
use crate::store::{Ledger, Server, Store, from_value};

/// The longest that one node of a cluster is waited for.
const PATIENCE: Duration = Duration::from_secs(2);

/// A node of a cluster, or the single server, which has no name.
pub(crate) type ServerNode = Option<Node>;

impl Store {
    /// The node of a cluster that serves the ledger with this name; nothing if none is known, or
    /// this is no cluster.
    pub(crate) fn node_of_ledger(&self, subject: &str) -> ServerNode {
        let cluster = self.cluster()?.link.origin().cluster()?;
        cluster.owner(slot_of(subject.as_bytes()))
    }

    /// The address of the server that has this ledger, without credentials; of a cluster, the
    /// address of the node.
    pub(crate) fn address_of_ledger(&self, ledger: &Ledger) -> String {
        match self.cluster().zip(self.node_of_ledger(ledger.subject())) {
            Some((cluster, node)) => cluster.address_of(&Some(node)),
            None => ledger.address_of_server(),
        }
    }
}

impl Ledger {
    /// How many keys of its server have expired since that server started: [`expired_keys`]. `None`
    /// for a cluster, whose nodes count for themselves, and if the server does not tell.
    ///
    /// [`expired_keys`]: https://redis.io/docs/latest/commands/info/
    pub(crate) async fn expired_keys(&self, until: Instant) -> Option<u64> {
        if self.server.is_cluster() {
            return None;
        }
        let info = redis::cmd("INFO").arg("stats").take();
        let answer = self.server.command(&info, until).await;
        let text: String = from_value(answer.ok()?).ok()?;
        Info::parse(&text).text("expired_keys").parse().ok()
    }
}

impl Server {
    /// The nodes that hold data of their own: the single server, or the primaries of a cluster.
    pub(crate) async fn data_nodes(&self, until: Instant) -> Result<Vec<ServerNode>> {
        Ok(self.nodes(until).await?.0)
    }

    /// The same, and then the replicas of a cluster, each of which may become a primary.
    #[cfg(feature = "worker")]
    pub(crate) async fn all_nodes(&self, until: Instant) -> Result<Vec<ServerNode>> {
        let (mut primaries, replicas) = self.nodes(until).await?;
        primaries.extend(replicas);
        Ok(primaries)
    }

    /// The primaries and the replicas, by a layout that is read now.
    pub(in crate::store) async fn nodes(
        &self,
        until: Instant,
    ) -> Result<(Vec<ServerNode>, Vec<ServerNode>)> {
        let Some(cluster) = self.link.origin().cluster() else {
            return Ok((vec![None], Vec::new()));
        };
        self.link.survey(cluster, until).await?;
        let (primaries, replicas) = cluster.nodes();
        let named = |nodes: Vec<Node>| nodes.into_iter().map(Some).collect();
        Ok((named(primaries), named(replicas)))
    }

    /// A connection for subscriptions only; on a cluster, to the first node that can be reached.
    #[cfg(feature = "worker")]
    pub(in crate::store) async fn open_pubsub(&self) -> Result<PubSub, Fault> {
        let (origin, address) = (self.link.origin(), self.address());
        let nodes = match origin.cluster() {
            Some(cluster) => cluster.informants().into_iter().map(Some).collect(),
            None => vec![None],
        };
        let mut last = Fault::unreachable(&address);
        for node in nodes {
            let client = origin.client(node.as_ref()).await?;
            match client.get_async_pubsub().await {
                Ok(pubsub) => return Ok(pubsub),
                Err(error) => last = Fault::from_connecting(error, &address),
            }
        }
        Err(last)
    }

    /// The address of a node; without credentials.
    pub(crate) fn address_of(&self, server: &ServerNode) -> String {
        self.link.address_of(server.as_ref())
    }

    /// Sends a command to this node, with any key; on a cluster for [`PATIENCE`] at most.
    pub(in crate::store) async fn command_at(
        &self,
        server: &ServerNode,
        cmd: &Cmd,
        until: Instant,
    ) -> Result<Value> {
        let Some(node) = server else {
            return self.command(cmd, until).await;
        };
        let until = until.min(Instant::now() + PATIENCE);
        Ok(self.link.send(Request::At(node, cmd), until).await?.value)
    }
}
