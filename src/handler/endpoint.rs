//! Handlers as tower services, and tower services as handlers.
//!
//! An [`Endpoint`] is the callable form of a route; layers wrap it. A [`JobService`] is any tower
//! service that can run jobs, such as a layered endpoint.

use std::any::Any;
use std::convert::Infallible;
use std::error::Error as StdError;
use std::fmt;
use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::Mutex;
use tower_service::Service;

use super::Job;
use crate::outcome::{IntoOutcome, Outcome};

/// A handler with its state, as a tower service: the service that a layer wraps. It takes a [`Job`]
/// and answers an [`Outcome`], is always ready, and has no error of its own, since a handler that
/// fails has an outcome too. Cloning is cheap.
///
/// A layer of your own names `Endpoint` where it needs the type of the wrapped service; most layers
/// do not:
///
/// ```
/// use keyfall::{Endpoint, Job};
/// use tower::Service;
/// use tracing::Instrument;
/// use tracing::instrument::Instrumented;
///
/// /// Opens a span around each run.
/// #[derive(Clone)]
/// struct Spanned<S>(S);
///
/// impl<S: Service<Job>> Service<Job> for Spanned<S> {
///     type Response = S::Response;
///     type Error = S::Error;
///     type Future = Instrumented<S::Future>;
///
///     fn poll_ready(
///         &mut self,
///         cx: &mut std::task::Context<'_>,
///     ) -> std::task::Poll<Result<(), S::Error>> {
///         self.0.poll_ready(cx)
///     }
///
///     fn call(&mut self, job: Job) -> Self::Future {
///         let span = tracing::info_span!("payment", tenant = job.headers().get("tenant"));
///         self.0.call(job).instrument(span)
///     }
/// }
///
/// # use keyfall::{Handler, Router};
/// # async fn pay() {}
/// let app: Router = Router::new()
///     .route("app1:trans:pay:{order}", pay)
///     .layer(tower::layer::layer_fn(Spanned::<Endpoint>));
/// ```
#[derive(Clone)]
pub struct Endpoint(Arc<dyn Fn(Job) -> BoxFuture<'static, Outcome> + Send + Sync>);

impl Endpoint {
    /// An endpoint that runs each job with `call`.
    pub(super) fn new(
        call: impl Fn(Job) -> BoxFuture<'static, Outcome> + Send + Sync + 'static,
    ) -> Self {
        Endpoint(Arc::new(call))
    }

    /// Runs the job. A panic of the handler passes through.
    pub(crate) fn call(&self, job: Job) -> BoxFuture<'static, Outcome> {
        (self.0)(job)
    }

    /// Runs the job as [`call`](Self::call) does, and turns a panic into [`Outcome::retry`] with
    /// the panic's text.
    pub(crate) async fn call_and_catch(&self, job: Job) -> Outcome {
        AssertUnwindSafe(async { self.call(job).await })
            .catch_unwind()
            .await
            .unwrap_or_else(|panic| Outcome::retry(describe(&*panic)))
    }
}

/// The failure text for a panic, with its message if that is a text.
fn describe(panic: &(dyn Any + Send)) -> String {
    let text = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    match text {
        Some(text) => format!("the handler panicked: {text}"),
        None => "the handler panicked".into(),
    }
}

impl Service<Job> for Endpoint {
    type Response = Outcome;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Outcome, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, job: Job) -> Self::Future {
        Endpoint::call(self, job).map(Ok).boxed()
    }
}

/// A service that can run jobs: any `tower::Service<Job>` whose response is [`IntoOutcome`], whose
/// error converts into a `Box<dyn Error + Send + Sync>`, and whose future is `Send`. Every such
/// service implements this trait already.
///
/// An error of the service is [`Outcome::retry`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot run jobs",
    label = "this does not make a service that can run jobs",
    note = "a service that can run jobs is a `tower::Service<Job>`; its response is `()`, `Outcome` \
            or a `Result` of one of them, its error is `Into<Box<dyn Error + Send + Sync>>`, and \
            its future is `Send`"
)]
pub trait JobService: Send + 'static {
    /// Turns the service into the endpoint of a route.
    ///
    /// All clones of the endpoint share this one service, because some services, such as a rate
    /// limit, cannot be cloned. Jobs take turns in waiting until it is ready; the calls themselves
    /// then run at the same time. A job that is cancelled, or whose time is up, while it waits for
    /// its turn goes back and does not use an attempt.
    fn into_endpoint(self) -> Endpoint;
}

impl<T> JobService for T
where
    T: Service<Job, Response: IntoOutcome, Error: Into<Box<dyn StdError + Send + Sync>>>
        + Send
        + 'static,
    T::Future: Send,
{
    fn into_endpoint(self) -> Endpoint {
        let service = Arc::new(Mutex::new(self));
        Endpoint::new(move |job| {
            let service = service.clone();
            let signal = job.cancellation().clone();
            let run = async move {
                let ready = async {
                    let mut service = service.lock_owned().await;
                    poll_fn(|cx| service.poll_ready(cx)).await?;
                    Ok::<_, T::Error>(service)
                };
                let mut service = tokio::select! {
                    biased;
                    // The job stops waiting, and the attempt does not count.
                    () = signal.raised() => return Ok(Outcome::snooze(Duration::ZERO)),
                    ready = ready => ready?,
                };
                let response = service.call(job);
                // The next job need not wait for this one.
                drop(service);
                response.await.map(IntoOutcome::into_outcome)
            };
            run.map(IntoOutcome::into_outcome).boxed()
        })
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Endpoint")
    }
}
