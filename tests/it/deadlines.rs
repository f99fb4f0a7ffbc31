//! A call of several requests ends within its timeout.

use std::future::IntoFuture;
use std::time::{Duration, Instant};

use keyfall::embedded::Embedded;
use keyfall::{Client, Dropped, Handler, Job, Outcome, Result, Router};
use keyfall_testing::proxies::FreezingProxy;
use tokio::sync::mpsc::unbounded_channel;
use tokio::time::sleep;

use crate::runs::{PATIENCE, eventually};
use crate::site::{HOUR, Site};

/// The timeout of a call.
const CALL: Duration = Duration::from_secs(12);

/// The duration of the first part of a call. A second deadline would begin after it.
const FIRST: Duration = Duration::from_secs(9);

/// No call may take this long, not even on a busy machine.
const TOO_LONG: Duration = Duration::from_secs(18);

/// A job on a server behind a proxy, and a client that uses the proxy.
struct HeldUp {
    site: Site,
    proxy: FreezingProxy,
    client: Client,
    key: String,
    _server: Embedded,
}

impl HeldUp {
    async fn new(app: &str) -> Self {
        let server = Embedded::start().await.unwrap();
        let proxy = FreezingProxy::to(&server).await;
        let site = Site::at(&server.url(), app).await;
        let client = Client::builder(&proxy.url)
            .call_timeout(CALL)
            .response_timeout(PATIENCE);
        let client = client.connect().await.unwrap();
        // Now the client knows the kind, and Redis the scripts.
        let warm = site.key("warm");
        client.schedule(&warm, "").await.unwrap();
        client.schedule(&warm, "").if_absent().await.unwrap();
        client.cancel(&warm).await.unwrap();
        let key = site.key("the-one");
        HeldUp {
            site,
            proxy,
            client,
            key,
            _server: server,
        }
    }

    /// The first reply with this text comes late, and then no request about the job is answered.
    async fn hold<T: std::fmt::Debug>(
        &self,
        reply: &'static str,
        call: impl Future<Output = Result<T>>,
    ) {
        self.proxy.freeze_at(reply);
        let began = Instant::now();
        let held = async {
            eventually("the first part is answered", async || {
                self.proxy.is_frozen().then_some(())
            })
            .await;
            sleep(FIRST).await;
            self.proxy.freeze_before("the-one");
        };
        let (answer, ()) = tokio::join!(call, held);
        let took = began.elapsed();
        assert!(self.proxy.is_frozen(), "it has a second part");
        assert!(answer.unwrap_err().is_retryable());
        assert!(took < TOO_LONG, "{took:?}");
        self.proxy.thaw();
    }
}

#[tokio::test]
async fn a_conditional_schedule_has_one_deadline() {
    let stage = HeldUp::new("deadline-absent").await;
    let waits = stage.site.client.schedule(&stage.key, "").after(HOUR);
    waits.await.unwrap();
    let call = stage.client.schedule(&stage.key, "").if_absent();
    stage.hold("exists", call.into_future()).await;
    stage.site.client.cancel(&stage.key).await.unwrap();
    stage.site.assert_balanced().await;
}

#[tokio::test]
async fn a_settlement_that_reads_the_record_has_one_deadline() {
    let stage = HeldUp::new("deadline-settle").await;
    let site = &stage.site;
    let (hand_over, mut handed) = unbounded_channel();
    let handler = async move |job: Job| {
        hand_over.send(job.lease().clone()).unwrap();
        Outcome::HandedOver
    };
    let worker = site.serve(Router::new().route(&site.pattern(), handler.lease(HOUR)));
    site.client
        .schedule(&stage.key, "its record")
        .await
        .unwrap();
    let lease = handed.recv().await.unwrap();
    let failed = Outcome::retry_after(HOUR, "not today");
    let call = stage.client.settle(&lease, failed.clone());
    stage.hold("its record", call.into_future()).await;
    // A request that was not sent has no effect, and may be repeated.
    site.client.settle(&lease, failed).await.unwrap();
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_settlement_that_looks_for_the_kind_has_one_deadline() {
    let stage = HeldUp::new("deadline-kind").await;
    let site = &stage.site;
    let (hand_over, mut handed) = unbounded_channel();
    let handler = async move |job: Job| {
        hand_over.send(job.lease().clone()).unwrap();
        Outcome::HandedOver
    };
    let worker = site.serve(Router::new().route(&site.pattern(), handler.lease(HOUR)));
    site.client.schedule(&stage.key, "").await.unwrap();
    let lease = handed.recv().await.unwrap();
    // The client does not know the kind, and first asks whether it exists.
    let client = Client::builder(&stage.proxy.url)
        .call_timeout(CALL)
        .response_timeout(PATIENCE);
    let client = client.connect().await.unwrap();
    let failed = Outcome::retry_after(HOUR, "not today");
    let call = client.settle(&lease, failed.clone());
    stage.hold("ok", call.into_future()).await;
    site.client.settle(&lease, failed).await.unwrap();
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_story_has_one_deadline() {
    let stage = HeldUp::new("deadline-story").await;
    let waits = stage.site.client.schedule(&stage.key, "its record");
    waits.after(HOUR).await.unwrap();
    let call = stage.client.story(&stage.key);
    stage.hold("its record", call).await;
    stage.site.client.cancel(&stage.key).await.unwrap();
    stage.site.assert_balanced().await;
}

#[tokio::test]
async fn a_drop_of_a_kind_has_one_deadline() {
    let stage = HeldUp::new("the-one-drop").await;
    let kind = stage.site.kind();
    let call = stage.client.drop_kind(&kind);
    stage.hold("the-one-drop", call).await;
    let dropped = stage.site.client.drop_kind(&kind).await.unwrap();
    assert_eq!(dropped, Dropped::Dropped);
}

#[tokio::test]
async fn closing_a_breaker_has_one_deadline() {
    let stage = HeldUp::new("deadline-breaker").await;
    let site = &stage.site;
    let worker = site.serve(Router::new().route(&site.pattern(), async |_: Job| Outcome::Done));
    worker.ready().await;
    let call = stage.client.close_breaker("the-one.example");
    stage.hold("deadline-breaker", call).await;
    worker.stop().await;
    site.assert_balanced().await;
}
