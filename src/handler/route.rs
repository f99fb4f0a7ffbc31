//! A handler with the options of its route.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tower_layer::Layer;

use super::{Breakers, Endpoint, Handler, Job, JobService, Pull, RouteTask};
use crate::durable::Durable;
use crate::error::{Error, ErrorKind, Result};
use crate::outcome::Outcome;
use crate::retry::RetryPolicy;
use crate::settings::{LEASES, PAYLOAD_LIMITS};

/// Makes the endpoint of a route from the state of its router.
type Make<S> = Arc<dyn Fn(Arc<S>) -> Endpoint + Send + Sync>;

/// A handler with the options and layers of its route, as [`Handler::retry`],
/// [`Handler::timeout`], [`Handler::concurrency`], [`Handler::priority`] and
/// [`Handler::layer`] return it.
pub struct Route<S = ()> {
    make: Make<S>,
    pub(crate) options: RouteOptions,
}

/// The options of a route. `None` leaves the choice to the worker.
#[derive(Debug, Clone, Default)]
pub(crate) struct RouteOptions {
    pub(crate) retry: Option<RetryPolicy>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) concurrency: Option<usize>,
    pub(crate) priority: i32,
    pub(crate) lease: Option<Duration>,
    pub(crate) rate: Option<Rate>,
    pub(crate) late_after: Option<Duration>,
    /// How far the ends of its runs are to get.
    pub(crate) durable: Option<Durable>,
    /// Its jobs go to whoever pulls them.
    pub(crate) pull: Option<Pull>,
    /// Its runs end with their jobs in other hands.
    pub(crate) hands_over: bool,
    /// Why the handler cannot be used, with the remedy.
    pub(crate) fault: Option<String>,
    /// What has to run beside its handler.
    pub(crate) route_task: Option<RouteTask>,
    /// Those of the target that its handler is.
    pub(crate) breakers: Option<Arc<dyn Breakers>>,
    /// Plain keys become jobs of it.
    pub(crate) adopts: Option<MissingKey>,
    /// How many bytes the payload of one may have that was a plain key.
    pub(crate) payload_limit: Option<usize>,
}

/// What it means that the key of an [adopted](Handler::adopt) job is missing, where nobody has
/// heard why: it may have expired, been deleted, or been evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MissingKey {
    /// Its job runs when it is due: a run too many rather than one too few.
    #[default]
    Run,
    /// Its job is cancelled: it runs only if somebody heard its key expire.
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

    /// A route that hands its jobs to a service, for [`Router::route`](crate::Router::route)
    /// where it is to have options, too.
    ///
    /// Several routes that are made from clones of this one share the service.
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

    pub(crate) fn with(mut self, set: impl FnOnce(&mut RouteOptions)) -> Self {
        set(&mut self.options);
        self
    }

    /// The same route with a layer around what it has. A service of it is made when the state
    /// is there.
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

    /// The same route, with the state that its handler needs.
    pub(crate) fn with_state(self, state: Arc<S>) -> Route {
        let endpoint = (self.make)(state);
        Route {
            make: Arc::new(move |_| endpoint.clone()),
            options: self.options,
        }
    }

    fn making(make: impl Fn(Arc<S>) -> Endpoint + Send + Sync + 'static) -> Self {
        Route {
            make: Arc::new(make),
            options: RouteOptions::default(),
        }
    }
}

impl Route {
    pub(crate) fn to_endpoint(&self) -> Endpoint {
        (self.make)(Arc::new(()))
    }
}

/// So many jobs in a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rate {
    pub(crate) jobs: u32,
    pub(crate) per: Duration,
}

/// Tells a [`Route`] from a function where both are handlers.
#[derive(Debug)]
pub enum Configured {}

// To whoever passed what is no handler, a route is not what is missing.
#[diagnostic::do_not_recommend]
impl<S: Send + Sync + 'static> Handler<Configured, S> for Route<S> {
    fn into_route(self) -> Route<S> {
        self
    }
}

impl RouteOptions {
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
            "`rate` lets no job through: write 1 or more in a time longer than zero"
        } else if self.lease.is_some_and(|lease| !LEASES.contains(&lease)) {
            "`lease` must be from 1 s to 1 day"
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

// By hand, because what is shared need not be `Clone` itself.
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
