//! All that a worker listens to, as one subscription, whether it is to one server or to the nodes of
//! a cluster.
//!
//! Each node of a cluster announces only what expires on itself, so there is a subscription to each.
//! Replicas announce nothing until they are promoted: listened to all along, they are heard from
//! their first moment as primaries. Who publishes is heard on every node, so wake-ups are listened
//! to on one at a time.

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

/// How often it is looked which nodes there are.
const LOOK: Duration = Duration::from_secs(1);

/// How long a look may take.
const PATIENCE: Duration = Duration::from_secs(2);

/// A node that failed is not in the layout, and comes back as a rule: so many looks it is waited for.
const ABSENCES: u32 = 30;

/// How many messages wait to be heard. Then the servers keep what follows.
const QUEUE: usize = 1024;

/// What one of the subscriptions reports, or the look at the nodes.
enum SubscriptionReport {
    Up(EventSource),
    Gap(EventSource, Error),
    Expired(Vec<u8>),
    Wake(Vec<u8>),
    /// The layout was read.
    Looked,
}

/// What is listened to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum EventSource {
    Wakes,
    Expiry(Node),
}

/// What goes on for ever, until it is aborted.
type Task = LocalBoxFuture<'static, ()>;

/// The subscriptions to the nodes of a cluster.
struct Nodes {
    server: Arc<Server>,
    settings: LinkSettings,
    tell: mpsc::Sender<SubscriptionReport>,
    /// One for each node, and how often it was absent in a row.
    followed: HashMap<Node, (AbortHandle, u32)>,
    /// Those that are up.
    up: HashSet<EventSource>,
    primaries: HashSet<Node>,
    is_complete: bool,
}

/// Follows all that a worker has to hear, for ever.
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
                // Whatever happened there before went unheard.
                if nodes.complete() {
                    hear(Signal::Up).await;
                }
            }
            SubscriptionReport::Gap(source, error) => {
                nodes.up.remove(&source);
                // Nobody else announces what expires there; but nothing does on a replica, nor on
                // one that was replaced.
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
    /// Takes in which nodes there are. Returns whether the primaries are others than before.
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

    /// Whether all is heard that there is to hear, from now on.
    fn complete(&mut self) -> bool {
        let is_heard = |node: &Node| self.up.contains(&EventSource::Expiry(node.clone()));
        self.is_complete = self.up.contains(&EventSource::Wakes)
            && !self.primaries.is_empty()
            && self.primaries.iter().all(is_heard);
        self.is_complete
    }

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
                // Whoever hears it is gone only with this task.
                let _ = tell.send(report).await;
            };
            subscription.run(report).await;
        });
        (Box::pin(task.map(drop)), handle)
    }
}

/// Looks which nodes there are, for ever.
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
