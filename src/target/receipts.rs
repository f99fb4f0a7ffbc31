//! Settles the jobs of a list that its consumers have acknowledged.
//!
//! A receipt is the lease of a job, appended by a consumer to the list `<list>:done`. Each worker
//! with a route to the list runs this task.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;

use super::list::ListShared;
use super::pace::{Pace, in_time, patience};
use super::target_key::{TargetKey, is_hopeless};
use crate::client::Settled;
use crate::error::{Error, Result};
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
                    let is_ours = self.shared.is_ours(lease.claimer());
                    if is_for_us(is_ours, since.elapsed()) {
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
            let limit = patience(self.context.lease(lease.key()));
            let settled = in_time(client.settle(&lease, Outcome::Done), &lease, limit).await;
            (receipt, lease, settled)
        };
        let settled = join_all(ended.into_iter().map(settle)).await;
        let (settled, fault) = Receipts::dealt_with(settled);
        dealt_with.extend(settled);
        self.way.target_redis().forget(list, &dealt_with).await?;
        fault.map_or(Ok(!dealt_with.is_empty()), Err)
    }

    /// The acknowledgements, of a list or a stream, whose jobs are settled or never can be; and the
    /// last error of the others, which stay for another try.
    pub(super) fn dealt_with<T>(
        settlements: Vec<(T, Lease, Result<Settled>)>,
    ) -> (Vec<T>, Option<Error>) {
        let (mut dealt_with, mut fault) = (Vec::new(), None);
        for (acknowledgement, lease, settled) in settlements {
            match settled {
                Ok(settled) => tracing::debug!(%lease, ?settled, "its acknowledgement is settled"),
                Err(error) if is_hopeless(&error) => {
                    tracing::warn!(%lease, %error, "an acknowledgement is dropped");
                }
                Err(error) => {
                    fault = Some(error);
                    continue;
                }
            }
            dealt_with.push(acknowledgement);
        }
        (dealt_with, fault)
    }
}

/// Whether this worker settles a receipt that has been in the list for this long, as far as it has
/// seen. `is_ours` if it wrote the job.
fn is_for_us(is_ours: bool, seen_for: Duration) -> bool {
    is_ours || seen_for >= STRANGERS
}

/// # Errors
/// If a receipt is no lease.
fn read(receipt: &[u8]) -> Result<Lease> {
    String::from_utf8_lossy(receipt).parse()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn a_receipt_for_another_worker_is_left_to_it_for_a_while() {
        let moment = Duration::from_millis(1);
        for seen_for in [Duration::ZERO, STRANGERS - moment] {
            assert!(is_for_us(true, seen_for));
            assert!(!is_for_us(false, seen_for), "{seen_for:?}");
        }
        for seen_for in [STRANGERS, STRANGERS + moment, 100 * STRANGERS] {
            assert!(is_for_us(false, seen_for), "its writer is gone");
        }
    }

    #[test]
    fn an_acknowledgement_stays_until_its_job_is_settled_or_never_can_be() {
        let fails = |kind| Err(Error::new(kind, "an answer"));
        let settlements = [
            ("done", Ok(Settled::Done)),
            ("away", fails(ErrorKind::Unavailable)),
            ("damaged", fails(ErrorKind::Damaged)),
            ("full", fails(ErrorKind::Full)),
            ("gone", Ok(Settled::Gone)),
            ("unknown", fails(ErrorKind::Incompatible)),
        ];
        let lease: Lease = "app1:trans:notice:1@ab-1".parse().unwrap();
        let settlements = settlements.map(|(name, settled)| (name, lease.clone(), settled));
        let (dealt_with, fault) = Receipts::dealt_with(settlements.into());
        assert_eq!(dealt_with, ["done", "damaged", "gone", "unknown"]);
        assert_eq!(fault.unwrap().kind(), ErrorKind::Full);
        let hopeless = vec![("misnamed", lease, fails(ErrorKind::InvalidKey))];
        let (dealt_with, fault) = Receipts::dealt_with(hopeless);
        assert!(dealt_with == ["misnamed"] && fault.is_none(), "{fault:?}");
    }
}
