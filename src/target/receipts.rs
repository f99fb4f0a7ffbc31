//! Ends the jobs of a list whose consumers are done with them.

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

/// How many receipts are looked at in one round.
const MOST: usize = 1000;

/// How long a receipt is left to the worker that wrote the job: it is the one that counts how many
/// of its jobs are out. Then it is gone, and anybody may deal with the receipt.
const STRANGERS: Duration = Duration::from_secs(2);

/// Settles what stands in `<list>:done`. A receipt is removed when it has been dealt with, so that
/// none is lost with a worker.
pub(super) struct Receipts {
    way: TargetKey,
    shared: Arc<ListShared>,
    attendance: RouteTaskContext,
    /// Since when those of others have been seen.
    strangers: HashMap<Vec<u8>, Instant>,
}

impl Receipts {
    pub(super) fn new(
        way: TargetKey,
        shared: Arc<ListShared>,
        attendance: RouteTaskContext,
    ) -> Self {
        Receipts {
            way,
            shared,
            attendance,
            strangers: HashMap::new(),
        }
    }

    pub(super) async fn run(mut self) {
        let mut pace = Pace::new(self.attendance.lease);
        loop {
            let round = self.step().await;
            pace.rest(&self.way, round, &self.shared.written).await;
        }
    }

    /// Whether there was something to do.
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
        let client = &self.attendance.client;
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
                // It stays where it is.
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

fn read(receipt: &[u8]) -> Result<Lease> {
    String::from_utf8_lossy(receipt).parse()
}
