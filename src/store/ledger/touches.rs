//! Touches of triggers on the nodes of a cluster: the pacer reads each trigger at its due time, so
//! that Redis expires it. A node that does not answer in time holds up no other node.

use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::key::JobKey;
use crate::store::connections::cluster::{Cluster, Node};
use crate::store::{Server, from_value};

/// How long a round of the pacer waits for the touches of a node. After about the same time, the
/// pacer claims the jobs without events.
const WAIT: Duration = Duration::from_millis(20);

/// The nodes that have not answered a touch in time. They are not touched until they have answered.
#[derive(Default)]
pub(in crate::store) struct Slow(Mutex<HashSet<Option<Node>>>);

impl Server {
    /// Reads triggers, each on its own node, so that Redis expires those that are due. Returns how
    /// many may still exist; triggers on nodes that do not answer count as existing. 0 if this is
    /// no cluster.
    ///
    /// The call takes about [`WAIT`] at the most, whatever the nodes do; a late answer makes its
    /// node available again.
    pub(in crate::store) async fn touch(self: &Arc<Self>, jobs: &[JobKey], until: Instant) -> u64 {
        let Some(cluster) = self.link.origin().cluster() else {
            return 0;
        };
        let mut of_nodes: HashMap<Option<Node>, Vec<String>> = HashMap::new();
        for job in jobs {
            let node = cluster.owner(Cluster::slot(job.as_str()));
            of_nodes.entry(node).or_default().push(job.as_str().into());
        }
        let touches = of_nodes
            .into_iter()
            .map(|(node, triggers)| self.touch_at(node, triggers, until));
        join_all(touches).await.into_iter().sum()
    }

    /// Touches the triggers of one node, and waits [`WAIT`] at the most; see `touch`.
    async fn touch_at(
        self: &Arc<Self>,
        node: Option<Node>,
        triggers: Vec<String>,
        until: Instant,
    ) -> u64 {
        let all = triggers.len() as u64;
        if self.slow.lock().contains(&node) {
            return all;
        }
        let server = self.clone();
        let (tell, told) = oneshot::channel();
        // The task goes on after the round is over.
        tokio::spawn(async move {
            let mut looks = redis::pipe();
            for trigger in &triggers {
                looks.cmd("EXISTS").arg(trigger);
            }
            let mut looking = pin!(server.pipeline(&looks, until));
            match timeout(WAIT, &mut looking).await {
                Ok(answer) => {
                    let alive = answer.and_then(from_value::<Vec<u64>>);
                    let alive = alive.map_or(all, |alive| alive.into_iter().sum());
                    // The round may be over.
                    let _ = tell.send(alive);
                }
                Err(_) => {
                    drop(tell);
                    server.slow.lock().insert(node.clone());
                    // A late answer is ignored; it only shows that the node answers again.
                    let _ = looking.await;
                    server.slow.lock().remove(&node);
                }
            }
        });
        told.await.unwrap_or(all)
    }
}

impl Slow {
    /// The set of slow nodes, locked.
    fn lock(&self) -> std::sync::MutexGuard<'_, HashSet<Option<Node>>> {
        self.0.lock().expect("no panic while held")
    }
}
