//! Consumers that pull: a waiting consumer takes the place of a slot.
//!
//! The claimer reserves a place of a waiting request before it claims a job, so it claims only jobs
//! that a consumer waits for. [`Pull`] is the public queue; `PullPermit` is a reserved place;
//! [`Pulled`] is a job on its way to the consumer, who accepts it or lets it go back.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, timeout_at};

use super::{Handler, Job, Route};
use crate::client::{LeaseEvent, LeaseSubscribers, WantedKinds};
use crate::error::{Error, ErrorKind, Result};
use crate::key::Kind;
use crate::lease::Lease;
use crate::outcome::Outcome;
use crate::prefix::Prefix;
use crate::settings::LEASES;

/// How long a request that has got a job waits for claims that are still under way, so that it
/// returns their jobs, too.
const TOGETHER: Duration = Duration::from_millis(5);

/// How long a request without a job, whose time is up, waits for claims that are under way for it.
/// Without this wait their jobs would have to go back.
const LAST_CLAIMS: Duration = Duration::from_secs(1);

/// Hands the jobs of its routes to consumers that [pull](Self::pull) them.
///
/// `Pull` is the handler of a route. A job of that route is claimed only when a consumer waits for
/// it, and goes to that consumer with its [`Lease`]. From then on the consumer owns the job: it
/// [settles](crate::Client::settle) the job, and [extends](crate::Client::extend) the lease if it
/// needs longer. A lease that lapses delivers the job again.
///
/// Clones share the waiting consumers. Layers and timeouts of the route have no effect.
///
/// ```no_run
/// use keyfall::target::Pull;
/// use keyfall::{Client, Handler, Outcome, Router, Worker};
/// use std::time::Duration;
///
/// # async fn example() -> keyfall::Result<()> {
/// let client = Client::connect("redis://127.0.0.1:6379").await?;
/// let pull = Pull::new();
/// let app = Router::new().route(
///     "app1:trans:notice:*",
///     pull.clone().lease(Duration::from_secs(60)),
/// );
/// tokio::spawn(Worker::new(client.clone(), app).run());
///
/// for pulled in pull.pull(&["app1:trans:notice"], 10, Duration::from_secs(30)).await? {
///     let Some((job, lease)) = pulled.accept() else { continue };
///     println!("{} is due", job.key());
///     client.settle(&lease, Outcome::Done).await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Pull(Arc<PullQueue>);

/// The waiting requests, shared by all clones of a [`Pull`].
#[derive(Default)]
struct PullQueue {
    waiting: Mutex<PullRequests>,
}

/// The requests behind the lock.
#[derive(Default)]
struct PullRequests {
    /// By number, so in the order in which they came.
    demands: BTreeMap<u64, PullRequest>,
    /// The number of requests so far.
    number: u64,
    /// The workers that have a route here, which are told of new requests.
    workers: LeaseSubscribers,
}

/// One waiting call of [`Pull::pull`].
struct PullRequest {
    wanted: WantedKinds,
    /// The number of jobs that may still be claimed for it.
    free: usize,
    /// The number of permits that are out: jobs that are being claimed for it.
    reserved: usize,
    /// Whether it is about to return, so that nothing more is claimed for it.
    closed: bool,
    /// The jobs that have arrived.
    got: Vec<Pulled>,
    changed: Arc<Notify>,
}

/// Removes a request from the queue when its call returns or its future is dropped.
struct RequestGuard {
    hub: Arc<PullQueue>,
    /// The number of the request.
    number: u64,
    changed: Arc<Notify>,
}

/// The right to hand one job to one waiting request. Dropped unused, it gives the place back.
pub(crate) struct PullPermit {
    hub: Arc<PullQueue>,
    /// The number of the request.
    number: u64,
    is_taken: bool,
}

/// A job that was claimed for a consumer, who owns it only after [accepting](Self::accept) it.
/// Dropped without being accepted, it goes back at once, and the attempt does not count.
#[must_use = "a job that is dropped without being accepted goes back"]
pub struct Pulled {
    job: Job,
    lease: Lease,
    /// The length of the lease.
    length: Duration,
    /// Whether the worker is still sure of the lease.
    is_ours: Box<dyn Fn() -> bool + Send + Sync>,
    accept: oneshot::Sender<Accepted>,
}

/// The length of the lease from the moment of acceptance; `None` leaves the lease as it is.
pub(crate) type Accepted = Option<Duration>;

impl Pull {
    /// A target without waiting consumers.
    pub fn new() -> Self {
        Pull::default()
    }

    /// Waits up to `wait` for jobs whose kinds begin with one of these prefixes, such as `app1:` or
    /// `app1:trans:notice`, and returns the jobs that are due then, at most `most`. The list is
    /// empty if no job fell due. Without prefixes, any job of its routes will do.
    ///
    /// The request that has waited longest is served first. Dropping the future gives up the place;
    /// jobs that were claimed for it in the meantime go back at once.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidKey`] if a prefix cannot begin a kind, [`ErrorKind::InvalidSetting`] if
    /// `most` is 0.
    pub async fn pull(
        &self,
        prefixes: &[impl AsRef<str>],
        most: usize,
        wait: Duration,
    ) -> Result<Vec<Pulled>> {
        if most == 0 {
            return Err(Error::new(
                ErrorKind::InvalidSetting,
                "a pull of 0 jobs would wait forever: ask for 1 or more",
            ));
        }
        let wanted = if prefixes.is_empty() {
            Arc::from([Prefix::everything()])
        } else {
            let parse = |text: &_| Prefix::parse(AsRef::as_ref(text))?.of_kinds("pulled");
            prefixes
                .iter()
                .map(parse)
                .collect::<Result<WantedKinds>>()?
        };
        let until = Instant::now() + wait;
        let ticket = self.0.enter(wanted, most);
        // Looks again after each wake-up, which may stand for a change that was seen already.
        while !ticket.is_served() {
            if timeout_at(until, ticket.changed.notified()).await.is_err() {
                break;
            }
        }
        let soon = Instant::now()
            + if ticket.is_served() {
                TOGETHER
            } else {
                LAST_CLAIMS
            };
        ticket.close();
        while ticket.has_claims() {
            if timeout_at(soon, ticket.changed.notified()).await.is_err() {
                break;
            }
        }
        Ok(ticket.take())
    }

    /// Subscribes a worker to new requests, and tells it of the requests that wait already.
    pub(crate) fn tell(&self, worker: mpsc::UnboundedSender<LeaseEvent>) {
        let waiting = self.0.lock();
        for demand in waiting.demands.values() {
            // The send fails if the worker has ended, and then nobody needs the event.
            let _ = worker.send(LeaseEvent::Waits(demand.wanted.clone()));
        }
        waiting.workers.join(worker);
    }

    /// The number of free places for jobs of this kind, over all requests.
    pub(crate) fn places(&self, kind: &Kind) -> usize {
        let waiting = self.0.lock();
        let demands = waiting.demands.values();
        let of_kind = demands.filter(|demand| demand.wants(kind));
        of_kind.map(|demand| demand.free).sum()
    }

    /// Whether any request has a free place.
    pub(crate) fn has_places(&self) -> bool {
        self.0.lock().demands.values().any(|demand| demand.free > 0)
    }

    /// Takes up to `count` places for jobs of this kind, from the oldest request on.
    pub(crate) fn reserve(&self, kind: &Kind, count: usize) -> Vec<PullPermit> {
        let mut waiting = self.0.lock();
        let mut places = Vec::new();
        for (number, demand) in &mut waiting.demands {
            if !demand.wants(kind) {
                continue;
            }
            let taken = demand.free.min(count - places.len());
            demand.free -= taken;
            demand.reserved += taken;
            let place = || PullPermit {
                hub: self.0.clone(),
                number: *number,
                is_taken: false,
            };
            places.extend(std::iter::repeat_with(place).take(taken));
        }
        places
    }

    /// Whether both are clones of one target.
    pub(crate) fn is(&self, other: &Pull) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Marks the [`Handler`] implementation of [`Pull`], to tell it from the implementations for
/// functions. It has no values.
#[derive(Debug)]
pub enum Pulls {}

#[diagnostic::do_not_recommend]
impl<S: Send + Sync + 'static> Handler<Pulls, S> for Pull {
    fn into_route(self) -> Route<S> {
        let nobody = "its route hands the job to consumers that pull, but this process does not \
                      let consumers pull";
        Route::new(move |_, _| Box::pin(async move { Outcome::retry(nobody) }))
            .with(|options| options.pull = Some(self))
    }
}

impl PullQueue {
    /// Adds a request for up to `most` jobs, and tells all workers of it.
    fn enter(self: &Arc<Self>, wanted: WantedKinds, most: usize) -> RequestGuard {
        let mut waiting = self.lock();
        waiting.number += 1;
        let (number, changed) = (waiting.number, Arc::<Notify>::default());
        let demand = PullRequest {
            wanted: wanted.clone(),
            free: most,
            reserved: 0,
            closed: false,
            got: Vec::new(),
            changed: changed.clone(),
        };
        waiting.demands.insert(number, demand);
        waiting.workers.tell(&LeaseEvent::Waits(wanted));
        RequestGuard {
            hub: self.clone(),
            number,
            changed,
        }
    }

    /// Locks the requests; never held across an await.
    fn lock(&self) -> MutexGuard<'_, PullRequests> {
        self.waiting.lock().expect("no panic while held")
    }
}

impl PullRequest {
    /// Whether it has a free place for jobs of this kind.
    fn wants(&self, kind: &Kind) -> bool {
        self.free > 0 && self.wanted.iter().any(|prefix| prefix.covers(kind))
    }
}

impl RequestGuard {
    /// Reads or changes the request under the lock.
    fn with<T>(&self, look: impl FnOnce(&mut PullRequest) -> T) -> T {
        let mut waiting = self.hub.lock();
        let demand = waiting.demands.get_mut(&self.number);
        look(demand.expect("it stays as long as its ticket"))
    }

    /// Whether at least one job has arrived.
    fn is_served(&self) -> bool {
        self.with(|demand| !demand.got.is_empty())
    }

    /// Whether jobs are still being claimed for it.
    fn has_claims(&self) -> bool {
        self.with(|demand| demand.reserved > 0)
    }

    /// Ends the request for new claims; claims under way may still deliver.
    fn close(&self) {
        self.with(|demand| {
            demand.closed = true;
            demand.free = 0;
        });
    }

    /// Takes the jobs that have arrived.
    fn take(&self) -> Vec<Pulled> {
        self.with(|demand| std::mem::take(&mut demand.got))
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let gone = self.hub.lock().demands.remove(&self.number);
        // Drops its jobs after the lock is released, because they go back when dropped.
        drop(gone);
    }
}

impl PullPermit {
    /// Hands the job over. The receiver resolves when the consumer accepts the job, and fails when
    /// the job goes back. `None` if the request is gone. `length` is the length of the lease;
    /// `is_ours` tells whether the worker is still sure of it.
    pub(crate) fn deliver(
        mut self,
        job: Job,
        lease: Lease,
        length: Duration,
        is_ours: impl Fn() -> bool + Send + Sync + 'static,
    ) -> Option<oneshot::Receiver<Accepted>> {
        let (accept, accepted) = oneshot::channel();
        let pulled = Pulled {
            job,
            lease,
            length,
            is_ours: Box::new(is_ours),
            accept,
        };
        let mut waiting = self.hub.lock();
        waiting.demands.get_mut(&self.number)?.got.push(pulled);
        drop(waiting);
        self.is_taken = true;
        Some(accepted)
    }
}

impl Drop for PullPermit {
    fn drop(&mut self) {
        let mut waiting = self.hub.lock();
        if let Some(demand) = waiting.demands.get_mut(&self.number) {
            demand.reserved -= 1;
            if !self.is_taken && !demand.closed {
                demand.free += 1;
            }
            demand.changed.notify_one();
        }
    }
}

impl Pulled {
    /// The job, for a look before it is accepted.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// The lease that settles the job once it is accepted.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The length of the lease. The worker renews it until the job is accepted, so it runs for this
    /// long from now at the earliest.
    pub fn lease_length(&self) -> Duration {
        self.length
    }

    /// Whether the job has gone back in the meantime, because its worker stopped; or will go back,
    /// because its lease could not be renewed and another worker may have the job by now.
    pub fn has_gone_back(&self) -> bool {
        self.accept.is_closed() || !(self.is_ours)()
    }

    /// Takes the job over. `None` if it [has gone back](Self::has_gone_back) in the meantime.
    pub fn accept(self) -> Option<(Job, Lease)> {
        self.accepted(None)
    }

    /// Takes the job over, with a lease that runs for `length` from now, longer or shorter than the
    /// lease of its route. `length` is from 1 s to 1 day; a value outside counts as the nearer end.
    /// `None` as with [`accept`](Self::accept).
    ///
    /// The worker tells Redis a moment later. If that fails, the lease keeps its old length.
    ///
    /// ```no_run
    /// # use keyfall::target::Pull;
    /// # use std::time::Duration;
    /// # async fn example(pull: Pull) -> keyfall::Result<()> {
    /// for pulled in pull.pull(&["app1:video"], 1, Duration::from_secs(30)).await? {
    ///     // Encoding takes a while.
    ///     if let Some((job, lease)) = pulled.accept_for(Duration::from_secs(3600)) {
    ///         println!("{} until {lease} is settled", job.key());
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn accept_for(self, length: Duration) -> Option<(Job, Lease)> {
        self.accepted(Some(length.clamp(*LEASES.start(), *LEASES.end())))
    }

    /// Takes the job over, unless its worker is no longer sure of the lease.
    fn accepted(self, accepted: Accepted) -> Option<(Job, Lease)> {
        if !(self.is_ours)() {
            return None;
        }
        self.accept.send(accepted).ok()?;
        Some((self.job, self.lease))
    }
}

impl fmt::Debug for Pull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = self.0.lock().demands.len();
        f.debug_struct("Pull").field("waiting", &waiting).finish()
    }
}

impl fmt::Debug for Pulled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pulled").field(&self.job).finish()
    }
}
