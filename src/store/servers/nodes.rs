//! The nodes of a cluster, for what each of them has to be asked; a single server counts as one node.

use std::time::{Duration, Instant};

#[cfg(feature = "worker")]
use redis::aio::PubSub;
use redis::{Cmd, Value};

use crate::error::Result;
use crate::store::Server;
use crate::store::connections::cluster::Node;
#[cfg(feature = "worker")]
use crate::store::connections::fault::Fault;
use crate::store::connections::link::Request;

/// How long a node of a cluster is asked for what only it can tell.
const PATIENCE: Duration = Duration::from_secs(2);

/// A node of a cluster, or the single server, which has no name.
pub(crate) type ServerNode = Option<Node>;

impl Server {
    /// Those that hold data of their own: the only one, or the primaries of a cluster.
    pub(crate) async fn data_nodes(&self, until: Instant) -> Result<Vec<ServerNode>> {
        Ok(self.nodes(until).await?.0)
    }

    /// The same, and the replicas of a cluster, each of which may be a primary next.
    #[cfg(feature = "worker")]
    pub(crate) async fn all_nodes(&self, until: Instant) -> Result<Vec<ServerNode>> {
        let (mut primaries, replicas) = self.nodes(until).await?;
        primaries.extend(replicas);
        Ok(primaries)
    }

    /// Primaries and replicas apart.
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

    /// A connection for subscriptions, and for nothing else; to whichever node of a cluster can be
    /// reached.
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

    /// Where a server is; without credentials.
    pub(crate) fn address_of(&self, server: &ServerNode) -> String {
        self.link.address_of(server.as_ref())
    }

    /// A command to this one, whatever its key.
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
