//! Tests with layers of the tower ecosystem, unchanged.

use std::convert::Infallible;
use std::future::{Ready, pending, ready};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::time::Instant;
use tower::buffer::BufferLayer;
use tower::limit::{ConcurrencyLimitLayer, GlobalConcurrencyLimitLayer, RateLimitLayer};
use tower::retry::{Policy, RetryLayer};
use tower::timeout::TimeoutLayer;
use tower::util::{MapRequestLayer, MapResultLayer};
use tower::{BoxError, ServiceBuilder, service_fn};

use super::*;
use crate::{IntoOutcome, State};

const SECOND: Duration = Duration::from_secs(1);

async fn call(router: &Router, id: &str) -> Outcome {
    let job = Job::sample(format!("a:b:{id}:1")).build();
    router.call(job).await.expect("a route matches")
}

fn error(outcome: Outcome) -> String {
    match outcome {
        Outcome::Retry { after: None, error } => error.to_string(),
        other => panic!("{other:?} is no failure"),
    }
}

/// A router of these two kinds, whose handler it calls with the number of calls so far.
fn counting(kinds: &[&str]) -> (Router<Arc<AtomicUsize>>, Arc<AtomicUsize>) {
    async fn count(State(calls): State<Arc<AtomicUsize>>) {
        calls.fetch_add(1, Ordering::Relaxed);
    }
    let routes = kinds.iter().map(|kind| format!("a:b:{kind}:*"));
    let router = routes.fold(Router::new(), |router, it| router.route(&it, count));
    (router, Arc::default())
}

#[tokio::test(start_paused = true)]
async fn a_timeout_is_a_failure() {
    let router = Router::new()
        .route("a:b:slow:*", async || pending::<()>().await)
        .route("a:b:fast:*", done)
        .layer(TimeoutLayer::new(SECOND))
        .route("a:b:later:*", async || tokio::time::sleep(2 * SECOND).await);
    assert_eq!(error(call(&router, "slow").await), "request timed out");
    assert_eq!(call(&router, "fast").await, Outcome::Done);
    assert_eq!(call(&router, "later").await, Outcome::Done);
}

#[tokio::test(start_paused = true)]
async fn a_rate_limit_counts_for_each_route_and_over_clones() {
    let (router, calls) = counting(&["x", "y"]);
    let router = router
        .layer(RateLimitLayer::new(2, 10 * SECOND))
        .with_state(calls.clone());
    let start = Instant::now();
    for _ in 0..2 {
        call(&router, "x").await;
        call(&router.clone(), "y").await;
    }
    assert_eq!(start.elapsed(), Duration::ZERO);
    call(&router.clone(), "x").await;
    assert_eq!(start.elapsed(), 10 * SECOND);
    assert_eq!(calls.load(Ordering::Relaxed), 5);
}

#[tokio::test(start_paused = true)]
async fn layers_are_made_once_without_a_state_too() {
    let router = Router::new()
        .route("a:b:x:*", done)
        .layer(RateLimitLayer::new(1, SECOND));
    let start = Instant::now();
    for _ in 0..3 {
        call(&router, "x").await;
    }
    assert_eq!(start.elapsed(), 2 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn limits_of_concurrency_count_runs() {
    async fn nap() {
        tokio::time::sleep(SECOND).await;
    }
    let each = Router::new()
        .route("a:b:x:*", nap)
        .route("a:b:y:*", nap)
        .layer(ConcurrencyLimitLayer::new(1));
    let global = Router::new()
        .route("a:b:x:*", nap)
        .route("a:b:y:*", nap)
        .layer(GlobalConcurrencyLimitLayer::new(1));
    let start = Instant::now();
    tokio::join!(call(&each, "x"), call(&each, "y"));
    assert_eq!(start.elapsed(), SECOND);
    tokio::join!(call(&each, "x"), call(&each, "x"));
    assert_eq!(start.elapsed(), 3 * SECOND);
    tokio::join!(call(&global, "x"), call(&global, "y"));
    assert_eq!(start.elapsed(), 5 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn a_service_runs_jobs_at_the_same_time() {
    let nap = service_fn(async |_: Job| {
        tokio::time::sleep(SECOND).await;
        Ok::<(), Infallible>(())
    });
    let router = Router::new().route_service("a:b:x:*", nap);
    let start = Instant::now();
    tokio::join!(call(&router, "x"), call(&router, "x"));
    assert_eq!(start.elapsed(), SECOND);
}

#[tokio::test]
async fn a_dropped_waiting_job_holds_up_no_other() {
    let router = Router::new()
        .route("a:b:x:*", async || tokio::task::yield_now().await)
        .layer(ConcurrencyLimitLayer::new(1));
    let mut first = Box::pin(call(&router, "x"));
    assert!(futures_util::poll!(&mut first).is_pending());
    let mut second = Box::pin(call(&router, "x"));
    assert!(futures_util::poll!(&mut second).is_pending());
    drop(second);
    assert_eq!(first.await, Outcome::Done);
    assert_eq!(call(&router, "x").await, Outcome::Done);
}

#[tokio::test]
async fn a_shed_job_is_a_failure() {
    let router = Router::new()
        .route("a:b:x:*", async || pending::<()>().await)
        .layer(ServiceBuilder::new().load_shed().concurrency_limit(1));
    let mut first = Box::pin(call(&router, "x"));
    assert!(futures_util::poll!(&mut first).is_pending());
    assert_eq!(error(call(&router, "x").await), "service overloaded");
}

#[tokio::test]
async fn layers_can_change_jobs_and_outcomes() {
    async fn fail(job: Job) -> Outcome {
        Outcome::retry(job.payload().len().to_string())
    }
    let longer = |_: Job| Job::sample("a:b:x:1").raw_payload("12345").build();
    let measure = |result: Result<Outcome, Infallible>| match result {
        Ok(Outcome::Retry { error, .. }) => Err(BoxError::from(format!("length {error}"))),
        other => Ok(other.into_outcome()),
    };
    let router = Router::new()
        .route("a:b:x:*", fail)
        .layer(MapRequestLayer::new(longer))
        .layer(MapResultLayer::new(measure));
    assert_eq!(error(call(&router, "x").await), "length 5");
}

#[tokio::test]
async fn a_buffer_is_made_on_the_runtime_of_the_worker() {
    let (router, calls) = counting(&["x"]);
    let router = router.layer(BufferLayer::new(4)).with_state(calls.clone());
    assert_eq!(call(&router, "x").await, Outcome::Done);
    assert_eq!(calls.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_layer_can_retry_within_the_run() {
    #[derive(Clone)]
    struct Twice(bool);
    impl Policy<Job, Outcome, Infallible> for Twice {
        type Future = Ready<()>;
        fn retry(
            &mut self,
            _: &mut Job,
            result: &mut Result<Outcome, Infallible>,
        ) -> Option<Ready<()>> {
            let failed = matches!(result, Ok(Outcome::Retry { .. }));
            (failed && !std::mem::replace(&mut self.0, true)).then(|| ready(()))
        }
        fn clone_request(&mut self, job: &Job) -> Option<Job> {
            Some(job.clone())
        }
    }
    let calls = Arc::new(AtomicUsize::new(0));
    let seen = calls.clone();
    let second_time_lucky = async move || match seen.fetch_add(1, Ordering::Relaxed) {
        0 => Err("no"),
        _ => Ok(()),
    };
    let router = Router::new().route(
        "a:b:x:*",
        second_time_lucky.layer(RetryLayer::new(Twice(false))),
    );
    assert_eq!(call(&router, "x").await, Outcome::Done);
    assert_eq!(calls.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn the_last_layer_is_the_outermost_for_the_fallback_too() {
    let order: Arc<Mutex<Vec<&str>>> = Arc::default();
    let note = |what: &'static str| {
        let order = order.clone();
        MapRequestLayer::new(move |job: Job| {
            order.lock().unwrap().push(what);
            job
        })
    };
    let router = Router::new()
        .route("a:b:x:*", done.layer(note("handler")))
        .fallback(done)
        .layer(note("inner"))
        .layer(note("outer"));
    call(&router, "x").await;
    assert_eq!(*order.lock().unwrap(), ["outer", "inner", "handler"]);
    order.lock().unwrap().clear();
    call(&router, "y").await;
    assert_eq!(*order.lock().unwrap(), ["outer", "inner"]);
}

#[tokio::test]
async fn a_service_that_is_never_ready_fails_its_jobs() {
    let broken = ServiceBuilder::new()
        .filter(|_: Job| Err::<Job, BoxError>("closed".into()))
        .service_fn(async |_: Job| Ok::<(), BoxError>(()));
    let router = Router::new().route_service("a:b:x:*", broken);
    assert_eq!(error(call(&router, "x").await), "closed");
}
