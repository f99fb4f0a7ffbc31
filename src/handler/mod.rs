//! Handlers: async functions whose arguments are made from the job, and whose return value
//! says how it ends.

mod breakers;
mod cancel;
mod debug;
mod endpoint;
mod extract;
mod job;
mod pull;
mod route;
mod sample;
mod segments;
mod task;

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use tower_layer::Layer;

pub(crate) use breakers::Breakers;
pub use cancel::CancelSignal;
pub use debug::debug_handler;
pub use endpoint::{Endpoint, JobService};
pub use extract::{FromJob, FromRef, Json, Payload, Rejection, Segments, State};
pub use job::Job;
pub(crate) use job::{JobParts, SegmentNames, idempotency_key, names};
pub(crate) use pull::PullPermit;
pub use pull::{Pull, Pulled};
pub(crate) use route::Rate;
pub use route::{MissingKey, Route};
pub use sample::SampleJob;
pub(crate) use task::{FindTerms, RouteTask, RouteTaskContext, RouteTerms};

use crate::outcome::IntoOutcome;
use crate::retry::RetryPolicy;

/// An async function that runs a job: up to eight arguments that are [`FromJob`], made in
/// order, and a return value that is [`IntoOutcome`]. A closure that returns a future is one
/// too.
///
/// Options of its route are set on the handler itself, in any order:
///
/// ```
/// use keyfall::{Handler, Outcome, RetryPolicy, Router, Segments};
/// use std::time::Duration;
///
/// async fn notify(Segments(order): Segments<u64>) -> Result<(), std::io::Error> {
///     println!("order {order} is due");
///     Ok(())
/// }
///
/// let app: Router = Router::new()
///     .route("app1:trans:notice:{order}", notify)
///     .route(
///         "app2:trans:notice:{order}",
///         notify
///             .retry(RetryPolicy::two_hour_ladder())
///             .timeout(Duration::from_secs(30))
///             .concurrency(16),
///     );
/// ```
///
/// The first type parameter, `M`, only tells functions with different arguments apart; it is
/// always inferred. `S` is the state of the router.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no handler",
    label = "this is no handler",
    note = "a handler is an `async fn` with at most eight arguments that are `FromJob` \
            (such as `Json<T>`, `Segments<T>`, `State<T>`, `Job`)",
    note = "it returns `()`, `Outcome`, or a `Result` of one of them, and its future is `Send`",
    note = "`State<T>` needs a router whose state is `T`, or from which `T` is made by `FromRef`",
    note = "put `#[keyfall::debug_handler]` above the function to see which part is at fault"
)]
pub trait Handler<M, S>: Clone + Send + Sync + Sized + 'static
where
    S: Send + Sync + 'static,
{
    /// The handler with the options of its route. A bare handler has none.
    fn into_route(self) -> Route<S>;

    /// When a job that failed runs again. A job that was scheduled with a policy of its own
    /// keeps it. Defaults to [`RetryPolicy::default`].
    fn retry(self, policy: RetryPolicy) -> Route<S> {
        self.into_route()
            .with(|options| options.retry = Some(policy))
    }

    /// How long one run may take; then its [`CancelSignal`] is raised and the run has
    /// failed. Longer than zero. Defaults to the [worker's](crate::Worker::timeout).
    fn timeout(self, timeout: Duration) -> Route<S> {
        self.into_route()
            .with(|options| options.timeout = Some(timeout))
    }

    /// How many jobs of this route one worker runs at a time, 1 or more. Defaults to as
    /// many as the worker runs in all.
    fn concurrency(self, jobs: usize) -> Route<S> {
        self.into_route()
            .with(|options| options.concurrency = Some(jobs))
    }

    /// How many jobs of this route one worker starts in a time, and how many at once after a
    /// pause. What is over that stays in the ledger, oldest first. Defaults to no limit.
    ///
    /// ```
    /// use keyfall::{Handler, Router};
    /// use std::time::Duration;
    ///
    /// # async fn notify() {}
    /// let app: Router =
    ///     Router::new().route("app1:trans:notice:*", notify.rate(50, Duration::from_secs(1)));
    /// ```
    fn rate(self, jobs: u32, per: Duration) -> Route<S> {
        self.into_route()
            .with(|options| options.rate = Some(Rate { jobs, per }))
    }

    /// For how long a job of this route is claimed; from 1 s to 1 day. Defaults to the
    /// [worker's](crate::Worker::lease).
    fn lease(self, lease: Duration) -> Route<S> {
        self.into_route()
            .with(|options| options.lease = Some(lease))
    }

    /// How late a job of this route may start before the worker's hook is told; see
    /// [`Worker::on_late`](crate::Worker::on_late), which says what counts. Defaults to the
    /// [worker's](crate::Worker::late_after).
    fn late_after(self, limit: Duration) -> Route<S> {
        self.into_route()
            .with(|options| options.late_after = Some(limit))
    }

    /// How far the end of a run is to get, such as `1`, on one replica, before its slot is free
    /// for another job. If a fail-over forgets it meanwhile, it is told again, and the job is not
    /// run twice for that. What is not reached in time does not hold up the worker any longer.
    /// Jobs that are in other hands are settled [by those](crate::SettleLease::durable). Defaults
    /// to no further than the memory of the server.
    fn durable(self, how: impl Into<crate::Durable>) -> Route<S> {
        let how = how.into();
        self.into_route()
            .with(|options| options.durable = Some(how))
    }

    /// Makes jobs of plain Redis keys that this route matches: whoever sets such a key with a
    /// time to live has scheduled its value, whoever changes the time has postponed it, and
    /// whoever takes the key or its time away has cancelled it. `missing` says what it means if
    /// nobody heard why a key is not there. Without this, only calls of Keyfall make jobs.
    ///
    /// ```
    /// use keyfall::{Handler, MissingKey, Router};
    ///
    /// # async fn notify() {}
    /// // SET app1:trans:notice:42 '{"uid":7}' EX 900
    /// let app: Router =
    ///     Router::new().route("app1:trans:notice:{order}", notify.adopt(MissingKey::Run));
    /// ```
    fn adopt(self, missing: MissingKey) -> Route<S> {
        self.into_route()
            .with(|options| options.adopts = Some(missing))
    }

    /// How many bytes the value of a plain key may have that this route [adopts](Self::adopt); from
    /// 1 byte to 256 MiB. A larger one becomes a dead letter when it is due, without its payload.
    /// What is scheduled otherwise is limited by its client. Defaults to the
    /// [client's](crate::ClientBuilder::payload_limit).
    fn payload_limit(self, bytes: usize) -> Route<S> {
        self.into_route()
            .with(|options| options.payload_limit = Some(bytes))
    }

    /// Which of several routes gets a key that they all match: the one with the highest
    /// priority. Defaults to 0; may be negative.
    fn priority(self, priority: i32) -> Route<S> {
        self.into_route()
            .with(|options| options.priority = priority)
    }

    /// Wraps this handler in a layer of the tower ecosystem, as
    /// [`Router::layer`](crate::Router::layer) does with each of several.
    ///
    /// ```
    /// use keyfall::{Handler, Router};
    /// use std::time::Duration;
    /// use tower::limit::RateLimitLayer;
    ///
    /// # async fn notify() {}
    /// let ten_a_second = RateLimitLayer::new(10, Duration::from_secs(1));
    /// let app: Router =
    ///     Router::new().route("app1:trans:notice:{order}", notify.layer(ten_a_second));
    /// ```
    fn layer<L>(self, layer: L) -> Route<S>
    where
        L: Layer<Endpoint> + Send + Sync + 'static,
        L::Service: JobService,
    {
        self.into_route().layered(layer)
    }
}

macro_rules! handler {
    ($($arg:ident)*) => {
        #[allow(non_snake_case, reason = "a type and the argument of that type share a name")]
        impl<F, Fut, S, $($arg,)*> Handler<($($arg,)*), S> for F
        where
            F: FnOnce($($arg),*) -> Fut + Clone + Send + Sync + 'static,
            Fut: Future<Output: IntoOutcome> + Send,
            S: Send + Sync + 'static,
            $($arg: FromJob<S> + Send,)*
        {
            fn into_route(self) -> Route<S> {
                Route::new(move |job: Job, state: Arc<S>| {
                    let handler = self.clone();
                    Box::pin(async move {
                        $(
                            let $arg = match $arg::from_job(&job, &state).await {
                                Ok(argument) => argument,
                                Err(rejection) => return rejection.into_outcome(),
                            };
                        )*
                        // What the handler did not ask for need not outlive this line.
                        drop((job, state));
                        handler($($arg),*).await.into_outcome()
                    })
                })
            }
        }
    };
}

handler! {}
handler! { A }
handler! { A B }
handler! { A B C }
handler! { A B C D }
handler! { A B C D E }
handler! { A B C D E G }
handler! { A B C D E G H }
handler! { A B C D E G H I }
