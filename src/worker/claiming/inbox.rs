//! What waits to be claimed.
//!
//! Listener, pacer and reconciler put down what they have found; the claimer takes it up.
//! Bounded: what does not fit stays in the ledger and is found again, oldest first.

use std::collections::VecDeque;

use tokio::sync::Notify;

use crate::source::Source;
use crate::worker::served::ServedLedger;

/// How many names of one ledger are kept. More than a claim takes, so that it is full.
const NAMES: usize = 1024;

/// Says when something was put down.
#[derive(Default)]
pub(crate) struct ClaimInbox {
    changed: Notify,
}

/// What is known of one ledger, and goes with it.
#[derive(Default)]
pub(crate) struct LedgerInbox {
    /// Jobs that are due, as far as is known.
    pub(crate) heard: VecDeque<(String, Source)>,
    /// Jobs whose lease has lapsed, as far as is known.
    pub(crate) lapsed: VecDeque<String>,
    /// The kind is paused, as far as is known: there is nothing to ask for.
    paused: bool,
    /// More jobs are due than were heard of: take the oldest.
    pub(crate) behind: bool,
    /// How often `behind` was said. Who has looked since it was last said may unsay it.
    pub(crate) said: u64,
}

impl ClaimInbox {
    /// A job is due.
    pub(crate) fn hear(&self, served: &ServedLedger, id: String, source: Source) {
        self.change(served, |ledger_inbox| {
            if ledger_inbox.heard.len() < NAMES {
                ledger_inbox.heard.push_back((id, source));
            } else {
                served.ledger.meter().dropped();
                ledger_inbox.fall_behind();
            }
        });
    }

    /// Jobs are due that nobody named.
    pub(crate) fn fall_behind(&self, served: &ServedLedger) {
        self.change(served, LedgerInbox::fall_behind);
    }

    /// Leases have lapsed.
    pub(crate) fn lapse(&self, served: &ServedLedger, ids: Vec<String>) {
        self.change(served, |ledger_inbox| ledger_inbox.lapsed = ids.into());
    }

    /// The kind is paused.
    pub(crate) fn pause(&self, served: &ServedLedger) {
        let was = self.with(served, |ledger_inbox| {
            std::mem::replace(&mut ledger_inbox.paused, true)
        });
        if !was {
            tracing::info!(ledger = ?served, "the kind is paused");
        }
    }

    /// The kind is not paused. If it was, jobs may have fallen due unheard.
    pub(crate) fn resume(&self, served: &ServedLedger) {
        if self.is_paused(served) {
            tracing::info!(ledger = ?served, "the kind is resumed");
            self.change(served, |ledger_inbox| {
                ledger_inbox.paused = false;
                ledger_inbox.fall_behind();
            });
        }
    }

    pub(crate) fn is_paused(&self, served: &ServedLedger) -> bool {
        self.with(served, |ledger_inbox| ledger_inbox.paused)
    }

    /// Looks at what is known of a ledger, takes from it, or corrects it.
    pub(crate) fn with<T>(
        &self,
        served: &ServedLedger,
        act: impl FnOnce(&mut LedgerInbox) -> T,
    ) -> T {
        act(&mut served.ledger_inbox.lock().expect("no panic while held"))
    }

    /// Returns when something was put down since the last call.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    fn change(&self, served: &ServedLedger, change: impl FnOnce(&mut LedgerInbox)) {
        change(&mut served.ledger_inbox.lock().expect("no panic while held"));
        self.changed.notify_one();
    }
}

impl LedgerInbox {
    /// Nothing waits to be claimed, or can be.
    pub(crate) fn is_blank(&self) -> bool {
        self.paused || self.heard.is_empty() && self.lapsed.is_empty() && !self.behind
    }

    /// Nothing of it is this worker's.
    pub(crate) fn forget(&mut self) {
        self.heard.clear();
        self.behind = false;
    }

    fn fall_behind(&mut self) {
        self.behind = true;
        self.said += 1;
    }

    /// A look at the ledger, begun when `said` was that, found nothing more that is due.
    pub(crate) fn caught_up(&mut self, said: u64) {
        if self.said == said {
            self.behind = false;
        }
    }
}
