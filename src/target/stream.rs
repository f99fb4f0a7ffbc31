//! A Redis stream as a target.

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

/// About how many entries a stream keeps, where nobody says.
const KEEP: u64 = 100_000;

/// Appends jobs to a Redis stream, each as one entry, for consumers that `XREADGROUP`.
///
/// A job is done when it is written. With [`acknowledged`](Self::acknowledged) it is done when it
/// is acknowledged in a group.
///
/// A target that is full, away, read-only or of another type is a failed attempt.
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
    pub(super) way: TargetKey,
    pub(super) keep: u64,
    group: Option<Arc<str>>,
    pub(super) shared: Arc<StreamShared>,
}

/// What those who write share with those who look after what was written.
#[derive(Default)]
pub(super) struct StreamShared {
    pub(super) written: Notify,
    open: Mutex<BTreeMap<EntryId, Open>>,
}

/// An entry that was written here and whose job has not ended.
#[derive(Debug, Clone)]
pub(super) struct Open {
    pub(super) lease: Lease,
    /// When the call was sent that wrote it, or that extended its lease.
    pub(super) fresh: Moment,
}

/// The stream `key` of the Redis at `url`, which may be any, as a target. A URL that is not valid
/// is refused by the router.
pub fn stream(url: &str, key: &str) -> Stream {
    Stream::on(&Client::builder(url), key)
}

impl Stream {
    /// The stream `key` on a server that takes more than a URL: certificates, or other timeouts.
    /// Nothing is connected. An attempt fails that the server has not taken within the
    /// [call timeout](ClientBuilder::call_timeout).
    pub fn on(server: &ClientBuilder, key: &str) -> Self {
        Stream {
            way: TargetKey::new(server, "stream", key),
            keep: KEEP,
            group: None,
            shared: Arc::default(),
        }
    }

    /// About how many entries the stream keeps: whenever one is added, older ones are trimmed
    /// away, acknowledged or not. Defaults to 100,000.
    pub fn keep(mut self, entries: u64) -> Self {
        self.keep = entries;
        self
    }

    /// The same stream, whose jobs are done when they are acknowledged in this group, which is
    /// made if there is none. An entry that a consumer has read and not acknowledged within the
    /// [lease](Handler::lease) of the route is a failed attempt; one that nobody has read waits. A
    /// stream has one such group.
    ///
    /// `concurrency` is how many jobs of this worker are written and not ended; 1000, if the route
    /// does not say.
    pub fn acknowledged(mut self, group: &str) -> Self {
        self.group = Some(group.into());
        self
    }

    async fn deliver(&self, job: &Job) -> Outcome {
        let fields = Document::of(job, self.group.is_some()).into_fields();
        let (target_redis, key) = (self.way.target_redis(), &self.way.key);
        let Some(group) = &self.group else {
            let added = target_redis.add(key, self.keep, &fields).await;
            return added.map_or_else(Outcome::retry, |()| Outcome::Done);
        };
        let lease = job.lease().to_string();
        // Counted from before it is sent: it may be long on its way, and Redis counts from its arrival.
        let fresh = Moment::now();
        match target_redis
            .append(key, group, self.keep, &lease, &fields)
            .await
        {
            // Where it is, is not known: whoever sweeps finds it.
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

    fn fault(&self) -> Option<String> {
        let fault = if self.keep == 0 {
            "keeps no entry: let it keep 1 or more"
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
    pub(super) fn open(&self) -> MutexGuard<'_, BTreeMap<EntryId, Open>> {
        self.open.lock().expect("no panic while held")
    }

    pub(super) fn end(&self, ids: &[EntryId]) {
        let mut open = self.open();
        for id in ids {
            open.remove(id);
        }
    }
}

/// Tells a [`Stream`] from a function where both are handlers.
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
                options.route_task = Some(RouteTask::new(move |attendance: RouteTaskContext| {
                    Box::pin(Watch::new(self.clone(), group.clone(), attendance).run())
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
