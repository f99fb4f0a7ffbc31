//! The limit of the ledger: how many jobs may start now, and when the next one may.

use super::answer::Reply;
use super::ledger::{Job, Ledger, Limited};
use super::operations::{Id, LIMITED_BY, Limit};

/// How long a lapsed lease keeps a start for its takeover, ms.
const TAKEOVER: u64 = 60_000;

/// How often the pacer asks whether lapsed leases were taken over, µs.
const ASKED: u64 = 100_000;

/// The longest hold, µs.
const HOLD: u64 = 3_600_000_000;

impl Limited {
    /// Until when no job starts, if that is not over.
    fn held_until(&self, now: u64) -> Option<u64> {
        Some(self.hold).filter(|until| *until > now && *until <= now + HOLD)
    }

    /// When all starts of a burst are free, as seen from `now`: not in the past, and not further
    /// ahead than if all of them were used now.
    fn full_at(&self, now: u64) -> u64 {
        now.max(self.full.min(now + self.terms.burst * self.terms.gap))
    }
}

impl Ledger {
    pub(super) fn limit(&mut self, terms: Limit) -> String {
        match self.limited {
            Some(limited) if limited.terms.set > terms.set => "kept".to_owned(),
            limited => {
                let full = limited.map_or(self.now, |limited| limited.full);
                // Setting the same limit does not end a hold.
                let same = limited.filter(|limited| limited.terms.set == terms.set);
                let hold = same.map_or(0, |limited| limited.hold);
                self.limited = Some(Limited { terms, full, hold });
                "limited".to_owned()
            }
        }
    }

    pub(super) fn hold(&mut self, ms: u64) -> &'static str {
        let now = self.now;
        match &mut self.limited {
            Some(limited) if limited.terms.gap > 0 || limited.terms.most > 0 => {
                let before = limited.held_until(now).unwrap_or(0);
                limited.hold = before.max(now + HOLD.min(ms * 1000));
                "held"
            }
            _ => "absent",
        }
    }

    /// How many jobs may start now by the rate and the hold.
    pub(super) fn starts(&self) -> usize {
        match self.limited {
            Some(limited) if limited.held_until(self.now).is_some() => 0,
            Some(limited) if limited.terms.gap > 0 => {
                let Limit { gap, burst, .. } = limited.terms;
                ((self.now + burst * gap - limited.full_at(self.now)) / gap) as usize
            }
            _ => usize::MAX,
        }
    }

    /// The starts that are left for due jobs: those of lapsed leases are kept for their takeover.
    fn starts_of_due(&self) -> usize {
        let now = self.ms();
        let lapsed = self.running().into_iter();
        let lapsed = lapsed.filter(|(deadline, _)| (now - TAKEOVER..=now).contains(deadline));
        match self.starts() {
            usize::MAX => usize::MAX,
            starts => starts.saturating_sub(lapsed.count()),
        }
    }

    /// How many due jobs may start now.
    pub(super) fn room(&self) -> usize {
        let most = self.limited.map_or(0, |limited| limited.terms.most);
        let leases = match most {
            0 => usize::MAX,
            most => most.saturating_sub(self.running().len()),
        };
        self.starts_of_due().min(leases)
    }

    /// When the rate and the hold allow the next start, Unix µs; 0 if they stop none.
    pub(super) fn next_start(&self) -> u64 {
        match self.limited {
            Some(limited) if self.starts() == 0 => {
                let Limit { gap, burst, .. } = limited.terms;
                let by_rate = match gap {
                    0 => 0,
                    gap => limited.full_at(self.now) - (burst - 1) * gap,
                };
                by_rate.max(limited.held_until(self.now).unwrap_or(0))
            }
            _ => 0,
        }
    }

    pub(super) fn use_starts(&mut self, count: usize) {
        let now = self.now;
        if let Some(limited) = &mut self.limited
            && limited.terms.gap > 0
        {
            limited.full = limited.full_at(now) + count as u64 * limited.terms.gap;
        }
    }

    /// The jobs that are due, the oldest first.
    fn due_now(&self) -> Vec<Id> {
        let due = self.waiting().into_iter();
        due.filter(|(due, _)| *due <= self.ms())
            .map(|(_, id)| id)
            .collect()
    }

    /// The jobs that a claim takes instead of the named ones, if the limit holds some back.
    pub(super) fn instead_of(&self, ids: &[Id], fill: usize) -> Option<Vec<Id>> {
        let due = self.due_now();
        let mut named: Vec<Id> = ids.iter().copied().filter(|id| due.contains(id)).collect();
        named.sort_unstable();
        named.dedup();
        let room = self.room();
        let is_held = !self.is_paused() && named.len() + fill > room;
        is_held.then(|| due.into_iter().take(room).collect())
    }

    /// The answers of a claim that takes these jobs.
    pub(super) fn answers_held(&self, ids: &[Id], taken: &[Id]) -> Vec<String> {
        let answer = |id: &Id| match self.jobs.get(id) {
            None => "absent".to_owned(),
            Some(Job::Leased(_)) => "leased".to_owned(),
            Some(Job::Pending(job)) if job.due > self.ms() => {
                format!("early:{}", job.due - self.ms())
            }
            Some(Job::Pending(_)) if taken.contains(id) => "claimed".to_owned(),
            Some(Job::Pending(_)) => "held".to_owned(),
        };
        ids.iter().map(answer).collect()
    }

    pub(super) fn admit(&self) -> Reply {
        let Some(limited) = self.limited else {
            return Reply::ok(["", "0", "0", "0", "0"]);
        };
        let Limit {
            gap,
            burst,
            most,
            set,
        } = limited.terms;
        if gap == 0 && most == 0 {
            return Reply::ok(["", "0", "0", "0", "0"]);
        }
        let due = self.due_now().len();
        let room = self.room().min(due);
        let mut next = 0;
        if due > room && self.starts_of_due() <= room {
            let mut then = self.clone();
            then.use_starts(room);
            next = match then.next_start() {
                0 => self.now + gap.max(ASKED),
                next => next,
            };
        }
        let Limited { full, hold, .. } = limited;
        Reply::ok([
            format!("{full} {gap} {burst} {most} {hold} {set} {LIMITED_BY}"),
            room.to_string(),
            self.running().len().to_string(),
            due.to_string(),
            next.to_string(),
        ])
    }

    /// How many overdue jobs wait for the limit, if it lets none start.
    pub(super) fn held(&self) -> usize {
        match self.limited {
            Some(_) if self.room() == 0 => self.due_now().len(),
            _ => 0,
        }
    }
}
