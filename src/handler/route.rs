//! A handler with the options of its route.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use super::{Handler, Job, Outcome};
use crate::error::{Error, ErrorKind, Result};
use crate::retry::RetryPolicy;

type Call<S> = Arc<dyn Fn(Job, Arc<S>) -> BoxFuture<'static, Outcome> + Send + Sync>;

/// A handler with the options of its route, as [`Handler::retry`], [`Handler::timeout`],
/// [`Handler::concurrency`] and [`Handler::priority`] return it.
pub struct Route<S> {
    call: Call<S>,
    pub(crate) options: RouteOptions,
}

/// The options of a route. `None` leaves the choice to the worker.
#[derive(Debug, Clone, Default)]
pub(crate) struct RouteOptions {
    pub(crate) retry: Option<RetryPolicy>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) concurrency: Option<usize>,
    pub(crate) priority: i32,
}

/// A handler that has its state: a job in, an outcome out, and nothing else to know.
#[derive(Clone)]
pub(crate) struct Endpoint(Arc<dyn Fn(Job) -> BoxFuture<'static, Outcome> + Send + Sync>);

impl<S: Send + Sync + 'static> Route<S> {
    pub(super) fn new<M>(handler: impl Handler<M, S>) -> Self {
        Route {
            call: Arc::new(move |job, state| handler.clone().call(job, state)),
            options: RouteOptions::default(),
        }
    }

    pub(super) fn with(mut self, set: impl FnOnce(&mut RouteOptions)) -> Self {
        set(&mut self.options);
        self
    }

    /// The same route, with the state that its handler needs.
    pub(crate) fn with_state(self, state: Arc<S>) -> Route<()> {
        let call = self.call;
        Route {
            call: Arc::new(move |job, _| call(job, state.clone())),
            options: self.options,
        }
    }
}

impl Route<()> {
    pub(crate) fn into_endpoint(self) -> Endpoint {
        let (call, state) = (self.call, Arc::new(()));
        Endpoint(Arc::new(move |job| call(job, state.clone())))
    }
}

impl Endpoint {
    pub(crate) fn call(&self, job: Job) -> BoxFuture<'static, Outcome> {
        (self.0)(job)
    }
}

/// Tells a [`Route`] from a function where both are handlers.
#[derive(Debug)]
pub enum Configured {}

// To whoever passed what is no handler, a route is not what is missing.
#[diagnostic::do_not_recommend]
impl<S: Send + Sync + 'static> Handler<Configured, S> for Route<S> {
    fn call(self, job: Job, state: Arc<S>) -> Pin<Box<dyn Future<Output = Outcome> + Send>> {
        (self.call)(job, state)
    }

    fn into_route(self) -> Route<S> {
        self
    }
}

impl RouteOptions {
    /// # Errors
    /// [`ErrorKind::InvalidSetting`], naming route, option and remedy.
    pub(crate) fn check(&self, pattern: &str) -> Result<()> {
        let fault = if self.timeout == Some(Duration::ZERO) {
            "`timeout` is zero, so no run could end in time: make it longer, \
             or leave it out for the worker's default"
        } else if self.concurrency == Some(0) {
            "`concurrency` is 0, so no job could run: write 1 or more, \
             or leave it out for no limit of its own"
        } else {
            return Ok(());
        };
        Err(Error::new(
            ErrorKind::InvalidSetting,
            format!("route `{pattern}`: its {fault}"),
        ))
    }
}

// By hand, because what is shared need not be `Clone` itself.
impl<S> Clone for Route<S> {
    fn clone(&self) -> Self {
        Route {
            call: self.call.clone(),
            options: self.options.clone(),
        }
    }
}

impl<S> fmt::Debug for Route<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Route").field(&self.options).finish()
    }
}
