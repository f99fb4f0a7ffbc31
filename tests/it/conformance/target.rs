//! The interface of a target under test, and its nature.

use std::time::{Duration, SystemTime};

use futures_util::future::BoxFuture;
use keyfall::{Handler, Job, RetryPolicy, Route};
use keyfall_testing::process::TalkingProcess;
use serde_json::Value;
use tokio::sync::{Mutex, mpsc};
use tokio::time::timeout;

use crate::runs::PATIENCE;
use crate::site::Site;
use crate::workers::Mortal;

/// A target under test, with a consumer.
pub(super) trait Target: Sized {
    const NATURE: Nature;

    /// The target for the usual jobs of a site.
    async fn new(site: &Site, terms: RouteTerms) -> Self;

    /// A worker that has a route to this target, and its ledger in this Redis. There is one at a
    /// time.
    async fn start(&self, redis: &str) -> Doomed;

    /// The next delivery to the consumer within this time.
    async fn next(&self, patience: Duration) -> Option<Delivery>;

    /// Makes silent consumers look silent for an hour, for a target that does not measure silence
    /// by the lease.
    fn silence(&self) -> impl Future<Output = ()> {
        async {}
    }

    #[track_caller]
    fn take(&self) -> impl Future<Output = Delivery> {
        let caller = std::panic::Location::caller();
        async move {
            let delivery = self.next(PATIENCE).await;
            delivery.unwrap_or_else(|| panic!("{caller}: nothing is delivered"))
        }
    }
}

/// The properties in which targets differ.
pub(super) struct Nature {
    pub(super) name: &'static str,
    pub(super) ends: Ends,
    pub(super) vanished: Vanished,
}

/// The event that ends a job.
#[derive(PartialEq, Eq)]
pub(super) enum Ends {
    /// The job was handed over: the worker has written it. Its consumer does not report back.
    Written,
    /// The worker waits for the consumer to report the end.
    Run,
    /// The holder of the lease settles the job, at any worker.
    Lease,
}

/// The fate of a job whose consumer falls silent.
pub(super) enum Vanished {
    /// The job is done: it was handed over.
    Done,
    /// The attempt has failed, for a reason with this text, and the job comes again after the pause
    /// of the ladder.
    Fails(&'static str),
    /// The lease lapses, and the job comes again at once.
    Lapses,
}

/// The settings of the route.
#[derive(Debug, Clone)]
pub(super) struct RouteTerms {
    /// A retry ladder in its written form.
    pub(super) retry: &'static str,
    /// The time for which a consumer has a job.
    pub(super) lease: Duration,
    pub(super) concurrency: Option<usize>,
    /// The number of starts in a second.
    pub(super) rate: Option<u32>,
}

impl RouteTerms {
    /// Makes a route for this handler.
    pub(super) fn of<M>(&self, handler: impl Handler<M, ()>) -> Route {
        let policy: RetryPolicy = self.retry.parse().unwrap();
        let mut route = handler.retry(policy).lease(self.lease).timeout(self.lease);
        if let Some(jobs) = self.concurrency {
            route = route.concurrency(jobs);
        }
        if let Some(jobs) = self.rate {
            route = route.rate(jobs, Duration::from_secs(1));
        }
        route
    }
}

/// A job that a consumer has. The consumer vanishes when this is dropped.
pub(super) struct Delivery {
    pub(super) key: String,
    pub(super) payload: Vec<u8>,
    pub(super) told: Option<Told>,
    pub(super) end: Box<dyn FnOnce(End) -> BoxFuture<'static, ()> + Send>,
}

/// Further properties of a delivery.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) attempt: u32,
    pub(super) max_attempts: u32,
    pub(super) due: SystemTime,
    pub(super) fence: u64,
}

/// The answers of a consumer.
pub(super) enum End {
    Done,
    Failed(&'static str),
}

impl Delivery {
    pub(super) async fn done(self) {
        (self.end)(End::Done).await;
    }

    pub(super) async fn fails(self, why: &'static str) {
        (self.end)(End::Failed(why)).await;
    }

    /// A delivery with all properties.
    pub(super) fn told(&self) -> &Told {
        self.told.as_ref().expect("it is told")
    }
}

impl Told {
    pub(super) fn by_job(job: &Job) -> Self {
        Told {
            attempt: job.attempt(),
            max_attempts: job.max_attempts(),
            due: job.due(),
            fence: job.fence(),
        }
    }

    /// Reads a delivery from JSON, by the names of its fields.
    pub(super) fn by_names(value: impl Fn(&str) -> String) -> Self {
        let due: jiff::Timestamp = value("due").parse().unwrap();
        Told {
            attempt: value("attempt").parse().unwrap(),
            max_attempts: value("max_attempts").parse().unwrap(),
            due: due.into(),
            fence: value("fence").parse().unwrap(),
        }
    }
}

/// A field of a document, as text.
pub(super) fn text(document: &Value, name: &str) -> String {
    match &document[name] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The channel of deliveries that arrive without a request.
pub(super) struct Inbox {
    pub(super) sender: mpsc::UnboundedSender<Delivery>,
    receiver: Mutex<mpsc::UnboundedReceiver<Delivery>>,
}

impl Inbox {
    pub(super) fn new() -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        Inbox {
            sender,
            receiver: Mutex::new(receiver),
        }
    }

    pub(super) async fn next(&self, patience: Duration) -> Option<Delivery> {
        let mut receiver = self.receiver.lock().await;
        timeout(patience, receiver.recv()).await.ok()?
    }
}

/// A worker that dies without notice, at the latest with the test.
pub(super) struct Doomed(Option<Body>);

enum Body {
    Runtime(Mortal),
    Process(TalkingProcess),
}

impl Doomed {
    pub(super) fn dies(self) {}
}

impl From<Mortal> for Doomed {
    fn from(worker: Mortal) -> Self {
        Doomed(Some(Body::Runtime(worker)))
    }
}

impl From<TalkingProcess> for Doomed {
    fn from(daemon: TalkingProcess) -> Self {
        Doomed(Some(Body::Process(daemon)))
    }
}

impl Drop for Doomed {
    fn drop(&mut self) {
        match self.0.take() {
            Some(Body::Runtime(worker)) => worker.die(),
            Some(Body::Process(mut daemon)) => daemon.kill(),
            None => {}
        }
    }
}
