//! Routes: which handler a job key belongs to.

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
use crate::outcome::Outcome;
use crate::routing::{self, Pattern, RouteTable};

/// Which handler runs which job.
///
/// A pattern has four segments, as a job key has. Each is literal text, `{name:regex}`, which
/// matches what the regex matches whole, `{name}`, which matches anything, or `*`, which does
/// too and gives it no name. Of several routes that match a key, the one with the highest
/// [`priority`](Handler::priority) takes it; among equals, from left to right, a literal comes
/// before a regex and a regex before anything.
///
/// `S` is the state that its handlers need and that
/// [`with_state`](Self::with_state) provides; handlers that need none can do without.
/// [`Worker::new`](crate::Worker::new) takes a `Router<()>`. If the compiler expected that, and
/// found a `Router<Db>`, then `.with_state(db)` is missing.
///
/// If the compiler says that a function is no handler,
/// [`#[keyfall::debug_handler]`](crate::debug_handler) above it makes it say why.
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
    /// Of these routes, made when it is first asked for.
    table: OnceLock<Arc<RouteTable>>,
}

/// A route and what it takes.
struct PendingRoute<S> {
    pattern: Pattern,
    route: Route<S>,
    /// Made once, so that all clones of a router count in the same layers.
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
    /// At the caller's line, if the pattern is malformed, if another route matches the same
    /// keys, or if an option of the route is out of range. For patterns that are not
    /// written in the program there is [`try_route`](Self::try_route).
    #[track_caller]
    pub fn route<M>(self, pattern: &str, handler: impl Handler<M, S>) -> Self {
        or_panic(self.try_route(pattern, handler))
    }

    /// Adds a route whose pattern comes from outside, such as a configuration.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRoute`] if the pattern is malformed, or if another route of the
    /// same priority matches the same keys; [`ErrorKind::InvalidSetting`] if an option of the
    /// route is out of range.
    pub fn try_route<M>(self, pattern: &str, handler: impl Handler<M, S>) -> Result<Self> {
        let pattern = Pattern::parse(pattern)?;
        let route = handler.into_route();
        route.options.check(format_args!("route `{pattern}`"))?;
        self.with(PendingRoute::new(pattern, route))
    }

    /// Adds a route that hands its jobs to a tower service. [`Route::from_service`] gives it
    /// options, too.
    ///
    /// Its response is anything that a handler may return, and its error is
    /// [`Outcome::retry`]. It need not be `Clone`: jobs take turns in asking whether it is
    /// ready, and what it does with them goes on at the same time.
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

    /// Runs the jobs that no route of this router, and no route of any other live instance,
    /// matches. Without a fallback they stay pending and are reported.
    ///
    /// Its options are set as those of any handler; a priority means nothing here, for it
    /// always comes last. There are no named segments.
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
    /// At the caller's line, if there is a fallback already, or if one of its options is out
    /// of range.
    #[track_caller]
    pub fn fallback<M>(self, handler: impl Handler<M, S>) -> Self {
        let pattern = or_panic(Pattern::parse("*:*:*:*"));
        let route = handler.into_route();
        or_panic(route.options.check("the fallback"));
        or_panic(self.with_fallback(Some(PendingRoute::new(pattern, route))))
    }

    /// Adds all routes of another router, each with its options and layers, and its fallback.
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
    /// At the caller's line, if a route of one matches the same keys as a route of the
    /// other, or if both have a fallback. See [`try_merge`](Self::try_merge).
    #[track_caller]
    pub fn merge(self, other: Self) -> Self {
        or_panic(self.try_merge(other))
    }

    /// Adds all routes of another router, where patterns come from outside.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRoute`] if a route of one matches the same keys as a route of the
    /// other with the same priority, or if both have a fallback.
    pub fn try_merge(self, other: Self) -> Result<Self> {
        let router = self.with_fallback(other.fallback)?;
        other.routes.into_iter().try_fold(router, Router::with)
    }

    /// Wraps each route that was added so far, and the fallback, in a layer of the tower
    /// ecosystem. Routes that are added afterwards are not wrapped; the layer that was added
    /// last is the outermost.
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
    /// - Each route gets a clone of the layer. What a layer counts, such as a rate limit, it
    ///   therefore counts for each route, unless its clones share the count, as those of
    ///   `GlobalConcurrencyLimitLayer` do. Clones of the router share their layers.
    /// - An error of a layer is [`Outcome::retry`]: the run has failed, and the job runs again
    ///   as its policy says. What a layer answers may be anything that a handler may return.
    /// - A job that waits for a layer, such as a rate limit, has been claimed: it holds a slot
    ///   of the worker, and its time counts towards the timeout of its route. Where a number of
    ///   jobs at a time is what is meant, [`Handler::concurrency`] leaves the others unclaimed.
    /// - Each call makes a service that is always ready and lets its jobs wait inside. A layer
    ///   that looks at whether another is ready, as `LoadShedLayer` does, goes with it into one
    ///   call: `.layer(ServiceBuilder::new().load_shed().concurrency_limit(8))`.
    /// - A layer that needs a tokio runtime when it is made, such as `BufferLayer`, needs it in
    ///   [`with_state`](Self::with_state) or, if the state is `()`, when the worker runs.
    pub fn layer<L>(self, layer: L) -> Self
    where
        L: Layer<Endpoint> + Clone + Send + Sync + 'static,
        L::Service: JobService,
    {
        self.map(|route| route.layered(layer.clone()))
    }

    /// The pattern of the route that a job belongs to. `None` if no route matches its key, so that
    /// only a fallback could take it.
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

    /// Gives the handlers their state. Routes that need another state, or none, can be
    /// added afterwards.
    pub fn with_state(self, state: S) -> Router {
        let state = Arc::new(state);
        self.map(|route| route.with_state(state.clone()))
    }

    /// # Errors
    /// [`ErrorKind::InvalidRoute`] if a known route clashes with it.
    fn with(mut self, entry: PendingRoute<S>) -> Result<Self> {
        if let Some(rival) = self.routes.iter().find(|known| known.clashes(&entry)) {
            return Err(routing::clash_error(&rival.pattern, &entry.pattern));
        }
        self.routes.push(entry);
        self.table = OnceLock::new();
        Ok(self)
    }

    /// # Errors
    /// [`ErrorKind::InvalidRoute`] if there are two.
    fn with_fallback(mut self, fallback: Option<PendingRoute<S>>) -> Result<Self> {
        if self.fallback.is_some() && fallback.is_some() {
            return Err(Error::new(
                ErrorKind::InvalidRoute,
                "there are two fallbacks, and neither comes first: leave one out; of routers \
                 that are merged, one may have a fallback",
            ));
        }
        self.fallback = fallback.or(self.fallback);
        Ok(self)
    }

    fn map<T>(self, change: impl Fn(Route<S>) -> Route<T>) -> Router<T> {
        let change = |entry: PendingRoute<S>| PendingRoute::new(entry.pattern, change(entry.route));
        Router {
            routes: self.routes.into_iter().map(change).collect(),
            fallback: self.fallback.map(change),
            table: self.table,
        }
    }
}

impl Router {
    /// Runs one job as a worker would, but for timeout, limits and panics: for the tests of
    /// handlers and routes. `None` if no route matches its key and there is no fallback.
    ///
    /// A [`Rehearsal`](crate::testing::Rehearsal) plays what follows, too.
    pub async fn call(&self, job: Job) -> Option<Outcome> {
        let routes = self
            .clone()
            .finish()
            .expect("routes are checked against each other when they are added");
        let route = routes.find_or_fallback(job.key())?;
        Some(route.handler.call(job.on_route(route.names.clone())).await)
    }

    /// # Errors
    /// [`ErrorKind::InvalidRoute`] if the routes do not make a table.
    pub(crate) fn finish(self) -> Result<Routes> {
        Routes::new(self.routes, self.fallback)
    }
}

impl<S> PendingRoute<S> {
    fn new(pattern: Pattern, route: Route<S>) -> Self {
        PendingRoute {
            pattern,
            route,
            endpoint: Arc::default(),
        }
    }

    /// As a table takes it.
    fn ranked(&self) -> (Pattern, i32) {
        (self.pattern.clone(), self.route.options.priority)
    }

    /// Only their order of registration could tell which of the two owns a key.
    fn clashes(&self, other: &Self) -> bool {
        self.route.options.priority == other.route.options.priority
            && routing::clash(&self.pattern, &other.pattern)
    }
}

impl PendingRoute<()> {
    fn endpoint(&self) -> &Endpoint {
        self.endpoint.get_or_init(|| self.route.to_endpoint())
    }
}

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

/// A router whose handlers have their state, which is what runs: a [`Router`] without a parameter, as
/// [`with_state`](Router::with_state) returns it.
#[diagnostic::on_unimplemented(
    message = "the handlers of this `{Self}` have no state yet",
    label = "call `.with_state(…)` on it first",
    note = "`Router<S>` is a router whose handlers still wait for an `S`; a worker takes a `Router`"
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
