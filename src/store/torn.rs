//! Ledgers on a cluster of which a part, or all, is not where they are served.

use std::collections::HashSet;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::Store;
use super::cluster::Node;
use super::fault::Fault;
use super::strays::slot_of_ledger;

/// How long the nodes are asked for the parts that are missing.
const PATIENCE: Duration = Duration::from_secs(2);

/// Those that are known, by what wake-ups call them.
#[derive(Default)]
pub(super) struct Torn(Mutex<HashSet<String>>);

impl Torn {
    /// Returns whether that is news.
    fn is_news(&self, subject: &str) -> bool {
        let mut known = self.0.lock().expect("no panic while held");
        !known.contains(subject) && known.insert(subject.to_owned())
    }

    pub(super) fn is_whole(&self, subject: &str) {
        let was_torn = self.0.lock().expect("no panic while held").remove(subject);
        if was_torn {
            tracing::info!(ledger = subject, "the ledger is whole again");
        }
    }
}

impl Store {
    /// The node that has a ledger of which nothing is where it is served; `None` if it is new, for all
    /// that this user may see.
    pub(super) async fn strayed(
        &self,
        subject: &str,
        until: Instant,
    ) -> Result<Option<Node>, Fault> {
        let until = until.min(Instant::now() + PATIENCE);
        let start = self.names.start_of_ledger(subject);
        let holders = self.holders(slot_of_ledger(subject), &start, until);
        match Box::pin(holders).await {
            Ok(mut holders) => Ok(holders.pop().map(|it| it.holder.node)),
            Err(fault) if fault.is_passing() => Err(fault),
            Err(fault) => {
                let error = fault.error();
                tracing::debug!(subject, %error, "nobody can tell whether it is elsewhere");
                Ok(None)
            }
        }
    }

    /// Says where a ledger is, once as long as it is torn.
    pub(super) async fn warn_of_torn(&self, subject: &str, missing: &str, until: Instant) {
        if !self.torn.is_news(subject) {
            return;
        }
        let slot = slot_of_ledger(subject);
        let until = until.min(Instant::now() + PATIENCE);
        let start = self.names.start_of_ledger(subject);
        let holders = Box::pin(self.holders(slot, &start, until)).await;
        let holders = match &holders {
            Ok(holders) if holders.is_empty() => "on no node that answers".to_owned(),
            Ok(holders) => {
                let nodes = holders.iter().map(|it| it.holder.node.to_string());
                format!("on {}", nodes.collect::<Vec<_>>().join(", "))
            }
            Err(fault) => format!("not seen: {}", fault.error()),
        };
        tracing::warn!(
            ledger = subject,
            slot,
            missing,
            holders,
            "a part of the ledger is not where its slot is served: calls on it and its jobs wait; \
             `keyfall cluster mend` brings it back",
        );
    }
}
