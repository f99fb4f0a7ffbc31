//! A Redis stream as a target: [`Stream`] appends each job as one entry.
//!
//! With acknowledgement, `watch.rs` asks the group about the entries and settles the jobs;
//! [`StreamShared`] connects the two.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;

use super::document::Document;
use super::target_key::{HANDED_OVER, TargetKey};
use super::watch::Watch;
use crate::client::{Client, ClientBuilder};
use crate::handler::{Handler, Job, Route, RouteTask, RouteTaskContext};
use crate::lease::Lease;
use crate::moment::Moment;
use crate::names::Names;
use crate::outcome::Outcome;
use crate::store::EntryId;

/// Default of the number of entries that a stream keeps, approximately.
const KEEP: u64 = 100_000;

/// Appends jobs to a Redis stream, each as one entry, for consumers that `XREADGROUP`.
///
/// A job is done when it is written. With [`acknowledged`](Self::acknowledged), a job is done when
/// its entry is acknowledged in a group.
///
/// An attempt fails if the Redis of the stream is full, away or read-only, or if the key has
/// another type.
///
/// ```no_run
/// use keyfall::{Client, Handler, Router, Worker, target};
/// use std::time::Duration;
///
/// # async fn example() -> keyfall::Result<()> {
/// let client = Client::connect("redis://127.0.0.1:6379").await?;
/// let log = target::stream("redis://127.0.0.1:6379", "reminders").keep(10_000);
/// let orders = target::stream("redis://orders:6379", "orders").acknowledged("closers");
/// let app = Router::new()
///     .route("app1:mail:remind:*", log)
///     .route("app1:order:close:*", orders.lease(Duration::from_secs(60)));
/// Worker::new(client, app).run().await
/// # }
/// ```
#[derive(Clone)]
pub struct Stream {
    /// The Redis and the key of the stream.
    pub(super) way: TargetKey,
    /// About how many entries are kept.
    pub(super) keep: u64,
    /// The group that acknowledges; `None` if a job is done when it is written.
    group: Option<Arc<str>>,
    pub(super) shared: Arc<StreamShared>,
}

/// State shared by the handler, which writes entries, and the task that watches them.
#[derive(Default)]
pub(super) struct StreamShared {
    /// Notified when an entry was written.
    pub(super) written: Notify,
    /// The entries of this worker that have not ended, by id.
    open: Mutex<BTreeMap<EntryId, Open>>,
}

/// An entry that this worker wrote, with a job that has not ended.
#[derive(Debug, Clone)]
pub(super) struct Open {
    pub(super) lease: Lease,
    /// When the last call was sent that wrote the entry or extended its lease.
    pub(super) fresh: Moment,
}

/// The stream `key` of the Redis at `url`, as a target. It may be any Redis. An invalid URL or an
/// empty key is refused by the router.
///
/// ```
/// use keyfall::{Router, target};
///
/// let log = target::stream("redis://127.0.0.1:6379", "reminders").keep(10_000);
/// let app: Router = Router::new().route("app1:mail:remind:*", log);
/// ```
pub fn stream(url: &str, key: &str) -> Stream {
    Stream::on(&Client::builder(url), key)
}

impl Stream {
    /// The stream `key` on a Redis with more settings than a URL has: certificates, or other
    /// timeouts.
    ///
    /// It does not connect yet. An attempt fails if the Redis does not accept the job within the
    /// [call timeout](ClientBuilder::call_timeout).
    pub fn on(server: &ClientBuilder, key: &str) -> Self {
        Stream {
            way: TargetKey::new(server, "stream", key),
            keep: KEEP,
            group: None,
            shared: Arc::default(),
        }
    }

    /// About how many entries the stream keeps, 1 or more: each write trims older entries,
    /// acknowledged or not. Defaults to 100,000.
    pub fn keep(mut self, entries: u64) -> Self {
        self.keep = entries;
        self
    }

    /// The same stream, with jobs that are done when a consumer acknowledges them in this group.
    /// The group is made if it does not exist. A stream has one such group.
    ///
    /// ```text
    /// XREADGROUP GROUP closers worker-1 COUNT 1 BLOCK 0 STREAMS orders >
    /// XACK orders closers 1763712345678-0
    /// ```
    ///
    /// An attempt fails if a consumer has read its entry and does not acknowledge it within the
    /// [lease](Handler::lease) of the route. An entry that no consumer has read waits.
    ///
    /// `concurrency` of the route limits how many jobs of this worker are written and have not
    /// ended. It defaults to 1000.
    pub fn acknowledged(mut self, group: &str) -> Self {
        self.group = Some(group.into());
        self
    }

    /// Writes a job as an entry. Without a group it is done then; otherwise it is handed over.
    async fn deliver(&self, job: &Job) -> Outcome {
        let fields = Document::of(job, self.group.is_some()).into_fields();
        let (target_redis, key) = (self.way.target_redis(), &self.way.key);
        let Some(group) = &self.group else {
            let added = target_redis.add(key, self.keep, &fields).await;
            return added.map_or_else(Outcome::retry, |()| Outcome::Done);
        };
        let lease = job.lease().to_string();
        // Taken before the call is sent: the call may be long on its way, and Redis counts the
        // lease from its arrival.
        let fresh = Moment::now();
        match target_redis
            .append(key, group, self.keep, &lease, &fields)
            .await
        {
            // The id of the entry is unknown: a sweep finds the entry.
            Err(error) if self.way.may_be_there(&error) => Outcome::HandedOver,
            Err(error) => Outcome::retry(error),
            Ok(id) => {
                let open = Open {
                    lease: job.lease().clone(),
                    fresh,
                };
                self.shared.open().insert(id, open);
                self.shared.written.notify_one();
                Outcome::HandedOver
            }
        }
    }

    /// The fault of the settings, for the router.
    fn fault(&self) -> Option<String> {
        let fault = if self.keep == 0 {
            "keeps no entry: raise its limit to 1 or more"
        } else if self.group.as_deref() == Some("") {
            "has a group without a name: name it"
        } else {
            let key = &self.way.key;
            let beside = self.group.as_ref().map(|group| {
                [Names::settled, Names::sweep, Names::written].map(|name| name(key, group))
            });
            return self
                .way
                .fault("stream", beside.as_ref().map_or(&[], <[_; 3]>::as_slice));
        };
        Some(format!("its stream `{}` {fault}", self.way.key))
    }
}

impl StreamShared {
    /// Locks the entries of this worker that have not ended.
    pub(super) fn open(&self) -> MutexGuard<'_, BTreeMap<EntryId, Open>> {
        self.open.lock().expect("no panic while held")
    }

    /// Forgets entries that have ended. Unknown ids are ignored.
    pub(super) fn end(&self, ids: &[EntryId]) {
        let mut open = self.open();
        for id in ids {
            open.remove(id);
        }
    }
}

/// Marker type that lets a [`Stream`] implement [`Handler`] beside functions. It has no values.
#[derive(Debug)]
pub enum Streams {}

#[diagnostic::do_not_recommend]
impl<S: Send + Sync + 'static> Handler<Streams, S> for Stream {
    fn into_route(self) -> Route<S> {
        let stream = self.clone();
        Route::new(move |job, _| {
            let stream = stream.clone();
            Box::pin(async move { stream.deliver(&job).await })
        })
        .with(|options| {
            options.fault = self.fault();
            if let Some(group) = self.group.clone() {
                options.hands_over = true;
                options.concurrency = Some(HANDED_OVER);
                options.route_task = Some(RouteTask::new(move |context: RouteTaskContext| {
                    Box::pin(Watch::new(self.clone(), group.clone(), context).run())
                }));
            }
        })
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("key", &self.way.key)
            .field("group", &self.group)
            .finish_non_exhaustive()
    }
}
