//! Consumers that pull: a place in the hands of whoever waits for jobs takes the place of a
//! slot, so that a job is claimed only when somebody waits for it.

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

/// How long jobs that are claimed by several calls wait for each other, so that they are handed
/// out together.
const TOGETHER: Duration = Duration::from_millis(5);

/// How long a consumer whose time is up waits for claims that are under way for it. Otherwise
/// what they bring would have to be given back.
const LAST_CLAIMS: Duration = Duration::from_secs(1);

/// Hands the jobs of its routes to whoever [pulls](Self::pull).
///
/// It is a route's handler like any other, but for what happens to a job: it is claimed when
/// somebody waits for it and not before, and goes to them with its [`Lease`]. From then on it
/// is theirs: they [settle](crate::Client::settle) it, and [extend](crate::Client::extend) its
/// lease if they need longer. A lease that lapses delivers the job again.
///
/// Clones share those who wait. Layers and timeouts of the route have no meaning here.
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

#[derive(Default)]
struct PullQueue {
    waiting: Mutex<PullRequests>,
}

#[derive(Default)]
struct PullRequests {
    /// In the order in which they came.
    demands: BTreeMap<u64, PullRequest>,
    number: u64,
    /// The workers that have a route here.
    workers: LeaseSubscribers,
}

/// One who waits.
struct PullRequest {
    wanted: WantedKinds,
    /// How many jobs can be claimed for it yet.
    free: usize,
    /// How many are being claimed.
    reserved: usize,
    /// Nothing more is claimed for it.
    closed: bool,
    got: Vec<Pulled>,
    changed: Arc<Notify>,
}

/// Takes back a demand when its consumer has what it wants, or goes away.
struct RequestGuard {
    hub: Arc<PullQueue>,
    number: u64,
    changed: Arc<Notify>,
}

/// The right to hand one job to one who waits; given back when it is dropped.
pub(crate) struct PullPermit {
    hub: Arc<PullQueue>,
    number: u64,
    is_taken: bool,
}

/// A job that was claimed for a consumer, and is not theirs before they
/// [accept](Self::accept) it. Dropped, it goes back at once, without an attempt being counted.
#[must_use = "what is dropped without being accepted goes back"]
pub struct Pulled {
    job: Job,
    lease: Lease,
    length: Duration,
    is_ours: Box<dyn Fn() -> bool + Send + Sync>,
    accept: oneshot::Sender<Accepted>,
}

/// For how long the lease runs from the moment of acceptance; `None` if as it does anyway.
pub(crate) type Accepted = Option<Duration>;

impl Pull {
    /// A target that nobody waits at yet.
    pub fn new() -> Self {
        Pull::default()
    }

    /// Waits for jobs whose kinds begin with one of these texts, as long as `wait` at the most,
    /// and returns as many as are due then, up to `most`. None, if none fell due. With no text,
    /// any job of its routes will do.
    ///
    /// Whoever has waited longest is served first. Dropping the future gives up the place; what
    /// was claimed for it meanwhile goes back at once.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidKey`] if a text cannot begin a kind, [`ErrorKind::InvalidSetting`] if
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
                "a pull of 0 jobs would wait in vain: ask for 1 or more",
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
        // Whoever is told here looks again: the wake-up may have been for what was seen already.
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

    /// Tells this worker of whoever comes to wait.
    pub(crate) fn tell(&self, worker: mpsc::UnboundedSender<LeaseEvent>) {
        let waiting = self.0.lock();
        for demand in waiting.demands.values() {
            // A worker that has ended needs not know.
            let _ = worker.send(LeaseEvent::Waits(demand.wanted.clone()));
        }
        waiting.workers.join(worker);
    }

    /// How many jobs of this kind are waited for.
    pub(crate) fn places(&self, kind: &Kind) -> usize {
        let waiting = self.0.lock();
        let demands = waiting.demands.values();
        let of_kind = demands.filter(|demand| demand.wants(kind));
        of_kind.map(|demand| demand.free).sum()
    }

    /// Whether any job is waited for.
    pub(crate) fn has_places(&self) -> bool {
        self.0.lock().demands.values().any(|demand| demand.free > 0)
    }

    /// Takes up to `count` places for jobs of this kind.
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

    /// Whether two of them share those who wait.
    pub(crate) fn is(&self, other: &Pull) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Tells a [`Pull`] from a function where both are handlers.
#[derive(Debug)]
pub enum Pulls {}

#[diagnostic::do_not_recommend]
impl<S: Send + Sync + 'static> Handler<Pulls, S> for Pull {
    fn into_route(self) -> Route<S> {
        let nobody = "its route hands it to whoever pulls, and nobody can pull here";
        Route::new(move |_, _| Box::pin(async move { Outcome::retry(nobody) }))
            .with(|options| options.pull = Some(self))
    }
}

impl PullQueue {
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

    fn lock(&self) -> MutexGuard<'_, PullRequests> {
        self.waiting.lock().expect("no panic while held")
    }
}

impl PullRequest {
    fn wants(&self, kind: &Kind) -> bool {
        self.free > 0 && self.wanted.iter().any(|prefix| prefix.covers(kind))
    }
}

impl RequestGuard {
    fn with<T>(&self, look: impl FnOnce(&mut PullRequest) -> T) -> T {
        let mut waiting = self.hub.lock();
        let demand = waiting.demands.get_mut(&self.number);
        look(demand.expect("it stays as long as its ticket"))
    }

    fn is_served(&self) -> bool {
        self.with(|demand| !demand.got.is_empty())
    }

    fn has_claims(&self) -> bool {
        self.with(|demand| demand.reserved > 0)
    }

    /// Nothing more is claimed for it.
    fn close(&self) {
        self.with(|demand| {
            demand.closed = true;
            demand.free = 0;
        });
    }

    fn take(&self) -> Vec<Pulled> {
        self.with(|demand| std::mem::take(&mut demand.got))
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let gone = self.hub.lock().demands.remove(&self.number);
        // What it got is dropped without the lock being held.
        drop(gone);
    }
}

impl PullPermit {
    /// Hands the job over. What is returned says whether it was accepted: an error, if it goes
    /// back. `None` if nobody waits any more. `is_ours` tells whether the lease certainly is.
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
    /// The job.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// What it is settled with, once it is accepted.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// For how long the lease runs, from now at the earliest.
    pub fn lease_length(&self) -> Duration {
        self.length
    }

    /// Whether it has gone back in the meantime, because its worker stopped; or is to go back,
    /// because its lease could not be renewed, and somebody else may have the job by now.
    pub fn has_gone_back(&self) -> bool {
        self.accept.is_closed() || !(self.is_ours)()
    }

    /// Takes the job over. `None` if it [has gone back](Self::has_gone_back) in the meantime.
    pub fn accept(self) -> Option<(Job, Lease)> {
        self.accepted(None)
    }

    /// Takes the job over, with a lease that runs for `length` from now, be that longer or shorter
    /// than the lease of its route; from 1 s to 1 day, and what is outside counts as the nearer
    /// end. `None` as with [`accept`](Self::accept).
    ///
    /// Redis is told a moment later. If it cannot be told, the lease stays as it is.
    pub fn accept_for(self, length: Duration) -> Option<(Job, Lease)> {
        self.accepted(Some(length.clamp(*LEASES.start(), *LEASES.end())))
    }

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
