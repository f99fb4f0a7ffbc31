//! Other routes for a worker that runs: an engine for them is started, and when it is ready, the
//! one before it is retired. So nobody has to change routes under those who use them.

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

/// What a worker is asked for by its [`Rerouter`]s.
pub(super) type RerouteQueue = mpsc::UnboundedReceiver<RerouteRequest>;

/// Other routes, and who waits for them.
#[derive(Debug)]
pub(super) struct RerouteRequest {
    pub(super) router: Router,
    pub(super) replaced: oneshot::Sender<Result<()>>,
}

/// What all engines of a worker are made of, whatever their routes are.
pub(super) struct EngineParts {
    pub(super) client: Client,
    pub(super) settings: WorkerSettings,
    pub(super) limits: Arc<Limits>,
    pub(super) notices: Notices,
    pub(super) hooks: Arc<Hooks>,
    pub(super) readiness: Readiness,
    /// Asks for a graceful stop.
    pub(super) gently: CancellationToken,
    /// Asks for a stop without grace.
    pub(super) at_once: CancellationToken,
}

/// The engine of one set of routes, on a thread of its own.
struct Running {
    ready: CancellationToken,
    retired: CancellationToken,
    end: oneshot::Receiver<Result<()>>,
    /// They end when this is dropped.
    _tasks: JoinSet<()>,
}

impl Rerouter {
    pub(super) fn new() -> (Self, RerouteQueue) {
        let (sender, orders) = mpsc::unbounded_channel();
        (Rerouter(sender), orders)
    }

    /// Runs jobs on these routes, and no more on those so far. Returns when that is so.
    ///
    /// What has begun ends on the route that it began on, however long that takes; what was
    /// claimed and has not begun goes back, without the attempt being counted. A route that has
    /// the same pattern and priority as one before counts in its limits what this still runs, and
    /// what is [pulled](crate::target::Pull) is pulled as before. To others, the worker is a new
    /// [instance](crate::Client::instances).
    ///
    /// While Redis is away this waits, and the routes stay what they are. Dropping the future
    /// leaves open whether they are replaced.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRoute`] if there is no route, [`ErrorKind::Denied`] if Redis does not
    /// let this user run one of them, [`ErrorKind::Unavailable`] if the worker has ended. The
    /// routes stay what they were.
    pub async fn replace(&self, router: Router) -> Result<()> {
        let (replaced, answer) = oneshot::channel();
        // If nobody takes it, nobody answers.
        let _ = self.0.send(RerouteRequest { router, replaced });
        answer.await.unwrap_or_else(|_| Err(has_ended()))
    }
}

impl EngineParts {
    /// Runs jobs on the routes of this router, and on others when it is ordered to.
    pub(super) async fn run(self, router: Router, mut orders: RerouteQueue) -> Result<()> {
        let mut current = self.start(router)?;
        let mut retired = FuturesUnordered::new();
        loop {
            tokio::select! {
                ended = current.end() => {
                    // Those before it have been asked to end, too.
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
                    // Whoever wanted it may be gone.
                    let _ = order.replaced.send(replaced);
                }
                Some(_) = retired.next() => tracing::debug!("the routes before have run their last job"),
            }
        }
    }

    /// Starts an engine for these routes.
    fn start(&self, router: Router) -> Result<Running> {
        let (ready, retired) = (CancellationToken::new(), self.gently.child_token());
        let routes = Arc::new(routes(router)?);
        self.hooks.check(&routes)?;
        let tasks = self.start_tasks(&routes);
        let plan = Plan {
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
                // Nobody waits any more if the future was dropped.
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

    /// Starts what runs beside the handlers of these routes.
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
    /// Returns when it is at work.
    ///
    /// # Errors
    /// If it never will be.
    async fn ready(&mut self) -> Result<()> {
        tokio::select! {
            biased;
            () = self.ready.clone().cancelled_owned() => Ok(()),
            ended = self.end() => Err(ended.err().unwrap_or_else(has_ended)),
        }
    }

    async fn end(&mut self) -> Result<()> {
        (&mut self.end).await.unwrap_or_else(|_| {
            Err(Error::new(
                ErrorKind::Damaged,
                "the engine of the worker panicked; this is a fault of Keyfall",
            ))
        })
    }
}

fn has_ended() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the worker whose routes were to be replaced has ended, or is about to",
    )
}
