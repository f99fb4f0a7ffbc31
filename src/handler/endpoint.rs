//! Handlers as services, and services as handlers.

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

/// A handler that has its state, as a service: what a layer wraps. A job in, an outcome out,
/// always ready, and without an error of its own: a handler that fails has an outcome, too.
///
/// Layers of one's own name it where they want to know what they wrap; most do not:
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
    pub(super) fn new(
        call: impl Fn(Job) -> BoxFuture<'static, Outcome> + Send + Sync + 'static,
    ) -> Self {
        Endpoint(Arc::new(call))
    }

    pub(crate) fn call(&self, job: Job) -> BoxFuture<'static, Outcome> {
        (self.0)(job)
    }

    /// As `call`, but a panic is a failure like any other.
    pub(crate) async fn call_and_catch(&self, job: Job) -> Outcome {
        AssertUnwindSafe(async { self.call(job).await })
            .catch_unwind()
            .await
            .unwrap_or_else(|panic| Outcome::retry(describe(&*panic)))
    }
}

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

/// A service that can run jobs: any `tower::Service<Job>` whose response is [`IntoOutcome`],
/// whose error is or becomes a `Box<dyn Error + Send + Sync>`, and whose future is `Send`. It is
/// implemented for all of them.
///
/// An error is [`Outcome::retry`].
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot run jobs",
    label = "this does not make a service that can run jobs",
    note = "a service that can run jobs is a `tower::Service<Job>`; its response is `()`, `Outcome` \
            or a `Result` of one of them, its error is `Into<Box<dyn Error + Send + Sync>>`, and \
            its future is `Send`"
)]
pub trait JobService: Send + 'static {
    /// As the endpoint of a route.
    ///
    /// A service may have to be waited for, and need not be `Clone`, as a rate limit is not. So
    /// there is one for all clones of the endpoint, and jobs take turns in asking whether it is
    /// ready. What it then does with them goes on at the same time. A job that is cancelled, or
    /// whose time is up, while it waits for its turn goes back without having used an attempt.
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
                    // It waits no longer, and this was no attempt.
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
