//! Split ledgers: ledgers on a cluster whose keys, some or all, are on another node than the node
//! that serves their slot. This file decides whether a ledger without any keys is new or split, and
//! logs where the parts of a split ledger are.

use std::collections::HashSet;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::error::ErrorKind;
use crate::names::LEDGER_PARTS;
use crate::store::Server;
use crate::store::connections::fault::Fault;
use crate::store::connections::link::Request;
use crate::store::kinds::stray_slots::slot_of_ledger;

/// The time limit of the questions to the nodes about the missing parts.
const PATIENCE: Duration = Duration::from_secs(2);

/// The split ledgers that the log has named, by their names in wake-ups.
#[derive(Default)]
pub(in crate::store) struct SplitLedgers(Mutex<HashSet<String>>);

impl SplitLedgers {
    /// Notes a split ledger. Returns whether it was unknown.
    fn is_news(&self, subject: &str) -> bool {
        let mut known = self.0.lock().expect("no panic while held");
        !known.contains(subject) && known.insert(subject.to_owned())
    }

    /// Forgets a ledger after a call on it succeeded, and logs that if it was split.
    pub(in crate::store) fn forget(&self, subject: &str) {
        let was_torn = self.0.lock().expect("no panic while held").remove(subject);
        if was_torn {
            tracing::info!(ledger = subject, "the ledger is whole again");
        }
    }
}

impl Server {
    /// Checks that a ledger without any keys on the node that serves it is new, as far as this user
    /// may see.
    ///
    /// # Errors
    ///
    /// A fault that names the node that has keys of the ledger, or the keys that an unfinished
    /// repair keeps aside, or a node that did not answer.
    pub(in crate::store) async fn may_begin(
        &self,
        subject: &str,
        until: Instant,
    ) -> Result<(), Fault> {
        let until = until.min(Instant::now() + PATIENCE);
        let slot = slot_of_ledger(subject);
        let start = self.names.start_of_ledger(subject);
        let holders = Box::pin(self.holders(slot, &start, until)).await;
        let holders = seen(subject, slot, holders)?.unwrap_or_default();
        if let Some(holder) = holders.first() {
            return Err(Fault::strayed(subject, slot, &holder.node));
        }
        // A repair copies keys before it deletes them. So keys that have left the other node are by
        // now aside, or joined again, and the next call finds them.
        match seen(subject, slot, self.count_aside(&start, until).await)? {
            Some(1..) => Err(Fault::aside(subject, &start)),
            _ => Ok(()),
        }
    }

    /// The number of keys of a ledger that a repair keeps aside on the node that serves the ledger.
    /// `start` is the beginning of the names of its keys. Keys that are still being copied do not
    /// count.
    pub(in crate::store) async fn count_aside(
        &self,
        start: &str,
        until: Instant,
    ) -> Result<u64, Fault> {
        let mut look = redis::cmd("EXISTS");
        for part in LEDGER_PARTS {
            look.arg(aside(start, "copied", part));
            look.arg(aside(start, "moved", part));
        }
        let told = self.link.send(Request::One(&look), until).await?.value;
        Ok(redis::from_redis_value(told).unwrap_or_default())
    }

    /// Logs where the parts of a split ledger are, once until it is whole again.
    pub(in crate::store) async fn warn_of_torn(
        &self,
        subject: &str,
        missing: &str,
        until: Instant,
    ) {
        if !self.torn.is_news(subject) {
            return;
        }
        let slot = slot_of_ledger(subject);
        let until = until.min(Instant::now() + PATIENCE);
        let start = self.names.start_of_ledger(subject);
        let holders = Box::pin(self.holders(slot, &start, until)).await;
        let holders = match &holders {
            Ok(holders) if holders.is_empty() => match self.count_aside(&start, until).await {
                Ok(1..) => {
                    format!("kept by an unfinished repair, as {start}mending:…")
                }
                _ => "on no node that answers".to_owned(),
            },
            Ok(holders) => {
                let nodes = holders.iter().map(|it| it.node.to_string());
                format!("on {}", nodes.collect::<Vec<_>>().join(", "))
            }
            Err(fault) => format!("not seen: {}", fault.error()),
        };
        tracing::warn!(
            ledger = subject,
            slot,
            missing,
            holders,
            "a part of the ledger is not on the node that serves its slot: calls on the ledger and \
             its jobs wait; `keyfall cluster mend` brings the part back",
        );
    }
}

/// The name of a part of a ledger while a repair keeps it aside. `state` is `copying`, `copied` or
/// `moved`.
pub(in crate::store) fn aside(start: &str, state: &str, part: &str) -> String {
    format!("{start}mending:{state}:{part}")
}

/// The answer to a question about a ledger. `None` if this user may not ask it, or the server does not
/// know the command.
///
/// # Errors
///
/// If the answer of a node is missing for another reason: keys may be there.
fn seen<T>(subject: &str, slot: u16, told: Result<T, Fault>) -> Result<Option<T>, Fault> {
    match told {
        Ok(told) => Ok(Some(told)),
        Err(fault) if fault.is_torn() => Err(fault),
        Err(fault) => {
            let error = fault.error();
            let is_answer = matches!(error.kind(), ErrorKind::Denied | ErrorKind::Damaged);
            if fault.is_passing() || !is_answer {
                return Err(fault.while_looking(subject, slot));
            }
            tracing::debug!(subject, %error, "it is unknown whether another node has the ledger");
            Ok(None)
        }
    }
}
