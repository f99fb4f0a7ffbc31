//! Handlers: async functions that run jobs.
//!
//! The arguments of a handler are made from the job (`extract`, `segments`), and its return value
//! says how the run ends (`crate::outcome`). A [`Route`] is a handler with its options and layers;
//! an [`Endpoint`] is the same after the router has given it its state. The router collects routes,
//! and workers and rehearsals call their endpoints.

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

use crate::lateness::{Late, MaxLateness};
use crate::limit::Limit;
use crate::outcome::IntoOutcome;
use crate::recurrence::QuietHours;
use crate::retry::RetryPolicy;

/// An async function that runs a job: it takes up to eight arguments that are [`FromJob`] and
/// returns a value that is [`IntoOutcome`]. The arguments are made in order; the first that cannot
/// be made ends the run without the handler being called. A closure that returns a future is a
/// handler too.
///
/// The methods of this trait set the options of the route, in any order:
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
/// The router checks the options when the route is added: an option that is out of range makes
/// [`Router::route`](crate::Router::route) panic, and
/// [`Router::try_route`](crate::Router::try_route) return
/// [`ErrorKind::InvalidSetting`](crate::ErrorKind::InvalidSetting).
///
/// The first type parameter, `M`, only tells functions with different arguments apart; it is always
/// inferred. `S` is the state of the router.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler",
    label = "this is not a handler",
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
    /// Turns the handler into a route. A bare function becomes a route without options.
    fn into_route(self) -> Route<S>;

    /// Sets the delays and the number of attempts of jobs that fail. A job that was scheduled with
    /// a policy of its own keeps that policy. Defaults to [`RetryPolicy::default`], ten attempts in
    /// about 25 hours.
    ///
    /// ```
    /// use keyfall::{Handler, RetryPolicy, Router};
    /// use std::time::Duration;
    ///
    /// # async fn notify() {}
    /// let every_minute = RetryPolicy::fixed(Duration::from_secs(60))?.attempts(5);
    /// let app: Router = Router::new().route("app1:trans:notice:*", notify.retry(every_minute));
    /// # Ok::<(), keyfall::Error>(())
    /// ```
    fn retry(self, policy: RetryPolicy) -> Route<S> {
        self.into_route()
            .with(|options| options.retry = Some(policy))
    }

    /// Limits the time of one run; longer than zero. When that time is over, the run's
    /// [`CancelSignal`] is raised; a handler that does not end within a moment (at most a second)
    /// is dropped, and the run has failed. A job that was scheduled with a timeout of its own keeps
    /// that timeout. Defaults to the [worker's](crate::Worker::timeout).
    fn timeout(self, timeout: Duration) -> Route<S> {
        self.into_route()
            .with(|options| options.timeout = Some(timeout))
    }

    /// Limits the number of jobs of this route that one worker runs at the same time; 1 or more.
    /// Jobs beyond it stay in the ledger, where other workers can take them. Defaults to the
    /// [worker's limit](crate::Worker::concurrency) for all its routes together.
    fn concurrency(self, jobs: usize) -> Route<S> {
        self.into_route()
            .with(|options| options.concurrency = Some(jobs))
    }

    /// Limits one worker to `jobs` starts of this route in each `per`. After a pause up to `jobs`
    /// start at once. Jobs beyond the rate stay in the ledger, where other workers can take them,
    /// oldest first. `jobs` is 1 or more, and `per` is longer than zero. Defaults to no limit.
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

    /// Limits the starts and the running jobs of the kinds of this route, over all workers together,
    /// as [`Client::limit`](crate::Client::limit) does. The pattern names a kind, or all kinds with a
    /// prefix: `app1:mail:send:{id}`, `app1:mail:{biz}:{id}` or `app1:*:*:*`. Other routes of the same
    /// kinds are under the limit, too.
    ///
    /// A worker [declares](crate::SetLimit::declared) the limit before it claims its first job. So a
    /// limit that an operator sets meanwhile stays until a worker with another limit starts; and
    /// leaving it out later does not remove it. Defaults to none.
    ///
    /// ```
    /// use keyfall::{Handler, Limit, Router};
    /// use std::time::Duration;
    ///
    /// # async fn send() {}
    /// let provider = Limit::new().rate(10, Duration::from_secs(1)).burst(2).concurrency(5);
    /// let app: Router = Router::new().route("app1:mail:{biz}:{id}", send.limit(provider));
    /// ```
    fn limit(self, limit: Limit) -> Route<S> {
        self.into_route()
            .with(|options| options.limit = Some(limit))
    }

    /// Sets the length of the leases of this route, from 1 s to 1 day: a job whose worker falls
    /// silent for that long is taken over by another worker. Defaults to the
    /// [worker's](crate::Worker::lease).
    fn lease(self, lease: Duration) -> Route<S> {
        self.into_route()
            .with(|options| options.lease = Some(lease))
    }

    /// Sets how late a job of this route may start before the hook for late starts is called.
    /// [`Worker::on_late`](crate::Worker::on_late) sets that hook, and describes how lateness is
    /// counted. Defaults to the [worker's](crate::Worker::late_after).
    fn late_after(self, limit: Duration) -> Route<S> {
        self.into_route()
            .with(|options| options.late_after = Some(limit))
    }

    /// Sets how late a job of this route may start, from 1 s to 10 years, and what becomes of it if
    /// it could start only later, because Redis or all workers were away, or its kind was paused.
    /// Lateness counts from the due time of the job, or of its retry. A run that has begun, and is
    /// taken over from a worker that died, is not late. A job that was scheduled with a limit of its
    /// own keeps that limit. Defaults to no limit.
    ///
    /// ```
    /// use keyfall::{Handler, Late, Router};
    /// use std::time::Duration;
    ///
    /// # async fn remind() {}
    /// let app: Router = Router::new().route(
    ///     "app1:table:reminder:*",
    ///     remind.max_lateness(Duration::from_secs(3600), Late::Skip),
    /// );
    /// ```
    fn max_lateness(self, limit: Duration, then: Late) -> Route<S> {
        self.into_route()
            .with(|options| options.max_lateness = Some(MaxLateness { limit, then }))
    }

    /// Sets hours at which no run of this route begins, neither a first attempt nor a retry: a job
    /// that is due within them starts when they end, or is skipped. Their zone defaults to UTC.
    /// A worker cannot start a job before it is due, so [`Instead::Earlier`](crate::Instead::Earlier)
    /// is refused; [`NewJob::quiet`](crate::NewJob::quiet) knows it. Defaults to none.
    ///
    /// ```
    /// use keyfall::{Handler, QuietHours, Router};
    ///
    /// # async fn notify() {}
    /// let nights = QuietHours::hours("22:00-08:00")?.zone("Europe/Berlin")?;
    /// let app: Router = Router::new().route("app1:trans:notice:*", notify.quiet(nights));
    /// # Ok::<(), keyfall::Error>(())
    /// ```
    fn quiet(self, hours: QuietHours) -> Route<S> {
        self.into_route()
            .with(|options| options.quiet = Some(hours))
    }

    /// Sets the durability that the settlement of each run must reach before its slot is free for
    /// another job: `1` means one replica. If a fail-over loses the settlement meanwhile, the
    /// worker sends it again, and the job does not run twice for that reason. If the durability is
    /// not reached in time, the worker frees the slot and goes on. The holder of a job that was
    /// handed over settles it, and [chooses its durability](crate::SettleLease::durable). Defaults
    /// to the memory of the primary alone.
    ///
    /// ```
    /// use keyfall::{Durable, Handler, Router};
    ///
    /// # async fn pay() {}
    /// let on_replica_and_disks = Durable::replicas(1).fsynced();
    /// let app: Router =
    ///     Router::new().route("app1:trans:pay:{order}", pay.durable(on_replica_and_disks));
    /// ```
    fn durable(self, how: impl Into<crate::Durable>) -> Route<S> {
        let how = how.into();
        self.into_route()
            .with(|options| options.durable = Some(how))
    }

    /// Turns plain Redis keys that this route matches into jobs. A program that sets such a key
    /// with a time to live schedules the value as a job; a program that changes the time to live
    /// postpones the job; a program that deletes the key, or removes its time to live, cancels the
    /// job. `missing` decides about keys that disappeared while no worker listened. By default only
    /// calls of Keyfall make jobs.
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

    /// Limits the value of a plain key that this route [adopts](Self::adopt), in bytes, from 1 byte
    /// to 256 MiB. A key with a larger value becomes a dead letter when it is due, without its
    /// payload. Payloads of scheduled jobs are limited by the scheduling client instead. Defaults
    /// to the limit of the [worker's client](crate::ClientBuilder::payload_limit).
    fn payload_limit(self, bytes: usize) -> Route<S> {
        self.into_route()
            .with(|options| options.payload_limit = Some(bytes))
    }

    /// Decides between routes that match the same key: the route with the highest priority takes
    /// it. May be negative. Defaults to 0.
    ///
    /// ```
    /// use keyfall::{Handler, JobKey, Router};
    ///
    /// # async fn notify() {}
    /// # async fn audit() {}
    /// let app: Router = Router::new()
    ///     .route("app1:trans:notice:{order}", notify)
    ///     .route("app1:*:*:*", audit.priority(1));
    /// let key = JobKey::parse("app1:trans:notice:42")?;
    /// assert_eq!(app.route_of(&key), Some("app1:*:*:*"));
    /// # Ok::<(), keyfall::Error>(())
    /// ```
    fn priority(self, priority: i32) -> Route<S> {
        self.into_route()
            .with(|options| options.priority = priority)
    }

    /// Wraps this handler in a tower layer. [`Router::layer`](crate::Router::layer) wraps each of
    /// several routes, and says how layers behave.
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

/// Implements [`Handler`] for functions with this many arguments, one type parameter each.
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
                        // Frees the job and the state, unless the handler took them as arguments.
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
