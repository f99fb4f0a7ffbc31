//! Routes: which handler a job key belongs to.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::handler::{Endpoint, Handler, Job, Names, Outcome, Route};
use crate::key::{JobKey, Kind};
use crate::retry::RetryPolicy;
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
    routes: Vec<(Pattern, Route<S>)>,
}

/// A finished router, as the worker uses it.
pub(crate) struct Routes {
    pub(crate) table: RouteTable,
    /// In the order of the table.
    pub(crate) routes: Vec<RouteEntry>,
    /// Which of them, the last, takes what no other matches.
    pub(crate) fallback: Option<usize>,
}

/// One route of a finished router.
pub(crate) struct RouteEntry {
    pub(crate) pattern: Pattern,
    pub(crate) handler: Endpoint,
    pub(crate) retry: Option<RetryPolicy>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) concurrency: Option<usize>,
    pub(crate) names: Names,
    pub(crate) priority: i32,
}

impl<S: Send + Sync + 'static> Router<S> {
    /// A router without routes.
    pub const fn new() -> Self {
        Router { routes: Vec::new() }
    }

    /// Adds a route.
    ///
    /// # Panics
    /// At the caller's line, if the pattern is malformed, if another route matches the same
    /// keys, or if an option of the route is out of range. For patterns that are not
    /// written in the program there is [`try_route`](Self::try_route).
    #[track_caller]
    pub fn route<M>(self, pattern: &str, handler: impl Handler<M, S>) -> Self {
        match self.try_route(pattern, handler) {
            Ok(router) => router,
            Err(error) => panic!("{error}"),
        }
    }

    /// Adds a route whose pattern comes from outside, such as a configuration.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRoute`](crate::ErrorKind::InvalidRoute) if the pattern is
    /// malformed, or if another route of the same priority matches the same keys;
    /// [`ErrorKind::InvalidSetting`](crate::ErrorKind::InvalidSetting) if an option of the
    /// route is out of range.
    pub fn try_route<M>(mut self, pattern: &str, handler: impl Handler<M, S>) -> Result<Self> {
        let pattern = Pattern::parse(pattern)?;
        let route = handler.into_route();
        route.options.check(pattern.as_str())?;
        let rival = self.routes.iter().find(|(known, other)| {
            other.options.priority == route.options.priority && routing::clash(known, &pattern)
        });
        if let Some((known, _)) = rival {
            return Err(routing::clash_error(known, &pattern));
        }
        self.routes.push((pattern, route));
        Ok(self)
    }

    /// Gives the handlers their state. Routes that need another state, or none, can be
    /// added afterwards.
    pub fn with_state(self, state: S) -> Router {
        let state = Arc::new(state);
        let bound =
            |(pattern, route): (Pattern, Route<S>)| (pattern, route.with_state(state.clone()));
        Router {
            routes: self.routes.into_iter().map(bound).collect(),
        }
    }
}

impl Router {
    /// Runs one job as a worker would, but for timeout, limits and panics: for the tests of
    /// handlers and routes. `None` if no route matches its key.
    pub async fn call(&self, job: Job) -> Option<Outcome> {
        let routes = self
            .clone()
            .finish()
            .expect("routes are checked against each other when they are added");
        let route = routes.find(job.key())?;
        Some(route.handler.call(job.on_route(route.names.clone())).await)
    }

    /// # Errors
    /// [`ErrorKind::InvalidRoute`](crate::ErrorKind::InvalidRoute) if the routes do not make
    /// a table.
    pub(crate) fn finish(self) -> Result<Routes> {
        let patterns = self.routes.iter();
        let table = patterns.map(|(pattern, route)| (pattern.clone(), route.options.priority));
        Ok(Routes {
            table: RouteTable::new(table.collect())?,
            routes: self.routes.into_iter().map(RouteEntry::new).collect(),
            fallback: None,
        })
    }
}

impl Routes {
    /// How many of the routes are in the table: all but the fallback.
    pub(crate) fn of_table(&self) -> usize {
        self.fallback.unwrap_or(self.routes.len())
    }

    /// The kinds that routes name in full, each once.
    pub(crate) fn literal_kinds(&self) -> BTreeSet<Kind> {
        let patterns = self.routes.iter().map(|route| &route.pattern);
        patterns.filter_map(Pattern::literal_kind).collect()
    }

    /// The route that a key belongs to.
    pub(crate) fn find(&self, key: &JobKey) -> Option<&RouteEntry> {
        self.routes.get(self.table.find(key)?)
    }
}

impl RouteEntry {
    fn new((pattern, route): (Pattern, Route<()>)) -> Self {
        RouteEntry {
            names: pattern
                .names()
                .map(|(name, at)| (name.into(), at))
                .collect(),
            pattern,
            retry: route.options.retry.clone(),
            timeout: route.options.timeout,
            concurrency: route.options.concurrency,
            priority: route.options.priority,
            handler: route.into_endpoint(),
        }
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
        }
    }
}

impl<S> fmt::Debug for Router<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let routes = self.routes.iter();
        f.debug_map()
            .entries(routes.map(|(pattern, route)| (pattern.as_str(), route)))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    async fn done() {}

    async fn buried() -> Outcome {
        Outcome::bury("no")
    }

    #[tokio::test]
    async fn a_key_finds_its_route_or_none() {
        let router = Router::new()
            .route("a:*:c:{id}", done)
            .with_state(7_u8)
            .route("a:b:c:{id}", buried)
            .route("a:b:*:1", done.priority(1));
        let call = async |key: &str| router.call(Job::sample(key).build()).await;
        assert_eq!(call("a:x:c:1").await, Some(Outcome::Done));
        assert_eq!(call("a:b:c:2").await, Some(Outcome::bury("no")));
        assert_eq!(call("a:b:c:1").await, Some(Outcome::Done));
        assert_eq!(call("z:b:c:1").await, None);
    }

    #[test]
    fn options_reach_the_route_in_any_order() {
        let policy = RetryPolicy::none();
        let second = Duration::from_secs(1);
        let routes = Router::new()
            .route("a:b:c:{id}", done.timeout(second).retry(policy.clone()))
            .route("a:b:d:*", done.priority(2).concurrency(3).timeout(second))
            .route("a:b:e:*", done)
            .finish()
            .unwrap()
            .routes;
        let options = |at: usize| {
            let RouteEntry {
                retry,
                timeout,
                concurrency,
                ..
            } = &routes[at];
            (retry.clone(), *timeout, *concurrency)
        };
        assert_eq!(options(0), (Some(policy), Some(second), None));
        assert_eq!(options(1), (None, Some(second), Some(3)));
        assert_eq!(options(2), (None, None, None));
        assert_eq!(*routes[0].names, [("id".into(), 3)]);
        assert_eq!(routes[1].pattern.as_str(), "a:b:d:*");
    }

    #[test]
    fn mistakes_are_errors_that_name_the_remedy() {
        let fault = |result: Result<Router>| {
            let error = result.unwrap_err();
            (error.kind(), error.to_string())
        };
        let router: Router = Router::new().route("a:b:c:{id}", done);
        let (kind, _) = fault(router.clone().try_route("a:b", done));
        assert_eq!(kind, ErrorKind::InvalidRoute);
        let (kind, text) = fault(router.clone().try_route("a:b:c:*", done));
        assert_eq!(kind, ErrorKind::InvalidRoute);
        assert!(text.contains("a:b:c:{id}") && text.contains("a:b:c:*"));
        assert!(
            router
                .clone()
                .try_route("a:b:c:*", done.priority(-1))
                .is_ok()
        );
        let (kind, text) = fault(
            router
                .clone()
                .try_route("a:b:d:*", done.timeout(Duration::ZERO)),
        );
        assert_eq!(kind, ErrorKind::InvalidSetting);
        assert!(text.starts_with("route `a:b:d:*`: its `timeout` is zero"));
        let (kind, text) = fault(router.try_route("a:b:d:*", done.concurrency(0)));
        assert_eq!(kind, ErrorKind::InvalidSetting);
        assert!(text.contains("`concurrency` is 0"));
    }

    #[test]
    #[should_panic(expected = "match the same key")]
    fn a_clash_stops_the_start() {
        let _ = Router::<()>::new()
            .route("a:b:c:*", done)
            .route("a:b:c:{id}", done);
    }
}
