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

    /// For the usual jobs of a site.
    async fn new(site: &Site, terms: RouteTerms) -> Self;

    /// A worker that has a route to this target, and its ledger in this Redis. There is one at a
    /// time.
    async fn start(&self, redis: &str) -> Doomed;

    /// What its consumer is given within this time.
    async fn next(&self, patience: Duration) -> Option<Delivery>;

    /// As if those consumers that have said nothing had done so for an hour, where that is not seen
    /// by the lease of the job.
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

/// What targets differ in.
pub(super) struct Nature {
    pub(super) name: &'static str,
    pub(super) ends: Ends,
    pub(super) vanished: Vanished,
}

/// The event that ends a job.
#[derive(PartialEq, Eq)]
pub(super) enum Ends {
    /// It was handed over: the worker has written it. Nobody hears of its consumer.
    Written,
    /// The worker has it from its consumer, for which it waits.
    Run,
    /// The holder of the lease settles it, at any worker.
    Lease,
}

/// The fate of a job whose consumer falls silent.
pub(super) enum Vanished {
    /// It is done: it was handed over.
    Done,
    /// It has failed, for a reason with this in it, and the ladder says when it comes again.
    Fails(&'static str),
    /// Its lease lapses, and it comes again at once.
    Lapses,
}

/// What its route is told.
#[derive(Debug, Clone)]
pub(super) struct RouteTerms {
    /// A ladder, as it is written.
    pub(super) retry: &'static str,
    /// How long a consumer has a job.
    pub(super) lease: Duration,
    pub(super) concurrency: Option<usize>,
    /// How many start in a second.
    pub(super) rate: Option<u32>,
}

impl RouteTerms {
    /// The route of this handler.
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

/// A job in the hands of a consumer, which vanishes when this is dropped.
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

    /// One that tells all that it can.
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

    /// By names as they are in JSON.
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

/// Where deliveries come in that are not asked for.
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

/// A worker that dies without a word, at the latest with the test.
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
