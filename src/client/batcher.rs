//! Calls that are made at the same time travel together.
//!
//! An outbox holds what waits to be sent to one ledger by one operation. Its lanes take
//! turns: each takes whatever has gathered, sends it as one call, and hands the answers
//! out, so that a lone call leaves at once and a crowd leaves in batches.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout, timeout_at};

use crate::error::{Error, ErrorKind, Result};
use crate::key::JobKey;
use crate::settings::{BATCH, BATCH_BYTES, IDLE_LOOK, LANES, QUEUE};
use crate::store::{
    Answered, BackupItem, Change, Discard, Lane, Ledger, Outdated, Placement, Revival, Update,
};

/// Something that a lane can send to a ledger in batches.
pub(crate) trait BatchOperation: Sized + Send + Sync + 'static {
    /// What all calls of an outbox have in common.
    type Terms: Clone + Send + Sync + 'static;

    /// What one item is answered with.
    type Answer: Send + 'static;

    /// How long a lane waits for more after the first has come, and how many are enough; no time
    /// where somebody waits.
    fn gather(_: &Self::Terms) -> (Duration, usize) {
        (Duration::ZERO, 0)
    }

    /// Sends one batch, as one numbered call.
    fn send(
        ledger: &Ledger,
        lane: &mut Lane,
        terms: &Self::Terms,
        items: &[Self],
        until: std::time::Instant,
    ) -> impl Future<Output = Result<Vec<Self::Answer>>> + Send;

    /// Whether it can make a job where there is nothing of its kind.
    fn creates(&self) -> bool {
        false
    }

    /// About how many bytes the item adds to a call.
    fn bytes(&self) -> usize {
        0
    }
}

/// What waits to be sent.
pub(crate) struct Batcher<Op: BatchOperation> {
    ledger: Arc<Ledger>,
    terms: Op::Terms,
    entrance: Arc<BatchQueue<Op>>,
    /// Where the lanes run, if not where the first call is made.
    runtime: Option<Handle>,
}

/// The way in, while lanes run.
type BatchQueue<Op> = Mutex<Option<mpsc::Sender<QueuedItem<Op>>>>;

struct QueuedItem<Op: BatchOperation> {
    item: Op,
    until: Instant,
    reply: ReplySender<Op::Answer>,
}

/// Where an answer goes.
enum ReplySender<A> {
    /// To a caller who waits for it.
    Awaited(oneshot::Sender<Result<A>>),
    /// To what a caller left behind for it.
    #[cfg(feature = "worker")]
    Posted(Box<dyn FnOnce(Result<A>) + Send>),
}

impl<Op: BatchOperation> Batcher<Op> {
    pub(crate) fn new(ledger: Arc<Ledger>, terms: Op::Terms) -> Self {
        Batcher {
            ledger,
            terms,
            entrance: Arc::default(),
            runtime: None,
        }
    }

    /// Has the lanes run on this runtime, whoever calls [`send`](Self::send) first.
    #[cfg(feature = "worker")]
    pub(crate) fn here(mut self) -> Self {
        self.runtime = Some(Handle::current());
        self
    }

    /// Sends one item and waits for its answer until then. A caller that stops waiting takes
    /// back what was not sent yet, and nothing else.
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

    /// Sends one item, and has `told` called with its answer, on the runtime of the lanes. Returns
    /// as soon as it is queued: nobody has to be woken for the answer.
    #[cfg(feature = "worker")]
    pub(crate) async fn post(
        &self,
        item: Op,
        until: std::time::Instant,
        told: impl FnOnce(Result<Op::Answer>) + Send + 'static,
    ) {
        let until = Instant::from(until);
        let reply = ReplySender::Posted(Box::new(told));
        let entry = QueuedItem { item, until, reply };
        if let Err(unsent) = self.entrance().send(entry).await {
            unsent.0.reply.tell(Err(not_sent()));
        }
    }

    /// The way in. The lanes are started with the first call, and anew if they have ended without one,
    /// or the runtime that they ran on is gone.
    fn entrance(&self) -> mpsc::Sender<QueuedItem<Op>> {
        let mut entrance = self.entrance.lock().expect("no panic while held");
        if let Some(open) = entrance.as_ref().filter(|open| !open.is_closed()) {
            return open.clone();
        }
        let (sender, receiver) = mpsc::channel(QUEUE);
        let receiver = Arc::new(tokio::sync::Mutex::new(receiver));
        let runtime = self.runtime.clone().unwrap_or_else(Handle::current);
        for _ in 0..LANES {
            runtime.spawn(run_lane(
                self.ledger.clone(),
                self.terms.clone(),
                receiver.clone(),
                Arc::downgrade(&self.entrance),
            ));
        }
        entrance.insert(sender).clone()
    }
}

fn not_sent() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "too many calls are waiting for Redis; this one was not sent",
    )
}

impl<A> ReplySender<A> {
    /// Nobody waits any more.
    fn is_pointless(&self) -> bool {
        match self {
            ReplySender::Awaited(caller) => caller.is_closed(),
            #[cfg(feature = "worker")]
            ReplySender::Posted(_) => false,
        }
    }

    fn tell(self, answer: Result<A>) {
        match self {
            // The caller may have stopped waiting.
            ReplySender::Awaited(caller) => drop(caller.send(answer)),
            #[cfg(feature = "worker")]
            ReplySender::Posted(told) => told(answer),
        }
    }
}

/// One lane: one call at a time, until the outbox is dropped, or there was no call for a while.
async fn run_lane<Op: BatchOperation>(
    ledger: Arc<Ledger>,
    terms: Op::Terms,
    waiting: Arc<tokio::sync::Mutex<mpsc::Receiver<QueuedItem<Op>>>>,
    entrance: Weak<BatchQueue<Op>>,
) {
    let mut lane = Lane::new();
    let mut batch = Vec::new();
    loop {
        {
            let mut waiting = waiting.lock().await;
            match timeout(IDLE_LOOK, waiting.recv_many(&mut batch, BATCH)).await {
                Ok(0) => return,
                Ok(_) => {}
                // Who has come in meanwhile is served, and whoever comes next starts other lanes.
                Err(_) => {
                    if let Some(entrance) = entrance.upgrade() {
                        entrance.lock().expect("no panic while held").take();
                    }
                    continue;
                }
            }
            // Whoever was just answered may be about to call again. That takes no time.
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
        }
        while !batch.is_empty() {
            let rest = batch.split_off(fitting(&batch));
            send_batch(
                &ledger,
                &terms,
                &mut lane,
                std::mem::replace(&mut batch, rest),
            )
            .await;
        }
    }
}

/// How many entries, at least one, fit into a call.
fn fitting<Op: BatchOperation>(batch: &[QueuedItem<Op>]) -> usize {
    let mut bytes = 0;
    let fits = batch.iter().take_while(|entry| {
        bytes += entry.item.bytes();
        bytes <= BATCH_BYTES
    });
    fits.count().max(1)
}

async fn send_batch<Op: BatchOperation>(
    ledger: &Ledger,
    terms: &Op::Terms,
    lane: &mut Lane,
    batch: Vec<QueuedItem<Op>>,
) {
    let mut items = Vec::with_capacity(batch.len());
    let mut replies = Vec::with_capacity(batch.len());
    let mut until = Instant::now();
    for entry in batch {
        // Nothing was sent: leave it.
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
    match Op::send(ledger, lane, terms, &items, until.into_std()).await {
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

/// The operations of producers, each by the method of [`Ledger`] that sends it, by whether it can make
/// a job, and by how many bytes an item adds.
macro_rules! operations {
    ($($item:ident by $method:ident, $creates:expr, $bytes:expr;)*) => {$(
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

            fn creates(&self) -> bool {
                let creates: fn(&Self) -> bool = $creates;
                creates(self)
            }

            fn bytes(&self) -> usize {
                let bytes: fn(&Self) -> usize = $bytes;
                bytes(self)
            }
        }
    )*};
}

operations! {
    Placement by schedule, Placement::creates, |item| item.payload.len() + item.header.len();
    Change by reschedule, |_| false, |_| 0;
    Update by update, |_| false, |item| item.payload.len();
    JobKey by cancel, |_| false, |_| 0;
    Outdated by cancel_outdated, |_| false, |_| 0;
    Revival by requeue, |_| false, |item| item.record_bytes + item.header.len();
    Discard by discard, |_| false, |_| 0;
    BackupItem by restore, |_| true, |item| item.payload.len() + item.header.len() + item.story.len();
}
