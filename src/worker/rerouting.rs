//! Rerouting: replaces the routes of a running worker. The worker starts an engine for the new
//! routes, and retires the old engine when the new one is ready. So an engine never changes its
//! routes.
//!
//! While both run, the old engine only finishes what it has begun. The two share the limits, so
//! that together they never run more jobs than one engine may. Several old engines can be finishing
//! at the same time.

use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::engine::{self, Plan};
use super::notice::Notices;
use super::readiness::Readiness;
use super::running::limits::Limits;
use super::{Log, routes};
use crate::client::Client;
use crate::error::{Error, ErrorKind, Result};
use crate::handler::RouteTaskContext;
use crate::hooks::Hooks;
use crate::router::{Router, Routes};
use crate::settings::WorkerSettings;

/// Gives a [`Worker`](super::Worker) other routes while it runs. Its clones do the same.
///
/// ```no_run
/// use keyfall::{Client, Job, Router, Worker};
///
/// async fn notify(job: Job) {
///     println!("{} is due", job.key());
/// }
///
/// # async fn example() -> keyfall::Result<()> {
/// let client = Client::connect("redis://127.0.0.1:6379").await?;
/// let worker = Worker::new(client, Router::new().route("app1:trans:notice:{order}", notify));
/// let rerouter = worker.rerouter();
/// let running = tokio::spawn(worker.run());
/// // Later:
/// rerouter
///     .replace(Router::new().route("app1:trans:*:{order}", notify))
///     .await?;
/// # running.await.unwrap()
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Rerouter(mpsc::UnboundedSender<RerouteRequest>);

/// The requests of all [`Rerouter`]s of one worker, in order.
pub(super) type RerouteQueue = mpsc::UnboundedReceiver<RerouteRequest>;

/// New routes, and the channel for the result.
#[derive(Debug)]
pub(super) struct RerouteRequest {
    /// The new routes.
    pub(super) router: Router,
    /// Receives the result, when the new engine is ready or has failed.
    pub(super) replaced: oneshot::Sender<Result<()>>,
}

/// The parts that all engines of a worker share.
pub(super) struct EngineParts {
    /// The client of the worker, with its connections.
    pub(super) client: Client,
    pub(super) settings: WorkerSettings,
    /// Counts of running jobs; they outlive an engine.
    pub(super) limits: Arc<Limits>,
    pub(super) notices: Notices,
    /// The hooks for dead and late jobs.
    pub(super) hooks: Arc<Hooks>,
    /// The handle that readiness probes read.
    pub(super) readiness: Readiness,
    /// Asks for a graceful stop.
    pub(super) gently: CancellationToken,
    /// Asks for a stop without grace.
    pub(super) at_once: CancellationToken,
}

/// The engine of one set of routes, on a thread of its own.
struct Running {
    /// Raised when the engine is ready.
    ready: CancellationToken,
    /// Asks the engine to finish.
    retired: CancellationToken,
    /// Receives the result of the engine; an error if its thread panicked.
    end: oneshot::Receiver<Result<()>>,
    /// The tasks of its routes; aborted when this is dropped.
    _tasks: JoinSet<()>,
}

impl Rerouter {
    /// A rerouter, and the queue of its requests.
    pub(super) fn new() -> (Self, RerouteQueue) {
        let (sender, orders) = mpsc::unbounded_channel();
        (Rerouter(sender), orders)
    }

    /// Replaces the routes of the worker. Returns when jobs run on the new routes, and no new job
    /// starts on the old ones.
    ///
    /// Jobs that have begun end on their old route, however long that takes. Jobs that are claimed
    /// and have not begun go back, without the attempt being counted. A new route with the same
    /// pattern and priority as an old one counts the jobs that still run there in its limits, and
    /// its [pulled](crate::target::Pull) jobs are pulled as before. To its peers, the worker is a
    /// new [instance](crate::Client::instances).
    ///
    /// While Redis is away the call waits, and the old routes stay. If the future is dropped, the
    /// routes may or may not be replaced.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRoute`] if there is no route, [`ErrorKind::Denied`] if Redis does not
    /// let this user run one of them, [`ErrorKind::Unavailable`] if the worker has ended. The old
    /// routes stay in force.
    pub async fn replace(&self, router: Router) -> Result<()> {
        let (replaced, answer) = oneshot::channel();
        // If the worker has ended, `answer` fails.
        let _ = self.0.send(RerouteRequest { router, replaced });
        answer.await.unwrap_or_else(|_| Err(has_ended()))
    }
}

impl EngineParts {
    /// Runs an engine for the routes of this router, and replaces it on request. Returns when the
    /// current engine has ended.
    ///
    /// # Errors
    /// If the first engine cannot start, or the current one fails.
    pub(super) async fn run(self, router: Router, mut orders: RerouteQueue) -> Result<()> {
        let mut current = self.start(router)?;
        let mut retired = FuturesUnordered::new();
        loop {
            tokio::select! {
                ended = current.end() => {
                    // The engines before it have been asked to end, too.
                    while retired.next().await.is_some() {}
                    return ended;
                }
                Some(order) = orders.recv() => {
                    let next = match self.start(order.router) {
                        Ok(mut next) => next.ready().await.map(|()| next),
                        Err(error) => Err(error),
                    };
                    let replaced = next.map(|next| {
                        let before = std::mem::replace(&mut current, next);
                        before.retired.cancel();
                        retired.push(before.end);
                    });
                    // The caller may have dropped its future.
                    let _ = order.replaced.send(replaced);
                }
                Some(_) = retired.next() => tracing::debug!(
                    "the previous routes have run their last job"
                ),
            }
        }
    }

    /// Starts an engine for these routes, on a new thread.
    ///
    /// # Errors
    /// If there is no route, a route needs a hook that is not set, or the thread cannot start.
    fn start(&self, router: Router) -> Result<Running> {
        let (ready, retired) = (CancellationToken::new(), self.gently.child_token());
        let routes = Arc::new(routes(router)?);
        self.hooks.check(&routes)?;
        let tasks = self.start_tasks(&routes);
        let plan = Plan {
            client: self.client.clone(),
            link: self.client.settings().link.clone(),
            allow_eviction: self.client.settings().allow_eviction,
            payload_limit: self.client.settings().payload_limit,
            store: self
                .client
                .store_for_worker(&|server| self.notices.clone().health(server.address())),
            routes,
            settings: self.settings.clone(),
            limits: self.limits.clone(),
            notices: self.notices.clone(),
            hooks: self.hooks.clone(),
            readiness: self.readiness.clone(),
            lease_subscribers: self.client.lease_subscribers().clone(),
            handlers: Handle::current(),
            ready: ready.clone(),
            retired: retired.clone(),
            gently: self.gently.clone(),
            at_once: self.at_once.clone(),
        };
        let (ended, end) = oneshot::channel();
        let log = Log::of_this_thread();
        std::thread::Builder::new()
            .name("keyfall".into())
            .spawn(move || {
                // The receiver is gone if the worker's future was dropped.
                let _ = ended.send(log.within(|| engine::run(plan)));
            })
            .map_err(|error| {
                Error::new(ErrorKind::Unavailable, "no thread could be started").because(error)
            })?;
        Ok(Running {
            ready,
            retired,
            end,
            _tasks: tasks,
        })
    }

    /// Starts the background tasks of these routes, on the caller's runtime.
    fn start_tasks(&self, routes: &Arc<Routes>) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        for route in &routes.routes {
            if let Some(route_task) = &route.route_task {
                tasks.spawn(route_task.start(RouteTaskContext {
                    client: self.client.clone(),
                    lease: route.lease.unwrap_or(self.settings.lease.0),
                    usual_lease: self.settings.lease.0,
                    routes: routes.clone(),
                }));
            }
        }
        tasks
    }
}

impl Running {
    /// Returns when the engine is ready.
    ///
    /// # Errors
    /// If the engine ends before it is ready.
    async fn ready(&mut self) -> Result<()> {
        tokio::select! {
            biased;
            () = self.ready.clone().cancelled_owned() => Ok(()),
            ended = self.end() => Err(ended.err().unwrap_or_else(has_ended)),
        }
    }

    /// Returns the result of the engine when it has ended; an error if it panicked.
    async fn end(&mut self) -> Result<()> {
        (&mut self.end).await.unwrap_or_else(|_| {
            Err(Error::new(
                ErrorKind::Damaged,
                "the engine of the worker panicked; this is a bug in Keyfall",
            ))
        })
    }
}

/// The error for a worker that cannot take other routes any more.
fn has_ended() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the routes cannot be replaced, because the worker has ended or is about to end",
    )
}
