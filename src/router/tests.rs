mod layers;

use std::time::Duration;

use super::*;
use crate::key::IntoJobKey;
use crate::retry::RetryPolicy;
use crate::routing::Coverage;

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
fn mistakes_are_errors_with_a_remedy() {
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
    let (kind, text) = fault(router.clone().try_route("a:b:d:*", done.payload_limit(0)));
    assert_eq!(kind, ErrorKind::InvalidSetting);
    assert!(text.contains("`payload_limit` must be from 1 byte"));
    let (kind, text) = fault(router.try_route("a:b:d:*", done.concurrency(0)));
    assert_eq!(kind, ErrorKind::InvalidSetting);
    assert!(text.contains("`concurrency` is 0"));
}

#[test]
fn the_limit_of_a_route_is_that_of_whole_kinds() {
    let (three, four) = (Limit::new().concurrency(3), Limit::new().concurrency(4));
    let app: Router = Router::new()
        .route("a:b:c:{id}", done.limit(three.clone()))
        .route("a:b:{biz}:*", done.limit(four.clone()))
        .route("c:*:*:*", done.limit(four.clone()))
        .route("d:e:f:{id:[0-9]+}", done.limit(three.clone()))
        .route("d:e:f:{id}", done.limit(three.clone()))
        .route("d:e:g:{id}", done);
    let limits = app.finish().unwrap().limits().unwrap();
    let limits: Vec<_> = limits
        .into_iter()
        .map(|(scope, limit)| (scope.to_string(), limit))
        .collect();
    let of = |scope: &str, limit: &Limit| (scope.to_owned(), limit.clone());
    assert_eq!(
        limits,
        [
            of("a:b:", &four),
            of("a:b:c", &three),
            of("c:", &four),
            of("d:e:f", &three)
        ]
    );
    for (pattern, limit, named) in [
        ("*:b:c:*", &three, "app:module:{biz}:{id}"),
        ("a:{m:x|y}:*:*", &three, "app:module:{biz}:{id}"),
        ("a:*:c:*", &three, "app:module:{biz}:{id}"),
        ("a:b:c:*", &Limit::new(), "`limit` is wrong"),
    ] {
        let refused = Router::<()>::new().try_route(pattern, done.limit(limit.clone()));
        let error = refused.unwrap_err().to_string();
        assert!(error.contains(pattern) && error.contains(named), "{error}");
    }
    let differ: Router = Router::new()
        .route("d:e:f:{id:[0-9]+}", done.limit(three))
        .route("d:e:f:{id}", done.limit(four));
    let error = differ.finish().unwrap().limits().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidRoute);
    assert!(error.to_string().contains("d:e:f:{id:[0-9]+}"), "{error}");
}

#[test]
#[should_panic(expected = "match the same key")]
fn a_clash_stops_the_start() {
    let _ = Router::<()>::new()
        .route("a:b:c:*", done)
        .route("a:b:c:{id}", done);
}

#[tokio::test]
async fn merged_routers_keep_options_layers_and_state() {
    let second = Duration::from_secs(1);
    let left = Router::new().route("a:b:c:*", done).with_state(7_u8);
    let right = Router::new()
        .route("a:b:d:*", buried.timeout(second))
        .fallback(done.concurrency(3));
    let router = left.merge(right);
    let call = async |key: &str| router.call(Job::sample(key).build()).await;
    assert_eq!(call("a:b:c:1").await, Some(Outcome::Done));
    assert_eq!(call("a:b:d:1").await, Some(Outcome::bury("no")));
    assert_eq!(call("x:y:z:1").await, Some(Outcome::Done));
    let routes = router.clone().finish().unwrap();
    assert_eq!(routes.routes[1].timeout, Some(second));
    assert_eq!(routes.fallback, Some(2));
    assert_eq!(routes.routes[2].concurrency, Some(3));
}

#[test]
fn merged_routers_must_not_clash() {
    let one: Router = Router::new().route("a:b:c:*", done);
    let two = Router::new().route("a:b:c:{id}", done);
    let error = one.clone().try_merge(two).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidRoute);
    assert!(error.to_string().contains("a:b:c:{id}"), "{error}");
    let two = Router::new().route("a:b:c:{id}", done.priority(1));
    assert_eq!(one.merge(two).routes.len(), 2);
    let bare: Router = Router::new().fallback(done);
    let error = bare.clone().try_merge(bare).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidRoute);
    assert!(error.to_string().contains("two fallbacks"), "{error}");
}

#[test]
#[should_panic(expected = "match the same key")]
fn a_clash_of_merged_routers_stops_the_start() {
    let one: Router = Router::new().route("a:b:c:*", done);
    let _ = one.clone().merge(one);
}

#[test]
#[should_panic(expected = "there are two fallbacks")]
fn a_second_fallback_stops_the_start() {
    let _ = Router::<()>::new().fallback(done).fallback(buried);
}

#[test]
#[should_panic(expected = "the fallback: its `concurrency` is 0")]
fn options_of_the_fallback_are_checked() {
    let _ = Router::<()>::new().fallback(done.concurrency(0));
}

#[test]
fn the_fallback_is_not_in_the_table() {
    let router = Router::new().fallback(done).route("a:b:c:1", done);
    let routes = router.finish().unwrap();
    let key = |text: &str| text.into_job_key().unwrap();
    assert_eq!(routes.table.find(&key("a:b:c:2")), None);
    assert_eq!(routes.table.coverage("x:y:z"), Coverage::None);
    assert_eq!(routes.table.of_kind("a:b:c"), [0]);
    assert_eq!(routes.literal_kinds().len(), 1);
    assert_eq!(routes.fallback, Some(1));
    assert_eq!(
        routes
            .find_or_fallback(&key("x:y:z:1"))
            .unwrap()
            .pattern
            .as_str(),
        "*:*:*:*"
    );
}

#[tokio::test]
async fn a_job_of_the_fallback_has_no_named_segments() {
    let router = Router::new().fallback(async |job: Job| {
        assert_eq!(job.named_segments().count(), 0);
    });
    let job = Job::sample("a:b:c:1").build();
    assert_eq!(router.call(job).await, Some(Outcome::Done));
}
