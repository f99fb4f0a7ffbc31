//! Ledgers on a cluster of which a part, or all, is not where they are served.

use std::collections::HashSet;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::names::LEDGER_PARTS;
use crate::store::Server;
use crate::store::connections::fault::Fault;
use crate::store::connections::link::Request;
use crate::store::kinds::stray_slots::slot_of_ledger;

/// How long the nodes are asked for the parts that are missing.
const PATIENCE: Duration = Duration::from_secs(2);

/// Those that are known, by what wake-ups call them.
#[derive(Default)]
pub(in crate::store) struct SplitLedgers(Mutex<HashSet<String>>);

impl SplitLedgers {
    /// Returns whether that is news.
    fn is_news(&self, subject: &str) -> bool {
        let mut known = self.0.lock().expect("no panic while held");
        !known.contains(subject) && known.insert(subject.to_owned())
    }

    pub(in crate::store) fn is_whole(&self, subject: &str) {
        let was_torn = self.0.lock().expect("no panic while held").remove(subject);
        if was_torn {
            tracing::info!(ledger = subject, "the ledger is whole again");
        }
    }
}

impl Server {
    /// Whether a ledger of which nothing is where it is served is new, for all that this user may see;
    /// otherwise where it is.
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
        // A mending copies before it deletes, so what was not elsewhere any more is aside by now, or
        // joined, which the next call finds.
        match seen(subject, slot, self.count_aside(&start, until).await)? {
            Some(1..) => Err(Fault::aside(subject, &start)),
            _ => Ok(()),
        }
    }

    /// How many keys of a ledger a mending keeps aside where the ledger is served.
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

    /// Says where a ledger is, once as long as it is torn.
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
                    format!("kept aside by a mending that has not ended, as {start}mending:…")
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
            "a part of the ledger is not where its slot is served: calls on it and its jobs wait; \
             `keyfall cluster mend` brings it back",
        );
    }
}

/// What a mending calls a part of a ledger until it is joined.
pub(in crate::store) fn aside(start: &str, state: &str, part: &str) -> String {
    format!("{start}mending:{state}:{part}")
}

/// What was seen; `None` if this user may not look, and an error if nobody can tell for now.
fn seen<T>(subject: &str, slot: u16, told: Result<T, Fault>) -> Result<Option<T>, Fault> {
    match told {
        Ok(told) => Ok(Some(told)),
        Err(fault) if fault.is_torn() => Err(fault),
        Err(fault) if fault.is_passing() => Err(fault.while_looking(subject, slot)),
        Err(fault) => {
            let error = fault.error();
            tracing::debug!(subject, %error, "nobody can tell whether it is elsewhere");
            Ok(None)
        }
    }
}
