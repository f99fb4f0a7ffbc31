//! The router: patterns of job keys, and the handlers that run matching jobs.
//!
//! [`Router`] collects and checks routes; [`Routes`] in `routes` is the finished form that workers
//! and rehearsals use. The rules of matching are in `crate::routing`.

mod routes;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, OnceLock};

use tower_layer::Layer;

pub(crate) use self::routes::{RouteEntry, Routes};
use crate::error::{Error, ErrorKind, Result};
use crate::handler::{Endpoint, Handler, Job, JobService, Route};
use crate::key::JobKey;
use crate::limit::Limit;
use crate::outcome::Outcome;
use crate::routing::{self, Pattern, RouteTable};

/// Decides which handler runs which job.
///
/// A pattern has four segments, as a job key has:
///
/// | segment | matches |
/// |---|---|
/// | `notice` | this text |
/// | `{name:regex}` | texts that the regex matches from beginning to end |
/// | `{name}` | any text, which handlers can read by this name |
/// | `*` | any text |
///
/// Of several routes that match a key, the one with the highest [`priority`](Handler::priority)
/// takes it. Among equals the segments decide, from left to right: a literal comes before a regex,
/// and a regex before any text.
///
/// `S` is the state that the handlers need and that [`with_state`](Self::with_state) provides;
/// handlers without state leave it open. [`Worker::new`](crate::Worker::new) takes a `Router<()>`:
/// if the compiler expected that and found a `Router<Db>`, then `.with_state(db)` is missing.
///
/// If the compiler says that a function is no handler, put
/// [`#[keyfall::debug_handler]`](crate::debug_handler) above it, and the message names the reason.
///
/// ```
/// use keyfall::{Json, Job, Outcome, Router, Segments, State};
/// use std::sync::{Arc, Mutex};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// type Sent = Arc<Mutex<Vec<u64>>>;
///
/// async fn notify(Segments(order): Segments<u64>, State(sent): State<Sent>) -> Outcome {
///     sent.lock().unwrap().push(order);
///     Outcome::Done
/// }
///
/// async fn cleanup(Json(path): Json<String>) -> std::io::Result<()> {
///     std::fs::remove_file(path)
/// }
///
/// let sent = Sent::default();
/// let app = Router::new()
///     .route("app1:trans:notice:{order}", notify)
///     .route("app1:*:cleanup:*", cleanup)
///     .with_state(sent.clone());
///
/// // A handler can be tried without Redis.
/// let job = Job::sample("app1:trans:notice:42").build();
/// assert_eq!(app.call(job).await, Some(Outcome::Done));
/// assert_eq!(*sent.lock().unwrap(), [42]);
/// # }
/// ```
#[must_use]
pub struct Router<S = ()> {
    routes: Vec<PendingRoute<S>>,
    fallback: Option<PendingRoute<S>>,
    /// The table of these routes, without the fallback; made at the first use.
    table: OnceLock<Arc<RouteTable>>,
}

/// A route with its pattern, before the router is finished.
struct PendingRoute<S> {
    pattern: Pattern,
    route: Route<S>,
    /// Made once, so that all clones of a router share the counts of its layers.
    endpoint: Arc<OnceLock<Endpoint>>,
}

impl<S: Send + Sync + 'static> Router<S> {
    /// A router without routes.
    pub const fn new() -> Self {
        Router {
            routes: Vec::new(),
            fallback: None,
            table: OnceLock::new(),
        }
    }

    /// Adds a route.
    ///
    /// # Panics
    /// At the caller's line, if the pattern is malformed, if another route of the same priority and
    /// rank matches the same keys, or if an option of the route is out of range. Use
    /// [`try_route`](Self::try_route) for patterns that are not written in the program.
    #[track_caller]
    pub fn route<M>(self, pattern: &str, handler: impl Handler<M, S>) -> Self {
        or_panic(self.try_route(pattern, handler))
    }

    /// Adds a route whose pattern comes from outside, such as a configuration.
    ///
    /// ```
    /// use keyfall::{ErrorKind, Router};
    /// # async fn notify() {}
    ///
    /// let app = Router::<()>::new().try_route("app1:trans:notice:{order}", notify)?;
    /// // The same keys a second time:
    /// let error = app.try_route("app1:trans:notice:{id}", notify).unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::InvalidRoute);
    /// # Ok::<(), keyfall::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRoute`] if the pattern is malformed, or if another route of the same
    /// priority and rank matches the same keys; [`ErrorKind::InvalidSetting`] if an option of the
    /// route is out of range.
    pub fn try_route<M>(self, pattern: &str, handler: impl Handler<M, S>) -> Result<Self> {
        let pattern = Pattern::parse(pattern)?;
        let route = handler.into_route();
        route.options.check(format_args!("route `{pattern}`"))?;
        check_limit(&pattern, route.options.limit.as_ref())?;
        self.with(PendingRoute::new(pattern, route))
    }

    /// Adds a route that hands its jobs to a tower service. [`Route::from_service`] gives it
    /// options, too.
    ///
    /// The response of the service is any value that a handler may return, and its error is
    /// [`Outcome::retry`]. The service need not be `Clone`: jobs take turns in waiting until it is
    /// ready, and the calls then run at the same time.
    ///
    /// ```
    /// use keyfall::{Job, Router};
    /// use tower::{BoxError, ServiceBuilder};
    /// use std::time::Duration;
    ///
    /// let service = ServiceBuilder::new()
    ///     .timeout(Duration::from_secs(10))
    ///     .service_fn(async |job: Job| {
    ///         println!("{} is due", job.key());
    ///         Ok::<(), BoxError>(())
    ///     });
    /// let app: Router = Router::new().route_service("app1:trans:notice:{order}", service);
    /// ```
    ///
    /// # Panics
    /// As [`route`](Self::route).
    #[track_caller]
    pub fn route_service(self, pattern: &str, service: impl JobService) -> Self {
        self.route(pattern, Route::from_service(service))
    }

    /// Sets the handler of jobs that no route of this router, and no route of any other live
    /// instance, matches. Without a fallback such jobs stay pending and are reported.
    ///
    /// The fallback takes the options of any handler, except that a priority has no effect: the
    /// fallback always comes last. It has no named segments.
    ///
    /// ```
    /// use keyfall::{Job, Outcome, Router};
    ///
    /// async fn unknown(job: Job) -> Outcome {
    ///     Outcome::bury(format!("nobody knows what to do with {}", job.key()))
    /// }
    ///
    /// let app: Router = Router::new().fallback(unknown);
    /// ```
    ///
    /// # Panics
    /// At the caller's line, if there is a fallback already, or if one of its options is out of
    /// range.
    #[track_caller]
    pub fn fallback<M>(self, handler: impl Handler<M, S>) -> Self {
        let pattern = or_panic(Pattern::parse("*:*:*:*"));
        let route = handler.into_route();
        or_panic(route.options.check("the fallback"));
        or_panic(check_limit(&pattern, route.options.limit.as_ref()));
        or_panic(self.with_fallback(Some(PendingRoute::new(pattern, route))))
    }

    /// Adds all routes of another router, with their options and layers, and its fallback.
    ///
    /// ```
    /// use keyfall::Router;
    /// # async fn notify() {}
    /// # async fn cleanup() {}
    ///
    /// let payments = Router::new().route("app1:trans:notice:{order}", notify);
    /// let files = Router::new().route("app1:*:cleanup:*", cleanup);
    /// let app: Router = payments.merge(files);
    /// ```
    ///
    /// # Panics
    /// At the caller's line, if a route of one matches the same keys as a route of the other with
    /// the same priority and rank, or if both have a fallback. See [`try_merge`](Self::try_merge).
    #[track_caller]
    pub fn merge(self, other: Self) -> Self {
        or_panic(self.try_merge(other))
    }

    /// Adds all routes of another router, as [`merge`](Self::merge) does, for patterns that come
    /// from outside.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRoute`] if a route of one matches the same keys as a route of the other
    /// with the same priority and rank, or if both have a fallback.
    pub fn try_merge(self, other: Self) -> Result<Self> {
        let router = self.with_fallback(other.fallback)?;
        other.routes.into_iter().try_fold(router, Router::with)
    }

    /// Wraps each route that was added so far, and the fallback, in a tower layer. Routes that are
    /// added afterwards are not wrapped. The layer that was added last is the outermost.
    ///
    /// ```
    /// use keyfall::Router;
    /// use std::time::Duration;
    /// use tower::timeout::TimeoutLayer;
    /// # async fn notify() {}
    /// # async fn cleanup() {}
    ///
    /// let app: Router = Router::new()
    ///     .route("app1:trans:notice:{order}", notify)
    ///     .layer(TimeoutLayer::new(Duration::from_secs(10)))
    ///     .route("app1:*:cleanup:*", cleanup); // may take longer
    /// ```
    ///
    /// - Each route gets a clone of the layer, so a layer that counts, such as a rate limit, counts
    ///   for each route by itself. Layers whose clones share a count, such as
    ///   `GlobalConcurrencyLimitLayer`, count for all routes together. Clones of the router share
    ///   their layers.
    /// - An error of a layer is [`Outcome::retry`]: the run has failed, and the job runs again as
    ///   its policy says. The response of a layer is any value that a handler may return.
    /// - A job that waits for a layer, such as a rate limit, has been claimed: it holds a slot of
    ///   the worker, and its time counts towards the timeout of its route. [`Handler::concurrency`]
    ///   and [`Handler::rate`] leave jobs unclaimed instead.
    /// - Each call makes a service that is always ready and lets its jobs wait inside. A layer that
    ///   looks at the readiness of another, as `LoadShedLayer` does, goes with it into one call:
    ///   `.layer(ServiceBuilder::new().load_shed().concurrency_limit(8))`.
    /// - A layer that needs a tokio runtime when it is made, such as `BufferLayer`, needs it in
    ///   [`with_state`](Self::with_state) or, if the state is `()`, when the worker runs.
    pub fn layer<L>(self, layer: L) -> Self
    where
        L: Layer<Endpoint> + Clone + Send + Sync + 'static,
        L::Service: JobService,
    {
        self.map(|route| route.layered(layer.clone()))
    }

    /// The pattern of the route that takes a job. `None` if no route matches its key, so that only
    /// a fallback could take it.
    ///
    /// The first call compiles all patterns; later calls look the key up.
    ///
    /// ```
    /// use keyfall::{JobKey, Router};
    /// # async fn notify() {}
    ///
    /// let app: Router = Router::new()
    ///     .route("app1:trans:notice:{order}", notify)
    ///     .route("app1:trans:*:*", notify);
    /// let key = JobKey::parse("app1:trans:notice:42")?;
    /// assert_eq!(app.route_of(&key), Some("app1:trans:notice:{order}"));
    /// # Ok::<(), keyfall::Error>(())
    /// ```
    pub fn route_of(&self, key: &JobKey) -> Option<&str> {
        let table = self.table.get_or_init(|| {
            let ranked = self.routes.iter().map(PendingRoute::ranked).collect();
            let table = RouteTable::new(ranked);
            Arc::new(table.expect("routes are checked against each other when they are added"))
        });
        Some(self.routes[table.find(key)?].pattern.as_str())
    }

    /// Gives the state to the handlers that were added so far. Routes with another state, or with
    /// none, can be added afterwards.
    pub fn with_state(self, state: S) -> Router {
        let state = Arc::new(state);
        self.map(|route| route.with_state(state.clone()))
    }

    /// Adds one checked route.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRoute`] if it clashes with a route that was added before.
    fn with(mut self, entry: PendingRoute<S>) -> Result<Self> {
        if let Some(rival) = self.routes.iter().find(|known| known.clashes(&entry)) {
            return Err(routing::clash_error(&rival.pattern, &entry.pattern));
        }
        self.routes.push(entry);
        self.table = OnceLock::new();
        Ok(self)
    }

    /// Sets the fallback, if there is one to set.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRoute`] if both are set.
    fn with_fallback(mut self, fallback: Option<PendingRoute<S>>) -> Result<Self> {
        if self.fallback.is_some() && fallback.is_some() {
            return Err(Error::new(
                ErrorKind::InvalidRoute,
                "there are two fallbacks, and neither has precedence: leave one out; of merged \
                 routers, only one may have a fallback",
            ));
        }
        self.fallback = fallback.or(self.fallback);
        Ok(self)
    }

    /// The same patterns with each route changed, and new endpoints. The table stays, since it
    /// depends on patterns and priorities alone.
    fn map<T>(self, change: impl Fn(Route<S>) -> Route<T>) -> Router<T> {
        let change = |entry: PendingRoute<S>| PendingRoute::new(entry.pattern, change(entry.route));
        Router {
            routes: self.routes.into_iter().map(change).collect(),
            fallback: self.fallback.map(change),
            table: self.table,
        }
    }
}

/// Checks that the limit of a route is that of whole kinds.
///
/// # Errors
/// [`ErrorKind::InvalidRoute`] if the pattern leaves out some kinds of its prefix.
fn check_limit(pattern: &Pattern, limit: Option<&Limit>) -> Result<()> {
    if limit.is_none() || pattern.whole_kinds().is_some() {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidRoute,
        format!(
            "route `{pattern}`: its `limit` is for a kind, or for all kinds with a prefix, and its \
             pattern names neither: write `app:module:biz:{{id}}`, `app:module:{{biz}}:{{id}}`, or \
             `Client::limit` for each kind"
        ),
    ))
}

impl Router {
    /// Runs one job as a worker would, but without timeout and limits, and lets panics through: for
    /// tests of handlers and routes. `None` if no route matches its key and there is no fallback.
    ///
    /// Nothing follows the run: a [`Rehearsal`](crate::testing::Rehearsal) plays retries, too.
    pub async fn call(&self, job: Job) -> Option<Outcome> {
        let routes = self
            .clone()
            .finish()
            .expect("routes are checked against each other when they are added");
        let route = routes.find_or_fallback(job.key())?;
        Some(route.handler.call(job.on_route(route.names.clone())).await)
    }

    /// The form that workers and rehearsals use; makes the endpoints.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRoute`] if the routes do not compile together.
    pub(crate) fn finish(self) -> Result<Routes> {
        Routes::new(self.routes, self.fallback)
    }
}

impl<S> PendingRoute<S> {
    /// A pending route whose endpoint is not yet made.
    fn new(pattern: Pattern, route: Route<S>) -> Self {
        PendingRoute {
            pattern,
            route,
            endpoint: Arc::default(),
        }
    }

    /// The pattern and the priority, from which a table is made.
    fn ranked(&self) -> (Pattern, i32) {
        (self.pattern.clone(), self.route.options.priority)
    }

    /// Whether only the order of registration could tell which of the two owns a key.
    fn clashes(&self, other: &Self) -> bool {
        self.route.options.priority == other.route.options.priority
            && routing::clash(&self.pattern, &other.pattern)
    }
}

impl PendingRoute<()> {
    /// The endpoint, made at the first call.
    fn endpoint(&self) -> &Endpoint {
        self.endpoint.get_or_init(|| self.route.to_endpoint())
    }
}

/// The value, or a panic with the error's text at the line of the outermost caller.
#[track_caller]
fn or_panic<T>(result: Result<T>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("{error}"),
    }
}

impl<S: Send + Sync + 'static> Default for Router<S> {
    fn default() -> Self {
        Router::new()
    }
}

// By hand, because the state itself need not be `Clone`.
impl<S> Clone for Router<S> {
    fn clone(&self) -> Self {
        Router {
            routes: self.routes.clone(),
            fallback: self.fallback.clone(),
            table: self.table.clone(),
        }
    }
}

/// A router whose handlers have their state, so that it can run: a [`Router`] without a parameter,
/// as [`with_state`](Router::with_state) returns it. [`Worker::new`](crate::Worker::new) takes it.
#[diagnostic::on_unimplemented(
    message = "the handlers of this `{Self}` have no state yet",
    label = "call `.with_state(…)` on it first",
    note = "`Router<S>` is a router whose handlers still need a state `S`; a worker takes a \
            `Router`"
)]
pub trait IntoRouter {
    /// The router itself.
    fn into_router(self) -> Router;
}

impl IntoRouter for Router {
    fn into_router(self) -> Router {
        self
    }
}

impl<S> Clone for PendingRoute<S> {
    fn clone(&self) -> Self {
        PendingRoute {
            pattern: self.pattern.clone(),
            route: self.route.clone(),
            endpoint: self.endpoint.clone(),
        }
    }
}

impl<S> fmt::Debug for Router<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let routes = self.routes.iter();
        let mut map = f.debug_map();
        map.entries(routes.map(|it| (it.pattern.as_str(), &it.route)));
        if let Some(fallback) = &self.fallback {
            map.entry(&"fallback", &fallback.route);
        }
        map.finish()
    }
}
