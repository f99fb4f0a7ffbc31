use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;

use super::*;
use crate::outcome::Outcome;
use crate::{Headers, Router};

/// The outcome of a job with key `shop:7:notice:42` under a handler on this route.
async fn run<M, S>(pattern: &str, state: S, handler: impl Handler<M, S>) -> Outcome
where
    S: Send + Sync + 'static,
{
    let job = Job::sample("shop:7:notice:42").payload(&"hello").build();
    let router = Router::new().route(pattern, handler).with_state(state);
    router.call(job).await.expect("the route matches")
}

fn buried(outcome: Outcome) -> String {
    match outcome {
        Outcome::Bury { reason } => reason.to_string(),
        other => panic!("{other:?} is no burial"),
    }
}

const ROUTE: &str = "{app}:{tenant}:notice:{order}";
const ONE: &str = "shop:*:notice:{order}";

#[tokio::test]
async fn segments_fit_values_tuples_structs_and_maps() {
    #[derive(Deserialize)]
    struct Keyed {
        order: u64,
        app: String,
    }
    #[derive(Deserialize, Debug, PartialEq)]
    struct Order(u64);
    #[derive(Deserialize, PartialEq)]
    enum App {
        #[serde(rename = "shop")]
        Shop,
    }

    assert_eq!(
        run(ONE, (), async |Segments(n): Segments<u64>| assert_eq!(
            n,
            42
        ))
        .await,
        Outcome::Done
    );
    run(ONE, (), async |Segments(n): Segments<Order>| {
        assert_eq!(n, Order(42))
    })
    .await;
    run(ONE, (), async |Segments(n): Segments<Option<(u8,)>>| {
        assert_eq!(n, Some((42,)))
    })
    .await;
    run(
        ROUTE,
        (),
        async |Segments(all): Segments<(App, u8, String)>| {
            assert!(all == (App::Shop, 7, "42".to_owned()));
        },
    )
    .await;
    run(ROUTE, (), async |Segments(all): Segments<Keyed>| {
        assert_eq!((all.app.as_str(), all.order), ("shop", 42));
    })
    .await;
    run(
        ROUTE,
        (),
        async |Segments(all): Segments<HashMap<String, String>>| {
            assert_eq!((all.len(), all["tenant"].as_str()), (3, "7"));
        },
    )
    .await;
    run(ROUTE, (), async |Segments(all): Segments<Vec<String>>| {
        assert_eq!(all, ["shop", "7", "42"]);
    })
    .await;
    run(ONE, (), async |job: Job| {
        assert_eq!(
            (job.segment("order"), job.segment("app")),
            (Some("42"), None)
        );
    })
    .await;
}

#[tokio::test]
async fn a_segment_that_does_not_fit_is_named() {
    #[derive(Deserialize, Debug)]
    struct Absent {
        #[expect(dead_code)]
        user: String,
    }
    #[derive(Deserialize, Debug)]
    enum App {
        Mail,
    }

    let fault = buried(run(ROUTE, (), async |_: Segments<(u8, u8, u8)>| {}).await);
    assert_eq!(fault, "segment `app`: `shop` is not a valid u8");
    let fault = buried(run(ROUTE, (), async |_: Segments<HashMap<String, f32>>| {}).await);
    assert_eq!(fault, "segment `app`: `shop` is not a valid f32");
    let fault = buried(run(ONE, (), async |_: Segments<bool>| {}).await);
    assert_eq!(fault, "segment `order`: `42` is not a valid bool");
    let fault = buried(run(ONE, (), async |_: Segments<char>| {}).await);
    assert!(
        fault.starts_with("segment `order`: invalid value"),
        "{fault}"
    );
    let fault = buried(run("{app}:*:*:*", (), async |_: Segments<App>| {}).await);
    assert!(
        fault.starts_with("segment `app`: unknown variant `shop`"),
        "{fault}"
    );
    let fault = buried(run(ONE, (), async |_: Segments<(Vec<u8>,)>| {}).await);
    assert!(
        fault.starts_with("segment `order`: invalid type"),
        "{fault}"
    );
    let fault = buried(run(ONE, (), async |_: Segments<Absent>| {}).await);
    assert!(fault.contains("`{user}` in the route"), "{fault}");
    let fault = buried(run(ROUTE, (), async |_: Segments<u64>| {}).await);
    assert!(
        fault.contains("names 3, `app`, `tenant`, `order`"),
        "{fault}"
    );
    let fault = buried(run(ONE, (), async |_: Segments<(u8, u8)>| {}).await);
    assert!(
        fault.contains("takes 2 segments, but its route names 1, `order`"),
        "{fault}"
    );
    let fault = buried(run("*:*:*:*", (), async |_: Segments<u8>| {}).await);
    assert!(fault.contains("its route names none"), "{fault}");
}

#[tokio::test]
async fn a_payload_that_does_not_decode_is_buried_with_the_path() {
    #[derive(Deserialize)]
    struct Line {
        #[expect(dead_code)]
        price: u64,
    }
    #[derive(Deserialize)]
    struct Order {
        #[expect(dead_code)]
        lines: Vec<Line>,
    }
    async fn take(_: Json<Order>) {}

    let router = Router::new().route("a:b:c:*", take);
    let call = async |payload: &'static str| {
        let job = Job::sample("a:b:c:1").raw_payload(payload).build();
        router.call(job).await.unwrap()
    };
    assert_eq!(call(r#"{"lines": [{"price": 1}]}"#).await, Outcome::Done);
    let fault = buried(call(r#"{"lines": [{"price": 1}, {"price": "2"}]}"#).await);
    assert!(
        fault.starts_with("the payload does not decode, at `lines[1].price`: invalid type: string"),
        "{fault}"
    );
    assert!(buried(call(r#"{"lines": []} x"#).await).contains("trailing characters"));
    assert!(buried(call("").await).starts_with("the payload does not decode: EOF"));
}

#[tokio::test]
async fn a_handler_takes_every_extractor_and_eight_arguments() {
    #[derive(Clone)]
    struct App {
        limit: u32,
    }
    impl FromRef<App> for u32 {
        fn from_ref(app: &App) -> u32 {
            app.limit
        }
    }
    #[allow(clippy::too_many_arguments)]
    async fn all(
        Json(text): Json<String>,
        Payload(bytes): Payload,
        Segments(order): Segments<u8>,
        State(app): State<App>,
        State(limit): State<u32>,
        job: Job,
        headers: Headers,
        stop: CancelSignal,
    ) -> Result<Outcome, anyhow::Error> {
        assert_eq!(
            (text.as_str(), bytes),
            ("hello", Bytes::from_static(b"\"hello\""))
        );
        assert_eq!((order, app.limit, limit), (42, 9, 9));
        assert_eq!((job.attempt(), headers.is_empty()), (1, true));
        assert!(!stop.is_raised());
        anyhow::bail!("the end")
    }

    assert_eq!(
        run(ONE, App { limit: 9 }, all).await,
        Outcome::retry("the end")
    );
}

#[tokio::test]
async fn a_custom_extractor_decides_how_the_job_ends() {
    struct Loaded;
    impl FromJob<bool> for Loaded {
        async fn from_job(_: &Job, gone: &bool) -> Result<Self, Rejection> {
            tokio::task::yield_now().await;
            if *gone {
                return Err(Rejection::bury("there is no such row"));
            }
            Err(std::io::Error::other("the database is away"))?
        }
    }
    async fn take(_: Loaded) {
        unreachable!()
    }

    assert_eq!(
        run(ONE, true, take).await,
        Outcome::bury("there is no such row")
    );
    assert_eq!(
        run(ONE, false, take).await,
        Outcome::retry("the database is away")
    );
    let later = Rejection::retry_after(Duration::from_secs(5), "soon").into_outcome();
    assert_eq!(later, Outcome::retry_after(Duration::from_secs(5), "soon"));
}

#[tokio::test]
async fn return_values_become_outcomes() {
    let policy = Outcome::retry("no");
    assert_eq!(run(ONE, (), async || {}).await, Outcome::Done);
    assert_eq!(
        run(ONE, (), async || Outcome::again()).await,
        Outcome::again()
    );
    assert_eq!(run(ONE, (), async || Err::<(), _>("no")).await, policy);
    assert_eq!(
        run(ONE, (), async || Err::<(), _>("no".to_owned())).await,
        policy
    );
    assert_eq!(
        run(ONE, (), async || Ok::<_, anyhow::Error>(())).await,
        Outcome::Done
    );
    let nested = run(ONE, (), async || Ok::<_, String>(Err::<(), _>("no"))).await;
    assert_eq!(nested, policy);
}

#[tokio::test]
async fn a_sample_has_the_given_fields() {
    let signal = CancelSignal::new();
    let then = std::time::SystemTime::UNIX_EPOCH;
    let sample = Job::sample("a:b:c:1")
        .attempt(3)
        .header("tenant", "acme")
        .due(then)
        .lag(Duration::from_millis(5))
        .first_scheduled_at(then)
        .fence(8)
        .cancellation(signal.clone());
    let job = sample.clone().raw_payload(&b"x"[..]).build();
    assert_eq!(
        (job.attempt(), job.fence(), job.lag().as_millis()),
        (3, 8, 5)
    );
    assert_eq!((job.due(), job.first_scheduled_at()), (then, then));
    assert_eq!(job.headers().get("tenant"), Some("acme"));
    assert_eq!(
        (job.payload().len(), sample.build().payload().len()),
        (1, 0)
    );
    assert!(!job.cancellation().is_raised());
    signal.raise();
    job.cancellation().raised().await;
    assert!(job.cancellation().is_raised());
}

#[tokio::test]
async fn an_extractor_can_be_tested_without_a_router() {
    let sample = Job::sample("a:b:c:42").route("a:b:{biz}:{id}");
    let job = sample.source(crate::Source::Pacer).build();
    let Segments(both) = Segments::<(String, u8)>::from_job(&job, &()).await.unwrap();
    assert_eq!(both, ("c".into(), 42));
    assert_eq!(job.source(), crate::Source::Pacer);
}

#[tokio::test]
async fn a_pulled_job_cannot_be_accepted_when_its_lease_is_in_doubt() {
    let pull = crate::target::Pull::new();
    let kind = crate::key::Kind::parse("shop:7:notice").unwrap();
    for is_ours in [true, false] {
        let waits = pull.clone();
        let pulled = tokio::spawn(async move {
            let prefixes: [&str; 0] = [];
            waits.pull(&prefixes, 1, Duration::from_secs(60)).await
        });
        let place = loop {
            match pull.reserve(&kind, 1).pop() {
                Some(place) => break place,
                None => tokio::task::yield_now().await,
            }
        };
        let job = Job::sample("shop:7:notice:42").build();
        let (lease, length) = (job.lease().clone(), Duration::from_secs(15));
        let accepted = place.deliver(job, lease, length, move || is_ours).unwrap();
        let pulled = pulled.await.unwrap().unwrap().remove(0);
        assert_eq!(pulled.has_gone_back(), !is_ours);
        assert_eq!(pulled.accept().is_some(), is_ours);
        assert_eq!(accepted.await.is_ok(), is_ours);
    }
}
