//! A consumer as a process of its own: it takes jobs from its [`Source`], and writes down every
//! run.
//!
//! | module | where jobs come from |
//! |---|---|
//! | [`pull`] | it pulls from the daemons |
//! | [`receiver`] | the daemons call it |
//! | [`outlet`] | it takes them from a list or a stream |
//! | [`popper`] | it pops them, as clients of classic delay queues do |
//! | [`leases`] | the calls about leases over HTTP |

mod leases;
mod outlet;
mod popper;
mod pull;
mod receiver;

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_all;
use jiff::Timestamp;
use keyfall_testing::journals::{at_unix_ms, now};
use keyfall_testing::process::told_to_stop;
use serde::{Deserialize, Serialize};
use tokio::time::sleep;
use tokio_util::task::TaskTracker;

use crate::daemons::Daemons;
use crate::journal::{Journal, What};
use crate::order::{Order, Plan};
use crate::plain::PLAIN;

use crate::target::{PREFIX, Transport, Ways};
use leases::Leases;

/// How many jobs are taken at once, where the source has such a setting.
const AT_ONCE: usize = 50;

/// The most unanswered ends. A consumer that cannot end its jobs takes no more.
const UNENDED: usize = 100;

/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(40);

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Terms {
    pub(crate) name: String,
    pub(crate) ways: Ways,
    pub(crate) journals: PathBuf,
}

/// How jobs reach a consumer, and how its answers reach the sender.
trait Source: Send + Sync + 'static {
    /// The identity of a delivery.
    type Ticket: Send + Sync + 'static;

    /// The number of simultaneous waits for jobs.
    const HANDS: usize = 1;

    /// Waits for jobs. Returns none if the source is away.
    fn take(&self) -> impl Future<Output = Vec<Taken<Self::Ticket>>> + Send;

    /// Asks for more time. Without an answer the time is long enough all the same.
    fn extend(&self, _ticket: &Self::Ticket) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Reports that these runs ended so. For each, whether the end counted, if the source tells.
    fn end(
        &self,
        tickets: Vec<Self::Ticket>,
        end: RunEnd,
    ) -> impl Future<Output = Vec<Option<bool>>> + Send;
}

/// A job in the hands of a consumer.
struct Taken<T> {
    key: String,
    order: Order,
    attempt: u32,
    fence: u64,
    due: Option<Timestamp>,
    ticket: T,
}

/// The end of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RunEnd {
    Done,
    Failed,
    /// The job is to be tried again after a while.
    Later,
    Bury,
}

struct Consuming<S> {
    source: S,
    journal: Journal,
}

/// Consumes until its standard input ends.
pub(crate) fn main(terms: &Terms) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime starts");
    runtime.block_on(async {
        let leases = |prefixes| Leases::new(Daemons::new(&terms.ways.api), prefixes);
        let pulled = leases(&[PREFIX, PLAIN]);
        match terms.ways.target {
            Transport::Pull => consume(terms, pulled).await,
            Transport::Callback => consume(terms, receiver::CallbackSource::start(terms)).await,
            Transport::List => consume(terms, outlet::ListSource::new(&terms.ways, pulled)).await,
            Transport::Stream => {
                let stream = outlet::StreamSource::new(&terms.ways, &terms.name, pulled);
                consume(terms, stream).await;
            }
            Transport::Classic => {
                let popper = popper::Popper::new(&terms.ways);
                let pulled = leases(&[PLAIN]);
                tokio::join!(consume(terms, popper), consume(terms, pulled));
            }
        }
    });
}

async fn consume<S: Source>(terms: &Terms, source: S) {
    let consumer = Arc::new(Consuming {
        source,
        journal: Journal::open(&terms.journals, &terms.name),
    });
    let runs = TaskTracker::new();
    let hands = (0..S::HANDS).map(|_| Box::pin(consumer.clone().take(&runs)));
    tokio::select! {
        _ = select_all(hands) => {}
        () = told_to_stop() => {}
    }
    // The runs in progress end in order.
    runs.close();
    runs.wait().await;
}

impl<S: Source> Consuming<S> {
    /// Takes jobs for ever. Each runs in a task of its own.
    async fn take(self: Arc<Self>, runs: &TaskTracker) -> Infallible {
        loop {
            while runs.len() > UNENDED {
                sleep(PAUSE).await;
            }
            let taken = self.source.take().await;
            taken.iter().for_each(|one| self.begin(one));
            let (done, others): (Vec<_>, Vec<_>) =
                (taken.into_iter()).partition(|one| one.order.plan == Plan::Done);
            if !done.is_empty() {
                runs.spawn(self.clone().end(done, RunEnd::Done));
            }
            for one in others {
                runs.spawn(self.clone().run(one));
            }
        }
    }

    fn begin(&self, one: &Taken<S::Ticket>) {
        let due = one.due.map(|due| u64::try_from(due.as_millisecond()));
        let due = due.map(|due| at_unix_ms(due.expect("it is after 1970")));
        self.journal.note(What::Began {
            key: one.key.clone(),
            version: one.order.version,
            attempt: one.attempt,
            fence: one.fence,
            late: due.map_or(0, |due| now().saturating_sub(due)),
        });
    }

    async fn run(self: Arc<Self>, one: Taken<S::Ticket>) {
        let first = one.attempt == 1;
        let end = match one.order.plan {
            Plan::Slow(ms) => {
                if ms > 300 {
                    self.source.extend(&one.ticket).await;
                }
                sleep(Duration::from_millis(ms)).await;
                RunEnd::Done
            }
            Plan::Retry if first => RunEnd::Failed,
            Plan::Again | Plan::Snooze if first => RunEnd::Later,
            Plan::Bury => RunEnd::Bury,
            _ => RunEnd::Done,
        };
        self.end(vec![one], end).await;
    }

    async fn end(self: Arc<Self>, all: Vec<Taken<S::Ticket>>, end: RunEnd) {
        let mut tickets = Vec::new();
        let mut ended = Vec::new();
        for one in all {
            self.journal.note(What::Ended {
                key: one.key.clone(),
                fence: one.fence,
                last: matches!(end, RunEnd::Done | RunEnd::Bury),
            });
            tickets.push(one.ticket);
            ended.push((one.key, one.fence));
        }
        let counted = self.source.end(tickets, end).await;
        for ((key, fence), counted) in ended.into_iter().zip(counted) {
            if let Some(taken) = counted {
                self.journal.note(What::Settled { key, fence, taken });
            }
        }
    }
}
