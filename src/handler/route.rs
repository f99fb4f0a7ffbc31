//! A handler with the options and layers of its route.
//!
//! The methods of [`Handler`] build a [`Route`]; the router checks its options, gives it the state
//! and makes its [`Endpoint`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tower_layer::Layer;

use super::{Breakers, Endpoint, Handler, Job, JobService, Pull, RouteTask};
use crate::durable::Durable;
use crate::error::{Error, ErrorKind, Result};
use crate::lateness::MaxLateness;
use crate::limit::Limit;
use crate::outcome::Outcome;
use crate::recurrence::QuietHours;
use crate::retry::RetryPolicy;
use crate::settings::{LEASES, PAYLOAD_LIMITS};

/// Makes the endpoint of a route from the state of its router.
type Make<S> = Arc<dyn Fn(Arc<S>) -> Endpoint + Send + Sync>;

/// A handler with the options and layers of its route, as the methods of [`Handler`] return it:
/// [`Handler::retry`], [`Handler::timeout`], [`Handler::layer`] and the others. `S` is the state
/// that the handler needs.
///
/// A route is a handler itself, so further options can follow, and clones of it can be added under
/// several patterns:
///
/// ```
/// use keyfall::{Handler, Route, Router};
/// use std::time::Duration;
///
/// # async fn notify() {}
/// let patient: Route = notify.timeout(Duration::from_secs(600)).concurrency(2);
/// let app = Router::new()
///     .route("app1:trans:notice:*", patient.clone())
///     .route("app2:trans:notice:*", patient);
/// ```
pub struct Route<S = ()> {
    make: Make<S>,
    /// The options that were set.
    pub(crate) options: RouteOptions,
}

/// The options of a route. `None` leaves the choice to the worker.
#[derive(Debug, Clone, Default)]
pub(crate) struct RouteOptions {
    pub(crate) retry: Option<RetryPolicy>,
    /// The limit of one run; longer than zero.
    pub(crate) timeout: Option<Duration>,
    /// The number of runs at the same time on one worker; 1 or more.
    pub(crate) concurrency: Option<usize>,
    /// The higher priority wins among routes that match a key.
    pub(crate) priority: i32,
    /// The length of a lease, within [`LEASES`].
    pub(crate) lease: Option<Duration>,
    /// The limit of the kinds of the route, over all workers.
    pub(crate) limit: Option<Limit>,
    /// The limit of starts on one worker.
    pub(crate) rate: Option<Rate>,
    /// The lateness at which a start is reported.
    pub(crate) late_after: Option<Duration>,
    /// The limit of lateness, and what becomes of a job beyond it.
    pub(crate) max_lateness: Option<MaxLateness>,
    /// Hours at which no run begins.
    pub(crate) quiet: Option<QuietHours>,
    /// The durability that the settlement of a run must reach before its slot is free.
    pub(crate) durable: Option<Durable>,
    /// The queue of consumers that pull the jobs of this route.
    pub(crate) pull: Option<Pull>,
    /// Whether runs end with [`Outcome::HandedOver`], as under a list or stream target.
    pub(crate) hands_over: bool,
    /// A fault of the handler itself, with the remedy; the router refuses the route with this text.
    pub(crate) fault: Option<String>,
    /// The background task of the handler.
    pub(crate) route_task: Option<RouteTask>,
    /// The circuit breakers of the handler, if it is a target that has some.
    pub(crate) breakers: Option<Arc<dyn Breakers>>,
    /// The meaning of a missing key; `None` if plain keys do not become jobs of this route.
    pub(crate) adopts: Option<MissingKey>,
    /// The largest value of an adopted plain key, in bytes.
    pub(crate) payload_limit: Option<usize>,
}

/// The meaning of a missing key of an [adopted](Handler::adopt) job if no worker heard the reason:
/// the key may have expired, been deleted, or been evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MissingKey {
    /// The job runs when it is due. It may run although its key was deleted.
    #[default]
    Run,
    /// The job is cancelled. It runs only if a worker hears its key expire: a job whose key expires
    /// while no worker listens does not run.
    Cancel,
}

impl<S: Send + Sync + 'static> Route<S> {
    /// A route whose handler is called with each job and the state.
    pub(crate) fn new(
        call: impl Fn(Job, Arc<S>) -> BoxFuture<'static, Outcome> + Send + Sync + 'static,
    ) -> Self {
        let call = Arc::new(call);
        Route::making(move |state: Arc<S>| {
            let call = call.clone();
            Endpoint::new(move |job| call(job, state.clone()))
        })
    }

    /// A route that hands its jobs to a tower service. Unlike
    /// [`Router::route_service`](crate::Router::route_service) it can have options.
    ///
    /// Clones of the route share the service.
    ///
    /// ```
    /// use keyfall::{Handler, Job, Outcome, Route, Router};
    /// use std::convert::Infallible;
    ///
    /// let service = tower::service_fn(async |job: Job| {
    ///     println!("{} is due", job.key());
    ///     Ok::<_, Infallible>(Outcome::Done)
    /// });
    /// let app: Router =
    ///     Router::new().route("app1:trans:notice:*", Route::from_service(service).concurrency(4));
    /// ```
    pub fn from_service(service: impl JobService) -> Self {
        let endpoint = service.into_endpoint();
        Route::making(move |_| endpoint.clone())
    }

    /// The same route with its options changed by `set`.
    pub(crate) fn with(mut self, set: impl FnOnce(&mut RouteOptions)) -> Self {
        set(&mut self.options);
        self
    }

    /// The same route with one more layer around it. The layer makes its service later, when the
    /// router gets its state.
    pub(crate) fn layered<L>(self, layer: L) -> Self
    where
        L: Layer<Endpoint> + Send + Sync + 'static,
        L::Service: JobService,
    {
        let make = self.make;
        Route {
            make: Arc::new(move |state| layer.layer(make(state)).into_endpoint()),
            options: self.options,
        }
    }

    /// The same route with the state that its handler needs, and with the layers applied.
    pub(crate) fn with_state(self, state: Arc<S>) -> Route {
        let endpoint = (self.make)(state);
        Route {
            make: Arc::new(move |_| endpoint.clone()),
            options: self.options,
        }
    }

    /// A route without options whose endpoint `make` builds from the state.
    fn making(make: impl Fn(Arc<S>) -> Endpoint + Send + Sync + 'static) -> Self {
        Route {
            make: Arc::new(make),
            options: RouteOptions::default(),
        }
    }
}

impl Route {
    /// The endpoint of a route that needs no further state. Each call may build new layers, so the
    /// router calls it once.
    pub(crate) fn to_endpoint(&self) -> Endpoint {
        (self.make)(Arc::new(()))
    }
}

/// A limit of starts: `jobs` in each `per`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rate {
    pub(crate) jobs: u32,
    pub(crate) per: Duration,
}

/// Marks the [`Handler`] implementation of [`Route`], to tell it from the implementations for
/// functions. It has no values.
#[derive(Debug)]
pub enum Configured {}

// For a type that is no handler, the compiler should not suggest a `Route`.
#[diagnostic::do_not_recommend]
impl<S: Send + Sync + 'static> Handler<Configured, S> for Route<S> {
    fn into_route(self) -> Route<S> {
        self
    }
}

impl RouteOptions {
    /// Checks the ranges of all options. `route` names the route in the message.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidSetting`], naming route, option and remedy.
    pub(crate) fn check(&self, route: impl fmt::Display) -> Result<()> {
        if let Some(fault) = &self.fault {
            return Err(Error::new(
                ErrorKind::InvalidSetting,
                format!("{route}: {fault}"),
            ));
        }
        let fault = if self.timeout == Some(Duration::ZERO) {
            "`timeout` is zero, so no run could end in time: make it longer, \
             or leave it out for the worker's default"
        } else if self.concurrency == Some(0) {
            "`concurrency` is 0, so no job could run: write 1 or more, \
             or leave it out for no limit of its own"
        } else if self
            .rate
            .is_some_and(|rate| rate.jobs == 0 || rate.per.is_zero())
        {
            "`rate` allows no job: write 1 or more in a time longer than zero"
        } else if let Some(Err(error)) = self.limit.as_ref().map(Limit::check) {
            &format!("`limit` is wrong: {error}")
        } else if self.lease.is_some_and(|lease| !LEASES.contains(&lease)) {
            "`lease` must be from 1 s to 1 day"
        } else if let Some(Err(error)) = self.max_lateness.map(MaxLateness::check) {
            &format!("limit of lateness is wrong: {error}")
        } else if self
            .quiet
            .as_ref()
            .is_some_and(QuietHours::asks_for_earlier)
        {
            "`quiet` asks for an earlier start, and a worker cannot start a job before it is due: \
             write `later` or `skip`, or give the quiet hours to the jobs"
        } else if let Some(Err(error)) = self.durable.map(|durable| durable.check()) {
            &format!("`durable` is wrong: {error}")
        } else if self
            .payload_limit
            .is_some_and(|bytes| !PAYLOAD_LIMITS.contains(&bytes))
        {
            "`payload_limit` must be from 1 byte to 256 MiB"
        } else {
            return Ok(());
        };
        Err(Error::new(
            ErrorKind::InvalidSetting,
            format!("{route}: its {fault}"),
        ))
    }
}

// By hand, because a derive would ask for `S: Clone`.
impl<S> Clone for Route<S> {
    fn clone(&self) -> Self {
        Route {
            make: self.make.clone(),
            options: self.options.clone(),
        }
    }
}

impl<S> fmt::Debug for Route<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Route").field(&self.options).finish()
    }
}
