//! A Redis list as a target.

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
/// A job is done when it is written: a consumer that crashes then loses it. With
/// [`acknowledged`](Self::acknowledged) it is done when a consumer says so.
///
/// A target that is full, away, read-only or of another type is a failed attempt.
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
    way: TargetKey,
    acknowledged: bool,
    shared: Arc<ListShared>,
}

/// What those who write share with those who hear of acknowledgements.
#[derive(Default)]
pub(super) struct ListShared {
    pub(super) written: Notify,
    /// By whom the jobs were claimed that were written here.
    claimers: Mutex<HashSet<Box<str>>>,
}

/// The list `key` of the Redis at `url`, which may be any, as a target. A URL that is not valid is
/// refused by the router.
pub fn list(url: &str, key: &str) -> List {
    List::on(&Client::builder(url), key)
}

impl List {
    /// The list `key` on a server that takes more than a URL: certificates, or other timeouts.
    /// Nothing is connected. An attempt fails that the server has not taken within the
    /// [call timeout](ClientBuilder::call_timeout).
    pub fn on(server: &ClientBuilder, key: &str) -> Self {
        List {
            way: TargetKey::new(server, "list", key),
            acknowledged: false,
            shared: Arc::default(),
        }
    }

    /// The same list, whose consumers acknowledge. The document has a `lease`; a consumer that is
    /// done with the job appends that to the list `key:done`, or [settles](Client::settle) it. Until
    /// then the job is leased, for as long as the [route](Handler::lease) says, counted from when
    /// it is written; after that it is written again, as another attempt.
    ///
    /// `concurrency` is how many jobs of this worker are written and not ended; 1000, if the route
    /// does not say.
    pub fn acknowledged(mut self) -> Self {
        self.acknowledged = true;
        self
    }

    async fn deliver(&self, job: &Job) -> Outcome {
        let document = Document::of(job, self.acknowledged).to_json();
        if self.acknowledged {
            // Before they have it: they may be quick.
            self.shared.claims(job.lease().claimer());
        }
        // If what has a lease were there twice, two consumers would hold it at the same time, and
        // neither could tell; if it is not there, the lease lapses.
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

    fn fault(&self) -> Option<String> {
        let receipts = self.acknowledged.then(|| Names::receipts(&self.way.key));
        self.way.fault("list", receipts.as_slice())
    }

    fn route_task(&self) -> RouteTask {
        let (way, shared) = (self.way.clone(), self.shared.clone());
        RouteTask::new(move |attendance: RouteTaskContext| {
            Box::pin(Receipts::new(way.clone(), shared.clone(), attendance).run())
        })
    }
}

impl ListShared {
    fn claims(&self, claimer: &str) {
        let mut claimers = self.claimers.lock().expect("no panic while held");
        if !claimers.contains(claimer) {
            claimers.insert(claimer.into());
        }
    }

    /// Whether a job that was claimed by this one was written here.
    pub(super) fn is_ours(&self, claimer: &str) -> bool {
        let claimers = self.claimers.lock().expect("no panic while held");
        claimers.contains(claimer)
    }
}

/// Tells a [`List`] from a function where both are handlers.
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
