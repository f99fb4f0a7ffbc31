//! Batching of simultaneous calls.
//!
//! A [`Batcher`] queues the items of one operation on one ledger. As soon as a lane is free, all
//! items in the queue leave on it as one call. So a single call leaves at once, and a crowd leaves
//! in batches.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

#[cfg(feature = "worker")]
use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

use crate::error::{Error, ErrorKind, Result};
use crate::key::JobKey;
use crate::settings::{BATCH, BATCH_BYTES, IDLE_LOOK, LANES, QUEUE};
use crate::shards::Layout;
use crate::store::{
    Amendment, Answered, BackupItem, CancelIf, Change, Discard, HeldLane, Lane, LanePool, Ledger,
    Placement, Revival, SeriesCall, Update,
};

/// An operation that a lane can send to a ledger in batches.
pub(crate) trait BatchOperation: Sized + Send + Sync + 'static {
    /// The terms that all calls of a batcher share.
    type Terms: Clone + Send + Sync + 'static;

    /// The answer to one item.
    type Answer: Send + 'static;

    /// How long a batch waits for more items after the first, and the number of items at which it
    /// leaves. No wait by default: callers wait for their answers.
    fn gather(_: &Self::Terms) -> (Duration, usize) {
        (Duration::ZERO, 0)
    }

    /// Sends one batch, as one numbered call. The answers are in the order of the items. The call
    /// ends at `until`.
    fn send(
        ledger: &Ledger,
        lane: &mut Lane,
        terms: &Self::Terms,
        items: &[Self],
        until: std::time::Instant,
    ) -> impl Future<Output = Result<Vec<Self::Answer>>> + Send;

    /// About how many bytes the item adds to a call. A batch has at most [`BATCH_BYTES`], or one
    /// item.
    fn bytes(&self) -> usize {
        0
    }
}

/// The queue of one operation on one ledger, with the lanes that it leaves on. The queue holds
/// [`QUEUE`] items; further callers wait for room.
pub(crate) struct Batcher<Op: BatchOperation> {
    ledger: Arc<Ledger>,
    terms: Op::Terms,
    lanes: LanePool,
    entrance: Arc<BatchQueue<Op>>,
    /// The runtime that empties the queue; `None` for the runtime of the first call.
    runtime: Option<Handle>,
}

/// The sending half of the queue; `None` while no task empties it.
type BatchQueue<Op> = Mutex<Option<mpsc::Sender<QueuedItem<Op>>>>;

/// An item in the queue, with its deadline and the receiver of its answer.
struct QueuedItem<Op: BatchOperation> {
    item: Op,
    until: Instant,
    reply: ReplySender<Op::Answer>,
}

/// The receiver of an answer.
enum ReplySender<A> {
    /// A caller that waits for it.
    Awaited(oneshot::Sender<Result<A>>),
    /// A callback: the caller does not wait.
    #[cfg(feature = "worker")]
    Posted(Box<dyn FnOnce(Result<A>) + Send>),
}

impl<Op: BatchOperation> Batcher<Op> {
    /// A batcher without a task; the first call starts it.
    pub(crate) fn new(ledger: Arc<Ledger>, terms: Op::Terms) -> Self {
        Batcher {
            ledger,
            terms,
            lanes: LanePool::new(LANES),
            entrance: Arc::default(),
            runtime: None,
        }
    }

    /// Empties the queue on the current runtime, even if the first call comes from another one.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    #[cfg(feature = "worker")]
    pub(crate) fn here(mut self) -> Self {
        self.runtime = Some(Handle::current());
        self
    }

    /// Sends one item and waits for its answer until the deadline. If the caller stops waiting, an
    /// item that was not sent is withdrawn; a sent item is carried out.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the queue stays full, so that nothing was sent;
    /// [`ErrorKind::OutcomeUnknown`] if no answer comes in time; else the error of the whole batch.
    pub(crate) async fn send(&self, item: Op, until: std::time::Instant) -> Result<Op::Answer> {
        let until = Instant::from(until);
        let (reply, answer) = oneshot::channel();
        let reply = ReplySender::Awaited(reply);
        let entry = QueuedItem { item, until, reply };
        let queued = timeout_at(until, self.entrance().send(entry)).await;
        if !matches!(queued, Ok(Ok(()))) {
            return Err(not_sent());
        }
        match timeout_at(until, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) | Err(_) => Err(Error::new(
                ErrorKind::OutcomeUnknown,
                format!(
                    "Redis at {} did not answer in time; the call may have been carried out, and \
                     may be repeated",
                    self.ledger.address_of_server(),
                ),
            )),
        }
    }

    /// Queues one item; `told` gets the answer later, on the runtime that empties the queue. No
    /// task has to be woken for the answer. If the queue is full, the future that is returned waits
    /// for room.
    #[cfg(feature = "worker")]
    pub(crate) fn post(
        &self,
        item: Op,
        until: std::time::Instant,
        told: impl FnOnce(Result<Op::Answer>) + Send + 'static,
    ) -> Option<BoxFuture<'static, ()>> {
        let until = Instant::from(until);
        let reply = ReplySender::Posted(Box::new(told));
        let entry = QueuedItem { item, until, reply };
        let entrance = self.entrance();
        let unsent = entrance.try_send(entry).err()?.into_inner();
        Some(Box::pin(async move {
            if let Err(unsent) = entrance.send(unsent).await {
                unsent.0.reply.tell(Err(not_sent()));
            }
        }))
    }

    /// The sending half of the queue. The first call starts the task that empties the queue. A later
    /// call starts another if that one ended for lack of calls, or its runtime is gone.
    fn entrance(&self) -> mpsc::Sender<QueuedItem<Op>> {
        let mut entrance = self.entrance.lock().expect("no panic while held");
        if let Some(open) = entrance.as_ref().filter(|open| !open.is_closed()) {
            return open.clone();
        }
        let (sender, receiver) = mpsc::channel(QUEUE);
        let runtime = self.runtime.clone().unwrap_or_else(Handle::current);
        runtime.spawn(send_batches(
            self.ledger.clone(),
            self.terms.clone(),
            self.lanes.clone(),
            receiver,
            Arc::downgrade(&self.entrance),
        ));
        entrance.insert(sender).clone()
    }
}

/// The error for an item that found no room in the queue.
fn not_sent() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "too many calls are waiting for Redis; this one was not sent",
    )
}

impl<A> ReplySender<A> {
    /// Whether the caller has stopped waiting, so that an unsent item can be dropped.
    fn is_pointless(&self) -> bool {
        match self {
            ReplySender::Awaited(caller) => caller.is_closed(),
            #[cfg(feature = "worker")]
            ReplySender::Posted(_) => false,
        }
    }

    /// Delivers the answer.
    fn tell(self, answer: Result<A>) {
        match self {
            // The caller may have stopped waiting.
            ReplySender::Awaited(caller) => drop(caller.send(answer)),
            #[cfg(feature = "worker")]
            ReplySender::Posted(told) => told(answer),
        }
    }
}

/// Empties the queue: batch by batch, each on a lane of its own. It ends when the batcher is dropped
/// or no call came for [`IDLE_LOOK`].
async fn send_batches<Op: BatchOperation>(
    ledger: Arc<Ledger>,
    terms: Op::Terms,
    lanes: LanePool,
    mut waiting: mpsc::Receiver<QueuedItem<Op>>,
    entrance: Weak<BatchQueue<Op>>,
) {
    let mut batch = Vec::new();
    loop {
        if batch.is_empty() {
            match timeout(IDLE_LOOK, waiting.recv_many(&mut batch, BATCH)).await {
                Ok(0) => return,
                Ok(_) => {}
                // Items that are queued by now are still sent; the next call starts a new task.
                Err(_) => {
                    if let Some(entrance) = entrance.upgrade() {
                        entrance.lock().expect("no panic while held").take();
                    }
                    continue;
                }
            }
        }
        let lane = lanes.take().await;
        // A caller that was just answered may be about to call again: let it. This takes no time.
        tokio::task::yield_now().await;
        while batch.len() < BATCH
            && let Ok(more) = waiting.try_recv()
        {
            batch.push(more);
        }
        let (gather, enough) = Op::gather(&terms);
        let end = Instant::now() + gather;
        while batch.len() < enough {
            let room = BATCH - batch.len();
            let more = waiting.recv_many(&mut batch, room);
            if !matches!(timeout_at(end, more).await, Ok(1..)) {
                break;
            }
        }
        let rest = batch.split_off(fitting(&batch));
        let batch = std::mem::replace(&mut batch, rest);
        tokio::spawn(send_batch(ledger.clone(), terms.clone(), lane, batch));
    }
}

/// How many entries fit into one call; at least one.
fn fitting<Op: BatchOperation>(batch: &[QueuedItem<Op>]) -> usize {
    let mut bytes = 0;
    let fits = batch.iter().take_while(|entry| {
        bytes += entry.item.bytes();
        bytes <= BATCH_BYTES
    });
    fits.count().max(1)
}

/// Sends one batch, without the items whose callers have left, by the latest deadline of its items.
/// An error goes to each of them.
async fn send_batch<Op: BatchOperation>(
    ledger: Arc<Ledger>,
    terms: Op::Terms,
    mut lane: HeldLane,
    batch: Vec<QueuedItem<Op>>,
) {
    let mut items = Vec::with_capacity(batch.len());
    let mut replies = Vec::with_capacity(batch.len());
    let mut until = Instant::now();
    for entry in batch {
        // Not sent yet: withdraw it.
        if entry.reply.is_pointless() {
            continue;
        }
        until = until.max(entry.until);
        items.push(entry.item);
        replies.push(entry.reply);
    }
    if items.is_empty() {
        return;
    }
    match Op::send(&ledger, &mut lane, &terms, &items, until.into_std()).await {
        Ok(answers) => {
            for (reply, answer) in replies.into_iter().zip(answers) {
                reply.tell(Ok(answer));
            }
        }
        Err(error) => {
            for reply in replies {
                reply.tell(Err(error.duplicate()));
            }
        }
    }
}

/// The id of a job in a shard that it no longer belongs to.
#[derive(Clone)]
pub(super) struct MisplacedJob(pub(super) String);

impl BatchOperation for MisplacedJob {
    type Terms = Layout;
    type Answer = Answered;

    async fn send(
        ledger: &Ledger,
        _: &mut Lane,
        layout: &Layout,
        items: &[Self],
        until: std::time::Instant,
    ) -> Result<Vec<Answered>> {
        let names: Vec<String> = items.iter().map(|item| item.0.clone()).collect();
        let answers = ledger.move_out(&names, *layout, until).await?;
        Ok(answers.unwrap_or_else(|| vec![Answered::STALE; items.len()]))
    }
}

/// Implements [`BatchOperation`] for the items of producers. Each line names the [`Ledger`] method
/// that sends the item, and how many bytes it adds.
macro_rules! operations {
    ($($item:ident by $method:ident, $bytes:expr;)*) => {$(
        impl BatchOperation for $item {
            type Terms = ();
            type Answer = Answered;

            async fn send(
                ledger: &Ledger,
                lane: &mut Lane,
                (): &(),
                items: &[Self],
                until: std::time::Instant,
            ) -> Result<Vec<Answered>> {
                ledger.$method(lane, items, until).await
            }

            fn bytes(&self) -> usize {
                let bytes: fn(&Self) -> usize = $bytes;
                bytes(self)
            }
        }
    )*};
}

operations! {
    Placement by schedule, |item| item.payload.len() + item.header.len();
    Change by reschedule, |_| 0;
    Update by update, |item| item.payload.len();
    Amendment by amend, |item| {
        item.payload.as_ref().map_or(0, |it| it.len()) + item.header.len() + item.seen.opening.len()
    };
    SeriesCall by plan, SeriesCall::bytes;
    JobKey by cancel, |_| 0;
    CancelIf by cancel_if, |_| 0;
    Revival by requeue, |item| item.record_bytes + item.header.len();
    Discard by discard, |_| 0;
    BackupItem by restore, |item| item.payload.len() + item.header.len() + item.story.len();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Kind;
    use crate::names::Names;
    use crate::settings::LinkSettings;
    use crate::store::Store;

    /// An item whose number is noted when it is sent; Redis is never called.
    struct Noted(u32);

    impl BatchOperation for Noted {
        type Terms = Arc<Mutex<Vec<u32>>>;
        type Answer = ();

        async fn send(
            _: &Ledger,
            _: &mut Lane,
            sent: &Self::Terms,
            items: &[Self],
            _: std::time::Instant,
        ) -> Result<Vec<()>> {
            let mut sent = sent.lock().unwrap();
            sent.extend(items.iter().map(|item| item.0));
            Ok(vec![(); items.len()])
        }
    }

    #[tokio::test]
    async fn an_item_whose_caller_has_left_is_not_sent() {
        let names = Names::new("keyfall");
        let store = Store::new("redis://127.0.0.1:1", names, &LinkSettings::default()).unwrap();
        let ledger = store.ledger(&Kind::parse("a:b:c").unwrap(), Layout::FIRST.place(0));
        let sent = Arc::default();
        let batcher = Batcher::<Noted>::new(ledger, Arc::clone(&sent));
        let mut held = Vec::new();
        for _ in 0..LANES {
            held.push(batcher.lanes.take().await);
        }
        let until = std::time::Instant::now() + Duration::from_mins(5);
        tokio::select! {
            biased;
            _ = batcher.send(Noted(1), until) => panic!("no lane is free"),
            // The item is in the queue when its caller leaves.
            () = tokio::task::yield_now() => {}
        }
        let stays = batcher.send(Noted(2), until);
        drop(held);
        stays.await.unwrap();
        assert_eq!(*sent.lock().unwrap(), [2]);
    }
}
