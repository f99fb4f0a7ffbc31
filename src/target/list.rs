//! A Redis list as a target: [`List`] appends each job as a JSON document.
//!
//! With acknowledgement, `receipts.rs` reads the list `key:done` and settles the jobs;
//! [`ListShared`] connects the two.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

use super::document::Document;
use super::receipts::Receipts;
use super::target_key::{HANDED_OVER, TargetKey};
use crate::client::{Client, ClientBuilder};
use crate::handler::{Handler, Job, Route, RouteTask, RouteTaskContext};
use crate::names::Names;
use crate::outcome::Outcome;
use crate::store::WriteRetry;

/// Appends jobs to a Redis list, each as one JSON document, for consumers that `BLPOP`.
///
/// A job is done when it is written: a consumer that crashes after taking it loses it. With
/// [`acknowledged`](Self::acknowledged), a job is done when a consumer acknowledges it.
///
/// An attempt fails if the Redis of the list is full, away or read-only, or if the key has another
/// type.
///
/// ```no_run
/// use keyfall::{Client, Handler, Router, Worker, target};
/// use std::time::Duration;
///
/// # async fn example() -> keyfall::Result<()> {
/// let client = Client::connect("redis://127.0.0.1:6379").await?;
/// let mails = target::list("redis://127.0.0.1:6379", "mails");
/// let orders = target::list("redis://orders:6379", "orders").acknowledged();
/// let app = Router::new()
///     .route("app1:mail:remind:*", mails)
///     .route("app1:order:close:*", orders.lease(Duration::from_secs(60)));
/// Worker::new(client, app).run().await
/// # }
/// ```
#[derive(Clone)]
pub struct List {
    /// The Redis and the key of the list.
    way: TargetKey,
    acknowledged: bool,
    shared: Arc<ListShared>,
}

/// State shared by the handler, which writes jobs, and the task that reads acknowledgements.
#[derive(Default)]
pub(super) struct ListShared {
    /// Notified when a job was written, so that the task looks for its acknowledgement soon.
    pub(super) written: Notify,
    /// The claimers of all jobs that were written here: the acknowledgements of their jobs are for
    /// this worker.
    claimers: Mutex<HashSet<Box<str>>>,
}

/// The list `key` of the Redis at `url`, as a target. It may be any Redis. An invalid URL or an
/// empty key is refused by the router.
///
/// ```
/// use keyfall::{Router, target};
///
/// let mails = target::list("redis://127.0.0.1:6379", "mails");
/// let app: Router = Router::new().route("app1:mail:remind:*", mails);
/// ```
pub fn list(url: &str, key: &str) -> List {
    List::on(&Client::builder(url), key)
}

impl List {
    /// The list `key` on a Redis with more settings than a URL has: certificates, or other
    /// timeouts.
    ///
    /// It does not connect yet. An attempt fails if the Redis does not accept the job within the
    /// [call timeout](ClientBuilder::call_timeout).
    pub fn on(server: &ClientBuilder, key: &str) -> Self {
        List {
            way: TargetKey::new(server, "list", key),
            acknowledged: false,
            shared: Arc::default(),
        }
    }

    /// The same list, with consumers that acknowledge.
    ///
    /// The document has a field `lease`. A consumer that is done with the job appends its value to
    /// the list `key:done`, or [settles](Client::settle) the lease:
    ///
    /// ```text
    /// BLPOP orders 0             {"key":"app1:order:close:42", …, "lease":"app1:order:close:42@…"}
    /// RPUSH orders:done app1:order:close:42@…
    /// ```
    ///
    /// A job that is not acknowledged within the [lease](Handler::lease) of the route, counted from
    /// the write, is written again, as another attempt.
    ///
    /// `concurrency` of the route limits how many jobs of this worker are written and have not
    /// ended. It defaults to 1000.
    pub fn acknowledged(mut self) -> Self {
        self.acknowledged = true;
        self
    }

    /// Writes a job to the list. Without acknowledgement it is done then; otherwise it is handed
    /// over.
    async fn deliver(&self, job: &Job) -> Outcome {
        let document = Document::of(job, self.acknowledged).to_json();
        if self.acknowledged {
            // Before a consumer has the job: it may acknowledge at once.
            self.shared.claims(job.lease().claimer());
        }
        // Were a job with a lease written twice, two consumers would hold the lease at the same
        // time, and neither could tell. If it is not written at all, the lease lapses.
        let writes = match self.acknowledged {
            true => WriteRetry::Once,
            false => WriteRetry::Again,
        };
        let pushed = self
            .way
            .target_redis()
            .push(&self.way.key, &document, writes);
        match pushed.await {
            Ok(()) if self.acknowledged => {}
            Ok(()) => return Outcome::Done,
            Err(error) if self.acknowledged && self.way.may_be_there(&error) => {}
            Err(error) => return Outcome::retry(error),
        }
        self.shared.written.notify_one();
        Outcome::HandedOver
    }

    /// The fault of the settings, for the router.
    fn fault(&self) -> Option<String> {
        let receipts = self.acknowledged.then(|| Names::receipts(&self.way.key));
        self.way.fault("list", receipts.as_slice())
    }

    /// The task that settles acknowledged jobs for as long as the worker runs.
    fn route_task(&self) -> RouteTask {
        let (way, shared) = (self.way.clone(), self.shared.clone());
        RouteTask::new(move |context: RouteTaskContext| {
            Box::pin(Receipts::new(way.clone(), shared.clone(), context).run())
        })
    }
}

impl ListShared {
    /// Notes that a job of this claimer is written here. Called before the write.
    fn claims(&self, claimer: &str) {
        let mut claimers = self.claimers.lock().expect("no panic while held");
        if !claimers.contains(claimer) {
            claimers.insert(claimer.into());
        }
    }

    /// Whether this worker wrote jobs of this claimer.
    pub(super) fn is_ours(&self, claimer: &str) -> bool {
        let claimers = self.claimers.lock().expect("no panic while held");
        claimers.contains(claimer)
    }
}

/// Marker type that lets a [`List`] implement [`Handler`] beside functions. It has no values.
#[derive(Debug)]
pub enum Lists {}

#[diagnostic::do_not_recommend]
impl<S: Send + Sync + 'static> Handler<Lists, S> for List {
    fn into_route(self) -> Route<S> {
        let list = self.clone();
        Route::new(move |job, _| {
            let list = list.clone();
            Box::pin(async move { list.deliver(&job).await })
        })
        .with(|options| {
            options.fault = self.fault();
            if self.acknowledged {
                options.hands_over = true;
                options.concurrency = Some(HANDED_OVER);
                options.route_task = Some(self.route_task());
            }
        })
    }
}

impl fmt::Debug for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("List")
            .field("key", &self.way.key)
            .field("acknowledged", &self.acknowledged)
            .finish_non_exhaustive()
    }
}
