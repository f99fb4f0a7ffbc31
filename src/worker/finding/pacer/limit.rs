//! The pacer's state of the limit of one ledger. The ends of runs announce the jobs that wait for a
//! number of leases; nobody but the pacer notices that a rate allows the next start.

use std::time::Duration;

use crate::settings::UNANNOUNCED;
use crate::time::UnixUs;

/// The shortest time between two announcements: each can announce several jobs.
const SHORTEST: Duration = Duration::from_millis(2);

/// How long after the last news of waiting jobs the limit counts as the reason why jobs are still
/// due. Longer than the time after which the pacer checks them.
const HOLDS: Duration = UNANNOUNCED.saturating_mul(3);

/// When to announce jobs that wait for the limit.
#[derive(Default)]
pub(super) struct LimitTrack {
    /// When the rate allows the next start.
    next: Option<UnixUs>,
    /// The last announcement.
    last: UnixUs,
    /// Until when the limit counts as the reason why jobs are still due.
    holds_until: UnixUs,
    /// Whether jobs have ever waited for a limit here.
    was_held: bool,
}

impl LimitTrack {
    /// Takes in that this instance paces the ledger from now on. Jobs may wait already.
    pub(super) fn begin(&mut self, now: UnixUs) {
        if self.was_held {
            self.next = Some(now);
        }
    }

    /// Takes in the time. If the clock of the server was set back, all times that were noted before
    /// are as far ahead, and the jobs that wait are announced now. Less than [`HOLDS`] is no step:
    /// the time is an estimate, which each faster reply corrects.
    pub(super) fn observe(&mut self, now: UnixUs) {
        let latest = now.plus(HOLDS);
        if self.last > latest || self.holds_until > latest.plus(HOLDS) {
            *self = LimitTrack {
                next: self.was_held.then_some(now),
                was_held: self.was_held,
                ..LimitTrack::default()
            };
        }
    }

    /// Takes in that due jobs wait, until this time or for the end of a run.
    pub(super) fn hold(&mut self, next: Option<UnixUs>, now: UnixUs) {
        self.next = [self.next, next].into_iter().flatten().min();
        self.holds_until = now.plus(HOLDS);
        self.was_held = true;
    }

    /// When to announce the next jobs.
    pub(super) fn next(&self) -> Option<UnixUs> {
        self.next.map(|next| next.max(self.last.plus(SHORTEST)))
    }

    /// Whether it is time to announce jobs.
    pub(super) fn is_time(&self, now: UnixUs) -> bool {
        self.next().is_some_and(|next| next <= now)
    }

    /// Takes in that jobs were announced, and when more may start.
    pub(super) fn admitted(&mut self, next: Option<UnixUs>, now: UnixUs) {
        self.next = next;
        self.last = now;
        if next.is_some() {
            self.holds_until = now.plus(HOLDS);
        }
    }

    /// Whether jobs that are still due may be waiting for the limit.
    pub(super) fn holds(&self, now: UnixUs) -> bool {
        now < self.holds_until
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: UnixUs = UnixUs(1_000_000);

    fn after(ms: u64) -> UnixUs {
        START.plus(Duration::from_millis(ms))
    }

    #[test]
    fn waiting_jobs_are_announced_when_the_rate_allows_the_next_start() {
        let mut limit = LimitTrack::default();
        assert_eq!(limit.next(), None);
        limit.hold(Some(after(100)), START);
        limit.hold(None, START);
        limit.hold(Some(after(300)), START);
        assert_eq!(limit.next(), Some(after(100)), "the earliest");
        assert!(!limit.is_time(after(99)) && limit.is_time(after(100)));
        limit.admitted(Some(after(101)), after(100));
        assert_eq!(limit.next(), Some(after(102)), "not at once");
        limit.admitted(None, after(102));
        assert_eq!(limit.next(), None);
    }

    #[test]
    fn a_limit_is_the_reason_for_a_while_after_the_last_news() {
        let mut limit = LimitTrack::default();
        limit.admitted(None, START);
        assert!(!limit.holds(START), "no job waits");
        limit.hold(None, START);
        assert!(limit.holds(START));
        assert!(!limit.holds(START.plus(HOLDS)));
    }

    #[test]
    fn jobs_that_wait_are_announced_soon_after_the_clock_was_set_back() {
        let mut limit = LimitTrack::default();
        limit.hold(Some(after(3_600_000)), after(3_599_000));
        limit.observe(after(3_599_500));
        assert_eq!(limit.next(), Some(after(3_600_000)), "the clock goes on");
        limit.observe(after(3_598_950));
        assert_eq!(limit.next(), Some(after(3_600_000)), "it is known better");
        assert!(limit.holds(after(3_598_950)));
        limit.observe(after(1000));
        assert!(limit.is_time(after(1000)));
        assert!(!limit.holds(after(1000)), "of this nobody has heard yet");
        limit.admitted(Some(after(2000)), after(1000));
        limit.observe(START);
        assert!(limit.is_time(START), "a second time");
        let mut never = LimitTrack::default();
        never.admitted(None, after(1000));
        never.observe(START);
        assert_eq!(never.next(), None, "no job waits");
    }

    #[test]
    fn a_new_pacer_looks_for_waiting_jobs_where_some_have_waited_before() {
        let mut limit = LimitTrack::default();
        limit.begin(START);
        assert_eq!(
            limit.next(),
            None,
            "this ledger has no limit, as far as is known"
        );
        limit.hold(None, START);
        limit.begin(after(500));
        assert!(limit.is_time(after(500)));
    }
}
