//! All events for a worker, as one subscription, on one server or on the nodes of a cluster.
//!
//! Each node of a cluster announces only the keys that expire on itself, so there is a subscription
//! to each node. Replicas announce nothing until they are promoted; a subscription that exists
//! before hears them from their first moment as primaries. A published message reaches every node,
//! so the subscription to wake-ups is on one node at a time.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{AbortHandle, LocalBoxFuture, abortable};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::error::Error;
use crate::settings::LinkSettings;
use crate::store::Server;
use crate::store::connections::cluster::Node;
use crate::store::connections::fault::Fault;
use crate::store::connections::subscription::{Signal, Subscription};

/// Interval between two reads of the cluster's layout.
const LOOK: Duration = Duration::from_secs(1);

/// The longest that one read of the layout may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// A node that failed is not in the layout, and usually comes back: its subscription ends after it
/// was absent from this many reads in a row.
const ABSENCES: u32 = 30;

/// Capacity of the queue of messages, over all nodes. When it is full, later messages wait on the
/// servers.
const QUEUE: usize = 1024;

/// A report of one of the subscriptions, or of the task that reads the layout.
enum SubscriptionReport {
    /// As [`Signal::Up`], for one subscription.
    Up(EventSource),
    /// As [`Signal::Gap`], for one subscription.
    Gap(EventSource, Error),
    /// As [`Signal::Expired`].
    Expired(Vec<u8>),
    /// As [`Signal::Wake`].
    Wake(Vec<u8>),
    /// The layout was read.
    Looked,
}

/// The two sorts of subscription that there are on a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum EventSource {
    /// Wake-ups and beats, on any one node.
    Wakes,
    /// Expired keys of this node.
    Expiry(Node),
}

/// A future that ends only when it is aborted.
type Task = LocalBoxFuture<'static, ()>;

/// The subscriptions to the nodes of a cluster.
struct Nodes {
    server: Arc<Server>,
    settings: LinkSettings,
    /// Takes the reports of all subscriptions.
    tell: mpsc::Sender<SubscriptionReport>,
    /// For each node the task of its subscription, and in how many reads in a row it was absent.
    followed: HashMap<Node, (AbortHandle, u32)>,
    /// The subscriptions that are up.
    up: HashSet<EventSource>,
    /// The primaries by the latest layout.
    primaries: HashSet<Node>,
    /// The latest result of [`complete`](Self::complete).
    is_complete: bool,
}

/// Hands all events for a worker to `hear`, one at a time. Ends only when it is dropped.
///
/// On a cluster, [`Signal::Up`] means that wake-ups and all primaries are heard, and
/// [`Signal::Gap`] that one of them is not.
pub(crate) async fn follow_events(
    server: Arc<Server>,
    instance: &str,
    settings: &LinkSettings,
    mut hear: impl AsyncFnMut(Signal<'_>),
) {
    if !server.is_cluster() {
        let one = Subscription::to_events(server, instance, settings);
        return one.run(hear).await;
    }
    let (tell, mut told) = mpsc::channel(QUEUE);
    let mut nodes = Nodes {
        server: server.clone(),
        settings: settings.clone(),
        tell,
        followed: HashMap::new(),
        up: HashSet::new(),
        primaries: HashSet::new(),
        is_complete: false,
    };
    let wakes = Subscription::to_wakes(server.clone(), instance, settings);
    let mut tasks = FuturesUnordered::<Task>::new();
    tasks.push(nodes.follow(wakes, EventSource::Wakes).0);
    tasks.push(Box::pin(look(server, nodes.tell.clone())));
    loop {
        let report = tokio::select! {
            biased;
            Some(report) = told.recv() => report,
            Some(()) = tasks.next() => continue,
        };
        match report {
            SubscriptionReport::Expired(key) => hear(Signal::Expired(&key)).await,
            SubscriptionReport::Wake(message) => hear(Signal::Wake(&message)).await,
            SubscriptionReport::Up(source) => {
                nodes.up.insert(source);
                // Earlier events of that node went unheard.
                if nodes.complete() {
                    hear(Signal::Up).await;
                }
            }
            SubscriptionReport::Gap(source, error) => {
                nodes.up.remove(&source);
                // No other node announces its keys. A replica, or a node that was replaced, has
                // none to announce.
                if !nodes.complete() {
                    hear(Signal::Gap(error)).await;
                }
            }
            SubscriptionReport::Looked => {
                let was_complete = nodes.is_complete;
                let is_another = nodes.meet(&tasks);
                let is_complete = nodes.complete();
                if is_complete && (is_another || !was_complete) {
                    hear(Signal::Up).await;
                } else if was_complete && !is_complete {
                    let fault = Fault::closed(&nodes.server.address());
                    hear(Signal::Gap(fault.into())).await;
                }
            }
        }
    }
}

impl Nodes {
    /// Takes in the nodes of the latest layout: subscribes to new nodes, and drops those that were
    /// absent for long. Returns true if the set of primaries has changed.
    fn meet(&mut self, tasks: &FuturesUnordered<Task>) -> bool {
        let Some(cluster) = self.server.link.origin().cluster() else {
            return false;
        };
        let (primaries, replicas) = cluster.nodes();
        let present: HashSet<Node> = primaries.iter().chain(&replicas).cloned().collect();
        for node in &present {
            if let Some((_, absences)) = self.followed.get_mut(node) {
                *absences = 0;
                continue;
            }
            let (server, settings) = (self.server.clone(), &self.settings);
            let one = Subscription::to_expiry(server, node.clone(), settings);
            let (task, handle) = self.follow(one, EventSource::Expiry(node.clone()));
            tasks.push(task);
            self.followed.insert(node.clone(), (handle, 0));
        }
        let up = &mut self.up;
        self.followed.retain(|node, (task, absences)| {
            *absences += u32::from(!present.contains(node));
            let stays = *absences <= ABSENCES;
            if !stays {
                task.abort();
                up.remove(&EventSource::Expiry(node.clone()));
            }
            stays
        });
        let primaries: HashSet<Node> = primaries.into_iter().collect();
        let is_another = self.primaries != primaries;
        self.primaries = primaries;
        is_another
    }

    /// True if wake-ups and the expired keys of all primaries are heard from now on.
    fn complete(&mut self) -> bool {
        let is_heard = |node: &Node| self.up.contains(&EventSource::Expiry(node.clone()));
        self.is_complete = self.up.contains(&EventSource::Wakes)
            && !self.primaries.is_empty()
            && self.primaries.iter().all(is_heard);
        self.is_complete
    }

    /// A task that runs a subscription and reports its signals with their source.
    fn follow(&self, subscription: Subscription, source: EventSource) -> (Task, AbortHandle) {
        let tell = self.tell.clone();
        let (task, handle) = abortable(async move {
            let report = async |signal: Signal<'_>| {
                let report = match signal {
                    Signal::Up => SubscriptionReport::Up(source.clone()),
                    Signal::Gap(error) => SubscriptionReport::Gap(source.clone(), error),
                    Signal::Expired(key) => SubscriptionReport::Expired(key.to_vec()),
                    Signal::Wake(message) => SubscriptionReport::Wake(message.to_vec()),
                    Signal::Changed { .. } | Signal::HeardUntil(_) => return,
                };
                // The receiver is gone only when this task is gone, too.
                let _ = tell.send(report).await;
            };
            subscription.run(report).await;
        });
        (Box::pin(task.map(drop)), handle)
    }
}

/// Reads the layout of the cluster at each [`LOOK`], for ever.
async fn look(server: Arc<Server>, tell: mpsc::Sender<SubscriptionReport>) {
    loop {
        let until = Instant::now() + PATIENCE;
        match server.all_nodes(until).await {
            Ok(_) => {
                let _ = tell.send(SubscriptionReport::Looked).await;
            }
            Err(error) => tracing::debug!(%error, "the nodes of the cluster are not known"),
        }
        sleep(LOOK).await;
    }
}
