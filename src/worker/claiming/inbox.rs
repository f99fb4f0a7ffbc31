//! The claim inbox: found jobs that wait to be claimed.
//!
//! The listener, the pacer and the reconciler add jobs; the claimer takes them. The inbox is
//! bounded: a job that does not fit stays in the ledger and is found again, oldest first.

use std::collections::VecDeque;

use tokio::sync::Notify;

use crate::source::Source;
use crate::worker::served::ServedLedger;

/// How many names the inbox of one ledger keeps. More than one claim takes, so that claims are
/// full.
const NAMES: usize = 1024;

/// Access to the inboxes of all ledgers. Notifies the claimer of changes.
#[derive(Default)]
pub(crate) struct ClaimInbox {
    changed: Notify,
}

/// The inbox of one ledger; [`ServedLedger`] holds it.
#[derive(Default)]
pub(crate) struct LedgerInbox {
    /// Jobs that are probably due, with the part that found each. At most 1024.
    pub(crate) heard: VecDeque<(String, Source)>,
    /// Jobs whose lease has probably lapsed.
    pub(crate) lapsed: VecDeque<String>,
    /// Whether the kind is probably paused; nothing is claimed then.
    paused: bool,
    /// Whether more jobs are due than `heard` names: the claimer takes the oldest.
    pub(crate) behind: bool,
    /// How often it was found that more jobs are due. A look at the ledger may clear `behind` only if
    /// this number has not changed since the look began.
    pub(crate) said: u64,
}

impl ClaimInbox {
    /// Adds a due job. If the inbox is full, the job is only counted, and the claimer takes the
    /// oldest.
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

    /// Reports that unnamed jobs are due.
    pub(crate) fn fall_behind(&self, served: &ServedLedger) {
        self.change(served, LedgerInbox::fall_behind);
    }

    /// Replaces the list of jobs whose leases have lapsed.
    pub(crate) fn lapse(&self, served: &ServedLedger, ids: Vec<String>) {
        self.change(served, |ledger_inbox| ledger_inbox.lapsed = ids.into());
    }

    /// Stops claims, because the kind is paused.
    pub(crate) fn pause(&self, served: &ServedLedger) {
        let was = self.with(served, |ledger_inbox| {
            std::mem::replace(&mut ledger_inbox.paused, true)
        });
        if !was {
            tracing::info!(ledger = ?served, "the kind is paused");
        }
    }

    /// Continues claims, because the kind is not paused. After a pause, jobs may be due without
    /// having been announced.
    pub(crate) fn resume(&self, served: &ServedLedger) {
        if self.is_paused(served) {
            tracing::info!(ledger = ?served, "the kind is resumed");
            self.change(served, |ledger_inbox| {
                ledger_inbox.paused = false;
                ledger_inbox.fall_behind();
            });
        }
    }

    /// Whether the kind is paused, as far as is known.
    pub(crate) fn is_paused(&self, served: &ServedLedger) -> bool {
        self.with(served, |ledger_inbox| ledger_inbox.paused)
    }

    /// Gives access to the inbox of a ledger. Does not notify the claimer. Keep `act` short: it
    /// runs under a lock.
    pub(crate) fn with<T>(
        &self,
        served: &ServedLedger,
        act: impl FnOnce(&mut LedgerInbox) -> T,
    ) -> T {
        act(&mut served.ledger_inbox.lock().expect("no panic while held"))
    }

    /// Returns when something was added since the last call.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Changes the inbox of a ledger, and notifies the claimer.
    fn change(&self, served: &ServedLedger, change: impl FnOnce(&mut LedgerInbox)) {
        change(&mut served.ledger_inbox.lock().expect("no panic while held"));
        self.changed.notify_one();
    }
}

impl LedgerInbox {
    /// Whether there is nothing to claim, or the kind is paused.
    pub(crate) fn is_blank(&self) -> bool {
        self.paused || self.heard.is_empty() && self.lapsed.is_empty() && !self.behind
    }

    /// Takes out the jobs whose events were heard, because other workers take them.
    pub(crate) fn take_announced(&mut self) -> Vec<String> {
        let all = std::mem::take(&mut self.heard);
        let is_announced = |(_, source): &(String, Source)| *source == Source::Event;
        let (announced, others): (VecDeque<_>, _) = all.into_iter().partition(is_announced);
        self.heard = others;
        announced.into_iter().map(|(id, _)| id).collect()
    }

    /// Drops the due jobs, because other workers take them.
    pub(crate) fn forget(&mut self) {
        self.heard.clear();
        self.behind = false;
    }

    /// Sets `behind`, and counts that.
    pub(super) fn fall_behind(&mut self) {
        self.behind = true;
        self.said += 1;
    }

    /// Clears `behind`, because a look at the ledger found nothing more that is due. `said` is the
    /// value of [`said`](Self::said) when the look began.
    pub(crate) fn caught_up(&mut self, said: u64) {
        if self.said == said {
            self.behind = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: &str = "app1:trans:notice";

    #[tokio::test]
    async fn a_job_that_does_not_fit_is_taken_as_one_of_the_oldest() {
        let (inbox, served) = (ClaimInbox::default(), ServedLedger::sample(KIND));
        for number in 0..NAMES {
            inbox.hear(&served, number.to_string(), Source::Event);
        }
        assert!(!inbox.with(&served, |ledger_inbox| ledger_inbox.behind));
        inbox.hear(&served, "one more".to_owned(), Source::Event);
        inbox.with(&served, |ledger_inbox| {
            assert!(ledger_inbox.behind);
            assert_eq!(ledger_inbox.heard.len(), NAMES);
        });
    }

    #[tokio::test]
    async fn a_resumed_kind_is_searched_for_due_jobs() {
        let (inbox, served) = (ClaimInbox::default(), ServedLedger::sample(KIND));
        inbox.pause(&served);
        assert!(inbox.with(&served, |ledger_inbox| ledger_inbox.is_blank()));
        inbox.resume(&served);
        inbox.with(&served, |ledger_inbox| {
            assert!(ledger_inbox.behind && !ledger_inbox.is_blank());
        });
    }

    #[test]
    fn news_that_comes_during_a_look_outlives_it() {
        let mut ledger_inbox = LedgerInbox::default();
        ledger_inbox.fall_behind();
        let said = ledger_inbox.said;
        ledger_inbox.fall_behind();
        ledger_inbox.caught_up(said);
        assert!(ledger_inbox.behind);
        ledger_inbox.caught_up(ledger_inbox.said);
        assert!(!ledger_inbox.behind);
    }

    #[test]
    fn a_ledger_has_work_if_anything_is_found_and_it_is_not_paused() {
        let mut ledger_inbox = LedgerInbox::default();
        assert!(ledger_inbox.is_blank());
        ledger_inbox.lapsed.push_back("lapsed".to_owned());
        assert!(!ledger_inbox.is_blank());
        ledger_inbox.lapsed.clear();
        ledger_inbox.behind = true;
        assert!(!ledger_inbox.is_blank());
        ledger_inbox.behind = false;
        ledger_inbox
            .heard
            .push_back(("due".to_owned(), Source::Event));
        assert!(!ledger_inbox.is_blank());
        ledger_inbox.paused = true;
        assert!(ledger_inbox.is_blank());
        ledger_inbox.paused = false;
        ledger_inbox.behind = true;
        ledger_inbox.forget();
        assert!(ledger_inbox.is_blank());
    }

    #[test]
    fn jobs_that_others_take_are_those_whose_events_were_heard() {
        let mut ledger_inbox = LedgerInbox::default();
        for (id, source) in [
            ("one", Source::Event),
            ("overdue", Source::Reconciler),
            ("two", Source::Event),
            ("left", Source::Pacer),
        ] {
            ledger_inbox.heard.push_back((id.to_owned(), source));
        }
        assert_eq!(ledger_inbox.take_announced(), ["one", "two"]);
        let kept = ledger_inbox.heard.iter().map(|(id, _)| id.as_str());
        assert_eq!(kept.collect::<Vec<_>>(), ["overdue", "left"]);
    }

    #[tokio::test]
    async fn the_claimer_hears_of_each_change_once() {
        let (inbox, served) = (ClaimInbox::default(), ServedLedger::sample(KIND));
        let is_told = async || {
            let patience = std::time::Duration::from_millis(10);
            tokio::time::timeout(patience, inbox.changed())
                .await
                .is_ok()
        };
        assert!(!is_told().await && !inbox.is_paused(&served));
        inbox.hear(&served, "due".to_owned(), Source::Event);
        assert!(is_told().await && !is_told().await);
        inbox.fall_behind(&served);
        assert!(is_told().await && inbox.with(&served, |ledger_inbox| ledger_inbox.behind));
        inbox.lapse(&served, vec!["lapsed".to_owned()]);
        let lapsed = inbox.with(&served, |ledger_inbox| ledger_inbox.lapsed.clone());
        assert!(is_told().await && lapsed == ["lapsed"]);
        inbox.pause(&served);
        assert!(!is_told().await && inbox.is_paused(&served));
        inbox.resume(&served);
        assert!(is_told().await && !inbox.is_paused(&served));
    }
}
