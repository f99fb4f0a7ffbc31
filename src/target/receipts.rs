//! Settles the jobs of a list that its consumers have acknowledged.
//!
//! A receipt is the lease of a job, appended by a consumer to the list `<list>:done`. Each worker
//! with a route to the list runs this task.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;

use super::list::ListShared;
use super::pace::Pace;
use super::target_key::{TargetKey, is_hopeless};
use crate::error::Result;
use crate::handler::RouteTaskContext;
use crate::lease::Lease;
use crate::outcome::Outcome;

/// How many receipts one round reads.
const MOST: usize = 1000;

/// How long a receipt is left to the worker that wrote the job, because that worker counts its
/// unfinished jobs. After this time the writer is presumed gone, and any other worker settles the
/// job.
const STRANGERS: Duration = Duration::from_secs(2);

/// The task that settles the receipts in `<list>:done`. A receipt is removed after its job is
/// settled, so that none is lost with a worker. A worker that dies in between leaves a receipt that
/// another one settles again, without effect.
pub(super) struct Receipts {
    way: TargetKey,
    shared: Arc<ListShared>,
    context: RouteTaskContext,
    /// Receipts for jobs of other workers, with the instant at which they were first seen.
    strangers: HashMap<Vec<u8>, Instant>,
}

impl Receipts {
    pub(super) fn new(way: TargetKey, shared: Arc<ListShared>, context: RouteTaskContext) -> Self {
        Receipts {
            way,
            shared,
            context,
            strangers: HashMap::new(),
        }
    }

    /// Runs until it is dropped; errors are logged, and the next round tries again.
    pub(super) async fn run(mut self) {
        let mut pace = Pace::new(self.context.lease);
        loop {
            let round = self.step().await;
            pace.rest(&self.way, round, &self.shared.written).await;
        }
    }

    /// One round: reads receipts, settles their jobs, and removes them. Returns whether it removed
    /// any. A malformed receipt, or one of a job that can never be settled, is logged and removed.
    async fn step(&mut self) -> Result<bool> {
        let list = &self.way.key;
        let receipts = self.way.target_redis().receipts(list, MOST).await?;
        let mut strangers = HashMap::new();
        let mut dealt_with = Vec::new();
        let mut ended = Vec::new();
        for receipt in receipts {
            match read(&receipt) {
                Err(fault) => {
                    tracing::warn!(list = %self.way, %fault, "a receipt is dropped");
                    dealt_with.push(receipt);
                }
                Ok(lease) => {
                    let since = self.strangers.get(&receipt).copied();
                    let since = since.unwrap_or_else(Instant::now);
                    if self.shared.is_ours(lease.claimer()) || since.elapsed() >= STRANGERS {
                        ended.push((receipt, lease));
                    } else {
                        strangers.insert(receipt, since);
                    }
                }
            }
        }
        self.strangers = strangers;
        let client = &self.context.client;
        let settle = async |(receipt, lease): (Vec<u8>, Lease)| {
            let settled = client.settle(&lease, Outcome::Done).await;
            (receipt, lease, settled)
        };
        let mut fault = None;
        for (receipt, lease, settled) in join_all(ended.into_iter().map(settle)).await {
            match settled {
                Ok(settled) => tracing::debug!(%lease, ?settled, "acknowledged"),
                Err(error) if is_hopeless(&error) => {
                    tracing::warn!(%lease, %error, "a receipt is dropped");
                }
                // The receipt stays in the list.
                Err(error) => {
                    fault = Some(error);
                    continue;
                }
            }
            dealt_with.push(receipt);
        }
        self.way.target_redis().forget(list, &dealt_with).await?;
        fault.map_or(Ok(!dealt_with.is_empty()), Err)
    }
}

/// # Errors
/// If a receipt is no lease.
fn read(receipt: &[u8]) -> Result<Lease> {
    String::from_utf8_lossy(receipt).parse()
}
