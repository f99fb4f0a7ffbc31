//! Ids that several topics share, pushed through daemons that are killed and under clocks that are
//! set: the last push wins.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use keyfall::{Client, JobState};
use tokio::time::{Instant, sleep};

use crate::classic::ClassicClient;
use crate::journal::Answer;
use crate::load::FAR;
use crate::order::{Order, Plan};
use crate::target::{PREFIX, Ways};

/// The error describes the failure.
type Result<T = ()> = std::result::Result<T, String>;

/// Topics with no other jobs; the pushes follow neither order of their names.
const TOPICS: [&str; 3] = ["third", "first", "second"];

/// How many ids are pushed at the same time, and how long each waits between two pushes: the load
/// of the others must not change.
const IDS: usize = 2;
const PAUSE: Duration = Duration::from_millis(250);

/// How long a push may go without an answer, and the least number of judged pushes.
const PATIENCE: Duration = Duration::from_secs(60);
const JUDGED: u64 = 50;

/// Pushes until the faults are over.
pub(crate) struct Shared {
    classic: ClassicClient,
    client: Client,
    judged: AtomicU64,
    is_over: AtomicBool,
}

impl Shared {
    pub(crate) fn new(ways: &Ways, client: Client) -> Self {
        Shared {
            classic: ClassicClient::new(ways),
            client,
            judged: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
        }
    }

    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// # Errors
    /// If the job of a last push is missing, or another job is beside it.
    pub(crate) async fn run(&self) -> Result {
        let ids = (0..IDS).map(|number| self.push_and_judge(number));
        let ends: Vec<Result> = join_all(ids).await;
        ends.into_iter().collect()
    }

    async fn push_and_judge(&self, number: usize) -> Result {
        let id = format!("shared-{number}");
        // Whether all pushes since the last time without a job of this id were answered.
        let mut is_sure = true;
        for turn in 0.. {
            // Through any daemon, one push after the other; now and then two at a time.
            let topic = TOPICS[turn % TOPICS.len()];
            let both = turn % 5 == 4;
            let rival = TOPICS[(turn + 1) % TOPICS.len()];
            let version = ((number as u64) << 32) | (2 * turn as u64);
            if both {
                let (one, other) = tokio::join!(
                    self.push(topic, &id, version),
                    self.push(rival, &id, version + 1)
                );
                is_sure &= one? & other?;
            } else {
                is_sure &= self.push(topic, &id, version).await?;
            }
            let found = self.left(&id).await?;
            let is_last = |one: &(&str, u64)| {
                *one == (topic, version) || both && *one == (rival, version + 1)
            };
            // The job of a killed daemon may stand beside it.
            let is_right = found.iter().any(is_last) && (found.len() == 1 || !is_sure);
            if !is_right {
                return Err(format!(
                    "{id} was pushed last into {topic} as {version}{}, and what is left is \
                     {found:?}; all pushes before were answered: {is_sure}",
                    if both {
                        ", and into another topic at the same time"
                    } else {
                        ""
                    }
                ));
            }
            let judged = 1 + self.judged.fetch_add(1, Ordering::Relaxed);
            let is_over = self.is_over.load(Ordering::Relaxed) && judged >= JUDGED;
            if is_over || turn % 8 == 7 {
                self.remove(&id).await?;
                is_sure = true;
            }
            if is_over {
                return Ok(());
            }
            // The calls of a killed daemon have arrived by then, too.
            sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Repeats the push until it is answered. Returns whether the first push was.
    async fn push(&self, topic: &str, id: &str, version: u64) -> Result<bool> {
        let key = format!("{PREFIX}:{topic}:{id}");
        let order = Order {
            version,
            plan: Plan::Done,
        };
        let deadline = Instant::now() + PATIENCE;
        for number in 0.. {
            match self.classic.push(&key, &order, FAR).await {
                Ok(_) => return Ok(number == 0),
                Err(Answer::Failed(told)) => return Err(format!("{key}: {told}")),
                Err(told) if Instant::now() > deadline => {
                    return Err(format!("{key} is not pushed: {told:?}"));
                }
                Err(_) => sleep(Duration::from_millis(50)).await,
            }
        }
        unreachable!("it has no end")
    }

    /// Topics and versions of the present jobs.
    async fn left(&self, id: &str) -> Result<Vec<(&'static str, u64)>> {
        let mut left = Vec::new();
        for topic in TOPICS {
            let job = self.client.get(format!("{PREFIX}:{topic}:{id}")).await;
            let job = job.map_err(|error| error.to_string())?;
            if let Some(job) = job.filter(|job| job.state() != JobState::Dead) {
                let order: Order = job.json().map_err(|error| error.to_string())?;
                left.push((topic, order.version));
            }
        }
        Ok(left)
    }

    async fn remove(&self, id: &str) -> Result {
        for topic in TOPICS {
            let cancelled = self.client.cancel(format!("{PREFIX}:{topic}:{id}")).await;
            cancelled.map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}
