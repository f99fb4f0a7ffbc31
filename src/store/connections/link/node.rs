//! Chooses the node of a cluster that a request goes to, and reads the layout of the cluster from
//! its nodes.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
#[cfg(feature = "worker")]
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use redis::Cmd;
#[cfg(feature = "worker")]
use redis::{Pipeline, Value};
use tokio::time::{timeout, timeout_at};

use super::{Link, Request};
#[cfg(feature = "worker")]
use super::{Repeats, ServerReply};
#[cfg(feature = "worker")]
use crate::moment::Moment;
use crate::store::connections::cluster::{Cluster, Node};
use crate::store::connections::fault::Fault;

/// Pause until one more node is asked for the layout of its cluster, beside the nodes that have not
/// answered yet.
const HEDGE: Duration = Duration::from_millis(100);

/// The node that a request is for.
pub(super) enum NodeChoice<'a> {
    /// There is one server.
    Server,
    /// The primary of this slot.
    Slot(u16),
    /// This node.
    Node(&'a Node),
    /// Any primary.
    Any,
}

impl Link {
    /// The node that serves the key of a command; nothing if there is a single server.
    pub(in crate::store) async fn home_of(
        &self,
        cmd: &Cmd,
        until: Instant,
    ) -> Result<Option<Node>, Fault> {
        self.node(&self.aim(Request::One(cmd)), until).await
    }

    /// Sends each command to the node of its key, all at the same time. Commands without a key go
    /// to `node`, or to the node of the first command that has a key: they are about the same
    /// server. If `is_each`, a command that the server refuses has the refusal as its answer; else
    /// the first refusal is the result.
    #[cfg(feature = "worker")]
    pub(super) async fn scatter(
        &self,
        pipeline: &Pipeline,
        node: Option<&Node>,
        is_each: bool,
        until: Instant,
    ) -> Result<ServerReply, Fault> {
        let slots: Vec<_> = pipeline.cmd_iter().map(Cluster::slot_of).collect();
        let first = slots.iter().flatten().next().copied();
        let both = pipeline.cmd_iter().zip(slots);
        let answers = join_all(both.map(async |(cmd, slot)| {
            let aim = match (slot, node) {
                (None, Some(node)) => NodeChoice::Node(node),
                _ => slot.or(first).map_or(NodeChoice::Any, NodeChoice::Slot),
            };
            let request = Request::One(cmd);
            self.keep_sending(request, &aim, until, Repeats::Always)
                .await
        }));
        let sent = Moment::now();
        let mut values = Vec::with_capacity(pipeline.len());
        for answer in answers.await {
            values.push(match answer {
                Ok(answer) => answer.value,
                Err(fault) if is_each => fault.into_answer()?,
                Err(fault) => return Err(fault),
            });
        }
        Ok(ServerReply {
            value: Value::Array(values),
            sent,
            received: Instant::now(),
        })
    }

    /// Chooses the node by the key of a request, and any node for a request without a key.
    pub(super) fn aim<'a>(&self, request: Request<'a>) -> NodeChoice<'a> {
        match request {
            Request::At(node, _) => NodeChoice::Node(node),
            _ if self.origin.cluster().is_none() => NodeChoice::Server,
            Request::One(cmd) => Cluster::slot_of(cmd).map_or(NodeChoice::Any, NodeChoice::Slot),
            Request::Many(_) => NodeChoice::Any,
            #[cfg(feature = "worker")]
            Request::Each(..) => NodeChoice::Any,
            #[cfg(feature = "worker")]
            Request::Together(pipeline) => {
                let first = pipeline.cmd_iter().next();
                first
                    .and_then(Cluster::slot_of)
                    .map_or(NodeChoice::Any, NodeChoice::Slot)
            }
        }
    }

    /// True if another node serves the slot by now: the change that this node has made may be lost
    /// with it.
    pub(super) fn is_replaced(&self, aim: &NodeChoice<'_>, node: Option<&Node>) -> bool {
        match (self.origin.cluster(), aim) {
            (Some(cluster), NodeChoice::Slot(slot)) => cluster.owner(*slot).as_ref() != node,
            _ => false,
        }
    }

    /// The node for a request; nothing if there is a single server. Reads the layout first if it is
    /// stale.
    pub(super) async fn node(
        &self,
        aim: &NodeChoice<'_>,
        until: Instant,
    ) -> Result<Option<Node>, Fault> {
        let Some(cluster) = self.origin.cluster() else {
            return Ok(None);
        };
        if let NodeChoice::Node(node) = aim {
            return Ok(Some((*node).clone()));
        }
        let known = || match aim {
            NodeChoice::Slot(slot) => cluster.owner(*slot),
            _ => cluster.any(),
        };
        if cluster.is_stale() {
            let read = self.survey(cluster, until).await;
            // The layout of before is better than none.
            if known().is_none() {
                read?;
            }
        }
        match known() {
            Some(node) => Ok(Some(node)),
            None => Err(Fault::uncovered(&cluster.address())),
        }
    }

    /// Reads the layout of a cluster. Asks one node after the other, [`HEDGE`] apart, and takes the
    /// first answer. Calls at the same time share one reading.
    pub(in crate::store) async fn survey(
        &self,
        cluster: &Cluster,
        until: Instant,
    ) -> Result<(), Fault> {
        let began = Instant::now();
        let turn = timeout_at(until.into(), self.surveying.lock()).await;
        let Ok(_turn) = turn else {
            return Err(Fault::unreachable(&cluster.address()));
        };
        if cluster.was_read_since(began) {
            return Ok(());
        }
        let question = Cluster::question();
        let ask = |node: Node| {
            let question = &question;
            // Boxed: else its type becomes part of the type of each future that calls Redis.
            let asking: BoxFuture<'_, Result<(), Fault>> = Box::pin(async move {
                let request = Request::One(question);
                let answer = self.try_at_once(&node, request, until).await?;
                cluster.learn(answer.value, &node)
            });
            asking
        };
        let mut informants = cluster.informants().into_iter();
        let mut asked = FuturesUnordered::new();
        let mut last = None;
        loop {
            asked.extend(informants.next().map(ask));
            match timeout(HEDGE, asked.next()).await {
                Ok(Some(Ok(()))) => return Ok(()),
                // A refusal says more than silence.
                Ok(Some(Err(fault))) if fault.is_passing() && last.is_some() => {}
                Ok(Some(Err(fault))) => last = Some(fault),
                Ok(None) => {
                    return Err(last.unwrap_or_else(|| Fault::unreachable(&cluster.address())));
                }
                Err(_) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::LinkSettings;
    use crate::store::connections::origin::Origin;

    #[test]
    fn an_answer_of_a_node_counts_while_the_node_serves_the_slot() {
        let settings = LinkSettings::default();
        let url = "redis+cluster://10.0.0.5:7001,10.0.0.6:7001";
        let link = Link::new(Origin::parse(url, &settings).unwrap(), &settings);
        let [one, other] = ["10.0.0.5:7001", "10.0.0.6:7001"].map(Node::new);
        let cluster = link.origin().cluster().unwrap();
        let slot = NodeChoice::Slot(7);
        cluster.follow(7, &one);
        assert!(!link.is_replaced(&slot, Some(&one)));
        cluster.follow(8, &other);
        assert!(!link.is_replaced(&slot, Some(&one)));
        cluster.follow(7, &other);
        assert!(link.is_replaced(&slot, Some(&one)));
        assert!(!link.is_replaced(&slot, Some(&other)));
        // A request for this very node, or for any.
        for choice in [NodeChoice::Node(&one), NodeChoice::Any] {
            assert!(!link.is_replaced(&choice, Some(&one)));
        }
    }
}
